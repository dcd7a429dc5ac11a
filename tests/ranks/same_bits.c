/*
 * Bit-identical results at every world size (.shards): for each program, groups of 1 to W - 1 ranks get the parameters
 * and the optimizer state that W ranks get without .shards. Programs that .shards does not support, and invalid
 * batches, fail on every rank.
 *
 * ranks: 1 2 3 4 5 8
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <math.h>

#include <lockstep/data.h>
#include <lockstep/loss.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/hash.h"
#include "parallel/parallel.h"

enum { INPUTS = 6, STEPS = 7, CLASSES = 3, LENGTH = 4, SAMPLES = 150, SEED = 11 };

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef struct program program;

typedef struct trainee {
    const program *program;
    ls_module *model;
    ls_module *head; /* a layer that some programs do not use */
    ls_optimizer *optimizer;
    ls_grad_scaler *scaler;
    int64_t step;
    ls_overlap_mode overlap;
    bool differs; /* one pixel differs, as a control */
    ls_tensor *penalty;
} trainee;

struct program {
    const char *name;
    ls_module *(*model)(void);
    ls_tensor *(*loss)(const ls_batch *batch, void *user);
    int64_t batch;    /* samples in a global batch */
    bool rows;        /* samples are sequences: [LENGTH, INPUTS] */
    bool accumulates; /* the gradients of two batches add up */
    double clips;     /* the maximum norm of the gradients; 0 disables clipping */
    ls_dtype dtype;   /* of the inputs */
    bool thaws;       /* the first layers are frozen in the first step */
    bool scales;      /* uses a gradient scaler; a step overflows */
};

static ls_module *make_mlp(void) {
    return ls_sequential(ls_nn_linear(INPUTS, 40), ls_nn_tanh(), ls_nn_dropout(0.3), ls_nn_linear(40, 33), ls_nn_relu(),
                         ls_nn_linear(33, CLASSES));
}

static ls_module *make_convolutions(void) {
    return ls_sequential(ls_nn_conv_2d(1, 4, LS_SHAPE(3, 3), &(ls_conv_layer_options){.same = true}),
                         ls_nn_group_norm(2, 4, NULL), ls_nn_relu(), ls_nn_flatten(),
                         ls_nn_linear(4 * LENGTH * INPUTS, CLASSES));
}

/* A model with statistics of the global batch, and running statistics. */
static ls_module *make_normalized(void) {
    return ls_sequential(ls_nn_conv_2d(1, 4, LS_SHAPE(3, 3), &(ls_conv_layer_options){.same = true}),
                         ls_nn_batch_norm_2d(4, NULL), ls_nn_relu(), ls_nn_flatten(), ls_nn_dropout(0.2),
                         ls_nn_linear(4 * LENGTH * INPUTS, 12), ls_nn_batch_norm_1d(12, NULL), ls_nn_tanh(),
                         ls_nn_linear(12, CLASSES));
}

static ls_module *make_normalized_mlp(void) {
    return ls_sequential(ls_nn_linear(INPUTS, 9), ls_nn_batch_norm_1d(9, NULL), ls_nn_linear(9, CLASSES));
}

static ls_module *make_block(void) {
    return ls_sequential(ls_nn_transformer_block(INPUTS, 2, &(ls_transformer_options){.dropout = 0.1}), ls_nn_flatten(),
                         ls_nn_linear(LENGTH * INPUTS, CLASSES));
}

static ls_module *make_lstm(void) {
    return ls_sequential(ls_nn_lstm(INPUTS, 9, &(ls_recurrent_options){.dtype = LS_F64}), ls_nn_flatten(),
                         ls_nn_linear_with(LENGTH * 9, CLASSES, &(ls_linear_options){.dtype = LS_F64}));
}

static ls_tensor *output_of(const ls_batch *batch, const trainee *t) {
    ls_tensor *input = batch->input;
    if (t->program->model == make_convolutions || t->program->model == make_normalized) {
        input = ls_reshape(input, LS_SHAPE(batch->count, 1, LENGTH, INPUTS));
    }
    return ls_forward(t->model, input);
}

