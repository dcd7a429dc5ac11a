/* Piecewise constant functions, whose gradient is 0: rounding and sign. */
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

static ls_status backward_zero(ls_node *node, ls_tensor *gradient) {
    (void)gradient;
    return ls_gradient_place_zeroed(node, 0) != NULL ? LS_OK : ls_error_status();
}

#define STEPS(name_)                                                                                                   \
    {                                                                                                                  \
        .name = "ls_" #name_, .shape = ls_shape_as_input, .forward = ls_forward_map, .backward = backward_zero,        \
        .kernel = LS_KERNEL(name_)                                                                                     \
    }
static const ls_op floor_op = STEPS(floor);
static const ls_op ceil_op = STEPS(ceil);
static const ls_op round_op = STEPS(round);
static const ls_op sign_op = STEPS(sign);

const ls_op *const ls_steps_ops[] = {&floor_op, &ceil_op, &round_op, &sign_op, NULL};

static ls_tensor *step_function(const ls_op *op, ls_tensor *x, bool whole_is_same) {
    if (!ls_inputs_are_given(op->name, &x, 1)) {
        return NULL;
    }
    if (x->dtype == LS_BOOL) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: the tensor is bool; convert it with ls_to", op->name);
    }
    if (whole_is_same && !ls_dtype_is_floating((ls_dtype)x->dtype)) {
        return ls_clone(x);
    }
    return ls_apply_as(op, &x, 1, 1, NULL, ls_compute_dtype((ls_dtype)x->dtype), (ls_dtype)x->dtype);
}

ls_tensor *ls_floor(ls_tensor *x) {
    return step_function(&floor_op, x, true);
}

ls_tensor *ls_ceil(ls_tensor *x) {
    return step_function(&ceil_op, x, true);
}

ls_tensor *ls_round(ls_tensor *x) {
    return step_function(&round_op, x, true);
}

ls_tensor *ls_sign(ls_tensor *x) {
    return step_function(&sign_op, x, false);
}
