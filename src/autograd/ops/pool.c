/* Pooling: the maximum or the mean of windows. Adaptive pooling derives the windows from the sizes of input and
 * output. */
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/window.h"

/* ---- rules ------------------------------------------------------------------------------------------------------- */

/* number[] contains the sizes of the output's spatial axes. */
static ls_status pool_shape(ls_op_call *call) {
    int64_t out[LS_SPATIAL];
    for (int i = 0; i < LS_SPATIAL; i++) {
        out[i] = (int64_t)call->parameters->number[i];
    }
    call->output = ls_image_new(call->op->name, call->inputs[0], call->inputs[0]->size[1], out);
    return ls_made(call->output);
}

static ls_status max_forward(ls_op_call *call) {
    ls_tensor *index = ls_tensor_like_owned(call->op->name, call->output, LS_I64);
    LS_TRY(ls_made(index));
    call->saved[0] = index;
    ls_tensor y = ls_image_view(call->output), places = ls_image_view(index);
    const ls_tensor x = ls_image_view(call->inputs[0]);
    return ls_kernels_of(&x)->max_pool(ls_stream_of(&x), &y, &places, &x, &call->parameters->window);
}

/* Views x as [n * channels, ...]. */
static ls_tensor by_planes(const ls_tensor *x) {
    const int64_t planes = x->size[0] * x->size[1];
    return ls_stack_view_dense(x, 2, (const int64_t[]){planes, planes > 0 ? x->count / planes : 0});
}

/* Adds the gradient to dx at the positions in `index`. */
static ls_status scatter(ls_tensor *dx, const ls_tensor *g, const ls_tensor *index) {
    ls_tensor to = by_planes(dx);
    const ls_tensor from = by_planes(g), at = by_planes(index);
    LS_TRY(ls_kernels_of(dx)->fill(ls_stream_of(dx), dx, 0));
    return ls_kernels_of(dx)->scatter_add(ls_stream_of(dx), &to, &from, 1, &at);
}

static ls_status max_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *dx = ls_tensor_like(node->op->name, node->inputs[0], (ls_dtype)gradient->dtype);
    LS_TRY(ls_made(dx));
    ls_tensor *g = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status = scatter(dx, g, node->saved[0]);
    ls_tensor_drop(g);
    LS_TRY(status);
    return ls_accumulate(node, 0, dx);
}

static ls_status average_forward(ls_op_call *call) {
    ls_tensor y = ls_image_view(call->output);
    const ls_tensor x = ls_image_view(call->inputs[0]);
    return ls_kernels_of(&x)->average_pool(ls_stream_of(&x), &y, &x, &call->parameters->window);
}

static ls_status spread(const ls_node *node, ls_tensor *dx, const ls_tensor *gradient) {
    ls_tensor to = ls_image_view(dx);
    const ls_tensor g = ls_image_view(gradient);
    LS_TRY(ls_kernels_of(dx)->fill(ls_stream_of(dx), dx, 0));
    return ls_kernels_of(dx)->average_pool_backward(ls_stream_of(dx), &to, &g, &node->parameters.window);
}

static ls_status average_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *dx = ls_tensor_like(node->op->name, node->inputs[0], (ls_dtype)gradient->dtype);
    LS_TRY(ls_made(dx));
    ls_tensor *g = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status = spread(node, dx, g);
    ls_tensor_drop(g);
    LS_TRY(status);
    return ls_accumulate(node, 0, dx);
}

static ls_samples_use pool_samples(ls_samples_call *call) {
    return call->axis < 2 ? LS_SAMPLES_KEPT : LS_SAMPLES_UNKNOWN;
}

#define POOL_ROW(name_, kind)                                                                                          \
    {                                                                                                                  \
        .name = (name_), .shape = pool_shape, .forward = kind##_forward, .backward = kind##_backward,                  \
        .over_samples = pool_samples                                                                                   \
    }
static const ls_op max_pool_op = POOL_ROW("ls_max_pool", max);
static const ls_op average_pool_op = POOL_ROW("ls_average_pool", average);
static const ls_op adaptive_max_op = POOL_ROW("ls_adaptive_max_pool", max);
static const ls_op adaptive_average_op = POOL_ROW("ls_adaptive_average_pool", average);

const ls_op *const ls_pool_ops[] = {&max_pool_op, &average_pool_op, &adaptive_max_op, &adaptive_average_op, NULL};

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Returns the number of windows along an axis of `size`, or a number <= 0 if no window fits. */
static int64_t windows_along(const ls_window *window, int axis, int64_t size, bool ceil_mode) {
    const int64_t stride = window->stride[axis], before = window->before[axis];
    const int64_t room = size + 2 * before - (int64_t)window->dilation[axis] * (window->kernel[axis] - 1) - 1;
    if (room < 0 && !ceil_mode) {
        return 0;
    }
    int64_t count = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
    if (ceil_mode && (count - 1) * stride >= size + before) { /* the last window would begin after the image */
        count--;
    }
    return room + stride > 0 ? count : 0;
}

/* Returns whether each of `count` windows covers at least one position of the image. */
static bool all_see(const ls_window *window, int axis, int64_t size, int64_t count) {
    const int64_t step = window->dilation[axis], kernel = window->kernel[axis];
    for (int64_t o = 0; o < count; o++) {
        const int64_t from = o * window->stride[axis] - window->before[axis];
        const int64_t tap = from < 0 ? (step - 1 - from) / step : 0;
        if (tap >= kernel || from + tap * step >= size) {
            return false;
        }
        if (from >= 0) { /* only the last window can be out of range */
            return (count - 1) * window->stride[axis] - window->before[axis] < size;
        }
    }
    return true;
}

