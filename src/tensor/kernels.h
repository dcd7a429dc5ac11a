/*
 * What a device must be able to compute. Kernels get tensors that their caller has already checked and whose outputs it
 * has already made; they fail only for want of memory or (LS_ERR_UNSUPPORTED, naming the kernel and the dtype) for a
 * dtype they do not have.
 *
 * Dtypes: f32 and f64 everywhere; i64, i32, u8 and bool where it says "any". bf16 and f16 are converted by the caller
 * (cast), so no kernel but cast and fill sees them.
 * Strides: maps, copy, cast, fill and reductions take any strides and broadcast (an operand's missing or size-1 axes
 * repeat); all others take contiguous tensors.
 */
#ifndef LS_TENSOR_KERNELS_H
#define LS_TENSOR_KERNELS_H

#include "base/random.h"
#include "tensor/tensor.h"

typedef struct ls_stream ls_stream;

/* What happens to a matrix product on its way out. */
typedef enum ls_activation { LS_ACTIVATION_NONE = 0, LS_ACTIVATION_RELU } ls_activation;

/*
 * C[m, n] = op(A)[m, k] op(B)[k, n], row-major with leading dimensions in elements; op transposes where asked. f32 or
 * f64.
 */
typedef struct ls_gemm {
    ls_dtype dtype;
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    bool transpose_a;
    const void *b;
    int64_t ldb;
    bool transpose_b;
    void *c;
    int64_t ldc;
    bool accumulate;          /* C += instead of C = ; then no bias and no activation */
    const void *bias;         /* [n], added to every row; may be NULL */
    ls_activation activation; /* applied last */
    int64_t batch;            /* so many products, 0: one, each `step` elements behind the one before; no two write to
                                 the same place */
    int64_t step_a, step_b, step_c;
    ls_dtype compute;   /* sums are made in the wider of this and `dtype` */
    ls_dtype rounds_to; /* of f32: LS_BF16 or LS_F16: the numbers of A and B count as rounded to it; sums, and C, are of
                           f32. LS_F32, which is zero: they are taken as they are */
} ls_gemm;

/* One optimizer step over `count` numbers that lie together, f32 or f64; the meaning of the fields is that of optim.h.
 */
typedef struct ls_sgd_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *momentum_buffer; /* NULL without momentum */
    double learning_rate, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* the momentum buffer starts as the gradient */
} ls_sgd_step;

/*
 * p -= parameter_decay p; g += gradient_decay p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 * p -= (rate m + gradient_rate g) / (root sqrt(v) + epsilon): Adam and its kin, which differ in the numbers.
 */
typedef struct ls_adam_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *first_moment;
    void *second_moment;
    void *largest_second_moment; /* AMSGrad: in v's place below the fraction; else NULL */
    double beta1, beta2, epsilon;
    double parameter_decay, gradient_decay;
    double rate, gradient_rate, root;
} ls_adam_step;

typedef struct ls_rmsprop_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *square_average;
    void *gradient_average; /* centered; else NULL */
    void *momentum_buffer;  /* NULL without momentum */
    double learning_rate, alpha, epsilon, momentum, weight_decay;
} ls_rmsprop_step;

typedef struct ls_adagrad_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *sum;
    double learning_rate, epsilon, weight_decay;
} ls_adagrad_step;

typedef struct ls_adadelta_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *square_average;
    void *change_average; /* of squares, too */
    double learning_rate, rho, epsilon, weight_decay;
} ls_adadelta_step;

typedef struct ls_lion_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *average;
    double learning_rate, beta1, beta2, weight_decay;
} ls_lion_step;

/* The numbers are those of one parameter, whose norm they have; sums are made in double precision. */
typedef struct ls_lamb_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *first_moment;
    void *second_moment;
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    double correction1, correction2; /* 1 - beta^t */
} ls_lamb_step;

/*
 * One parameter, a matrix, row-major. Its products are to be made in an order that follows from the shape alone: each
 * rank makes them for itself, and all must end with the same bits.
 */
typedef struct ls_muon_step {
    ls_dtype dtype;
    int64_t rows, columns;
    void *parameter;
    const void *gradient;
    void *momentum_buffer;
    void *work; /* ls_muon_work numbers of the dtype, of which nothing is kept */
    double rate, momentum, parameter_decay, epsilon;
    double a, b, c; /* of an iteration: X = a X + (b X X^T + c (X X^T)^2) X */
    int iterations;
    bool nesterov;
} ls_muon_step;

