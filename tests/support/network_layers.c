/* Makes the modules described by the lines of networks.txt. */
#include "tests/support/elements.h"
#include "tests/support/networks.h"
#include "tests/support/unit.h"

/* A position in a network. */
typedef struct place {
    const network *one;
    int line;
    ls_dtype dtype;
} place;

static int64_t whole(network_words *words, const char *key) {
    return (int64_t)network_number(words, key, 0);
}

/* ---- layers of one input ----------------------------------------------------------------------------------------- */

static ls_module *make_linear(network_words *words, place at) {
    return ls_nn_linear_with(whole(words, "in"), whole(words, "out"),
                             &(ls_linear_options){.dtype = at.dtype,
                                                  .no_bias = network_flag(words, "no_bias"),
                                                  .weight_norm = network_flag(words, "weight_norm")});
}

static ls_module *make_convolution(network_words *words, place at) {
    static ls_module *(*const constructors[])(int64_t, int64_t, ls_shape, const ls_conv_layer_options *) = {
        ls_nn_conv_1d, ls_nn_conv_2d, ls_nn_conv_3d};
    const ls_conv_layer_options options = {.stride = network_shape(words, "stride"),
                                           .padding = network_shape(words, "padding"),
                                           .same = network_flag(words, "same"),
                                           .dilation = network_shape(words, "dilation"),
                                           .groups = whole(words, "groups"),
                                           .no_bias = network_flag(words, "no_bias"),
                                           .weight_norm = network_flag(words, "weight_norm"),
                                           .dtype = at.dtype};
    const int axes = words->name[strlen(words->name) - 2] - '0';
    return constructors[axes - 1](whole(words, "in"), whole(words, "out"), network_shape(words, "kernel"), &options);
}

static ls_module *make_transposed_convolution(network_words *words, place at) {
    static ls_module *(*const constructors[])(int64_t, int64_t, ls_shape, const ls_conv_transpose_layer_options *) = {
        ls_nn_conv_transpose_1d, ls_nn_conv_transpose_2d, ls_nn_conv_transpose_3d};
    const ls_conv_transpose_layer_options options = {.stride = network_shape(words, "stride"),
                                                     .padding = network_shape(words, "padding"),
                                                     .dilation = network_shape(words, "dilation"),
                                                     .output_padding = network_shape(words, "output_padding"),
                                                     .groups = whole(words, "groups"),
                                                     .no_bias = network_flag(words, "no_bias"),
                                                     .weight_norm = network_flag(words, "weight_norm"),
                                                     .dtype = at.dtype};
    const int axes = words->name[strlen(words->name) - 2] - '0';
    return constructors[axes - 1](whole(words, "in"), whole(words, "out"), network_shape(words, "kernel"), &options);
}

static ls_module *make_max_pool(network_words *words, place at) {
    const ls_max_pool_options options = {.kernel = network_shape(words, "kernel"),
                                         .stride = network_shape(words, "stride"),
                                         .padding = network_shape(words, "padding"),
                                         .dilation = network_shape(words, "dilation"),
                                         .ceil_mode = network_flag(words, "ceil_mode")};
    (void)at;
    return ls_nn_max_pool(&options);
}

static ls_module *make_average_pool(network_words *words, place at) {
    const ls_average_pool_options options = {.kernel = network_shape(words, "kernel"),
                                             .stride = network_shape(words, "stride"),
                                             .padding = network_shape(words, "padding"),
                                             .ceil_mode = network_flag(words, "ceil_mode"),
                                             .exclude_padding = network_flag(words, "exclude_padding")};
    (void)at;
    return ls_nn_average_pool(&options);
}

static ls_module *make_adaptive_pool(network_words *words, place at) {
    const ls_shape size = network_shape(words, "size");
    (void)at;
    return strstr(words->name, "max") != NULL ? ls_nn_adaptive_max_pool(size) : ls_nn_adaptive_average_pool(size);
}

