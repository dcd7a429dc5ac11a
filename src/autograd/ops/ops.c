#include "autograd/ops/ops.h"

#include <stdio.h>
#include <string.h>

#include "autograd/ops/promote.h"

const ls_op *const *const ls_op_families[] = {
    ls_elementwise_ops, ls_compare_ops,
    ls_reduce_ops,      ls_extremes_ops,
    ls_statistics_ops,  ls_shape_ops,
    ls_join_ops,        ls_copy_ops,
    ls_index_ops,       ls_matmul_ops,
    ls_linear_ops,      ls_softmax_ops,
    ls_norm_ops,        ls_batch_norm_ops,
    ls_loss_ops,        ls_class_loss_ops,
    ls_random_ops,      ls_conv_ops,
    ls_pool_ops,        ls_steps_ops,
    ls_sort_ops,        ls_attention_ops,
    ls_rotary_ops,      ls_recurrent_ops,
    ls_resize_ops,      NULL,
};

bool ls_inputs_are_given(const char *call, ls_tensor *const *inputs, int input_count) {
    for (int i = 0; i < input_count; i++) {
        if (inputs[i] == NULL) {
            return ls_apply(&(const ls_op){.name = call}, inputs, input_count, NULL) != NULL; /* reports the error */
        }
    }
    return ls_inputs_are_here(call, inputs, input_count);
}

ls_status ls_check_value(const char *call, const ls_tensor *x, double value) {
    const ls_dtype dtype = (ls_dtype)x->dtype;
    return ls_dtype_holds(dtype, value) ? LS_OK
                                        : ls_fail(LS_ERR_ARGUMENT, "%s: %g does not fit into %s, the tensor's dtype",
                                                  call, value, ls_dtype_name(dtype));
}

int ls_op_axis(const char *call, const ls_tensor *x, int axis) {
    const int index = ls_axis_index(axis, x->ndim);
    if (index < 0) {
        (void)ls_fail_noted(LS_ERR_ARGUMENT, "%s: axis %d does not exist in %s, which has %d axes", call, axis,
                            LS_SHAPE_TEXT(x), x->ndim);
    }
    return index;
}

/* "the last axis" reads better than an index, which would differ between operands. */
static ls_status broadcast_failed(const char *call, const ls_tensor *a, const ls_tensor *b, int from_end) {
    const int64_t a_size = a->size[a->ndim - from_end], b_size = b->size[b->ndim - from_end];
    char axis[32];
    if (from_end == 1) {
        snprintf(axis, sizeof axis, "the last axis");
    } else {
        snprintf(axis, sizeof axis, "axis %d", -from_end);
    }
    return ls_fail(LS_ERR_SHAPE, "%s: %s does not broadcast with %s: sizes %lld and %lld of %s differ", call,
                   LS_SHAPE_TEXT(a), LS_SHAPE_TEXT(b), (long long)a_size, (long long)b_size, axis);
}

ls_status ls_broadcast_shapes(const char *call, const ls_tensor *a, const ls_tensor *b, int *ndim, int64_t *size) {
    const int total = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int from_end = 1; from_end <= total; from_end++) {
        const int64_t a_size = from_end <= a->ndim ? a->size[a->ndim - from_end] : 1;
        const int64_t b_size = from_end <= b->ndim ? b->size[b->ndim - from_end] : 1;
        if (a_size != b_size && a_size != 1 && b_size != 1) {
            return broadcast_failed(call, a, b, from_end);
        }
        size[total - from_end] = a_size == 1 ? b_size : a_size;
    }
    *ndim = total;
    return LS_OK;
}

