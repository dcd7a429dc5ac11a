/*
 * For rank tests of checkpoints: a folder shared by all ranks, training runs that write checkpoints there and resume
 * from them, and a bitwise comparison of two runs.
 */
#ifndef LS_TESTS_SUPPORT_RESUMED_H
#define LS_TESTS_SUPPORT_RESUMED_H

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "base/hash.h"
#include "tensor/device.h"
#include "tests/support/elements.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include "train/checkpoint/checkpoint.h"

enum {
    SAMPLES = 38,
    HELD_BACK = 11,
    INPUTS = 6,
    CLASSES = 3,
    GLOBAL_BATCH = 8,
    EPOCHS = 3,
    STEPS = 5,
    SEED = 7,
    RESULTS = 10
};

/* ---- folders of a test ------------------------------------------------------------------------------------------- */

static inline const char *checkpoint_at(const char *folder, int64_t epochs_run, int64_t step) {
    static _Thread_local char path[PATH_MAX + LS_CHECKPOINT_NAME_LIMIT];
    char name[LS_CHECKPOINT_NAME_LIMIT];
    ls_checkpoint_name(name, epochs_run, step);
    snprintf(path, sizeof path, "%s/%s/%s", scratch, folder, name);
    return path;
}

/* ---- a training -------------------------------------------------------------------------------------------------- */

/* The first input of a sample is its number. */
static inline ls_dataset *make_dataset(int set, int64_t count) {
    ls_tensor *input = ls_empty(LS_SHAPE(count, INPUTS), LS_F32);
    ls_tensor *target = ls_empty(LS_SHAPE(count), LS_I64);
    for (int64_t i = 0; i < count * INPUTS; i++) {
        ((float *)elements(input))[i] =
            i % INPUTS == 0 ? (float)(i / INPUTS) : (float)ls_random_normal(5, (uint64_t)set, (uint64_t)i);
    }
    for (int64_t i = 0; i < count; i++) {
        ((int64_t *)elements(target))[i] = (int64_t)(ls_random_u32(6, (uint64_t)set, (uint64_t)i) % CLASSES);
    }
    return ls_tensor_dataset(input, target);
}

/* A callback that counts samples, and acts at certain steps. */
typedef struct watcher {
    ls_comm *comm;
    double seen[EPOCHS * SAMPLES]; /* a number for each step's samples, over all ranks */
    int64_t signal_at, save_at;    /* 0: never */
    int64_t stop_at;               /* only on the last rank; 0 means never */
    bool fails_at_start;           /* only on the last rank */
    bool stops_after_training;     /* only on the last rank: requests a checkpoint, too, but too late */
    int64_t spoil_at;              /* the step at which the folder of checkpoints is removed */
    const char *awaited;           /* training ends when this file exists; may be NULL */
    uint64_t began;
    double steps; /* its state */
    ls_named listed;
    ls_shape shape;
} watcher;

static inline ls_status watch_start(ls_trial_state *state, void *user) {
    (void)state;
    const watcher *self = user;
    const bool last = ls_comm_rank(self->comm) == ls_comm_size(self->comm) - 1;
    return self->fails_at_start && last ? ls_fail(LS_ERR_ARGUMENT, "the last rank refuses") : LS_OK;
}

static inline ls_status watch_sample(ls_trial_state *state, void *user) {
    watcher *self = user;
    double sum = 0;
    for (int64_t i = 0; i < state->count; i++) {
        const double number = ls_at(state->input, (int64_t[]){i, 0});
        sum += (number + 1) * (number + 1);
    }
    self->seen[state->step % (EPOCHS * SAMPLES)] += sum;
    return LS_OK;
}

