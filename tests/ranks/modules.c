/*
 * Modules with several inputs and outputs, and hooks, in ls_data_parallel: a recurrent cell, attention with masks, and
 * tied weights train as in a single process with the global batch, even if a rank has no samples.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"

#include <lockstep/parallel.h>

#include "tests/support/numbers.h"

enum { ROWS = 11, TIMES = 3, WIDTH = 4, WORDS = 7, SEED = 5 };

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* Returns samples `first` to `last` - 1 of normally distributed numbers, [samples, a, b]. */
static ls_tensor *normal(uint64_t stream, int64_t first, int64_t last, int64_t a, int64_t b) {
    ls_tensor *x = ls_empty(LS_SHAPE(last - first, a, b), LS_F64);
    for (int64_t i = 0; x != NULL && i < ls_numel(x); i++) {
        numbers_set(x, i, ls_random_normal(SEED, stream, (uint64_t)(first * a * b + i)));
    }
    return x;
}

/* Returns the words of samples `first` to `last` - 1, [samples, times]. */
static ls_tensor *words(int64_t first, int64_t last) {
    ls_tensor *x = ls_empty(LS_SHAPE(last - first, TIMES), LS_I64);
    for (int64_t i = 0; x != NULL && i < ls_numel(x); i++) {
        ((int64_t *)elements(x))[i] = (first * TIMES + i) * 5 % WORDS;
    }
    return x;
}

/* Returns a mask of the times that count, [samples, times]: at least the first. */
static ls_tensor *lengths(int64_t first, int64_t last) {
    ls_tensor *x = ls_empty(LS_SHAPE(last - first, TIMES), LS_BOOL);
    for (int64_t i = 0; x != NULL && i < ls_numel(x); i++) {
        ((bool *)elements(x))[i] = i % TIMES <= (first + i / TIMES) % TIMES;
    }
    return x;
}

/* ---- a recurrent cell -------------------------------------------------------------------------------------------- */

typedef struct parts {
    ls_module *part[3];
} parts;

static ls_module *linear(int64_t in, int64_t out) {
    return ls_nn_linear_with(in, out, &(ls_linear_options){.dtype = LS_F64});
}

/* Inputs: x [n, width], and h [n, width] or NULL before the first step. Outputs: y and the next h, both [n, width]. */
static ls_status cell_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                              int output_count) {
    const parts *cell = ls_module_state(self);
    LS_CHECK(input_count == 2 && output_count == 2);
    ls_tensor *sum = ls_forward(cell->part[0], inputs[0]);
    sum = inputs[1] != NULL ? ls_add(sum, ls_forward(cell->part[1], inputs[1])) : sum;
    outputs[1] = ls_tanh(sum);
    outputs[0] = ls_forward(cell->part[2], outputs[1]);
    return outputs[0] != NULL ? LS_OK : ls_error_status();
}

static ls_module *cell_new(void) {
    static const ls_module_type type = {.name = "Cell",
                                        .state_size = sizeof(parts),
                                        .forward_many = cell_forward,
                                        .inputs = 2,
                                        .outputs = 2,
                                        .optional = 1U << 1};
    ls_module *module = ls_module_new(&type);
    parts *cell = ls_module_state(module);
    cell->part[0] = ls_module_add_child(module, "input", linear(WIDTH, WIDTH));
    cell->part[1] = ls_module_add_child(module, "hidden", linear(WIDTH, WIDTH));
    cell->part[2] = ls_module_add_child(module, "output", linear(WIDTH, WIDTH));
    return ls_module_finish(module);
}

static ls_tensor *cell_loss(ls_module *cell, int64_t first, int64_t last) {
    ls_tensor *x = normal(1, first, last, TIMES, WIDTH);
    ls_tensor *outputs[2] = {NULL, NULL};
    for (int t = 0; t < TIMES; t++) {
        ls_tensor *inputs[] = {ls_select(x, 1, t), outputs[1]};
        if (ls_forward_many(cell, inputs, 2, outputs, 2) != LS_OK) {
            return NULL;
        }
    }
    return ls_mse_loss(outputs[0], ls_select(x, 1, 0), LS_LOSS_MEAN);
}

/* ---- attention with masks ---------------------------------------------------------------------------------------- */

/*
 * Inputs: x [n, times, width]; a mask of the times that count, [n, times] or NULL; and, for all samples, a bias of the
 * scores, [times, times] or NULL. Outputs: the normalized mean over times [n, width], and the weights [n, times,
 * times].
 */
