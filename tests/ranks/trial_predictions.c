/*
 * ls_trial_predict on ranks that have the same samples: tensor parallelism, pipelines, and data parallelism whose
 * loader has no .comm. Also on tensor-parallel groups that have different samples. Each sample has one row, as in a
 * single process. Samples that a sampler repeats, and separate data sets of the ranks, keep all rows. Separate models
 * and sharded outputs are an error on every rank.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>

#include <lockstep/lockstep.h>

enum { SAMPLES = 11, WIDTH = 4, HIDDEN = 10, BATCH = 4 };

typedef enum parallelism { TENSOR_PARALLEL, PIPELINE, DATA_PARALLEL, SEPARATE, SHARDED_OUTPUT } parallelism;

typedef struct setup {
    parallelism kind;
    bool shuffles;
    bool repeats;      /* the sampler repeats one sample */
    bool own_samples;  /* different on each rank */
    bool other_inputs; /* only rank 0 has the samples */
    bool generates;    /* the loader has no data set */
} setup;

static ls_module *make_sharded(ls_comm *comm) {
    return ls_sequential(ls_nn_column_parallel(comm, WIDTH, HIDDEN, NULL), ls_nn_tanh(),
                         ls_nn_row_parallel(comm, HIDDEN, 2, NULL));
}

static ls_module *make_model(ls_comm *world, parallelism kind) {
    ls_seed(1 + (uint64_t)(kind == SEPARATE ? ls_comm_rank(world) : 0));
    if (kind == TENSOR_PARALLEL) {
        return make_sharded(world);
    }
    if (kind == SHARDED_OUTPUT) {
        return ls_nn_column_parallel(world, WIDTH, 2 * ls_comm_size(world), NULL);
    }
    ls_module *model = ls_sequential(ls_nn_linear(WIDTH, HIDDEN), ls_nn_tanh(), ls_nn_linear(HIDDEN, HIDDEN),
                                     ls_nn_tanh(), ls_nn_linear(HIDDEN, 2));
    if (kind == PIPELINE) {
        return ls_pipeline(model, world, NULL);
    }
    return kind == DATA_PARALLEL ? ls_data_parallel(model, world, NULL) : model;
}

static ls_tensor *make_inputs(int rank, const setup *s) {
    ls_seed(7 + (uint64_t)(s->own_samples || s->other_inputs ? rank : 0));
    return ls_randn(LS_SHAPE(SAMPLES, WIDTH), LS_F32);
}

/* The last sample of the order repeats the previous sample. */
static ls_status repeat(int64_t epoch, int64_t *order, int64_t count, void *user) {
    (void)epoch;
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        order[i] = i < SAMPLES - 1 ? i : SAMPLES - 2;
    }
    return LS_OK;
}

/* A loader without a data set: one batch per epoch. */
static ls_status generate(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)epoch;
    batch->input = make_inputs(0, ls_loader_state(self));
    *more = number == 0;
    return batch->input != NULL ? LS_OK : ls_error_status();
}

/* The ranks of `comm` share each batch; with NULL, this rank gets all samples. */
static ls_loader *make_loader(ls_comm *comm, int rank, const setup *s) {
    static const ls_loader_type generator = {.name = "inputs", .state_size = sizeof(setup), .next = generate};
    if (s->generates) {
        ls_loader *loader = ls_loader_custom(&generator, 1);
        *(setup *)ls_loader_state(loader) = *s;
        return loader;
    }
    ls_dataset *dataset = ls_tensor_dataset(make_inputs(rank, s), ls_zeros(LS_SHAPE(SAMPLES, 2), LS_F32));
    return ls_loader_new(dataset, &(ls_loader_options){.comm = comm,
                                                       .batch_size = BATCH,
                                                       .no_shuffle = !s->shuffles && !s->repeats,
                                                       .sampler = s->repeats ? repeat : NULL});
}

/* Checks rows `first`, `first + step`, ... against the outputs for all samples in the order of the data set. */
static ls_status same_rows(const ls_tensor *is, const ls_tensor *want, int64_t first, int64_t step) {
    LS_CHECK(is != NULL && ls_size(is, 0) == step * SAMPLES && ls_size(is, 1) == ls_size(want, 1));
    for (int64_t i = 0; i < SAMPLES * ls_size(want, 1); i++) {
        const int64_t row = i / ls_size(want, 1), column = i % ls_size(want, 1);
        const double value = ls_at(is, ((const int64_t[]){first + row * step, column}));
        LS_CHECK(fabs(value - ls_at(want, ((const int64_t[]){row, column}))) < 1e-5);
    }
    return LS_OK;
}

