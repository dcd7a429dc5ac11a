/* Layers of images. Their formulas are those of the operations in convolution.h; here is what they hold and how they
 * start. */
#include <math.h>

#include "autograd/ops/window.h"
#include "nn/layers.h"
#include "nn/module.h"

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct conv_state {
    ls_layer_weight weight;
    ls_tensor *bias; /* NULL without */
    ls_conv_options options;
} conv_state;

static ls_tensor *conv_forward(ls_module *self, ls_tensor *input) {
    const conv_state *conv = self->state;
    ls_tensor *weight = ls_layer_weight_of(&conv->weight);
    return weight == NULL ? NULL : ls_conv(input, weight, conv->bias, &conv->options);
}

static ls_tensor *transpose_forward(ls_module *self, ls_tensor *input) {
    const conv_state *conv = self->state;
    ls_tensor *weight = ls_layer_weight_of(&conv->weight);
    return weight == NULL ? NULL : ls_conv_transpose(input, weight, conv->bias, &conv->options);
}

/* A constructor's arguments. */
typedef struct conv_layer {
    const char *call;
    const ls_module_type *type;
    int axes;
    int64_t in, out;
    ls_shape kernel;
    const ls_conv_options *options;
} conv_layer;

static bool is_transposed(const conv_layer *layer) {
    return layer->type->forward == transpose_forward;
}

static ls_status check_layer(const conv_layer *layer, ls_window *window) {
    if (layer->in <= 0 || layer->out <= 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %lld channels in and %lld out: both must be positive", layer->call,
                       (long long)layer->in, (long long)layer->out);
    }
    if (layer->kernel.ndim == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: no kernel is given", layer->call);
    }
    LS_TRY(ls_spatial_numbers(layer->call, "kernel", &layer->kernel, layer->axes, 1, 1, window->kernel));
    LS_TRY(ls_conv_window(layer->call, is_transposed(layer), layer->axes, layer->options, window));
    if (layer->in % window->groups != 0 || layer->out % window->groups != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %lld channels in and %lld out cannot be divided into %d groups",
                       layer->call, (long long)layer->in, (long long)layer->out, window->groups);
    }
    return LS_OK;
}

static ls_module *conv_new(conv_layer layer) {
    static const ls_conv_options defaults;
    ls_window window = {0};
    layer.options = layer.options != NULL ? layer.options : &defaults;
    if (check_layer(&layer, &window) != LS_OK) {
        return NULL;
    }
    ls_module *module = ls_module_new(layer.type);
    if (module == NULL) {
        return NULL;
    }
    const bool transposed = is_transposed(&layer);
    const int64_t groups = layer.options->groups != 0 ? layer.options->groups : 1;
    ls_shape shape = LS_SHAPE(transposed ? layer.in : layer.out, (transposed ? layer.out : layer.in) / groups);
    double fan_in = (double)shape.size[1];
    for (int i = LS_SPATIAL - layer.axes; i < LS_SPATIAL; i++) {
        shape.size[shape.ndim++] = window.kernel[i];
        fan_in *= window.kernel[i];
    }
    conv_state *conv = module->state;
    const double bound = 1.0 / sqrt(fan_in);
    conv->options = *layer.options;
    conv->weight = ls_layer_add_weight(module, shape, layer.options->dtype, bound, layer.options->weight_norm);
    if (!layer.options->no_bias) {
        conv->bias = ls_out_of_scope(
            ls_module_add_parameter(module, "bias", ls_empty(LS_SHAPE(layer.out), layer.options->dtype)));
        module->failed |= conv->bias == NULL || ls_nn_init_uniform(conv->bias, -bound, bound) != LS_OK;
    }
    return ls_module_finish(module);
}

