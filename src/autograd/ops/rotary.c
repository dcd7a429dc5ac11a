/* Rotary position embedding, composed of other operations: multiplies pairs of numbers by a table of cosines and
 * sines. */
#include "autograd/ops/attention.h"

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

#include <math.h>

#include "base/option.h"

static const char call[] = "ls_rotary";

/* Returns 0, 1, ... as an f64 tensor on x's device. */
static ls_tensor *counted(const ls_tensor *x, int ndim, const int64_t *size) {
    ls_tensor *y = ls_tensor_new(call, ls_tensor_device(x), ndim, size, LS_F64);
    if (y != NULL && ls_kernels_of(y)->count_up(ls_stream_of(y), y) != LS_OK) {
        ls_release(y);
        return ls_scope_failed();
    }
    return y;
}

/* Returns the angles [positions, width / 2], in f64: in f32, the angles of distant positions would be inaccurate. */
static ls_tensor *angles_for(const ls_tensor *x, double base, int64_t first) {
    const int64_t positions = x->size[x->ndim - 2], width = x->size[x->ndim - 1];
    ls_tensor *position = counted(x, 2, (const int64_t[]){positions, 1});
    ls_tensor *place = position == NULL ? NULL : ls_add_number(position, (double)first);
    ls_tensor *pair = place == NULL ? NULL : counted(x, 1, (const int64_t[]){width / 2});
    ls_tensor *power = pair == NULL ? NULL : ls_mul_number(pair, -2 * log(base) / (double)width);
    ls_tensor *frequency = power == NULL ? NULL : ls_exp(power);
    ls_tensor *angle = frequency == NULL ? NULL : ls_mul_tensor(place, frequency);
    ls_release(position);
    ls_release(place);
    ls_release(pair);
    ls_release(power);
    ls_release(frequency);
    return angle;
}

/* Returns function(angle) in x's dtype. */
static ls_tensor *table(const ls_tensor *x, ls_tensor *angle, ls_tensor *(*function)(ls_tensor *)) {
    ls_tensor *exact = function(angle);
    ls_tensor *y = exact == NULL ? NULL : ls_to(exact, (ls_dtype)x->dtype);
    ls_release(exact);
    return y;
}

/* Returns a b + sign c d, where sign is 1 or -1. */
static ls_tensor *sum_of_products(ls_tensor *a, ls_tensor *b, ls_tensor *c, ls_tensor *d, int sign) {
    ls_tensor *left = ls_mul_tensor(a, b);
    ls_tensor *right = left == NULL ? NULL : ls_mul_tensor(c, d);
    ls_tensor *y = right == NULL ? NULL : sign > 0 ? ls_add_tensor(left, right) : ls_sub_tensor(left, right);
    ls_release(left);
    ls_release(right);
    return y;
}

/* Rotates the pairs by the angles and joins them in the order that `halves` selects. */
static ls_tensor *turned(ls_tensor *const pair[2], ls_tensor *cosine, ls_tensor *sine, bool halves) {
    ls_tensor *both[2] = {sum_of_products(pair[0], cosine, pair[1], sine, -1), NULL};
    both[1] = both[0] == NULL ? NULL : sum_of_products(pair[0], sine, pair[1], cosine, 1);
    ls_tensor *y = NULL;
    if (both[1] != NULL) {
        y = halves ? ls_concat(both, 2, -1) : ls_stack(both, 2, -1);
        y = halves || y == NULL ? y : ls_replaced(ls_flatten(y, -2, -1), y, NULL);
    }
    ls_release(both[0]);
    ls_release(both[1]);
    return y;
}

static double base_of(const ls_rotary_options *options) {
    return ls_option(options->base, 10000);
}

ls_status ls_rotary_check(const char *caller, const ls_rotary_options *options, int64_t count) {
    const double base = base_of(options);
    const int64_t most = (int64_t)1 << 53, first = options->first; /* positions are f64 numbers */
    if (!(base > 0) || !isfinite(base)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: base is %g, but must be positive and finite", caller, base);
    }
    return first >= -most && count <= most && first <= most - count
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: first is %lld, but positions must be from -2^53 to 2^53", caller,
                         (long long)first);
}

static ls_status check(const ls_tensor *x, const ls_rotary_options *options) {
    LS_TRY(ls_check_floating(call, (ls_tensor *[]){(ls_tensor *)x}, 1));
    if (x->ndim < 2 || x->size[x->ndim - 1] % 2 != 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: x is %s, but must be [..., positions, width] with an even width", call,
                       LS_SHAPE_TEXT(x));
    }
    if (x->ndim == LS_MAX_DIMS && !options->halves) { /* neighbours are joined along a new axis */
        return ls_fail(LS_ERR_SHAPE, "%s: x is %s, but may have at most %d dimensions", call, LS_SHAPE_TEXT(x),
                       LS_MAX_DIMS - 1);
    }
    return ls_rotary_check(call, options, x->size[x->ndim - 2]);
}

/* Rotates x of f32 or f64. */
static ls_tensor *rotated(ls_tensor *x, const ls_rotary_options *options) {
    const int64_t width = x->size[x->ndim - 1];
    ls_tensor *angle = angles_for(x, base_of(options), options->first);
    ls_tensor *cosine = angle == NULL ? NULL : table(x, angle, ls_cos);
    ls_tensor *sine = cosine == NULL ? NULL : table(x, angle, ls_sin);
    ls_tensor *pair[2] = {NULL, NULL};
    for (int i = 0; i < 2 && sine != NULL; i++) {
        pair[i] = options->halves ? ls_narrow(x, -1, i * (width / 2), width / 2) : ls_slice(x, -1, i, width, 2);
    }
    ls_tensor *y = pair[0] == NULL || pair[1] == NULL ? NULL : turned(pair, cosine, sine, options->halves);
    ls_release(angle);
    ls_release(cosine);
    ls_release(sine);
    ls_release(pair[0]);
    ls_release(pair[1]);
    return y;
}

ls_tensor *ls_rotary(ls_tensor *x, const ls_rotary_options *options) {
    static const ls_rotary_options defaults;
    options = options != NULL ? options : &defaults;
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    if (check(x, options) != LS_OK) {
        return ls_scope_failed();
    }
    ls_tensor *wide = ls_widened(x);
    ls_tensor *y = wide == NULL ? NULL : ls_replaced(rotated(wide, options), wide, x);
    return ls_narrowed(y, x);
}
