/**
 * @file autograd.h
 * Operations on tensors and their gradients. Every operation takes NULL and returns NULL, so an expression is written
 * without checks and checked once, at ls_scope_end or by its result. Shapes broadcast as in NumPy; results of mixed
 * dtypes follow PyTorch (a number never changes a floating tensor's dtype). Axes may be negative.
 *
 * Errors: LS_ERR_SHAPE where shapes or dtypes do not fit the operation or each other, LS_ERR_ARGUMENT for an axis that
 * is not there, a NULL that no earlier failure explains and another value that cannot be, LS_ERR_STATE for a tensor
 * that is gone, LS_ERR_MEMORY. What is said of an operation below is beside that.
 */
#ifndef LOCKSTEP_AUTOGRAD_H
#define LOCKSTEP_AUTOGRAD_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gradients ------------------------------------------------------------------------------------------------ */

/** Marks a leaf (a floating tensor that no operation made) as wanting a gradient, or no longer. LS_ERR_ARGUMENT for one
 * that is not floating, LS_ERR_STATE for the result of an operation on what wants one. */
LS_API ls_status ls_set_requires_grad(ls_tensor *tensor, bool requires_grad);
/** Whether a gradient can flow to the tensor. */
LS_API bool ls_requires_grad(const ls_tensor *tensor);
/**
 * The gradient of a leaf, lent: it has the leaf's shape and dtype and changes with the next backward pass. NULL before
 * there is one. There are no gradients of gradients: ls_backward is LS_ERR_UNSUPPORTED where it comes to an operation
 * on a gradient that depends on leaves' values, or on what was computed from one while operations are recorded.
 * ls_detach makes a constant of either.
 */
LS_API ls_tensor *ls_grad(const ls_tensor *tensor);
/** Forgets a leaf's gradient: ls_grad gives NULL until the next backward pass. */
LS_API void ls_zero_grad(ls_tensor *tensor);

/**
 * Adds the gradient of `loss` (one floating number) to the gradient of every leaf it depends on, walking the tape
 * backwards once; the part of the tape that was walked is then used up. LS_ERR_SHAPE for a loss of more elements,
 * LS_ERR_STATE for one that depends on no leaf, whose tape is used up, or whose operations saved what was changed in
 * place since.
 *
 * If a data-parallel module (ls_data_parallel) or a communication of parallel.h is on the tape, the call is collective.
 * Every rank then calls ls_backward, even if its `loss` is NULL because an earlier operation failed: the call gives the
 * other ranks the cause. They get LS_ERR_MISMATCH, which names the failed rank and has its message. After a
 * data-parallel module, LS_ERR_MISMATCH also means that the losses or the frozen parameters of the ranks differ, and
 * LS_ERR_UNSUPPORTED that the loss combines the samples of one rank in a way that is wrong on several ranks.
 */
LS_API ls_status ls_backward(ls_tensor *loss) LS_WARN_UNUSED;

/** How to walk backwards; zero fields mean what ls_backward does. */
typedef struct ls_backward_options {
    ls_tensor
        *gradient; /**< the gradient of the output to begin with, of its shape; NULL: 1, for an output of one element */
    bool keep_tape; /**< leave the tape as it is, so that it can be walked again */
} ls_backward_options;

/** ls_backward with options (may be NULL), of an output of any shape. LS_ERR_SHAPE where the gradient has another shape
 * or dtype. */
LS_API ls_status ls_backward_with(ls_tensor *output, const ls_backward_options *options) LS_WARN_UNUSED;

/**
 * Switches recording on this thread: while `on` is true, operations record nothing for the backward pass. Returns the
 * state before the call. ls_scope_end restores the state at ls_scope_begin.
 */
LS_API bool ls_no_grad(bool on);

