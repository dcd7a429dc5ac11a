/*
 * Layers for images. convolution.h documents the formulas of their operations. This file defines their parameters and
 * initial values.
 */
#include <math.h>

#include "autograd/ops/window.h"
#include "nn/layers.h"
#include "nn/module.h"

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct conv_state {
    ls_layer_weight weight;
    ls_tensor *bias; /* NULL without a bias */
    ls_conv_numbers numbers;
} conv_state;

static ls_tensor *conv_forward(ls_module *self, ls_tensor *input) {
    const conv_state *conv = self->state;
    ls_tensor *weight = ls_layer_weight_of(&conv->weight);
    return weight == NULL ? NULL : ls_convolve(input, weight, conv->bias, &conv->numbers);
}

/* The arguments of a constructor. */
typedef struct conv_layer {
    const char *call;
    const ls_module_type *type;
    int axes;
    int64_t in, out;
    ls_shape kernel;
    ls_conv_numbers numbers;
    ls_dtype dtype;
    bool no_bias, weight_norm;
} conv_layer;

static ls_status check_layer(const conv_layer *layer, ls_window *window) {
    if (layer->in <= 0 || layer->out <= 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %lld channels in and %lld out: both must be positive", layer->call,
                       (long long)layer->in, (long long)layer->out);
    }
    if (layer->kernel.ndim == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the kernel is empty", layer->call);
    }
    LS_TRY(ls_spatial_numbers(layer->call, "kernel", &layer->kernel, layer->axes, 1, 1, window->kernel));
    LS_TRY(ls_conv_window(layer->call, layer->axes, &layer->numbers, window));
    if (layer->in % window->groups != 0 || layer->out % window->groups != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %lld channels in and %lld out cannot be divided into %d groups",
                       layer->call, (long long)layer->in, (long long)layer->out, window->groups);
    }
    return LS_OK;
}

static ls_module *conv_new(conv_layer layer) {
    ls_window window = {0};
    if (check_layer(&layer, &window) != LS_OK) {
        return NULL;
    }
    ls_module *module = ls_module_new(layer.type);
    if (module == NULL) {
        return NULL;
    }
    const bool transposed = layer.numbers.transposed;
    ls_shape shape = LS_SHAPE(transposed ? layer.in : layer.out, (transposed ? layer.out : layer.in) / window.groups);
    double fan_in = (double)shape.size[1];
    for (int i = LS_SPATIAL - layer.axes; i < LS_SPATIAL; i++) {
        shape.size[shape.ndim++] = window.kernel[i];
        fan_in *= window.kernel[i];
    }
    conv_state *conv = module->state;
    const double bound = 1.0 / sqrt(fan_in);
    conv->numbers = layer.numbers;
    conv->weight = ls_layer_add_weight(module, shape, layer.dtype, bound, layer.weight_norm);
    if (!layer.no_bias) {
        conv->bias =
            ls_out_of_scope(ls_module_add_parameter(module, "bias", ls_empty(LS_SHAPE(layer.out), layer.dtype)));
        ls_module_fail_if(module, conv->bias == NULL || ls_nn_init_uniform(conv->bias, -bound, bound) != LS_OK);
    }
    return ls_module_finish(module);
}

static conv_layer layer_of(const ls_conv_layer_options *options) {
    static const ls_conv_layer_options defaults;
    options = options != NULL ? options : &defaults;
    return (conv_layer){.numbers = {.same = options->same,
                                    .groups = options->groups,
                                    .stride = options->stride,
                                    .padding = options->padding,
                                    .dilation = options->dilation},
                        .dtype = options->dtype,
                        .no_bias = options->no_bias,
                        .weight_norm = options->weight_norm};
}

static conv_layer transposed_layer_of(const ls_conv_transpose_layer_options *options) {
    static const ls_conv_transpose_layer_options defaults;
    options = options != NULL ? options : &defaults;
    return (conv_layer){.numbers = {.transposed = true,
                                    .groups = options->groups,
                                    .stride = options->stride,
                                    .padding = options->padding,
                                    .dilation = options->dilation,
                                    .output_padding = options->output_padding},
                        .dtype = options->dtype,
                        .no_bias = options->no_bias,
                        .weight_norm = options->weight_norm};
}

