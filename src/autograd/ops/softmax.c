#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

#include <float.h>
#include <math.h>

/* Indices in integer[] of the parameters. */
enum { AXIS, KEEPDIM };

static int axis_of(const ls_op_parameters *parameters) {
    return (int)parameters->integer[AXIS];
}

/* ---- softmax and its logarithm ----------------------------------------------------------------------------------- */

static ls_status softmax_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    return ls_kernels_of(x)->softmax(ls_stream_of(x), call->output, x, axis_of(call->parameters));
}

static ls_status log_softmax_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    return ls_kernels_of(x)->log_softmax(ls_stream_of(x), call->output, x, axis_of(call->parameters));
}

typedef ls_status (*softmax_gradient_kernel)(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y,
                                             int axis);

static ls_status give_by_kernel(ls_node *node, ls_tensor *gradient, softmax_gradient_kernel kernel) {
    ls_tensor *dense = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(dense));
    ls_tensor *dx = ls_tensor_like(node->op->name, dense, (ls_dtype)dense->dtype);
    ls_status status = ls_made(dx);
    if (dx != NULL) {
        status = kernel(ls_stream_of(dx), dx, dense, node->saved[0], axis_of(&node->parameters));
    }
    ls_tensor_drop(dense);
    LS_TRY(status);
    return ls_accumulate(node, 0, dx);
}

static ls_status softmax_backward(ls_node *node, ls_tensor *gradient) {
    return give_by_kernel(node, gradient, ls_kernels_of(gradient)->softmax_backward);
}

static ls_status log_softmax_backward(ls_node *node, ls_tensor *gradient) {
    return give_by_kernel(node, gradient, ls_kernels_of(gradient)->log_softmax_backward);
}

static const ls_op softmax_op = {.name = "ls_softmax",
                                 .shape = ls_shape_as_input,
                                 .forward = softmax_forward,
                                 .backward = softmax_backward,
                                 .over_samples = ls_mixes_along_axis,
                                 .saves_output = true};

static const ls_op log_softmax_op = {.name = "ls_log_softmax",
                                     .shape = ls_shape_as_input,
                                     .forward = log_softmax_forward,
                                     .backward = log_softmax_backward,
                                     .over_samples = ls_mixes_along_axis,
                                     .saves_output = true};

/* ---- logsumexp --------------------------------------------------------------------------------------------------- */

static ls_status logsumexp_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const int axis = axis_of(call->parameters);
    int64_t size[LS_MAX_DIMS];
    int ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        if (i != axis) {
            size[ndim++] = x->size[i];
        } else if (call->parameters->integer[KEEPDIM] != 0) {
            size[ndim++] = 1;
        }
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), ndim, size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

/* Views `tensor`, whose axis `axis` was reduced, with that axis at size 1. */
static ls_tensor with_axis(const ls_tensor *tensor, int axis, int ndim) {
    ls_tensor view = *tensor;
    if (tensor->ndim < ndim) {
        view.ndim = (int8_t)ndim;
        for (int i = ndim - 1; i > axis; i--) {
            view.size[i] = tensor->size[i - 1];
            view.stride[i] = tensor->stride[i - 1];
        }
        view.size[axis] = 1;
        view.stride[axis] = 0;
    }
    return view;
}

/* Replaces infinities with the largest finite number, because infinity minus infinity is NaN. */
static ls_status make_finite(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    const double largest = x->dtype == LS_F64 ? DBL_MAX : (double)FLT_MAX;
    return ls_kernels_of(x)->clamp(stream, y, &x, (const double[]){-largest, largest});
}

/* Computes y = log(sum(exp(x - largest))) + largest. */
static ls_status compute_logsumexp(ls_tensor *y, const ls_tensor *x, ls_tensor *shifted, ls_tensor *largest) {
    const ls_kernels *kernels = ls_kernels_of(x);
    ls_stream *stream = ls_stream_of(x);
    LS_TRY(kernels->max(stream, largest, x));
    LS_TRY(make_finite(stream, largest, largest));
    LS_TRY(kernels->sub(stream, shifted, (const ls_tensor *[]){x, largest}, NULL));
    LS_TRY(kernels->exp(stream, shifted, (const ls_tensor *[]){shifted}, NULL));
    LS_TRY(kernels->sum(stream, y, shifted));
    LS_TRY(kernels->log(stream, y, (const ls_tensor *[]){y}, NULL));
    return kernels->add(stream, y, (const ls_tensor *[]){y, largest}, NULL);
}