/* Two matrices, and two with their smaller side as both. */
static inline int64_t ls_muon_work(int64_t rows, int64_t columns) {
    const int64_t side = rows < columns ? rows : columns;
    return 2 * (rows * columns + side * side);
}

/* Class losses: log_probability and gradient are [n, classes], target [n] of i64. */
typedef struct ls_class_loss {
    const ls_tensor *target;
    const ls_tensor *weight; /* [classes] or NULL */
    double label_smoothing;
    bool ignore;
    int64_t ignore_index;
} ls_class_loss;

/*
 * How windows go over the three spatial axes of an image [n, channels, depth, height, width] (fewer axes: sizes of 1 in
 * front): for output position o, tap t is at o * stride - before + t * dilation, and what lies outside of the image is
 * padding.
 */
typedef struct ls_window {
    int32_t kernel[3], stride[3], dilation[3];
    int32_t before[3], after[3]; /* padding; kernels need not look at `after`, which the output's sizes follow from */
    int32_t groups;              /* convolution: parts of the channels that do not see each other */
    bool adaptive;               /* pooling: position o of `out` is of floor(o in / out) up to ceil((o + 1) in / out) */
    bool exclude_padding;        /* average: divides by the positions inside of the image only */
} ls_window;

/*
 * One step of a recurrent layer for n sequences. Tensors are contiguous, gates lie side by side in rows. Sequence i has
 * lengths[i] steps, checked to be 0 to `steps` (LS_ERR_ARGUMENT): at a later one it stays as it was.
 */
typedef struct ls_cell {
    const ls_tensor *x;                   /* [n, gates * hidden]: the input's part */
    const ls_tensor *recurrent;           /* likewise: that of the step before */
    const ls_tensor *h_before, *c_before; /* [n, hidden]; c: LSTM only, as below */
    ls_tensor *h, *c;
    ls_tensor *kept;          /* [n, 4 * hidden] for the gradient: not of the plain cell; NULL: nobody wants it */
    const ls_tensor *lengths; /* i64 [n], or NULL: all have them all */
    int64_t step, steps;
    bool relu; /* the plain cell: instead of tanh */
} ls_cell;

/* Its gradient. Where a sequence has ended, x and `recurrent` get zeros. */
typedef struct ls_cell_gradient {
    ls_tensor *d_x;          /* [n, gates * hidden] */
    ls_tensor *d_recurrent;  /* likewise, of the GRU; of the others it is d_x */
    ls_tensor *dh, *dc;      /* [n, hidden], of this step, but for `g`; become those of the step before, but for what
                                flows through `recurrent` */
    const ls_tensor *g;      /* [n, hidden], more of dh */
    const ls_tensor *kept;   /* of ls_cell */
    const ls_tensor *before; /* [n, hidden]: c_before of the LSTM, h_before of the GRU */
    const ls_tensor *after;  /* [n, hidden]: c of the LSTM, h of the plain cell */
    const ls_tensor *lengths;
    int64_t step;
    bool relu;
} ls_cell_gradient;

/*
 * ---- the types of kernels ----------------------------------------------------------------------------------------
 */

/*
 * map: element by element: y = f(operands...; parameters), operands of one dtype, which is also y's except for
 * comparisons (bool) and where (first operand bool or u8). y may be one of the operands (same memory, same strides).
 */
#define LS_PARAMETERS_map ls_stream *stream, ls_tensor *y, const ls_tensor *const *operands, const double *parameters
/* pair: y made of x. */
#define LS_PARAMETERS_pair     ls_stream *stream, ls_tensor *y, const ls_tensor *x
#define LS_PARAMETERS_fill     ls_stream *stream, ls_tensor *y, double value
#define LS_PARAMETERS_count_up ls_stream *stream, ls_tensor *y
/* random: element i is number i of the stream. */
#define LS_PARAMETERS_random         ls_stream *stream, ls_tensor *y, ls_random_state state, double a, double b
#define LS_PARAMETERS_random_integer ls_stream *stream, ls_tensor *y, ls_random_state state, int64_t low, int64_t high
#define LS_PARAMETERS_dropout                                                                                          \
    ls_stream *stream, ls_tensor *y, const ls_tensor *x, ls_random_state state, uint64_t first, double p