/**
 * Mixed precision: from here on, operations of this thread make products of f32 in bf16 (or f16), as PyTorch's
 * torch.autocast("cpu", torch.bfloat16) has them made, until it is given LS_F32. The operands of ls_linear, ls_matmul,
 * ls_conv, ls_conv_transpose and ls_attention count as rounded to bf16, those of their gradients too, wherever the
 * backward pass runs; sums are made in f32, and results are f32, where PyTorch's are rounded to bf16. Nothing else
 * changes: parameters, gradients, losses, softmax, norms and reductions are f32, and f64 stays f64. Returns the dtype
 * before the call. ls_scope_end restores the dtype at ls_scope_begin:
 *
 * ```c
 * ls_dtype before = ls_autocast(LS_BF16);
 * ls_tensor *loss = ls_cross_entropy(ls_forward(model, x), target, NULL);
 * (void)ls_autocast(before);
 * ls_status status = ls_backward(loss);
 * ```
 *
 * It is faster where the processor is fast in bf16 (Intel's AMX, AMD's from Zen 4) and oneDNN is here; elsewhere, and
 * in f16, the same values take somewhat longer than f32, which is logged once for each (as a warning). f16 has three
 * bits more than bf16 and a much smaller range, in which small gradients would be lost: scale the loss (ls_grad_scaler,
 * optim.h). Other dtypes are LS_ERR_ARGUMENT, noted in the scope, and change nothing.
 */
LS_API ls_dtype ls_autocast(ls_dtype dtype);

/** Called with a leaf whose gradient of the present backward pass is complete; it may change ls_grad(leaf) in place. */
typedef ls_status (*ls_grad_hook)(ls_tensor *leaf, void *user);

/** Calls `hook` in every backward pass that reaches the leaf; a failure ends the pass with its status. LS_ERR_ARGUMENT
 * for a tensor that is no leaf which wants a gradient. */
LS_API ls_status ls_add_grad_hook(ls_tensor *leaf, ls_grad_hook hook, void *user) LS_WARN_UNUSED;

/** A function of tensors to be checked; its result may have any shape. */
typedef ls_tensor *(*ls_function)(ls_tensor **inputs, int count, void *user);

/** Tolerances of ls_gradcheck; zero fields mean the defaults, which are for f64. */
typedef struct ls_gradcheck_options {
    double step;     /**< of the central difference; 0: 1e-6 */
    double absolute; /**< 0: 1e-5 */
    double relative; /**< 0: 1e-3 */
} ls_gradcheck_options;

/**
 * Compares the gradients of sum(w * function(inputs)), for a fixed random w, with central differences, for every
 * element of every input (f64) that requires one. LS_ERR_MISMATCH names the input, the element and both values.
 * `options` may be NULL.
 */
LS_API ls_status ls_gradcheck(ls_function function, ls_tensor **inputs, int count, void *user,
                              const ls_gradcheck_options *options) LS_WARN_UNUSED;

/* ---- operations of your own ------------------------------------------------------------------------------------ */

/** What the functions of an operation of your own are given. All of it is lent. */
typedef struct ls_custom_call {
    ls_tensor *const *inputs; /**< those of the call; contiguous: ls_data_const gives their elements */
    int input_count;
    ls_tensor **outputs;                /**< `forward` makes them, in its innermost scope; `backward` reads them */
    ls_tensor **saved;                  /**< what `forward` makes for `backward` */
    ls_tensor *const *output_gradients; /**< in `backward`: of the outputs, contiguous; zeros where none came */
    ls_tensor **input_gradients; /**< `backward` makes those that are wanted, of the inputs' shapes and dtypes; what it
                                    leaves NULL is zero */
    const bool *wanted;          /**< of each input: whether a gradient can flow to it */
    void *user;                  /**< of ls_custom */
} ls_custom_call;

/** An operation of your own; zero fields mean what their comments say. It is copied, but for the name. */
typedef struct ls_custom_op {
    const char *name; /**< for messages and time lines; not copied */
    /** Makes the outputs and saved tensors. Nothing is recorded in it; other operations may be used. */
    ls_status (*forward)(ls_custom_call *call);
    /** Makes the gradients of the inputs from those of the outputs; NULL: there are none. May run more than once
     * (keep_tape), and not at all. */
    ls_status (*backward)(ls_custom_call *call);
    void (*release)(void *user); /**< NULL, or called with `user` when the call and its nodes are done with it */
    int outputs;                 /**< how many; 0: 1 */
    int saved;                   /**< how many tensors `forward` leaves in `saved` */
    bool by_sample; /**< the first axis of the outputs, and of each input that has samples, counts them, and one
                       sample's result is made of that sample and of inputs without any; else a data-parallel loss
                       refuses the operation on samples */
    bool on_host; /**< the functions read and write elements (ls_data_const, ls_data): they get copies on "cpu" of what
                     is on another device, what they make is there, and results and gradients go back to the device */
} ls_custom_op;

