/* Resizing of images, one axis after another, and conversions between channels and positions. */
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/window.h"

/* ---- resizing ---------------------------------------------------------------------------------------------------- */

/* Indices in integer[] of the parameters; ls_mixes_along_axis reads the first one. */
enum { AXIS, OUT, LINEAR, CORNERS };

static ls_status resize_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        size[i] = i == call->parameters->integer[AXIS] ? call->parameters->integer[OUT] : x->size[i];
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), x->ndim, size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

static ls_status resize_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const int64_t *p = call->parameters->integer;
    return ls_kernels_of(x)->resize(ls_stream_of(x), call->output, x, (int)p[AXIS], p[LINEAR] != 0, p[CORNERS] != 0);
}

static ls_status resize_backward(ls_node *node, ls_tensor *gradient) {
    const int64_t *p = node->parameters.integer;
    ls_tensor *dx = ls_gradient_place_zeroed(node, 0);
    LS_TRY(ls_made(dx));
    ls_tensor *g = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status =
        ls_kernels_of(dx)->resize_backward(ls_stream_of(dx), dx, g, (int)p[AXIS], p[LINEAR] != 0, p[CORNERS] != 0);
    ls_tensor_drop(g);
    return status;
}

/* Resizes one axis. */
static const ls_op resize_op = {.name = "ls_resize",
                                .shape = resize_shape,
                                .forward = resize_forward,
                                .backward = resize_backward,
                                .over_samples = ls_mixes_along_axis};

const ls_op *const ls_resize_ops[] = {&resize_op, NULL};

ls_status ls_resize_check(const char *call, const ls_resize_options *options) {
    if (options->mode != LS_RESIZE_NEAREST && options->mode != LS_RESIZE_LINEAR) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: mode %d is not LS_RESIZE_NEAREST or LS_RESIZE_LINEAR", call,
                       (int)options->mode);
    }
    return options->align_corners && options->mode != LS_RESIZE_LINEAR
               ? ls_fail(LS_ERR_ARGUMENT, "%s: mode %d does not support align_corners: use LS_RESIZE_LINEAR", call,
                         (int)options->mode)
               : LS_OK;
}

ls_tensor *ls_resize(ls_tensor *x, ls_shape size, const ls_resize_options *options) {
    static const char call[] = "ls_resize";
    static const ls_resize_options defaults;
    options = options != NULL ? options : &defaults;
    int32_t out[LS_SPATIAL];
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    if (ls_check_floating(call, &x, 1) != LS_OK || ls_check_image(call, x) != LS_OK ||
        ls_resize_check(call, options) != LS_OK) {
        return ls_scope_failed();
    }
    if (size.ndim == 0) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: no size is given", call);
    }
    if (ls_spatial_numbers(call, "size", &size, x->ndim - 2, 1, 1, out) != LS_OK) {
        return ls_scope_failed();
    }
    bool changes = false;
    for (int axis = 2; axis < x->ndim; axis++) {
        if (x->size[axis] < 1) {
            return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s: it has no positions", call, LS_SHAPE_TEXT(x));
        }
        changes |= x->size[axis] != out[LS_SPATIAL - x->ndim + axis];
    }
    if (!changes) {
        return ls_view_as_is(x);
    }
    ls_tensor *y = ls_widened(x);
    for (int axis = 2; y != NULL && axis < x->ndim; axis++) {
        const ls_op_parameters parameters = {.integer = {axis, out[LS_SPATIAL - x->ndim + axis],
                                                         options->mode == LS_RESIZE_LINEAR, options->align_corners}};
        if (x->size[axis] != parameters.integer[OUT]) {
            y = ls_replaced(ls_apply_dense(&resize_op, &y, 1, 1, &parameters, 1), y, x);
        }
    }
    return ls_narrowed(y, x);
}

/* ---- conversion of channels to positions and back ---------------------------------------------------------------- */

ls_status ls_shuffle_check(const char *call, int64_t factor) {
    return factor >= 1 && factor <= INT32_MAX
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the factor is %lld, but must be positive and below 2^31", call,
                         (long long)factor);
}

static bool check_shuffled(const char *call, ls_tensor *x, int64_t factor) {
    if (!ls_inputs_are_given(call, &x, 1)) {
        return false;
    }
    if (ls_shuffle_check(call, factor) != LS_OK) {
        (void)ls_scope_failed();
        return false;
    }
    if (x->ndim != 4) {
        (void)ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s, but must be [n, channels, height, width]", call,
                            LS_SHAPE_TEXT(x));
        return false;
    }
    if (x->size[2] == 0 || x->size[3] == 0) {
        (void)ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s: its height and width must be at least 1", call,
                            LS_SHAPE_TEXT(x));
        return false;
    }
    return true;
}

/* Reshapes x to six axes, permutes them, and reshapes to four axes. */
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
    if (!check_shuffled(call, x, factor)) {
        return NULL;
    }
    if (x->size[1] % (factor * factor) != 0) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s: its channels are not a multiple of %lld", call,
                             LS_SHAPE_TEXT(x), (long long)(factor * factor));
    }
    const int64_t n = x->size[0], channels = x->size[1] / (factor * factor), height = x->size[2], width = x->size[3];
    return reorder(x, LS_SHAPE(n, channels, factor, factor, height, width), LS_AXES(0, 1, 4, 2, 5, 3),
                   LS_SHAPE(n, channels, height * factor, width * factor));
}

ls_tensor *ls_pixel_unshuffle(ls_tensor *x, int64_t factor) {
    static const char call[] = "ls_pixel_unshuffle";
    if (!check_shuffled(call, x, factor)) {
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
