/* Views: the same elements with a different shape or order, or a subset or repetition of them. */
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

static ls_status made_view(ls_op_call *call, int ndim, const int64_t *size, const int64_t *stride, int64_t offset) {
    call->output = ls_tensor_view(call->inputs[0], ndim, size, stride, offset);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

/* ---- reshape ----------------------------------------------------------------------------------------------------- */

/* Reshapes x, which is not NULL, to a shape with the same number of elements. */
static ls_tensor *reshaped(ls_tensor *x, int ndim, const int64_t *size) {
    const ls_op_parameters parameters = ls_shape_parameters(ndim, size);
    int64_t stride[LS_MAX_DIMS];
    if (ls_view_strides(x, ndim, size, stride)) {
        return ls_apply(&ls_reshape_op, &x, 1, &parameters);
    }
    ls_tensor *dense = ls_contiguous(x);
    ls_tensor *y = ls_apply(&ls_reshape_op, &dense, 1, &parameters);
    ls_release(dense);
    return y;
}

/* Computes the size that replaces -1. */
static ls_status resolve_shape(const ls_tensor *x, ls_shape *shape) {
    const ls_shape asked = *shape;
    int64_t known = 1, bytes = (int64_t)ls_dtype_size((ls_dtype)x->dtype);
    int unknown = -1;
    bool fits = true;
    if (asked.ndim < 0 || asked.ndim > LS_MAX_DIMS) {
        return ls_fail(LS_ERR_SHAPE, "ls_reshape: more than %d dimensions", LS_MAX_DIMS);
    }
    for (int i = 0; i < asked.ndim; i++) {
        const bool is_unknown = asked.size[i] == -1;
        if (asked.size[i] < -1 || (is_unknown && unknown >= 0)) {
            return ls_fail(LS_ERR_SHAPE, "ls_reshape: %s: at most one size may be negative, and it must be -1",
                           ls_shape_describe(asked.ndim, asked.size).text);
        }
        unknown = is_unknown ? i : unknown;
        if (!is_unknown && __builtin_mul_overflow(known, asked.size[i], &known)) {
            known = INT64_MAX; /* larger than every tensor; rejected below */
        }
        fits = !__builtin_mul_overflow(bytes, asked.size[i] > 0 ? asked.size[i] : 1, &bytes) && fits;
    }
    if (x->count == 0 && !fits) { /* the strides of the result would overflow */
        return ls_fail(LS_ERR_SHAPE, "ls_reshape: %s cannot become %s: it has more elements than int64_t can count",
                       LS_SHAPE_TEXT(x), ls_shape_describe(asked.ndim, asked.size).text);
    }
    if (unknown >= 0 && known > 0 && x->count % known == 0) {
        shape->size[unknown] = x->count / known;
        return LS_OK;
    }
    if (unknown >= 0 || known != x->count) {
        return ls_fail(LS_ERR_SHAPE, "ls_reshape: %s has %lld elements, which cannot form %s", LS_SHAPE_TEXT(x),
                       (long long)x->count, ls_shape_describe(asked.ndim, asked.size).text);
    }
    return LS_OK;
}

ls_tensor *ls_reshape(ls_tensor *x, ls_shape shape) {
    if (x == NULL) {
        return ls_apply(&ls_reshape_op, &x, 1, NULL);
    }
    return resolve_shape(x, &shape) == LS_OK ? reshaped(x, shape.ndim, shape.size) : ls_scope_failed();
}

ls_tensor *ls_flatten(ls_tensor *x, int first, int last) {
    if (x == NULL || x->ndim == 0) {
        return x == NULL ? ls_apply(&ls_reshape_op, &x, 1, NULL) : reshaped(x, 1, (const int64_t[]){1});
    }
    const int from = ls_op_axis("ls_flatten", x, first), to = from < 0 ? -1 : ls_op_axis("ls_flatten", x, last);
    if (to < 0) {
        return NULL;
    }
    if (from > to) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_flatten: the first axis %d is after the last axis %d", first, last);
    }
    int64_t size[LS_MAX_DIMS];
    int ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        if (i > from && i <= to) {
            size[from] *= x->size[i];
        } else {
            size[ndim++] = x->size[i];
        }
    }
    return reshaped(x, ndim, size);
}

