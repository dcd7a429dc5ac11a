/* Maximum and minimum, and their indices. */
#include "autograd/ops/promote.h"
#include "autograd/ops/reduce.h"

/* ---- the gradient: to the first extreme of each group ------------------------------------------------------------ */

/* Views x with its reduced axes last. */
static ls_tensor groups_last(const ls_tensor *x, const ls_op_parameters *parameters) {
    int64_t size[LS_MAX_DIMS], stride[LS_MAX_DIMS];
    int at = 0;
    for (int reduced = 0; reduced < 2; reduced++) {
        for (int i = 0; i < x->ndim; i++) {
            if (ls_reduces(parameters, i) == (reduced == 1)) {
                size[at] = x->size[i];
                stride[at++] = x->stride[i];
            }
        }
    }
    return ls_stack_view(x, x->ndim, size, stride, 0);
}

/* Views a dense tensor, stored in that axis order, with its axes in x's order. Returns ownership of the reference to
 * the caller. */
static ls_tensor *groups_back(const ls_tensor *dense, const ls_tensor *x, const ls_op_parameters *parameters) {
    int64_t stride[LS_MAX_DIMS];
    int64_t step = 1;
    for (int reduced = 1; reduced >= 0; reduced--) {
        for (int i = x->ndim - 1; i >= 0; i--) {
            if (ls_reduces(parameters, i) == (reduced == 1)) {
                stride[i] = step;
                step *= x->size[i];
            }
        }
    }
    return ls_tensor_view_owned(dense, x->ndim, x->size, stride, 0);
}

/* Shapes: rows and spread are [outer, group], g is [outer, 1]. */
static ls_status spread_rows(ls_tensor *spread, ls_tensor *index, const ls_tensor *rows, const ls_tensor *g,
                             size_t kernel) {
    const ls_kernels *kernels = ls_kernels_of(rows);
    ls_stream *stream = ls_stream_of(rows);
    LS_TRY(LS_KERNEL_AT(along, kernels, kernel)(stream, index, rows, 1));
    LS_TRY(kernels->fill(stream, spread, 0));
    return kernels->scatter_add(stream, spread, g, 1, index);
}

ls_tensor *ls_spread_to_extreme(const char *call, const ls_tensor *x, const ls_tensor *g, size_t kernel,
                                const ls_op_parameters *parameters) {
    const int64_t group = parameters->integer[LS_REDUCE_GROUP];
    const int64_t outer = x->count / group;
    ls_tensor x_last = groups_last(x, parameters), g_last = groups_last(g, parameters);
    ls_tensor *dense_x = ls_dense(call, &x_last), *dense_g = ls_dense(call, &g_last);
    ls_tensor *index = ls_tensor_new_owned(call, ls_tensor_device(x), 2, (const int64_t[]){outer, 1}, LS_I64);
    ls_tensor *spread = ls_tensor_new_owned(call, ls_tensor_device(x), 2, (const int64_t[]){outer, group}, x->dtype);
    ls_tensor *result = NULL;
    if (dense_x != NULL && dense_g != NULL && index != NULL && spread != NULL) {
        const ls_tensor rows = ls_stack_view_dense(dense_x, 2, spread->size);
        const ls_tensor g_rows = ls_stack_view_dense(dense_g, 2, index->size);
        if (spread_rows(spread, index, &rows, &g_rows, kernel) == LS_OK) {
            result = groups_back(spread, x, parameters);
        }
    }
    ls_tensor_drop(dense_x);
    ls_tensor_drop(dense_g);
    ls_tensor_drop(index);
    ls_tensor_drop(spread);
    return result;
}

/* ---- max and min ------------------------------------------------------------------------------------------------- */

static ls_status check_elements(const ls_op_call *call) {
    if (call->parameters->integer[LS_REDUCE_GROUP] == 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: the tensor has no elements: %s", call->op->name,
                       LS_SHAPE_TEXT(call->inputs[0]));
    }
    return LS_OK;
}

static ls_status extreme_shape(ls_op_call *call) {
    LS_TRY(check_elements(call));
    return ls_reduce_shape(call);
}

