/**
 * @file convolution.h
 * Convolution, pooling and resizing over one to three spatial axes, with gradients.
 *
 * ```c
 * ls_tensor *images = ls_randn(LS_SHAPE(8, 3, 32, 32), LS_F32);
 * ls_tensor *weight = ls_randn(LS_SHAPE(16, 3, 3, 3), LS_F32);
 * ls_conv_options padded = {.same = true};
 * ls_tensor *y = ls_relu(ls_conv(images, weight, NULL, &padded));
 * ls_max_pool_options pairs = {.kernel = LS_SHAPE(2)};
 * y = ls_max_pool(y, &pairs);
 * ```
 *
 * - x is [n, channels, ...] with 1 to 3 spatial axes after the channels, and floating-point. 16-bit floats are computed
 *   in f32. ls_pixel_shuffle and ls_pixel_unshuffle need two spatial axes, and accept any dtype.
 * - Formulas and defaults are PyTorch's (conv1d, conv2d, conv3d and so on).
 * - Options with a number per spatial axis are shapes: LS_SHAPE(2) selects 2 for all axes, LS_SHAPE(2, 1) selects a
 *   number for each axis, and an empty shape selects the default.
 *
 * Errors: LS_ERR_SHAPE if sizes or dtypes are incompatible, or if a spatial axis of the output would be empty (n and
 * the channels may be 0). LS_ERR_ARGUMENT if an option is out of range.
 */
#ifndef LOCKSTEP_CONVOLUTION_H
#define LOCKSTEP_CONVOLUTION_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Options for ls_conv. Zero fields select the defaults. */
typedef struct ls_conv_options {
    ls_shape stride;  /**< distance between windows, positive; default 1 */
    ls_shape padding; /**< number of zeros on each side of an axis, not negative; default 0 */
    bool same; /**< pads so that the output has the size of the input, with one more zero at the end if the number of
                  zeros is odd; requires strides of 1 and an empty `padding` (LS_ERR_ARGUMENT) */
    ls_shape dilation; /**< distance between positions of a window, positive; default 1 */
    int64_t groups; /**< number of equal groups of channels that are convolved separately; 0 selects the default, 1 */
} ls_conv_options;

/**
 * Computes the cross-correlation y[n, o, p] = bias[o] + sum over i, t of weight[o, i, t]
 * x[n, i', p stride - padding + t dilation]. i' is channel i of o's group, and x is 0 outside its sizes. `options` may
 * be NULL.
 * - x is [n, in, ...], weight [out, in / groups, kernel...], bias [out] (may be NULL).
 * - y is [n, out, ...] with sizes floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1.
 * - groups = in gives a depthwise convolution.
 */
LS_API ls_tensor *ls_conv(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, const ls_conv_options *options);

/** Options for ls_conv_transpose. Zero fields select the defaults. */
typedef struct ls_conv_transpose_options {
    ls_shape stride;   /**< distance between windows, positive; default 1 */
    ls_shape padding;  /**< number of positions removed on each side of the output, not negative; default 0 */
    ls_shape dilation; /**< distance between positions of a window, positive; default 1 */
    int64_t groups; /**< number of equal groups of channels that are convolved separately; 0 selects the default, 1 */
    ls_shape output_padding; /**< number of positions added at the end of the output, less than stride or dilation;
                                default 0 */
} ls_conv_transpose_options;

/**
 * Computes a transposed convolution: the gradient of ls_conv with respect to x, as a function of the gradient of y,
 * plus bias (Zeiler et al., CVPR 2010). `options` may be NULL.
 * - x is [n, in, ...] without empty spatial axes, weight [in, out / groups, kernel...], bias [out] (may be NULL).
 * - y is [n, out, ...] with sizes (size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1.
 */
LS_API ls_tensor *ls_conv_transpose(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                    const ls_conv_transpose_options *options);

/** Options for ls_max_pool. Zero fields except `kernel` select the defaults. */
typedef struct ls_max_pool_options {
    ls_shape kernel;   /**< sizes of the window, each positive; required */
    ls_shape stride;   /**< distance between windows, positive; defaults to the kernel */
    ls_shape padding;  /**< number of padding positions on each side, at most half the kernel size; default 0 */
    ls_shape dilation; /**< distance between positions of a window, positive; default 1 */
    bool ceil_mode;    /**< rounds sizes up: the last window may extend beyond the padding */
} ls_max_pool_options;