static ls_norm_options norm_options(network_words *words, place at) {
    return (ls_norm_options){.dtype = at.dtype,
                             .no_bias = network_flag(words, "no_bias"),
                             .no_affine = network_flag(words, "no_affine"),
                             .epsilon = network_number(words, "epsilon", 0)};
}

static ls_module *make_layer_norm(network_words *words, place at) {
    const ls_norm_options options = norm_options(words, at);
    return ls_nn_layer_norm(network_shape(words, "shape"), &options);
}

static ls_module *make_rms_norm(network_words *words, place at) {
    const ls_rms_norm_options options = {.dtype = at.dtype,
                                         .no_affine = network_flag(words, "no_affine"),
                                         .epsilon = network_number(words, "epsilon", 0)};
    return ls_nn_rms_norm(network_shape(words, "shape"), &options);
}

static ls_module *make_group_norm(network_words *words, place at) {
    const ls_norm_options options = norm_options(words, at);
    return ls_nn_group_norm(whole(words, "groups"), whole(words, "channels"), &options);
}

static ls_module *make_instance_norm(network_words *words, place at) {
    const ls_instance_norm_options options = {
        .dtype = at.dtype, .affine = network_flag(words, "affine"), .epsilon = network_number(words, "epsilon", 0)};
    return ls_nn_instance_norm(whole(words, "channels"), &options);
}

static ls_module *make_batch_norm(network_words *words, place at) {
    static ls_module *(*const constructors[])(int64_t, const ls_batch_norm_options *) = {
        ls_nn_batch_norm_1d, ls_nn_batch_norm_2d, ls_nn_batch_norm_3d};
    const ls_batch_norm_options options = {.dtype = at.dtype,
                                           .no_bias = network_flag(words, "no_bias"),
                                           .no_affine = network_flag(words, "no_affine"),
                                           .epsilon = network_number(words, "epsilon", 0),
                                           .momentum = network_number(words, "momentum", 0)};
    const int axes = words->name[strlen(words->name) - 2] - '0';
    ls_module *module = constructors[axes - 1](whole(words, "channels"), &options);
    ls_module_train(module, !network_flag(words, "eval"));
    return module;
}

static ls_module *make_leaky_relu(network_words *words, place at) {
    (void)at;
    return ls_nn_leaky_relu(network_number(words, "slope", 0));
}

static ls_module *make_elu(network_words *words, place at) {
    (void)at;
    return ls_nn_elu(network_number(words, "alpha", 0));
}

static ls_module *make_softmax(network_words *words, place at) {
    (void)at;
    return ls_nn_softmax((int)whole(words, "axis"));
}

static ls_module *make_log_softmax(network_words *words, place at) {
    (void)at;
    return ls_nn_log_softmax((int)whole(words, "axis"));
}

static ls_module *make_dropout(network_words *words, place at) {
    (void)at;
    return ls_nn_dropout(network_number(words, "p", 1));
}

static ls_module *make_embedding(network_words *words, place at) {
    (void)at;
    return ls_nn_embedding(whole(words, "count"), whole(words, "width"));
}

static ls_module *make_positions(network_words *words, place at) {
    return ls_nn_positions(whole(words, "count"), whole(words, "width"), at.dtype);
}

static ls_module *make_upsample(network_words *words, place at) {
    const ls_resize_options options = {.mode = network_flag(words, "linear") ? LS_RESIZE_LINEAR : LS_RESIZE_NEAREST,
                                       .align_corners = network_flag(words, "align_corners")};
    (void)at;
    return ls_nn_upsample(network_shape(words, "factor"), &options);
}

static ls_module *make_pixel_shuffle(network_words *words, place at) {
    (void)at;
    return ls_nn_pixel_shuffle(whole(words, "factor"));
}

static ls_module *make_pixel_unshuffle(network_words *words, place at) {
    (void)at;
    return ls_nn_pixel_unshuffle(whole(words, "factor"));
}

static ls_tensor *transposed(ls_tensor *x, void *user) {
    (void)user;
    return ls_transpose(x, 1, 2);
}

static ls_module *transpose_new(void) {
    return ls_nn_function("Transpose", transposed, NULL);
}