#define CONV_LAYER(constructor, text, axes, rule)                                                                      \
    ls_module *constructor(int64_t in, int64_t out, ls_shape kernel, const ls_conv_options *options) {                 \
        static const ls_module_type type = {.name = (text), .state_size = sizeof(conv_state), .forward = (rule)};      \
        return conv_new((conv_layer){#constructor, &type, axes, in, out, kernel, options});                            \
    }
CONV_LAYER(ls_nn_conv_1d, "Conv1d", 1, conv_forward)
CONV_LAYER(ls_nn_conv_2d, "Conv2d", 2, conv_forward)
CONV_LAYER(ls_nn_conv_3d, "Conv3d", 3, conv_forward)
CONV_LAYER(ls_nn_conv_transpose_1d, "ConvTranspose1d", 1, transpose_forward)
CONV_LAYER(ls_nn_conv_transpose_2d, "ConvTranspose2d", 2, transpose_forward)
CONV_LAYER(ls_nn_conv_transpose_3d, "ConvTranspose3d", 3, transpose_forward)

/* ---- pooling ----------------------------------------------------------------------------------------------------- */

typedef struct pool_state {
    ls_tensor *(*function)(ls_tensor *, const ls_pool_options *);
    ls_tensor *(*function_of_size)(ls_tensor *, ls_shape);
    ls_pool_options options;
    ls_shape size;
} pool_state;

static ls_tensor *pool_forward(ls_module *self, ls_tensor *input) {
    const pool_state *pool = self->state;
    return pool->function != NULL ? pool->function(input, &pool->options) : pool->function_of_size(input, pool->size);
}

static ls_module *pool_new(const ls_module_type *type, pool_state initial) {
    ls_module *module = ls_module_new(type);
    if (module != NULL) {
        *(pool_state *)module->state = initial;
    }
    return module;
}

/* The spatial axes that shapes say: those of the one with most numbers. */
static int axes_of(const ls_shape *const *shapes, int count) {
    int axes = 1;
    for (int i = 0; i < count; i++) {
        axes = shapes[i]->ndim > axes ? shapes[i]->ndim : axes;
    }
    return axes < LS_SPATIAL ? axes : LS_SPATIAL;
}

static ls_status check_pool(const char *call, bool of_means, const ls_pool_options *options) {
    ls_window window;
    if (options == NULL) {
        return ls_pool_window(call, of_means, 1, NULL, &window); /* refuses */
    }
    const ls_shape *const shapes[] = {&options->kernel, &options->stride, &options->padding, &options->dilation};
    return ls_pool_window(call, of_means, axes_of(shapes, 4), options, &window);
}

#define POOL_LAYER(constructor, text, operation)                                                                       \
    ls_module *constructor(const ls_pool_options *options) {                                                           \
        static const ls_module_type type = {                                                                           \
            .name = (text), .state_size = sizeof(pool_state), .forward = pool_forward};                                \
        return check_pool(#constructor, (operation) == ls_average_pool, options) != LS_OK                              \
                   ? NULL                                                                                              \
                   : pool_new(&type, (pool_state){.function = (operation), .options = *options});                      \
    }
POOL_LAYER(ls_nn_max_pool, "MaxPool", ls_max_pool)
POOL_LAYER(ls_nn_average_pool, "AveragePool", ls_average_pool)

bool ls_layer_is_plain_max_pool(const ls_module *module) {
    if (module->type->forward != pool_forward) {
        return false;
    }
    const pool_state *pool = module->state;
    bool padded = false;
    for (int i = 0; i < pool->options.padding.ndim; i++) {
        padded |= pool->options.padding.size[i] != 0;
    }
    return pool->function == ls_max_pool && !padded;
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
            .name = (text), .state_size = sizeof(pool_state), .forward = pool_forward};                                \
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
            (void)ls_fail(LS_ERR_SHAPE, "%s: x is %s, with %d factors", self->type->name, LS_SHAPE_TEXT(input),
                          state->factors.ndim);
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
    if (check_size("ls_nn_upsample", &factor) != LS_OK) {
        return NULL;
    }
    ls_module *module = ls_module_new(&type);
    if (module != NULL) {
        *(resize_state *)module->state =
            (resize_state){.factors = factor, .options = options != NULL ? *options : (ls_resize_options){0}};
    }
    return module;
}

#define SHUFFLE_LAYER(constructor, text, operation)                                                                    \
    ls_module *constructor(int64_t factor) {                                                                           \
        static const ls_module_type type = {                                                                           \
            .name = (text), .state_size = sizeof(resize_state), .forward = shuffle_forward};                           \
        if (factor < 1) {                                                                                              \
            return ls_fail_null(LS_ERR_ARGUMENT, "%s: a factor of %lld: must be positive", #constructor,               \
                                (long long)factor);                                                                    \
        }                                                                                                              \
        ls_module *module = ls_module_new(&type);                                                                      \
        if (module != NULL) {                                                                                          \
            *(resize_state *)module->state = (resize_state){.function = (operation), .factor = factor};                \
        }                                                                                                              \
        return module;                                                                                                 \
    }
SHUFFLE_LAYER(ls_nn_pixel_shuffle, "PixelShuffle", ls_pixel_shuffle)
SHUFFLE_LAYER(ls_nn_pixel_unshuffle, "PixelUnshuffle", ls_pixel_unshuffle)