/**
 * Applies it: a result like that of any operation, in the innermost scope, which gradients flow through. Returns the
 * first output; `outputs` has room for all of them, and may be NULL where there is one. Lends `op` and the inputs, and
 * takes `user` over where the operation has `release`, on failure too. A failure of either function ends the call
 * (NULL), or the backward pass, with its status and message. LS_ERR_STATE where `forward` leaves an output or a saved
 * tensor NULL, LS_ERR_SHAPE where a gradient has another shape or dtype than its input,
 * LS_ERR_ARGUMENT where it is on another device, and LS_ERR_STATE from a
 * backward pass that finds an input, an output or a saved tensor changed in place since.
 */
LS_API ls_tensor *ls_custom(const ls_custom_op *op, ls_tensor *const *inputs, int input_count, void *user,
                            ls_tensor **outputs);

/* ---- of one tensor, element by element ------------------------------------------------------------------------- */

/*
 * Results have x's shape and dtype; of integers and bool they are f32, but for ls_neg, ls_abs, ls_square, ls_relu and
 * ls_clamp (with whole numbers), which integers keep; of those all but ls_relu are LS_ERR_SHAPE for bool.
 */

/** -x. */
LS_API ls_tensor *ls_neg(ls_tensor *x);
/** |x|; the gradient at 0 is 0. */
LS_API ls_tensor *ls_abs(ls_tensor *x);
/** The square root; NaN below 0. */
LS_API ls_tensor *ls_sqrt(ls_tensor *x);
/** x * x. */
LS_API ls_tensor *ls_square(ls_tensor *x);
/** e to the x. */
LS_API ls_tensor *ls_exp(ls_tensor *x);
/** The natural logarithm. */
LS_API ls_tensor *ls_log(ls_tensor *x);
/** log(1 + x), exact near 0. */
LS_API ls_tensor *ls_log1p(ls_tensor *x);
/** The sine of x in radians. */
LS_API ls_tensor *ls_sin(ls_tensor *x);
/** The cosine of x in radians. */
LS_API ls_tensor *ls_cos(ls_tensor *x);
/** The hyperbolic tangent. */
LS_API ls_tensor *ls_tanh(ls_tensor *x);
/** The error function. */
LS_API ls_tensor *ls_erf(ls_tensor *x);
/** 1 / (1 + exp(-x)). */
LS_API ls_tensor *ls_sigmoid(ls_tensor *x);
/** max(x, 0); the gradient at 0 is 0. */
LS_API ls_tensor *ls_relu(ls_tensor *x);
/** x where x > 0, else slope * x (Maas et al., ICML 2013 workshop). */
LS_API ls_tensor *ls_leaky_relu(ls_tensor *x, double slope);
/** x where x > 0, else alpha * (exp(x) - 1) (Clevert et al., arXiv 1511.07289). */
LS_API ls_tensor *ls_elu(ls_tensor *x, double alpha);
/** x * Phi(x), with the exact normal distribution function (Hendrycks and Gimpel, arXiv 1606.08415; PyTorch's GELU with
 * approximate="none"). */
LS_API ls_tensor *ls_gelu(ls_tensor *x);
/** x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), the approximation of ls_gelu in GPT-2 and BERT (PyTorch's
 * GELU with approximate="tanh"; gelu_new of Hugging Face). */
LS_API ls_tensor *ls_gelu_tanh(ls_tensor *x);
/** x * sigmoid(x) (Elfwing et al., arXiv 1702.03118). */
LS_API ls_tensor *ls_silu(ls_tensor *x);
/** log(1 + exp(x)). */
LS_API ls_tensor *ls_softplus(ls_tensor *x);
/** min(max(x, low), high). The gradient is 0 at the limits and outside, as in PyTorch. */
LS_API ls_tensor *ls_clamp(ls_tensor *x, double low, double high);

/** The largest whole number that is not above x; integers stay. The gradient of this and the next three is 0. */
LS_API ls_tensor *ls_floor(ls_tensor *x);
/** The smallest whole number that is not below x; integers stay. */
LS_API ls_tensor *ls_ceil(ls_tensor *x);
/** The nearest whole number, of two equally near the even one; integers stay. */
LS_API ls_tensor *ls_round(ls_tensor *x);
/** -1, 0 or 1, in x's dtype; of NaN 0. LS_ERR_SHAPE for bool, as the three above. */
LS_API ls_tensor *ls_sign(ls_tensor *x);
/** Whether x is NaN: bool, without gradient. */
LS_API ls_tensor *ls_is_nan(ls_tensor *x);
/** Whether x is neither NaN nor infinite: bool, without gradient. */
LS_API ls_tensor *ls_is_finite(ls_tensor *x);
/** Whether x is 0: bool, without gradient. */
LS_API ls_tensor *ls_logical_not(ls_tensor *x);

