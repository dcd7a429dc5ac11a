/* Layers. autograd.h documents the formulas of their operations. This file defines their parameters and initial
 * values. */
#include <math.h>

#include "base/option.h"
#include "nn/layers.h"
#include "nn/module.h"

/* ---- linear ------------------------------------------------------------------------------------------------------ */

ls_layer_weight ls_layer_add_weight(ls_module *module, ls_shape shape, ls_dtype dtype, double bound, bool normed) {
    ls_layer_weight weight = {NULL, NULL};
    weight.direction =
        ls_out_of_scope(ls_module_add_parameter(module, normed ? "weight_v" : "weight", ls_empty(shape, dtype)));
    ls_module_fail_if(module, weight.direction == NULL || ls_nn_init_uniform(weight.direction, -bound, bound) != LS_OK);
    if (normed && !module->failed) {
        const bool before = ls_no_grad(true);
        weight.length = ls_out_of_scope(ls_module_add_parameter(module, "weight_g", ls_weight_norms(weight.direction)));
        (void)ls_no_grad(before);
        ls_module_fail_if(module, weight.length == NULL);
    }
    return weight;
}

static ls_tensor *linear_forward(ls_module *self, ls_tensor *input) {
    const ls_linear_state *linear = self->state;
    ls_tensor *weight = ls_layer_weight_of(&linear->weight);
    return weight == NULL ? NULL : ls_linear(input, weight, linear->bias);
}

const ls_module_type ls_linear_type = {
    .name = "Linear", .state_size = sizeof(ls_linear_state), .forward = linear_forward};

ls_module *ls_nn_linear_with(int64_t in, int64_t out, const ls_linear_options *options) {
    static const ls_linear_options defaults;
    options = options != NULL ? options : &defaults;
    if (in <= 0 || out <= 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_linear: %lld inputs and %lld outputs: both must be positive",
                            (long long)in, (long long)out);
    }
    ls_module *module = ls_module_new(&ls_linear_type);
    if (module == NULL) {
        return NULL;
    }
    ls_linear_state *linear = module->state;
    const double bound = 1.0 / sqrt((double)in);
    linear->weight = ls_layer_add_weight(module, LS_SHAPE(out, in), options->dtype, bound, options->weight_norm);
    if (!options->no_bias) {
        linear->bias =
            ls_out_of_scope(ls_module_add_parameter(module, "bias", ls_empty(LS_SHAPE(out), options->dtype)));
        ls_module_fail_if(module, linear->bias == NULL || ls_nn_init_uniform(linear->bias, -bound, bound) != LS_OK);
    }
    return ls_module_finish(module);
}

ls_module *ls_nn_linear(int64_t in, int64_t out) {
    return ls_nn_linear_with(in, out, NULL);
}

/* ---- layers without parameters ----------------------------------------------------------------------------------- */

typedef struct function_state {
    ls_tensor *(*function)(ls_tensor *);
    ls_tensor *(*function_of_number)(ls_tensor *, double);
    ls_tensor *(*function_of_axis)(ls_tensor *, int);
    double number;
    int axis;
} function_state;

static ls_tensor *function_forward(ls_module *self, ls_tensor *input) {
    const function_state *state = self->state;
    return state->function(input);
}

static ls_tensor *number_forward(ls_module *self, ls_tensor *input) {
    const function_state *state = self->state;
    return state->function_of_number(input, state->number);
}

static ls_tensor *axis_forward(ls_module *self, ls_tensor *input) {
    const function_state *state = self->state;
    return state->function_of_axis(input, state->axis);
}

static ls_module *function_layer(const ls_module_type *type, function_state initial) {
    ls_module *module = ls_module_new(type);
    if (module != NULL) {
        *(function_state *)module->state = initial;
    }
    return module;
}

#define FUNCTION_TYPE(text, rule)                                                                                      \
    { .name = (text), .state_size = sizeof(function_state), .forward = (rule) }

const ls_module_type ls_relu_type = FUNCTION_TYPE("ReLU", function_forward);

