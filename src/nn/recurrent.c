/* Recurrent layers: RNN, LSTM and GRU, with multiple layers and bidirectional variants. */
#include <math.h>
#include <stdio.h>

#include "autograd/ops/recurrent.h"
#include "base/memory.h"
#include "base/option.h"
#include "nn/module.h"

enum { MOST_LAYERS = 64 };

/* One direction of one layer. */
typedef struct direction {
    ls_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* the biases are NULL if the layer has no biases */
} direction;

typedef struct recurrent_state {
    ls_recurrence kind;
    int layers, directions;
    int64_t in, hidden;
    bool time_first;
    direction *of; /* [layers * directions] */
    ls_module *dropout;
} recurrent_state;

/* The arguments of a call; the steps are the first axis of x. */
typedef struct call {
    ls_tensor *x, *states[2], *lengths;
    ls_tensor *last[2][2 * MOST_LAYERS]; /* final h and c of each layer and direction */
} call;

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static ls_status check_x(const ls_module *self, const ls_tensor *x) {
    const recurrent_state *state = self->state;
    LS_TRY(x != NULL ? LS_OK : ls_module_refuse_missing(self, "x"));
    if (ls_ndim(x) != 3 || ls_size(x, 2) != state->in) {
        return ls_fail(LS_ERR_SHAPE, "%s: x is %s, but must be [%s, %lld]", self->type->name, LS_SHAPE_TEXT(x),
                       state->time_first ? "length, n" : "n, length", (long long)state->in);
    }
    return LS_OK;
}

static ls_status check_state(const ls_module *self, const ls_tensor *given, int64_t n, const char *name) {
    const recurrent_state *state = self->state;
    const int64_t count = (int64_t)state->layers * state->directions;
    const int samples = state->time_first ? 1 : 0;
    if (given == NULL || (ls_ndim(given) == 3 && ls_size(given, samples) == n && ls_size(given, 1 - samples) == count &&
                          ls_size(given, 2) == state->hidden)) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_SHAPE, "%s: %s is %s, but must be [%lld, %lld, %lld]", self->type->name, name,
                   LS_SHAPE_TEXT(given), (long long)(samples == 0 ? n : count), (long long)(samples == 0 ? count : n),
                   (long long)state->hidden);
}

static ls_status check_lengths(const ls_module *self, const ls_tensor *lengths, int64_t n) {
    if (lengths == NULL) {
        return LS_OK;
    }
    if (ls_dtype_of(lengths) != LS_I64 && ls_dtype_of(lengths) != LS_I32) {
        return ls_fail(LS_ERR_SHAPE, "%s: the lengths are a tensor of %s, but must be i64 or i32", self->type->name,
                       ls_dtype_name(ls_dtype_of(lengths)));
    }
    if (ls_ndim(lengths) != 1 || ls_size(lengths, 0) != n) {
        return ls_fail(LS_ERR_SHAPE, "%s: the lengths are %s, but must be [%lld], one per sequence", self->type->name,
                       LS_SHAPE_TEXT(lengths), (long long)n);
    }
    return LS_OK;
}

/* Checks the lengths if x has 0 steps. Otherwise, the cells check them. */
static ls_status check_empty(const ls_module *self, const ls_tensor *x, ls_tensor *lengths) {
    if (lengths == NULL || ls_size(x, 0) > 0 || ls_numel(lengths) == 0) {
        return LS_OK;
    }
    const ls_tensor *least = ls_min(lengths), *largest = ls_max(lengths);
    if (least == NULL || largest == NULL) {
        return ls_error_status();
    }
    const double wrong = ls_item(least) < 0 ? ls_item(least) : ls_item(largest);
    return wrong == 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the lengths contain %g, but x has 0 steps", self->type->name, wrong);
}

static ls_status take_inputs(const ls_module *self, ls_tensor *const *inputs, int input_count, int output_count,
                             call *c) {
    const recurrent_state *state = self->state;
    const int states = (int)ls_recurrence_states(state->kind);
    if (input_count < 1 || input_count > states + 2 || output_count < 1 || output_count > states + 1) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: takes x%s and lengths, of which all but x may be omitted, and returns y%s, but was called "
                       "with %d inputs and %d outputs",
                       self->type->name, states > 1 ? ", h, c" : ", h", states > 1 ? ", h and c" : " and h",
                       input_count, output_count);
    }
    LS_TRY(check_x(self, inputs[0]));
    const int64_t n = ls_size(inputs[0], state->time_first ? 1 : 0);
    for (int i = 0; i < states && i + 1 < input_count; i++) {
        LS_TRY(check_state(self, inputs[i + 1], n, i == 0 ? "h" : "c"));
        c->states[i] = inputs[i + 1];
    }
    if (states == 2 && (c->states[0] == NULL) != (c->states[1] == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s is NULL: pass both h and c, or neither", self->type->name,
                       c->states[0] == NULL ? "h" : "c");
    }
    c->lengths = states + 1 < input_count ? inputs[states + 1] : NULL;
    LS_TRY(check_lengths(self, c->lengths, n));
    c->lengths = c->lengths != NULL ? ls_to(c->lengths, LS_I64) : NULL;
    c->x = state->time_first ? inputs[0] : ls_transpose(inputs[0], 0, 1);
    return c->x != NULL && (c->lengths != NULL || input_count < states + 2 || inputs[states + 1] == NULL)
               ? check_empty(self, c->x, c->lengths)
               : ls_error_status();
}