#define CONV_LAYER(constructor, text, axis_count, options_type, rule)                                                  \
    ls_module *constructor(int64_t in, int64_t out, ls_shape kernel, const options_type *options) {                    \
        static const ls_module_type type = {                                                                           \
            .name = (text), .state_size = sizeof(conv_state), .forward = conv_forward};                                \
        conv_layer layer = (rule)(options);                                                                            \
        layer.call = #constructor;                                                                                     \
        layer.type = &type;                                                                                            \
        layer.axes = (axis_count);                                                                                     \
        layer.in = in;                                                                                                 \
        layer.out = out;                                                                                               \
        layer.kernel = kernel;                                                                                         \
        return conv_new(layer);                                                                                        \
    }
CONV_LAYER(ls_nn_conv_1d, "Conv1d", 1, ls_conv_layer_options, layer_of)
CONV_LAYER(ls_nn_conv_2d, "Conv2d", 2, ls_conv_layer_options, layer_of)
CONV_LAYER(ls_nn_conv_3d, "Conv3d", 3, ls_conv_layer_options, layer_of)
CONV_LAYER(ls_nn_conv_transpose_1d, "ConvTranspose1d", 1, ls_conv_transpose_layer_options, transposed_layer_of)
CONV_LAYER(ls_nn_conv_transpose_2d, "ConvTranspose2d", 2, ls_conv_transpose_layer_options, transposed_layer_of)
CONV_LAYER(ls_nn_conv_transpose_3d, "ConvTranspose3d", 3, ls_conv_transpose_layer_options, transposed_layer_of)

/* ---- pooling ----------------------------------------------------------------------------------------------------- */

typedef struct pool_state {
    ls_max_pool_options max;
    ls_average_pool_options average;
    ls_tensor *(*function_of_size)(ls_tensor *, ls_shape);
    ls_shape size;
} pool_state;

static ls_tensor *max_pool_forward(ls_module *self, ls_tensor *input) {
    const pool_state *pool = self->state;
    return ls_max_pool(input, &pool->max);
}

static ls_tensor *average_pool_forward(ls_module *self, ls_tensor *input) {
    const pool_state *pool = self->state;
    return ls_average_pool(input, &pool->average);
}

static ls_tensor *adaptive_pool_forward(ls_module *self, ls_tensor *input) {
    const pool_state *pool = self->state;
    return pool->function_of_size(input, pool->size);
}

static ls_module *pool_new(const ls_module_type *type, pool_state initial) {
    ls_module *module = ls_module_new(type);
    if (module != NULL) {
        *(pool_state *)module->state = initial;
    }
    return module;
}

/* Returns the number of spatial axes that the shapes imply: the largest number of sizes in any shape. */
static int axes_of(const ls_shape *const *shapes, int count) {
    int axes = 1;
    for (int i = 0; i < count; i++) {
        axes = shapes[i]->ndim > axes ? shapes[i]->ndim : axes;
    }
    return axes < LS_SPATIAL ? axes : LS_SPATIAL;
}

static ls_status check_pool(const char *call, const ls_pool_numbers *numbers) {
    ls_window window;
    const ls_shape *const shapes[] = {&numbers->kernel, &numbers->stride, &numbers->padding, &numbers->dilation};
    return ls_pool_window(call, axes_of(shapes, 4), numbers, &window);
}

ls_module *ls_nn_max_pool(const ls_max_pool_options *options) {
    static const ls_module_type type = {
        .name = "MaxPool", .state_size = sizeof(pool_state), .forward = max_pool_forward};
    const ls_pool_numbers numbers = ls_max_pool_numbers(options);
    return check_pool("ls_nn_max_pool", &numbers) == LS_OK ? pool_new(&type, (pool_state){.max = *options}) : NULL;
}

ls_module *ls_nn_average_pool(const ls_average_pool_options *options) {
    static const ls_module_type type = {
        .name = "AveragePool", .state_size = sizeof(pool_state), .forward = average_pool_forward};
    const ls_pool_numbers numbers = ls_average_pool_numbers(options);
    return check_pool("ls_nn_average_pool", &numbers) == LS_OK ? pool_new(&type, (pool_state){.average = *options})
                                                               : NULL;
}

