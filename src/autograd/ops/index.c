/* Selection of elements by index: index_select, embedding, take_along. The gradient is added at the selected
 * positions. */
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"
#include "autograd/samples.h"

#include <stdio.h>
#include <string.h>

enum { X, INDEX };

static int axis_of(const ls_op_parameters *parameters) {
    return (int)parameters->integer[0];
}

/* In a kernel's message about an index out of range, replaces the kernel's name with the name of the user's call. */
static ls_status rename_failure(const char *call, ls_status status) {
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    const char *reason = strstr(message, ": ");
    return status == LS_ERR_ARGUMENT && reason != NULL ? ls_fail(status, "%s%s", call, reason) : status;
}

/* Computes y = kernel(x, index), for x of any strides. */
static ls_status pick(const ls_op_call *call, ls_tensor *y, const ls_tensor *index) {
    ls_tensor *x = ls_dense(call->op->name, call->inputs[X]);
    if (x == NULL) {
        return ls_error_status();
    }
    const ls_kernels *kernels = ls_kernels_of(x);
    const ls_status status =
        LS_KERNEL_AT(index, kernels, call->op->kernel)(ls_stream_of(x), y, x, axis_of(call->parameters), index);
    ls_tensor_drop(x);
    return status == LS_OK ? LS_OK : rename_failure(call->op->name, status);
}

/* Views the gradient with `ndim` sizes and adds it to the selected elements of x's gradient. */
static ls_status put_back(ls_node *node, ls_tensor *gradient, int ndim, const int64_t *size, const ls_tensor *index) {
    ls_tensor *g = ls_dense(node->op->name, gradient);
    ls_tensor *place = g == NULL ? NULL : ls_gradient_place_zeroed(node, X);
    ls_status status = place == NULL ? ls_error_status() : LS_OK;
    if (status == LS_OK) {
        const ls_tensor view = ls_stack_view_dense(g, ndim, size);
        const ls_kernels *kernels = ls_kernels_of(g);
        status = LS_KERNEL_AT(index, kernels, node->op->kernel_backward)(ls_stream_of(g), place, &view,
                                                                         axis_of(&node->parameters), index);
    }
    ls_tensor_drop(g);
    return status;
}

/* Applies the operation with a contiguous i64 index, and x converted to a dtype that the kernels support. */
static ls_tensor *apply_indexed(const ls_op *op, ls_tensor *x, int axis, ls_tensor *index) {
    if (!ls_inputs_are_here(op->name, (ls_tensor *[]){x, index}, 2)) {
        return NULL;
    }
    if (index->dtype != LS_I64 && index->dtype != LS_I32) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: the index is a tensor of %s, but must be i64 or i32", op->name,
                             ls_dtype_name(index->dtype));
    }
    ls_tensor *ready = NULL;
    if (index->dtype == LS_I64) {
        ready = ls_dense(op->name, index);
    } else {
        ready = ls_tensor_like_owned(op->name, index, LS_I64);
        if (ready != NULL && ls_kernels_of(index)->cast(ls_stream_of(index), ready, index) != LS_OK) {
            ls_tensor_drop(ready);
            ready = NULL;
        }
    }
    if (ready == NULL) {
        return ls_scope_failed();
    }
    ready->spread = index->spread;
    const ls_op_parameters parameters = {.integer = {axis}};
    const ls_dtype dtype = x->dtype;
    ls_tensor *y = ls_apply_as(op, (ls_tensor *[]){x, ready}, 2, 1, &parameters, ls_compute_dtype(dtype), dtype);
    ls_tensor_drop(ready);
    return y;
}

static ls_tensor *apply_to_null(const ls_op *op, ls_tensor *x, ls_tensor *index) {
    return ls_apply(op, (ls_tensor *[]){x, index}, 2, NULL);
}

/* ---- index_select ------------------------------------------------------------------------------------------------ */

static ls_status select_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[X], *index = call->inputs[INDEX];
    if (index->ndim != 1) {
        return ls_fail(LS_ERR_SHAPE, "ls_index_select: the index is %s, but must have one dimension",
                       LS_SHAPE_TEXT(index));
    }
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        size[i] = i == axis_of(call->parameters) ? index->count : x->size[i];
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(call->inputs[0]), x->ndim, size, x->dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status pick_forward(ls_op_call *call) {
    return pick(call, call->output, call->inputs[INDEX]);
}

static ls_status pick_backward(ls_node *node, ls_tensor *gradient) {
    return put_back(node, gradient, gradient->ndim, gradient->size, node->inputs[INDEX]);
}