static inline ls_status watch_step(ls_trial_state *state, void *user) {
    watcher *self = user;
    self->steps++;
    if (state->step == self->signal_at) {
        (void)raise(SIGUSR1);
    }
    if (state->step == self->spoil_at) {
        (void)nftw(in_scratch("spoiled"), remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    state->save = state->step == self->save_at;
    state->stop = (self->awaited != NULL && access(self->awaited, F_OK) == 0) ||
                  (state->step == self->stop_at && ls_comm_rank(self->comm) == ls_comm_size(self->comm) - 1);
    LS_CHECK(self->awaited == NULL || ls_clock_ns() - self->began < (uint64_t)60 * 1000000000);
    return LS_OK;
}

static inline ls_status watch_end_of_training(ls_trial_state *state, void *user) {
    const watcher *self = user;
    if (self->stops_after_training && ls_comm_rank(self->comm) == ls_comm_size(self->comm) - 1) {
        state->stop = state->save = true;
    }
    return LS_OK;
}

static inline ls_status watcher_state(void *user, const ls_named **tensors, int *count) {
    watcher *self = user;
    ls_tensor_drop(self->listed.tensor);
    self->listed = (ls_named){.name = "steps", .tensor = ls_tensor_over(&ls_cpu, &self->shape, LS_F64, &self->steps)};
    *tensors = &self->listed;
    *count = 1;
    return LS_OK;
}

static inline ls_status watcher_set_state(void *user, const ls_named *tensors, int count) {
    watcher *self = user;
    LS_CHECK(count == 1 && strcmp(tensors->name, "steps") == 0);
    self->steps = ls_item(tensors->tensor);
    return LS_OK;
}

typedef struct training {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_grad_scaler *scaler;
    ls_outer *outer;
    ls_loader *train, *validate;
    ls_trial *trial;
    watcher watcher;
} training;

/*
 * How a model is sharded over the ranks: DIVIDED and PIPELINE shard it, the others replicate it. HALF is PLAIN in f16.
 * OUTER has replicas that differ between outer steps. POWERSGD is PLAIN with PowerSGD.
 */
typedef enum cut { WHOLE, PLAIN, HALF, DIVIDED, PIPELINE, OUTER, POWERSGD } cut;

enum { OUTER_STEPS = 2, WIDE = 2048 };

typedef struct plan {
    const ls_checkpoint_options *checkpoints; /* NULL: none */
    const char *resume;
    int64_t batch_size;   /* 0 selects global batches of GLOBAL_BATCH samples */
    int64_t global_batch; /* 0: that */
    cut cut;
    int zero; /* above 0: a replicated model of WIDE features whose state is sharded, of which each rank has a part */
    int64_t train_steps, max_steps, stop_at;
    uint64_t seed;   /* of the loader; 0: SEED */
    int64_t samples; /* 0: SAMPLES */
    bool no_shuffle;
} plan;

static inline ls_module *make_model(ls_comm *comm, cut how) {
    if (how == PIPELINE) {
        return ls_pipeline(ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_linear(8, 7), ls_nn_linear(7, 6),
                                         ls_nn_linear(6, 5), ls_nn_linear(5, 4), ls_nn_linear(4, CLASSES)),
                           comm, NULL);
    }
    if (how == DIVIDED) {
        return ls_sequential(ls_nn_column_parallel(comm, INPUTS, 8, NULL), ls_nn_tanh(),
                             ls_nn_row_parallel(comm, 8, CLASSES, NULL));
    }
    if (how == PLAIN || how == HALF ||
        how == POWERSGD) { /* gradients are scaled by the shares of the first batch that a module has seen */
        return ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_tanh(), ls_nn_linear(8, CLASSES)), comm,
                                &(ls_data_parallel_options){.powersgd_rank = how == POWERSGD});
    }
    if (how == OUTER) {
        return ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_tanh(), ls_nn_dropout(0.3), ls_nn_linear(8, CLASSES));
    }
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_batch_norm_1d(8, NULL), ls_nn_relu(),
                                     ls_nn_dropout(0.3), ls_nn_linear(8, CLASSES));
    return comm != NULL ? ls_data_parallel(model, comm, NULL) : model;
}