static ls_tensor *mean_loss(const ls_batch *batch, void *user) {
    return ls_cross_entropy(output_of(batch, user), batch->target, NULL);
}

/* Slices have different divisors: the weights of their targets, some of which are ignored. */
static ls_tensor *weighted_loss(const ls_batch *batch, void *user) {
    static const float weights[CLASSES] = {0.3F, 1.7F, 0.9F};
    ls_tensor *of_classes = ls_from(LS_SHAPE(CLASSES), LS_F32, weights);
    ls_tensor *ignored = ls_where(ls_lt(ls_narrow(ls_reshape(batch->input, LS_SHAPE(batch->count, -1)), 1, 0, 1), -1.2),
                                  ls_full(LS_SHAPE(batch->count, 1), LS_I64, -100),
                                  ls_reshape(batch->target, LS_SHAPE(batch->count, 1)));
    return ls_cross_entropy(output_of(batch, user), ls_reshape(ignored, LS_SHAPE(batch->count)),
                            &(ls_class_loss_options){.weight = of_classes, .ignore = true, .ignore_index = -100});
}

/* The loss is more than one mean: a sum over samples, a mean, and a term of the parameters. */
static ls_tensor *several_terms(const ls_batch *batch, void *user) {
    const trainee *t = user;
    ls_tensor *output = output_of(batch, user);
    ls_tensor *weight = ls_module_parameter(t->model, 0);
    return ls_add(ls_add(ls_cross_entropy(output, batch->target, NULL), ls_mul(ls_sum(ls_mul(output, output)), 1e-3)),
                  ls_mul(ls_sum(ls_mul(weight, weight)), 1e-2));
}

/* The loss is a single mean at first. */
static ls_tensor *late_terms(const ls_batch *batch, void *user) {
    const trainee *t = user;
    return t->step < 3 ? mean_loss(batch, user) : several_terms(batch, user);
}

static ls_tensor *scaled_loss(const ls_batch *batch, void *user) {
    const trainee *t = user;
    ls_tensor *loss = mean_loss(batch, user);
    if (t->step == 2 && batch->first == 0) { /* an overflow in the first samples of the global batch */
        loss = ls_mul(loss, INFINITY);
    }
    return ls_grad_scaler_scale(t->scaler, loss);
}

