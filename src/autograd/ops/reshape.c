/* Views of the same elements in a different shape, if no element has to be moved. */
#include "autograd/ops/ops.h"

/* The sizes are stored in the integer parameters, and their count in the first number. */
ls_op_parameters ls_shape_parameters(int ndim, const int64_t *size) {
    ls_op_parameters parameters = {.number = {ndim}};
    for (int i = 0; i < ndim; i++) {
        parameters.integer[i] = size[i];
    }
    return parameters;
}

/*
 * Computes the strides that view x in a different shape without moving elements. Returns false if no such strides
 * exist. Both shapes are divided, from the end, into the shortest runs of axes with the same number of elements. The
 * axes of x in a run must be contiguous with one another in memory.
 */
bool ls_view_strides(const ls_tensor *x, int ndim, const int64_t *size, int64_t *stride) {
    if (x->count == 0 || x->contiguous) {
        ls_dense_strides(ndim, size, stride);
        return true;
    }
    int from = x->ndim - 1, to = ndim - 1;
    while (from >= 0 && to >= 0) {
        if (x->size[from] == 1) {
            from--;
            continue;
        }
        int64_t step = x->stride[from];
        int64_t x_run = x->size[from], run = 1; /* number of elements of the run in each shape */
        int64_t next = step * x_run;            /* the stride that the previous axis must have to extend the run */
        from--;
        while (to >= 0 && (run < x_run || size[to] == 1)) {
            stride[to] = step * run;
            run *= size[to--];
            while (run > x_run && from >= 0) {
                if (x->size[from] != 1 && x->stride[from] != next) {
                    return false;
                }
                next *= x->size[from];
                x_run *= x->size[from--];
            }
        }
        if (run != x_run) {
            return false;
        }
    }
    while (to >= 0) {
        stride[to--] = 1; /* the remaining axes have size 1 */
    }
    return true;
}

static ls_status reshape_shape(ls_op_call *call) {
    const ls_op_parameters *p = call->parameters;
    int64_t stride[LS_MAX_DIMS];
    const int ndim = (int)p->number[0];
    if (!ls_view_strides(call->inputs[0], ndim, p->integer, stride)) {
        return ls_fail(LS_ERR_INTERNAL, "%s: the shape cannot be a view of %s", call->op->name,
                       LS_SHAPE_TEXT(call->inputs[0]));
    }
    call->output = ls_tensor_view(call->inputs[0], ndim, p->integer, stride, 0);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status reshape_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    int64_t stride[LS_MAX_DIMS];
    if (ls_view_strides(gradient, x->ndim, x->size, stride)) {
        return ls_accumulate(node, 0, ls_tensor_view(gradient, x->ndim, x->size, stride, 0));
    }
    ls_tensor *share = ls_tensor_like(node->op->name, x, x->dtype);
    if (share == NULL) {
        return ls_error_status();
    }
    ls_tensor view = ls_stack_view_dense(share, gradient->ndim, gradient->size);
    LS_TRY(ls_kernels_of(share)->copy(ls_stream_of(share), &view, gradient));
    return ls_accumulate(node, 0, share);
}

/*
 * Returns the axis of y that contains the elements of axis `axis` of x, alone or merged with other axes, or -1 if they
 * are spread over several axes.
 */
static int axis_in(const ls_tensor *x, int axis, const ls_tensor *y) {
    const int64_t size = x->size[axis];
    int64_t below = 1; /* number of elements of the axes after `axis` */
    for (int i = axis + 1; i < x->ndim; i++) {
        below *= x->size[i];
    }
    int64_t step = 1;
    for (int i = y->ndim - 1; i >= 0 && x->count > 0; i--) {
        const int64_t end = step * y->size[i];
        if (step <= below && below * size <= end && below < end) {
            return i;
        }
        step = end;
    }
    return -1;
}

/*
 * Samples along the outermost part stay outermost, after axes of size 1. An axis of a single sample looks like any
 * other axis of size 1: if it leads, it is assumed to be the first; otherwise new axes make its position unknown.
 */
static ls_samples_use reshape_samples(ls_samples_call *call) {
    const ls_tensor *x = call->inputs[0], *y = call->output;
    if (!call->leads) {
        call->axis = call->single && y->ndim > x->ndim ? -1 : axis_in(x, call->axis, y);
        return LS_SAMPLES_MOVED;
    }
    while (!call->single && x->ndim > 0 && call->axis < y->ndim - 1 && y->size[call->axis] == 1) {
        call->axis++;
    }
    return LS_SAMPLES_MOVED;
}

const ls_op ls_reshape_op = {
    .name = "ls_reshape", .shape = reshape_shape, .backward = reshape_backward, .over_samples = reshape_samples};

ls_tensor *ls_view_as_is(ls_tensor *x) {
    const ls_op_parameters parameters = ls_shape_parameters(x->ndim, x->size);
    return ls_apply(&ls_reshape_op, &x, 1, &parameters);
}