bool ls_layer_is_plain_max_pool(const ls_module *module) {
    if (module->type->forward != max_pool_forward) {
        return false;
    }
    const ls_shape *padding = &((const pool_state *)module->state)->max.padding;
    bool padded = false;
    for (int i = 0; i < padding->ndim; i++) {
        padded |= padding->size[i] != 0;
    }
    return !padded;
}

static ls_status check_size(const char *call, const ls_shape *size) {
    int32_t number[LS_SPATIAL];
    if (size->ndim == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: no size is given", call);
    }
    return ls_spatial_numbers(call, "size", size, axes_of(&size, 1), 1, 1, number);
}

#define ADAPTIVE_LAYER(constructor, text, operation)                                                                   \
    ls_module *constructor(ls_shape size) {                                                                            \
        static const ls_module_type type = {                                                                           \
            .name = (text), .state_size = sizeof(pool_state), .forward = adaptive_pool_forward};                       \
        return check_size(#constructor, &size) != LS_OK                                                                \
                   ? NULL                                                                                              \
                   : pool_new(&type, (pool_state){.function_of_size = (operation), .size = size});                     \
    }
ADAPTIVE_LAYER(ls_nn_adaptive_average_pool, "AdaptiveAveragePool", ls_adaptive_average_pool)
ADAPTIVE_LAYER(ls_nn_adaptive_max_pool, "AdaptiveMaxPool", ls_adaptive_max_pool)

/* ---- resizing ---------------------------------------------------------------------------------------------------- */

typedef struct resize_state {
    ls_tensor *(*function)(ls_tensor *, int64_t);
    ls_shape factors;
    int64_t factor;
    ls_resize_options options;
} resize_state;

static ls_tensor *upsample_forward(ls_module *self, ls_tensor *input) {
    const resize_state *state = self->state;
    ls_shape size = {.ndim = ls_ndim(input) - 2};
    for (int i = 0; i < size.ndim; i++) {
        const int64_t factor = state->factors.size[state->factors.ndim == 1 ? 0 : i];
        if ((state->factors.ndim != 1 && state->factors.ndim != size.ndim) ||
            __builtin_mul_overflow(ls_size(input, i + 2), factor, &size.size[i])) {
            (void)ls_fail(LS_ERR_SHAPE, "%s: x is %s, which does not fit %d factors", self->type->name,
                          LS_SHAPE_TEXT(input), state->factors.ndim);
            return ls_scope_failed();
        }
    }
    return ls_resize(input, size, &state->options);
}

static ls_tensor *shuffle_forward(ls_module *self, ls_tensor *input) {
    const resize_state *state = self->state;
    return state->function(input, state->factor);
}

ls_module *ls_nn_upsample(ls_shape factor, const ls_resize_options *options) {
    static const ls_module_type type = {
        .name = "Upsample", .state_size = sizeof(resize_state), .forward = upsample_forward};
    static const ls_resize_options defaults;
    options = options != NULL ? options : &defaults;
    if (check_size("ls_nn_upsample", &factor) != LS_OK || ls_resize_check("ls_nn_upsample", options) != LS_OK) {
        return NULL;
    }
    ls_module *module = ls_module_new(&type);
    if (module != NULL) {
        *(resize_state *)module->state = (resize_state){.factors = factor, .options = *options};
    }
    return module;
}

#define SHUFFLE_LAYER(constructor, text, operation)                                                                    \
    ls_module *constructor(int64_t factor) {                                                                           \
        static const ls_module_type type = {                                                                           \
            .name = (text), .state_size = sizeof(resize_state), .forward = shuffle_forward};                           \
        if (ls_shuffle_check(#constructor, factor) != LS_OK) {                                                         \
            return NULL;                                                                                               \
        }                                                                                                              \
        ls_module *module = ls_module_new(&type);                                                                      \
        if (module != NULL) {                                                                                          \
            *(resize_state *)module->state = (resize_state){.function = (operation), .factor = factor};                \
        }                                                                                                              \
        return module;                                                                                                 \
    }
SHUFFLE_LAYER(ls_nn_pixel_shuffle, "PixelShuffle", ls_pixel_shuffle)
SHUFFLE_LAYER(ls_nn_pixel_unshuffle, "PixelUnshuffle", ls_pixel_unshuffle)