static const program programs[] = {
    {.name = "dropout, clipping, an uneven last batch",
     .model = make_mlp,
     .loss = mean_loss,
     .batch = 37,
     .clips = 0.5},
    {.name = "weights and ignored targets", .model = make_mlp, .loss = weighted_loss, .batch = 40},
    {.name = "several terms", .model = make_mlp, .loss = several_terms, .batch = 29},
    {.name = "several terms from step 3 on", .model = make_mlp, .loss = late_terms, .batch = 29},
    {.name = "empty slices", .model = make_mlp, .loss = mean_loss, .batch = 3},
    {.name = "gradients of two batches", .model = make_mlp, .loss = mean_loss, .batch = 21, .accumulates = true},
    {.name = "convolutions", .model = make_convolutions, .loss = mean_loss, .batch = 26, .rows = true, .clips = 1},
    {.name = "attention in f16, with an overflow",
     .model = make_block,
     .loss = scaled_loss,
     .batch = 24,
     .rows = true,
     .scales = true},
    {.name = "batch normalization", .model = make_normalized, .loss = mean_loss, .batch = 26, .rows = true, .clips = 1},
    {.name = "batch normalization, weights, two batches",
     .model = make_normalized,
     .loss = weighted_loss,
     .batch = 31,
     .rows = true,
     .accumulates = true},
    {.name = "batch normalization, several terms from step 3 on",
     .model = make_normalized,
     .loss = late_terms,
     .batch = 33,
     .rows = true},
    {.name = "batch normalization, empty slices",
     .model = make_normalized,
     .loss = mean_loss,
     .batch = 3,
     .rows = true},
    {.name = "batch normalization after frozen layers",
     .model = make_normalized,
     .loss = mean_loss,
     .batch = 26,
     .rows = true,
     .thaws = true},
    {.name = "LSTM in f64", .model = make_lstm, .loss = mean_loss, .batch = 19, .rows = true, .dtype = LS_F64},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* ---- training ---------------------------------------------------------------------------------------------------- */

static ls_dataset *samples_of(const trainee *t) {
    const program *p = t->program;
    const ls_shape shape = p->rows ? LS_SHAPE(SAMPLES, LENGTH, INPUTS) : LS_SHAPE(SAMPLES, INPUTS);
    ls_tensor *input = ls_empty(shape, LS_F32), *target = ls_empty(LS_SHAPE(SAMPLES), LS_I64);
    float *x = ls_data(input);
    int64_t *classes = ls_data(target);
    for (int64_t i = 0; i < ls_numel(input); i++) {
        x[i] = (float)ls_random_normal(SEED, 1, (uint64_t)i);
    }
    for (int64_t i = 0; i < SAMPLES; i++) {
        classes[i] = (int64_t)(ls_random_u32(SEED, 2, (uint64_t)i) % CLASSES);
    }
    if (t->differs) {
        x[7] = nextafterf(x[7], 10);
    }
    return ls_tensor_dataset(p->dtype == LS_F64 ? ls_to(input, LS_F64) : input, target);
}

static ls_status one_step(trainee *t, const ls_batch *batch) {
    const program *p = t->program;
    if (!p->accumulates || t->step % 2 == 0) {
        ls_optimizer_zero_grad(t->optimizer);
    }
    for (int i = 0; i < 6 && p->thaws; i++) { /* up to the weight of the second normalization */
        LS_TRY(ls_set_requires_grad(ls_module_parameter(t->model, i), t->step > 0));
    }
    const ls_dtype before = p->scales ? ls_autocast(LS_F16) : LS_F32;
    const ls_status status = ls_data_parallel_step(t->model, batch, p->loss, t);
    (void)(p->scales ? ls_autocast(before) : LS_F32);
    LS_TRY(status);
    LS_CHECK(p->loss != mean_loss || isfinite(ls_data_parallel_loss(t->model, NULL)));
    LS_TRY(p->scales ? ls_grad_scaler_unscale(t->scaler, t->optimizer) : LS_OK);
    LS_TRY(p->clips > 0 ? ls_clip_grad_norm(t->model, p->clips, NULL) : LS_OK);
    if (p->accumulates && t->step % 2 == 0) {
        return LS_OK;
    }
    LS_TRY(p->scales ? ls_grad_scaler_step(t->scaler, t->optimizer) : ls_optimizer_step(t->optimizer));
    return p->scales ? ls_grad_scaler_update(t->scaler) : LS_OK;
}

static ls_status train_on(trainee *t, ls_loader *loader) {
    for (t->step = 0; t->step < STEPS; t->step++) {
        ls_batch batch;
        bool more;
        LS_TRY(ls_loader_next(loader, &batch, &more));
        if (!more) {
            LS_TRY(ls_loader_next(loader, &batch, &more));
        }
        LS_TRY(one_step(t, &batch));
    }
    return LS_OK;
}

static ls_status hash_of(const trainee *t, uint64_t *hash) {
    const ls_named *states;
    int count;
    *hash = ls_module_hash(t->model);
    for (int i = 0; i < ls_module_buffer_count(t->model); i++) {
        LS_TRY(ls_hash_elements("test", ls_module_buffer(t->model, i), hash));
    }
    LS_TRY(ls_optimizer_state(t->optimizer, &states, &count));
    for (int i = 0; i < count; i++) {
        LS_TRY(ls_hash_elements("test", states[i].tensor, hash));
    }
    const double scale = t->scaler != NULL ? ls_grad_scaler_get_scale(t->scaler) : 0;
    *hash = ls_hash(*hash, &scale, sizeof scale);
    return LS_OK;
}

/* Trains a program, and sets *hash to the hash of its parameters and optimizer states. */
static ls_status train(trainee t, ls_comm *comm, int shards, int zero, uint64_t *hash) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(SEED);
    t.model = ls_data_parallel(
        t.program->model(), comm,
        &(ls_data_parallel_options){.shards = shards, .zero = zero, .overlap = t.overlap, .bucket_bytes = 1});
    t.optimizer = ls_adam(t.model, &(ls_adam_options){.learning_rate = 0.01});
    t.scaler = t.program->scales ? ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 256}) : NULL;
    ls_loader *loader = ls_loader_new(
        samples_of(&t),
        &(ls_loader_options){.global_batch_size = t.program->batch, .comm = comm, .seed = SEED, .shards = shards});
    LS_CHECK(t.model != NULL && t.optimizer != NULL && loader != NULL);
    ls_status status = train_on(&t, loader);
    status = status == LS_OK ? hash_of(&t, hash) : status;
    ls_grad_scaler_free(t.scaler);
    ls_optimizer_free(t.optimizer);
    ls_module_free(t.model);
    ls_loader_free(loader);
    return ls_scope_end(scope) == LS_OK ? status : ls_error_status();
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