ls_module *ls_nn_relu(void) {
    return function_layer(&ls_relu_type, (function_state){.function = ls_relu});
}

#define FUNCTION_LAYER(constructor, text, operation)                                                                   \
    ls_module *constructor(void) {                                                                                     \
        static const ls_module_type type = FUNCTION_TYPE(text, function_forward);                                      \
        return function_layer(&type, (function_state){.function = (operation)});                                       \
    }
FUNCTION_LAYER(ls_nn_gelu, "GELU", ls_gelu)
FUNCTION_LAYER(ls_nn_gelu_tanh, "GELUTanh", ls_gelu_tanh)
FUNCTION_LAYER(ls_nn_silu, "SiLU", ls_silu)
FUNCTION_LAYER(ls_nn_softplus, "Softplus", ls_softplus)
FUNCTION_LAYER(ls_nn_sigmoid, "Sigmoid", ls_sigmoid)
FUNCTION_LAYER(ls_nn_tanh, "Tanh", ls_tanh)

#define NUMBER_LAYER(constructor, text, operation)                                                                     \
    ls_module *constructor(double number) {                                                                            \
        static const ls_module_type type = FUNCTION_TYPE(text, number_forward);                                        \
        return function_layer(&type, (function_state){.function_of_number = (operation), .number = number});           \
    }
NUMBER_LAYER(ls_nn_leaky_relu, "LeakyReLU", ls_leaky_relu)
NUMBER_LAYER(ls_nn_elu, "ELU", ls_elu)

#define AXIS_LAYER(constructor, text, operation)                                                                       \
    ls_module *constructor(int axis) {                                                                                 \
        static const ls_module_type type = FUNCTION_TYPE(text, axis_forward);                                          \
        return function_layer(&type, (function_state){.function_of_axis = (operation), .axis = axis});                 \
    }
AXIS_LAYER(ls_nn_softmax, "Softmax", ls_softmax)
AXIS_LAYER(ls_nn_log_softmax, "LogSoftmax", ls_log_softmax)

static ls_tensor *flatten_all_but_first(ls_tensor *x) {
    if (ls_ndim(x) < 2) { /* ls_flatten would return a number as [1] */
        return ls_fail_noted(LS_ERR_SHAPE, "Flatten: x is %s, but must be [n, a, ...]", LS_SHAPE_TEXT(x));
    }
    return ls_flatten(x, 1, -1);
}
FUNCTION_LAYER(ls_nn_flatten, "Flatten", flatten_all_but_first)

static ls_tensor *dropout_forward(ls_module *self, ls_tensor *input) {
    const function_state *state = self->state;
    return self->training && state->number > 0 ? ls_dropout(input, state->number) : input;
}

ls_module *ls_nn_dropout(double p) {
    static const ls_module_type type = {
        .name = "Dropout", .state_size = sizeof(function_state), .forward = dropout_forward, .whole_batch = true};
    static const ls_module_type identity = FUNCTION_TYPE("Dropout", dropout_forward);
    if (!(p >= 0 && p <= 1)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_dropout: probability %g is not between 0 and 1", p);
    }
    return function_layer(p > 0 ? &type : &identity, (function_state){.number = p});
}

/* ---- a function of the user -------------------------------------------------------------------------------------- */

typedef struct own_function_state {
    ls_tensor *(*function)(ls_tensor *, void *);
    void *user;
    ls_module_type type; /* with the user's name */
} own_function_state;

static ls_tensor *own_function_forward(ls_module *self, ls_tensor *input) {
    const own_function_state *state = self->state;
    return state->function(input, state->user);
}

