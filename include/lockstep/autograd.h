/**
 * @file autograd.h
 * Operations on tensors and their gradients.
 *
 * ```c
 * ls_tensor *w = ls_rand(LS_SHAPE(784, 10), LS_F32);
 * ls_status status = ls_set_requires_grad(w, true);
 * ls_tensor *loss = ls_cross_entropy(ls_matmul(x, w), target, NULL);
 * if (ls_backward(loss) == LS_OK) {
 *     ls_print(ls_grad(w));
 * }
 * ```
 *
 * - An operation returns a new tensor or a view, in the innermost scope.
 * - An operation with a NULL argument returns NULL, unless the argument is optional. So one check per expression is
 *   enough: check its result or ls_scope_end.
 * - Shapes broadcast as in NumPy. Negative axes count from the end.
 * - Mixed dtypes are promoted as in PyTorch, unless the operation needs equal dtypes. A number never changes the dtype
 *   of a floating-point tensor.
 * - bf16 and f16 are computed in f32. Intermediate results, such as the squares in a norm, may overflow or underflow.
 *
 * Any operation can fail with these errors, in addition to the errors in its own comment:
 * - LS_ERR_SHAPE: shapes or dtypes that are incompatible with the operation or with each other.
 * - LS_ERR_ARGUMENT: an invalid axis, a NULL without an earlier failure, different devices, or another invalid value.
 * - LS_ERR_STATE: a tensor that was freed.
 * - LS_ERR_MEMORY: out of memory.
 */
#ifndef LOCKSTEP_AUTOGRAD_H
#define LOCKSTEP_AUTOGRAD_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/**
 * Sets whether a leaf requires a gradient. A leaf is a floating-point tensor that is not the result of a recorded
 * operation. Fails with LS_ERR_ARGUMENT if `requires_grad` is true and the tensor is not floating-point, and with
 * LS_ERR_STATE if the tensor is the result of a recorded operation.
 */
LS_API ls_status ls_set_requires_grad(ls_tensor *tensor, bool requires_grad);
/** Returns true if the tensor is a leaf that requires a gradient, or the result of a recorded operation. */
LS_API bool ls_requires_grad(const ls_tensor *tensor);
/**
 * Returns a borrowed pointer to the gradient of a leaf, or NULL if it has no gradient yet. The gradient has the leaf's
 * shape and dtype, and changes with the next backward pass. Fails with LS_ERR_STATE if this rank has only a part of the
 * parameter's gradient (.zero = 2 or 3 in ls_data_parallel).
 *
 * Second-order gradients are not supported: a gradient is a constant. ls_backward usually notices a program that
 * expects more: it fails with LS_ERR_UNSUPPORTED if it reaches a recorded operation whose input is a gradient that
 * depends on the values of this rank's leaves through this rank's operations, or a tensor computed from such a
 * gradient. ls_detach turns such a tensor into a constant. An ls_alias of a gradient, a copy by ls_copy_into, and
 * tensors computed under ls_no_grad are constants, too.
 */
LS_API ls_tensor *ls_grad(const ls_tensor *tensor);
/** Clears the gradient of a leaf. ls_grad returns NULL until the next backward pass. */
LS_API void ls_zero_grad(ls_tensor *tensor);

/**
 * Adds the gradient of `loss` (one floating-point number) to the gradients of the leaves that `loss` depends on and
 * that require a gradient. Consumes the part of the tape that leads to `loss`. Fails with
 * - LS_ERR_SHAPE if `loss` does not have exactly one element,
 * - LS_ERR_ARGUMENT if `loss` has an integer type or bool, or is NULL without an earlier failure,
 * - LS_ERR_STATE if `loss` depends on no such leaf (unless a communication operation is on the tape), if its tape was
 *   already consumed, if a tensor that the tape needs was changed in place, or in a hook of another backward pass.
 *
 * If the pass fails, it may have consumed a part of the tape and changed existing gradients: call ls_zero_grad.
 *
 * If a data-parallel module (ls_data_parallel) or a communication operation of parallel.h is on the tape, the call is
 * collective. Every rank must then call ls_backward, even if its `loss` is NULL because an earlier operation failed.
 * If the pass fails on a rank, the ranks of its data-parallel modules fail with LS_ERR_MISMATCH. So do ranks that still
 * wait for the failed rank in a collective on the tape, or for the gradient of a message that they have sent to it. The
 * error names the failed rank and its error. Ranks that have only received messages from it get no error. If the failed
 * rank has a data-parallel module on its tape, ranks outside this module may get LS_ERR_TIMEOUT instead. After a
 * data-parallel module on several ranks, there are two more errors:
 * - LS_ERR_MISMATCH if the pass detects that the losses of the ranks differ, or that only some ranks send the gradient
 *   of a parameter (ls_set_requires_grad),
 * - LS_ERR_UNSUPPORTED if the loss combines the samples of one rank in a way that is wrong on several ranks
 *   (docs/explanation/data-parallel.md).
 */
LS_API ls_status ls_backward(ls_tensor *loss) LS_WARN_UNUSED;

/** Options for ls_backward_with. Zero fields select the behavior of ls_backward. */
typedef struct ls_backward_options {
    ls_tensor *gradient; /**< initial gradient, with the shape and dtype of the output, borrowed during the call; NULL
                            selects 1, for an output with one element */
    bool keep_tape;      /**< keeps the tape, so that another backward pass can use it */
} ls_backward_options;

/**
 * Does the same as ls_backward for an output of any shape. `options` may be NULL. Fails with LS_ERR_SHAPE if the
 * initial gradient does not have the output's shape and dtype.
 *
 * If options are given without `.gradient`, and a call that returns tensors has failed in the innermost scope, fails
 * with the scope's first error, because the NULL may be the result of the failed call. A failure outside any scope or
 * in a different scope is not detected, and NULL selects 1. So check whether your gradient is NULL.
 */