/* ---- of two tensors, or a tensor and a number ------------------------------------------------------------------ */

/*
 * Shapes broadcast: axes are matched from the last on, and where sizes differ one of them is 1 or missing. ls_sub of
 * two bool tensors is LS_ERR_SHAPE.
 *
 * The dtype of a result with a number on the right goes by the number's type, as in PyTorch:
 *   - floating tensors keep theirs;
 *   - an integer keeps that of an integer tensor, exactly, and makes i64 of bool. One that the dtype does not hold is
 *     LS_ERR_ARGUMENT (u8 takes -255 to -1 too, and wraps around);
 *   - a floating number makes f32 of integers and bool;
 *   - ls_div of integers is f32, and comparisons, which are exact, are bool.
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

/* With the number on the left, ls_sub(1, x), for ls_add, ls_sub, ls_mul, ls_div and ls_pow; the same rules. */
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
/* The form for a number of that type, or a tensor. Pointers to anything else do not compile. */
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
/** Comparisons give a tensor of dtype bool, without gradient. */
#define ls_eq(a, b) LS_BINARY(eq, a, b)
#define ls_ne(a, b) LS_BINARY(ne, a, b)
#define ls_lt(a, b) LS_BINARY(lt, a, b)
#define ls_le(a, b) LS_BINARY(le, a, b)
#define ls_gt(a, b) LS_BINARY(gt, a, b)
#define ls_ge(a, b) LS_BINARY(ge, a, b)
#endif

/** Whether both are not 0, of tensors of any dtypes that broadcast: bool, without gradient. */
LS_API ls_tensor *ls_logical_and(ls_tensor *a, ls_tensor *b);
/** Whether one of them is not 0, or both. */
LS_API ls_tensor *ls_logical_or(ls_tensor *a, ls_tensor *b);
/** Whether one of them is not 0, and the other is. */
LS_API ls_tensor *ls_logical_xor(ls_tensor *a, ls_tensor *b);
/** a where condition (bool or u8) is not zero, else b. The three broadcast to one shape. */
LS_API ls_tensor *ls_where(ls_tensor *condition, ls_tensor *a, ls_tensor *b);

/** `value` where mask (bool or u8) is not zero, else x; the mask broadcasts to x, whose shape and dtype the result has.
 * LS_ERR_ARGUMENT for a value that x's dtype does not hold. */
LS_API ls_tensor *ls_masked_fill(ls_tensor *x, ls_tensor *mask, double value);
/** The lower triangles of x [..., n, m]: 0 where column > row + diagonal. */
LS_API ls_tensor *ls_tril(ls_tensor *x, int64_t diagonal);
/** The upper triangles of x [..., n, m]: 0 where column < row + diagonal. */
LS_API ls_tensor *ls_triu(ls_tensor *x, int64_t diagonal);

/* ---- reductions: of everything, or over axes ------------------------------------------------------------------- */

/*
 * Without axes the result has no dimensions; over axes (LS_ALL_AXES: all) those go away, or keep size 1 with `keepdim`.
 * LS_ERR_ARGUMENT for an axis that is named twice. Sums and products of integers and bool are i64; means, variances and
 * norms of them are LS_ERR_SHAPE.
 */