static const ls_op index_select_op = {.name = "ls_index_select",
                                      .shape = select_shape,
                                      .forward = pick_forward,
                                      .backward = pick_backward,
                                      .reads = {[X] = 1U << INDEX},
                                      .kernel = LS_KERNEL(index_select),
                                      .kernel_backward = LS_KERNEL(index_add)};

ls_tensor *ls_index_select(ls_tensor *x, int axis, ls_tensor *index) {
    if (x == NULL || index == NULL) {
        return apply_to_null(&index_select_op, x, index);
    }
    const int along = ls_op_axis("ls_index_select", x, axis);
    return along < 0 ? NULL : apply_indexed(&index_select_op, x, along, index);
}

/* ---- embedding: index_select along axis 0, with an index of any shape -------------------------------------------- */

static ls_status embedding_shape(ls_op_call *call) {
    const ls_tensor *weight = call->inputs[X], *index = call->inputs[INDEX];
    if (weight->ndim != 2 || index->ndim == LS_MAX_DIMS) {
        return ls_fail(LS_ERR_SHAPE,
                       "ls_embedding: cannot select rows of %s with an index of %s: weight must have two dimensions "
                       "and the index at most %d",
                       LS_SHAPE_TEXT(weight), LS_SHAPE_TEXT(index), LS_MAX_DIMS - 1);
    }
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < index->ndim; i++) {
        size[i] = index->size[i];
    }
    size[index->ndim] = weight->size[1];
    call->output =
        ls_tensor_new(call->op->name, ls_tensor_device(call->inputs[0]), index->ndim + 1, size, weight->dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status embedding_forward(ls_op_call *call) {
    const ls_tensor *index = call->inputs[INDEX];
    ls_tensor rows = ls_stack_view_dense(call->output, 2, (const int64_t[]){index->count, call->inputs[X]->size[1]});
    const ls_tensor flat = ls_stack_view_dense(index, 1, &index->count);
    return pick(call, &rows, &flat);
}

static ls_status embedding_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *index = node->inputs[INDEX];
    const ls_tensor flat = ls_stack_view_dense(index, 1, &index->count);
    return put_back(node, gradient, 2, (const int64_t[]){index->count, node->inputs[X]->size[1]}, &flat);
}

/* Samples may lie along the index, but not along the rows of the table. */
static ls_samples_use embedding_samples(ls_samples_call *call) {
    return ls_sample_axis(call, X) < 0 ? LS_SAMPLES_KEPT : LS_SAMPLES_MIXED;
}

static const ls_op embedding_op = {.name = "ls_embedding",
                                   .shape = embedding_shape,
                                   .forward = embedding_forward,
                                   .backward = embedding_backward,
                                   .over_samples = embedding_samples,
                                   .reads = {[X] = 1U << INDEX},
                                   .kernel = LS_KERNEL(index_select),
                                   .kernel_backward = LS_KERNEL(index_add)};

ls_tensor *ls_embedding(ls_tensor *weight, ls_tensor *index) {
    return weight == NULL || index == NULL ? apply_to_null(&embedding_op, weight, index)
                                           : apply_indexed(&embedding_op, weight, 0, index);
}

/* ---- take_along -------------------------------------------------------------------------------------------------- */

static ls_status take_along_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[X], *index = call->inputs[INDEX];
    bool fits = x->ndim == index->ndim;
    for (int i = 0; i < x->ndim && fits; i++) {
        fits = i == axis_of(call->parameters) || index->size[i] <= x->size[i];
    }
    if (!fits) {
        return ls_fail(LS_ERR_SHAPE,
                       "ls_take_along_axis: an index of %s does not fit %s: the index may be larger along axis %d only",
                       LS_SHAPE_TEXT(index), LS_SHAPE_TEXT(x), axis_of(call->parameters));
    }
    call->output = ls_tensor_like(call->op->name, index, x->dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static const ls_op take_along_op = {.name = "ls_take_along_axis",
                                    .shape = take_along_shape,
                                    .forward = pick_forward,
                                    .backward = pick_backward,
                                    .over_samples = ls_mixes_along_axis,
                                    .reads = {[X] = 1U << INDEX},
                                    .kernel = LS_KERNEL(take_along),
                                    .kernel_backward = LS_KERNEL(scatter_add)};

ls_tensor *ls_take_along_axis(ls_tensor *x, int axis, ls_tensor *index) {
    if (x == NULL || index == NULL) {
        return apply_to_null(&take_along_op, x, index);
    }
    const int along = ls_op_axis("ls_take_along_axis", x, axis);
    return along < 0 ? NULL : apply_indexed(&take_along_op, x, along, index);
}

const ls_op *const ls_index_ops[] = {&index_select_op, &embedding_op, &take_along_op, NULL};