LS_API ls_status ls_backward_with(ls_tensor *output, const ls_backward_options *options) LS_WARN_UNUSED;

/**
 * Disables recording on this thread if `on` is true, otherwise enables it. While recording is disabled, operations
 * record nothing for the backward pass. Returns the state before the call. ls_scope_end restores the state at
 * ls_scope_begin.
 */
LS_API bool ls_no_grad(bool on);

/**
 * Sets the dtype of products on this thread: LS_BF16 or LS_F16 for mixed precision, LS_F32 to disable it. Returns the
 * dtype before the call. ls_scope_end restores the dtype at ls_scope_begin.
 *
 * ```c
 * ls_dtype before = ls_autocast(LS_BF16);
 * ls_tensor *loss = ls_cross_entropy(ls_forward(model, x), target, NULL);
 * (void)ls_autocast(before);
 * ls_status status = ls_backward(loss);
 * ```
 *
 * - ls_linear, ls_matmul, ls_conv, ls_conv_transpose, ls_attention and the matrix products of ls_einsum round their
 *   factors to the dtype, but neither f64 factors nor a bias. The products in their backward rules do the same, even if
 *   ls_backward runs without autocast.
 * - Sums and results of f32 tensors are f32. torch.autocast("cpu", torch.bfloat16) rounds the results, too.
 * - Parameters, gradients, losses, softmax, norms and reductions stay f32. f64 stays f64.
 * - f16 has a much smaller range than bf16 and loses small gradients: scale the loss (ls_grad_scaler in optim.h).
 * - Products are slower than in f32 if the processor has no fast bf16, without oneDNN, and in f16. A warning is logged
 *   once per dtype.
 *
 * Fails with LS_ERR_ARGUMENT for other dtypes. The scope then keeps the error, and the dtype does not change.
 * docs/reference/training.md describes mixed precision in detail.
 */
LS_API ls_dtype ls_autocast(ls_dtype dtype);

/**
 * A function that ls_backward calls with a leaf after the pass has completed the leaf's gradient, and before
 * ls_data_parallel averages it. It may change ls_grad(leaf) in place. If one of its calls fails, it must return the
 * status of the call: otherwise only this rank fails. Parameters that .zero = 2 or 3 shards cannot have hooks
 * (LS_ERR_UNSUPPORTED from ls_backward).
 */
typedef ls_status (*ls_grad_hook)(ls_tensor *leaf, void *user);

/**
 * Registers `hook` for every backward pass that reaches the leaf. ls_gradcheck does not call hooks of its inputs. If a
 * hook fails, the pass ends with its status. Fails with LS_ERR_ARGUMENT if the tensor is not a leaf that requires a
 * gradient.
 */
LS_API ls_status ls_add_grad_hook(ls_tensor *leaf, ls_grad_hook hook, void *user) LS_WARN_UNUSED;

/** A function for ls_gradcheck. Its result may have any shape. */
typedef ls_tensor *(*ls_function)(ls_tensor **inputs, int count, void *user);

/**
 * Options for ls_gradcheck. Zero fields select defaults suited to f64. Negative numbers, NaN and an infinite step fail
 * with LS_ERR_ARGUMENT.
 */
typedef struct ls_gradcheck_options {
    double step;     /**< step of the central difference; 0 selects the default, 1e-6 */
    double absolute; /**< absolute tolerance; 0 selects the default, 1e-5 */
    double relative; /**< relative tolerance; 0 selects the default, 1e-3 */
} ls_gradcheck_options;

/**
 * Checks the gradients of sum(w * function(inputs)), with a fixed random w, against central differences, for every
 * element of every input that requires a gradient. At least one input must require a gradient, and all such inputs must
 * be f64 leaves (otherwise LS_ERR_ARGUMENT). Fails with LS_ERR_MISMATCH if the gradients differ; the message gives the
 * input, the element and both values. Gradients of the inputs do not change. Other leaves that the function uses get
 * gradients: clear them (ls_zero_grad). `options` may be NULL.
 */
LS_API ls_status ls_gradcheck(ls_function function, ls_tensor **inputs, int count, void *user,
                              const ls_gradcheck_options *options) LS_WARN_UNUSED;

/* ---- custom operations ------------------------------------------------------------------------------------------- */

/** The arguments of a custom operation's functions. The functions borrow all of them. */
typedef struct ls_custom_call {
    ls_tensor *const *inputs; /**< inputs of the call, contiguous */
    int input_count;
    ls_tensor **outputs; /**< outputs: set by `forward`, in its innermost scope; read by `backward` */
    ls_tensor **saved;   /**< tensors that `forward` saves for `backward` */
    ls_tensor *const
        *output_gradients; /**< gradients of the outputs, for `backward`: contiguous; zeros if no gradient arrived */
    ls_tensor **input_gradients; /**< gradients of the inputs, with the inputs' shapes and dtypes: `backward` sets the
                                    wanted gradients; NULL adds nothing */
    const bool *wanted;          /**< true for each input that a gradient can flow to */
    void *user;                  /**< the `user` of ls_custom */
} ls_custom_call;