#define LS_PARAMETERS_along          ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis
#define LS_PARAMETERS_along_backward ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y, int axis
/* directed: from the end of the axis instead of its start, or the largest first. */
#define LS_PARAMETERS_directed ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse
#define LS_PARAMETERS_index    ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index
#define LS_PARAMETERS_gemm     ls_stream *stream, const ls_gemm *gemm
#define LS_PARAMETERS_nll                                                                                              \
    ls_stream *stream, ls_tensor *element, ls_tensor *row_weight, const ls_tensor *log_probability,                    \
        const ls_class_loss *loss
#define LS_PARAMETERS_class_loss_backward                                                                              \
    ls_stream *stream, ls_tensor *d, const ls_tensor *g, double scale, const ls_tensor *log_probability,               \
        const ls_class_loss *loss
#define LS_PARAMETERS_layer_norm                                                                                       \
    ls_stream *stream, ls_tensor *y, ls_tensor *mean, ls_tensor *rstd, const ls_tensor *x, int64_t width,              \
        const ls_tensor *weight, const ls_tensor *bias, double epsilon
#define LS_PARAMETERS_layer_norm_backward                                                                              \
    ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias, const ls_tensor *g, const ls_tensor *x,  \
        int64_t width, const ls_tensor *weight, const ls_tensor *mean, const ls_tensor *rstd
#define LS_PARAMETERS_batch_norm_statistics ls_stream *stream, ls_tensor *mean, ls_tensor *variance, const ls_tensor *x
#define LS_PARAMETERS_batch_norm                                                                                       \
    ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *mean, const ls_tensor *rstd,                 \
        const ls_tensor *weight, const ls_tensor *bias
#define LS_PARAMETERS_batch_norm_backward                                                                              \
    ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias, const ls_tensor *g, const ls_tensor *x,  \
        const ls_tensor *mean, const ls_tensor *rstd, const ls_tensor *weight, bool training
#define LS_PARAMETERS_batch_norm_sums                                                                                  \
    ls_stream *stream, ls_tensor *sums, const ls_tensor *g, const ls_tensor *x, const ls_tensor *mean
#define LS_PARAMETERS_batch_norm_dx                                                                                    \
    ls_stream *stream, ls_tensor *dx, const ls_tensor *g, const ls_tensor *x, const ls_tensor *mean,                   \
        const ls_tensor *rstd, const ls_tensor *weight, const ls_tensor *of_g, const ls_tensor *of_product
#define LS_PARAMETERS_conv                                                                                             \
    ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *weight, const ls_tensor *bias,               \
        const ls_window *window, ls_dtype rounds_to
#define LS_PARAMETERS_conv_weight                                                                                      \
    ls_stream *stream, ls_tensor *d_weight, const ls_tensor *large, const ls_tensor *small, const ls_window *window,   \
        ls_dtype rounds_to
#define LS_PARAMETERS_max_pool                                                                                         \
    ls_stream *stream, ls_tensor *y, ls_tensor *index, const ls_tensor *x, const ls_window *window
#define LS_PARAMETERS_pool ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_window *window
#define LS_PARAMETERS_resize                                                                                           \
    ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool linear, bool align_corners
#define LS_PARAMETERS_attention                                                                                        \
    ls_stream *stream, ls_tensor *y, ls_tensor *log_sum, const ls_tensor *q, const ls_tensor *k, const ls_tensor *v,   \
        const ls_tensor *mask, const ls_tensor *bias, double scale, bool causal, ls_dtype rounds_to
#define LS_PARAMETERS_attention_backward                                                                               \
    ls_stream *stream, ls_tensor *dq, ls_tensor *dk, ls_tensor *dv, const ls_tensor *g, const ls_tensor *y,            \
        const ls_tensor *log_sum, const ls_tensor *q, const ls_tensor *k, const ls_tensor *v, const ls_tensor *mask,   \
        const ls_tensor *bias, double scale, bool causal, ls_dtype rounds_to
