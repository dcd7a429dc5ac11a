/* Attention layers: multi-head attention, learned positions, and the Transformer block. */

#include "autograd/ops/attention.h"
#include "base/option.h"
#include "nn/module.h"

/* ---- multi-head attention ---------------------------------------------------------------------------------------- */

typedef struct attention_state {
    ls_tensor *in_weight; /* [3 width, width]: queries, keys and values */
    ls_tensor *in_bias;   /* [3 width] or NULL */
    ls_module *out;
    int64_t width, heads;
    bool causal, rotary;
    ls_rotary_options positions;
} attention_state;

enum { QUERY, KEY, VALUE, KEY_MASK, ATTN_MASK, INPUTS };

/* Views [n, length, width] as [n, heads, length, width / heads]. Returns NULL for NULL. */
static ls_tensor *heads_apart(const attention_state *state, ls_tensor *x) {
    if (x == NULL) {
        return NULL;
    }
    return ls_transpose(
        ls_reshape(x, LS_SHAPE(ls_size(x, 0), ls_size(x, 1), state->heads, state->width / state->heads)), 1, 2);
}

/* Splits a tensor that contains the queries, keys and values of one input. */
static void divide(const attention_state *state, ls_tensor *all, ls_tensor **parts) {
    for (int i = 0; i < 3; i++) {
        parts[i] = heads_apart(state, ls_narrow(all, -1, i * state->width, state->width));
    }
}

static void project_each(const attention_state *state, ls_tensor *const *inputs, ls_tensor **parts) {
    for (int i = 0; i < 3; i++) {
        ls_tensor *weight = ls_narrow(state->in_weight, 0, i * state->width, state->width);
        ls_tensor *bias = state->in_bias != NULL ? ls_narrow(state->in_bias, 0, i * state->width, state->width) : NULL;
        const bool made = weight != NULL && (bias != NULL || state->in_bias == NULL);
        parts[i] = made ? heads_apart(state, ls_linear(inputs[i], weight, bias)) : NULL;
    }
}

static ls_status check_inputs(const ls_module *self, ls_tensor *const *inputs, int input_count) {
    const attention_state *state = self->state;
    if (input_count < 1 || input_count > INPUTS) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: takes 1 to 5 inputs: query, key, value, key_mask and attn_mask",
                       self->type->name);
    }
    LS_TRY(inputs[QUERY] != NULL ? LS_OK : ls_module_refuse_missing(self, "the query"));
    for (int i = 0; i < input_count && i <= VALUE; i++) {
        const ls_tensor *x = inputs[i];
        if (x != NULL && (ls_ndim(x) != 3 || ls_size(x, 2) != state->width)) {
            return ls_fail(LS_ERR_SHAPE, "%s: input %d is %s, but must be [n, length, %lld]", self->type->name, i + 1,
                           LS_SHAPE_TEXT(x), (long long)state->width);
        }
    }
    return LS_OK;
}

static ls_tensor *attend(const attention_state *state, ls_tensor **parts, ls_tensor *const *given) {
    for (int i = QUERY; i <= KEY && state->rotary; i++) {
        parts[i] = parts[i] == NULL ? NULL : ls_rotary(parts[i], &state->positions);
    }
    if (parts[QUERY] == NULL || parts[KEY] == NULL || parts[VALUE] == NULL) {
        return NULL;
    }
    const ls_attention_options options = {
        .causal = state->causal, .key_mask = given[KEY_MASK], .attn_mask = given[ATTN_MASK]};
    ls_tensor *y = ls_attention(parts[QUERY], parts[KEY], parts[VALUE], &options);
    ls_tensor *together = y == NULL ? NULL : ls_transpose(y, 1, 2);
    return together == NULL ? NULL
                            : ls_reshape(together, LS_SHAPE(ls_size(together, 0), ls_size(together, 1), state->width));
}

/* Computes self-attention of x, with a single product for the queries, keys and values. */
static ls_tensor *attend_to_itself(const attention_state *state, ls_tensor *const *given) {
    ls_tensor *all = ls_linear(given[QUERY], state->in_weight, state->in_bias);
    if (all == NULL) {
        return NULL;
    }
    if (!state->rotary && given[KEY_MASK] == NULL && given[ATTN_MASK] == NULL) {
        return ls_attention_of_projection(all, state->heads, state->causal);
    }
    ls_tensor *parts[3];
    divide(state, all, parts);
    return attend(state, parts, given);
}

static ls_tensor *attend_to_others(const attention_state *state, ls_tensor **given) {
    ls_tensor *parts[3];
    given[KEY] = given[KEY] != NULL ? given[KEY] : given[QUERY];
    given[VALUE] = given[VALUE] != NULL ? given[VALUE] : given[KEY];
    project_each(state, given, parts);
    return attend(state, parts, given);
}