/** A custom operation. ls_custom copies the struct, but not the name. */
typedef struct ls_custom_op {
    const char *name; /**< name in messages and traces; not copied */
    /** Creates the outputs and the saved tensors. May use other operations, which are not recorded. */
    ls_status (*forward)(ls_custom_call *call);
    /**
     * Computes the gradients of the inputs from the gradients of the outputs. NULL means that no gradient flows through
     * the operation. May run more than once (keep_tape), or never.
     */
    ls_status (*backward)(ls_custom_call *call);
    void (*release)(
        void *user); /**< called with `user` when neither the call nor the tape uses it any more; may be NULL */
    int outputs;     /**< number of outputs; 0 selects the default, 1 */
    int saved;       /**< number of tensors in `saved` */
    bool by_sample;  /**< promise for data-parallel losses: the first axis of the outputs, and of each input with
                        samples, is the sample axis, and each result depends only on its own sample and on inputs
                        without samples. Without this promise, ls_backward on several ranks fails if such a loss
                        applies the operation to samples */
    bool on_host; /**< the functions access elements on the host (ls_data_const, ls_data): they get copies on "cpu" of
                     tensors on other devices, and create tensors on "cpu"; results and gradients are copied to the
                     device */
} ls_custom_op;

/**
 * Applies a custom operation. Returns its first output, in the innermost scope. Gradients flow through it.
 *
 * `outputs` has room for all outputs, and may be NULL if there is only one. Borrows the inputs. Takes ownership of
 * `user` if the operation has `release`, even on failure. If `forward` fails, returns NULL with its status and message.
 * If `backward` fails, the backward pass fails with its status and message. Further errors:
 * - LS_ERR_STATE if `forward` leaves an output or a saved tensor NULL,
 * - LS_ERR_SHAPE if a gradient does not have the shape and dtype of its input,
 * - LS_ERR_ARGUMENT if a gradient is not on the device of its input,
 * - LS_ERR_STATE from a backward pass, if an input, an output or a saved tensor was changed in place since the call. A
 *   change to an input that the call has copied (not contiguous, or on another device) does not cause an error.
 */
LS_API ls_tensor *ls_custom(const ls_custom_op *op, ls_tensor *const *inputs, int input_count, void *user,
                            ls_tensor **outputs);

/* ---- functions of one tensor, element by element ----------------------------------------------------------------- */

/*
 * Results have x's shape and dtype. For integer and bool inputs, results are f32, with these exceptions:
 * - ls_neg, ls_abs, ls_square, ls_relu, and ls_clamp with integer limits keep integer dtypes.
 * - For bool, these functions fail with LS_ERR_SHAPE, except ls_relu, which returns i64.
 * - ls_clamp replaces a limit outside the range of an integer dtype with the nearest number of the dtype.
 */

/** Returns -x. */
LS_API ls_tensor *ls_neg(ls_tensor *x);
/** Returns |x|. The gradient at 0 is 0. */
LS_API ls_tensor *ls_abs(ls_tensor *x);
/** Returns the square root, or NaN if x is negative. */
LS_API ls_tensor *ls_sqrt(ls_tensor *x);
/** Returns x * x. */
LS_API ls_tensor *ls_square(ls_tensor *x);
/** Returns e to the power of x. */
LS_API ls_tensor *ls_exp(ls_tensor *x);
/** Returns the natural logarithm. */
LS_API ls_tensor *ls_log(ls_tensor *x);
/** Returns log(1 + x), accurate near 0. */
LS_API ls_tensor *ls_log1p(ls_tensor *x);
/** Returns the sine of x in radians. */
LS_API ls_tensor *ls_sin(ls_tensor *x);
/** Returns the cosine of x in radians. */
LS_API ls_tensor *ls_cos(ls_tensor *x);
/** Returns the hyperbolic tangent. */
LS_API ls_tensor *ls_tanh(ls_tensor *x);
/** Returns the error function. */
LS_API ls_tensor *ls_erf(ls_tensor *x);
/** Returns 1 / (1 + exp(-x)). */
LS_API ls_tensor *ls_sigmoid(ls_tensor *x);
/** Returns max(x, 0). The gradient at 0 is 0. */
LS_API ls_tensor *ls_relu(ls_tensor *x);
/** Returns x if x > 0, otherwise slope * x (Maas et al., ICML 2013 workshop). */
LS_API ls_tensor *ls_leaky_relu(ls_tensor *x, double slope);
/** Returns x if x > 0, otherwise alpha * (exp(x) - 1) (Clevert et al., arXiv 1511.07289). */
LS_API ls_tensor *ls_elu(ls_tensor *x, double alpha);
/**
 * Returns x * Phi(x), with the exact normal distribution function (Hendrycks and Gimpel, arXiv 1606.08415; PyTorch's
 * GELU with approximate="none").
 */
LS_API ls_tensor *ls_gelu(ls_tensor *x);
/**
 * Returns x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), the approximation of ls_gelu in GPT-2 and BERT
 * (PyTorch's GELU with approximate="tanh"; gelu_new of Hugging Face).
 */
LS_API ls_tensor *ls_gelu_tanh(ls_tensor *x);
/** Returns x * sigmoid(x) (Elfwing et al., arXiv 1702.03118). */
LS_API ls_tensor *ls_silu(ls_tensor *x);
/** Returns log(1 + exp(x)). */
LS_API ls_tensor *ls_softplus(ls_tensor *x);
/** Returns min(max(x, low), high). The gradient is 0 at the limits (1 in torch.clamp) and outside them. */
LS_API ls_tensor *ls_clamp(ls_tensor *x, double low, double high);

/**
 * Rounds down to an integer value. Integers keep their value and dtype. The gradient of ls_floor, ls_ceil, ls_round and
 * ls_sign is 0.
 */
