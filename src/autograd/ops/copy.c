/* Copies, conversions and detaching from the tape. */
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

static ls_status clone_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    return ls_kernels_of(x)->copy(ls_stream_of(x), call->output, x);
}

static const ls_op clone_op = {
    .name = "ls_clone", .shape = ls_shape_as_input, .forward = clone_forward, .backward = ls_backward_same};

ls_tensor *ls_clone(ls_tensor *x) {
    return ls_apply(&clone_op, &x, 1, NULL);
}

ls_tensor *ls_contiguous(ls_tensor *x) {
    return x != NULL && x->contiguous ? ls_view_as_is(x) : ls_clone(x);
}

ls_tensor *ls_detach(ls_tensor *x) {
    return x == NULL ? ls_clone(x) : ls_alias(x);
}

/* ---- to ---------------------------------------------------------------------------------------------------------- */

static ls_status to_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->output = ls_tensor_like(call->op->name, x, (ls_dtype)call->parameters->integer[0]);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status to_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    return ls_kernels_of(x)->cast(ls_stream_of(x), call->output, x);
}

static ls_status to_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    ls_tensor *share = ls_tensor_like(node->op->name, x, x->dtype);
    if (share == NULL) {
        return ls_error_status();
    }
    LS_TRY(ls_kernels_of(x)->cast(ls_stream_of(x), share, gradient));
    return ls_accumulate(node, 0, share);
}

static const ls_op to_op = {.name = "ls_to", .shape = to_shape, .forward = to_forward, .backward = to_backward};
/* Integers and bools have no gradient. */
static const ls_op to_integer_op = {.name = "ls_to", .shape = to_shape, .forward = to_forward};

ls_tensor *ls_to(ls_tensor *x, ls_dtype dtype) {
    if (x == NULL) {
        return ls_apply(&to_op, &x, 1, NULL);
    }
    if (ls_dtype_size(dtype) == 0) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_to: %d is not a dtype", (int)dtype);
    }
    if (x->dtype == dtype) {
        return ls_view_as_is(x);
    }
    const ls_op_parameters parameters = {.integer = {dtype}};
    return ls_apply(ls_dtype_is_floating(dtype) ? &to_op : &to_integer_op, &x, 1, &parameters);
}

/* ---- to_device --------------------------------------------------------------------------------------------------- */

static ls_status to_device_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const ls_device *device = ls_device_at((int)call->parameters->integer[0]);
    call->output = ls_tensor_give(ls_tensor_on_device(call->op->name, x, device));
    return ls_made(call->output);
}

static ls_status to_device_backward(ls_node *node, ls_tensor *gradient) {
    const ls_device *device = ls_tensor_device(node->inputs[0]);
    return ls_accumulate(node, 0, ls_tensor_give(ls_tensor_on_device(node->op->name, gradient, device)));
}

static const ls_op to_device_op = {.name = "ls_to_device", .shape = to_device_shape, .backward = to_device_backward};

ls_tensor *ls_tensor_to_device(ls_tensor *x, const char *device) {
    if (x == NULL || ls_tensor_is_gone(x)) {
        return ls_apply(&to_device_op, &x, 1, NULL);
    }
    const ls_device *target = ls_device_find(to_device_op.name, device);
    if (target == NULL) {
        return NULL;
    }
    if (ls_tensor_device(x) == target) {
        return ls_view_as_is(x);
    }
    const ls_op_parameters parameters = {.integer = {ls_device_index(target)}};
    return ls_apply(&to_device_op, &x, 1, &parameters);
}

const ls_op *const ls_copy_ops[] = {&clone_op, &to_op, &to_integer_op, &to_device_op, NULL};
