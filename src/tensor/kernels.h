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

/*
 * Element by element: y = f(operands...; parameters), operands of one dtype, which is also y's except for comparisons
 * (bool) and where (first operand bool or u8). y may be one of the operands (same memory, same strides).
 */
typedef ls_status (*ls_map_kernel)(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operands,
                                   const double *parameters);

/* y has x's dimensions with size 1 along reduced axes. */
typedef ls_status (*ls_reduce_kernel)(ls_stream *stream, ls_tensor *y, const ls_tensor *x);

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

typedef struct ls_adam_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *first_moment;
    void *second_moment;
    void *largest_second_moment; /* AMSGrad; else NULL */
    double learning_rate, beta1, beta2, epsilon, weight_decay;
    bool decoupled;                  /* AdamW: decay the parameter, not the gradient */
    double correction1, correction2; /* 1 - beta^t */
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

/* Class losses: log_probability and gradient are [n, classes], target [n] of i64. */
typedef struct ls_class_loss {
    const ls_tensor *target;
    const ls_tensor *weight; /* [classes] or NULL */
    double label_smoothing;
    bool ignore;
    int64_t ignore_index;
} ls_class_loss;

typedef struct ls_kernels {
    /* maps of one operand; parameters where noted */
    ls_map_kernel neg, abs, square; /* any */
    ls_map_kernel sqrt, exp, log, log1p, sin, cos, tanh, erf, sigmoid, relu, gelu, silu, softplus;
    ls_map_kernel leaky_relu; /* slope */
    ls_map_kernel elu;        /* alpha */
    ls_map_kernel clamp;      /* low, high; any */

    /* their gradients: operands (g, x), or (g, y) where the output is what is kept */
    ls_map_kernel abs_backward, square_backward, log1p_backward, sin_backward, cos_backward, erf_backward;
    ls_map_kernel gelu_backward, silu_backward, softplus_backward, leaky_relu_backward, elu_backward, clamp_backward;
    ls_map_kernel sqrt_backward, tanh_backward, sigmoid_backward, relu_backward; /* (g, y) */

    /* maps of two operands; _number: of one operand and parameters[0]; any */
    ls_map_kernel add, sub, mul, div, pow, maximum,
        minimum; /* integer division and powers are the caller's to convert */
    ls_map_kernel eq, ne, lt, le, gt, ge;
    ls_map_kernel add_number, sub_number, mul_number, div_number, pow_number, maximum_number, minimum_number;
    ls_map_kernel eq_number, ne_number, lt_number, le_number, gt_number, ge_number;
    ls_map_kernel where; /* (condition, a, b) */

    /* gradients of those; ties of maximum and minimum are halved */
    ls_map_kernel div_backward_divisor;                             /* (g, a, b): -g a / b^2 */
    ls_map_kernel pow_backward_base;                                /* (g, a, b) */
    ls_map_kernel pow_backward_exponent;                            /* (g, a, b): 0 where a is 0 and b >= 0 */
    ls_map_kernel pow_number_backward;                              /* (g, a; b) */
    ls_map_kernel maximum_backward;                                 /* (g, a, b): for a; swap them for b */
    ls_map_kernel minimum_backward;                                 /* (g, a, b) */
    ls_map_kernel maximum_number_backward, minimum_number_backward; /* (g, a; b) */

    /* losses element by element (x, target), and gradients (g, x, target) for x */
    ls_map_kernel mse, mse_backward, l1, l1_backward, bce, bce_backward, bce_with_logits, bce_with_logits_backward;
    ls_map_kernel huber, huber_backward; /* delta */
    ls_map_kernel kl_div;                /* (log_probability, target) */

    /* moving and filling; any dtype */
    ls_status (*copy)(ls_stream *stream, ls_tensor *y, const ls_tensor *x); /* same dtype */
    ls_status (*cast)(ls_stream *stream, ls_tensor *y, const ls_tensor *x); /* any dtype to any other */
    ls_status (*fill)(ls_stream *stream, ls_tensor *y, double value);
    ls_status (*count_up)(ls_stream *stream, ls_tensor *y); /* 0, 1, 2, ...; contiguous */

    /* random numbers: element i is number i of the stream; contiguous */
    ls_status (*random_uniform)(ls_stream *stream, ls_tensor *y, ls_random_state state, double low, double high);
    ls_status (*random_normal)(ls_stream *stream, ls_tensor *y, ls_random_state state, double mean, double deviation);
    ls_status (*random_integer)(ls_stream *stream, ls_tensor *y, ls_random_state state, int64_t low, int64_t high);
    /* y = x / (1 - p) with probability 1 - p, else 0; the same state gives the same choice again (the gradient is the
     * same call on g) */
    ls_status (*dropout)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, ls_random_state state, uint64_t first,
                         double p); /* element i by number first + i */

    /* reductions; sum, prod, min and max of any; sums of f32 are pairwise or in lanes, never one long chain */
    ls_reduce_kernel sum, prod, min, max;
    ls_status (*add_sum)(ls_stream *stream, ls_tensor *y, const ls_tensor *x); /* y += sum of x over the axes y lacks */
    ls_status (*argmax)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis); /* y i64, size 1 along axis */
    ls_status (*argmin)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis);
    ls_status (*cumsum)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse);

    /* products */
    ls_status (*gemm)(ls_stream *stream, const ls_gemm *gemm);

    /* along an axis of contiguous tensors */
    ls_status (*softmax)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis);
    ls_status (*softmax_backward)(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y, int axis);
    ls_status (*log_softmax)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis);
    ls_status (*log_softmax_backward)(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y,
                                      int axis);

    /*
     * Class losses. nll: element[n] = the loss of each row, row_weight[n] = the weight it has in the mean (0 when
     * ignored); a target that is no class is LS_ERR_ARGUMENT and named. nll_backward: d_log_probability = -scale *
     * g[row] * (smoothed, weighted target). cross_entropy_backward goes on to the logits: it takes log_probability =
     * log_softmax(logits) and gives the gradient of logits in one pass. g is [n], or one number for all rows.
     */
    ls_status (*nll)(ls_stream *stream, ls_tensor *element, ls_tensor *row_weight, const ls_tensor *log_probability,
                     const ls_class_loss *loss);
    ls_status (*nll_backward)(ls_stream *stream, ls_tensor *d_log_probability, const ls_tensor *g, double scale,
                              const ls_tensor *log_probability, const ls_class_loss *loss);
    ls_status (*cross_entropy_backward)(ls_stream *stream, ls_tensor *d_logits, const ls_tensor *g, double scale,
                                        const ls_tensor *log_probability, const ls_class_loss *loss);

    /* x as [rows, width]; mean and rstd [rows] are kept for the gradient; weight, bias and their gradients may be NULL;
     * weight gradients accumulate */
    ls_status (*layer_norm)(ls_stream *stream, ls_tensor *y, ls_tensor *mean, ls_tensor *rstd, const ls_tensor *x,
                            int64_t width, const ls_tensor *weight, const ls_tensor *bias, double epsilon);
    ls_status (*layer_norm_backward)(ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias,
                                     const ls_tensor *g, const ls_tensor *x, int64_t width, const ls_tensor *weight,
                                     const ls_tensor *mean, const ls_tensor *rstd);
    /* x [n, channels, inner]; mean and rstd [channels]: computed when training (variance [channels] too, biased), else
     * given */
    ls_status (*batch_norm_statistics)(ls_stream *stream, ls_tensor *mean, ls_tensor *variance, const ls_tensor *x);
    ls_status (*batch_norm)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *mean,
                            const ls_tensor *rstd, const ls_tensor *weight, const ls_tensor *bias);
    ls_status (*batch_norm_backward)(ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias,
                                     const ls_tensor *g, const ls_tensor *x, const ls_tensor *mean,
                                     const ls_tensor *rstd, const ls_tensor *weight, bool training);
    /* The same in parts, for a batch that is more than x. sums [channels] of f64 over the batch: of x; with a mean of
     * (x - mean) g, or of (x - mean)^2 where g is NULL. And dx in training with the means of g and of (x - mean) g. */
    ls_status (*batch_norm_sums)(ls_stream *stream, ls_tensor *sums, const ls_tensor *g, const ls_tensor *x,
                                 const ls_tensor *mean);
    ls_status (*batch_norm_dx)(ls_stream *stream, ls_tensor *dx, const ls_tensor *g, const ls_tensor *x,
                               const ls_tensor *mean, const ls_tensor *rstd, const ls_tensor *weight,
                               const ls_tensor *of_g, const ls_tensor *of_product);

    /* indexing of any; index of i64, checked: LS_ERR_ARGUMENT names the first that is out of range. take_along's and
     * scatter_add's index may be smaller than x (or y) along the other axes. */
    ls_status (*index_select)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index);
    ls_status (*index_add)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index);
    ls_status (*take_along)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index);
    ls_status (*scatter_add)(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index);

    /* flat runs of numbers: y += a x; y *= a; in double precision the sum of products, and the sum and the largest of
     * magnitudes (NaN is the largest) */
    ls_status (*axpy)(ls_stream *stream, ls_dtype dtype, int64_t count, double a, const void *x, void *y);
    ls_status (*scale)(ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y);
    ls_status (*dot)(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, const void *y, double *sum);
    ls_status (*sum_of_magnitudes)(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *sum);
    ls_status (*largest_magnitude)(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *largest);
    ls_status (*sgd)(ls_stream *stream, const ls_sgd_step *step);
    ls_status (*adam)(ls_stream *stream, const ls_adam_step *step);
    ls_status (*rmsprop)(ls_stream *stream, const ls_rmsprop_step *step);
    ls_status (*adagrad)(ls_stream *stream, const ls_adagrad_step *step);
} ls_kernels;

#endif