LS_API ls_tensor *ls_floor(ls_tensor *x);
/** Rounds up to an integer value. Integers keep their value and dtype. */
LS_API ls_tensor *ls_ceil(ls_tensor *x);
/** Rounds to the nearest integer value; ties round to the even value. Integers keep their value and dtype. */
LS_API ls_tensor *ls_round(ls_tensor *x);
/**
 * Returns -1, 0 or 1 in x's dtype, and 0 for NaN. ls_floor, ls_ceil, ls_round and ls_sign fail with LS_ERR_SHAPE for
 * bool.
 */
LS_API ls_tensor *ls_sign(ls_tensor *x);
/** Returns a bool tensor, which has no gradient: true if x is NaN. */
LS_API ls_tensor *ls_is_nan(ls_tensor *x);
/** Returns a bool tensor, which has no gradient: true if x is neither NaN nor infinite. */
LS_API ls_tensor *ls_is_finite(ls_tensor *x);
/** Returns a bool tensor, which has no gradient: true if x is 0. */
LS_API ls_tensor *ls_logical_not(ls_tensor *x);

/* ---- functions of two tensors, or of a tensor and a number ------------------------------------------------------- */

/*
 * Shapes broadcast: axes are matched from the last one. If sizes differ, one of them must be 1 or missing. ls_sub of
 * two bool tensors fails with LS_ERR_SHAPE.
 *
 * The type of a number on the right determines the dtype of the result, as in PyTorch:
 * - Floating tensors keep their dtype.
 * - With an integer, integer tensors keep their dtype exactly, and bool becomes i64. Fails with LS_ERR_ARGUMENT if the
 *   dtype cannot hold the number, except in ls_div and comparisons. (u8 also accepts -255 to -1, and wraps around;
 *   ls_maximum and ls_minimum treat such a number as 0.)
 * - For ls_pow, an exponent from 0 to 2^53 need not fit into the dtype; a greater exponent must fit. A negative number
 *   as the exponent of an integer tensor fails with LS_ERR_ARGUMENT. If the exponents are an integer tensor, negative
 *   exponents give 0, except for the bases 1 and -1.
 * - With a floating-point number, integers and bool become f32.
 * - ls_div of integers is f32.
 * - The result of comparisons is bool. Comparisons of integer tensors with a number are exact. For a floating-point
 *   tensor, the number is first rounded to the dtype of the tensor (f32 for bf16 and f16).
 */
#define LS_DECLARE_BINARY(name)                                                                                        \
    LS_API ls_tensor *ls_##name##_tensor(ls_tensor *a, ls_tensor *b);                                                  \
    LS_API ls_tensor *ls_##name##_number(ls_tensor *a, double b);                                                      \
    LS_API ls_tensor *ls_##name##_integer(ls_tensor *a, int64_t b);                                                    \
    LS_API ls_tensor *ls_##name##_unsigned(ls_tensor *a, uint64_t b);
LS_DECLARE_BINARY(add)
LS_DECLARE_BINARY(sub)
LS_DECLARE_BINARY(mul)
LS_DECLARE_BINARY(div)
LS_DECLARE_BINARY(pow)
LS_DECLARE_BINARY(maximum)
LS_DECLARE_BINARY(minimum)
LS_DECLARE_BINARY(eq)
LS_DECLARE_BINARY(ne)
LS_DECLARE_BINARY(lt)
LS_DECLARE_BINARY(le)
LS_DECLARE_BINARY(gt)
LS_DECLARE_BINARY(ge)
#undef LS_DECLARE_BINARY

/*
 * Forms with the number on the left, as in ls_sub(1, x), for ls_add, ls_sub, ls_mul, ls_div and ls_pow. The rules are
 * the same.
 */
#define LS_DECLARE_LEFT(name)                                                                                          \
    LS_API ls_tensor *ls_r##name##_number(double a, ls_tensor *b);                                                     \
    LS_API ls_tensor *ls_r##name##_integer(int64_t a, ls_tensor *b);                                                   \
    LS_API ls_tensor *ls_r##name##_unsigned(uint64_t a, ls_tensor *b);
LS_DECLARE_LEFT(add)
LS_DECLARE_LEFT(sub)
LS_DECLARE_LEFT(mul)
LS_DECLARE_LEFT(div)
LS_DECLARE_LEFT(pow)
#undef LS_DECLARE_LEFT