static ls_status check_windows(const char *call, const ls_tensor *x, bool ceil_mode, ls_op_parameters *parameters) {
    const ls_tensor image = ls_image_view(x);
    const ls_window *window = &parameters->window;
    for (int i = 0; i < LS_SPATIAL; i++) {
        const int64_t size = image.size[2 + i];
        const int64_t count = windows_along(window, i, size, ceil_mode);
        if (count < 1) {
            return ls_fail(LS_ERR_SHAPE, "%s: x is %s: a window of %d positions does not fit in %lld, padding included",
                           call, LS_SHAPE_TEXT(x), window->kernel[i], (long long)(size + 2 * window->before[i]));
        }
        if (!all_see(window, i, size, count)) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: x is %s: a window would cover only padding", call, LS_SHAPE_TEXT(x));
        }
        parameters->number[i] = (double)count;
    }
    return LS_OK;
}

ls_pool_numbers ls_max_pool_numbers(const ls_max_pool_options *options) {
    return options == NULL ? (ls_pool_numbers){0}
                           : (ls_pool_numbers){.kernel = options->kernel,
                                               .stride = options->stride,
                                               .padding = options->padding,
                                               .dilation = options->dilation,
                                               .ceil_mode = options->ceil_mode};
}

ls_pool_numbers ls_average_pool_numbers(const ls_average_pool_options *options) {
    return options == NULL ? (ls_pool_numbers){0}
                           : (ls_pool_numbers){.kernel = options->kernel,
                                               .stride = options->stride,
                                               .padding = options->padding,
                                               .ceil_mode = options->ceil_mode,
                                               .exclude_padding = options->exclude_padding};
}

ls_status ls_pool_window(const char *call, int axes, const ls_pool_numbers *options, ls_window *window) {
    if (options->kernel.ndim == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the kernel is empty", call);
    }
    const ls_shape *stride = options->stride.ndim != 0 ? &options->stride : &options->kernel;
    LS_TRY(ls_spatial_numbers(call, "kernel", &options->kernel, axes, 1, 1, window->kernel));
    LS_TRY(ls_spatial_numbers(call, "stride", stride, axes, 1, 1, window->stride));
    LS_TRY(ls_spatial_numbers(call, "padding", &options->padding, axes, 0, 0, window->before));
    LS_TRY(ls_spatial_numbers(call, "dilation", &options->dilation, axes, 1, 1, window->dilation));
    window->exclude_padding = options->exclude_padding;
    for (int i = 0; i < LS_SPATIAL; i++) {
        if (window->before[i] > window->kernel[i] / 2) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: padding %d is more than half the kernel size %d", call,
                           window->before[i], window->kernel[i]);
        }
    }
    return LS_OK;
}

static ls_status fill_window(const ls_op *op, const ls_tensor *x, const ls_pool_numbers *options,
                             ls_op_parameters *parameters) {
    LS_TRY(ls_pool_window(op->name, x->ndim - 2, options, &parameters->window));
    return check_windows(op->name, x, options->ceil_mode, parameters);
}

static ls_status fill_adaptive(const char *call, const ls_tensor *x, const ls_shape *size,
                               ls_op_parameters *parameters) {
    int32_t out[LS_SPATIAL];
    const ls_tensor image = ls_image_view(x);
    if (size->ndim == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: no size is given", call);
    }
    LS_TRY(ls_spatial_numbers(call, "size", size, x->ndim - 2, 1, 1, out));
    for (int i = 0; i < LS_SPATIAL; i++) {
        if (image.size[2 + i] < 1) {
            return ls_fail(LS_ERR_SHAPE, "%s: x is %s: there are no positions to pool", call, LS_SHAPE_TEXT(x));
        }
        parameters->number[i] = out[i];
    }
    parameters->window.adaptive = true;
    return LS_OK;
}

/* Applies pooling with the given options, or with a given output size. */
static ls_tensor *apply_pool(const ls_op *op, ls_tensor *x, const ls_pool_numbers *options, const ls_shape *size) {
    if (x == NULL || !ls_inputs_are_here(op->name, &x, 1)) {
        return ls_apply(op, &x, 1, NULL); /* reports the error */
    }
    ls_op_parameters parameters = {0};
    if (ls_check_floating(op->name, &x, 1) != LS_OK || ls_check_image(op->name, x) != LS_OK ||
        (size != NULL ? fill_adaptive(op->name, x, size, &parameters) : fill_window(op, x, options, &parameters)) !=
            LS_OK) {
        return ls_scope_failed();
    }
    return ls_apply_dense(op, &x, 1, 1, &parameters, 1);
}

ls_tensor *ls_max_pool(ls_tensor *x, const ls_max_pool_options *options) {
    const ls_pool_numbers numbers = ls_max_pool_numbers(options);
    return apply_pool(&max_pool_op, x, &numbers, NULL);
}

ls_tensor *ls_average_pool(ls_tensor *x, const ls_average_pool_options *options) {
    const ls_pool_numbers numbers = ls_average_pool_numbers(options);
    return apply_pool(&average_pool_op, x, &numbers, NULL);
}

ls_tensor *ls_adaptive_max_pool(ls_tensor *x, ls_shape size) {
    return apply_pool(&adaptive_max_op, x, NULL, &size);
}

ls_tensor *ls_adaptive_average_pool(ls_tensor *x, ls_shape size) {
    return apply_pool(&adaptive_average_op, x, NULL, &size);
}
