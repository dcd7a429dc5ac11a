/* Joining and padding tensors: concat, stack, pad. */
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"
#include "autograd/samples.h"

/* ---- concat and stack -------------------------------------------------------------------------------------------- */

/* For concat, whose parameter is the axis: views the part of y that comes from input i and begins at `start`. */
static ls_tensor concat_part(const ls_tensor *y, const ls_op_parameters *parameters, const ls_tensor *input,
                             int64_t start) {
    const int axis = (int)parameters->integer[0];
    return ls_stack_view_slice(y, axis, start, input->size[axis], 1);
}

static ls_status concat_shape(ls_op_call *call) {
    const ls_tensor *first = call->inputs[0];
    const int axis = (int)call->parameters->integer[0];
    int64_t size[LS_MAX_DIMS];
    for (int k = 0; k < first->ndim; k++) {
        size[k] = k == axis ? 0 : first->size[k];
    }
    for (int i = 0; i < call->input_count; i++) {
        const ls_tensor *next = call->inputs[i];
        bool fits = next->ndim == first->ndim;
        for (int k = 0; k < first->ndim && fits; k++) {
            fits = k == axis || next->size[k] == first->size[k];
        }
        if (!fits) {
            return ls_fail(LS_ERR_SHAPE, "ls_concat: tensor %d, %s, does not fit tensor 0, %s, along axis %d", i,
                           LS_SHAPE_TEXT(next), LS_SHAPE_TEXT(first), axis);
        }
        if (__builtin_add_overflow(size[axis], next->size[axis], &size[axis])) {
            return ls_fail(LS_ERR_SHAPE,
                           "ls_concat: the tensors have more positions along axis %d than int64_t can count", axis);
        }
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(call->inputs[0]), first->ndim, size, first->dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status concat_forward(ls_op_call *call) {
    int64_t start = 0;
    for (int i = 0; i < call->input_count; i++) {
        const ls_tensor *x = call->inputs[i];
        ls_tensor part = concat_part(call->output, call->parameters, x, start);
        LS_TRY(ls_kernels_of(x)->copy(ls_stream_of(x), &part, x));
        start += x->size[call->parameters->integer[0]];
    }
    return LS_OK;
}

/* Accumulates the viewed part of the gradient for input i. */
static ls_status accumulate_part(ls_node *node, int i, const ls_tensor *gradient, const ls_tensor *view) {
    const int64_t bytes = (const char *)view->data - (const char *)gradient->data;
    const int64_t offset = bytes / (int64_t)ls_dtype_size(gradient->dtype);
    return ls_accumulate(node, i, ls_tensor_view(gradient, view->ndim, view->size, view->stride, offset));
}

static ls_status concat_backward(ls_node *node, ls_tensor *gradient) {
    int64_t start = 0;
    for (int i = 0; i < node->input_count; i++) {
        const ls_tensor *x = node->inputs[i];
        if (ls_wants(node, i)) {
            const ls_tensor part = concat_part(gradient, &node->parameters, x, start);
            LS_TRY(accumulate_part(node, i, gradient, &part));
        }
        start += x->size[node->parameters.integer[0]];
    }
    return LS_OK;
}

static ls_status stack_shape(ls_op_call *call) {
    const ls_tensor *first = call->inputs[0];
    const int axis = (int)call->parameters->integer[0];
    int64_t size[LS_MAX_DIMS];
    for (int i = 1; i < call->input_count; i++) {
        if (!ls_tensor_same_shape(first, call->inputs[i])) {
            return ls_fail(LS_ERR_SHAPE, "ls_stack: tensor %d is %s, but tensor 0 is %s: the shapes must be equal", i,
                           LS_SHAPE_TEXT(call->inputs[i]), LS_SHAPE_TEXT(first));
        }
    }
    for (int k = 0; k <= first->ndim; k++) {
        size[k] = k == axis ? call->input_count : first->size[k - (k > axis)];
    }
    call->output =
        ls_tensor_new(call->op->name, ls_tensor_device(call->inputs[0]), first->ndim + 1, size, first->dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status stack_forward(ls_op_call *call) {
    for (int i = 0; i < call->input_count; i++) {
        const ls_tensor *x = call->inputs[i];
        ls_tensor part = ls_stack_view_select(call->output, (int)call->parameters->integer[0], i);
        LS_TRY(ls_kernels_of(x)->copy(ls_stream_of(x), &part, x));
    }
    return LS_OK;
}

static ls_status stack_backward(ls_node *node, ls_tensor *gradient) {
    for (int i = 0; i < node->input_count; i++) {
        if (ls_wants(node, i)) {
            const ls_tensor part = ls_stack_view_select(gradient, (int)node->parameters.integer[0], i);
            LS_TRY(accumulate_part(node, i, gradient, &part));
        }
    }
    return LS_OK;
}

/* If samples lie along different axes, a single process would have tensors of different shapes. */
static ls_samples_use stack_samples(ls_samples_call *call) {
    for (int i = 0; i < call->input_count; i++) {
        const int axis = ls_sample_axis(call, i);
        if (axis >= 0 && axis != call->axis) {
            return LS_SAMPLES_MIXED;
        }
    }
    call->axis += call->parameters->integer[0] <= call->axis;
    return LS_SAMPLES_MOVED;
}

/* Inputs without samples may be joined with inputs that have samples only along other axes. */
static ls_samples_use concat_samples(ls_samples_call *call) {
    const bool along_samples = call->parameters->integer[0] == call->axis;
    for (int i = 0; i < call->input_count; i++) {
        const int axis = ls_sample_axis(call, i);
        if (axis != call->axis && (axis >= 0 || along_samples)) {
            return LS_SAMPLES_UNKNOWN;
        }
    }
    call->leads = call->leads && !along_samples;
    return LS_SAMPLES_KEPT;
}

static const ls_op concat_op = {.name = "ls_concat",
                                .shape = concat_shape,
                                .forward = concat_forward,
                                .backward = concat_backward,
                                .over_samples = concat_samples};
static const ls_op stack_op = {.name = "ls_stack",
                               .shape = stack_shape,
                               .forward = stack_forward,
                               .backward = stack_backward,
                               .over_samples = stack_samples};

/* Returns the dtype to which all tensors promote. The tensors have the same number of dimensions. */
static ls_dtype common_dtype(ls_tensor *const *tensors, int count) {
    ls_tensor together = *tensors[0];
    for (int i = 1; i < count; i++) {
        together.dtype = (uint8_t)ls_promote(&together, tensors[i]);
    }
    return together.dtype;
}

static bool any_missing(ls_tensor *const *tensors, int count) {
    for (int i = 0; i < count; i++) {
        if (tensors[i] == NULL || ls_tensor_is_gone(tensors[i])) {
            return true;
        }
    }
    return false;
}

static ls_tensor *join(const ls_op *op, ls_tensor *const *tensors, int count, int axis) {
    const ls_op_parameters parameters = {.integer = {axis}};
    const ls_dtype dtype = common_dtype(tensors, count);
    return ls_apply_as(op, tensors, count, count, &parameters, dtype, dtype);
}

ls_tensor *ls_concat(ls_tensor *const *tensors, int count, int axis) {
    if (tensors == NULL || count < 1) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_concat: needs at least one tensor");
    }
    if (any_missing(tensors, count)) {
        return ls_apply(&concat_op, tensors, count, NULL);
    }
    const int index = ls_op_axis("ls_concat", tensors[0], axis);
    return index < 0 ? NULL : join(&concat_op, tensors, count, index);
}

ls_tensor *ls_stack(ls_tensor *const *tensors, int count, int axis) {
    if (tensors == NULL || count < 1) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_stack: needs at least one tensor");
    }
    if (any_missing(tensors, count)) {
        return ls_apply(&stack_op, tensors, count, NULL);
    }
    const int index = ls_op_new_axis("ls_stack", tensors[0], axis);
    return index < 0 ? NULL : join(&stack_op, tensors, count, index);
}

/* ---- pad --------------------------------------------------------------------------------------------------------- */

enum { PAD_AXIS, PAD_BEFORE, PAD_AFTER };

/* Views the part of y that x fills. */
static ls_tensor pad_middle(const ls_tensor *y, const ls_tensor *x, const ls_op_parameters *p) {
    const int axis = (int)p->integer[PAD_AXIS];
    return ls_stack_view_slice(y, axis, p->integer[PAD_BEFORE], x->size[axis], 1);
}

static ls_status pad_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const ls_op_parameters *p = call->parameters;
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        size[i] = x->size[i] + (i == p->integer[PAD_AXIS] ? p->integer[PAD_BEFORE] + p->integer[PAD_AFTER] : 0);
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(call->inputs[0]), x->ndim, size, x->dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

static ls_status pad_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const ls_op_parameters *p = call->parameters;
    const int axis = (int)p->integer[PAD_AXIS];
    const int64_t before = p->integer[PAD_BEFORE];
    const ls_kernels *kernels = ls_kernels_of(x);
    ls_stream *stream = ls_stream_of(x);
    ls_tensor head = ls_stack_view_slice(call->output, axis, 0, before, 1);
    ls_tensor middle = pad_middle(call->output, x, p);
    ls_tensor tail = ls_stack_view_slice(call->output, axis, before + x->size[axis], p->integer[PAD_AFTER], 1);
    LS_TRY(kernels->fill(stream, &head, p->number[0]));
    LS_TRY(kernels->copy(stream, &middle, x));
    return kernels->fill(stream, &tail, p->number[0]);
}

static ls_status pad_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor middle = pad_middle(gradient, node->inputs[0], &node->parameters);
    return accumulate_part(node, 0, gradient, &middle);
}

static const ls_op pad_op = {.name = "ls_pad",
                             .shape = pad_shape,
                             .forward = pad_forward,
                             .backward = pad_backward,
                             .over_samples = ls_mixes_along_axis};

ls_tensor *ls_pad(ls_tensor *x, int axis, int64_t before, int64_t after, double value) {
    if (x == NULL) {
        return ls_apply(&pad_op, &x, 1, NULL);
    }
    const int index = ls_op_axis("ls_pad", x, axis);
    if (index < 0) {
        return NULL;
    }
    if (ls_check_value("ls_pad", x, value) != LS_OK) {
        return ls_scope_failed();
    }
    int64_t size = x->size[index];
    if (before < 0 || after < 0 || __builtin_add_overflow(size, before, &size) ||
        __builtin_add_overflow(size, after, &size)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_pad: %lld positions before and %lld after cannot be added to %s",
                             (long long)before, (long long)after, LS_SHAPE_TEXT(x));
    }
    const ls_op_parameters parameters = {.number = {value}, .integer = {index, before, after}};
    return ls_apply(&pad_op, &x, 1, &parameters);
}

const ls_op *const ls_join_ops[] = {&concat_op, &stack_op, &pad_op, NULL};
