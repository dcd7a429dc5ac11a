/* Element-wise arithmetic: functions of one tensor, of two tensors with broadcasting, and of a tensor and a number. */
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

#include <math.h>

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static ls_status backward_from_input(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate_map(node, 0, gradient, node->op->kernel_backward,
                             (const ls_tensor *[]){gradient, node->inputs[0]});
}

static ls_status backward_from_output(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate_map(node, 0, gradient, node->op->kernel_backward,
                             (const ls_tensor *[]){gradient, node->saved[0]});
}

/* The derivative of a linear function is the same function. */
static ls_status backward_linear(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate_map(node, 0, gradient, node->op->kernel, (const ls_tensor *[]){gradient});
}

static ls_status shape_binary(ls_op_call *call) {
    return ls_shape_broadcast(call, call->inputs[0]->dtype);
}

static ls_status add_backward(ls_node *node, ls_tensor *gradient) {
    if (ls_wants(node, 0)) {
        LS_TRY(ls_accumulate(node, 0, gradient));
    }
    return ls_wants(node, 1) ? ls_accumulate(node, 1, gradient) : LS_OK;
}

static ls_status sub_backward(ls_node *node, ls_tensor *gradient) {
    if (ls_wants(node, 0)) {
        LS_TRY(ls_accumulate(node, 0, gradient));
    }
    return ls_wants(node, 1) ? ls_accumulate_map(node, 1, gradient, LS_KERNEL(neg), (const ls_tensor *[]){gradient})
                             : LS_OK;
}

static ls_status mul_backward(ls_node *node, ls_tensor *gradient) {
    for (int i = 0; i < 2; i++) {
        if (ls_wants(node, i)) {
            const ls_tensor *other = node->inputs[1 - i];
            LS_TRY(ls_accumulate_map(node, i, gradient, LS_KERNEL(mul), (const ls_tensor *[]){gradient, other}));
        }
    }
    return LS_OK;
}

static ls_status div_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *a = node->inputs[0], *b = node->inputs[1];
    if (ls_wants(node, 0)) {
        LS_TRY(ls_accumulate_map(node, 0, gradient, LS_KERNEL(div), (const ls_tensor *[]){gradient, b}));
    }
    return ls_wants(node, 1) ? ls_accumulate_map(node, 1, gradient, LS_KERNEL(div_backward_divisor),
                                                 (const ls_tensor *[]){gradient, a, b})
                             : LS_OK;
}

static ls_status pow_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *const operands[] = {gradient, node->inputs[0], node->inputs[1]};
    if (ls_wants(node, 0)) {
        LS_TRY(ls_accumulate_map(node, 0, gradient, LS_KERNEL(pow_backward_base), operands));
    }
    return ls_wants(node, 1) ? ls_accumulate_map(node, 1, gradient, LS_KERNEL(pow_backward_exponent), operands) : LS_OK;
}