static ls_status logsumexp_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const char *name = call->op->name;
    if (x->count == 0) {
        return ls_kernels_of(x)->fill(ls_stream_of(x), call->output, -INFINITY);
    }
    ls_tensor y = with_axis(call->output, axis_of(call->parameters), x->ndim);
    ls_tensor *shifted = ls_tensor_like_owned(name, x, (ls_dtype)x->dtype);
    ls_tensor *largest = shifted == NULL ? NULL : ls_tensor_like_owned(name, &y, (ls_dtype)x->dtype);
    const ls_status status = largest == NULL ? ls_error_status() : compute_logsumexp(&y, x, shifted, largest);
    ls_tensor_drop(largest);
    ls_tensor_drop(shifted);
    return status;
}

/* Computes dx = g exp(x - y). */
static ls_status compute_logsumexp_gradient(ls_tensor *dx, const ls_tensor *g, const ls_tensor *x, const ls_tensor *y,
                                            ls_tensor *finite) {
    const ls_kernels *kernels = ls_kernels_of(x);
    ls_stream *stream = ls_stream_of(x);
    LS_TRY(make_finite(stream, finite, y));
    LS_TRY(kernels->sub(stream, dx, (const ls_tensor *[]){x, finite}, NULL));
    LS_TRY(kernels->exp(stream, dx, (const ls_tensor *[]){dx}, NULL));
    return kernels->mul(stream, dx, (const ls_tensor *[]){dx, g}, NULL);
}

static ls_status logsumexp_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    const int axis = axis_of(&node->parameters);
    const ls_tensor g = with_axis(gradient, axis, x->ndim);
    const ls_tensor y = with_axis(node->saved[0], axis, x->ndim);
    ls_tensor *dx = ls_tensor_like(node->op->name, x, (ls_dtype)x->dtype);
    LS_TRY(ls_made(dx));
    ls_tensor *finite = ls_tensor_like_owned(node->op->name, &y, (ls_dtype)x->dtype);
    const ls_status status = finite == NULL ? ls_error_status() : compute_logsumexp_gradient(dx, &g, x, &y, finite);
    ls_tensor_drop(finite);
    LS_TRY(status);
    return ls_accumulate(node, 0, dx);
}

static ls_samples_use logsumexp_samples(ls_samples_call *call) {
    const int axis = axis_of(call->parameters);
    if (axis == call->axis) {
        return LS_SAMPLES_MIXED;
    }
    call->axis -= axis < call->axis && call->parameters->integer[KEEPDIM] == 0;
    return LS_SAMPLES_MOVED;
}

static const ls_op logsumexp_op = {.name = "ls_logsumexp",
                                   .shape = logsumexp_shape,
                                   .forward = logsumexp_forward,
                                   .backward = logsumexp_backward,
                                   .over_samples = logsumexp_samples,
                                   .reads = {1},
                                   .saves_output = true};

const ls_op *const ls_softmax_ops[] = {&softmax_op, &log_softmax_op, &logsumexp_op, NULL};

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static ls_tensor *apply_along(const ls_op *op, ls_tensor *x, int axis, bool keepdim, bool dense) {
    if (x == NULL) {
        return ls_apply(op, &x, 1, NULL); /* reports the error */
    }
    if (ls_check_floating(op->name, &x, 1) != LS_OK) {
        return ls_scope_failed();
    }
    const int at = ls_op_axis(op->name, x, axis);
    if (at < 0) {
        return NULL;
    }
    const ls_op_parameters parameters = {.integer = {[AXIS] = at, [KEEPDIM] = keepdim}};
    return ls_apply_dense(op, &x, 1, 1, &parameters, dense ? 1U : 0U);
}

ls_tensor *ls_softmax(ls_tensor *x, int axis) {
    return apply_along(&softmax_op, x, axis, false, true);
}

ls_tensor *ls_log_softmax(ls_tensor *x, int axis) {
    return apply_along(&log_softmax_op, x, axis, false, true);
}

ls_tensor *ls_logsumexp(ls_tensor *x, int axis, bool keepdim) {
    return apply_along(&logsumexp_op, x, axis, keepdim, false);
}