ls_module *ls_nn_function(const char *name, ls_tensor *(*function)(ls_tensor *x, void *user), void *user) {
    static const ls_module_type type = {
        .name = "Function", .state_size = sizeof(own_function_state), .forward = own_function_forward};
    if (name == NULL || function == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_function: the %s is NULL", name == NULL ? "name" : "function");
    }
    ls_module *module = ls_module_new(&type);
    if (module != NULL) {
        own_function_state *state = module->state;
        *state = (own_function_state){.function = function, .user = user, .type = type};
        state->type.name = name;
        module->type = &state->type;
    }
    return module;
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

typedef struct embedding_state {
    ls_tensor *weight;
} embedding_state;

static ls_tensor *embedding_forward(ls_module *self, ls_tensor *input) {
    const embedding_state *embedding = self->state;
    return ls_embedding(embedding->weight, input);
}

ls_module *ls_nn_embedding(int64_t count, int64_t width) {
    static const ls_module_type type = {
        .name = "Embedding", .state_size = sizeof(embedding_state), .forward = embedding_forward};
    if (count <= 0 || width <= 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_embedding: %lld rows of width %lld: both must be positive",
                            (long long)count, (long long)width);
    }
    ls_module *module = ls_module_new(&type);
    if (module == NULL) {
        return NULL;
    }
    embedding_state *embedding = module->state;
    embedding->weight =
        ls_out_of_scope(ls_module_add_parameter(module, "weight", ls_empty(LS_SHAPE(count, width), LS_F32)));
    ls_module_fail_if(module, embedding->weight == NULL || ls_nn_init_normal(embedding->weight, 0, 1) != LS_OK);
    return ls_module_finish(module);
}

/* ---- standardization --------------------------------------------------------------------------------------------- */

typedef struct standardize_state {
    ls_tensor *mean, *deviation;
    bool nan_is_mean;
} standardize_state;

/* Reshapes to [channels, 1, ...], to broadcast to x [n, channels, ...]. */
static ls_tensor *beside_channels(ls_tensor *statistic, const ls_tensor *x) {
    ls_shape shape = {.ndim = ls_ndim(x) - 1, .size = {ls_size(statistic, 0)}};
    for (int i = 1; i < shape.ndim; i++) {
        shape.size[i] = 1;
    }
    return ls_reshape(statistic, shape);
}

static ls_tensor *standardize_forward(ls_module *self, ls_tensor *input) {
    const standardize_state *state = self->state;
    const ls_dtype dtype = ls_dtype_of(input);
    if (ls_ndim(input) < 2 || ls_size(input, 1) != ls_size(state->mean, 0)) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s, but must be [n, %lld, ...]", self->type->name,
                             LS_SHAPE_TEXT(input), (long long)ls_size(state->mean, 0));
    }
    ls_tensor *y = ls_div_tensor(ls_sub_tensor(input, beside_channels(state->mean, input)),
                                 beside_channels(state->deviation, input));
    if (state->nan_is_mean && ls_dtype_is_floating(dtype)) {
        y = ls_masked_fill(y, ls_is_nan(input), 0);
    }
    return y == NULL || !ls_dtype_is_floating(dtype) ? y : ls_to(y, dtype);
}

const ls_module_type ls_standardize_type = {
    .name = "Standardize", .state_size = sizeof(standardize_state), .forward = standardize_forward};

bool ls_standardize_skips_nan(const ls_module *module) {
    return ((const standardize_state *)module->state)->nan_is_mean;
}

const ls_module *ls_standardize_of_mean(const ls_module *model, const ls_tensor *mean) {
    if (model->type == &ls_standardize_type) {
        return ((const standardize_state *)model->state)->mean == mean ? model : NULL;
    }
    const ls_module *found = NULL;
    for (int i = 0; found == NULL && i < model->child_count; i++) {
        found = ls_standardize_of_mean(model->children[i].module, mean);
    }
    return found;
}

/* Returns whether all elements of a dense f32 tensor are equal to `value`, or false on failure. */
static bool has_only(const ls_tensor *tensor, float value) {
    ls_host_view view = {0};
    bool only = ls_host_view_begin(&view, tensor, LS_HOST_READ) == LS_OK;
    for (int64_t i = 0; only && i < tensor->count; i++) {
        only = ((const float *)view.memory)[i] == value;
    }
    return ls_host_view_end(&view, LS_OK) == LS_OK && only;
}