/** The sum of all elements. */
LS_API ls_tensor *ls_sum(ls_tensor *x);
/** Sums over axes. */
LS_API ls_tensor *ls_sum_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** The mean of all elements. */
LS_API ls_tensor *ls_mean(ls_tensor *x);
/** Means over axes. */
LS_API ls_tensor *ls_mean_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** The product of all elements. */
LS_API ls_tensor *ls_prod(ls_tensor *x);
/** Products over axes. */
LS_API ls_tensor *ls_prod_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** The largest element; its gradient goes to the first of equals. LS_ERR_SHAPE of none, also below. */
LS_API ls_tensor *ls_max(ls_tensor *x);
/** The largest over axes. */
LS_API ls_tensor *ls_max_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** The smallest element; its gradient goes to the first of equals. */
LS_API ls_tensor *ls_min(ls_tensor *x);
/** The smallest over axes. */
LS_API ls_tensor *ls_min_axes(ls_tensor *x, ls_axes axes, bool keepdim);
/** The variance: the sum of squared deviations over (n - 1), as PyTorch's var. */
LS_API ls_tensor *ls_var(ls_tensor *x);
/** The same over axes, divided by (n - correction). */
LS_API ls_tensor *ls_var_axes(ls_tensor *x, ls_axes axes, int correction, bool keepdim);
/** The Euclidean norm. */
LS_API ls_tensor *ls_norm(ls_tensor *x);
/** The p-norm over axes: (sum |x|^p)^(1/p), for p > 0 (else LS_ERR_ARGUMENT); INFINITY is the largest |x|. */
LS_API ls_tensor *ls_norm_axes(ls_tensor *x, double p, ls_axes axes, bool keepdim);
/** The index (i64) of the largest element along `axis`, the first of equals. */
LS_API ls_tensor *ls_argmax(ls_tensor *x, int axis, bool keepdim);
/** The index (i64) of the smallest element along `axis`, the first of equals. */
LS_API ls_tensor *ls_argmin(ls_tensor *x, int axis, bool keepdim);
/** Running sums along `axis`: x's shape; i64 of integers and bool. */
LS_API ls_tensor *ls_cumsum(ls_tensor *x, int axis);
/** log(sum(exp(x))) along `axis`, which goes away unless `keepdim`, without overflow. */
LS_API ls_tensor *ls_logsumexp(ls_tensor *x, int axis, bool keepdim);

/* ---- products ------------------------------------------------------------------------------------------------- */

/** Matrix product as NumPy's matmul: [..., n, k] times [..., k, m] is [..., n, m]; 1-d operands are vectors, whose axis
 * goes away; leading dimensions are batches and broadcast; transposed views are used without a copy. Both are of one
 * floating dtype. */
LS_API ls_tensor *ls_matmul(ls_tensor *a, ls_tensor *b);
/** x [..., in] times weight [out, in] transposed, plus bias [out] (may be NULL): [..., out]. All of one floating
 * dtype. */
LS_API ls_tensor *ls_linear(ls_tensor *x, ls_tensor *weight, ls_tensor *bias);

/**
 * Sums over products by letters, as PyTorch's and NumPy's einsum: "ij,jk->ik" is the matrix product. Each axis of each
 * of the `count` operands (1 to 16, of one floating dtype) has a letter; those that the result does not name are summed
 * over; one that an operand has twice is its diagonal. Without "->" the result has the letters that are there once, in
 * alphabetical order, capitals first. Operands are taken in from left to right, by matrix products. LS_ERR_ARGUMENT for
 * an equation that is none, also one with an ellipsis; LS_ERR_SHAPE where a letter has two sizes (1 does not
 * broadcast).
 */
LS_API ls_tensor *ls_einsum(const char *equation, ls_tensor *const *operands, int count);

/* ---- shape: views where they can be ---------------------------------------------------------------------------- */

/** The same elements in another shape of as many; one size may be -1, what is left. A view when the strides allow, else
 * a copy. */
LS_API ls_tensor *ls_reshape(ls_tensor *x, ls_shape shape);
/** Axes `a` and `b` swapped; a view. */
LS_API ls_tensor *ls_transpose(ls_tensor *x, int a, int b);
/** Axis i of the result is axis axes.axis[i] of x; each is named once; a view. */
LS_API ls_tensor *ls_permute(ls_tensor *x, ls_axes axes);
/** Repeats axes of size 1 (and new ones in front) to `shape`, where -1 leaves a size as it is; a view. LS_ERR_SHAPE
 * where another size would change. */
LS_API ls_tensor *ls_expand(ls_tensor *x, ls_shape shape);
/** `length` positions along `axis` from `start` (negative: from its end), all of them there (else LS_ERR_ARGUMENT); a
 * view. */
LS_API ls_tensor *ls_narrow(ls_tensor *x, int axis, int64_t start, int64_t length);
/** Positions start, start + step, ... below stop along `axis`, with Python's meaning of negative and overlong ends;
 * step > 0; a view. */