static ls_status extreme_forward(ls_op_call *call) {
    return ls_reduce_into(call->op->kernel, call->output, call->inputs[0], call->parameters);
}

static ls_status extreme_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    const ls_tensor g = ls_reduce_view(gradient, x, &node->parameters);
    ls_tensor *spread = ls_spread_to_extreme(node->op->name, x, &g, node->op->kernel_backward, &node->parameters);
    return spread == NULL ? ls_error_status() : ls_accumulate(node, 0, ls_tensor_give(spread));
}

static const ls_op max_op = {.name = "ls_max",
                             .shape = extreme_shape,
                             .forward = extreme_forward,
                             .backward = extreme_backward,
                             .over_samples = ls_reduce_mixes,
                             .reads = {1},
                             .kernel = LS_KERNEL(max),
                             .kernel_backward = LS_KERNEL(argmax)};
static const ls_op min_op = {.name = "ls_min",
                             .shape = extreme_shape,
                             .forward = extreme_forward,
                             .backward = extreme_backward,
                             .over_samples = ls_reduce_mixes,
                             .reads = {1},
                             .kernel = LS_KERNEL(min),
                             .kernel_backward = LS_KERNEL(argmin)};

static ls_tensor *extreme(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim) {
    if (x == NULL) {
        return ls_apply(op, &x, 1, NULL);
    }
    const ls_dtype dtype = x->dtype;
    return ls_reduce_apply(op, x, axes, keepdim, 0, ls_compute_dtype(dtype), dtype);
}

ls_tensor *ls_max(ls_tensor *x) {
    return extreme(&max_op, x, LS_ALL_AXES, false);
}

ls_tensor *ls_max_axes(ls_tensor *x, ls_axes axes, bool keepdim) {
    return extreme(&max_op, x, axes, keepdim);
}

ls_tensor *ls_min(ls_tensor *x) {
    return extreme(&min_op, x, LS_ALL_AXES, false);
}

ls_tensor *ls_min_axes(ls_tensor *x, ls_axes axes, bool keepdim) {
    return extreme(&min_op, x, axes, keepdim);
}

/* ---- argmax and argmin ------------------------------------------------------------------------------------------- */

static int single_axis(const ls_op_parameters *parameters) {
    int axis = 0;
    while (!ls_reduces(parameters, axis)) {
        axis++;
    }
    return axis;
}

static ls_status argument_shape(ls_op_call *call) {
    LS_TRY(check_elements(call));
    return ls_reduce_shape_as(call, LS_I64);
}

static ls_status argument_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    ls_tensor view = ls_reduce_view(call->output, x, call->parameters);
    return LS_KERNEL_AT(along, ls_kernels_of(x), call->op->kernel)(ls_stream_of(x), &view, x,
                                                                   single_axis(call->parameters));
}

static const ls_op argmax_op = {.name = "ls_argmax",
                                .shape = argument_shape,
                                .forward = argument_forward,
                                .over_samples = ls_reduce_mixes,
                                .kernel = LS_KERNEL(argmax)};
static const ls_op argmin_op = {.name = "ls_argmin",
                                .shape = argument_shape,
                                .forward = argument_forward,
                                .over_samples = ls_reduce_mixes,
                                .kernel = LS_KERNEL(argmin)};

static ls_tensor *argument(const ls_op *op, ls_tensor *x, int axis, bool keepdim) {
    if (x == NULL) {
        return ls_apply(op, &x, 1, NULL);
    }
    return ls_reduce_apply(op, x, LS_AXES(axis), keepdim, 0, ls_compute_dtype(x->dtype), LS_I64);
}

ls_tensor *ls_argmax(ls_tensor *x, int axis, bool keepdim) {
    return argument(&argmax_op, x, axis, keepdim);
}

ls_tensor *ls_argmin(ls_tensor *x, int axis, bool keepdim) {
    return argument(&argmin_op, x, axis, keepdim);
}

const ls_op *const ls_extremes_ops[] = {&max_op, &min_op, &argmax_op, &argmin_op, NULL};