/* Compares W ranks with groups of `first` and W - `first` ranks. The programs cover all combinations of options. */
static ls_status compare_groups(ls_comm *world, int first, int number, uint64_t want) {
    const int size = ls_comm_size(world);
    ls_comm *group = NULL;
    const trainee t = {.program = &programs[number], .overlap = (first + number) % 2 ? LS_OVERLAP_OFF : LS_OVERLAP_ON};
    uint64_t hash = 0;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) < first, 0, &group));
    const ls_status status = train(t, group, size, (first + number / 2) % 2, &hash);
    ls_comm_free(group);
    LS_TRY(status);
    if (hash != want) {
        return ls_fail(LS_ERR_INTERNAL, "%s: %d and %d of %d ranks get other bits", t.program->name, first,
                       size - first, size);
    }
    return LS_OK;
}

static ls_status same_bits(ls_comm *world, int number) {
    uint64_t want, all;
    trainee t = {.program = &programs[number]};
    const int size = ls_comm_size(world);
    LS_TRY(train(t, world, 0, 0, &want)); /* ranks are slices */
    t.overlap = LS_OVERLAP_ON;
    LS_TRY(train(t, world, size, number % 2, &all));
    LS_CHECK(all == want);
    for (int first = 1; first <= size / 2; first++) {
        LS_TRY(compare_groups(world, first, number, want));
    }
    return LS_OK;
}

/* A change of one element of the data, or a different number of slices, changes the results. Overlap does not. */
static ls_status controls(ls_comm *world) {
    uint64_t want, other;
    const int size = ls_comm_size(world);
    trainee t = {.program = &programs[0]};
    LS_TRY(train(t, world, 2 * size, 0, &want));
    t.overlap = LS_OVERLAP_ON;
    LS_TRY(train(t, world, 2 * size, 0, &other));
    LS_CHECK(other == want);
    LS_TRY(train(t, world, 2 * size + 2, 0, &other));
    LS_CHECK(other != want);
    t.differs = true;
    LS_TRY(train(t, world, 2 * size, 0, &other));
    LS_CHECK(other != want);
    return LS_OK;
}

/* ---- wrong use --------------------------------------------------------------------------------------------------- */

static ls_status expect(ls_status status, ls_status want, const char *message) {
    LS_CHECK(status == want);
    LS_EXPECT_MESSAGE(message);
    return LS_OK;
}

static ls_status refuse_options(ls_comm *world, ls_data_parallel_options options, ls_status want, const char *message) {
    LS_CHECK(ls_data_parallel(make_mlp(), world, &options) == NULL);
    return expect(ls_error_status(), want, message);
}

