/* Shared by convolution and pooling: images, and options with a number for each spatial axis. */
#ifndef LS_AUTOGRAD_OPS_WINDOW_H
#define LS_AUTOGRAD_OPS_WINDOW_H

#include <lockstep/convolution.h>

#include "autograd/op.h"

enum { LS_SPATIAL = 3 };

/*
 * Views x [n, channels, ...] with 1 to 3 spatial axes in the kernels' shape, which has axes of size 1 before the
 * spatial axes.
 */
ls_tensor ls_image_view(const ls_tensor *x);

/* Fails with LS_ERR_SHAPE unless x is such an image; it has x->ndim - 2 spatial axes. */
ls_status ls_check_image(const char *call, const ls_tensor *x);

/*
 * Stores an option's numbers for `axes` spatial axes in the last elements of number[3]. The elements before them are
 * set to `usual`; all elements are, if no number was given. Fails with LS_ERR_ARGUMENT if the count of numbers is wrong
 * or a number is below `least`.
 */
ls_status ls_spatial_numbers(const char *call, const char *option, const ls_shape *given, int axes, int64_t least,
                             int32_t usual, int32_t *number);

/* Returns a tensor y [n, channels, out...] with the number of axes of x. */
ls_tensor *ls_image_new(const char *call, const ls_tensor *x, int64_t channels, const int64_t *out);

/* Options of both kinds of convolution, for operations and layers. */
typedef struct ls_conv_numbers {
    bool transposed;
    bool same; /* never with `transposed` */
    int64_t groups;
    ls_shape stride, padding, dilation;
    ls_shape output_padding; /* empty unless `transposed` */
} ls_conv_numbers;

/* Runs ls_conv or ls_conv_transpose. */
ls_tensor *ls_convolve(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, const ls_conv_numbers *numbers);

/*
 * Sets strides, dilation and padding of a window over `axes` spatial axes; window->kernel must be set. Fails with
 * LS_ERR_ARGUMENT if a number is invalid for every image.
 */
ls_status ls_conv_window(const char *call, int axes, const ls_conv_numbers *numbers, ls_window *window);

/* Options of both kinds of pooling. */
typedef struct ls_pool_numbers {
    ls_shape kernel, stride, padding;
    ls_shape dilation; /* empty for average pooling */
    bool ceil_mode, exclude_padding;
} ls_pool_numbers;

ls_pool_numbers ls_max_pool_numbers(const ls_max_pool_options *options);
ls_pool_numbers ls_average_pool_numbers(const ls_average_pool_options *options);
/* Sets the window for pooling over `axes` spatial axes, like ls_conv_window. */
ls_status ls_pool_window(const char *call, int axes, const ls_pool_numbers *numbers, ls_window *window);

/* Fails with LS_ERR_ARGUMENT if the options are invalid for every image. */
ls_status ls_resize_check(const char *call, const ls_resize_options *options);

/* Fails with LS_ERR_ARGUMENT if the factor of ls_pixel_shuffle or ls_pixel_unshuffle is invalid for every image. */
ls_status ls_shuffle_check(const char *call, int64_t factor);

#endif