static ls_status attention_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                   int output_count) {
    const attention_state *state = self->state;
    (void)output_count;
    LS_TRY(check_inputs(self, inputs, input_count));
    ls_tensor *given[INPUTS] = {NULL};
    for (int i = 0; i < input_count; i++) {
        given[i] = inputs[i];
    }
    const bool to_itself =
        (given[KEY] == NULL || given[KEY] == given[QUERY]) && (given[VALUE] == NULL || given[VALUE] == given[QUERY]);
    ls_tensor *y = to_itself ? attend_to_itself(state, given) : attend_to_others(state, given);
    outputs[0] = y == NULL ? NULL : ls_forward(state->out, y);
    return outputs[0] != NULL ? LS_OK : ls_error_status();
}

/* Adds the parameters of the projections: weights from the initialiser, and zero biases. */
static void add_projections(ls_module *module, const ls_attention_layer_options *options) {
    attention_state *state = module->state;
    const int64_t width = state->width;
    state->in_weight = ls_out_of_scope(
        ls_module_add_parameter(module, "in_proj_weight", ls_empty(LS_SHAPE(3 * width, width), options->dtype)));
    ls_module_fail_if(module, state->in_weight == NULL || ls_nn_init_xavier_uniform(state->in_weight, 1) != LS_OK);
    if (!options->no_bias) {
        state->in_bias = ls_out_of_scope(
            ls_module_add_parameter(module, "in_proj_bias", ls_zeros(LS_SHAPE(3 * width), options->dtype)));
    }
    state->out = ls_module_add_child(
        module, "out_proj",
        ls_nn_linear_with(width, width, &(ls_linear_options){.dtype = options->dtype, .no_bias = options->no_bias}));
    ls_tensor *bias = state->out != NULL ? ls_module_find(state->out, "bias") : NULL;
    ls_module_fail_if(module, !options->no_bias && (bias == NULL || ls_nn_init_constant(bias, 0) != LS_OK));
}

ls_module *ls_nn_multi_head_attention(int64_t width, int64_t heads, const ls_attention_layer_options *options) {
    static const ls_module_type type = {.name = "MultiheadAttention",
                                        .state_size = sizeof(attention_state),
                                        .forward_many = attention_forward,
                                        .outputs = 1};
    static const ls_attention_layer_options defaults;
    options = options != NULL ? options : &defaults;
    if (width <= 0 || heads <= 0 || width % heads != 0 || (options->rotary && width / heads % 2 != 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "ls_nn_multi_head_attention: width %lld cannot be divided into %lld heads of equal%s width",
                            (long long)width, (long long)heads, options->rotary ? ", even" : "");
    }
    ls_module *module =
        options->rotary && ls_rotary_check("ls_nn_multi_head_attention", &options->positions, 0) != LS_OK
            ? NULL
            : ls_module_new(&type);
    if (module == NULL) {
        return NULL;
    }
    *(attention_state *)module->state = (attention_state){.width = width,
                                                          .heads = heads,
                                                          .causal = options->causal,
                                                          .rotary = options->rotary,
                                                          .positions = options->positions};
    add_projections(module, options);
    return ls_module_finish(module);
}

/* ---- learned positions ------------------------------------------------------------------------------------------- */

typedef struct positions_state {
    ls_tensor *weight;
} positions_state;

static ls_tensor *positions_forward(ls_module *self, ls_tensor *input) {
    const positions_state *state = self->state;
    const int64_t count = ls_size(state->weight, 0), width = ls_size(state->weight, 1);
    const int ndim = ls_ndim(input);
    if (ndim < 2 || ls_size(input, -1) != width || ls_size(input, -2) > count) {
        (void)ls_fail(LS_ERR_SHAPE, "%s: x is %s, but must be [..., positions, %lld] with at most %lld positions",
                      self->type->name, LS_SHAPE_TEXT(input), (long long)width, (long long)count);
        return ls_scope_failed();
    }
    ls_tensor *used = ls_narrow(state->weight, 0, 0, ls_size(input, -2));
    return used == NULL ? NULL : ls_add_tensor(input, used);
}

ls_module *ls_nn_positions(int64_t count, int64_t width, ls_dtype dtype) {
    static const ls_module_type type = {
        .name = "Positions", .state_size = sizeof(positions_state), .forward = positions_forward};
    if (count <= 0 || width <= 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_positions: %lld positions of width %lld: both must be positive",
                            (long long)count, (long long)width);
    }
    ls_module *module = ls_module_new(&type);
    if (module == NULL) {
        return NULL;
    }
    positions_state *state = module->state;
    state->weight = ls_out_of_scope(ls_module_add_parameter(module, "weight", ls_empty(LS_SHAPE(count, width), dtype)));
    ls_module_fail_if(module, state->weight == NULL || ls_nn_init_normal(state->weight, 0, 0.02) != LS_OK);
    return ls_module_finish(module);
}

/* ---- the Transformer block --------------------------------------------------------------------------------------- */

typedef struct block_state {
    ls_module *attention, *linear1, *linear2, *norm1, *norm2;
    ls_module *dropout, *dropout1, *dropout2; /* inside the MLP, after attention, after the MLP */
    ls_tensor *(*activation)(ls_tensor *);
    bool norm_first;
} block_state;