static ls_tensor *tokens_of(ls_tensor *x, void *user) {
    (void)user;
    return ls_transpose(ls_flatten(x, 2, -1), 1, 2);
}

static ls_module *tokens_new(void) {
    return ls_nn_function("Tokens", tokens_of, NULL);
}

static ls_tensor *mean_of(ls_tensor *x, void *user) {
    (void)user;
    return ls_mean_axes(x, LS_AXES(1), false);
}

static ls_module *mean_new(void) {
    return ls_nn_function("Mean", mean_of, NULL);
}

static ls_tensor *final_of(ls_tensor *x, void *user) {
    (void)user;
    return ls_select(x, 1, -1);
}

static ls_module *final_new(void) {
    return ls_nn_function("Final", final_of, NULL);
}

/* ---- layers of several inputs: a module that holds the other inputs ---------------------------------------------- */

typedef struct given_state {
    ls_module *of;
    ls_tensor *parameters[2]; /* keys, or the initial states of a recurrent layer */
    int parameter_count;
    bool masked, lengths, last, time_first;
    place at;
} given_state;

/* Makes a mask with 0 for masked keys. The first key is never masked. */
static ls_tensor *key_mask(const given_state *state, const ls_tensor *keys) {
    const int number = state->at.one->number, index = NETWORK_LAYER + state->at.line;
    ls_tensor *mask = network_find_kept(number, index, LS_U8);
    if (mask != NULL) {
        return mask;
    }
    mask = ls_empty(LS_SHAPE(ls_size(keys, 0), ls_size(keys, 1)), LS_U8);
    uint8_t *values = elements(mask);
    for (int64_t i = 0; i < ls_numel(mask); i++) {
        const double value = network_value(number, index, i);
        values[i] = value >= -0.25 || i % ls_size(keys, 1) == 0;
    }
    return network_keep(number, index, mask);
}

static ls_tensor *attention_forward(ls_module *self, ls_tensor *x) {
    const given_state *state = ls_module_state(self);
    ls_tensor *keys = state->parameters[0], *y = NULL;
    ls_tensor *inputs[] = {x, keys, NULL, state->masked ? key_mask(state, keys != NULL ? keys : x) : NULL};
    return ls_forward_many(state->of, inputs, 4, &y, 1) == LS_OK ? y : NULL;
}

static ls_tensor *transformer_forward(ls_module *self, ls_tensor *x) {
    const given_state *state = ls_module_state(self);
    ls_tensor *inputs[] = {x, key_mask(state, x)}, *y = NULL;
    return ls_forward_many(state->of, inputs, 2, &y, 1) == LS_OK ? y : NULL;
}

static ls_tensor *recurrent_forward(ls_module *self, ls_tensor *x) {
    const given_state *state = ls_module_state(self);
    const bool lstm = strcmp(ls_module_type_name(state->of), "LSTM") == 0;
    ls_tensor *inputs[4] = {x, state->parameters[0], state->parameters[1], NULL}, *outputs[3] = {NULL};
    if (state->lengths) {
        const int axis = state->time_first ? 0 : 1;
        inputs[lstm ? 3 : 2] = ls_add(network_below(state->at.one->number, NETWORK_LAYER + state->at.line,
                                                    LS_SHAPE(ls_size(x, 1 - axis)), ls_size(x, axis)),
                                      1);
    }
    const ls_status status = ls_forward_many(state->of, inputs, lstm ? 4 : 3, outputs, state->last ? 2 : 1);
    return status == LS_OK ? outputs[state->last ? 1 : 0] : NULL;
}

static ls_module *given_new(const ls_module_type *type, given_state state, const ls_shape *shapes) {
    static const char *const names[] = {"0", "1"};
    ls_module *module = ls_module_new(type);
    assert_non_null(module);
    for (int i = 0; i < state.parameter_count; i++) {
        state.parameters[i] = ls_module_add_parameter(module, names[i], ls_empty(shapes[i], state.at.dtype));
    }
    state.of = ls_module_add_child(module, "of", state.of);
    *(given_state *)ls_module_state(module) = state;
    return ls_module_finish(module);
}