static inline ls_module *make_planned(ls_comm *comm, const plan *how) {
    if (how->zero == 0) {
        return make_model(comm, how->cut);
    }
    return ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, WIDE), ls_nn_batch_norm_1d(WIDE, NULL), ls_nn_relu(),
                                          ls_nn_dropout(0.3), ls_nn_linear(WIDE, CLASSES)),
                            comm, &(ls_data_parallel_options){.zero = how->zero});
}

/* A step of a pipeline. */
static inline ls_status step_pipeline(ls_trial_state *state, void *user) {
    double loss = 0;
    (void)user;
    ls_optimizer_zero_grad(state->optimizer);
    LS_TRY(ls_pipeline_backward(state->model, state->input, state->target, ls_criterion_cross_entropy, NULL, &loss));
    state->loss = ls_scalar(loss, LS_F64);
    return ls_optimizer_step(state->optimizer);
}

static inline ls_status begin(training *t, ls_comm *comm, const plan *how) {
    memset(t, 0, sizeof *t);
    t->watcher.shape = LS_SCALAR;
    t->watcher.comm = comm;
    t->watcher.stop_at = how->stop_at;
    ls_comm *data = how->cut == DIVIDED || how->cut == PIPELINE ? NULL : comm;
    const int64_t global_batch = how->global_batch > 0 ? how->global_batch : GLOBAL_BATCH;
    const ls_loader_options loading = {.batch_size = how->batch_size,
                                       .global_batch_size = how->batch_size > 0 ? 0 : global_batch,
                                       .comm = data,
                                       .seed = how->seed > 0 ? how->seed : SEED,
                                       .no_shuffle = how->no_shuffle};
    ls_seed(SEED);
    t->model = make_planned(comm, how);
    t->optimizer = ls_adam(t->model, &(ls_adam_options){.learning_rate = 0.01});
    if (how->cut == OUTER) {
        t->outer = ls_outer_new(t->model, comm, &(ls_outer_options){.steps = OUTER_STEPS});
        LS_CHECK(t->outer != NULL);
    }
    if (how->cut == HALF) { /* the first steps overflow */
        t->scaler = ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 0x1p26, .growth_interval = 3});
    }
    t->train = ls_loader_new(make_dataset(0, how->samples > 0 ? how->samples : SAMPLES), &loading);
    t->validate = ls_loader_new(make_dataset(1, HELD_BACK), &loading);
    ls_callback *watching = ls_callback_new(&(ls_callback_hooks){.on_start = watch_start,
                                                                 .on_sample = watch_sample,
                                                                 .on_step_training = watch_step,
                                                                 .on_end_training = watch_end_of_training,
                                                                 .name = "watcher",
                                                                 .state = watcher_state,
                                                                 .set_state = watcher_set_state},
                                            &t->watcher);
    const char *const *metrics = how->cut == PIPELINE ? LS_METRICS("loss", "running_loss")
                                                      : LS_METRICS("loss", "acc", "running_loss", "loss_std", "acc_var",
                                                                   "f1", "recall_per_class", "running_acc");
    t->trial = ls_trial_new(&(ls_trial_options){.model = t->model,
                                                .optimizer = t->optimizer,
                                                .criterion = ls_criterion_cross_entropy,
                                                .train = t->train,
                                                .validate = t->validate,
                                                .comm = comm,
                                                .step = how->cut == PIPELINE ? step_pipeline : NULL,
                                                .metrics = metrics,
                                                LS_CALLBACKS(watching),
                                                .checkpoint = how->checkpoints,
                                                .train_steps = how->train_steps,
                                                .max_steps = how->max_steps,
                                                .autocast = how->cut == HALF ? LS_F16 : LS_F32,
                                                .grad_scaler = t->scaler,
                                                .outer = t->outer,
                                                .resume = how->resume,
                                                .quiet = true});
    return t->trial != NULL ? LS_OK : ls_error_status();
}