static ls_status wrong_options(ls_comm *world) {
    const int size = ls_comm_size(world);
    LS_TRY(refuse_options(world, (ls_data_parallel_options){.shards = -1}, LS_ERR_ARGUMENT, ".shards is -1"));
    LS_TRY(refuse_options(world, (ls_data_parallel_options){.shards = 4097}, LS_ERR_ARGUMENT, "at most 4096"));
    LS_TRY(refuse_options(world, (ls_data_parallel_options){.shards = size + 1, .powersgd_rank = 2}, LS_ERR_UNSUPPORTED,
                          "cannot be combined"));
    if (size > 1) {
        LS_TRY(refuse_options(world, (ls_data_parallel_options){.shards = size - 1}, LS_ERR_ARGUMENT,
                              "at least the number of ranks"));
        LS_TRY(refuse_options(world, (ls_data_parallel_options){.shards = size + ls_comm_rank(world)}, LS_ERR_MISMATCH,
                              ".shards = "));
    }
    return LS_OK;
}

/* Fails in the slice with the first sample, on rank 0, because rank 0 exists in every world. */
static ls_tensor *failing_loss(const ls_batch *batch, void *user) {
    if (batch->first == 0) {
        (void)ls_fail(LS_ERR_IO, "this slice has failed");
        return NULL;
    }
    return mean_loss(batch, user);
}

static ls_tensor *communicating_loss(const ls_batch *batch, void *user) {
    const trainee *t = user;
    float number = 0;
    const ls_status status =
        ls_comm_allreduce(ls_data_parallel_comm(t->model), &number, &number, 1, LS_F32, LS_SUM, NULL);
    return status == LS_OK ? mean_loss(batch, user) : NULL;
}

/* Adds a term whose tape does not belong to the slice. */
static ls_tensor *outer_penalty(const ls_batch *batch, void *user) {
    const trainee *t = user;
    return ls_add(mean_loss(batch, user), t->penalty);
}

static ls_tensor *backward_in_function(const ls_batch *batch, void *user) {
    return ls_backward(mean_loss(batch, user)) == LS_OK ? mean_loss(batch, user) : NULL;
}

static ls_tensor *changing_loss(const ls_batch *batch, void *user) {
    const trainee *t = user;
    ls_tensor *weight = ls_module_parameter(t->model, 0);
    const bool before = ls_no_grad(true);
    const ls_status status = ls_fill(weight, 0.5);
    ls_no_grad(before);
    return status == LS_OK ? mean_loss(batch, user) : NULL;
}

static ls_tensor *freezing_loss(const ls_batch *batch, void *user) {
    const trainee *t = user;
    const ls_status status = ls_set_requires_grad(ls_module_parameter(t->model, 1), false);
    return status == LS_OK ? mean_loss(batch, user) : NULL;
}

static ls_tensor *penalty_only(const ls_batch *batch, void *user) {
    const trainee *t = user;
    (void)batch;
    return ls_sum(ls_mul(ls_module_parameter(t->model, 0), ls_module_parameter(t->model, 0)));
}

static ls_tensor *nested_loss(const ls_batch *batch, void *user) {
    const trainee *t = user;
    return ls_data_parallel_step(t->model, batch, mean_loss, user) == LS_OK ? mean_loss(batch, user) : NULL;
}

/* A hook communicates in the backward pass. */
static ls_status communicate(ls_tensor *parameter, void *user) {
    const trainee *t = user;
    float number = 0;
    (void)parameter;
    return ls_comm_allreduce(ls_data_parallel_comm(t->model), &number, &number, 1, LS_F32, LS_SUM, NULL);
}

typedef struct wrong_function {
    ls_tensor *(*loss)(const ls_batch *batch, void *user);
    ls_status status;
    const char *message;
} wrong_function;

static const wrong_function wrong_functions[] = {
    {backward_in_function, LS_ERR_STATE, "without ls_backward"},
    {changing_loss, LS_ERR_UNSUPPORTED, "has changed parameter"},
    {freezing_loss, LS_ERR_UNSUPPORTED, "ls_set_requires_grad"},
    {penalty_only, LS_ERR_ARGUMENT, "has not called ls_forward"},
    {nested_loss, LS_ERR_STATE, "a step of the same module"},
};

