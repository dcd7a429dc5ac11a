/* Group normalization: the layer norm of the same elements in a different shape. */
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

static const char call[] = "ls_group_norm";

static ls_status check(const ls_tensor *x, int64_t groups, const ls_tensor *weight, const ls_tensor *bias,
                       double epsilon) {
    if (x->ndim < 2 || groups < 1 || x->size[1] % groups != 0) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: cannot form %lld equal groups of the channels of %s, which must be [n, channels, ...]",
                       call, (long long)groups, LS_SHAPE_TEXT(x));
    }
    if (!(epsilon >= 0.0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: epsilon is %g, but must not be negative", call, epsilon);
    }
    const ls_tensor *const parts[] = {weight, bias};
    for (int i = 0; i < 2; i++) {
        if (parts[i] != NULL && (parts[i]->ndim != 1 || parts[i]->size[0] != x->size[1])) {
            return ls_fail(LS_ERR_SHAPE, "%s: %s is %s, but must be [%lld] for %s", call, i == 0 ? "weight" : "bias",
                           LS_SHAPE_TEXT(parts[i]), (long long)x->size[1], LS_SHAPE_TEXT(x));
        }
    }
    return ls_check_floating(call, (ls_tensor *[]){(ls_tensor *)x, (ls_tensor *)weight, (ls_tensor *)bias}, 3);
}

/* Multiplies y by `part` [channels], or adds `part` to y. `part` may be NULL. Consumes y. */
static ls_tensor *with(ls_tensor *y, ls_tensor *part, ls_tensor *(*function)(ls_tensor *a, ls_tensor *b)) {
    if (y == NULL || part == NULL) {
        return y;
    }
    ls_shape shape = {.ndim = y->ndim - 1, .size = {part->size[0]}};
    for (int i = 1; i < shape.ndim; i++) {
        shape.size[i] = 1;
    }
    ls_tensor *by_channel = ls_reshape(part, shape);
    ls_tensor *result = by_channel == NULL ? NULL : function(y, by_channel);
    ls_release(by_channel);
    return ls_replaced(result, y, NULL);
}

ls_tensor *ls_group_norm(ls_tensor *x, int64_t groups, ls_tensor *weight, ls_tensor *bias, double epsilon) {
    if (!ls_inputs_are_given(call, &x, 1) || !ls_inputs_are_here(call, (ls_tensor *[]){x, weight, bias}, 3)) {
        return NULL;
    }
    if (check(x, groups, weight, bias, epsilon) != LS_OK) {
        return ls_scope_failed();
    }
    const int64_t width = x->size[0] > 0 ? x->count / x->size[0] / groups : 0;
    ls_tensor *rows = ls_reshape(x, LS_SHAPE(x->size[0], groups, width));
    ls_tensor *normal = rows == NULL ? NULL : ls_layer_norm(rows, 1, NULL, NULL, epsilon);
    ls_release(rows);
    ls_tensor *y = normal == NULL ? NULL : ls_reshape(normal, ls_shape_of(x));
    ls_release(normal);
    return with(with(y, weight, ls_mul_tensor), bias, ls_add_tensor);
}