bool ls_standardize_is_unfitted(const ls_module *model) {
    if (model->type == &ls_standardize_type) {
        const standardize_state *state = model->state;
        return has_only(state->mean, 0) && has_only(state->deviation, 1);
    }
    bool unfitted = false;
    for (int i = 0; i < model->child_count; i++) {
        unfitted = unfitted || ls_standardize_is_unfitted(model->children[i].module);
    }
    return unfitted;
}

ls_module *ls_nn_standardize(int64_t channels) {
    return ls_nn_standardize_with(channels, NULL);
}

ls_module *ls_nn_standardize_with(int64_t channels, const ls_standardize_options *options) {
    if (channels <= 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_standardize: %lld channels: the number must be positive",
                            (long long)channels);
    }
    ls_module *module = ls_module_new(&ls_standardize_type);
    if (module == NULL) {
        return NULL;
    }
    standardize_state *state = module->state;
    state->nan_is_mean = options != NULL && options->nan_is_mean;
    state->mean = ls_out_of_scope(ls_module_add_buffer(module, "mean", ls_zeros(LS_SHAPE(channels), LS_F32)));
    state->deviation = ls_out_of_scope(ls_module_add_buffer(module, "deviation", ls_ones(LS_SHAPE(channels), LS_F32)));
    return ls_module_finish(module);
}

/* ---- normalisation ----------------------------------------------------------------------------------------------- */

typedef struct norm_state {
    ls_tensor *weight;
    ls_tensor *bias;
    ls_tensor *running_mean;
    ls_tensor *running_var;
    ls_shape shape; /* of the parameters */
    int axes;       /* spatial axes of batch norm */
    int64_t groups;
    double epsilon;
    double momentum;
} norm_state;

static ls_status check_dtype(const char *call, ls_dtype dtype) {
    return ls_dtype_is_floating(dtype) ? LS_OK
                                       : ls_fail(LS_ERR_ARGUMENT, "%s: the dtype is %s, but must be floating-point",
                                                 call, ls_dtype_name(dtype));
}

/* Checks the arguments of a constructor. */
static ls_status check_norm(const char *call, const ls_shape *shape, ls_dtype dtype) {
    bool positive = shape->ndim >= 1 && shape->ndim <= LS_MAX_DIMS;
    for (int i = 0; positive && i < shape->ndim; i++) {
        positive = shape->size[i] > 0;
    }
    return positive ? check_dtype(call, dtype)
                    : ls_fail(LS_ERR_ARGUMENT, "%s: the shape must have 1 to %d axes with positive sizes", call,
                              LS_MAX_DIMS);
}

/*
 * Creates a weight of ones and a zero bias, unless the options say otherwise. The options of batch norm include all
 * options of the other norms.
 */
static norm_state *norm_begin(const char *call, ls_module *module, ls_shape shape,
                              const ls_batch_norm_options *options) {
    norm_state *norm = module->state;
    norm->shape = shape;
    norm->epsilon = ls_option(options->epsilon, 1e-5);
    norm->momentum = ls_option(options->momentum, 0.1);
    ls_module_fail_if(module, ls_option_within(call, "epsilon", norm->epsilon, 0, INFINITY) != LS_OK ||
                                  ls_option_within(call, "momentum", norm->momentum, 0, 1) != LS_OK);
    if (!options->no_affine) {
        norm->weight = ls_out_of_scope(ls_module_add_parameter(module, "weight", ls_ones(shape, options->dtype)));
        if (!options->no_bias) {
            norm->bias = ls_out_of_scope(ls_module_add_parameter(module, "bias", ls_zeros(shape, options->dtype)));
        }
    }
    return norm;
}

static ls_batch_norm_options from_norm_options(const ls_norm_options *options) {
    return options == NULL ? (ls_batch_norm_options){0}
                           : (ls_batch_norm_options){.dtype = options->dtype,
                                                     .no_affine = options->no_affine,
                                                     .no_bias = options->no_bias,
                                                     .epsilon = options->epsilon};
}

