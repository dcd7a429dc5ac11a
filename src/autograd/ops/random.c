#include "base/random.h"
#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

static ls_status dropout(ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters) {
    return ls_kernels_of(x)->dropout(ls_stream_of(x), y, x, parameters->random, parameters->number[0]);
}

static ls_status dropout_forward(ls_op_call *call) {
    return dropout(call->output, call->inputs[0], call->parameters);
}

/* The same numbers choose the same elements again, so no mask is kept. */
static ls_status dropout_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *dense = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(dense));
    ls_tensor *dx = ls_tensor_new(node->op->name, dense->ndim, dense->size, (ls_dtype)dense->dtype);
    const ls_status status = dx == NULL ? ls_error_status() : dropout(dx, dense, &node->parameters);
    ls_tensor_drop(dense);
    LS_TRY(status);
    return ls_give(node, 0, dx);
}

static const ls_op dropout_op = {
    .name = "ls_dropout", .shape = ls_shape_as_input, .forward = dropout_forward, .backward = dropout_backward};

const ls_op *const ls_random_ops[] = {&dropout_op, NULL};

ls_tensor *ls_dropout(ls_tensor *x, double p) {
    if (x == NULL) {
        return ls_apply(&dropout_op, &x, 1, NULL); /* refuses */
    }
    if (!(p >= 0.0 && p <= 1.0)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: p is %g, must be from 0 to 1", dropout_op.name, p);
    }
    if (ls_check_floating(dropout_op.name, &x, 1) != LS_OK) {
        return ls_scope_failed();
    }
    const ls_op_parameters parameters = {.number = {p}, .random = ls_random_next_stream()};
    return ls_apply_dense(&dropout_op, &x, 1, 1, &parameters, 1U);
}