/** Options for ls_average_pool. Zero fields except `kernel` select the defaults. */
typedef struct ls_average_pool_options {
    ls_shape kernel;      /**< sizes of the window, each positive; required */
    ls_shape stride;      /**< distance between windows, positive; defaults to the kernel */
    ls_shape padding;     /**< number of zeros on each side, at most half the kernel size; default 0 */
    bool ceil_mode;       /**< rounds sizes up: the last window may extend beyond the padding */
    bool exclude_padding; /**< excludes padding from the mean (PyTorch: count_include_pad=False) */
} ls_average_pool_options;

/**
 * Returns the largest number in each window of each channel. y is [n, channels, ...].
 * - Sizes are floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1. `ceil_mode` rounds up instead, but
 *   omits a last window that would start after the last position of x, as in PyTorch.
 * - NaN is the largest number. On a tie, the gradient flows to the first position. If the window contains NaN, the
 *   gradient flows to the last NaN.
 * - Fails with LS_ERR_ARGUMENT if a window contains only padding.
 */
LS_API ls_tensor *ls_max_pool(ls_tensor *x, const ls_max_pool_options *options);
/**
 * Returns the mean of each window. Padding counts as zeros, unless `exclude_padding` is set. Positions beyond the
 * padding (`ceil_mode`) do not count. Sizes and errors are the same as for ls_max_pool.
 */
LS_API ls_tensor *ls_average_pool(ls_tensor *x, const ls_average_pool_options *options);
/**
 * Returns the means of windows, chosen so that the output has the spatial sizes `size` for any positive sizes of x.
 * Output o of an axis covers the positions from floor(o in / out) up to, but not including, ceil((o + 1) in / out).
 * `size` has one number for all spatial axes, or one for each. LS_SHAPE(1) is global average pooling.
 */
LS_API ls_tensor *ls_adaptive_average_pool(ls_tensor *x, ls_shape size);
/** Returns the maximum of each window of ls_adaptive_average_pool. Gradients are the same as for ls_max_pool. */
LS_API ls_tensor *ls_adaptive_max_pool(ls_tensor *x, ls_shape size);

/** The interpolation of ls_resize. */
typedef enum ls_resize_mode { LS_RESIZE_NEAREST = 0, LS_RESIZE_LINEAR } ls_resize_mode;

/** Options for ls_resize. Zero fields select the defaults. */
typedef struct ls_resize_options {
    ls_resize_mode mode; /**< interpolation; default nearest */
    bool align_corners;  /**< with linear interpolation: aligns the centers of the corner positions, instead of their
                            outer edges */
} ls_resize_options;

/**
 * Resizes the spatial axes of x [n, channels, ...] to `size`: one positive number for all axes, or one for each
 * (PyTorch's interpolate with `size`, in the modes nearest, linear, bilinear and trilinear). `options` may be NULL.
 * Fails with LS_ERR_SHAPE if a spatial axis of x is empty, and with LS_ERR_ARGUMENT if `align_corners` is set without
 * LS_RESIZE_LINEAR. If no size changes, returns a view of x.
 * - Nearest: output o of an axis is x[floor(o in / out)].
 * - Linear: output o is (1 - f) x[floor(s)] + f x[floor(s) + 1] with f = s - floor(s) and s = max((o + 0.5) in / out -
 *   0.5, 0), or s = o (in - 1) / (out - 1) with align_corners (0 if out is 1), one axis after the other. If
 *   floor(s) + 1 is past the last position, the last position is used.
 */
LS_API ls_tensor *ls_resize(ls_tensor *x, ls_shape size, const ls_resize_options *options);
/**
 * Rearranges x [n, channels factor^2, height, width] to [n, channels, height factor, width factor]:
 * y[n, c, h factor + i, w factor + j] = x[n, (c factor + i) factor + j, h, w] (Shi et al., arXiv 1609.05158). Fails
 * with LS_ERR_SHAPE if x does not have four axes, if height or width is 0, or if factor^2 does not divide the channels,
 * and with LS_ERR_ARGUMENT if the factor is below 1 or above 2^31 - 1. With factor 1, returns a view of x.
 */
LS_API ls_tensor *ls_pixel_shuffle(ls_tensor *x, int64_t factor);
/**
 * Inverts ls_pixel_shuffle: rearranges x [n, channels, height factor, width factor] to
 * [n, channels factor^2, height, width]. Fails with LS_ERR_SHAPE if x does not have four axes, or if its height or
 * width is 0 or not a multiple of the factor, and with LS_ERR_ARGUMENT if the factor is below 1 or above 2^31 - 1. With
 * factor 1, returns a view of x.
 */
LS_API ls_tensor *ls_pixel_unshuffle(ls_tensor *x, int64_t factor);

#ifdef __cplusplus
}
#endif

#endif
