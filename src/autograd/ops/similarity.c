/* Similarities and distances of vectors, and losses from them, composed of other operations. They compute 16-bit floats
 * in f32: in f16, 1e-8 is rounded to 0, and the square of a length overflows at 65504. */
#include "autograd/ops/loss.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

/* Returns max(|x|, epsilon), where |x| is the norm along the axis, which is kept with size 1. */
static ls_tensor *length_of(ls_tensor *x, int axis, double epsilon) {
    ls_tensor *norm = ls_norm_axes(x, 2, LS_AXES(axis), true);
    return norm == NULL ? NULL : ls_replaced(ls_maximum_number(norm, epsilon), norm, NULL);
}

/* Returns x / max(|x|, epsilon). x may have size 1 along the axis instead of `width`. */
static ls_tensor *direction_of(ls_tensor *x, int axis, int64_t width, double epsilon) {
    ls_shape shape = ls_shape_of(x);
    shape.size[axis] = x->size[axis] == 1 ? width : x->size[axis];
    ls_tensor *wide = ls_expand(x, shape);
    ls_tensor *length = wide == NULL ? NULL : length_of(wide, axis, epsilon);
    ls_tensor *y = length == NULL ? NULL : ls_replaced(ls_div_tensor(wide, length), length, NULL);
    return wide == NULL ? NULL : ls_replaced(y, wide, x);
}

/* Returns a . b / (max(|a|, epsilon) max(|b|, epsilon)) along the axis. */
static ls_tensor *similarity(ls_tensor *a, ls_tensor *b, int along, double epsilon) {
    ls_tensor *x = direction_of(a, along, b->size[along], epsilon);
    ls_tensor *y = x == NULL ? NULL : direction_of(b, along, a->size[along], epsilon);
    ls_tensor *product = y == NULL ? NULL : ls_mul_tensor(x, y);
    ls_release(x);
    ls_release(y);
    return product == NULL ? NULL : ls_replaced(ls_sum_axes(product, LS_AXES(along), false), product, NULL);
}

ls_tensor *ls_cosine_similarity(ls_tensor *a, ls_tensor *b, int axis, double epsilon) {
    static const char call[] = "ls_cosine_similarity";
    ls_tensor *const inputs[] = {a, b};
    if (!ls_inputs_are_given(call, inputs, 2)) {
        return NULL;
    }
    if (!(epsilon >= 0)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: epsilon is %g, but must not be negative", call, epsilon);
    }
    if (ls_check_floating(call, inputs, 2) != LS_OK) {
        return ls_scope_failed();
    }
    if (a->ndim != b->ndim) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: %s and %s must have the same number of axes", call, LS_SHAPE_TEXT(a),
                             LS_SHAPE_TEXT(b));
    }
    const int along = ls_op_axis(call, a, axis);
    ls_tensor *x = along < 0 ? NULL : ls_widened(a);
    ls_tensor *y = x == NULL ? NULL : ls_widened(b);
    ls_tensor *cosine = y == NULL ? NULL : similarity(x, y, along, epsilon);
    (void)ls_replaced(NULL, x, a);
    (void)ls_replaced(NULL, y, b);
    return ls_narrowed(cosine, a);
}

/*
 * Returns x [n, width] / sqrt(x . x + 1e-12): divides by the norm of x extended by one number, which is never rounded
 * to 0 in any dtype.
 */
static ls_tensor *direction_of_row(ls_tensor *x) {
    ls_tensor *longer = ls_pad(x, 1, 0, 1, 1e-6);
    ls_tensor *length = longer == NULL ? NULL : ls_replaced(ls_norm_axes(longer, 2, LS_AXES(1), true), longer, NULL);
    return length == NULL ? NULL : ls_replaced(ls_div_tensor(x, length), length, NULL);
}

/* Returns the loss of each row of a and b, which are f32 or f64. */
static ls_tensor *embedding_losses(ls_tensor *a, ls_tensor *b, ls_tensor *target, double margin) {
    ls_tensor *x = direction_of_row(a);
    ls_tensor *y = x == NULL ? NULL : direction_of_row(b);
    ls_tensor *product = y == NULL ? NULL : ls_mul_tensor(x, y);
    ls_release(x);
    ls_release(y);
    ls_tensor *cosine = product == NULL ? NULL : ls_replaced(ls_sum_axes(product, LS_AXES(1), false), product, NULL);
    ls_tensor *alike = cosine == NULL ? NULL : ls_rsub_number(1, cosine);
    ls_tensor *beyond = cosine == NULL ? NULL : ls_sub_number(cosine, margin);
    beyond = beyond == NULL ? NULL : ls_replaced(ls_relu(beyond), beyond, NULL);
    ls_tensor *wanted = ls_gt_number(target, 0);
    ls_tensor *loss = alike == NULL || beyond == NULL || wanted == NULL ? NULL : ls_where(wanted, alike, beyond);
    ls_release(cosine);
    ls_release(alike);
    ls_release(beyond);
    ls_release(wanted);
    return loss;
}

