/* Images of other sizes, composed of picks along one axis after the other, and channels as positions. */
#include <math.h>

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"
#include "autograd/ops/window.h"

/* ---- resizing ---------------------------------------------------------------------------------------------------- */

/* An axis with `in` positions, at least one, made one with `out`. */
typedef struct steps {
    const char *call;
    int64_t in, out;
    bool align_corners;
} steps;

/* Where output o lies on the input, of linear ones. */
static double place_of(const steps *s, int64_t o) {
    if (s->align_corners) {
        return s->out > 1 ? (double)o * (double)(s->in - 1) / (double)(s->out - 1) : 0;
    }
    const double place = ((double)o + 0.5) * (double)s->in / (double)s->out - 0.5;
    return place > 0 ? place : 0;
}

/* [out] on the host, of i64 or f64. */
static ls_tensor *host_numbers(const steps *s, ls_dtype dtype) {
    return ls_tensor_new(s->call, &ls_cpu, 1, &s->out, dtype);
}

/* What is on the host, on x's device; takes it over. */
static ls_tensor *beside(ls_tensor *numbers, const ls_tensor *x) {
    return numbers == NULL ? NULL : ls_replaced(ls_tensor_to_device(numbers, ls_tensor_device(x)->name), numbers, NULL);
}

/* The positions that nearest takes; of linear ones the position below (0) or above (1). */
static ls_tensor *pick(const steps *s, ls_tensor *x, int axis, bool linear, int above) {
    ls_tensor *index = host_numbers(s, LS_I64);
    int64_t *at = index != NULL ? ls_host_data(index) : NULL;
    for (int64_t o = 0; at != NULL && o < s->out; o++) {
        const int64_t below = linear ? (int64_t)place_of(s, o) : o * s->in / s->out;
        at[o] = below + above < s->in ? below + above : s->in - 1;
    }
    index = beside(index, x);
    ls_tensor *y = index == NULL ? NULL : ls_index_select(x, axis, index);
    ls_release(index);
    return y;
}

/* The part that the position above has, or that below, in a shape that broadcasts to x. */
static ls_tensor *parts(const steps *s, const ls_tensor *x, int axis, bool above) {
    ls_tensor *part = host_numbers(s, LS_F64);
    double *at = part != NULL ? ls_host_data(part) : NULL;
    for (int64_t o = 0; at != NULL && o < s->out; o++) {
        const double place = place_of(s, o), beyond = place - floor(place);
        at[o] = above ? beyond : 1 - beyond;
    }
    ls_shape shape = {.ndim = x->ndim - axis, .size = {s->out}};
    for (int i = 1; i < shape.ndim; i++) {
        shape.size[i] = 1;
    }
    part = part == NULL ? NULL : ls_replaced(ls_to(part, (ls_dtype)x->dtype), part, NULL);
    part = beside(part, x);
    return part == NULL ? NULL : ls_replaced(ls_reshape(part, shape), part, NULL);
}

/* One of the two summands of a linear axis. */
static ls_tensor *share(const steps *s, ls_tensor *x, int axis, int above) {
    ls_tensor *part = parts(s, x, axis, above != 0), *picked = pick(s, x, axis, true, above);
    ls_tensor *y = part == NULL || picked == NULL ? NULL : ls_mul_tensor(picked, part);
    ls_release(part);
    ls_release(picked);
    return y;
}

static ls_tensor *linear(const steps *s, ls_tensor *x, int axis) {
    ls_tensor *below = share(s, x, axis, 0), *above = share(s, x, axis, 1);
    ls_tensor *y = below == NULL || above == NULL ? NULL : ls_add_tensor(below, above);
    ls_release(below);
    ls_release(above);
    return y;
}

