/* Sorting along an axis. Values are gathered by index, so that their gradients return to their positions. */
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

/* Indices in integer[] of the parameters; ls_mixes_along_axis reads the axis. */
enum { AXIS, DESCENDING };

static ls_status argsort_shape(ls_op_call *call) {
    call->output = ls_tensor_like(call->op->name, call->inputs[0], LS_I64);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status argsort_forward(ls_op_call *call) {
    const int64_t *integer = call->parameters->integer;
    ls_tensor *x = ls_dense(call->op->name, call->inputs[0]);
    if (x == NULL) {
        return ls_error_status();
    }
    const ls_status status =
        ls_kernels_of(x)->argsort(ls_stream_of(x), call->output, x, (int)integer[AXIS], integer[DESCENDING] != 0);
    ls_tensor_drop(x);
    return status;
}

#define ORDER(name_)                                                                                                   \
    { .name = (name_), .shape = argsort_shape, .forward = argsort_forward, .over_samples = ls_mixes_along_axis }
static const ls_op argsort_op = ORDER("ls_argsort");
static const ls_op sort_op = ORDER("ls_sort");
static const ls_op top_k_op = ORDER("ls_top_k");

const ls_op *const ls_sort_ops[] = {&argsort_op, &sort_op, &top_k_op, NULL};

/* `axis` must be a valid axis of x. */
static ls_tensor *order(const ls_op *op, ls_tensor *x, int axis, bool descending) {
    const ls_op_parameters parameters = {.integer = {[AXIS] = axis, [DESCENDING] = descending}};
    return ls_apply_as(op, &x, 1, 1, &parameters, ls_compute_dtype((ls_dtype)x->dtype), LS_I64);
}

/* Returns the elements of x at `index`. Stores the index in *indices unless this pointer is NULL. */
static ls_tensor *take(ls_tensor *x, int axis, ls_tensor *index, ls_tensor **indices) {
    ls_tensor *values = index == NULL ? NULL : ls_take_along_axis(x, axis, index);
    if (values != NULL && indices != NULL) {
        *indices = index;
    } else {
        ls_release(index);
    }
    return values;
}

ls_tensor *ls_argsort(ls_tensor *x, int axis, bool descending) {
    const int along = ls_inputs_are_given(argsort_op.name, &x, 1) ? ls_op_axis(argsort_op.name, x, axis) : -1;
    return along < 0 ? NULL : order(&argsort_op, x, along, descending);
}

ls_tensor *ls_sort(ls_tensor *x, int axis, bool descending, ls_tensor **indices) {
    if (indices != NULL) {
        *indices = NULL;
    }
    const int along = ls_inputs_are_given(sort_op.name, &x, 1) ? ls_op_axis(sort_op.name, x, axis) : -1;
    return along < 0 ? NULL : take(x, along, order(&sort_op, x, along, descending), indices);
}

ls_tensor *ls_top_k(ls_tensor *x, int64_t k, int axis, bool smallest, ls_tensor **indices) {
    if (indices != NULL) {
        *indices = NULL;
    }
    const int along = ls_inputs_are_given(top_k_op.name, &x, 1) ? ls_op_axis(top_k_op.name, x, axis) : -1;
    if (along < 0) {
        return NULL;
    }
    if (k < 0 || k > x->size[along]) {
        return ls_fail_noted(LS_ERR_ARGUMENT,
                             "ls_top_k: cannot take the top %lld of %lld positions along axis %d of %s", (long long)k,
                             (long long)x->size[along], axis, LS_SHAPE_TEXT(x));
    }
    ls_tensor *all = order(&top_k_op, x, along, !smallest);
    ls_tensor *first = all == NULL ? NULL : ls_narrow(all, along, 0, k);
    /* a copy, because a view would keep all the indices alive */
    ls_tensor *index = first == NULL ? NULL : ls_clone(first);
    ls_release(all);
    ls_release(first);
    return take(x, along, index, indices);
}