/* Returns the outputs for this rank's samples, in the order of the data set. */
static ls_tensor *compute_outputs(ls_comm *world, ls_module *model, const setup *s) {
    ls_tensor *inputs = make_inputs(s->kind == PIPELINE ? 0 : ls_comm_rank(world), s);
    ls_tensor *last = s->repeats ? ls_narrow(inputs, 0, SAMPLES - 2, 1) : NULL;
    inputs = s->repeats ? ls_concat((ls_tensor *const[]){ls_narrow(inputs, 0, 0, SAMPLES - 1), last}, 2, 0) : inputs;
    ls_module_train(model, false);
    return ls_forward(model, inputs);
}

/* Predicts, and frees the model and the loader. */
static ls_status predict(ls_comm *world, ls_module *model, ls_loader *loader, const setup *s, bool on_all,
                         ls_status wanted) {
    const int ranks = ls_comm_size(world), rank = ls_comm_rank(world);
    ls_trial *trial =
        ls_trial_new(&(ls_trial_options){.model = model, .criterion = ls_criterion_mse, .comm = world, .quiet = true});
    LS_CHECK(trial != NULL);
    ls_tensor *outputs = NULL;
    const ls_status status = ls_trial_predict(trial, loader, on_all, &outputs);
    LS_CHECK(status == (ranks > 1 ? wanted : LS_OK));
    if (status != LS_OK) {
        LS_EXPECT_MESSAGE("have the same samples, but different outputs");
    } else {
        ls_tensor *own = compute_outputs(world, model, s);
        const bool all_rows = s->own_samples;
        LS_CHECK((outputs != NULL) == (on_all || rank == 0));
        LS_TRY(outputs != NULL ? same_rows(outputs, own, all_rows ? rank : 0, all_rows ? ranks : 1) : LS_OK);
    }
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

static ls_status check(ls_comm *world, const setup *s, bool on_all, ls_status wanted) {
    ls_scope *scope = ls_scope_begin();
    ls_module *model = make_model(world, s->kind);
    LS_TRY(predict(world, model, make_loader(NULL, ls_comm_rank(world), s), s, on_all, wanted));
    return ls_scope_end(scope);
}

/* Both ranks of a pair have the same samples, and the pairs have different samples. */
static ls_status check_pairs(ls_comm *world, const setup *s, bool on_all) {
    ls_comm *pair = NULL, *same_part = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &pair));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &same_part));
    ls_scope *scope = ls_scope_begin();
    ls_seed(1);
    ls_module *model = ls_data_parallel(make_sharded(pair), same_part, NULL);
    LS_TRY(predict(world, model, make_loader(same_part, 0, s), s, on_all, LS_OK));
    LS_TRY(ls_scope_end(scope));
    ls_comm_free(pair);
    ls_comm_free(same_part);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    static const setup setups[] = {
        {.kind = TENSOR_PARALLEL},
        {.kind = TENSOR_PARALLEL, .shuffles = true},
        {.kind = TENSOR_PARALLEL, .repeats = true},
        {.kind = TENSOR_PARALLEL, .generates = true},
        {.kind = PIPELINE},
        {.kind = PIPELINE, .shuffles = true},
        {.kind = PIPELINE, .other_inputs = true},
        {.kind = DATA_PARALLEL},
        {.kind = DATA_PARALLEL, .repeats = true},
        {.kind = DATA_PARALLEL, .own_samples = true},
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        if (setups[i].kind != PIPELINE || ls_comm_size(world) <= 3) { /* the model has three linear layers */
            LS_TRY(check(world, &setups[i], true, LS_OK));
            LS_TRY(check(world, &setups[i], false, LS_OK));
        }
    }
    for (int i = 0; i < 4 && ls_comm_size(world) == 4; i++) {
        LS_TRY(check_pairs(world, &(setup){.kind = TENSOR_PARALLEL, .shuffles = i / 2 == 1}, i % 2 == 1));
    }
    LS_TRY(check(world, &(setup){.kind = SEPARATE}, true, LS_ERR_MISMATCH));
    LS_TRY(check(world, &(setup){.kind = SEPARATE, .shuffles = true}, false, LS_ERR_MISMATCH));
    return check(world, &(setup){.kind = SHARDED_OUTPUT}, true, LS_ERR_MISMATCH);
}
