/* Convolution and its transpose: each is the other's gradient. */
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/window.h"
#include "autograd/samples.h"

enum { X, WEIGHT, BIAS, CONV_INPUTS };

/* Returns the extent of a window along an axis: the number of positions from its first to its last, inclusive. */
static int64_t reach(const ls_window *window, int axis) {
    return (int64_t)window->dilation[axis] * (window->kernel[axis] - 1) + 1;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static ls_status conv_shape(ls_op_call *call) {
    const ls_tensor *weight = call->inputs[WEIGHT];
    const ls_window *window = &call->parameters->window;
    const ls_tensor x = ls_image_view(call->inputs[X]);
    int64_t out[LS_SPATIAL];
    for (int i = 0; i < LS_SPATIAL; i++) {
        const int64_t padded = x.size[2 + i] + window->before[i] + window->after[i];
        if (padded < reach(window, i)) {
            return ls_fail(
                LS_ERR_SHAPE,
                "%s: x %s, weight %s: the window covers %lld positions, but x has only %lld, including padding",
                call->op->name, LS_SHAPE_TEXT(call->inputs[X]), LS_SHAPE_TEXT(weight), (long long)reach(window, i),
                (long long)padded);
        }
        out[i] = (padded - reach(window, i)) / window->stride[i] + 1;
    }
    call->output = ls_image_new(call->op->name, call->inputs[X], weight->size[0], out);
    return ls_made(call->output);
}

static ls_status transpose_shape(ls_op_call *call) {
    const ls_tensor *weight = call->inputs[WEIGHT];
    const ls_window *window = &call->parameters->window;
    const ls_tensor x = ls_image_view(call->inputs[X]);
    int64_t out[LS_SPATIAL];
    for (int i = 0; i < LS_SPATIAL; i++) {
        out[i] = (x.size[2 + i] - 1) * window->stride[i] + reach(window, i) - window->before[i] - window->after[i];
        if (x.size[2 + i] < 1 || out[i] < 1) {
            return ls_fail(LS_ERR_SHAPE, "%s: x %s, weight %s: the output would be empty", call->op->name,
                           LS_SHAPE_TEXT(call->inputs[X]), LS_SHAPE_TEXT(weight));
        }
    }
    call->output = ls_image_new(call->op->name, call->inputs[X], weight->size[1] * window->groups, out);
    return ls_made(call->output);
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

/* Runs the kernel at an offset on images with 1 to 3 spatial axes. */
static ls_status convolve(size_t kernel, ls_tensor *to, const ls_tensor *from, const ls_tensor *weight,
                          const ls_tensor *bias, const ls_window *window, ls_dtype rounds_to) {
    ls_tensor y = ls_image_view(to);
    const ls_tensor x = ls_image_view(from), w = ls_image_view(weight);
    return LS_KERNEL_AT(conv, ls_kernels_of(to), kernel)(ls_stream_of(to), &y, &x, &w, bias, window, rounds_to);
}

static ls_status conv_forward(ls_op_call *call) {
    return convolve(call->op->kernel, call->output, call->inputs[X], call->inputs[WEIGHT], call->inputs[BIAS],
                    &call->parameters->window, call->rounds_to);
}

static ls_status give_weight(ls_node *node, const ls_tensor *g) {
    ls_tensor *place = ls_gradient_place_zeroed(node, WEIGHT);
    LS_TRY(ls_made(place));
    const bool transposed = node->op->kernel == LS_KERNEL(conv_transpose);
    ls_tensor d_weight = ls_image_view(place);
    const ls_tensor large = ls_image_view(transposed ? g : node->inputs[X]);
    const ls_tensor small = ls_image_view(transposed ? node->inputs[X] : g);
    return ls_kernels_of(g)->conv_weight(ls_stream_of(g), &d_weight, &large, &small, &node->parameters.window,
                                         node->rounds_to);
}

static ls_status give_bias(ls_node *node, const ls_tensor *g) {
    ls_tensor *place = ls_gradient_place_zeroed(node, BIAS);
    LS_TRY(ls_made(place));
    ls_tensor d_bias = ls_stack_view_dense(place, 5, (const int64_t[]){1, place->count, 1, 1, 1});
    const ls_tensor view = ls_image_view(g);
    return ls_kernels_of(g)->add_sum(ls_stream_of(g), &d_bias, &view);
}

static ls_status give_all(ls_node *node, const ls_tensor *g) {
    if (ls_wants(node, X)) {
        ls_tensor *dx = ls_tensor_like(node->op->name, node->inputs[X], (ls_dtype)g->dtype);
        LS_TRY(ls_made(dx));
        LS_TRY(convolve(node->op->kernel_backward, dx, g, node->inputs[WEIGHT], NULL, &node->parameters.window,
                        node->rounds_to));
        LS_TRY(ls_accumulate(node, X, dx));
    }
    if (ls_wants(node, WEIGHT)) {
        LS_TRY(give_weight(node, g));
    }
    return node->inputs[BIAS] != NULL && ls_wants(node, BIAS) ? give_bias(node, g) : LS_OK;
}

static ls_status conv_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *g = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status = give_all(node, g);
    ls_tensor_drop(g);
    return status;
}

/* Samples stay separate if they are groups of channels with separate weights. */
static ls_samples_use conv_samples(ls_samples_call *call) {
    if (ls_sample_axis(call, X) == 0 && ls_sample_axis(call, WEIGHT) < 0 && ls_sample_axis(call, BIAS) < 0) {
        return LS_SAMPLES_KEPT;
    }
    return call->parameters->window.groups > 1 ? LS_SAMPLES_UNKNOWN : LS_SAMPLES_MIXED;
}

#define CONV_ROW(name_, shape_, kernel_, kernel_backward_)                                                             \
    {                                                                                                                  \
        .name = (name_), .shape = (shape_), .forward = conv_forward, .backward = conv_backward,                        \
        .over_samples = conv_samples, .kernel = LS_KERNEL(kernel_), .kernel_backward = LS_KERNEL(kernel_backward_),    \
        .reads = {[X] = 1U << WEIGHT, [WEIGHT] = 1U << X}, .optional = 1U << BIAS                                      \
    }
static const ls_op conv_op = CONV_ROW("ls_conv", conv_shape, conv, conv_transpose);
static const ls_op transpose_op = CONV_ROW("ls_conv_transpose", transpose_shape, conv_transpose, conv);

const ls_op *const ls_conv_ops[] = {&conv_op, &transpose_op, NULL};

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* The arguments of a call, before the operation. */
typedef struct convolution {
    const ls_op *op;
    const ls_tensor *x, *weight, *bias;
    const ls_conv_numbers *options;
} convolution;

static ls_status check_channels(const convolution *c, int64_t groups) {
    const ls_tensor *x = c->x, *weight = c->weight, *bias = c->bias;
    const int64_t in = c->options->transposed ? weight->size[0] : weight->size[1] * groups;
    const int64_t out = c->options->transposed ? weight->size[1] * groups : weight->size[0];
    if (x->size[1] != in) {
        return ls_fail(LS_ERR_SHAPE, "%s: x is %s, but weight %s with %lld groups needs %lld channels", c->op->name,
                       LS_SHAPE_TEXT(x), LS_SHAPE_TEXT(weight), (long long)groups, (long long)in);
    }
    if ((c->options->transposed ? in : out) % groups != 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: weight %s cannot be divided into %lld groups", c->op->name,
                       LS_SHAPE_TEXT(weight), (long long)groups);
    }
    if (bias != NULL && (bias->ndim != 1 || bias->size[0] != out)) {
        return ls_fail(LS_ERR_SHAPE, "%s: bias is %s, but must be [%lld] for weight %s", c->op->name,
                       LS_SHAPE_TEXT(bias), (long long)out, LS_SHAPE_TEXT(weight));
    }
    return LS_OK;
}