/*
 * Returns the initial states of direction `index`: [states, n, hidden]. NULL means zeros or, with *good set to false, a
 * failure.
 */
static ls_tensor *first_states(const recurrent_state *state, const call *c, int index, bool *good) {
    const int count = (int)ls_recurrence_states(state->kind);
    ls_tensor *parts[2] = {NULL};
    *good = true;
    if (c->states[0] == NULL) {
        return NULL;
    }
    for (int i = 0; i < count && *good; i++) {
        parts[i] = ls_select(c->states[i], state->time_first ? 0 : 1, index);
        *good = parts[i] != NULL;
    }
    ls_tensor *together = *good ? ls_stack(parts, count, 0) : NULL;
    *good = together != NULL;
    return together;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Returns y [length, n, hidden] of one layer in one direction. Stores the final states in the call. */
static ls_tensor *run_direction(const recurrent_state *state, call *c, int index) {
    const direction *d = &state->of[index];
    const bool reverse = state->directions == 2 && index % 2 == 1;
    bool good;
    ls_tensor *first = first_states(state, c, index, &good);
    ls_tensor *gates = good ? ls_linear(c->x, d->weight_ih, d->bias_ih) : NULL;
    if (gates == NULL) {
        return NULL;
    }
    const int64_t length = ls_size(gates, 0);
    ls_tensor *all = ls_recur(state->kind, gates, d->weight_hh, d->bias_hh, first, c->lengths, reverse);
    if (all == NULL) {
        return NULL;
    }
    c->last[0][index] = ls_select(all, 0, reverse ? 0 : length);
    c->last[1][index] = ls_recurrence_states(state->kind) > 1 ? ls_select(all, 0, length + 1) : NULL;
    return ls_narrow(all, 0, reverse ? 0 : 1, length);
}

static ls_tensor *run_layer(const recurrent_state *state, call *c, int layer) {
    ls_tensor *y[2];
    for (int i = 0; i < state->directions; i++) {
        y[i] = run_direction(state, c, layer * state->directions + i);
        if (y[i] == NULL) {
            return NULL;
        }
    }
    return state->directions == 1 ? y[0] : ls_concat(y, 2, 2);
}

/* Applies dropout to a tensor whose first axis is the steps. Dropout needs the samples first, so moves them there
 * and back. */
static ls_tensor *drop(const recurrent_state *state, ls_tensor *y) {
    if (y == NULL || !ls_module_is_training(state->dropout)) {
        return y;
    }
    ls_tensor *dropped = ls_forward(state->dropout, ls_transpose(y, 0, 1));
    return dropped == NULL ? NULL : ls_transpose(dropped, 0, 1);
}

/* Sets y to zero after the end of each sequence. */
static ls_tensor *cut_off(ls_tensor *y, ls_tensor *lengths) {
    ls_tensor *steps = ls_reshape(ls_arange(LS_SHAPE(ls_size(y, 0)), LS_I64), LS_SHAPE(-1, 1));
    return ls_masked_fill(y, ls_unsqueeze(ls_ge(ls_tensor_to_device(steps, ls_device_of(y)), lengths), -1), 0);
}

static ls_status run_recurrent(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                               int output_count) {
    const recurrent_state *state = self->state;
    call c = {0};
    LS_TRY(take_inputs(self, inputs, input_count, output_count, &c));
    for (int layer = 0; layer < state->layers && c.x != NULL; layer++) {
        c.x = run_layer(state, &c, layer);
        c.x = layer + 1 < state->layers && state->dropout != NULL ? drop(state, c.x) : c.x;
    }
    ls_tensor *y = c.x != NULL && c.lengths != NULL ? cut_off(c.x, c.lengths) : c.x;
    if (y == NULL) {
        return ls_error_status();
    }
    outputs[0] = state->time_first ? y : ls_transpose(y, 0, 1);
    for (int i = 1; i < output_count; i++) {
        outputs[i] = ls_stack(c.last[i - 1], state->layers * state->directions, state->time_first ? 0 : 1);
    }
    for (int i = 0; i < output_count; i++) {
        if (outputs[i] == NULL) {
            return ls_error_status();
        }
    }
    return LS_OK;
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

static ls_tensor *add_parameter(ls_module *module, const char *name, int layer, bool reverse, ls_shape shape,
                                ls_dtype dtype) {
    const recurrent_state *state = module->state;
    const double bound = 1 / sqrt((double)state->hidden);
    char full[64];
    snprintf(full, sizeof full, "%s_l%d%s", name, layer, reverse ? "_reverse" : "");
    ls_tensor *made = ls_out_of_scope(ls_module_add_parameter(module, full, ls_empty(shape, dtype)));
    ls_module_fail_if(module, made == NULL || ls_nn_init_uniform(made, -bound, bound) != LS_OK);
    return made;
}

static void add_direction(ls_module *module, int layer, int i, const ls_recurrent_options *options) {
    recurrent_state *state = module->state;
    direction *d = &state->of[layer * state->directions + i];
    const int64_t gates = ls_recurrence_gates(state->kind) * state->hidden;
    const int64_t in = layer == 0 ? state->in : state->directions * state->hidden;
    d->weight_ih = add_parameter(module, "weight_ih", layer, i == 1, LS_SHAPE(gates, in), options->dtype);
    d->weight_hh = add_parameter(module, "weight_hh", layer, i == 1, LS_SHAPE(gates, state->hidden), options->dtype);
    if (!options->no_bias) {
        d->bias_ih = add_parameter(module, "bias_ih", layer, i == 1, LS_SHAPE(gates), options->dtype);
        d->bias_hh = add_parameter(module, "bias_hh", layer, i == 1, LS_SHAPE(gates), options->dtype);
    }
}

static void free_recurrent(ls_module *self) {
    ls_free(((recurrent_state *)self->state)->of);
}

static ls_status check_options(const char *name, int64_t in, int64_t hidden, const ls_recurrent_options *options) {
    if (in <= 0 || hidden <= 0 || hidden > INT64_MAX / 8) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %lld inputs and a hidden width of %lld: both must be positive", name,
                       (long long)in, (long long)hidden);
    }
    if (options->layers < 0 || options->layers > MOST_LAYERS) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %d layers: must be from 1 to %d", name, options->layers, MOST_LAYERS);
    }
    return ls_option_within(name, "dropout", options->dropout, 0, 1);
}