/* Functions that would make the ranks or slices diverge fail on every rank. */
static ls_status refuse_functions(ls_comm *world, ls_module *(*make)(void)) {
    const int size = ls_comm_size(world), shards = 2 * size, rank = ls_comm_rank(world);
    for (size_t i = 0; i < sizeof wrong_functions / sizeof *wrong_functions; i++) {
        const wrong_function *wrong = &wrong_functions[i];
        trainee t = {.program = &programs[0]};
        ls_scope *scope = ls_scope_begin();
        const ls_batch batch = {.input = ls_rand(LS_SHAPE(4, INPUTS), LS_F32),
                                .target = ls_zeros(LS_SHAPE(4), LS_I64),
                                .first = 4 * rank,
                                .count = 4,
                                .global_count = 4 * size};
        t.model = ls_data_parallel(make(), world, &(ls_data_parallel_options){.shards = shards});
        LS_CHECK(t.model != NULL);
        const ls_status status = ls_data_parallel_step(t.model, &batch, wrong->loss, &t);
        LS_CHECK(status == wrong->status || status == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE(wrong->message);
        ls_module_free(t.model);
        (void)ls_scope_end(scope);
    }
    return LS_OK;
}

/* Values computed before the step belong to no slice, and a computation after it would use only this rank's samples. */
static ls_status refuse_surroundings(ls_comm *world) {
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    trainee t = {.program = &programs[0]};
    ls_scope *scope = ls_scope_begin();
    ls_batch batch = {.input = ls_rand(LS_SHAPE(4, INPUTS), LS_F32),
                      .target = ls_zeros(LS_SHAPE(4), LS_I64),
                      .first = 4 * rank,
                      .count = 4,
                      .global_count = 4 * size};
    t.model = ls_data_parallel(make_mlp(), world, &(ls_data_parallel_options){.shards = 2 * size});
    LS_CHECK(t.model != NULL);
    const bool before = ls_no_grad(true);
    LS_CHECK(ls_forward(t.model, batch.input) == NULL);
    LS_EXPECT_MESSAGE("ls_module_train(module, false)");
    ls_module_train(t.model, false);
    LS_CHECK(ls_forward(t.model, batch.input) != NULL);
    ls_module_train(t.model, true);
    ls_no_grad(before);
    batch.count = 3;
    batch.first = 3 * rank;
    batch.global_count = 3 * size;
    LS_CHECK(ls_data_parallel_step(t.model, &batch, mean_loss, &t) != LS_OK);
    batch.count = 4;
    batch.first = 4 * rank;
    batch.global_count = 4 * size;
    t.penalty = ls_sum(ls_mul(ls_module_parameter(t.model, 0), ls_module_parameter(t.model, 0)));
    LS_CHECK(ls_data_parallel_step(t.model, &batch, outer_penalty, &t) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("compute it in the function");
    LS_TRY(ls_add_grad_hook(ls_module_parameter(t.model, 0), communicate, &t));
    LS_CHECK(ls_data_parallel_step(t.model, &batch, mean_loss, &t) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("communicates");
    ls_module_free(t.model);
    (void)ls_scope_end(scope);
    return LS_OK;
}

static ls_status wrong_steps(ls_comm *world) {
    const int shards = 2 * ls_comm_size(world), size = ls_comm_size(world), rank = ls_comm_rank(world);
    trainee t = {.program = &programs[0]};
    ls_scope *scope = ls_scope_begin();
    t.model = ls_data_parallel(make_mlp(), world, &(ls_data_parallel_options){.shards = shards});
    ls_batch batch = {.input = ls_zeros(LS_SHAPE(2, INPUTS), LS_F32),
                      .target = ls_zeros(LS_SHAPE(2), LS_I64),
                      .first = 2 * rank,
                      .count = 2,
                      .global_count = 2 * size};
    LS_CHECK(t.model != NULL);
    LS_TRY(ls_data_parallel_step(t.model, &batch, mean_loss, &t));
    const uint64_t hash = ls_module_hash(t.model);
    const ls_status failed = ls_data_parallel_step(t.model, &batch, failing_loss, &t);
    LS_TRY(expect(failed, rank == 0 ? LS_ERR_IO : LS_ERR_MISMATCH, "this slice has failed"));
    LS_CHECK(ls_grad(ls_module_parameter(t.model, 0)) == NULL);
    LS_TRY(expect(ls_data_parallel_step(t.model, &batch, communicating_loss, &t), LS_ERR_UNSUPPORTED, "communicates"));
    batch.global_count = 2 * size + 1;
    batch.first = rank == 0 && size > 1 ? 1 : 0;
    LS_CHECK(ls_data_parallel_step(t.model, &batch, mean_loss, &t) != LS_OK);
    batch.global_count = 2 * size;
    batch.first = 2 * rank;
    LS_CHECK(ls_forward(t.model, batch.input) == NULL);
    LS_TRY(expect(ls_error_status(), LS_ERR_STATE, "ls_data_parallel_step"));
    LS_TRY(expect(ls_data_parallel_skip(t.model), LS_ERR_STATE, ".shards"));
    LS_TRY(expect(ls_data_parallel_no_sync(t.model, true), LS_ERR_UNSUPPORTED, ".shards"));
    LS_TRY(expect(ls_data_parallel_step(t.model, NULL, mean_loss, &t), LS_ERR_ARGUMENT, "the batch is NULL"));
    LS_TRY(ls_comm_set_any_order(world, true));
    LS_TRY(expect(ls_data_parallel_step(t.model, &batch, mean_loss, &t), LS_ERR_UNSUPPORTED, "any_order"));
    LS_TRY(ls_comm_set_any_order(world, false));
    LS_CHECK(ls_module_hash(t.model) == hash);
    LS_TRY(ls_data_parallel_step(t.model, &batch, mean_loss, &t));
    LS_CHECK(ls_grad(ls_module_parameter(t.model, 0)) != NULL);
    ls_module_free(t.model);
    (void)ls_scope_end(scope);
    return LS_OK;
}

/* In slices that synchronize, a slice fails before or after the others have waited for it, in the forward or
 * backward pass. */
static ls_status refuse_gradient(ls_tensor *parameter, void *user) {
    const int64_t *slice = user;
    (void)parameter;
    return *slice == 0 ? ls_fail(LS_ERR_IO, "this gradient is refused") : LS_OK;
}

static ls_tensor *half_of_loss(const ls_batch *batch, void *user) {
    ls_tensor *loss = mean_loss(batch, user);
    return batch->first != 0 ? loss : ls_fail_null(LS_ERR_IO, "this slice has failed after its forward pass");
}

static ls_status failures_in_meetings(ls_comm *world) {
    const int shards = 2 * ls_comm_size(world), rank = ls_comm_rank(world);
    trainee t = {.program = &programs[0]};
    ls_scope *scope = ls_scope_begin();
    ls_batch batch = {.input = ls_rand(LS_SHAPE(4, INPUTS), LS_F32),
                      .target = ls_zeros(LS_SHAPE(4), LS_I64),
                      .first = 4 * rank,
                      .count = 4,
                      .global_count = 2 * shards};
    t.model = ls_data_parallel(ls_sequential(ls_nn_batch_norm_1d(INPUTS, NULL), ls_nn_linear(INPUTS, INPUTS),
                                             ls_nn_batch_norm_1d(INPUTS, NULL), ls_nn_linear(INPUTS, CLASSES)),
                               world, &(ls_data_parallel_options){.shards = shards});
    LS_CHECK(t.model != NULL);
    LS_TRY(ls_data_parallel_step(t.model, &batch, mean_loss, &t));
    const ls_status want = rank == 0 ? LS_ERR_IO : LS_ERR_MISMATCH;
    LS_TRY(expect(ls_data_parallel_step(t.model, &batch, failing_loss, &t), want, "this slice has failed"));
    LS_TRY(expect(ls_data_parallel_step(t.model, &batch, half_of_loss, &t), want, "after its forward pass"));
    int64_t refuses = rank == 0 ? 0 : 1;
    LS_TRY(ls_add_grad_hook(ls_module_parameter(t.model, 0), refuse_gradient, &refuses));
    LS_TRY(expect(ls_data_parallel_step(t.model, &batch, mean_loss, &t), want, "this gradient is refused"));
    refuses = 1;
    LS_TRY(ls_data_parallel_step(t.model, &batch, mean_loss, &t));
    LS_CHECK(ls_grad(ls_module_parameter(t.model, 0)) != NULL);
    ls_module_free(t.model);
    (void)ls_scope_end(scope);
    return LS_OK;
}

/* Without .shards, ls_data_parallel_step works on any number of ranks, and a rank without an input fails alone. */
static ls_status loss_of_plain_step(ls_comm *world) {
    trainee t = {.program = &programs[0]};
    ls_scope *scope = ls_scope_begin();
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    ls_batch batch = {.input = ls_rand(LS_SHAPE(4, INPUTS), LS_F32),
                      .target = ls_zeros(LS_SHAPE(4), LS_I64),
                      .first = 4 * rank,
                      .count = 4,
                      .global_count = 4 * size};
    t.model = ls_data_parallel(make_mlp(), world, NULL);
    LS_CHECK(t.model != NULL);
    LS_TRY(ls_data_parallel_step(t.model, &batch, mean_loss, &t));
    const double loss = ls_data_parallel_loss(t.model, NULL);
    LS_CHECK(isfinite(loss) && loss > 0.1);
    batch.input = rank == 0 ? NULL : batch.input;
    const ls_status status = ls_data_parallel_step(t.model, &batch, mean_loss, &t);
    LS_TRY(expect(status, rank == 0 ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH, "the input of the batch is NULL"));
    batch.input = ls_rand(LS_SHAPE(4, INPUTS), LS_F32);
    LS_TRY(ls_data_parallel_step(t.model, &batch, mean_loss, &t));
    ls_module_free(t.model);
    (void)ls_scope_end(scope); /* the scope contains rank 0's failure */
    return LS_OK;
}

/* With .shards, only the module has the loss. A rank that passes another loss fails all ranks. */
static ls_status loss_of_shards(ls_comm *world) {
    trainee t = {.program = &programs[0]};
    ls_scope *scope = ls_scope_begin();
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    const ls_batch batch = {.input = ls_rand(LS_SHAPE(4, INPUTS), LS_F32),
                            .target = ls_zeros(LS_SHAPE(4), LS_I64),
                            .first = 4 * rank,
                            .count = 4,
                            .global_count = 4 * size};
    t.model = ls_data_parallel(make_mlp(), world, &(ls_data_parallel_options){.shards = 2 * size});
    LS_CHECK(t.model != NULL && isnan(ls_data_parallel_loss(t.model, NULL)));
    LS_TRY(expect(ls_error_status(), LS_ERR_ARGUMENT, "the loss is NULL"));
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_data_parallel_step(t.model, &batch, mean_loss, &t));
        LS_CHECK(isfinite(ls_data_parallel_loss(t.model, NULL)));
        LS_CHECK(isnan(ls_data_parallel_loss(t.model, rank == 0 ? batch.input : NULL)));
        LS_TRY(expect(ls_error_status(), rank == 0 ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH, "pass NULL"));
    }
    ls_module_free(t.model);
    (void)ls_scope_end(scope);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    for (int i = 0; i < PROGRAMS && ls_comm_size(world) > 1; i++) {
        LS_TRY(same_bits(world, i));
    }
    LS_TRY(controls(world));
    LS_TRY(wrong_options(world));
    LS_TRY(wrong_steps(world));
    LS_TRY(refuse_functions(world, make_mlp));
    LS_TRY(refuse_functions(world, make_normalized_mlp));
    LS_TRY(refuse_surroundings(world));
    LS_TRY(loss_of_plain_step(world));
    LS_TRY(loss_of_shards(world));
    return failures_in_meetings(world);
}
