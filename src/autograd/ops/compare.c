/* Comparisons, which return bool and have no gradient, and ls_where. */
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

static ls_status shape_bool(ls_op_call *call) {
    return ls_shape_broadcast(call, LS_BOOL);
}

#define COMPARISON(name_, kernel_)                                                                                     \
    { .name = "ls_" #name_, .shape = shape_bool, .forward = ls_forward_map, .kernel = LS_KERNEL(kernel_) }

static const ls_op eq_op = COMPARISON(eq, eq);
static const ls_op ne_op = COMPARISON(ne, ne);
static const ls_op lt_op = COMPARISON(lt, lt);
static const ls_op le_op = COMPARISON(le, le);
static const ls_op gt_op = COMPARISON(gt, gt);
static const ls_op ge_op = COMPARISON(ge, ge);
static const ls_op is_nan_op = COMPARISON(is_nan, is_nan);
static const ls_op is_finite_op = COMPARISON(is_finite, is_finite);
static const ls_op eq_number_op = COMPARISON(eq, eq_number);
static const ls_op ne_number_op = COMPARISON(ne, ne_number);
static const ls_op lt_number_op = COMPARISON(lt, lt_number);
static const ls_op le_number_op = COMPARISON(le, le_number);
static const ls_op gt_number_op = COMPARISON(gt, gt_number);
static const ls_op ge_number_op = COMPARISON(ge, ge_number);

static ls_tensor *compare(const ls_op *op, ls_tensor *a, ls_tensor *b) {
    ls_tensor *const inputs[] = {a, b};
    if (a == NULL || b == NULL) {
        return ls_apply(op, inputs, 2, NULL);
    }
    return ls_apply_as(op, inputs, 2, 2, NULL, ls_compute_dtype(ls_promote(a, b)), LS_BOOL);
}

/* The kernels compare integers exactly with a double, including its fractional part. */
static ls_tensor *compare_number(const ls_op *op, ls_tensor *a, double number) {
    const ls_op_parameters parameters = {.number = {number}};
    if (a == NULL) {
        return ls_apply(op, &a, 1, &parameters);
    }
    return ls_apply_as(op, &a, 1, 1, &parameters, ls_compute_dtype(a->dtype), LS_BOOL);
}

static ls_tensor *compare_integer(const ls_op *op, const ls_op *tensor_op, ls_tensor *a, int64_t number) {
    return a == NULL ? compare_number(op, a, 0) : ls_compare_integer(op, tensor_op, a, number);
}

/* A number above the range of i64 is larger than every element of an integer tensor, and so is its conversion to
 * double. */
static ls_tensor *compare_unsigned(const ls_op *op, const ls_op *tensor_op, ls_tensor *a, uint64_t number) {
    return number <= INT64_MAX ? compare_integer(op, tensor_op, a, (int64_t)number)
                               : compare_number(op, a, (double)number);
}

#define FORMS(name)                                                                                                    \
    ls_tensor *ls_##name##_tensor(ls_tensor *a, ls_tensor *b) {                                                        \
        return compare(&name##_op, a, b);                                                                              \
    }                                                                                                                  \
    ls_tensor *ls_##name##_number(ls_tensor *a, double b) {                                                            \
        return compare_number(&name##_number_op, a, b);                                                                \
    }                                                                                                                  \
    ls_tensor *ls_##name##_integer(ls_tensor *a, int64_t b) {                                                          \
        return compare_integer(&name##_number_op, &name##_op, a, b);                                                   \
    }                                                                                                                  \
    ls_tensor *ls_##name##_unsigned(ls_tensor *a, uint64_t b) {                                                        \
        return compare_unsigned(&name##_number_op, &name##_op, a, b);                                                  \
    }
FORMS(eq)
FORMS(ne)
FORMS(lt)
FORMS(le)
FORMS(gt)
FORMS(ge)

static ls_tensor *test(const ls_op *op, ls_tensor *x) {
    return x == NULL ? ls_apply(op, &x, 1, NULL)
                     : ls_apply_as(op, &x, 1, 1, NULL, ls_compute_dtype((ls_dtype)x->dtype), LS_BOOL);
}

ls_tensor *ls_is_nan(ls_tensor *x) {
    return test(&is_nan_op, x);
}

ls_tensor *ls_is_finite(ls_tensor *x) {
    return test(&is_finite_op, x);
}

/* ---- logic: on tensors of any dtype, converted to bool ----------------------------------------------------------- */

static const ls_op logical_not_op = COMPARISON(logical_not, eq_number);
static const ls_op logical_and_op = COMPARISON(logical_and, minimum);
static const ls_op logical_or_op = COMPARISON(logical_or, maximum);
static const ls_op logical_xor_op = COMPARISON(logical_xor, ne);

static ls_tensor *logic(const ls_op *op, ls_tensor *a, ls_tensor *b) {
    return ls_apply_as(op, (ls_tensor *[]){a, b}, 2, 2, NULL, LS_BOOL, LS_BOOL);
}

ls_tensor *ls_logical_not(ls_tensor *x) {
    const ls_op_parameters zero = {0};
    return ls_apply_as(&logical_not_op, &x, 1, 1, &zero, LS_BOOL, LS_BOOL);
}

ls_tensor *ls_logical_and(ls_tensor *a, ls_tensor *b) {
    return logic(&logical_and_op, a, b);
}

ls_tensor *ls_logical_or(ls_tensor *a, ls_tensor *b) {
    return logic(&logical_or_op, a, b);
}

ls_tensor *ls_logical_xor(ls_tensor *a, ls_tensor *b) {
    return logic(&logical_xor_op, a, b);
}

/* ---- where ------------------------------------------------------------------------------------------------------- */

/* The inputs are (a, b, condition): first the two inputs that share a dtype and have gradients. */
enum { WHERE_A, WHERE_B, WHERE_CONDITION };

static ls_status where_shape(ls_op_call *call) {
    const ls_tensor *condition = call->inputs[WHERE_CONDITION];
    if (condition->dtype != LS_BOOL && condition->dtype != LS_U8) {
        return ls_fail(LS_ERR_SHAPE, "ls_where: the condition is a tensor of %s, but must be bool or u8",
                       ls_dtype_name(condition->dtype));
    }
    return ls_shape_broadcast(call, call->inputs[WHERE_A]->dtype);
}

static ls_status where_forward(ls_op_call *call) {
    const ls_tensor *const operands[] = {call->inputs[WHERE_CONDITION], call->inputs[WHERE_A], call->inputs[WHERE_B]};
    return ls_map(LS_KERNEL(where), call->output, operands, NULL);
}

static ls_status where_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *zero = ls_number_owned(node->op->name, ls_tensor_device(gradient), gradient->dtype, 0);
    if (zero == NULL) {
        return ls_error_status();
    }
    const ls_tensor *condition = node->inputs[WHERE_CONDITION];
    ls_status status = LS_OK;
    if (ls_wants(node, WHERE_A)) {
        status = ls_accumulate_map(node, WHERE_A, gradient, LS_KERNEL(where),
                                   (const ls_tensor *[]){condition, gradient, zero});
    }
    if (status == LS_OK && ls_wants(node, WHERE_B)) {
        status = ls_accumulate_map(node, WHERE_B, gradient, LS_KERNEL(where),
                                   (const ls_tensor *[]){condition, zero, gradient});
    }
    ls_tensor_drop(zero);
    return status;
}

