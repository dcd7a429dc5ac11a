/*
 * The kernels of a device. The caller of a kernel has already checked the tensors and created the outputs. A kernel
 * fails only if out of memory, or with LS_ERR_UNSUPPORTED if it does not support the dtype; the message names the
 * kernel and the dtype.
 *
 * Dtypes: all kernels support f32 and f64; where the list says "any dtype", also i64, i32, u8 and bool. The caller
 * converts bf16 and f16 (cast), so only cast and fill receive them.
 *
 * Strides: maps, copy, cast, fill and reductions accept any strides and broadcast (an operand's missing or size-1 axes
 * repeat); all other kernels accept only contiguous tensors, unless the list says otherwise.
 */
#ifndef LS_TENSOR_KERNELS_H
#define LS_TENSOR_KERNELS_H

#include "base/random.h"
#include "tensor/tensor.h"

typedef struct ls_stream ls_stream;

/* Applied to the result of a matrix product. */
typedef enum ls_activation { LS_ACTIVATION_NONE = 0, LS_ACTIVATION_RELU } ls_activation;

/*
 * C[m, n] = op(A)[m, k] op(B)[k, n], row-major with leading dimensions in elements; op transposes if requested. f32 or
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
    bool accumulate;          /* C += instead of C =, without bias and activation */
    const void *bias;         /* [n], added to every row; may be NULL */
    ls_activation activation; /* applied last */
    int64_t batch; /* number of products, where 0 means 1; consecutive products are `step` elements apart; their outputs
                      do not overlap */
    int64_t step_a, step_b, step_c;
    ls_dtype compute;   /* sums are computed in the wider of this dtype and `dtype` */
    ls_dtype rounds_to; /* for f32: LS_BF16 or LS_F16 rounds the elements of A and B to this dtype; sums and C stay f32.
                           LS_F32 (zero) means no rounding */
    ls_dtype a_rounded, b_rounded; /* equal to rounds_to if A or B already has elements of that dtype, with rows of a
                                      multiple of 8 elements; otherwise LS_F32. For a device with takes_rounded */
} ls_gemm;

/* One optimizer step over `count` contiguous elements of f32 or f64. optim.h explains the fields. */
typedef struct ls_sgd_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *momentum_buffer; /* NULL without momentum */
    double learning_rate, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* the momentum buffer is initialized with the gradient */
} ls_sgd_step;

/*
 * p -= parameter_decay p; g += gradient_decay p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 * p -= (rate m + gradient_rate g) / (root sqrt(v) + epsilon): Adam and its variants, which differ in the numbers.
 */