/* Applies self-attention to x; `inputs` are the inputs of the block. */
static ls_tensor *attention_part(const block_state *state, ls_tensor *x, ls_tensor *const *inputs) {
    ls_tensor *y = NULL;
    ls_tensor *const given[INPUTS] = {[QUERY] = x, [KEY_MASK] = inputs[1], [ATTN_MASK] = inputs[2]};
    return ls_forward_many(state->attention, given, INPUTS, &y, 1) == LS_OK ? ls_forward(state->dropout1, y) : NULL;
}

static ls_tensor *mlp_part(const block_state *state, ls_tensor *x, ls_tensor *const *inputs) {
    (void)inputs;
    ls_tensor *y = ls_forward(state->linear1, x);
    y = y == NULL ? NULL : ls_forward(state->dropout, state->activation(y));
    y = y == NULL ? NULL : ls_forward(state->linear2, y);
    return y == NULL ? NULL : ls_forward(state->dropout2, y);
}

typedef ls_tensor *block_part(const block_state *state, ls_tensor *x, ls_tensor *const *inputs);

/* Computes x + part(norm(x)), or norm(x + part(x)). */
static ls_tensor *add_part(const block_state *state, block_part *part, ls_module *norm, ls_tensor *x,
                           ls_tensor *const *inputs) {
    ls_tensor *y = state->norm_first ? ls_forward(norm, x) : x;
    y = y == NULL ? NULL : part(state, y, inputs);
    y = y == NULL ? NULL : ls_add_tensor(x, y);
    return y == NULL || state->norm_first ? y : ls_forward(norm, y);
}

static ls_status block_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                               int output_count) {
    const block_state *state = self->state;
    (void)output_count;
    if (input_count < 1 || input_count > 3) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: takes 1 to 3 inputs: x, key_mask and attn_mask", self->type->name);
    }
    LS_TRY(inputs[0] != NULL ? LS_OK : ls_module_refuse_missing(self, "x"));
    ls_tensor *given[3] = {NULL};
    for (int i = 0; i < input_count; i++) {
        given[i] = inputs[i];
    }
    ls_tensor *x = add_part(state, attention_part, state->norm1, given[0], given);
    outputs[0] = x == NULL ? NULL : add_part(state, mlp_part, state->norm2, x, given);
    return outputs[0] != NULL ? LS_OK : ls_error_status();
}

static void add_layers(ls_module *module, int64_t width, int64_t heads, const ls_transformer_options *options) {
    block_state *state = module->state;
    const int64_t hidden = options->hidden != 0 ? options->hidden : 4 * width;
    const ls_dtype dtype = options->attention.dtype;
    const bool no_bias = options->attention.no_bias;
    const double dropout = ls_option(options->dropout, 0);
    const ls_linear_options linear = {.dtype = dtype, .no_bias = no_bias};
    const ls_norm_options norm = {.dtype = dtype, .no_bias = no_bias, .epsilon = options->epsilon};
    state->attention =
        ls_module_add_child(module, "self_attn", ls_nn_multi_head_attention(width, heads, &options->attention));
    state->linear1 = ls_module_add_child(module, "linear1", ls_nn_linear_with(width, hidden, &linear));
    state->dropout = ls_module_add_child(module, "dropout", ls_nn_dropout(dropout));
    state->linear2 = ls_module_add_child(module, "linear2", ls_nn_linear_with(hidden, width, &linear));
    state->norm1 = ls_module_add_child(module, "norm1", ls_nn_layer_norm(LS_SHAPE(width), &norm));
    state->norm2 = ls_module_add_child(module, "norm2", ls_nn_layer_norm(LS_SHAPE(width), &norm));
    state->dropout1 = ls_module_add_child(module, "dropout1", ls_nn_dropout(dropout));
    state->dropout2 = ls_module_add_child(module, "dropout2", ls_nn_dropout(dropout));
}

ls_module *ls_nn_transformer_block(int64_t width, int64_t heads, const ls_transformer_options *options) {
    static const ls_module_type type = {
        .name = "TransformerBlock", .state_size = sizeof(block_state), .forward_many = block_forward, .outputs = 1};
    static ls_tensor *(*const activations[])(ls_tensor *) = {
        [LS_MLP_RELU] = ls_relu, [LS_MLP_GELU] = ls_gelu, [LS_MLP_GELU_TANH] = ls_gelu_tanh};
    static const ls_transformer_options defaults;
    options = options != NULL ? options : &defaults;
    if ((unsigned)options->activation > LS_MLP_GELU_TANH) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_transformer_block: the activation %d does not exist",
                            (int)options->activation);
    }
    if (options->hidden < 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_transformer_block: .hidden is %lld, but must not be negative",
                            (long long)options->hidden);
    }
    if (!(options->dropout >= 0 && options->dropout <= 1)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_nn_transformer_block: .dropout is %g, but must be from 0 to 1",
                            options->dropout);
    }
    ls_module *module = ls_module_new(&type);
    if (module == NULL) {
        return NULL;
    }
    block_state *state = module->state;
    state->norm_first = options->norm_first;
    state->activation = activations[options->activation];
    add_layers(module, width, heads, options);
    return ls_module_finish(module);
}
