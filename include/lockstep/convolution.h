/**
 * @file convolution.h
 * Convolution, pooling and resizing over one, two or three spatial axes, with gradients; autograd.h includes it. Images
 * are x [n, channels, ...] with 1 to 3 axes behind the channels, and that many spatial axes an operation has. Formulas
 * and defaults are PyTorch's (conv1d, conv2d, conv3d and so on). x is floating; halves are computed by way of f32.
 *
 * A number for each spatial axis is given as a shape: LS_SHAPE(2) is 2 for all of them, LS_SHAPE(2, 1) has one for
 * each, and nothing is the default.
 *
 * Errors: LS_ERR_SHAPE where sizes or dtypes do not fit, or would leave no output; LS_ERR_ARGUMENT for an option that
 * is out of range.
 */
#ifndef LOCKSTEP_CONVOLUTION_H
#define LOCKSTEP_CONVOLUTION_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Options of ls_conv; zero fields are their defaults. */
typedef struct ls_conv_options {
    ls_shape stride;   /**< from one window to the next, each positive; 1 */
    ls_shape padding;  /**< zeros on both sides of an axis, not negative; 0 */
    bool same;         /**< instead of `padding`, as many as keep the sizes (an odd one behind); strides of 1 only */
    ls_shape dilation; /**< from one position of a window to the next, each positive; 1 */
    int64_t groups;    /**< the channels in so many equal parts that do not see each other; 1 */
} ls_conv_options;

/**
 * Cross-correlation: y[n, o, p] = bias[o] + sum over i, t of weight[o, i, t] x[n, i', p stride - padding + t dilation],
 * where i' is channel i of o's group and x is 0 outside. x [n, in, ...], weight [out, in / groups, kernel...], bias
 * [out] (may be NULL), y [n, out, ...] with sizes floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1.
 * With groups = in it is a depthwise convolution. `options` may be NULL.
 */
LS_API ls_tensor *ls_conv(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, const ls_conv_options *options);

/** Options of ls_conv_transpose; zero fields are their defaults. */
typedef struct ls_conv_transpose_options {
    ls_shape stride;         /**< from one window to the next, each positive; 1 */
    ls_shape padding;        /**< positions that are removed on both sides of the output, not negative; 0 */
    ls_shape dilation;       /**< from one position of a window to the next, each positive; 1 */
    int64_t groups;          /**< the channels in so many equal parts that do not see each other; 1 */
    ls_shape output_padding; /**< positions that are added at the end of the output, less than stride or dilation; 0 */
} ls_conv_transpose_options;

/**
 * Transposed convolution: what ls_conv's gradient of x is to its y, plus bias (Zeiler et al., CVPR 2010). x [n, in,
 * ...], weight [in, out / groups, kernel...], bias [out] (may be NULL), y [n, out, ...] with sizes (size - 1) stride -
 * 2 padding + dilation (kernel - 1) + output_padding + 1. `options` may be NULL.
 */
LS_API ls_tensor *ls_conv_transpose(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                    const ls_conv_transpose_options *options);

/** Options of ls_max_pool; zero fields but `kernel` are their defaults. */
typedef struct ls_max_pool_options {
    ls_shape kernel;   /**< the window's sizes, each positive; must be given */
    ls_shape stride;   /**< each positive; the kernel */
    ls_shape padding;  /**< on both sides, at most half of the kernel; 0 */
    ls_shape dilation; /**< each positive; 1 */
    bool ceil_mode;    /**< a last window may reach beyond the padding: sizes are rounded up */
} ls_max_pool_options;

/** Options of ls_average_pool; zero fields but `kernel` are their defaults. */
typedef struct ls_average_pool_options {
    ls_shape kernel;      /**< the window's sizes, each positive; must be given */
    ls_shape stride;      /**< each positive; the kernel */
    ls_shape padding;     /**< on both sides, at most half of the kernel; 0 */
    bool ceil_mode;       /**< a last window may reach beyond the padding: sizes are rounded up */
    bool exclude_padding; /**< padding does not count (count_include_pad=False) */
} ls_average_pool_options;

/**
 * The largest number in each window, in each channel: y [n, channels, ...] with sizes floor((size + 2 padding -
 * dilation (kernel - 1) - 1) / stride) + 1, or ceil. NaN is the largest. The gradient goes to the first of the largest.
 * LS_ERR_ARGUMENT where a window would see padding alone.
 */
LS_API ls_tensor *ls_max_pool(ls_tensor *x, const ls_max_pool_options *options);
/** The mean of each window, whose padding counts as zeros: sizes as of ls_max_pool. */
LS_API ls_tensor *ls_average_pool(ls_tensor *x, const ls_average_pool_options *options);
/**
 * The mean over windows that make an output of `size`, of one number for all spatial axes or one for each, from x of
 * any: output o of an axis is of positions floor(o in / out) up to ceil((o + 1) in / out). LS_SHAPE(1) is the mean over
 * all of a channel (global average pooling).
 */
LS_API ls_tensor *ls_adaptive_average_pool(ls_tensor *x, ls_shape size);
/** The largest number of the same windows; gradients as of ls_max_pool. */
LS_API ls_tensor *ls_adaptive_max_pool(ls_tensor *x, ls_shape size);

/** How ls_resize makes new positions of the old. */
typedef enum ls_resize_mode { LS_RESIZE_NEAREST = 0, LS_RESIZE_LINEAR } ls_resize_mode;

/** Options of ls_resize; zero fields are their defaults. */
typedef struct ls_resize_options {
    ls_resize_mode mode; /**< nearest */
    bool align_corners;  /**< linear: the first and the last position of both lie on each other; else their edges do */
} ls_resize_options;

/**
 * x [n, channels, ...] with other spatial sizes: one number for all axes or one for each, each positive (PyTorch's
 * interpolate with `size`, of its modes nearest, linear, bilinear and trilinear). Output o of an axis is position
 * floor(o in / out); or, linear, at s = max((o + 0.5) in / out - 0.5, 0), or o (in - 1) / (out - 1) with align_corners,
 * (1 - f) x[floor(s)] + f x[floor(s) + 1] where f = s - floor(s), one axis after the other. `options` may be NULL.
 * LS_ERR_SHAPE for x without positions.
 */
LS_API ls_tensor *ls_resize(ls_tensor *x, ls_shape size, const ls_resize_options *options);
/** x [n, channels factor^2, height, width] as [n, channels, height factor, width factor]: y[n, c, h factor + i, w
 * factor
 * + j] = x[n, (c factor + i) factor + j, h, w] (Shi et al., arXiv 1609.05158). LS_ERR_SHAPE where the channels do not
 * divide so, LS_ERR_ARGUMENT for a factor below 1. */
LS_API ls_tensor *ls_pixel_shuffle(ls_tensor *x, int64_t factor);
/** What takes ls_pixel_shuffle back: [n, channels, height factor, width factor] as [n, channels factor^2, height,
 * width]. LS_ERR_SHAPE where height or width is no multiple of the factor. */
LS_API ls_tensor *ls_pixel_unshuffle(ls_tensor *x, int64_t factor);

#ifdef __cplusplus
}
#endif

#endif