/* Flat runs of numbers; results are numbers of f64 on the device. */
#define LS_PARAMETERS_cell          ls_stream *stream, const ls_cell *cell
#define LS_PARAMETERS_cell_backward ls_stream *stream, const ls_cell_gradient *cell
/* What optimizers and norms need; pointers are to numbers of the dtype. */
#define LS_PARAMETERS_axpy    ls_stream *stream, ls_dtype dtype, int64_t count, double a, const void *x, void *y
#define LS_PARAMETERS_scale   ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y
#define LS_PARAMETERS_dot     ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, const void *y, double *sum
#define LS_PARAMETERS_measure ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *result
/* y *= a; *found becomes 1 where a product is Inf or NaN, and is left otherwise. */
#define LS_PARAMETERS_unscale  ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y, double *found
#define LS_PARAMETERS_sgd      ls_stream *stream, const ls_sgd_step *step
#define LS_PARAMETERS_adam     ls_stream *stream, const ls_adam_step *step
#define LS_PARAMETERS_rmsprop  ls_stream *stream, const ls_rmsprop_step *step
#define LS_PARAMETERS_adagrad  ls_stream *stream, const ls_adagrad_step *step
#define LS_PARAMETERS_adadelta ls_stream *stream, const ls_adadelta_step *step
#define LS_PARAMETERS_lion     ls_stream *stream, const ls_lion_step *step
#define LS_PARAMETERS_lamb     ls_stream *stream, const ls_lamb_step *step
#define LS_PARAMETERS_muon     ls_stream *stream, const ls_muon_step *step

typedef ls_status ls_map_kernel(LS_PARAMETERS_map);
typedef ls_status ls_pair_kernel(LS_PARAMETERS_pair);
typedef ls_status ls_fill_kernel(LS_PARAMETERS_fill);
typedef ls_status ls_count_up_kernel(LS_PARAMETERS_count_up);
typedef ls_status ls_random_kernel(LS_PARAMETERS_random);
typedef ls_status ls_random_integer_kernel(LS_PARAMETERS_random_integer);
typedef ls_status ls_dropout_kernel(LS_PARAMETERS_dropout);
typedef ls_status ls_along_kernel(LS_PARAMETERS_along);
typedef ls_status ls_along_backward_kernel(LS_PARAMETERS_along_backward);
typedef ls_status ls_directed_kernel(LS_PARAMETERS_directed);
typedef ls_status ls_index_kernel(LS_PARAMETERS_index);
typedef ls_status ls_gemm_kernel(LS_PARAMETERS_gemm);
typedef ls_status ls_nll_kernel(LS_PARAMETERS_nll);
typedef ls_status ls_class_loss_backward_kernel(LS_PARAMETERS_class_loss_backward);
typedef ls_status ls_layer_norm_kernel(LS_PARAMETERS_layer_norm);
typedef ls_status ls_layer_norm_backward_kernel(LS_PARAMETERS_layer_norm_backward);
typedef ls_status ls_batch_norm_statistics_kernel(LS_PARAMETERS_batch_norm_statistics);
typedef ls_status ls_batch_norm_kernel(LS_PARAMETERS_batch_norm);
typedef ls_status ls_batch_norm_backward_kernel(LS_PARAMETERS_batch_norm_backward);
typedef ls_status ls_batch_norm_sums_kernel(LS_PARAMETERS_batch_norm_sums);
typedef ls_status ls_batch_norm_dx_kernel(LS_PARAMETERS_batch_norm_dx);
typedef ls_status ls_conv_kernel(LS_PARAMETERS_conv);
typedef ls_status ls_conv_weight_kernel(LS_PARAMETERS_conv_weight);
typedef ls_status ls_max_pool_kernel(LS_PARAMETERS_max_pool);
typedef ls_status ls_pool_kernel(LS_PARAMETERS_pool);
typedef ls_status ls_resize_kernel(LS_PARAMETERS_resize);
typedef ls_status ls_attention_kernel(LS_PARAMETERS_attention);
typedef ls_status ls_attention_backward_kernel(LS_PARAMETERS_attention_backward);
typedef ls_status ls_cell_kernel(LS_PARAMETERS_cell);
typedef ls_status ls_cell_backward_kernel(LS_PARAMETERS_cell_backward);
typedef ls_status ls_axpy_kernel(LS_PARAMETERS_axpy);
typedef ls_status ls_scale_kernel(LS_PARAMETERS_scale);
typedef ls_status ls_dot_kernel(LS_PARAMETERS_dot);
typedef ls_status ls_measure_kernel(LS_PARAMETERS_measure);
typedef ls_status ls_unscale_kernel(LS_PARAMETERS_unscale);
typedef ls_status ls_sgd_kernel(LS_PARAMETERS_sgd);
typedef ls_status ls_adam_kernel(LS_PARAMETERS_adam);
typedef ls_status ls_rmsprop_kernel(LS_PARAMETERS_rmsprop);
typedef ls_status ls_adagrad_kernel(LS_PARAMETERS_adagrad);
typedef ls_status ls_adadelta_kernel(LS_PARAMETERS_adadelta);
typedef ls_status ls_lion_kernel(LS_PARAMETERS_lion);
typedef ls_status ls_lamb_kernel(LS_PARAMETERS_lamb);
typedef ls_status ls_muon_kernel(LS_PARAMETERS_muon);