/* Checks the last axes of x. ls_layer_norm without a weight cannot check them. */
static bool ends_with_shape(const ls_module *self, const ls_tensor *x) {
    const norm_state *norm = self->state;
    bool fits = ls_ndim(x) >= norm->shape.ndim;
    for (int i = 1; fits && i <= norm->shape.ndim; i++) {
        fits = ls_size(x, -i) == norm->shape.size[norm->shape.ndim - i];
    }
    if (!fits) {
        (void)ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s, but its last axes must be %s", self->type->name,
                            LS_SHAPE_TEXT(x), ls_shape_describe(norm->shape.ndim, norm->shape.size).text);
    }
    return fits;
}

static ls_tensor *layer_norm_forward(ls_module *self, ls_tensor *input) {
    const norm_state *norm = self->state;
    return !ends_with_shape(self, input)
               ? NULL
               : ls_layer_norm(input, norm->shape.ndim, norm->weight, norm->bias, norm->epsilon);
}

ls_module *ls_nn_layer_norm(ls_shape shape, const ls_norm_options *options) {
    static const ls_module_type type = {
        .name = "LayerNorm", .state_size = sizeof(norm_state), .forward = layer_norm_forward};
    const ls_batch_norm_options own = from_norm_options(options);
    ls_module *module = check_norm("ls_nn_layer_norm", &shape, own.dtype) == LS_OK ? ls_module_new(&type) : NULL;
    if (module != NULL) {
        norm_begin("ls_nn_layer_norm", module, shape, &own);
    }
    return ls_module_finish(module);
}

static ls_tensor *rms_norm_forward(ls_module *self, ls_tensor *input) {
    const norm_state *norm = self->state;
    return !ends_with_shape(self, input) ? NULL : ls_rms_norm(input, norm->shape.ndim, norm->weight, norm->epsilon);
}

ls_module *ls_nn_rms_norm(ls_shape shape, const ls_rms_norm_options *options) {
    static const ls_rms_norm_options defaults;
    static const ls_module_type type = {
        .name = "RMSNorm", .state_size = sizeof(norm_state), .forward = rms_norm_forward};
    options = options != NULL ? options : &defaults;
    const ls_batch_norm_options own = {
        .dtype = options->dtype, .no_affine = options->no_affine, .no_bias = true, .epsilon = options->epsilon};
    ls_module *module = check_norm("ls_nn_rms_norm", &shape, own.dtype) == LS_OK ? ls_module_new(&type) : NULL;
    if (module != NULL) {
        norm_begin("ls_nn_rms_norm", module, shape, &own);
    }
    return ls_module_finish(module);
}

static ls_tensor *group_norm_forward(ls_module *self, ls_tensor *input) {
    const norm_state *norm = self->state;
    if (ls_ndim(input) < 2 || ls_size(input, 1) != norm->shape.size[0]) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s, but must be [n, %lld, ...]", self->type->name,
                             LS_SHAPE_TEXT(input), (long long)norm->shape.size[0]);
    }
    return ls_group_norm(input, norm->groups, norm->weight, norm->bias, norm->epsilon);
}

static ls_module *group_norm(const char *call, const ls_module_type *type, int64_t groups, int64_t channels,
                             const ls_batch_norm_options *options) {
    if (groups <= 0 || channels <= 0 || channels % groups != 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: %lld channels cannot be divided into %lld equal groups", call,
                            (long long)channels, (long long)groups);
    }
    const ls_shape shape = LS_SHAPE(channels);
    ls_module *module = check_dtype(call, options->dtype) == LS_OK ? ls_module_new(type) : NULL;
    if (module != NULL) {
        norm_begin(call, module, shape, options)->groups = groups;
    }
    return ls_module_finish(module);
}