static ls_module *make_attention(network_words *words, place at) {
    static const ls_module_type type = {
        .name = "GivenAttention", .state_size = sizeof(given_state), .forward = attention_forward};
    const int64_t width = whole(words, "width"), heads = whole(words, "heads");
    const ls_attention_layer_options options = {.dtype = at.dtype,
                                                .no_bias = network_flag(words, "no_bias"),
                                                .causal = network_flag(words, "causal"),
                                                .rotary = network_flag(words, "rotary"),
                                                .positions = {.base = network_number(words, "base", 0),
                                                              .first = whole(words, "first"),
                                                              .halves = network_flag(words, "halves")}};
    ls_module *of = ls_nn_multi_head_attention(width, heads, &options);
    ls_shape memory = network_shape(words, "memory");
    const given_state state = {
        .of = of, .parameter_count = memory.ndim > 0, .masked = network_flag(words, "masked"), .at = at};
    if (memory.ndim == 0 && !state.masked) {
        return of;
    }
    memory.size[memory.ndim++] = width;
    return given_new(&type, state, &memory);
}

static ls_module *make_transformer(network_words *words, place at) {
    static const ls_module_type type = {
        .name = "GivenTransformer", .state_size = sizeof(given_state), .forward = transformer_forward};
    const ls_transformer_options options = {.norm_first = true,
                                            .activation = LS_MLP_GELU,
                                            .hidden = whole(words, "hidden"),
                                            .epsilon = network_number(words, "epsilon", 0),
                                            .attention = {.dtype = at.dtype,
                                                          .no_bias = network_flag(words, "no_bias"),
                                                          .causal = network_flag(words, "causal")}};
    ls_module *of = ls_nn_transformer_block(whole(words, "width"), whole(words, "heads"), &options);
    return network_flag(words, "masked") ? given_new(&type, (given_state){.of = of, .at = at}, NULL) : of;
}

static ls_module *make_recurrent(network_words *words, place at) {
    static const ls_module_type type = {
        .name = "GivenRecurrent", .state_size = sizeof(given_state), .forward = recurrent_forward};
    const ls_recurrent_options options = {.dtype = at.dtype,
                                          .layers = (int)whole(words, "layers"),
                                          .bidirectional = network_flag(words, "bidirectional"),
                                          .no_bias = network_flag(words, "no_bias"),
                                          .time_first = network_flag(words, "time_first")};
    const int64_t in = whole(words, "in"), hidden = whole(words, "hidden"), start = whole(words, "start");
    const bool relu = network_flag(words, "relu");
    const bool lstm = strcmp(words->name, "lstm") == 0, gru = strcmp(words->name, "gru") == 0;
    given_state state = {.of = lstm   ? ls_nn_lstm(in, hidden, &options)
                               : gru  ? ls_nn_gru(in, hidden, &options)
                               : relu ? ls_nn_rnn_relu(in, hidden, &options)
                                      : ls_nn_rnn(in, hidden, &options),
                         .parameter_count = start == 0 ? 0
                                            : lstm     ? 2
                                                       : 1,
                         .lengths = network_flag(words, "lengths"),
                         .last = network_flag(words, "last"),
                         .time_first = options.time_first,
                         .at = at};
    if (start == 0 && !state.lengths && !state.last) {
        return state.of;
    }
    const int64_t states = options.layers * (options.bidirectional ? 2 : 1);
    const ls_shape shape = options.time_first ? LS_SHAPE(states, start, hidden) : LS_SHAPE(start, states, hidden);
    return given_new(&type, state, (const ls_shape[]){shape, shape});
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    ls_module *(*make)(void);
} plain_layers[] = {
    {"relu", ls_nn_relu},       {"gelu", ls_nn_gelu}, {"silu", ls_nn_silu},       {"softplus", ls_nn_softplus},
    {"sigmoid", ls_nn_sigmoid}, {"tanh", ls_nn_tanh}, {"flatten", ls_nn_flatten}, {"transpose", transpose_new},
    {"tokens", tokens_new},     {"mean", mean_new},   {"final", final_new},
};

