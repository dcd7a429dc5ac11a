/* What convolution and pooling share: images, and the numbers that are given for each of their spatial axes. */
#ifndef LS_AUTOGRAD_OPS_WINDOW_H
#define LS_AUTOGRAD_OPS_WINDOW_H

#include <lockstep/convolution.h>

#include "autograd/op.h"

enum { LS_SPATIAL = 3 };

/* x [n, channels, ...] with 1 to 3 spatial axes as kernels take images: with sizes of 1 in front of those. */
ls_tensor ls_image_view(const ls_tensor *x);

/* LS_ERR_SHAPE unless x is such an image; it has x->ndim - 2 spatial axes. */
ls_status ls_check_image(const char *call, const ls_tensor *x);

/*
 * An option's numbers for `axes` spatial axes, to the last of number[3]: `usual` for those in front, and for all of
 * them when nothing was given. LS_ERR_ARGUMENT for another count of numbers, or one below `least`.
 */
ls_status ls_spatial_numbers(const char *call, const char *option, const ls_shape *given, int axes, int64_t least,
                             int32_t usual, int32_t *number);

/* The sizes of y [n, channels, out...] in the axes that x has. */
ls_tensor *ls_image_new(const char *call, const ls_tensor *x, int64_t channels, const int64_t *out);

/*
 * Strides, dilation and padding from options, for `axes` spatial axes, after window->kernel was set: LS_ERR_ARGUMENT
 * for what is wrong whatever the image.
 */
ls_status ls_conv_window(const char *call, bool transposed, int axes, const ls_conv_options *options,
                         ls_window *window);
/* The same of pooling, of maxima or of means; the kernel is an option. */
ls_status ls_pool_window(const char *call, bool of_means, int axes, const ls_pool_options *options, ls_window *window);

#endif