LS_API ls_tensor *ls_slice(ls_tensor *x, int axis, int64_t start, int64_t stop, int64_t step);
/** Position `index` (negative: from the end) along `axis`, which goes away; a view. LS_ERR_ARGUMENT when it is not
 * there. */
LS_API ls_tensor *ls_select(ls_tensor *x, int axis, int64_t index);
/** Axes first to last made one, of as many positions; of no axes, [1]; a view where it can be. */
LS_API ls_tensor *ls_flatten(ls_tensor *x, int first, int last);
/** Removes `axis`, which must have size 1; a view. */
LS_API ls_tensor *ls_squeeze(ls_tensor *x, int axis);
/** A new axis of size 1 before `axis` (-1: behind the last); a view. LS_ERR_SHAPE when x has LS_MAX_DIMS already. */
LS_API ls_tensor *ls_unsqueeze(ls_tensor *x, int axis);
/** Adds `before` and `after` positions (not negative) of `value` along `axis`. */
LS_API ls_tensor *ls_pad(ls_tensor *x, int axis, int64_t before, int64_t after, double value);
/** The tensors one after the other along `axis`; their other sizes are equal, and there is one or more. */
LS_API ls_tensor *ls_concat(ls_tensor *const *tensors, int count, int axis);
/** The tensors, one or more of one shape, along a new axis before `axis`. */
LS_API ls_tensor *ls_stack(ls_tensor *const *tensors, int count, int axis);
/** Cuts x along `axis` into parts of `size` (the last may be smaller) and stores them, views, in `parts`, which has
 * room for `capacity` (else LS_ERR_ARGUMENT). Returns how many there are, -1 on failure. */
LS_API int ls_split(ls_tensor *x, int axis, int64_t size, ls_tensor **parts, int capacity);
/** result[i][j] = x[index[i][j]][j] for axis 0, and so on: PyTorch's gather, NumPy's take_along_axis. The result has
 * the shape of `index` (i64 or i32), which has as many axes as x and is no larger but along `axis`. LS_ERR_ARGUMENT for
 * an index that is not there, here and below. */
LS_API ls_tensor *ls_take_along_axis(ls_tensor *x, int axis, ls_tensor *index);
/** The positions `index` (1-d, i64 or i32) along `axis`, which gets its size. */
LS_API ls_tensor *ls_index_select(ls_tensor *x, int axis, ls_tensor *index);
/** Rows of weight [n, width] by index (any shape, i64 or i32): [..., width]. */
LS_API ls_tensor *ls_embedding(ls_tensor *weight, ls_tensor *index);

/** The positions along these axes (LS_ALL_AXES: all) in reverse. Where the first axis counts the samples of
 * ls_data_parallel these are places in this rank's share; in ls_roll, ls_tril and ls_triu, too. */
LS_API ls_tensor *ls_flip(ls_tensor *x, ls_axes axes);
/** Position i along `axis` comes to (i + shift) modulo the size. */
LS_API ls_tensor *ls_roll(ls_tensor *x, int64_t shift, int axis);
/** x times.size[i] times one after the other along axis i: a number for each axis, and before them for new ones in
 * front (PyTorch's Tensor.repeat, NumPy's tile). */
LS_API ls_tensor *ls_repeat(ls_tensor *x, ls_shape times);

/* ---- order along an axis --------------------------------------------------------------------------------------- */

/*
 * Equal elements stay in their order, and NaN counts as the largest, as PyTorch's stable sort has it. The gradient of a
 * value goes to the place that it came from. `indices`, where it is not NULL, gets their positions along the axis
 * (i64).
 */

/** x's elements in order along `axis`, the smallest first, or the largest. */
LS_API ls_tensor *ls_sort(ls_tensor *x, int axis, bool descending, ls_tensor **indices);
/** The positions (i64) that ls_sort takes them from. */
LS_API ls_tensor *ls_argsort(ls_tensor *x, int axis, bool descending);
/** The k largest along `axis`, the largest first; or the k smallest, the smallest first. The axis gets size k.
 * LS_ERR_ARGUMENT for a k that is negative or larger than its size. */
LS_API ls_tensor *ls_top_k(ls_tensor *x, int64_t k, int axis, bool smallest, ls_tensor **indices);

/* ---- copies and types ------------------------------------------------------------------------------------------ */