static inline void end(training *t) {
    ls_trial_free(t->trial);
    ls_grad_scaler_free(t->scaler);
    ls_outer_free(t->outer);
    ls_optimizer_free(t->optimizer);
    ls_module_free(t->model);
    ls_loader_free(t->train);
    ls_loader_free(t->validate);
    ls_tensor_drop(t->watcher.listed.tensor);
}

/* ---- outcomes ---------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    uint64_t model, buffers, optimizer;
    double history[EPOCHS][RESULTS], steps, scale;
    int64_t skipped;
    int64_t epochs;
    ls_random_state random;
} outcome;

static inline uint64_t hash_tensor(uint64_t hash, const ls_tensor *tensor) {
    ls_tensor *dense = ls_tensor_dense_on_host("test", tensor, ls_dtype_of(tensor));
    hash = ls_hash(hash, ls_host_data(dense), (size_t)ls_numel(dense) * ls_dtype_size(ls_dtype_of(dense)));
    ls_tensor_drop(dense);
    return hash;
}

static inline ls_status look(const training *t, outcome *is) {
    static const char *const names[RESULTS] = {"loss", "acc",         "running_loss", "loss_std", "acc_var",
                                               "f1",   "running_acc", "val_loss",     "val_acc",  "val_f1"};
    const ls_named *tensors;
    int count;
    *is = (outcome){.model = ls_module_hash(t->model),
                    .buffers = LS_HASH_START,
                    .optimizer = LS_HASH_START,
                    .steps = t->watcher.steps,
                    .scale = ls_grad_scaler_get_scale(t->scaler),
                    .skipped = ls_grad_scaler_skipped(t->scaler),
                    .epochs = ls_trial_history_count(t->trial),
                    .random = ls_random_get_state()};
    for (int i = 0; i < ls_module_buffer_count(t->model); i++) {
        is->buffers = hash_tensor(is->buffers, ls_module_buffer(t->model, i));
    }
    LS_TRY(ls_optimizer_state(t->optimizer, &tensors, &count));
    for (int i = 0; i < count; i++) {
        is->optimizer = hash_tensor(is->optimizer, tensors[i].tensor);
    }
    for (int64_t epoch = 0; epoch < is->epochs && epoch < EPOCHS; epoch++) {
        for (int k = 0; k < RESULTS; k++) {
            is->history[epoch][k] = ls_trial_history(t->trial, epoch, names[k]);
        }
    }
    return LS_OK;
}

static inline ls_status same(const outcome *is, const outcome *want) {
    LS_CHECK(is->epochs == want->epochs);
    LS_CHECK(is->model == want->model);
    LS_CHECK(is->buffers == want->buffers);
    LS_CHECK(is->optimizer == want->optimizer);
    LS_CHECK(memcmp(is->history, want->history, sizeof is->history) == 0);
    LS_CHECK(is->steps == want->steps);
    LS_CHECK(is->scale == want->scale && is->skipped == want->skipped);
    LS_CHECK(is->random.seed == want->random.seed && is->random.stream == want->random.stream);
    return LS_OK;
}

static inline ls_status train(ls_comm *comm, const plan *how, outcome *is) {
    training t;
    LS_TRY(begin(&t, comm, how));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, is));
    end(&t);
    return LS_OK;
}

/* Resumes from the checkpoint, in a new run or in a run that has already trained. */
static inline ls_status goes_on_from(ls_comm *comm, const plan *how, bool fresh, const char *checkpoint,
                                     const outcome *want) {
    training t;
    outcome is;
    LS_TRY(begin(&t, comm, how));
    LS_TRY(fresh ? LS_OK : ls_trial_run(t.trial, 1));
    ls_seed(SEED + 1);
    LS_TRY(ls_trial_load(t.trial, checkpoint));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, &is));
    end(&t);
    return same(&is, want);
}

#endif