ls_module *ls_nn_group_norm(int64_t groups, int64_t channels, const ls_norm_options *options) {
    static const ls_module_type type = {
        .name = "GroupNorm", .state_size = sizeof(norm_state), .forward = group_norm_forward};
    const ls_batch_norm_options own = from_norm_options(options);
    return group_norm("ls_nn_group_norm", &type, groups, channels, &own);
}

static ls_tensor *instance_norm_forward(ls_module *self, ls_tensor *input) {
    if (ls_ndim(input) < 3) { /* x needs an axis of positions */
        return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s, but must be [n, channels, length, ...]", self->type->name,
                             LS_SHAPE_TEXT(input));
    }
    return group_norm_forward(self, input);
}

ls_module *ls_nn_instance_norm(int64_t channels, const ls_instance_norm_options *options) {
    static const ls_instance_norm_options defaults;
    static const ls_module_type type = {
        .name = "InstanceNorm", .state_size = sizeof(norm_state), .forward = instance_norm_forward};
    options = options != NULL ? options : &defaults;
    const ls_batch_norm_options own = {
        .dtype = options->dtype, .no_affine = !options->affine, .epsilon = options->epsilon};
    return group_norm("ls_nn_instance_norm", &type, channels, channels, &own);
}

static ls_tensor *batch_norm_forward(ls_module *self, ls_tensor *input) {
    static const char *const wanted[] = {"length] or [n, channels", "height, width", "depth, height, width"};
    const norm_state *norm = self->state;
    const int axes = ls_ndim(input) - 2;
    if (axes != norm->axes && (axes != 0 || norm->axes != 1)) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: x is %s, but must be [n, channels, %s]", self->type->name,
                             LS_SHAPE_TEXT(input), wanted[norm->axes - 1]);
    }
    return ls_batch_norm(input, norm->running_mean, norm->running_var, norm->weight, norm->bias, self->training,
                         norm->momentum, norm->epsilon);
}

static ls_module *batch_norm(const char *call, const ls_module_type *type, int axes, int64_t channels,
                             const ls_batch_norm_options *options) {
    static const ls_batch_norm_options defaults;
    if (channels <= 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: %lld channels: the number must be positive", call,
                            (long long)channels);
    }
    options = options != NULL ? options : &defaults;
    const ls_shape shape = LS_SHAPE(channels);
    ls_module *module = check_dtype(call, options->dtype) == LS_OK ? ls_module_new(type) : NULL;
    if (module == NULL) {
        return NULL;
    }
    norm_state *norm = norm_begin(call, module, shape, options);
    norm->axes = axes;
    const ls_dtype statistics = options->dtype == LS_F64 ? LS_F64 : LS_F32; /* 16-bit floats are computed in f32 */
    norm->running_mean =
        ls_out_of_scope(ls_module_add_buffer(module, "running_mean", ls_zeros(LS_SHAPE(channels), statistics)));
    norm->running_var =
        ls_out_of_scope(ls_module_add_buffer(module, "running_var", ls_ones(LS_SHAPE(channels), statistics)));
    return ls_module_finish(module);
}

#define BATCH_NORM_LAYER(constructor, text, axes)                                                                      \
    ls_module *constructor(int64_t channels, const ls_batch_norm_options *options) {                                   \
        static const ls_module_type type = {                                                                           \
            .name = (text), .state_size = sizeof(norm_state), .forward = batch_norm_forward, .whole_batch = true};     \
        return batch_norm(#constructor, &type, axes, channels, options);                                               \
    }
BATCH_NORM_LAYER(ls_nn_batch_norm_1d, "BatchNorm1d", 1)
BATCH_NORM_LAYER(ls_nn_batch_norm_2d, "BatchNorm2d", 2)
BATCH_NORM_LAYER(ls_nn_batch_norm_3d, "BatchNorm3d", 3)

bool ls_module_has_batch_statistics(const ls_module *module) {
    bool has = module->type->forward == batch_norm_forward && module->training;
    for (int i = 0; i < module->child_count && !has; i++) {
        has = ls_module_has_batch_statistics(module->children[i].module);
    }
    return has;
}