/*
 * ---- the list ----------------------------------------------------------------------------------------------------
 *
 * All kernels: MAP(name, operands, parameters) and KERNEL(name, type). The table, the CPU's row of it, and whatever
 * else goes over all kernels are made of this list.
 */

/* clang-format off */
#define LS_MAPS(MAP)                                                                                                   \
    /* of one operand; neg, abs, square, sign and clamp (low, high) of any */                                          \
    MAP(neg, 1, 0) MAP(abs, 1, 0) MAP(square, 1, 0) MAP(clamp, 1, 2) MAP(sign, 1, 0)                                   \
    MAP(floor, 1, 0) MAP(ceil, 1, 0) MAP(round, 1, 0) /* half to even */                                               \
    MAP(sqrt, 1, 0) MAP(exp, 1, 0) MAP(log, 1, 0) MAP(log1p, 1, 0) MAP(sin, 1, 0) MAP(cos, 1, 0) MAP(tanh, 1, 0)       \
    MAP(erf, 1, 0) MAP(sigmoid, 1, 0) MAP(relu, 1, 0) MAP(gelu, 1, 0) MAP(gelu_tanh, 1, 0) MAP(silu, 1, 0) MAP(softplus, 1, 0)              \
    MAP(leaky_relu, 1, 1) /* slope */ MAP(elu, 1, 1) /* alpha */                                                       \
    /* their gradients: operands (g, x) ... */                                                                         \
    MAP(abs_backward, 2, 0) MAP(square_backward, 2, 0) MAP(log1p_backward, 2, 0) MAP(sin_backward, 2, 0)               \
    MAP(cos_backward, 2, 0) MAP(erf_backward, 2, 0) MAP(gelu_backward, 2, 0) MAP(gelu_tanh_backward, 2, 0) MAP(silu_backward, 2, 0)                  \
    MAP(softplus_backward, 2, 0) MAP(leaky_relu_backward, 2, 1) MAP(elu_backward, 2, 1) MAP(clamp_backward, 2, 2)      \
    /* ... or (g, y), where the output is what is kept */                                                              \
    MAP(sqrt_backward, 2, 0) MAP(tanh_backward, 2, 0) MAP(sigmoid_backward, 2, 0) MAP(relu_backward, 2, 0)             \
    /* of two operands, any; integer division and powers are the caller's to convert */                                \
    MAP(add, 2, 0) MAP(sub, 2, 0) MAP(mul, 2, 0) MAP(div, 2, 0) MAP(pow, 2, 0) MAP(maximum, 2, 0) MAP(minimum, 2, 0)   \
    MAP(eq, 2, 0) MAP(ne, 2, 0) MAP(lt, 2, 0) MAP(le, 2, 0) MAP(gt, 2, 0) MAP(ge, 2, 0)                                \
    /* of one operand and a number */                                                                                  \
    MAP(add_number, 1, 1) MAP(sub_number, 1, 1) MAP(mul_number, 1, 1) MAP(div_number, 1, 1) MAP(pow_number, 1, 1)      \
    MAP(maximum_number, 1, 1) MAP(minimum_number, 1, 1) MAP(eq_number, 1, 1) MAP(ne_number, 1, 1)                      \
    MAP(lt_number, 1, 1) MAP(le_number, 1, 1) MAP(gt_number, 1, 1) MAP(ge_number, 1, 1)                                \
    MAP(is_nan, 1, 0) MAP(is_finite, 1, 0) /* any; y bool */                                                           \
    MAP(where, 3, 0) /* (condition, a, b) */                                                                           \
    /* gradients of those; ties of maximum and minimum are halved */                                                   \
    MAP(div_backward_divisor, 3, 0)  /* (g, a, b): -g a / b^2 */                                                       \
    MAP(pow_backward_base, 3, 0)     /* (g, a, b) */                                                                   \
    MAP(pow_backward_exponent, 3, 0) /* (g, a, b): 0 where a is 0 and b >= 0 */                                        \
    MAP(pow_number_backward, 2, 1)   /* (g, a; b) */                                                                   \
    MAP(maximum_backward, 3, 0)      /* (g, a, b): for a; swap them for b */                                           \
    MAP(minimum_backward, 3, 0)                                                                                        \
    MAP(maximum_number_backward, 2, 1) MAP(minimum_number_backward, 2, 1) /* (g, a; b) */                              \
    /* losses element by element (x, target), and gradients (g, x, target) for x */                                    \
    MAP(mse, 2, 0) MAP(mse_backward, 3, 0) MAP(l1, 2, 0) MAP(l1_backward, 3, 0) MAP(bce, 2, 0)                         \
    MAP(bce_backward, 3, 0) MAP(bce_with_logits, 2, 0) MAP(bce_with_logits_backward, 3, 0)                             \
    MAP(huber, 2, 1) MAP(huber_backward, 3, 1) /* delta */                                                             \
    MAP(kl_div, 2, 0) /* (log_probability, target) */

