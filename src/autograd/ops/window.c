#include "autograd/ops/window.h"

#include "autograd/ops/ops.h"

ls_tensor ls_image_view(const ls_tensor *x) {
    int64_t size[2 + LS_SPATIAL] = {x->size[0], x->size[1], 1, 1, 1};
    for (int i = 2; i < x->ndim; i++) {
        size[2 + LS_SPATIAL - x->ndim + i] = x->size[i];
    }
    return ls_stack_view_dense(x, 2 + LS_SPATIAL, size);
}

ls_status ls_check_image(const char *call, const ls_tensor *x) {
    if (x->ndim < 3 || x->ndim > 2 + LS_SPATIAL) {
        return ls_fail(LS_ERR_SHAPE, "%s: x is %s, but must be [n, channels, ...] with 1 to 3 axes after the channels",
                       call, LS_SHAPE_TEXT(x));
    }
    for (int i = 2; i < x->ndim; i++) {
        if (x->size[i] > INT32_MAX) {
            return ls_fail(LS_ERR_SHAPE, "%s: x is %s: sizes over 2^31 - 1 are not supported", call, LS_SHAPE_TEXT(x));
        }
    }
    return LS_OK;
}

ls_status ls_spatial_numbers(const char *call, const char *option, const ls_shape *given, int axes, int64_t least,
                             int32_t usual, int32_t *number) {
    if (given->ndim != 0 && given->ndim != 1 && given->ndim != axes) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s has %d numbers, but must have one, or one for each of %d spatial axes",
                       call, option, given->ndim, axes);
    }
    for (int i = 0; i < LS_SPATIAL; i++) {
        const int axis = i - (LS_SPATIAL - axes);
        if (axis < 0 || given->ndim == 0) {
            number[i] = usual;
            continue;
        }
        const int64_t value = given->size[given->ndim == 1 ? 0 : axis];
        if (value < least || value > INT32_MAX) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: %s is %s, but its numbers must be from %lld to %d", call, option,
                           ls_shape_describe(given->ndim, given->size).text, (long long)least, INT32_MAX);
        }
        number[i] = (int32_t)value;
    }
    return LS_OK;
}

ls_tensor *ls_image_new(const char *call, const ls_tensor *x, int64_t channels, const int64_t *out) {
    int64_t size[2 + LS_SPATIAL] = {x->size[0], channels};
    for (int i = 2; i < x->ndim; i++) {
        size[i] = out[LS_SPATIAL - x->ndim + i];
    }
    return ls_tensor_new(call, ls_tensor_device(x), x->ndim, size, (ls_dtype)x->dtype);
}