static ls_module *recurrent(const char *name, const ls_module_type *type, ls_recurrence kind, int64_t in,
                            int64_t hidden, const ls_recurrent_options *options) {
    static const ls_recurrent_options defaults;
    options = options != NULL ? options : &defaults;
    ls_module *module = check_options(name, in, hidden, options) == LS_OK ? ls_module_new(type) : NULL;
    if (module == NULL) {
        return NULL;
    }
    recurrent_state *state = module->state;
    *state = (recurrent_state){.kind = kind,
                               .layers = options->layers > 0 ? options->layers : 1,
                               .directions = options->bidirectional ? 2 : 1,
                               .in = in,
                               .hidden = hidden,
                               .time_first = options->time_first};
    state->of = ls_allocate_zeroed((size_t)(state->layers * state->directions), sizeof *state->of);
    if (state->of == NULL) {
        (void)ls_fail(LS_ERR_MEMORY, "%s: out of memory for %d layers", name, state->layers);
        ls_module_fail_if(module, true);
        return ls_module_finish(module);
    }
    for (int i = 0; i < state->layers * state->directions; i++) {
        add_direction(module, i / state->directions, i % state->directions, options);
    }
    const double dropout = ls_option(options->dropout, 0);
    if (dropout > 0 && state->layers > 1) {
        state->dropout = ls_module_add_child(module, "dropout", ls_nn_dropout(dropout));
    }
    return ls_module_finish(module);
}

#define RECURRENT_TYPE(text)                                                                                           \
    {                                                                                                                  \
        .name = (text), .state_size = sizeof(recurrent_state), .forward_many = run_recurrent,                          \
        .free_state = free_recurrent                                                                                   \
    }

ls_module *ls_nn_rnn(int64_t in, int64_t hidden, const ls_recurrent_options *options) {
    static const ls_module_type type = RECURRENT_TYPE("RNN");
    return recurrent("ls_nn_rnn", &type, LS_RECURRENCE_TANH, in, hidden, options);
}

ls_module *ls_nn_rnn_relu(int64_t in, int64_t hidden, const ls_recurrent_options *options) {
    static const ls_module_type type = RECURRENT_TYPE("RNN");
    return recurrent("ls_nn_rnn_relu", &type, LS_RECURRENCE_RELU, in, hidden, options);
}

ls_module *ls_nn_lstm(int64_t in, int64_t hidden, const ls_recurrent_options *options) {
    static const ls_module_type type = RECURRENT_TYPE("LSTM");
    return recurrent("ls_nn_lstm", &type, LS_RECURRENCE_LSTM, in, hidden, options);
}

ls_module *ls_nn_gru(int64_t in, int64_t hidden, const ls_recurrent_options *options) {
    static const ls_module_type type = RECURRENT_TYPE("GRU");
    return recurrent("ls_nn_gru", &type, LS_RECURRENCE_GRU, in, hidden, options);
}