ls_tensor *ls_cosine_embedding_loss(ls_tensor *a, ls_tensor *b, ls_tensor *target, double margin,
                                    ls_loss_reduction reduction) {
    static const char call[] = "ls_cosine_embedding_loss";
    ls_tensor *const inputs[] = {a, b, target};
    if (!ls_inputs_are_given(call, inputs, 3)) {
        return NULL;
    }
    if (ls_check_floating(call, inputs, 2) != LS_OK || ls_loss_take_reduction(call, reduction) != LS_OK) {
        return ls_scope_failed();
    }
    if (a->ndim != 2 || !ls_tensor_same_shape(a, b) || target->ndim != 1 || target->size[0] != a->size[0]) {
        return ls_fail_noted(LS_ERR_SHAPE,
                             "%s: the shapes are %s, %s and target %s, but must be [n, width], [n, width] and [n]",
                             call, LS_SHAPE_TEXT(a), LS_SHAPE_TEXT(b), LS_SHAPE_TEXT(target));
    }
    ls_tensor *x = ls_widened(a);
    ls_tensor *y = x == NULL ? NULL : ls_widened(b);
    ls_tensor *losses = y == NULL ? NULL : embedding_losses(x, y, target, margin);
    (void)ls_replaced(NULL, x, a);
    (void)ls_replaced(NULL, y, b);
    return ls_narrowed(ls_loss_reduced(losses, reduction), a);
}

/* Returns |a - b + 1e-6| along the last axis: PyTorch's pairwise_distance. */
static ls_tensor *distance(ls_tensor *a, ls_tensor *b) {
    ls_tensor *apart = ls_sub_tensor(a, b);
    apart = apart == NULL ? NULL : ls_replaced(ls_add_number(apart, 1e-6), apart, NULL);
    return apart == NULL ? NULL : ls_replaced(ls_norm_axes(apart, 2, LS_AXES(-1), false), apart, NULL);
}

/* Returns the losses of anchor, positive and negative, which are f32 or f64. */
static ls_tensor *triplet_losses(ls_tensor *const wide[3], double margin) {
    ls_tensor *near = distance(wide[0], wide[1]);
    ls_tensor *far = near == NULL ? NULL : distance(wide[0], wide[2]);
    ls_tensor *y = far == NULL ? NULL : ls_sub_tensor(near, far);
    ls_release(near);
    ls_release(far);
    y = y == NULL ? NULL : ls_replaced(ls_add_number(y, margin), y, NULL);
    return y == NULL ? NULL : ls_replaced(ls_relu(y), y, NULL);
}

ls_tensor *ls_triplet_margin_loss(ls_tensor *anchor, ls_tensor *positive, ls_tensor *negative, double margin,
                                  ls_loss_reduction reduction) {
    static const char call[] = "ls_triplet_margin_loss";
    ls_tensor *const inputs[] = {anchor, positive, negative};
    if (!ls_inputs_are_given(call, inputs, 3)) {
        return NULL;
    }
    if (ls_check_floating(call, inputs, 3) != LS_OK || ls_loss_take_reduction(call, reduction) != LS_OK) {
        return ls_scope_failed();
    }
    if (anchor->ndim < 2 || !ls_tensor_same_shape(anchor, positive) || !ls_tensor_same_shape(anchor, negative)) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: the shapes are %s, %s and %s, but must be [n, ..., width] and equal",
                             call, LS_SHAPE_TEXT(anchor), LS_SHAPE_TEXT(positive), LS_SHAPE_TEXT(negative));
    }
    ls_tensor *wide[3];
    bool ready = true;
    for (int i = 0; i < 3; i++) {
        wide[i] = ready ? ls_widened(inputs[i]) : NULL;
        ready = wide[i] != NULL;
    }
    ls_tensor *losses = ready ? triplet_losses(wide, margin) : NULL;
    for (int i = 0; i < 3; i++) {
        (void)ls_replaced(NULL, wide[i], inputs[i]);
    }
    return ls_narrowed(ls_loss_reduced(losses, reduction), anchor);
}