#ifndef __cplusplus
/* Selects the function by the type of the argument: a tensor or a number. Other pointer types do not compile. */
#define LS_FORM(name, of_tensor, number)                                                                               \
    _Generic((number),                                                                                                 \
        ls_tensor *: of_tensor,                                                                                        \
        void *: of_tensor,                                                                                             \
        bool: ls_##name##_integer,                                                                                     \
        char: ls_##name##_integer,                                                                                     \
        signed char: ls_##name##_integer,                                                                              \
        unsigned char: ls_##name##_integer,                                                                            \
        short: ls_##name##_integer,                                                                                    \
        unsigned short: ls_##name##_integer,                                                                           \
        int: ls_##name##_integer,                                                                                      \
        unsigned: ls_##name##_integer,                                                                                 \
        long: ls_##name##_integer,                                                                                     \
        long long: ls_##name##_integer,                                                                                \
        unsigned long: ls_##name##_unsigned,                                                                           \
        unsigned long long: ls_##name##_unsigned,                                                                      \
        default: ls_##name##_number)
#define LS_BINARY(name, a, b)     LS_FORM(name, ls_##name##_tensor, b)((a), (b))
#define LS_ARITHMETIC(name, a, b) LS_FORM(r##name, LS_FORM(name, ls_##name##_tensor, b), a)((a), (b))
#define ls_add(a, b)              LS_ARITHMETIC(add, a, b)
#define ls_sub(a, b)              LS_ARITHMETIC(sub, a, b)
#define ls_mul(a, b)              LS_ARITHMETIC(mul, a, b)
#define ls_div(a, b)              LS_ARITHMETIC(div, a, b)
#define ls_pow(a, b)              LS_ARITHMETIC(pow, a, b)
#define ls_maximum(a, b)          LS_BINARY(maximum, a, b)
#define ls_minimum(a, b)          LS_BINARY(minimum, a, b)
/** Comparisons return a bool tensor, which has no gradient. */
#define ls_eq(a, b) LS_BINARY(eq, a, b)
#define ls_ne(a, b) LS_BINARY(ne, a, b)
#define ls_lt(a, b) LS_BINARY(lt, a, b)
#define ls_le(a, b) LS_BINARY(le, a, b)
#define ls_gt(a, b) LS_BINARY(gt, a, b)
#define ls_ge(a, b) LS_BINARY(ge, a, b)
#endif

/** Returns a bool tensor, which has no gradient: true if both elements are nonzero. The tensors may have any dtypes,
 * and broadcast. */
LS_API ls_tensor *ls_logical_and(ls_tensor *a, ls_tensor *b);
/** Returns a bool tensor as ls_logical_and does: true if at least one element is nonzero. */
LS_API ls_tensor *ls_logical_or(ls_tensor *a, ls_tensor *b);
/** Returns a bool tensor as ls_logical_and does: true if exactly one element is nonzero. */
LS_API ls_tensor *ls_logical_xor(ls_tensor *a, ls_tensor *b);
/** Returns a where `condition` (bool or u8) is nonzero, and b elsewhere. The three tensors broadcast to a common
 * shape. */
LS_API ls_tensor *ls_where(ls_tensor *condition, ls_tensor *a, ls_tensor *b);

/**
 * Returns `value` where `mask` (bool or u8) is nonzero, and x elsewhere. The mask broadcasts to x. The result has x's
 * shape and dtype. Fails with LS_ERR_ARGUMENT if x's dtype is an integer type or bool and cannot represent `value`.
 * Floating-point dtypes round the value: -1e9 is minus infinity in f16.
 */
LS_API ls_tensor *ls_masked_fill(ls_tensor *x, ls_tensor *mask, double value);
/** Returns the lower triangles of x [..., n, m], with 0 where column > row + diagonal. */
LS_API ls_tensor *ls_tril(ls_tensor *x, int64_t diagonal);
/** Returns the upper triangles of x [..., n, m], with 0 where column < row + diagonal. */
LS_API ls_tensor *ls_triu(ls_tensor *x, int64_t diagonal);

/* ---- reductions of all elements, or over axes -------------------------------------------------------------------- */

/*
 * Reductions of all elements return a tensor without dimensions. Reductions over axes (LS_ALL_AXES selects all axes)
 * remove these axes, or keep them with size 1 if `keepdim` is true. They fail with LS_ERR_ARGUMENT if an axis appears
 * twice. Sums and products of integers and bool are i64. Means, variances and norms of integers and bool fail with
 * LS_ERR_SHAPE.
 */

/** Returns the sum of all elements. */
LS_API ls_tensor *ls_sum(ls_tensor *x);
/** Returns the sum over the given axes. */
LS_API ls_tensor *ls_sum_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** Returns the mean of all elements. */
LS_API ls_tensor *ls_mean(ls_tensor *x);
/** Returns the mean over the given axes. */
LS_API ls_tensor *ls_mean_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** Returns the product of all elements. */
LS_API ls_tensor *ls_prod(ls_tensor *x);
/** Returns the product over the given axes. */
LS_API ls_tensor *ls_prod_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/**
 * Returns the maximum of all elements. On a tie, the gradient flows to the first maximum. ls_max, ls_min, ls_argmax and
 * ls_argmin select the first NaN, if there is one, and fail with LS_ERR_SHAPE if there is no element to select.
 */
LS_API ls_tensor *ls_max(ls_tensor *x);
/** Returns the maximum over the given axes. */
LS_API ls_tensor *ls_max_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** Returns the minimum of all elements. On a tie, the gradient flows to the first minimum. */
LS_API ls_tensor *ls_min(ls_tensor *x);
/** Returns the minimum over the given axes. */
LS_API ls_tensor *ls_min_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** Returns the variance: the sum of squared deviations divided by (n - 1), like PyTorch's var. */
LS_API ls_tensor *ls_var(ls_tensor *x);
/**
 * Returns the variance over the given axes: the sum of squared deviations divided by max(n - correction, 0), where n is
 * the number of elements per result. A correction of 1 selects the sample variance, and 0 the population variance. If
 * the divisor is 0, the result is infinite, or NaN if all n elements are equal.
 */
LS_API ls_tensor *ls_var_axes(ls_tensor *x, ls_axes axes, int correction, bool keepdim);
/** Returns the Euclidean norm. */
LS_API ls_tensor *ls_norm(ls_tensor *x);
/**
 * Returns the p-norm over the given axes: (sum |x|^p)^(1/p). INFINITY selects the largest |x|. Fails with
 * LS_ERR_ARGUMENT if p is not positive.
 */
LS_API ls_tensor *ls_norm_axes(ls_tensor *x, double p, ls_axes axes, bool keepdim);
/** Returns the index (i64) of the largest element along `axis`, the first on a tie. */
LS_API ls_tensor *ls_argmax(ls_tensor *x, int axis, bool keepdim);
/** Returns the index (i64) of the smallest element along `axis`, the first on a tie. */
LS_API ls_tensor *ls_argmin(ls_tensor *x, int axis, bool keepdim);
/** Returns cumulative sums along `axis`, with x's shape. Sums of integers and bool are i64. */
LS_API ls_tensor *ls_cumsum(ls_tensor *x, int axis);
/** Returns log(sum(exp(x))) along `axis`, without overflow. Removes the axis unless `keepdim` is true. */
LS_API ls_tensor *ls_logsumexp(ls_tensor *x, int axis, bool keepdim);

/* ---- products ---------------------------------------------------------------------------------------------------- */

/**
 * Returns the matrix product, like NumPy's matmul: [..., n, k] times [..., k, m] is [..., n, m]. Both operands have the
 * same floating-point dtype. Leading dimensions are batches and broadcast. A 1-d operand is a vector; its axis is
 * removed from the result. Transposed views of f32 and f64 are not copied.
 */
LS_API ls_tensor *ls_matmul(ls_tensor *a, ls_tensor *b);
/**
 * Returns x [..., in] times the transpose of weight [out, in], plus bias [out] (may be NULL). The result is [..., out].
 * All tensors have the same floating-point dtype.
 */
LS_API ls_tensor *ls_linear(ls_tensor *x, ls_tensor *weight, ls_tensor *bias);

/**
 * Sums products of `count` operands (1 to 16, of the same floating-point dtype), as PyTorch's and NumPy's einsum do:
 * "ij,jk->ik" is the matrix product.
 *
 * Each axis of each operand has a letter. Letters that are not in the result are summed over. A repeated letter in an
 * operand selects its diagonal. Without "->", the result has the letters that appear once, in alphabetical order,
 * capitals first. Operands are combined from left to right, by matrix products if possible. Fails with LS_ERR_ARGUMENT
 * if the equation is invalid or has an ellipsis, or if an intermediate product has more than LS_MAX_DIMS axes. Fails
 * with LS_ERR_SHAPE if a letter has different sizes (1 does not broadcast).
 */
LS_API ls_tensor *ls_einsum(const char *equation, ls_tensor *const *operands, int count);

/* ---- shapes: views if possible ----------------------------------------------------------------------------------- */

/**
 * Returns the same elements in a different shape with the same number of elements. One size may be -1; it is then
 * computed from the other sizes. Returns a view if the strides allow it, otherwise a copy.
 */
LS_API ls_tensor *ls_reshape(ls_tensor *x, ls_shape shape);
/** Swaps axes `a` and `b`. Returns a view. */
LS_API ls_tensor *ls_transpose(ls_tensor *x, int a, int b);
/** Permutes the axes: axis i of the result is axis axes.axis[i] of x. Each axis appears once. Returns a view. */
LS_API ls_tensor *ls_permute(ls_tensor *x, ls_axes axes);
/**
 * Expands x to `shape`: repeats axes of size 1, and adds new axes in front. A size of -1 leaves an axis unchanged.
 * Returns a view. Fails with LS_ERR_SHAPE if the size of any other axis would change.
 */
LS_API ls_tensor *ls_expand(ls_tensor *x, ls_shape shape);
/**
 * Selects `length` positions along `axis` from `start` (negative: from its end). Returns a view. Fails with
 * LS_ERR_ARGUMENT if a position does not exist.
 */
LS_API ls_tensor *ls_narrow(ls_tensor *x, int axis, int64_t start, int64_t length);
/**
 * Selects the positions start, start + step, ... before `stop` along `axis`. Negative and out-of-range values of
 * `start` and `stop` have the same meaning as in Python. `step` must be positive. Returns a view.
 */
LS_API ls_tensor *ls_slice(ls_tensor *x, int axis, int64_t start, int64_t stop, int64_t step);
/**
 * Selects position `index` (negative: from the end) along `axis`, and removes the axis. Returns a view. Fails with
 * LS_ERR_ARGUMENT if the position does not exist.
 */
LS_API ls_tensor *ls_select(ls_tensor *x, int axis, int64_t index);
/** Merges axes `first` to `last` into one axis. If x has no axes, the result has shape [1]. Returns a view if
 * possible. */
LS_API ls_tensor *ls_flatten(ls_tensor *x, int first, int last);
/** Removes `axis`, which must have size 1. Returns a view. */
LS_API ls_tensor *ls_squeeze(ls_tensor *x, int axis);
/**
 * Inserts an axis of size 1, which becomes axis `axis` of the result: -1 inserts it after the last axis. Returns a
 * view. Fails with LS_ERR_SHAPE if x has LS_MAX_DIMS axes.
 */
LS_API ls_tensor *ls_unsqueeze(ls_tensor *x, int axis);
/**
 * Pads `axis` with `value`: adds `before` positions at the start and `after` positions at the end. Neither number may
 * be negative. Fails with LS_ERR_ARGUMENT if x's dtype is an integer type or bool and cannot represent `value`.
 */
LS_API ls_tensor *ls_pad(ls_tensor *x, int axis, int64_t before, int64_t after, double value);
/** Concatenates one or more tensors along `axis`. Their other sizes must be equal. */
LS_API ls_tensor *ls_concat(ls_tensor *const *tensors, int count, int axis);
/** Stacks one or more tensors of the same shape along a new axis, which becomes axis `axis` of the result. */
LS_API ls_tensor *ls_stack(ls_tensor *const *tensors, int count, int axis);
/**
 * Splits x along `axis` into parts of `size` (the last may be smaller). Stores views of the parts in `parts`. Returns
 * the number of parts, or -1 on failure. Fails with LS_ERR_ARGUMENT if there are more than `capacity` parts.
 */
LS_API int ls_split(ls_tensor *x, int axis, int64_t size, ls_tensor **parts, int capacity);
/**
 * Returns result[i][j] = x[index[i][j]][j] for axis 0, and so on (PyTorch's gather, NumPy's take_along_axis). `index`
 * (i64 or i32) has as many axes as x. Only its size along `axis` may be larger than x's. The result has the shape of
 * `index`. ls_take_along_axis, ls_index_select and ls_embedding fail with LS_ERR_ARGUMENT if an index is out of range.
 */
LS_API ls_tensor *ls_take_along_axis(ls_tensor *x, int axis, ls_tensor *index);
/** Selects the positions in `index` (1-d, i64 or i32) along `axis`. The axis gets the size of `index`. */
LS_API ls_tensor *ls_index_select(ls_tensor *x, int axis, ls_tensor *index);
/** Selects rows of weight [n, width] by index (any shape, i64 or i32). Returns [..., width]. */
LS_API ls_tensor *ls_embedding(ls_tensor *weight, ls_tensor *index);

/**
 * Reverses the order of the positions along the given axes (LS_ALL_AXES selects all axes). If the first axis counts the
 * samples of ls_data_parallel, positions in ls_flip, ls_roll, ls_tril and ls_triu are relative to this rank's share.
 */
LS_API ls_tensor *ls_flip(ls_tensor *x, ls_axes axes);
/** Rolls x along `axis`: position i moves to (i + shift) modulo the size. */
LS_API ls_tensor *ls_roll(ls_tensor *x, int64_t shift, int axis);
/**
 * Repeats x times.size[i] times along axis i. If `times` has more numbers than x has axes, the first numbers apply to
 * new axes in front (PyTorch's Tensor.repeat, NumPy's tile).
 */
LS_API ls_tensor *ls_repeat(ls_tensor *x, ls_shape times);

/* ---- order along an axis ----------------------------------------------------------------------------------------- */

/*
 * Sorting is stable, and NaN counts as the largest, as in PyTorch's stable sort. The gradient of a value flows to its
 * original position. If `indices` is not NULL, it receives the original positions along the axis (i64).
 */

/** Returns the elements of x in ascending or descending order along `axis`. */
LS_API ls_tensor *ls_sort(ls_tensor *x, int axis, bool descending, ls_tensor **indices);
/** Returns the original positions (i64) of the elements that ls_sort returns. */
LS_API ls_tensor *ls_argsort(ls_tensor *x, int axis, bool descending);
/**
 * Returns the k largest elements along `axis` in descending order, or the k smallest in ascending order. The axis gets
 * size k. Fails with LS_ERR_ARGUMENT if k is negative or larger than the axis.
 */
LS_API ls_tensor *ls_top_k(ls_tensor *x, int64_t k, int axis, bool smallest, ls_tensor **indices);

/* ---- copies and types -------------------------------------------------------------------------------------------- */

/** Returns a view of x if x is contiguous, otherwise a dense copy. */
LS_API ls_tensor *ls_contiguous(ls_tensor *x);
/** Returns a dense copy. */
LS_API ls_tensor *ls_clone(ls_tensor *x);
/** Returns a tensor with the same memory, but without history: no gradient flows through it. */
LS_API ls_tensor *ls_detach(ls_tensor *x);
/**
 * Converts x to `dtype`, and converts the gradient back. Integers have no gradient. Returns a view if x already has
 * this dtype. Fails with LS_ERR_ARGUMENT if `dtype` is not a dtype.
 *
 * Conversion of floats to integers truncates towards zero. Values out of range become the nearest limit, and NaN
 * becomes 0. Conversion between integer dtypes wraps around. Conversion to bool makes 0 false, and everything else
 * true, including NaN.
 */
LS_API ls_tensor *ls_to(ls_tensor *x, ls_dtype dtype);
/**
 * Copies x to the device with this name (ls_use_device), and copies the gradient back. Returns a view of x if it is
 * already there. ls_to_device (nn.h) selects this function or ls_module_to_device. Fails as ls_use_device does.
 */
LS_API ls_tensor *ls_tensor_to_device(ls_tensor *x, const char *device);

/* ---- softmax, dropout and normalization -------------------------------------------------------------------------- */

/**
 * Returns exp(x) / sum(exp(x)) along `axis`, without overflow, with x's shape. x must be floating-point in all
 * functions of this section.
 */
LS_API ls_tensor *ls_softmax(ls_tensor *x, int axis);
/** Returns x - log(sum(exp(x))) along `axis`, without overflow, with x's shape. */
LS_API ls_tensor *ls_log_softmax(ls_tensor *x, int axis);
/**
 * Zeroes each element with probability p (0 to 1) and divides the others by (1 - p) (Srivastava et al., JMLR 15, 2014).
 * Uses the next stream of the generator (ls_seed). In ls_data_parallel on several ranks, the random numbers of a sample
 * are derived from its index in the global batch, so the size of x's first axis must be a multiple of the number of
 * samples (otherwise LS_ERR_UNSUPPORTED).
 */
LS_API ls_tensor *ls_dropout(ls_tensor *x, double p);
/**
 * Returns (x - mean) / sqrt(var + epsilon) * weight + bias over the last `axes` axes, with x's shape (Ba et al., arXiv
 * 1607.06450). Weight and bias have the sizes of these axes and x's dtype. Either may be NULL. If `axes` is 0, weight
 * or bias determines the number of axes. `epsilon` must not be negative.
 */
LS_API ls_tensor *ls_layer_norm(ls_tensor *x, int axes, ls_tensor *weight, ls_tensor *bias, double epsilon);
/**
 * Returns x / sqrt(mean(x^2) + epsilon) * weight over the last `axes` axes, with x's shape (Zhang and Sennrich, arXiv
 * 1910.07467). See ls_layer_norm for `axes`, `weight` and `epsilon`.
 */
LS_API ls_tensor *ls_rms_norm(ls_tensor *x, int axes, ls_tensor *weight, double epsilon);
/**
 * Returns (x - mean) / sqrt(var + epsilon) * weight + bias for each sample and each of `groups` groups of neighboring
 * channels of x [n, channels, ...], with x's shape (Wu and He, arXiv 1803.08494). With one channel per group, this is
 * instance normalization (Ulyanov et al., arXiv 1607.08022). Weight and bias are [channels], of x's dtype. Either may
 * be NULL. Fails with LS_ERR_SHAPE if the number of channels is not a multiple of `groups`.
 */
LS_API ls_tensor *ls_group_norm(ls_tensor *x, int64_t groups, ls_tensor *weight, ls_tensor *bias, double epsilon);
/**
 * Normalizes each channel of x [n, channels, ...] (Ioffe and Szegedy, arXiv 1502.03167; PyTorch's BatchNorm). The
 * result has x's shape. All other tensors are [channels].
 * - In training, it uses the mean and the (biased) variance of the batch (in ls_data_parallel, of the global batch).
 *   running_mean and running_var (may be NULL) move towards the batch's mean and unbiased variance by `momentum`.
 * - Otherwise it uses running_mean and running_var.
 * - weight and bias may be NULL. `epsilon` must not be negative.
 * - For x of bf16 or f16, the running statistics are f32, and weight and bias are f32 or of x's dtype.
 *
 * Fails with LS_ERR_SHAPE in training if a channel has only one value in the batch. Fails with LS_ERR_ARGUMENT if the
 * running statistics are missing outside training, or if only one of them is given.
 */
LS_API ls_tensor *ls_batch_norm(ls_tensor *x, ls_tensor *running_mean, ls_tensor *running_var, ls_tensor *weight,
                                ls_tensor *bias, bool training, double momentum, double epsilon);

/**
 * Returns length * direction / |direction| for each position of the first axis (Salimans and Kingma, arXiv 1602.07868;
 * PyTorch's weight_norm with dim=0). The result has the shape of `direction` [n, ...]. |direction| is the Euclidean
 * norm over all other axes. `length` is [n, 1, ...]. bf16 and f16 are computed in f32, and the result is rounded once.
 * If all elements of a position are 0, the result is NaN there. Fails with LS_ERR_SHAPE if `direction` has fewer than
 * two axes.
 */
LS_API ls_tensor *ls_weight_norm(ls_tensor *direction, ls_tensor *length);

#ifdef __cplusplus
}