static const struct {
    const char *name;
    ls_module *(*make)(network_words *words, place at);
} layers_with_options[] = {
    {"linear", make_linear},
    {"conv_1d", make_convolution},
    {"conv_2d", make_convolution},
    {"conv_3d", make_convolution},
    {"conv_transpose_1d", make_transposed_convolution},
    {"conv_transpose_2d", make_transposed_convolution},
    {"conv_transpose_3d", make_transposed_convolution},
    {"max_pool", make_max_pool},
    {"average_pool", make_average_pool},
    {"adaptive_average_pool", make_adaptive_pool},
    {"adaptive_max_pool", make_adaptive_pool},
    {"batch_norm_1d", make_batch_norm},
    {"batch_norm_2d", make_batch_norm},
    {"batch_norm_3d", make_batch_norm},
    {"layer_norm", make_layer_norm},
    {"rms_norm", make_rms_norm},
    {"group_norm", make_group_norm},
    {"instance_norm", make_instance_norm},
    {"leaky_relu", make_leaky_relu},
    {"elu", make_elu},
    {"softmax", make_softmax},
    {"log_softmax", make_log_softmax},
    {"dropout", make_dropout},
    {"embedding", make_embedding},
    {"positions", make_positions},
    {"upsample", make_upsample},
    {"pixel_shuffle", make_pixel_shuffle},
    {"pixel_unshuffle", make_pixel_unshuffle},
    {"attention", make_attention},
    {"transformer", make_transformer},
    {"rnn", make_recurrent},
    {"lstm", make_recurrent},
    {"gru", make_recurrent},
};

/* Returns NULL if the name is unknown. */
static ls_module *make_layer(network_words *words, place at) {
    for (size_t i = 0; i < sizeof plain_layers / sizeof plain_layers[0]; i++) {
        if (strcmp(plain_layers[i].name, words->name) == 0) {
            return plain_layers[i].make();
        }
    }
    for (size_t i = 0; i < sizeof layers_with_options / sizeof layers_with_options[0]; i++) {
        if (strcmp(layers_with_options[i].name, words->name) == 0) {
            return layers_with_options[i].make(words, at);
        }
    }
    return NULL;
}

static ls_module *layer_of(place at) {
    network_words words;
    ls_module *module = network_words_read(at.one->lines[at.line], &words) ? make_layer(&words, at) : NULL;
    if (module != NULL && !network_all_used(&words)) {
        ls_module_free(module);
        return NULL;
    }
    return module;
}

/* Makes the layers beginning at line *line. Afterwards *line is after the matching "end", or at the loss. */
static ls_module *sequence_of(const network *one, ls_dtype dtype, int *line, const char **failed) {
    ls_module *layers[NETWORK_LINES];
    int count = 0;
    while (*line < one->line_count - 1 && *failed == NULL) {
        const char *text = one->lines[(*line)++];
        if (strcmp(text, "end") == 0) {
            break;
        }
        if (strcmp(text, "residual") == 0) {
            layers[count++] = ls_nn_residual(sequence_of(one, dtype, line, failed));
        } else if (strcmp(text, "again") == 0 && count > 0) {
            layers[count] = layers[count - 1];
            count++;
        } else {
            layers[count++] = layer_of((place){one, *line - 1, dtype});
        }
        if (layers[count - 1] == NULL && *failed == NULL) {
            *failed = text;
        }
    }
    return ls_sequential_of(layers, count);
}

ls_module *network_module(const network *one, ls_dtype dtype, const char **failed) {
    int line = 1;
    *failed = NULL;
    return sequence_of(one, dtype, &line, failed);
}

bool network_has_f64(const network *one) {
    for (int i = 0; i < one->line_count; i++) {
        if (strncmp(one->lines[i], "embedding ", strlen("embedding ")) == 0) {
            return false;
        }
    }
    return true;
}