typedef struct ls_adam_step {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *first_moment;
    void *second_moment;
    void *largest_second_moment; /* for AMSGrad, replaces v in the fraction; otherwise NULL */
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
    void *change_average; /* average of squares */
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

/* The elements must belong to one parameter, because the step uses its norm. Sums are computed in double precision. */
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
 * The parameter must be one row-major matrix. The order of sums in its products must depend only on the shape: each
 * rank computes them separately, and all ranks must get bit-identical results.
 */
typedef struct ls_muon_step {
    ls_dtype dtype;
    int64_t rows, columns;
    void *parameter;
    const void *gradient;
    void *momentum_buffer;
    void *work; /* temporary memory for ls_muon_work elements of the dtype */
    double rate, momentum, parameter_decay, epsilon;
    double a, b, c; /* coefficients of an iteration: X = a X + (b X X^T + c (X X^T)^2) X */
    int iterations;
    bool nesterov;
} ls_muon_step;

/* Returns the size of two matrices of the parameter's shape and of two square matrices with its smaller side. */
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

/* The message that every device gives for a target outside [0, classes): its position, its value and the number of
 * classes. */
#define LS_TARGET_MESSAGE                                                                                              \
    "target[%lld] of the batch is %lld, but there are %lld classes, numbered from 0; correct the target, or increase " \
    "the size of the last layer"

/*
 * Windows over the three spatial axes of an image [n, channels, depth, height, width] (with fewer axes, the first sizes
 * are 1). For output position o, tap t is at o * stride - before + t * dilation; positions outside the image are
 * padding.
 */
typedef struct ls_window {
    int32_t kernel[3], stride[3], dilation[3];
    int32_t before[3], after[3]; /* padding; kernels can ignore `after`, because the output's sizes include it */
    int32_t groups;              /* convolution: number of independent groups of channels */
    bool adaptive;               /* pooling: output o covers [floor(o in / out), ceil((o + 1) in / out)) */
    bool exclude_padding;        /* average pooling divides by the number of positions inside the image only */
} ls_window;

/*
 * One step of a recurrent layer for n sequences. Tensors are contiguous; the gates are adjacent in each row. Sequence i
 * has lengths[i] steps, which must be between 0 and `steps` (otherwise LS_ERR_ARGUMENT). After its last step, its state
 * stays unchanged.
 */
typedef struct ls_cell {
    const ls_tensor *x;                   /* [n, gates * hidden]: the input's contribution */
    const ls_tensor *recurrent;           /* [n, gates * hidden]: the previous step's contribution */
    const ls_tensor *h_before, *c_before; /* [n, hidden]; here and below, c is for LSTM only */
    ls_tensor *h, *c;
    ls_tensor *kept; /* [n, 4 * hidden], saved for the gradient, except for the plain cell; NULL if not needed */
    const ls_tensor *lengths; /* i64 [n], or NULL if all sequences have all steps */
    int64_t step, steps;
    bool relu; /* plain cell: relu instead of tanh */
} ls_cell;

/* The gradient of ls_cell. For a sequence that has ended, d_x and d_recurrent are set to zero. */
typedef struct ls_cell_gradient {
    ls_tensor *d_x;          /* [n, gates * hidden] */
    ls_tensor *d_recurrent;  /* [n, gates * hidden] for the GRU; the same tensor as d_x for the other cells */
    ls_tensor *dh, *dc;      /* [n, hidden], of this step, without `g`; replaced by the gradients of the previous step,
                                without the contribution through `recurrent` */
    const ls_tensor *g;      /* [n, hidden], added to dh */
    const ls_tensor *kept;   /* of ls_cell */
    const ls_tensor *before; /* [n, hidden]: c_before of the LSTM, h_before of the GRU */
    const ls_tensor *after;  /* [n, hidden]: c of the LSTM, h of the plain cell */
    const ls_tensor *lengths;
    int64_t step;
    bool relu;
} ls_cell_gradient;

/* ---- the types of kernels ---------------------------------------------------------------------------------------- */

/*
 * The arguments of a kernel type that follow the stream, as one list: tensors that it writes or adds to (OUT), tensors
 * that it only reads (IN), values, and pointers to structs. Both kinds of tensors may be NULL where the type says so.
 */
#define LS_PARAMETER_OUT(name)          , ls_tensor *name
#define LS_PARAMETER_IN(name)           , const ls_tensor *name
#define LS_PARAMETER_VALUE(type, name)  , type name
#define LS_PARAMETER_STRUCT(type, name) , const type *name
#define LS_PARAMETERS_OF(list)                                                                                         \
    ls_stream *stream list(LS_PARAMETER_OUT, LS_PARAMETER_IN, LS_PARAMETER_VALUE, LS_PARAMETER_STRUCT)

/*
 * map: element-wise: y = f(operands...; parameters). The operands have the same dtype, which is also y's, except for
 * comparisons (y is bool) and where (the first operand is bool or u8). y may be one of the operands (same memory, same
 * strides).
 */
#define LS_PARAMETERS_map ls_stream *stream, ls_tensor *y, const ls_tensor *const *operands, const double *parameters
/* pair: computes y from x. */
#define LS_ARGUMENTS_pair(OUT, IN, VALUE, STRUCT)     OUT(y) IN(x)
#define LS_ARGUMENTS_fill(OUT, IN, VALUE, STRUCT)     OUT(y) VALUE(double, value)
#define LS_ARGUMENTS_count_up(OUT, IN, VALUE, STRUCT) OUT(y)
/* random: element i is number i of the stream. */
#define LS_ARGUMENTS_random(OUT, IN, VALUE, STRUCT)                                                                    \
    OUT(y) VALUE(ls_random_state, state) VALUE(double, a) VALUE(double, b)
#define LS_ARGUMENTS_random_integer(OUT, IN, VALUE, STRUCT)                                                            \
    OUT(y) VALUE(ls_random_state, state) VALUE(int64_t, low) VALUE(int64_t, high)
#define LS_ARGUMENTS_dropout(OUT, IN, VALUE, STRUCT)                                                                   \
    OUT(y) IN(x) VALUE(ls_random_state, state) VALUE(uint64_t, first) VALUE(double, p)
#define LS_ARGUMENTS_along(OUT, IN, VALUE, STRUCT)          OUT(y) IN(x) VALUE(int, axis)
#define LS_ARGUMENTS_along_backward(OUT, IN, VALUE, STRUCT) OUT(dx) IN(dy) IN(y) VALUE(int, axis)
/* directed: processes the axis from its end instead of its start, or puts the largest element first. */
#define LS_ARGUMENTS_directed(OUT, IN, VALUE, STRUCT) OUT(y) IN(x) VALUE(int, axis) VALUE(bool, reverse)
#define LS_ARGUMENTS_index(OUT, IN, VALUE, STRUCT)    OUT(y) IN(x) VALUE(int, axis) IN(index)
#define LS_ARGUMENTS_gemm(OUT, IN, VALUE, STRUCT)     STRUCT(ls_gemm, gemm)
#define LS_ARGUMENTS_nll(OUT, IN, VALUE, STRUCT)                                                                       \
    OUT(element) OUT(row_weight) IN(log_probability) STRUCT(ls_class_loss, loss)
#define LS_ARGUMENTS_class_loss_backward(OUT, IN, VALUE, STRUCT)                                                       \
    OUT(d) IN(g) VALUE(double, scale) IN(log_probability) STRUCT(ls_class_loss, loss)
#define LS_ARGUMENTS_layer_norm(OUT, IN, VALUE, STRUCT)                                                                \
    OUT(y) OUT(mean) OUT(rstd) IN(x) VALUE(int64_t, width) IN(weight) IN(bias) VALUE(double, epsilon)
#define LS_ARGUMENTS_layer_norm_backward(OUT, IN, VALUE, STRUCT)                                                       \
    OUT(dx) OUT(d_weight) OUT(d_bias) IN(g) IN(x) VALUE(int64_t, width) IN(weight) IN(mean) IN(rstd)
#define LS_ARGUMENTS_batch_norm_statistics(OUT, IN, VALUE, STRUCT) OUT(mean) OUT(variance) IN(x)
#define LS_ARGUMENTS_batch_norm(OUT, IN, VALUE, STRUCT)            OUT(y) IN(x) IN(mean) IN(rstd) IN(weight) IN(bias)
#define LS_ARGUMENTS_batch_norm_backward(OUT, IN, VALUE, STRUCT)                                                       \
    OUT(dx) OUT(d_weight) OUT(d_bias) IN(g) IN(x) IN(mean) IN(rstd) IN(weight) VALUE(bool, training)
#define LS_ARGUMENTS_batch_norm_sums(OUT, IN, VALUE, STRUCT) OUT(sums) IN(g) IN(x) IN(mean)
#define LS_ARGUMENTS_batch_norm_dx(OUT, IN, VALUE, STRUCT)                                                             \
    OUT(dx) IN(g) IN(x) IN(mean) IN(rstd) IN(weight) IN(of_g) IN(of_product)
#define LS_ARGUMENTS_conv(OUT, IN, VALUE, STRUCT)                                                                      \
    OUT(y) IN(x) IN(weight) IN(bias) STRUCT(ls_window, window) VALUE(ls_dtype, rounds_to)
#define LS_ARGUMENTS_conv_weight(OUT, IN, VALUE, STRUCT)                                                               \
    OUT(d_weight) IN(large) IN(small) STRUCT(ls_window, window) VALUE(ls_dtype, rounds_to)
#define LS_ARGUMENTS_max_pool(OUT, IN, VALUE, STRUCT) OUT(y) OUT(index) IN(x) STRUCT(ls_window, window)
#define LS_ARGUMENTS_pool(OUT, IN, VALUE, STRUCT)     OUT(y) IN(x) STRUCT(ls_window, window)
#define LS_ARGUMENTS_resize(OUT, IN, VALUE, STRUCT)                                                                    \
    OUT(y) IN(x) VALUE(int, axis) VALUE(bool, linear) VALUE(bool, align_corners)
#define LS_ARGUMENTS_rotary(OUT, IN, VALUE, STRUCT)                                                                    \
    OUT(y) IN(x) IN(cosine) IN(sine) VALUE(bool, halves) VALUE(bool, backward) VALUE(bool, accumulate)
#define LS_ARGUMENTS_attention(OUT, IN, VALUE, STRUCT)                                                                 \
    OUT(y)                                                                                                             \
    OUT(log_sum) IN(q) IN(k) IN(v) IN(mask) IN(bias) VALUE(double, scale) VALUE(bool, causal) VALUE(ls_dtype, rounds_to)
#define LS_ARGUMENTS_attention_backward(OUT, IN, VALUE, STRUCT)                                                        \
    OUT(dq)                                                                                                            \
    OUT(dk)                                                                                                            \
    OUT(dv)                                                                                                            \
    IN(g)                                                                                                              \
    IN(y)                                                                                                              \
    IN(log_sum) IN(q) IN(k) IN(v) IN(mask) IN(bias) VALUE(double, scale) VALUE(bool, causal) VALUE(ls_dtype, rounds_to)
#define LS_ARGUMENTS_cell(OUT, IN, VALUE, STRUCT)          STRUCT(ls_cell, cell)
#define LS_ARGUMENTS_cell_backward(OUT, IN, VALUE, STRUCT) STRUCT(ls_cell_gradient, cell)
/* For optimizers and norms: pointers to contiguous elements of the dtype; results are f64 numbers on the device. */
#define LS_ARGUMENTS_axpy(OUT, IN, VALUE, STRUCT)                                                                      \
    VALUE(ls_dtype, dtype) VALUE(int64_t, count) VALUE(double, a) VALUE(const void *, x) VALUE(void *, y)
#define LS_ARGUMENTS_scale(OUT, IN, VALUE, STRUCT)                                                                     \
    VALUE(ls_dtype, dtype) VALUE(int64_t, count) VALUE(double, a) VALUE(void *, y)
#define LS_ARGUMENTS_dot(OUT, IN, VALUE, STRUCT)                                                                       \
    VALUE(ls_dtype, dtype) VALUE(int64_t, count) VALUE(const void *, x) VALUE(const void *, y) VALUE(double *, sum)
#define LS_ARGUMENTS_measure(OUT, IN, VALUE, STRUCT)                                                                   \
    VALUE(ls_dtype, dtype) VALUE(int64_t, count) VALUE(const void *, x) VALUE(double *, result)
/* y *= a; sets *found to 1 if a product is Inf or NaN, otherwise leaves *found unchanged. */
#define LS_ARGUMENTS_unscale(OUT, IN, VALUE, STRUCT)                                                                   \
    VALUE(ls_dtype, dtype) VALUE(int64_t, count) VALUE(double, a) VALUE(void *, y) VALUE(double *, found)
#define LS_ARGUMENTS_sgd(OUT, IN, VALUE, STRUCT)      STRUCT(ls_sgd_step, step)
#define LS_ARGUMENTS_adam(OUT, IN, VALUE, STRUCT)     STRUCT(ls_adam_step, step)
#define LS_ARGUMENTS_rmsprop(OUT, IN, VALUE, STRUCT)  STRUCT(ls_rmsprop_step, step)
#define LS_ARGUMENTS_adagrad(OUT, IN, VALUE, STRUCT)  STRUCT(ls_adagrad_step, step)
#define LS_ARGUMENTS_adadelta(OUT, IN, VALUE, STRUCT) STRUCT(ls_adadelta_step, step)
#define LS_ARGUMENTS_lion(OUT, IN, VALUE, STRUCT)     STRUCT(ls_lion_step, step)
#define LS_ARGUMENTS_lamb(OUT, IN, VALUE, STRUCT)     STRUCT(ls_lamb_step, step)
#define LS_ARGUMENTS_muon(OUT, IN, VALUE, STRUCT)     STRUCT(ls_muon_step, step)
/* The parameters of these types. */
#define LS_PARAMETERS_pair                  LS_PARAMETERS_OF(LS_ARGUMENTS_pair)
#define LS_PARAMETERS_fill                  LS_PARAMETERS_OF(LS_ARGUMENTS_fill)
#define LS_PARAMETERS_count_up              LS_PARAMETERS_OF(LS_ARGUMENTS_count_up)
#define LS_PARAMETERS_random                LS_PARAMETERS_OF(LS_ARGUMENTS_random)
#define LS_PARAMETERS_random_integer        LS_PARAMETERS_OF(LS_ARGUMENTS_random_integer)
#define LS_PARAMETERS_dropout               LS_PARAMETERS_OF(LS_ARGUMENTS_dropout)
#define LS_PARAMETERS_along                 LS_PARAMETERS_OF(LS_ARGUMENTS_along)
#define LS_PARAMETERS_along_backward        LS_PARAMETERS_OF(LS_ARGUMENTS_along_backward)
#define LS_PARAMETERS_directed              LS_PARAMETERS_OF(LS_ARGUMENTS_directed)
#define LS_PARAMETERS_index                 LS_PARAMETERS_OF(LS_ARGUMENTS_index)
#define LS_PARAMETERS_gemm                  LS_PARAMETERS_OF(LS_ARGUMENTS_gemm)
#define LS_PARAMETERS_nll                   LS_PARAMETERS_OF(LS_ARGUMENTS_nll)
#define LS_PARAMETERS_class_loss_backward   LS_PARAMETERS_OF(LS_ARGUMENTS_class_loss_backward)
#define LS_PARAMETERS_layer_norm            LS_PARAMETERS_OF(LS_ARGUMENTS_layer_norm)
#define LS_PARAMETERS_layer_norm_backward   LS_PARAMETERS_OF(LS_ARGUMENTS_layer_norm_backward)
#define LS_PARAMETERS_batch_norm_statistics LS_PARAMETERS_OF(LS_ARGUMENTS_batch_norm_statistics)
#define LS_PARAMETERS_batch_norm            LS_PARAMETERS_OF(LS_ARGUMENTS_batch_norm)
#define LS_PARAMETERS_batch_norm_backward   LS_PARAMETERS_OF(LS_ARGUMENTS_batch_norm_backward)
#define LS_PARAMETERS_batch_norm_sums       LS_PARAMETERS_OF(LS_ARGUMENTS_batch_norm_sums)
#define LS_PARAMETERS_batch_norm_dx         LS_PARAMETERS_OF(LS_ARGUMENTS_batch_norm_dx)
#define LS_PARAMETERS_conv                  LS_PARAMETERS_OF(LS_ARGUMENTS_conv)
#define LS_PARAMETERS_conv_weight           LS_PARAMETERS_OF(LS_ARGUMENTS_conv_weight)
#define LS_PARAMETERS_max_pool              LS_PARAMETERS_OF(LS_ARGUMENTS_max_pool)
#define LS_PARAMETERS_pool                  LS_PARAMETERS_OF(LS_ARGUMENTS_pool)
#define LS_PARAMETERS_resize                LS_PARAMETERS_OF(LS_ARGUMENTS_resize)
#define LS_PARAMETERS_rotary                LS_PARAMETERS_OF(LS_ARGUMENTS_rotary)
#define LS_PARAMETERS_attention             LS_PARAMETERS_OF(LS_ARGUMENTS_attention)
#define LS_PARAMETERS_attention_backward    LS_PARAMETERS_OF(LS_ARGUMENTS_attention_backward)
#define LS_PARAMETERS_cell                  LS_PARAMETERS_OF(LS_ARGUMENTS_cell)
#define LS_PARAMETERS_cell_backward         LS_PARAMETERS_OF(LS_ARGUMENTS_cell_backward)
#define LS_PARAMETERS_axpy                  LS_PARAMETERS_OF(LS_ARGUMENTS_axpy)
#define LS_PARAMETERS_scale                 LS_PARAMETERS_OF(LS_ARGUMENTS_scale)
#define LS_PARAMETERS_dot                   LS_PARAMETERS_OF(LS_ARGUMENTS_dot)
#define LS_PARAMETERS_measure               LS_PARAMETERS_OF(LS_ARGUMENTS_measure)
#define LS_PARAMETERS_unscale               LS_PARAMETERS_OF(LS_ARGUMENTS_unscale)
#define LS_PARAMETERS_sgd                   LS_PARAMETERS_OF(LS_ARGUMENTS_sgd)
#define LS_PARAMETERS_adam                  LS_PARAMETERS_OF(LS_ARGUMENTS_adam)
#define LS_PARAMETERS_rmsprop               LS_PARAMETERS_OF(LS_ARGUMENTS_rmsprop)
#define LS_PARAMETERS_adagrad               LS_PARAMETERS_OF(LS_ARGUMENTS_adagrad)
#define LS_PARAMETERS_adadelta              LS_PARAMETERS_OF(LS_ARGUMENTS_adadelta)
#define LS_PARAMETERS_lion                  LS_PARAMETERS_OF(LS_ARGUMENTS_lion)
#define LS_PARAMETERS_lamb                  LS_PARAMETERS_OF(LS_ARGUMENTS_lamb)
#define LS_PARAMETERS_muon                  LS_PARAMETERS_OF(LS_ARGUMENTS_muon)

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
typedef ls_status ls_rotary_kernel(LS_PARAMETERS_rotary);
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
 * All kernels: MAP(name, operands, parameters) and KERNEL(name, type). The table, the CPU's row of it, and all other
 * code over all kernels are generated from this list.
 */

/* clang-format off */
#define LS_MAPS(MAP)                                                                                                   \
    /* of one operand; neg, abs, square, sign and clamp (low, high) for any dtype */                                   \
    MAP(neg, 1, 0) MAP(abs, 1, 0) MAP(square, 1, 0) MAP(clamp, 1, 2) MAP(sign, 1, 0)                                   \
    MAP(floor, 1, 0) MAP(ceil, 1, 0) MAP(round, 1, 0) /* half to even */                                               \
    MAP(sqrt, 1, 0) MAP(exp, 1, 0) MAP(log, 1, 0) MAP(log1p, 1, 0) MAP(sin, 1, 0) MAP(cos, 1, 0) MAP(tanh, 1, 0)       \
    MAP(erf, 1, 0) MAP(sigmoid, 1, 0) MAP(relu, 1, 0) MAP(gelu, 1, 0) MAP(gelu_tanh, 1, 0) MAP(silu, 1, 0)             \
    MAP(softplus, 1, 0) MAP(leaky_relu, 1, 1) /* slope */ MAP(elu, 1, 1) /* alpha */                                   \
    /* gradients of these maps: operands (g, x) ... */                                                                 \
    MAP(abs_backward, 2, 0) MAP(square_backward, 2, 0) MAP(log1p_backward, 2, 0) MAP(sin_backward, 2, 0)               \
    MAP(cos_backward, 2, 0) MAP(erf_backward, 2, 0) MAP(gelu_backward, 2, 0) MAP(gelu_tanh_backward, 2, 0)             \
    MAP(silu_backward, 2, 0) MAP(softplus_backward, 2, 0) MAP(leaky_relu_backward, 2, 1) MAP(elu_backward, 2, 1)       \
    MAP(clamp_backward, 2, 2)                                                                                          \
    /* ... or (g, y), if the output is saved */                                                                        \
    MAP(sqrt_backward, 2, 0) MAP(tanh_backward, 2, 0) MAP(sigmoid_backward, 2, 0) MAP(relu_backward, 2, 0)             \
    /* of two operands, any dtype; the caller converts the operands of integer division and powers */                  \
    MAP(add, 2, 0) MAP(sub, 2, 0) MAP(mul, 2, 0) MAP(div, 2, 0) MAP(pow, 2, 0) MAP(maximum, 2, 0) MAP(minimum, 2, 0)   \
    MAP(eq, 2, 0) MAP(ne, 2, 0) MAP(lt, 2, 0) MAP(le, 2, 0) MAP(gt, 2, 0) MAP(ge, 2, 0)                                \
    /* of one operand and a number */                                                                                  \
    MAP(add_number, 1, 1) MAP(sub_number, 1, 1) MAP(mul_number, 1, 1) MAP(div_number, 1, 1) MAP(pow_number, 1, 1)      \
    MAP(maximum_number, 1, 1) MAP(minimum_number, 1, 1) MAP(eq_number, 1, 1) MAP(ne_number, 1, 1)                      \
    MAP(lt_number, 1, 1) MAP(le_number, 1, 1) MAP(gt_number, 1, 1) MAP(ge_number, 1, 1)                                \
    MAP(is_nan, 1, 0) MAP(is_finite, 1, 0) /* any; y bool */                                                           \
    MAP(where, 3, 0) /* (condition, a, b) */                                                                           \
    /* gradients of these maps; maximum and minimum halve the gradient on a tie */                                     \
    MAP(div_backward_divisor, 3, 0)  /* (g, a, b): -g a / b^2 */                                                       \
    MAP(pow_backward_base, 3, 0)     /* (g, a, b) */                                                                   \
    MAP(pow_backward_exponent, 3, 0) /* (g, a, b): 0 where a is 0 and b >= 0 */                                        \
    MAP(pow_number_backward, 2, 1)   /* (g, a; b) */                                                                   \
    MAP(maximum_backward, 3, 0)      /* (g, a, b): for a; exchange a and b for the gradient of b */                    \
    MAP(minimum_backward, 3, 0)                                                                                        \
    MAP(maximum_number_backward, 2, 1) MAP(minimum_number_backward, 2, 1) /* (g, a; b) */                              \
    /* element-wise losses (x, target), and gradients (g, x, target) with respect to x */                              \
    MAP(mse, 2, 0) MAP(mse_backward, 3, 0) MAP(l1, 2, 0) MAP(l1_backward, 3, 0) MAP(bce, 2, 0)                         \
    MAP(bce_backward, 3, 0) MAP(bce_with_logits, 2, 0) MAP(bce_with_logits_backward, 3, 0)                             \
    MAP(huber, 2, 1) MAP(huber_backward, 3, 1) /* delta */                                                             \
    MAP(kl_div, 2, 0) /* (log_probability, target) */

#define LS_OTHER_KERNELS(KERNEL)                                                                                       \
    /* moving and filling; any dtype. copy: x and y have the same dtype. cast: any dtype to any other. count_up: 0,    \
     * 1, 2, ...; contiguous */                                                                                        \
    KERNEL(copy, pair) KERNEL(cast, pair) KERNEL(fill, fill) KERNEL(count_up, count_up)                                \
    /* random numbers; contiguous: in [a, b), or with mean a and standard deviation b */                               \
    KERNEL(random_uniform, random) KERNEL(random_normal, random) KERNEL(random_integer, random_integer)                \
    /* y = x / (1 - p) with probability 1 - p, else 0; number first + i of the stream decides whether element i is     \
     * dropped. The same state repeats the choice (so the gradient is the same call on g) */                           \
    KERNEL(dropout, dropout)                                                                                           \
    /* reductions, any dtype: y has x's number of dimensions, with size 1 along reduced axes. Sums of f32 are          \
     * pairwise or in lanes, never one long chain. add_sum: y += the sum of x over the axes that y lacks */            \
    KERNEL(sum, pair) KERNEL(prod, pair) KERNEL(min, pair) KERNEL(max, pair) KERNEL(add_sum, pair)                     \
    KERNEL(argmax, along) KERNEL(argmin, along) /* y is i64, with size 1 along the axis */                             \
    KERNEL(cumsum, directed)                                                                                           \
    KERNEL(gemm, gemm)                                                                                                 \
    /* along an axis of contiguous tensors */                                                                          \
    KERNEL(softmax, along) KERNEL(softmax_backward, along_backward)                                                    \
    KERNEL(log_softmax, along) KERNEL(log_softmax_backward, along_backward)                                            \
    /* Class losses. nll: element[n] = the loss of each row; row_weight[n] = its weight in the mean (0 if ignored).    \
     * Fails with LS_ERR_ARGUMENT, and names the target, if a target is not a class. nll_backward: d = -scale *        \
     * g[row] * (smoothed, weighted target). cross_entropy_backward: computes the gradient of the logits in one pass   \
     * from log_probability = log_softmax(logits). g is [n], or one number for all rows. */                            \
    KERNEL(nll, nll) KERNEL(nll_backward, class_loss_backward) KERNEL(cross_entropy_backward, class_loss_backward)     \
    /* x is viewed as [rows, width]; mean and rstd [rows] are saved for the gradient; weight, bias and their           \
     * gradients may be NULL; weight gradients accumulate. If mean is NULL, it is treated as 0: the RMS norm */        \
    KERNEL(layer_norm, layer_norm) KERNEL(layer_norm_backward, layer_norm_backward)                                    \
    /* x [n, channels, inner]; mean and rstd [channels] are computed in training (with the biased variance             \
     * [channels]), otherwise given */                                                                                 \
    KERNEL(batch_norm_statistics, batch_norm_statistics) KERNEL(batch_norm, batch_norm)                                \
    KERNEL(batch_norm_backward, batch_norm_backward)                                                                   \
    /* The same in parts, for a batch that is larger than x. sums: f64 [channels], the sums over the batch of x; if    \
     * a mean is given, of (x - mean) g, or of (x - mean)^2 if g is NULL. dx: in training, from the means of g and     \
     * of (x - mean) g. */                                                                                             \
    KERNEL(batch_norm_sums, batch_norm_sums) KERNEL(batch_norm_dx, batch_norm_dx)                                      \
    /* Images, all with five axes (ls_window). conv: y [n, out, ...] = bias [out] (may be NULL) + the                  \
     * cross-correlation of x with weight [out, in / groups, ...]. conv_transpose: the transpose of that map, plus     \
     * bias: its x has the sizes of conv's y. conv_weight: d_weight += the gradient; `small` has y's sizes, `large` has\
     * x's. rounds_to, here and below: as in ls_gemm. */                                                               \
    KERNEL(conv, conv) KERNEL(conv_transpose, conv) KERNEL(conv_weight, conv_weight)                                   \
    /* max_pool: index (i64) is the offset of the first maximum, or of a NaN, in the channel's image; every window     \
     * has a tap inside the image. average_pool_backward: y += the gradient, computed from x, the gradient of the      \
     * output. */                                                                                                      \
    KERNEL(max_pool, max_pool) KERNEL(average_pool, pool) KERNEL(average_pool_backward, pool)                          \
    /* y is x with a different size along one axis. Output o is position floor(o in / out), or, if linear, is          \
     * interpolated at max((o + 0.5) in / out - 0.5, 0), or with align_corners at o (in - 1) / (out - 1).              \
     * resize_backward: y += the gradient, computed from x, the gradient of the output. Contiguous; in is not 0 */     \
    KERNEL(resize, resize) KERNEL(resize_backward, resize)                                                             \
    /* y is i64 with x's shape: the indices along the axis in sorted order; the sort is stable, and NaN is the         \
     * largest; contiguous */                                                                                          \
    KERNEL(argsort, directed)                                                                                          \
    /* Rotates pairs of elements along the last axis of x [..., positions, width]. A pair is elements 2 i and 2 i + 1, \
     * or, with halves, i and i + width / 2. cosine and sine [positions, width / 2] are contiguous, and so is y; x has \
     * any strides. backward: x is the gradient of the output, and y is the gradient of the input; with accumulate, it is\
     * added to y. Without accumulate, 0 is added to the first element of each pair, so that -0 becomes 0. */          \
    KERNEL(rotary, rotary)                                                                                             \
    /* y = softmax(scale q k^T) v for each matrix of q [batch, heads, queries, width], k [.., keys, width] and v       \
     * [.., keys, value width]. The stride of the last axis is 1, all other strides are arbitrary. With causal,        \
     * query i uses only keys j <= i. With a mask (contiguous [batch, keys] of truth values, or NULL), only keys       \
     * whose mask is not 0 are used. y is 0 for a query without keys. log_sum (contiguous [batch, heads, queries])     \
     * is the logarithm of the sum of exp(scale q k^T), infinite for a query without keys. g has the shape of y, dq    \
     * the shape of q, and so on; a gradient is not computed if it is NULL. Additional memory does not grow with the   \
     * lengths. */                                                                                                     \
    KERNEL(attention, attention) KERNEL(attention_backward, attention_backward)                                        \
    /* Cells of recurrent layers, with a = x + recurrent. rnn_cell: h = tanh(a) or relu(a). lstm_cell, with gates      \
     * (i, f, g, o): c = sigmoid(f) c_before + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c). gru_cell, with gates (r, z, \
     * n): n = tanh(x_n + sigmoid(r) recurrent_n), h = n + sigmoid(z) (h_before - n). */                               \
    KERNEL(rnn_cell, cell) KERNEL(lstm_cell, cell) KERNEL(gru_cell, cell)                                              \
    KERNEL(rnn_cell_backward, cell_backward) KERNEL(lstm_cell_backward, cell_backward)                                 \
    KERNEL(gru_cell_backward, cell_backward)                                                                           \
    /* indexing, any dtype; index is i64 and checked: the message of LS_ERR_ARGUMENT names the first invalid index.    \
     * The index of take_along and scatter_add may be smaller than x (or y) along the other axes. */                   \
    KERNEL(index_select, index) KERNEL(index_add, index) KERNEL(take_along, index) KERNEL(scatter_add, index)          \
    /* y += a x; y *= a; in double precision: the sum of products, the sum of magnitudes, and the maximum magnitude    \
     * (NaN is the largest) */                                                                                         \
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