/* The kernel computes the gradient of its second operand. */
static ls_status extreme_backward(ls_node *node, ls_tensor *gradient) {
    for (int i = 0; i < 2; i++) {
        if (ls_wants(node, i)) {
            LS_TRY(ls_accumulate_map(node, i, gradient, node->op->kernel_backward,
                                     (const ls_tensor *[]){gradient, node->inputs[i], node->inputs[1 - i]}));
        }
    }
    return LS_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { A = 1, B = 2 }; /* bits of .reads for the first and the second input */

#define UNARY(name_, gradient_kernel, rule)                                                                            \
    {                                                                                                                  \
        .name = "ls_" #name_, .shape = ls_shape_as_input, .forward = ls_forward_map, .backward = (rule),               \
        .kernel = LS_KERNEL(name_), .kernel_backward = LS_KERNEL(gradient_kernel),                                     \
        .saves_output = (rule) == backward_from_output, .reads = {                                                     \
            (rule) == backward_from_input ? A : 0                                                                      \
        }                                                                                                              \
    }
#define BINARY(name_, rule, gradient_kernel, ...)                                                                      \
    {                                                                                                                  \
        .name = "ls_" #name_, .shape = shape_binary, .forward = ls_forward_map, .backward = (rule),                    \
        .kernel = LS_KERNEL(name_), .kernel_backward = LS_KERNEL(gradient_kernel), .reads = {                          \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define NUMBER(name_, rule, gradient_kernel)                                                                           \
    {                                                                                                                  \
        .name = "ls_" #name_, .shape = ls_shape_as_input, .forward = ls_forward_map, .backward = (rule),               \
        .kernel = LS_KERNEL(name_##_number), .kernel_backward = LS_KERNEL(gradient_kernel), .reads = {                 \
            (rule) == backward_from_input ? A : 0                                                                      \
        }                                                                                                              \
    }

static const ls_op neg_op = UNARY(neg, neg, backward_linear);
static const ls_op abs_op = UNARY(abs, abs_backward, backward_from_input);
static const ls_op sqrt_op = UNARY(sqrt, sqrt_backward, backward_from_output);
static const ls_op square_op = UNARY(square, square_backward, backward_from_input);
static const ls_op exp_op = UNARY(exp, mul, backward_from_output);
static const ls_op log_op = UNARY(log, div, backward_from_input);
static const ls_op log1p_op = UNARY(log1p, log1p_backward, backward_from_input);
static const ls_op sin_op = UNARY(sin, sin_backward, backward_from_input);
static const ls_op cos_op = UNARY(cos, cos_backward, backward_from_input);
static const ls_op tanh_op = UNARY(tanh, tanh_backward, backward_from_output);
static const ls_op erf_op = UNARY(erf, erf_backward, backward_from_input);
static const ls_op sigmoid_op = UNARY(sigmoid, sigmoid_backward, backward_from_output);
static const ls_op relu_op = UNARY(relu, relu_backward, backward_from_output);
static const ls_op leaky_relu_op = UNARY(leaky_relu, leaky_relu_backward, backward_from_input);
static const ls_op elu_op = UNARY(elu, elu_backward, backward_from_input);
static const ls_op gelu_op = UNARY(gelu, gelu_backward, backward_from_input);
static const ls_op gelu_tanh_op = UNARY(gelu_tanh, gelu_tanh_backward, backward_from_input);
static const ls_op silu_op = UNARY(silu, silu_backward, backward_from_input);
static const ls_op softplus_op = UNARY(softplus, softplus_backward, backward_from_input);
static const ls_op clamp_op = UNARY(clamp, clamp_backward, backward_from_input);

static const ls_op add_op = BINARY(add, add_backward, add, 0, 0);
static const ls_op sub_op = BINARY(sub, sub_backward, sub, 0, 0);
static const ls_op mul_op = BINARY(mul, mul_backward, mul, B, A);
static const ls_op div_op = BINARY(div, div_backward, div_backward_divisor, B, A | B);
static const ls_op pow_op = BINARY(pow, pow_backward, pow_backward_base, A | B, A | B);
static const ls_op maximum_op = BINARY(maximum, extreme_backward, maximum_backward, A | B, A | B);
static const ls_op minimum_op = BINARY(minimum, extreme_backward, minimum_backward, A | B, A | B);

static const ls_op add_number_op = NUMBER(add, ls_backward_same, add_number);
static const ls_op sub_number_op = NUMBER(sub, ls_backward_same, sub_number);
static const ls_op mul_number_op = NUMBER(mul, backward_linear, mul_number);
static const ls_op div_number_op = NUMBER(div, backward_linear, div_number);
static const ls_op pow_number_op = NUMBER(pow, backward_from_input, pow_number_backward);
static const ls_op maximum_number_op = NUMBER(maximum, backward_from_input, maximum_number_backward);
static const ls_op minimum_number_op = NUMBER(minimum, backward_from_input, minimum_number_backward);

const ls_op *const ls_elementwise_ops[] = {
    &neg_op,
    &abs_op,
    &sqrt_op,
    &square_op,
    &exp_op,
    &log_op,
    &log1p_op,
    &sin_op,
    &cos_op,
    &tanh_op,
    &erf_op,
    &sigmoid_op,
    &relu_op,
    &leaky_relu_op,
    &elu_op,
    &gelu_op,
    &gelu_tanh_op,
    &silu_op,
    &softplus_op,
    &clamp_op,
    &add_op,
    &sub_op,
    &mul_op,
    &div_op,
    &pow_op,
    &maximum_op,
    &minimum_op,
    &add_number_op,
    &sub_number_op,
    &mul_number_op,
    &div_number_op,
    &pow_number_op,
    &maximum_number_op,
    &minimum_number_op,
    NULL,
};

bool ls_find_constant_factor(const ls_node *node, ls_constant_factor *factor) {
    const ls_op *op = node->op;
    const bool divides = op == &div_op || op == &div_number_op;
    *factor = (ls_constant_factor){.variable = node->inputs[0], .divides = divides};
    if (op == &mul_number_op || op == &div_number_op) {
        factor->number = node->parameters.number[0];
        return true;
    }
    if (op != &mul_op && op != &div_op) {
        return false;
    }
    const int constant = op == &mul_op && !ls_wants(node, 0) ? 0 : 1;
    factor->variable = node->inputs[1 - constant];
    factor->tensor = node->inputs[constant];
    return !ls_wants(node, constant);
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

/* Applies a function of real numbers; integers are converted to f32. */
static ls_tensor *real_function(const ls_op *op, ls_tensor *x, const ls_op_parameters *parameters) {
    if (x == NULL || ls_is_plain(x->dtype)) {
        return ls_apply(op, &x, 1, parameters);
    }
    const ls_dtype result = ls_promote_real(x->dtype);
    return ls_apply_as(op, &x, 1, 1, parameters, ls_compute_dtype(result), result);
}

/* Applies a function that also exists for integers. */
static ls_tensor *any_function(const ls_op *op, ls_tensor *x, const ls_op_parameters *parameters) {
    if (x == NULL || ls_is_plain(x->dtype)) {
        return ls_apply(op, &x, 1, parameters);
    }
    const ls_dtype dtype = x->dtype;
    if (dtype == LS_BOOL) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: the tensor is bool; convert it with ls_to", op->name);
    }
    return ls_apply_as(op, &x, 1, 1, parameters, ls_compute_dtype(dtype), dtype);
}

ls_tensor *ls_neg(ls_tensor *x) {
    return any_function(&neg_op, x, NULL);
}

ls_tensor *ls_abs(ls_tensor *x) {
    return any_function(&abs_op, x, NULL);
}

ls_tensor *ls_square(ls_tensor *x) {
    return any_function(&square_op, x, NULL);
}

ls_tensor *ls_sqrt(ls_tensor *x) {
    return real_function(&sqrt_op, x, NULL);
}

ls_tensor *ls_exp(ls_tensor *x) {
    return real_function(&exp_op, x, NULL);
}

ls_tensor *ls_log(ls_tensor *x) {
    return real_function(&log_op, x, NULL);
}

ls_tensor *ls_log1p(ls_tensor *x) {
    return real_function(&log1p_op, x, NULL);
}

ls_tensor *ls_sin(ls_tensor *x) {
    return real_function(&sin_op, x, NULL);
}

ls_tensor *ls_cos(ls_tensor *x) {
    return real_function(&cos_op, x, NULL);
}

ls_tensor *ls_tanh(ls_tensor *x) {
    return real_function(&tanh_op, x, NULL);
}

ls_tensor *ls_erf(ls_tensor *x) {
    return real_function(&erf_op, x, NULL);
}

ls_tensor *ls_sigmoid(ls_tensor *x) {
    return real_function(&sigmoid_op, x, NULL);
}

ls_tensor *ls_relu(ls_tensor *x) {
    if (x != NULL && !ls_dtype_is_floating(x->dtype)) {
        return ls_maximum_integer(x, 0);
    }
    return real_function(&relu_op, x, NULL);
}

ls_tensor *ls_leaky_relu(ls_tensor *x, double slope) {
    return real_function(&leaky_relu_op, x, &(ls_op_parameters){.number = {slope}});
}

ls_tensor *ls_elu(ls_tensor *x, double alpha) {
    return real_function(&elu_op, x, &(ls_op_parameters){.number = {alpha}});
}

ls_tensor *ls_gelu(ls_tensor *x) {
    return real_function(&gelu_op, x, NULL);
}

ls_tensor *ls_gelu_tanh(ls_tensor *x) {
    return real_function(&gelu_tanh_op, x, NULL);
}

ls_tensor *ls_silu(ls_tensor *x) {
    return real_function(&silu_op, x, NULL);
}

ls_tensor *ls_softplus(ls_tensor *x) {
    return real_function(&softplus_op, x, NULL);
}

static bool is_whole(double number) {
    return isfinite(number) && number == trunc(number);
}

ls_tensor *ls_clamp(ls_tensor *x, double low, double high) {
    const ls_op_parameters parameters = {.number = {low, high}};
    if (x != NULL && !ls_dtype_is_floating(x->dtype) && !(is_whole(low) && is_whole(high))) {
        return real_function(&clamp_op, x, &parameters);
    }
    return any_function(&clamp_op, x, &parameters);
}

/* ---- two tensors ------------------------------------------------------------------------------------------------- */

static bool ready(const ls_tensor *a, const ls_tensor *b) {
    return a == NULL || b == NULL || (a->dtype == b->dtype && ls_is_plain(a->dtype));
}

static ls_tensor *arithmetic(const ls_op *op, ls_tensor *a, ls_tensor *b) {
    ls_tensor *const inputs[] = {a, b};
    if (ready(a, b)) {
        return ls_apply(op, inputs, 2, NULL);
    }
    const ls_dtype result = ls_promote(a, b);
    return ls_apply_as(op, inputs, 2, 2, NULL, ls_compute_dtype(result), result);
}

/* Applies arithmetic with a double as right operand. */
static ls_tensor *arithmetic_number(const ls_op *op, ls_tensor *a, double number) {
    return real_function(op, a, &(ls_op_parameters){.number = {number}});
}

/*
 * Applies arithmetic with an integer as right operand. `tensor_op` is the same operation on two tensors. Results that
 * are too large wrap around.
 */
static ls_tensor *arithmetic_integer(const ls_op *op, const ls_op *tensor_op, bool saturates, ls_tensor *a,
                                     int64_t number) {
    return a == NULL || ls_dtype_is_floating(a->dtype) ? arithmetic_number(op, a, (double)number)
                                                       : ls_apply_integer(op, tensor_op, saturates, a, number);
}

static ls_tensor *arithmetic_unsigned(const ls_op *op, const ls_op *tensor_op, bool saturates, ls_tensor *a,
                                      uint64_t number) {
    if (number <= INT64_MAX) {
        return arithmetic_integer(op, tensor_op, saturates, a, (int64_t)number);
    }
    return a == NULL || ls_dtype_is_floating(a->dtype) ? arithmetic_number(op, a, (double)number)
                                                       : ls_refuse_unsigned(op->name, number);
}

#define NUMBER_FORMS(name, saturates)                                                                                  \
    ls_tensor *ls_##name##_number(ls_tensor *a, double b) {                                                            \
        return arithmetic_number(&name##_number_op, a, b);                                                             \
    }                                                                                                                  \
    ls_tensor *ls_##name##_integer(ls_tensor *a, int64_t b) {                                                          \
        return arithmetic_integer(&name##_number_op, &name##_op, (saturates), a, b);                                   \
    }                                                                                                                  \
    ls_tensor *ls_##name##_unsigned(ls_tensor *a, uint64_t b) {                                                        \
        return arithmetic_unsigned(&name##_number_op, &name##_op, (saturates), a, b);                                  \
    }
NUMBER_FORMS(add, false)
NUMBER_FORMS(sub, false)
NUMBER_FORMS(mul, false)
NUMBER_FORMS(maximum, true)
NUMBER_FORMS(minimum, true)

ls_tensor *ls_add_tensor(ls_tensor *a, ls_tensor *b) {
    return arithmetic(&add_op, a, b);
}

ls_tensor *ls_sub_tensor(ls_tensor *a, ls_tensor *b) {
    if (a != NULL && b != NULL && a->dtype == LS_BOOL && b->dtype == LS_BOOL) {
        return ls_fail_noted(LS_ERR_SHAPE, "ls_sub: both tensors are bool; ls_ne returns where they differ");
    }
    return arithmetic(&sub_op, a, b);
}

ls_tensor *ls_mul_tensor(ls_tensor *a, ls_tensor *b) {
    return arithmetic(&mul_op, a, b);
}

ls_tensor *ls_maximum_tensor(ls_tensor *a, ls_tensor *b) {
    return arithmetic(&maximum_op, a, b);
}

ls_tensor *ls_minimum_tensor(ls_tensor *a, ls_tensor *b) {
    return arithmetic(&minimum_op, a, b);
}

ls_tensor *ls_div_tensor(ls_tensor *a, ls_tensor *b) {
    ls_tensor *const inputs[] = {a, b};
    if (ready(a, b)) {
        return ls_apply(&div_op, inputs, 2, NULL);
    }
    const ls_dtype result = ls_promote_real(ls_promote(a, b));
    return ls_apply_as(&div_op, inputs, 2, 2, NULL, ls_compute_dtype(result), result);
}

ls_tensor *ls_div_number(ls_tensor *a, double b) {
    return arithmetic_number(&div_number_op, a, b);
}

ls_tensor *ls_div_integer(ls_tensor *a, int64_t b) {
    return ls_div_number(a, (double)b);
}

ls_tensor *ls_div_unsigned(ls_tensor *a, uint64_t b) {
    return ls_div_number(a, (double)b);
}

/*
 * Integer powers are computed in i64, which is exact and wraps around like products. Rounding to f32 could change an
 * integral exponent from odd to even, so powers with exponents that f32 cannot represent are computed in f64.
 */
static ls_dtype power_dtype(ls_dtype result) {
    return ls_dtype_is_floating(result) ? ls_compute_dtype(result) : LS_I64;
}

ls_tensor *ls_pow_tensor(ls_tensor *a, ls_tensor *b) {
    ls_tensor *const inputs[] = {a, b};
    if (ready(a, b)) {
        return ls_apply(&pow_op, inputs, 2, NULL);
    }
    const ls_dtype result = ls_promote(a, b);
    const bool rounds = b != NULL && (b->dtype == LS_I64 || b->dtype == LS_I32) && ls_dtype_is_floating(result);
    return ls_apply_as(&pow_op, inputs, 2, 2, NULL, rounds ? LS_F64 : power_dtype(result), result);
}

ls_tensor *ls_pow_number(ls_tensor *a, double b) {
    if (a == NULL || a->dtype == LS_F64 || !is_whole(b) || (double)(float)b == b) {
        return arithmetic_number(&pow_number_op, a, b);
    }
    return ls_apply_as(&pow_number_op, &a, 1, 1, &(ls_op_parameters){.number = {b}}, LS_F64,
                       ls_promote_real((ls_dtype)a->dtype));
}

ls_tensor *ls_pow_integer(ls_tensor *a, int64_t b) {
    if (a == NULL || ls_dtype_is_floating(a->dtype)) {
        return ls_pow_number(a, (double)b);
    }
    if (b < 0) {
        return ls_fail_noted(LS_ERR_ARGUMENT,
                             "ls_pow: exponent %lld of a tensor of %s would produce fractions; convert the tensor to a "
                             "floating-point dtype with ls_to",
                             (long long)b, ls_dtype_name(a->dtype));
    }
    if (b > (int64_t)1 << 53) { /* as a double, an odd exponent could become even */
        ls_tensor *exponent = ls_integer_beside("ls_pow", a, b);
        ls_tensor *y = exponent == NULL ? NULL : ls_pow_tensor(a, exponent);
        ls_release(exponent);
        return y;
    }
    const ls_dtype result = ls_promote_integer(a->dtype);
    const ls_op_parameters parameters = {.number = {(double)b}};
    return ls_apply_as(&pow_number_op, &a, 1, 1, &parameters, power_dtype(result), result);
}

ls_tensor *ls_pow_unsigned(ls_tensor *a, uint64_t b) {
    return b <= INT64_MAX ? ls_pow_integer(a, (int64_t)b) : ls_refuse_unsigned("ls_pow", b);
}

/* ---- a number as left operand ------------------------------------------------------------------------------------ */

static ls_tensor *beside(ls_tensor *(*function)(ls_tensor *a, ls_tensor *b), ls_tensor *number, ls_tensor *b) {
    if (number == NULL) {
        return ls_scope_failed();
    }
    ls_tensor *y = function(number, b);
    ls_release(number);
    if (y == NULL || !ls_dtype_is_floating(b->dtype) || y->dtype == b->dtype) {
        return y;
    }
    /* b is a 16-bit float and has no dimensions, so the number is f32, which represents it exactly */
    ls_tensor *own = ls_to(y, b->dtype);
    ls_release(y);
    return own;
}

#define LEFT_FORMS(name)                                                                                               \
    ls_tensor *ls_r##name##_number(double a, ls_tensor *b) {                                                           \
        return beside(ls_##name##_tensor, ls_number_beside("ls_" #name, b, a), b);                                     \
    }                                                                                                                  \
    ls_tensor *ls_r##name##_integer(int64_t a, ls_tensor *b) {                                                         \
        return beside(ls_##name##_tensor, ls_integer_beside("ls_" #name, b, a), b);                                    \
    }                                                                                                                  \
    LEFT_UNSIGNED(name)
#define LEFT_UNSIGNED(name)                                                                                            \
    ls_tensor *ls_r##name##_unsigned(uint64_t a, ls_tensor *b) {                                                       \
        if (a <= INT64_MAX) {                                                                                          \
            return ls_r##name##_integer((int64_t)a, b);                                                                \
        }                                                                                                              \
        return b == NULL || ls_tensor_is_gone(b) || ls_dtype_is_floating(b->dtype)                                     \
                   ? ls_r##name##_number((double)a, b)                                                                 \
                   : ls_refuse_unsigned("ls_" #name, a);                                                               \
    }
LEFT_FORMS(add)
LEFT_FORMS(sub)
LEFT_FORMS(mul)
LEFT_FORMS(pow)

ls_tensor *ls_rdiv_number(double a, ls_tensor *b) {
    return beside(ls_div_tensor, ls_number_beside("ls_div", b, a), b);
}

/* A quotient is a real number, so the result is floating-point for every dtype. */
ls_tensor *ls_rdiv_integer(int64_t a, ls_tensor *b) {
    return ls_rdiv_number((double)a, b);
}

ls_tensor *ls_rdiv_unsigned(uint64_t a, ls_tensor *b) {
    return ls_rdiv_number((double)a, b);
}