static const ls_op where_op = {.name = "ls_where",
                               .shape = where_shape,
                               .forward = where_forward,
                               .backward = where_backward,
                               .reads = {[WHERE_A] = 1U << WHERE_CONDITION, [WHERE_B] = 1U << WHERE_CONDITION}};

ls_tensor *ls_where(ls_tensor *condition, ls_tensor *a, ls_tensor *b) {
    ls_tensor *const inputs[] = {a, b, condition};
    if (condition == NULL || a == NULL || b == NULL) {
        /* in the user's order, for messages that number the arguments */
        return ls_apply(&where_op, (ls_tensor *[]){condition, a, b}, 3, NULL);
    }
    const ls_dtype result = ls_promote(a, b);
    return ls_apply_as(&where_op, inputs, 3, 2, NULL, ls_compute_dtype(result), result);
}

const ls_op *const ls_compare_ops[] = {
    &eq_op,        &ne_op,          &lt_op,          &le_op,         &gt_op,          &ge_op,    &eq_number_op,
    &ne_number_op, &lt_number_op,   &le_number_op,   &gt_number_op,  &ge_number_op,   &where_op, &is_nan_op,
    &is_finite_op, &logical_not_op, &logical_and_op, &logical_or_op, &logical_xor_op, NULL,
};