static ls_status attention_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                   int output_count) {
    const parts *attention = ls_module_state(self);
    LS_CHECK(input_count == 3 && output_count == 2);
    ls_tensor *x = inputs[0];
    ls_tensor *scores = ls_matmul(ls_forward(attention->part[0], x), ls_transpose(x, 1, 2));
    scores = inputs[2] != NULL ? ls_add(scores, inputs[2]) : scores;
    if (inputs[1] != NULL) {
        scores = ls_where(ls_unsqueeze(inputs[1], 1), scores, ls_full(LS_SCALAR, LS_F64, -1e9));
    }
    outputs[1] = ls_softmax(scores, -1);
    ls_tensor *mean = ls_mean_axes(ls_matmul(outputs[1], x), LS_AXES(1), false);
    outputs[0] = ls_forward(attention->part[2], ls_forward(attention->part[1], mean));
    return outputs[0] != NULL ? LS_OK : ls_error_status();
}

static ls_module *attention_new(void) {
    static const ls_module_type type = {.name = "Attention",
                                        .state_size = sizeof(parts),
                                        .forward_many = attention_forward,
                                        .inputs = 3,
                                        .outputs = 2,
                                        .optional = 1U << 1 | 1U << 2};
    ls_module *module = ls_module_new(&type);
    parts *attention = ls_module_state(module);
    attention->part[0] = ls_module_add_child(module, "query", linear(WIDTH, WIDTH));
    attention->part[1] =
        ls_module_add_child(module, "norm", ls_nn_batch_norm_1d(WIDTH, &(ls_batch_norm_options){.dtype = LS_F64}));
    attention->part[2] = ls_module_add_child(module, "dropout", ls_nn_dropout(0.3));
    return ls_module_finish(module);
}

static ls_tensor *attention_loss_of(ls_module *attention, int64_t first, int64_t last, bool masked) {
    ls_tensor *x = normal(1, first, last, TIMES, WIDTH);
    ls_tensor *inputs[] = {x, masked ? lengths(first, last) : NULL,
                           masked ? ls_select(normal(2, 0, 1, TIMES, TIMES), 0, 0) : NULL};
    ls_tensor *outputs[2];
    if (ls_forward_many(attention, inputs, 3, outputs, 2) != LS_OK) {
        return NULL;
    }
    ls_tensor *loss = ls_mse_loss(outputs[0], ls_select(x, 1, 0), LS_LOSS_MEAN);
    return ls_add(loss, ls_mul(ls_sum(ls_square(outputs[1])), 0.1)); /* a sum over all samples, not a mean over ranks */
}

static ls_tensor *masked_loss(ls_module *attention, int64_t first, int64_t last) {
    return attention_loss_of(attention, first, last, true);
}

static ls_tensor *unmasked_loss(ls_module *attention, int64_t first, int64_t last) {
    return attention_loss_of(attention, first, last, false);
}

/* ---- tied weights ------------------------------------------------------------------------------------------------ */

typedef struct table {
    ls_tensor *weight;
    bool output;
} table;

static ls_tensor *table_forward(ls_module *self, ls_tensor *input) {
    const table *t = ls_module_state(self);
    return t->output ? ls_linear(input, t->weight, NULL) : ls_embedding(t->weight, input);
}

static ls_module *table_new(ls_tensor *weight, bool output) {
    static const ls_module_type type = {.name = "Table", .state_size = sizeof(table), .forward = table_forward};
    ls_module *module = ls_module_new(&type);
    table *t = ls_module_state(module);
    *t = (table){.weight = ls_module_add_parameter(module, "weight", weight), .output = output};
    return ls_module_finish(module);
}

/* Maps words [n, times] to logits [n, times, words], with one table for embedding and output. */
static ls_module *tied_new(void) {
    ls_tensor *weight = ls_randn(LS_SHAPE(WORDS, WIDTH), LS_F64);
    return ls_sequential(table_new(weight, false), linear(WIDTH, WIDTH), ls_nn_tanh(), table_new(weight, true));
}

static ls_tensor *tied_loss(ls_module *model, int64_t first, int64_t last) {
    ls_tensor *x = words(first, last);
    ls_tensor *logits = ls_forward(model, x);
    return ls_cross_entropy(ls_transpose(logits, 1, 2), x, NULL);
}

/* ---- equal to one process ---------------------------------------------------------------------------------------- */

typedef struct program {
    ls_module *(*make)(void);
    ls_tensor *(*loss)(ls_module *model, int64_t first, int64_t last);
    int parameters;
} program;