ls_tensor *ls_squeeze(ls_tensor *x, int axis) {
    if (x == NULL) {
        return ls_apply(&ls_reshape_op, &x, 1, NULL);
    }
    const int gone = ls_op_axis("ls_squeeze", x, axis);
    if (gone < 0) {
        return NULL;
    }
    if (x->size[gone] != 1) {
        return ls_fail_noted(LS_ERR_SHAPE, "ls_squeeze: axis %d of %s has size %lld, not 1", axis, LS_SHAPE_TEXT(x),
                             (long long)x->size[gone]);
    }
    int64_t size[LS_MAX_DIMS];
    for (int i = 0, ndim = 0; i < x->ndim; i++) {
        if (i != gone) {
            size[ndim++] = x->size[i];
        }
    }
    return reshaped(x, x->ndim - 1, size);
}

int ls_op_new_axis(const char *call, const ls_tensor *x, int axis) {
    if (x->ndim == LS_MAX_DIMS) {
        (void)ls_fail_noted(LS_ERR_SHAPE, "%s: %s already has the maximum of %d dimensions", call, LS_SHAPE_TEXT(x),
                            LS_MAX_DIMS);
        return -1;
    }
    const int index = ls_axis_index(axis, x->ndim + 1);
    if (index < 0) {
        (void)ls_fail_noted(LS_ERR_ARGUMENT, "%s: cannot insert axis %d into %s", call, axis, LS_SHAPE_TEXT(x));
    }
    return index;
}

ls_tensor *ls_unsqueeze(ls_tensor *x, int axis) {
    if (x == NULL) {
        return ls_apply(&ls_reshape_op, &x, 1, NULL);
    }
    const int added = ls_op_new_axis("ls_unsqueeze", x, axis);
    if (added < 0) {
        return NULL;
    }
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i <= x->ndim; i++) {
        size[i] = i == added ? 1 : x->size[i - (i > added)];
    }
    return reshaped(x, x->ndim + 1, size);
}

/* ---- permute ----------------------------------------------------------------------------------------------------- */

static ls_status permute_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    int64_t size[LS_MAX_DIMS], stride[LS_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        size[i] = x->size[call->parameters->integer[i]];
        stride[i] = x->stride[call->parameters->integer[i]];
    }
    return made_view(call, x->ndim, size, stride, 0);
}

static ls_status permute_backward(ls_node *node, ls_tensor *gradient) {
    int64_t size[LS_MAX_DIMS], stride[LS_MAX_DIMS];
    for (int i = 0; i < gradient->ndim; i++) {
        size[node->parameters.integer[i]] = gradient->size[i];
        stride[node->parameters.integer[i]] = gradient->stride[i];
    }
    return ls_accumulate(node, 0, ls_tensor_view(gradient, gradient->ndim, size, stride, 0));
}

static ls_samples_use permute_samples(ls_samples_call *call) {
    int to = 0;
    while (call->parameters->integer[to] != call->axis) {
        to++;
    }
    call->axis = to;
    return LS_SAMPLES_MOVED;
}

static const ls_op permute_op = {
    .name = "ls_permute", .shape = permute_shape, .backward = permute_backward, .over_samples = permute_samples};

ls_tensor *ls_permute(ls_tensor *x, ls_axes axes) {
    if (x == NULL) {
        return ls_apply(&permute_op, &x, 1, NULL);
    }
    if (axes.count != x->ndim) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_permute: %d axes are given for %s, which has %d", axes.count,
                             LS_SHAPE_TEXT(x), x->ndim);
    }
    ls_op_parameters parameters = {0};
    bool used[LS_MAX_DIMS] = {false};
    for (int i = 0; i < axes.count; i++) {
        const int axis = ls_op_axis("ls_permute", x, axes.axis[i]);
        if (axis < 0) {
            return NULL;
        }
        if (used[axis]) {
            return ls_fail_noted(LS_ERR_ARGUMENT, "ls_permute: axis %d is given twice", axis);
        }
        used[axis] = true;
        parameters.integer[i] = axis;
    }
    return ls_apply(&permute_op, &x, 1, &parameters);
}

ls_tensor *ls_transpose(ls_tensor *x, int a, int b) {
    if (x == NULL) {
        return ls_apply(&permute_op, &x, 1, NULL);
    }
    const int first = ls_op_axis("ls_transpose", x, a), second = first < 0 ? -1 : ls_op_axis("ls_transpose", x, b);
    if (second < 0) {
        return NULL;
    }
    ls_op_parameters parameters = {0};
    for (int i = 0; i < x->ndim; i++) {
        parameters.integer[i] = i == first ? second : i == second ? first : i;
    }
    return ls_apply(&permute_op, &x, 1, &parameters);
}

/* ---- expand ------------------------------------------------------------------------------------------------------ */