#define LS_AS_number(value)   static_cast<double>(value)
#define LS_AS_integer(value)  static_cast<int64_t>(value)
#define LS_AS_unsigned(value) static_cast<uint64_t>(value)
#define LS_OVERLOAD(name, form, type)                                                                                  \
    static inline ls_tensor *ls_##name(ls_tensor *a, type b) {                                                         \
        return ls_##name##_##form(a, LS_AS_##form(b));                                                                 \
    }
#define LS_OVERLOAD_BINARY(name)                                                                                       \
    static inline ls_tensor *ls_##name(ls_tensor *a, ls_tensor *b) {                                                   \
        return ls_##name##_tensor(a, b);                                                                               \
    }                                                                                                                  \
    LS_OVERLOAD(name, number, double)                                                                                  \
    LS_OVERLOAD(name, number, long double)                                                                             \
    LS_OVERLOAD(name, integer, int)                                                                                    \
    LS_OVERLOAD(name, integer, unsigned)                                                                               \
    LS_OVERLOAD(name, integer, long)                                                                                   \
    LS_OVERLOAD(name, integer, long long)                                                                              \
    LS_OVERLOAD(name, unsigned, unsigned long)                                                                         \
    LS_OVERLOAD(name, unsigned, unsigned long long)
LS_OVERLOAD_BINARY(add)
LS_OVERLOAD_BINARY(sub)
LS_OVERLOAD_BINARY(mul)
LS_OVERLOAD_BINARY(div)
LS_OVERLOAD_BINARY(pow)
LS_OVERLOAD_BINARY(maximum)
LS_OVERLOAD_BINARY(minimum)
LS_OVERLOAD_BINARY(eq)
LS_OVERLOAD_BINARY(ne)
LS_OVERLOAD_BINARY(lt)
LS_OVERLOAD_BINARY(le)
LS_OVERLOAD_BINARY(gt)
LS_OVERLOAD_BINARY(ge)
#undef LS_OVERLOAD_BINARY
#undef LS_OVERLOAD
#define LS_OVERLOAD(name, form, type)                                                                                  \
    static inline ls_tensor *ls_##name(type a, ls_tensor *b) {                                                         \
        return ls_r##name##_##form(LS_AS_##form(a), b);                                                                \
    }
#define LS_OVERLOAD_LEFT(name)                                                                                         \
    LS_OVERLOAD(name, number, double)                                                                                  \
    LS_OVERLOAD(name, number, long double)                                                                             \
    LS_OVERLOAD(name, integer, int)                                                                                    \
    LS_OVERLOAD(name, integer, unsigned)                                                                               \
    LS_OVERLOAD(name, integer, long)                                                                                   \
    LS_OVERLOAD(name, integer, long long)                                                                              \
    LS_OVERLOAD(name, unsigned, unsigned long)                                                                         \
    LS_OVERLOAD(name, unsigned, unsigned long long)
LS_OVERLOAD_LEFT(add)
LS_OVERLOAD_LEFT(sub)
LS_OVERLOAD_LEFT(mul)
LS_OVERLOAD_LEFT(div)
LS_OVERLOAD_LEFT(pow)
#undef LS_OVERLOAD_LEFT
#undef LS_OVERLOAD
#undef LS_AS_number
#undef LS_AS_integer
#undef LS_AS_unsigned
#endif

#endif