static ls_status pass(const program *p, ls_module *model, int64_t first, int64_t last) {
    ls_module_zero_grad(model);
    ls_seed(SEED); /* dropout draws the same numbers */
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(p->loss(model, first, last));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status same_gradients(const ls_module *is, const ls_module *want, int count) {
    LS_CHECK(ls_module_parameter_count(is) == count && ls_module_parameter_count(want) == count);
    for (int i = 0; i < count; i++) {
        LS_CHECK(ls_grad(ls_module_parameter(want, i)) != NULL);
        LS_CHECK(ls_allclose(ls_grad(ls_module_parameter(is, i)), ls_grad(ls_module_parameter(want, i)), 1e-10, 1e-12));
    }
    for (int i = 0; i < ls_module_buffer_count(want); i++) {
        LS_CHECK(ls_allclose(ls_module_buffer(is, i), ls_module_buffer(want, i), 1e-10, 1e-12));
    }
    return LS_OK;
}

/* All ranks have different numbers of samples, or the last rank has none. */
static ls_status trains_like_one_process(ls_comm *world, const program *p) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    ls_seed((uint64_t)(SEED + rank)); /* ranks start with different parameters, but rank 0's are used */
    ls_module *model = ls_data_parallel(p->make(), world, NULL);
    ls_seed(SEED);
    ls_module *alone = p->make();
    LS_CHECK(model != NULL && alone != NULL);
    for (int skip = 0; skip <= (size > 1); skip++) {
        const int sharing = size - skip;
        if (rank < sharing) {
            LS_TRY(pass(p, model, ROWS * rank / sharing, ROWS * (rank + 1) / sharing));
        } else {
            ls_module_zero_grad(model);
            ls_seed(SEED);
            LS_TRY(ls_data_parallel_skip(model));
        }
        LS_TRY(pass(p, alone, 0, ROWS));
        LS_TRY(same_gradients(model, alone, p->parameters));
    }
    ls_module_free(model);
    ls_module_free(alone);
    return LS_OK;
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

typedef struct seen {
    int forward;
    int backward;
    ls_tensor *inputs; /* gradients of the first input and the first output, kept from the latest pass */
    ls_tensor *outputs;
} seen;

static ls_status see_forward(ls_module_call *call, void *user) {
    (void)call;
    ((seen *)user)->forward++;
    return LS_OK;
}

static ls_status see_backward(ls_module_call *call, void *user) {
    seen *s = user;
    s->backward++;
    ls_release(s->inputs);
    ls_release(s->outputs);
    if (call->input_gradients[0] != NULL) {
        s->inputs = ls_keep(ls_keep(ls_clone(call->input_gradients[0])));
    }
    s->outputs = ls_keep(ls_keep(ls_clone(call->output_gradients[0])));
    return LS_OK;
}

static ls_status watch(ls_module *module, seen *s) {
    const ls_module_hooks hooks = {.user = s, .forward = see_forward, .backward = see_backward};
    LS_CHECK(ls_module_add_hooks(module, &hooks) > 0);
    return LS_OK;
}

static void forget(seen *s) {
    ls_release(s->inputs);
    ls_release(s->outputs);
    *s = (seen){0};
}

/* A rank's loss is the mean over its own samples, and its part of the model has the gradients of this loss. */
static ls_status is_share(const ls_tensor *own, ls_tensor *all, int64_t first, int64_t last) {
    LS_CHECK(own != NULL && all != NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *want = ls_mul(ls_narrow(all, 0, first, last - first), (double)ROWS / (double)(last - first));
    LS_CHECK(ls_allclose(own, want, 1e-10, 1e-12));
    return ls_scope_end(scope);
}

/* Sets hooks on the wrapper, on a module in it, and on a layer that a Sequential would fuse. */
static ls_status hooks_see_every_call(ls_comm *world) {
    const program p = {.make = tied_new, .loss = tied_loss};
    const int64_t first = ROWS * ls_comm_rank(world) / ls_comm_size(world);
    const int64_t last = ROWS * (ls_comm_rank(world) + 1) / ls_comm_size(world);
    ls_seed(SEED);
    ls_module *model = ls_data_parallel(tied_new(), world, NULL);
    ls_seed(SEED);
    ls_module *alone = tied_new();
    seen whole = {0}, tanh = {0}, alone_tanh = {0};
    LS_TRY(watch(model, &whole));
    LS_TRY(watch(ls_module_find_child(model, "2"), &tanh));
    LS_TRY(watch(ls_module_find_child(alone, "2"), &alone_tanh));
    LS_TRY(pass(&p, model, first, last));
    LS_TRY(pass(&p, alone, 0, ROWS));
    LS_CHECK(whole.forward == 1 && whole.backward == 1 && tanh.forward == 1 && tanh.backward == 1);
    LS_CHECK(whole.inputs == NULL && whole.outputs != NULL); /* the words require no gradient */
    LS_TRY(is_share(tanh.inputs, alone_tanh.inputs, first, last));
    LS_TRY(is_share(tanh.outputs, alone_tanh.outputs, first, last));
    LS_TRY(same_gradients(model, alone, 3));
    forget(&whole);
    forget(&tanh);
    forget(&alone_tanh);
    ls_module_free(model);
    ls_module_free(alone);
    return LS_OK;
}

/* A hook on a layer of each stage is called once per micro-batch. */
static ls_status hooks_see_micro_batches(ls_comm *world) {
    enum { MICRO_BATCHES = 3 };
    ls_module *layers[8];
    const int stages = ls_comm_size(world);
    LS_CHECK(stages <= 8);
    seen s = {0};
    for (int i = 0; i < stages; i++) {
        layers[i] = linear(WIDTH, WIDTH);
    }
    LS_TRY(watch(layers[ls_comm_rank(world)], &s));
    ls_module *pipeline =
        ls_pipeline(ls_sequential_of(layers, stages), world, &(ls_pipeline_options){.micro_batches = MICRO_BATCHES});
    LS_CHECK(pipeline != NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_select(normal(1, 0, ROWS, 1, WIDTH), 1, 0);
    LS_TRY(ls_pipeline_backward(pipeline, x, x, ls_criterion_mse, NULL, NULL));
    LS_TRY(ls_scope_end(scope));
    LS_CHECK(s.forward == MICRO_BATCHES && s.backward == MICRO_BATCHES);
    LS_CHECK((s.inputs != NULL) == (ls_comm_rank(world) > 0)); /* the data requires no gradient */
    ls_module_free(pipeline);
    forget(&s);
    return LS_OK;
}

static ls_status fail_hook(ls_module_call *call, void *user) {
    (void)call, (void)user;
    return ls_error_set(LS_ERR_UNSUPPORTED, "this hook fails");
}

/* A hook fails on every rank. Afterwards, the ranks continue training. */
static ls_status a_failing_hook_ends_the_call(ls_comm *world) {
    const program p = {.make = cell_new, .loss = cell_loss};
    ls_module *model = ls_data_parallel(cell_new(), world, NULL);
    const int number =
        ls_module_add_hooks(ls_module_find_child(model, "hidden"), &(ls_module_hooks){.forward_pre = fail_hook});
    LS_CHECK(number > 0);
    LS_CHECK(pass(&p, model, 0, 2) == LS_ERR_UNSUPPORTED && strcmp(ls_error_message(), "this hook fails") == 0);
    LS_TRY(ls_module_remove_hooks(ls_module_find_child(model, "hidden"), number));
    LS_TRY(pass(&p, model, 0, 2));
    ls_tensor *outputs[2];
    LS_CHECK(ls_forward(model, NULL) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("Cell: this module takes 2 inputs");
    LS_CHECK(ls_forward_many(model, (ls_tensor *[]){NULL, NULL}, 2, outputs, 2) == LS_ERR_ARGUMENT);
    ls_module_free(model);
    return LS_OK;
}

/* Calls attention twice, the second time with the output of the first call. */
static ls_tensor *twice_loss(ls_module *attention, int64_t first, int64_t last) {
    ls_tensor *x = normal(1, first, last, TIMES, WIDTH);
    ls_tensor *outputs[2];
    if (ls_forward_many(attention, (ls_tensor *[]){x, NULL, NULL}, 3, outputs, 2) != LS_OK ||
        ls_forward_many(attention, (ls_tensor *[]){ls_add(x, ls_unsqueeze(outputs[0], 1)), NULL, NULL}, 3, outputs,
                        2) != LS_OK) {
        return NULL;
    }
    return ls_mean(ls_square(outputs[0]));
}

/* All ranks of `world` get an error if one rank skips a model that the other ranks call several times. */
static ls_status who_skips_several_calls_is_told(ls_comm *world) {
    const int last = ls_comm_size(world) - 1;
    ls_comm *own = NULL; /* the communicator that fails */
    LS_TRY(ls_comm_split(world, 0, ls_comm_rank(world), &own));
    const program p = {attention_new, twice_loss, 4};
    ls_module *model = ls_data_parallel(attention_new(), own, NULL);
    LS_CHECK(model != NULL);
    const ls_status status = ls_comm_rank(world) < last ? pass(&p, model, 0, 2) : ls_data_parallel_skip(model);
    LS_CHECK(status == LS_ERR_MISMATCH);
    ls_module_free(model);
    ls_comm_free(own);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(trains_like_one_process(world, &(program){cell_new, cell_loss, 6}));
    LS_TRY(trains_like_one_process(world, &(program){attention_new, masked_loss, 4}));
    LS_TRY(trains_like_one_process(world, &(program){attention_new, unmasked_loss, 4}));
    LS_TRY(trains_like_one_process(world, &(program){tied_new, tied_loss, 3}));
    LS_TRY(ls_comm_size(world) > 1 ? who_skips_several_calls_is_told(world) : LS_OK);
    LS_TRY(hooks_see_every_call(world));
    LS_TRY(hooks_see_micro_batches(world));
    return a_failing_hook_ends_the_call(world);
}