ls_tensor *ls_resize(ls_tensor *x, ls_shape size, const ls_resize_options *options) {
    static const char call[] = "ls_resize";
    static const ls_resize_options defaults;
    options = options != NULL ? options : &defaults;
    int32_t out[LS_SPATIAL];
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    if (ls_check_floating(call, &x, 1) != LS_OK || ls_check_image(call, x) != LS_OK) {
        return ls_scope_failed();
    }
    const bool is_linear = options->mode == LS_RESIZE_LINEAR;
    if ((!is_linear && options->mode != LS_RESIZE_NEAREST) || (!is_linear && options->align_corners)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: mode %d%s", call, (int)options->mode,
                             options->align_corners ? " with align_corners, which is of linear ones"
                                                    : ": there is none");
    }
    if (size.ndim == 0) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: no size is given", call);
    }
    if (ls_spatial_numbers(call, "size", &size, x->ndim - 2, 1, 1, out) != LS_OK) {
        return ls_scope_failed();
    }
    const ls_dtype dtype = (ls_dtype)x->dtype, wide = ls_compute_dtype(dtype);
    ls_tensor *y = is_linear && wide != dtype ? ls_to(x, wide) : x;
    for (int axis = 2; y != NULL && axis < x->ndim; axis++) {
        const steps s = {call, x->size[axis], out[LS_SPATIAL - x->ndim + axis], options->align_corners};
        if (s.in < 1) {
            return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s: it has no positions", call, LS_SHAPE_TEXT(x));
        }
        if (s.in != s.out) {
            y = ls_replaced(is_linear ? linear(&s, y, axis) : pick(&s, y, axis, false, 0), y, x);
        }
    }
    y = y == NULL || y->dtype == dtype ? y : ls_replaced(ls_to(y, dtype), y, x);
    return y == x ? ls_view_as_is(x) : y;
}

/* ---- channels as positions --------------------------------------------------------------------------------------- */

static bool is_four_axes(const char *call, ls_tensor *x, int64_t factor) {
    if (!ls_inputs_are_given(call, &x, 1)) {
        return false;
    }
    if (factor < 1 || factor > INT32_MAX) {
        (void)ls_fail_noted(LS_ERR_ARGUMENT, "%s: a factor of %lld: must be positive", call, (long long)factor);
        return false;
    }
    if (x->ndim != 4) {
        (void)ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s, must be [n, channels, height, width]", call, LS_SHAPE_TEXT(x));
        return false;
    }
    return true;
}

/* x in six axes, these in another order, in four. */
static ls_tensor *reorder(ls_tensor *x, ls_shape six, ls_axes axes, ls_shape four) {
    ls_tensor *apart = ls_reshape(x, six);
    ls_tensor *moved = apart == NULL ? NULL : ls_permute(apart, axes);
    ls_tensor *y = moved == NULL ? NULL : ls_reshape(moved, four);
    ls_release(apart);
    ls_release(moved);
    return y;
}

ls_tensor *ls_pixel_shuffle(ls_tensor *x, int64_t factor) {
    static const char call[] = "ls_pixel_shuffle";
    if (!is_four_axes(call, x, factor)) {
        return NULL;
    }
    if (x->size[1] % (factor * factor) != 0) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s: its channels are no multiple of %lld", call, LS_SHAPE_TEXT(x),
                             (long long)(factor * factor));
    }
    const int64_t n = x->size[0], channels = x->size[1] / (factor * factor), height = x->size[2], width = x->size[3];
    return reorder(x, LS_SHAPE(n, channels, factor, factor, height, width), LS_AXES(0, 1, 4, 2, 5, 3),
                   LS_SHAPE(n, channels, height * factor, width * factor));
}

ls_tensor *ls_pixel_unshuffle(ls_tensor *x, int64_t factor) {
    static const char call[] = "ls_pixel_unshuffle";
    if (!is_four_axes(call, x, factor)) {
        return NULL;
    }
    if (x->size[2] % factor != 0 || x->size[3] % factor != 0) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s: height and width must be multiples of %lld", call,
                             LS_SHAPE_TEXT(x), (long long)factor);
    }
    const int64_t n = x->size[0], channels = x->size[1], height = x->size[2] / factor, width = x->size[3] / factor;
    return reorder(x, LS_SHAPE(n, channels, height, factor, width, factor), LS_AXES(0, 1, 3, 5, 2, 4),
                   LS_SHAPE(n, channels * factor * factor, height, width));
}