static ls_status check_tensors(const convolution *c) {
    LS_TRY(ls_check_image(c->op->name, c->x));
    if (c->weight->ndim != c->x->ndim) {
        return ls_fail(LS_ERR_SHAPE, "%s: x %s, weight %s: both must have the same number of axes", c->op->name,
                       LS_SHAPE_TEXT(c->x), LS_SHAPE_TEXT(c->weight));
    }
    for (int i = 2; i < c->weight->ndim; i++) {
        if (c->weight->size[i] < 1 || c->weight->size[i] > INT32_MAX) {
            return ls_fail(LS_ERR_SHAPE, "%s: weight is %s: the window's sizes must be positive and below 2^31",
                           c->op->name, LS_SHAPE_TEXT(c->weight));
        }
    }
    return LS_OK;
}

/* Checks one axis of a window whose numbers are already in range. */
static ls_status check_axis(const char *call, const ls_conv_numbers *options, const ls_window *window, int axis,
                            int32_t more) {
    if (reach(window, axis) > INT32_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: a window over %lld positions is not supported", call,
                       (long long)reach(window, axis));
    }
    if (options->same && window->stride[axis] != 1) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: \"same\" padding needs strides of 1, not %d", call, window->stride[axis]);
    }
    if (more > 0 && more >= window->stride[axis] && more >= window->dilation[axis]) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: output_padding must be less than stride or dilation", call);
    }
    return LS_OK;
}

