/* Operations that move elements, composed of views, joins and selections by index. */
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

/* Returns size - 1, ..., 1, 0 as a tensor on x's device. */
static ls_tensor *backwards(const char *call, const ls_tensor *x, int64_t size) {
    ls_tensor *count = ls_tensor_new(call, ls_tensor_device(x), 1, &size, LS_I64);
    if (count != NULL && ls_kernels_of(count)->count_up(ls_stream_of(count), count) != LS_OK) {
        ls_release(count);
        return ls_scope_failed();
    }
    ls_tensor *y = count == NULL ? NULL : ls_rsub_integer(size - 1, count);
    ls_release(count);
    return y;
}

ls_tensor *ls_flip(ls_tensor *x, ls_axes axes) {
    static const char call[] = "ls_flip";
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    if (axes.count < 0 || axes.count > LS_MAX_DIMS) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: more than %d axes", call, LS_MAX_DIMS);
    }
    bool flipped[LS_MAX_DIMS] = {false};
    for (int i = 0; i < axes.count; i++) {
        const int axis = ls_op_axis(call, x, axes.axis[i]);
        if (axis < 0) {
            return NULL;
        }
        if (flipped[axis]) {
            return ls_fail_noted(LS_ERR_ARGUMENT, "%s: axis %d is given twice", call, axis);
        }
        flipped[axis] = true;
    }
    ls_tensor *y = x;
    for (int axis = 0; axis < x->ndim && y != NULL; axis++) {
        if (axes.count == 0 || flipped[axis]) {
            ls_tensor *index = backwards(call, x, x->size[axis]);
            y = ls_replaced(index == NULL ? NULL : ls_index_select(y, axis, index), y, x);
            ls_release(index);
        }
    }
    return y == x ? ls_view_as_is(x) : y;
}

ls_tensor *ls_roll(ls_tensor *x, int64_t shift, int axis) {
    const int along = ls_inputs_are_given("ls_roll", &x, 1) ? ls_op_axis("ls_roll", x, axis) : -1;
    if (along < 0) {
        return NULL;
    }
    const int64_t size = x->size[along];
    const int64_t forwards = size > 0 ? (shift % size + size) % size : 0;
    if (forwards == 0) {
        return ls_view_as_is(x);
    }
    ls_tensor *parts[] = {ls_narrow(x, along, size - forwards, forwards), ls_narrow(x, along, 0, size - forwards)};
    ls_tensor *y = ls_concat(parts, 2, along);
    ls_release(parts[0]);
    ls_release(parts[1]);
    return y;
}

/* Returns `times` copies of x, joined along the axis. */
static ls_tensor *repeated(ls_tensor *x, int axis, int64_t times) {
    int64_t before = 1, after = 1;
    ls_shape shape = ls_shape_of(x);
    for (int i = 0; i < x->ndim; i++) {
        *(i < axis ? &before : &after) *= x->size[i];
    }
    shape.size[axis] *= times;
    ls_tensor *apart = ls_reshape(x, LS_SHAPE(before, 1, after));
    ls_tensor *all = apart == NULL ? NULL : ls_expand(apart, LS_SHAPE(before, times, after));
    ls_tensor *y = all == NULL ? NULL : ls_reshape(all, shape);
    ls_release(apart);
    ls_release(all);
    return y;
}

/* Sets `shape` to x's shape with as many axes as `times` has numbers. */
static ls_status check_repeat(const char *call, const ls_tensor *x, const ls_shape *times, ls_shape *shape) {
    const int added = times->ndim - x->ndim;
    int64_t bytes = (int64_t)ls_dtype_size((ls_dtype)x->dtype);
    if (added < 0 || times->ndim > LS_MAX_DIMS) {
        return ls_fail(
            LS_ERR_SHAPE,
            "%s: %d repeat counts are given for %s, but at least one for each axis and at most %d are needed", call,
            times->ndim, LS_SHAPE_TEXT(x), LS_MAX_DIMS);
    }
    shape->ndim = times->ndim;
    for (int i = 0; i < times->ndim; i++) {
        const int64_t size = i < added ? 1 : x->size[i - added];
        if (times->size[i] < 0) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: cannot repeat axis %d %lld times", call, i, (long long)times->size[i]);
        }
        if (__builtin_mul_overflow(bytes, size > 0 ? size : 1, &bytes) ||
            __builtin_mul_overflow(bytes, times->size[i] > 0 ? times->size[i] : 1, &bytes)) {
            return ls_fail(LS_ERR_SHAPE,
                           "%s: %s with axis %d repeated %lld times has more elements than int64_t can count", call,
                           LS_SHAPE_TEXT(x), i, (long long)times->size[i]);
        }
        shape->size[i] = size;
    }
    return LS_OK;
}

ls_tensor *ls_repeat(ls_tensor *x, ls_shape times) {
    static const char call[] = "ls_repeat";
    ls_shape shape = {.ndim = 0};
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    if (check_repeat(call, x, &times, &shape) != LS_OK) {
        return ls_scope_failed();
    }
    ls_tensor *y = ls_reshape(x, shape);
    for (int i = 0; i < times.ndim && y != NULL; i++) {
        if (times.size[i] != 1) {
            y = ls_replaced(repeated(y, i, times.size[i]), y, NULL);
        }
    }
    return y;
}
