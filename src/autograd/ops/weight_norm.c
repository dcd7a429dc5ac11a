#include "autograd/ops/weight_norm.h"

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

static const char call[] = "ls_weight_norm";

ls_tensor *ls_weight_norms(ls_tensor *x) {
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    if (x->ndim < 2) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: the weight is %s, but must have two axes or more", call,
                             LS_SHAPE_TEXT(x));
    }
    ls_axes axes = {.count = x->ndim - 1};
    for (int i = 0; i < axes.count; i++) {
        axes.axis[i] = i + 1;
    }
    return ls_norm_axes(x, 2, axes, true);
}

/* Computes 16-bit floats in f32: in f16, norms underflow and overflow for representable results. */
ls_tensor *ls_weight_norm(ls_tensor *direction, ls_tensor *length) {
    ls_tensor *const inputs[] = {direction, length};
    if (!ls_inputs_are_given(call, inputs, 2)) {
        return NULL;
    }
    const ls_dtype dtype = ls_promote(direction, length);
    ls_tensor *wide = ls_widened(direction);
    ls_tensor *norms = wide == NULL ? NULL : ls_weight_norms(wide);
    if (norms != NULL && !ls_tensor_same_shape(norms, length)) {
        const ls_tensor *is = length;
        (void)ls_fail_noted(LS_ERR_SHAPE, "%s: the length is %s, but must be %s for %s", call, LS_SHAPE_TEXT(is),
                            LS_SHAPE_TEXT(norms), LS_SHAPE_TEXT(direction));
        ls_release(norms);
        (void)ls_replaced(NULL, wide, direction);
        return NULL;
    }
    ls_tensor *factor = norms == NULL ? NULL : ls_div_tensor(length, norms);
    ls_tensor *y = factor == NULL ? NULL : ls_mul_tensor(wide, factor);
    ls_release(norms);
    ls_release(factor);
    (void)ls_replaced(NULL, wide, direction);
    return y == NULL || ls_compute_dtype(dtype) == dtype ? y : ls_replaced(ls_to(y, dtype), y, NULL);
}