/** A view of all of x when it is contiguous, else a dense copy. */
LS_API ls_tensor *ls_contiguous(ls_tensor *x);
/** A dense copy. */
LS_API ls_tensor *ls_clone(ls_tensor *x);
/** The same memory cut off from the tape: no gradient flows through it. */
LS_API ls_tensor *ls_detach(ls_tensor *x);
/**
 * Converts x to another dtype. The gradient is converted back; integers have none. Returns a view of all of x if x has
 * the dtype already. To an integer dtype, floats are cut towards zero, floats out of range become the nearest limit of
 * the range, and NaN becomes 0; integers out of range wrap around. Fails with LS_ERR_ARGUMENT if `dtype` is not a
 * dtype.
 */
LS_API ls_tensor *ls_to(ls_tensor *x, ls_dtype dtype);
/** The tensor on the device of that name (see ls_use_device); x itself, as a view, when it is there. Its gradient goes
 * back to the device of x. ls_to_device (nn.h) is this and ls_module_to_device. Errors: those of ls_use_device. */
LS_API ls_tensor *ls_tensor_to_device(ls_tensor *x, const char *device);

/* ---- softmax and friends --------------------------------------------------------------------------------------- */

/** exp(x) / sum(exp(x)) along `axis`, without overflow: x's shape. x is floating, here and below. */
LS_API ls_tensor *ls_softmax(ls_tensor *x, int axis);
/** x - log(sum(exp(x))) along `axis`, without overflow: x's shape. */
LS_API ls_tensor *ls_log_softmax(ls_tensor *x, int axis);
/** Zeroes each element with probability p (0 to 1) and divides the others by (1 - p) (Srivastava et al., JMLR 15,
 * 2014); takes the next stream of ls_seed's generator. In ls_data_parallel x's first axis counts samples
 * (LS_ERR_UNSUPPORTED where it does not), so that each has the numbers of its place in the whole batch. */
LS_API ls_tensor *ls_dropout(ls_tensor *x, double p);
/** (x - mean) / sqrt(var + epsilon) * weight + bias over the last `axes` axes (Ba et al., arXiv 1607.06450): x's shape.
 * Weight and bias have the sizes of those, and x's dtype; either may be NULL. `epsilon` is not negative. */
LS_API ls_tensor *ls_layer_norm(ls_tensor *x, int axes, ls_tensor *weight, ls_tensor *bias, double epsilon);
/** x / sqrt(mean(x^2) + epsilon) * weight over the last `axes` axes (Zhang and Sennrich, arXiv 1910.07467): x's shape;
 * weight as in ls_layer_norm. */
LS_API ls_tensor *ls_rms_norm(ls_tensor *x, int axes, ls_tensor *weight, double epsilon);
/** (x - mean) / sqrt(var + epsilon) * weight + bias, for each sample and each of `groups` groups of neighbouring
 * channels of x [n, channels, ...] (Wu and He, arXiv 1803.08494; with as many groups as channels the instance norm of
 * Ulyanov et al., arXiv 1607.08022): x's shape. Weight and bias are [channels], of x's dtype; either may be NULL.
 * LS_ERR_SHAPE where the channels do not make equal groups. */
LS_API ls_tensor *ls_group_norm(ls_tensor *x, int64_t groups, ls_tensor *weight, ls_tensor *bias, double epsilon);
/**
 * Over all axes but 1 of x [n, channels, ...]: in training with the batch's mean and (biased) variance, and
 * running_mean and running_var (may be NULL) move by `momentum` towards the batch's (unbiased variance); otherwise with
 * the running ones (Ioffe and Szegedy, arXiv 1502.03167; PyTorch's BatchNorm). The result has x's shape; all others are
 * [channels]; weight and bias may be NULL. For x of bf16 or f16 the running ones are f32, weight and bias either f32 or
 * of x's dtype. LS_ERR_SHAPE for training with one value a channel, LS_ERR_ARGUMENT without running ones when not
 * training, or with one of the two. `epsilon` is not negative.
 */
LS_API ls_tensor *ls_batch_norm(ls_tensor *x, ls_tensor *running_mean, ls_tensor *running_var, ls_tensor *weight,
                                ls_tensor *bias, bool training, double momentum, double epsilon);

/** length direction / |direction|, for each position of the first axis by itself (Salimans and Kingma, arXiv
 * 1602.07868; PyTorch's weight_norm with dim=0): the shape of `direction` [n, ...], of which |direction| is the
 * Euclidean norm over all other axes, and `length` is [n, 1, ...]. */
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