static ls_status expand_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const int ndim = (int)call->parameters->number[0], added = ndim - x->ndim;
    int64_t stride[LS_MAX_DIMS];
    for (int i = 0; i < ndim; i++) {
        const bool repeats = i < added || (x->size[i - added] == 1 && call->parameters->integer[i] != 1);
        stride[i] = repeats ? 0 : x->stride[i - added];
    }
    return made_view(call, ndim, call->parameters->integer, stride, 0);
}

static ls_samples_use expand_samples(ls_samples_call *call) {
    call->axis += call->output->ndim - call->inputs[0]->ndim;
    return LS_SAMPLES_MOVED;
}

static const ls_op expand_op = {
    .name = "ls_expand", .shape = expand_shape, .backward = ls_backward_same, .over_samples = expand_samples};

ls_tensor *ls_expand(ls_tensor *x, ls_shape shape) {
    if (x == NULL) {
        return ls_apply(&expand_op, &x, 1, NULL);
    }
    if (shape.ndim < 0 || shape.ndim > LS_MAX_DIMS) {
        return ls_fail_noted(LS_ERR_SHAPE, "ls_expand: more than %d dimensions", LS_MAX_DIMS);
    }
    const ls_shape_text asked = ls_shape_describe(shape.ndim, shape.size);
    const int added = shape.ndim - x->ndim;
    if (added < 0) {
        return ls_fail_noted(LS_ERR_SHAPE, "ls_expand: %s cannot become %s: it has more dimensions", LS_SHAPE_TEXT(x),
                             asked.text);
    }
    int64_t bytes = (int64_t)ls_dtype_size(x->dtype);
    bool fits = true;
    for (int i = 0; i < shape.ndim; i++) {
        const int64_t old = i < added ? 1 : x->size[i - added];
        const int64_t size = shape.size[i] == -1 && i >= added ? old : shape.size[i];
        if (size < 0 || (size != old && old != 1)) {
            return ls_fail_noted(LS_ERR_SHAPE, "ls_expand: %s cannot become %s: axis %d has size %lld",
                                 LS_SHAPE_TEXT(x), asked.text, i, (long long)old);
        }
        shape.size[i] = size;
        fits = !__builtin_mul_overflow(bytes, size != 0 ? size : 1, &bytes) && fits;
    }
    if (!fits) { /* the view needs no memory, but the number of elements must fit into 64 bits */
        return ls_fail_noted(LS_ERR_SHAPE,
                             "ls_expand: %s cannot become %s: it has more elements than int64_t can count",
                             LS_SHAPE_TEXT(x), asked.text);
    }
    const ls_op_parameters parameters = ls_shape_parameters(shape.ndim, shape.size);
    return ls_apply(&expand_op, &x, 1, &parameters);
}

/* ---- slice ------------------------------------------------------------------------------------------------------- */

enum { SLICE_AXIS, SLICE_START, SLICE_LENGTH, SLICE_STEP, SLICE_DROPS_AXIS };

static ls_tensor sliced(const ls_tensor *x, const ls_op_parameters *p) {
    const int axis = (int)p->integer[SLICE_AXIS];
    return p->integer[SLICE_DROPS_AXIS] ? ls_stack_view_select(x, axis, p->integer[SLICE_START])
                                        : ls_stack_view_slice(x, axis, p->integer[SLICE_START],
                                                              p->integer[SLICE_LENGTH], p->integer[SLICE_STEP]);
}

static ls_status slice_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const ls_tensor view = sliced(x, call->parameters);
    const int64_t bytes = (const char *)view.data - (const char *)x->data;
    return made_view(call, view.ndim, view.size, view.stride, bytes / (int64_t)ls_dtype_size(x->dtype));
}

/*
 * The gradient is 0 outside the slice. It is added in place, so that each of many slices of a tensor touches only its
 * own elements.
 */
static ls_status slice_backward(ls_node *node, ls_tensor *gradient) {
    bool accumulate = false;
    ls_tensor *place = ls_gradient_place(node, 0, &accumulate);
    if (place == NULL) {
        return ls_error_status();
    }
    ls_tensor part = sliced(place, &node->parameters);
    if (accumulate) {
        return ls_add_into(&part, gradient);
    }
    const ls_kernels *kernels = ls_kernels_of(place);
    LS_TRY(kernels->fill(ls_stream_of(place), place, 0));
    return kernels->copy(ls_stream_of(place), &part, gradient);
}

/* Even a rank with a single sample has only a part of the batch, so dropping the axis of the samples mixes samples. */
static ls_samples_use slice_samples(ls_samples_call *call) {
    const int64_t *integer = call->parameters->integer;
    if (!integer[SLICE_DROPS_AXIS]) {
        return LS_SAMPLES_KEPT;
    }
    if (integer[SLICE_AXIS] == call->axis) {
        return LS_SAMPLES_MIXED;
    }
    call->axis -= integer[SLICE_AXIS] < call->axis;
    return LS_SAMPLES_MOVED;
}