#define LS_OTHER_KERNELS(KERNEL)                                                                                       \
    /* moving and filling; any dtype. copy: of one dtype. cast: any dtype to any other. count_up: 0, 1, 2, ...;        \
     * contiguous */                                                                                                   \
    KERNEL(copy, pair) KERNEL(cast, pair) KERNEL(fill, fill) KERNEL(count_up, count_up)                                \
    /* random numbers; contiguous: in [a, b), or of mean a and deviation b */                                          \
    KERNEL(random_uniform, random) KERNEL(random_normal, random) KERNEL(random_integer, random_integer)                \
    /* y = x / (1 - p) with probability 1 - p, else 0, element i by number first + i; the same state gives the same    \
     * choice again (the gradient is the same call on g) */                                                            \
    KERNEL(dropout, dropout)                                                                                           \
    /* reductions of any: y has x's dimensions with size 1 along reduced axes; sums of f32 are pairwise or in lanes,   \
     * never one long chain. add_sum: y += the sum of x over the axes y lacks */                                       \
    KERNEL(sum, pair) KERNEL(prod, pair) KERNEL(min, pair) KERNEL(max, pair) KERNEL(add_sum, pair)                     \
    KERNEL(argmax, along) KERNEL(argmin, along) /* y i64, size 1 along the axis */                                     \
    KERNEL(cumsum, directed)                                                                                           \
    KERNEL(gemm, gemm)                                                                                                 \
    /* along an axis of contiguous tensors */                                                                          \
    KERNEL(softmax, along) KERNEL(softmax_backward, along_backward)                                                    \
    KERNEL(log_softmax, along) KERNEL(log_softmax_backward, along_backward)                                            \
    /* Class losses. nll: element[n] = the loss of each row, row_weight[n] = the weight it has in the mean (0 when     \
     * ignored); a target that is no class is LS_ERR_ARGUMENT and named. nll_backward: d = -scale * g[row] *           \
     * (smoothed, weighted target). cross_entropy_backward goes on to the logits: it takes log_probability =           \
     * log_softmax(logits) and gives the gradient of logits in one pass. g is [n], or one number for all rows. */      \
    KERNEL(nll, nll) KERNEL(nll_backward, class_loss_backward) KERNEL(cross_entropy_backward, class_loss_backward)     \
    /* x as [rows, width]; mean and rstd [rows] are kept for the gradient; weight, bias and their gradients may be     \
     * NULL; weight gradients accumulate. Where mean is NULL it is taken as 0: the RMS norm */                         \
    KERNEL(layer_norm, layer_norm) KERNEL(layer_norm_backward, layer_norm_backward)                                    \
    /* x [n, channels, inner]; mean and rstd [channels]: computed when training (variance [channels] too, biased),     \
     * else given */                                                                                                   \
    KERNEL(batch_norm_statistics, batch_norm_statistics) KERNEL(batch_norm, batch_norm)                                \
    KERNEL(batch_norm_backward, batch_norm_backward)                                                                   \
    /* The same in parts, for a batch that is more than x. sums [channels] of f64 over the batch: of x; with a mean of \
     * (x - mean) g, or of (x - mean)^2 where g is NULL. And dx in training with the means of g and of (x - mean) g. */ \
    KERNEL(batch_norm_sums, batch_norm_sums) KERNEL(batch_norm_dx, batch_norm_dx)                                      \
    /* Images, all of five axes (ls_window). conv: y [n, out, ...] = bias [out] (may be NULL) + the cross-correlation  \
     * of x with weight [out, in / groups, ...]. conv_transpose: the transpose of that map, plus bias: its x has the   \
     * sizes of the other's y. conv_weight: d_weight += the gradient, where `small` is of y's sizes, `large` of x's.   \
     * rounds_to, here and below: products are as those of ls_gemm. */                                                    \
    KERNEL(conv, conv) KERNEL(conv_transpose, conv) KERNEL(conv_weight, conv_weight)                                   \
    /* max_pool: index of i64: where in its channel's image the first largest lies, or NaN; every window has a tap     \
     * inside. average_pool_backward: y += the gradient, from that of the output, x. */                                \
    KERNEL(max_pool, max_pool) KERNEL(average_pool, pool) KERNEL(average_pool_backward, pool)                          \
    /* y is x with another size of one axis: output o is position floor(o in / out), or, linear, between the two beside    \
     * max((o + 0.5) in / out - 0.5, 0), or beside o (in - 1) / (out - 1) with align_corners. resize_backward: y += the  \
     * gradient, from that of the output, x. Contiguous; in is not 0 */                                                   \
    KERNEL(resize, resize) KERNEL(resize_backward, resize)                                                             \
    /* y i64, x's shape: where the first, second, ... along the axis are; equal ones in their order, NaN the largest;  \
     * contiguous */                                                                                                   \
    KERNEL(argsort, directed)                                                                                          \
    /* y = softmax(scale q k^T) v, matrix by matrix of q [batch, heads, queries, width], k [.., keys, width] and       \
     * v [.., keys, value width], any strides but 1 along the last axis; with causal key j for query i only where      \
     * j <= i, with a mask (contiguous [batch, keys] of truths, or NULL) only where it is not 0; y is 0 where there is \
     * no key. log_sum (contiguous [batch, heads, queries]) is the logarithm of the sum of exp(scale q k^T), infinite  \
     * where there is no key. g is like y, dq like q ...; what of those is NULL is not wanted. Room beyond these       \
     * tensors does not grow with the lengths. */                                                                      \
    KERNEL(attention, attention) KERNEL(attention_backward, attention_backward)                                        \
    /* Cells of recurrent layers, with a = x + recurrent. rnn_cell: h = tanh(a) or relu(a). lstm_cell, whose gates are \
     * (i, f, g, o): c = sigmoid(f) c_before + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c). gru_cell, (r, z, n): n =    \
     * tanh(x_n + sigmoid(r) recurrent_n), h = n + sigmoid(z) (h_before - n). */                                       \
    KERNEL(rnn_cell, cell) KERNEL(lstm_cell, cell) KERNEL(gru_cell, cell)                                              \
    KERNEL(rnn_cell_backward, cell_backward) KERNEL(lstm_cell_backward, cell_backward)                                 \
    KERNEL(gru_cell_backward, cell_backward)                                                                           \
    /* indexing of any; index of i64, checked: LS_ERR_ARGUMENT names the first that is out of range. take_along's and  \
     * scatter_add's index may be smaller than x (or y) along the other axes. */                                       \
    KERNEL(index_select, index) KERNEL(index_add, index) KERNEL(take_along, index) KERNEL(scatter_add, index)          \
    /* y += a x; y *= a; in double precision the sum of products, and the sum and the largest of magnitudes (NaN is    \
     * the largest) */                                                                                                 \
    KERNEL(axpy, axpy) KERNEL(scale, scale) KERNEL(dot, dot)                                                           \
    KERNEL(sum_of_magnitudes, measure) KERNEL(largest_magnitude, measure) KERNEL(unscale, unscale)                     \
    KERNEL(sgd, sgd) KERNEL(adam, adam) KERNEL(rmsprop, rmsprop) KERNEL(adagrad, adagrad) KERNEL(adadelta, adadelta)   \
    KERNEL(lion, lion) KERNEL(lamb, lamb) KERNEL(muon, muon)
/* clang-format on */

typedef struct ls_kernels {
#define MEMBER_OF_MAP(name, operands, parameters) ls_map_kernel *name;
#define MEMBER(name, type)                        ls_##type##_kernel *name;
    LS_MAPS(MEMBER_OF_MAP)
    LS_OTHER_KERNELS(MEMBER)
#undef MEMBER_OF_MAP
#undef MEMBER
} ls_kernels;

#endif