ls_status ls_conv_window(const char *call, int axes, const ls_conv_numbers *options, ls_window *window) {
    int32_t more[LS_SPATIAL];
    if (options->groups < 0 || options->groups > INT32_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: groups is %lld, but must be positive", call, (long long)options->groups);
    }
    window->groups = (int32_t)(options->groups != 0 ? options->groups : 1);
    LS_TRY(ls_spatial_numbers(call, "stride", &options->stride, axes, 1, 1, window->stride));
    LS_TRY(ls_spatial_numbers(call, "dilation", &options->dilation, axes, 1, 1, window->dilation));
    LS_TRY(ls_spatial_numbers(call, "padding", &options->padding, axes, 0, 0, window->before));
    LS_TRY(ls_spatial_numbers(call, "output_padding", &options->output_padding, axes, 0, 0, more));
    if (options->same && options->padding.ndim != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: give either \"same\" padding or a padding, not both", call);
    }
    for (int i = 0; i < LS_SPATIAL; i++) {
        LS_TRY(check_axis(call, options, window, i, more[i]));
        const int32_t all = (int32_t)(reach(window, i) - 1);
        window->before[i] = options->same ? all / 2 : window->before[i];
        window->after[i] = options->same ? all - all / 2 : window->before[i] - more[i];
    }
    return LS_OK;
}

static ls_status window_of(const convolution *c, ls_window *window) {
    const ls_tensor weight = ls_image_view(c->weight);
    for (int i = 0; i < LS_SPATIAL; i++) {
        window->kernel[i] = (int32_t)weight.size[2 + i];
    }
    LS_TRY(ls_conv_window(c->op->name, c->x->ndim - 2, c->options, window));
    return check_channels(c, window->groups);
}

ls_tensor *ls_convolve(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, const ls_conv_numbers *numbers) {
    const ls_op *op = numbers->transposed ? &transpose_op : &conv_op;
    ls_tensor *const inputs[] = {[X] = x, [WEIGHT] = weight, [BIAS] = bias};
    if (x == NULL || weight == NULL) {
        return ls_apply(op, inputs, CONV_INPUTS, NULL); /* reports the error */
    }
    if (!ls_inputs_are_here(op->name, inputs, CONV_INPUTS)) {
        return NULL;
    }
    const convolution call = {.op = op, .x = x, .weight = weight, .bias = bias, .options = numbers};
    ls_op_parameters parameters = {0};
    if (ls_check_floating(op->name, inputs, CONV_INPUTS) != LS_OK || check_tensors(&call) != LS_OK ||
        window_of(&call, &parameters.window) != LS_OK) {
        return ls_scope_failed();
    }
    return ls_apply_dense(op, inputs, CONV_INPUTS, CONV_INPUTS, &parameters, 1U << X | 1U << WEIGHT | 1U << BIAS);
}

ls_tensor *ls_conv(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, const ls_conv_options *options) {
    static const ls_conv_options defaults;
    options = options != NULL ? options : &defaults;
    return ls_convolve(x, weight, bias,
                       &(ls_conv_numbers){.same = options->same,
                                          .groups = options->groups,
                                          .stride = options->stride,
                                          .padding = options->padding,
                                          .dilation = options->dilation});
}

ls_tensor *ls_conv_transpose(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                             const ls_conv_transpose_options *options) {
    static const ls_conv_transpose_options defaults;
    options = options != NULL ? options : &defaults;
    return ls_convolve(x, weight, bias,
                       &(ls_conv_numbers){.transposed = true,
                                          .groups = options->groups,
                                          .stride = options->stride,
                                          .padding = options->padding,
                                          .dilation = options->dilation,
                                          .output_padding = options->output_padding});
}