static const ls_op slice_op = {
    .name = "ls_slice", .shape = slice_shape, .backward = slice_backward, .over_samples = slice_samples};

ls_tensor *ls_narrow(ls_tensor *x, int axis, int64_t start, int64_t length) {
    if (x == NULL) {
        return ls_apply(&slice_op, &x, 1, NULL);
    }
    const int index = ls_op_axis("ls_narrow", x, axis);
    if (index < 0) {
        return NULL;
    }
    const int64_t size = x->size[index], from = start < 0 ? start + size : start;
    if (from < 0 || length < 0 || from > size || length > size - from) {
        return ls_fail_noted(
            LS_ERR_ARGUMENT,
            "ls_narrow: cannot take %lld positions, starting at %lld, of axis %d of %s, which has %lld",
            (long long)length, (long long)start, axis, LS_SHAPE_TEXT(x), (long long)size);
    }
    const ls_op_parameters parameters = {.integer = {index, from, length, 1, false}};
    return ls_apply(&slice_op, &x, 1, &parameters);
}

/* Normalizes a position like Python: a negative position counts from the end; the result is clamped to 0..size. */
static int64_t held_position(int64_t position, int64_t size) {
    const int64_t from_start = position < 0 ? position + size : position;
    return from_start < 0 ? 0 : from_start > size ? size : from_start;
}

ls_tensor *ls_slice(ls_tensor *x, int axis, int64_t start, int64_t stop, int64_t step) {
    if (x == NULL) {
        return ls_apply(&slice_op, &x, 1, NULL);
    }
    const int index = ls_op_axis("ls_slice", x, axis);
    if (index < 0) {
        return NULL;
    }
    if (step <= 0) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_slice: step is %lld, but must be positive", (long long)step);
    }
    const int64_t from = held_position(start, x->size[index]), to = held_position(stop, x->size[index]);
    const int64_t length = to > from ? (to - from - 1) / step + 1 : 0;
    const ls_op_parameters parameters = {.integer = {index, from, length, length > 1 ? step : 1, false}};
    return ls_apply(&slice_op, &x, 1, &parameters);
}

ls_tensor *ls_select(ls_tensor *x, int axis, int64_t index) {
    if (x == NULL) {
        return ls_apply(&slice_op, &x, 1, NULL);
    }
    const int gone = ls_op_axis("ls_select", x, axis);
    if (gone < 0) {
        return NULL;
    }
    const int64_t size = x->size[gone], from = index < 0 ? index + size : index;
    if (from < 0 || from >= size) {
        return ls_fail_noted(LS_ERR_ARGUMENT,
                             "ls_select: position %lld is out of range for axis %d of %s, which has %lld positions",
                             (long long)index, axis, LS_SHAPE_TEXT(x), (long long)size);
    }
    const ls_op_parameters parameters = {.integer = {gone, from, 1, 1, true}};
    return ls_apply(&slice_op, &x, 1, &parameters);
}

int ls_split(ls_tensor *x, int axis, int64_t size, ls_tensor **parts, int capacity) {
    if (!ls_inputs_are_given("ls_split", &x, 1)) {
        return -1;
    }
    const int index = ls_op_axis("ls_split", x, axis);
    if (index < 0) {
        return -1;
    }
    if (size <= 0 || parts == NULL) {
        (void)ls_fail_noted(LS_ERR_ARGUMENT, "ls_split: %s",
                            size <= 0 ? "the size of a part must be positive" : "parts is NULL");
        return -1;
    }
    const int64_t total = x->size[index], count = total == 0 ? 1 : (total - 1) / size + 1;
    if (count > capacity) {
        (void)ls_fail_noted(LS_ERR_ARGUMENT,
                            "ls_split: splitting %s into parts of %lld along axis %d makes %lld tensors, but the array "
                            "has room for only %d",
                            LS_SHAPE_TEXT(x), (long long)size, axis, (long long)count, capacity);
        return -1;
    }
    for (int i = 0; i < (int)count; i++) {
        const int64_t start = i * size;
        parts[i] = ls_narrow(x, index, start, total - start < size ? total - start : size);
        if (parts[i] == NULL) {
            while (i > 0) {
                ls_release(parts[--i]);
            }
            return -1;
        }
    }
    return (int)count;
}

const ls_op *const ls_shape_ops[] = {&ls_reshape_op, &permute_op, &expand_op, &slice_op, NULL};
