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

ls_tensor *ls_weight_norm(ls_tensor *direction, ls_tensor *length) {
    ls_tensor *const inputs[] = {direction, length};
    if (!ls_inputs_are_given(call, inputs, 2)) {
        return NULL;
    }
    ls_tensor *norms = ls_weight_norms(direction);
    if (norms != NULL && !ls_tensor_same_shape(norms, length)) {
        const ls_tensor *is = length;
        (void)ls_fail_noted(LS_ERR_SHAPE, "%s: the length is %s, but must be %s for %s", call, LS_SHAPE_TEXT(is),
                            LS_SHAPE_TEXT(norms), LS_SHAPE_TEXT(direction));
        ls_release(norms);
        return NULL;
    }
    ls_tensor *factor = norms == NULL ? NULL : ls_div_tensor(length, norms);
    ls_tensor *y = factor == NULL ? NULL : ls_mul_tensor(direction, factor);
    ls_release(norms);
    ls_release(factor);
    return y;
}