ls_status ls_shape_broadcast(ls_op_call *call, ls_dtype dtype) {
    const char *name = call->op->name;
    const ls_tensor *first = call->inputs[0];
    ls_tensor together; /* only ndim and size are used: the broadcast shape of the inputs so far */
    for (int i = 1; i < call->input_count; i++) {
        const ls_tensor *next = call->inputs[i];
        if (!ls_tensor_same_shape(first, next)) {
            int ndim = 0;
            int64_t size[LS_MAX_DIMS];
            LS_TRY(ls_broadcast_shapes(name, first, next, &ndim, size));
            together.ndim = (int8_t)ndim;
            memcpy(together.size, size, sizeof size);
            first = &together;
        }
    }
    call->output = ls_tensor_new(name, ls_tensor_device(call->inputs[0]), first->ndim, first->size, dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

ls_tensor *ls_number_owned(const char *call, const ls_device *device, ls_dtype dtype, double value) {
    ls_tensor *number = ls_tensor_new_owned(call, device, 0, NULL, dtype);
    if (number != NULL && ls_kernels_of(number)->fill(ls_stream_of(number), number, value) != LS_OK) {
        ls_tensor_drop(number);
        return NULL;
    }
    return number;
}

ls_tensor *ls_dense(const char *call, ls_tensor *x) {
    if (x->contiguous) {
        return ls_tensor_hold(x);
    }
    ls_tensor *dense = ls_tensor_like_owned(call, x, x->dtype);
    if (dense != NULL && ls_kernels_of(x)->copy(ls_stream_of(x), dense, x) != LS_OK) {
        ls_tensor_drop(dense);
        return NULL;
    }
    if (dense != NULL) {
        dense->spread = x->spread;
    }
    return dense;
}

/* ---- stack views ------------------------------------------------------------------------------------------------- */

void ls_dense_strides(int ndim, const int64_t *size, int64_t *stride) {
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= size[i] > 0 ? size[i] : 1;
    }
}

/* Sets only the members that kernels read, because a small training step makes many stack views. */
static inline void begin_view(ls_tensor *view, const ls_tensor *base, int ndim) {
    view->data = base->data;
    view->storage = base->storage;
    view->references = 1;
    view->dtype = base->dtype;
    view->ndim = (int8_t)ndim;
    view->needs_grad = false;
    view->spread = 0;
    view->node = NULL;
    view->leaf = NULL;
    view->scope = NULL;
}

ls_tensor ls_stack_view(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride, int64_t offset) {
    ls_tensor view;
    begin_view(&view, base, ndim);
    view.data = (char *)base->data + offset * (int64_t)ls_dtype_size(base->dtype);
    view.count = 1;
    for (int i = 0; i < ndim; i++) {
        view.size[i] = size[i];
        view.stride[i] = stride[i];
        view.count *= size[i];
    }
    view.contiguous = ls_strides_are_dense(ndim, size, stride);
    return view;
}

ls_tensor ls_stack_view_dense(const ls_tensor *base, int ndim, const int64_t *size) {
    ls_tensor view;
    begin_view(&view, base, ndim);
    ls_dense_strides(ndim, size, view.stride);
    view.contiguous = true;
    view.count = 1;
    for (int i = 0; i < ndim; i++) {
        view.size[i] = size[i];
        view.count *= size[i];
    }
    return view;
}

ls_tensor ls_stack_view_slice(const ls_tensor *base, int axis, int64_t start, int64_t length, int64_t step) {
    int64_t size[LS_MAX_DIMS], stride[LS_MAX_DIMS];
    for (int i = 0; i < base->ndim; i++) {
        size[i] = i == axis ? length : base->size[i];
        stride[i] = i == axis ? step * base->stride[i] : base->stride[i];
    }
    return ls_stack_view(base, base->ndim, size, stride, length > 0 ? start * base->stride[axis] : 0);
}

ls_tensor ls_stack_view_select(const ls_tensor *base, int axis, int64_t index) {
    int64_t size[LS_MAX_DIMS], stride[LS_MAX_DIMS];
    for (int i = 0, kept = 0; i < base->ndim; i++) {
        if (i != axis) {
            size[kept] = base->size[i];
            stride[kept++] = base->stride[i];
        }
    }
    return ls_stack_view(base, base->ndim - 1, size, stride, index * base->stride[axis]);
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

ls_status ls_shape_as_input(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->output = ls_tensor_like(call->op->name, x, x->dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

ls_status ls_forward_map(ls_op_call *call) {
    return ls_map(call->op->kernel, call->output, (const ls_tensor *const *)call->inputs,
                  call->parameters == NULL ? NULL : call->parameters->number);
}

ls_status ls_backward_same(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate(node, 0, gradient);
}

ls_status ls_accumulate_map(ls_node *node, int i, const ls_tensor *gradient, size_t kernel,
                            const ls_tensor *const *operands) {
    ls_tensor *share = ls_tensor_like(node->op->name, gradient, gradient->dtype);
    if (share == NULL) {
        return ls_error_status();
    }
    LS_TRY(ls_map(kernel, share, operands, node->parameters.number));
    return ls_accumulate(node, i, share);
}

ls_tensor *ls_gradient_place_zeroed(ls_node *node, int i) {
    bool accumulate = false;
    ls_tensor *place = ls_gradient_place(node, i, &accumulate);
    if (place == NULL || accumulate) {
        return place;
    }
    return ls_kernels_of(place)->fill(ls_stream_of(place), place, 0) == LS_OK ? place : NULL;
}

ls_status ls_accumulate_repeated(ls_node *node, int i, const ls_tensor *gradient) {
    const ls_tensor *input = node->inputs[i];
    const int added = input->ndim - gradient->ndim;
    int64_t stride[LS_MAX_DIMS];
    for (int k = 0; k < input->ndim; k++) {
        stride[k] = k < added || gradient->size[k - added] != input->size[k] ? 0 : gradient->stride[k - added];
    }
    return ls_accumulate(node, i, ls_tensor_view(gradient, input->ndim, input->size, stride, 0));
}

ls_samples_use ls_mixes_along_axis(ls_samples_call *call) {
    return call->parameters->integer[0] == call->axis ? LS_SAMPLES_MIXED : LS_SAMPLES_KEPT;
}
