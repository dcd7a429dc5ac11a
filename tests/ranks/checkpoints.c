/*
 * Trials that go on from checkpoints, on any number of ranks: from wherever one was written, in the midst of an epoch
 * too, training ends with the bits of a run that was not interrupted. And what ranks tell each other when one is asked
 * to stop, cannot write, or has other options.
 */
#include "tests/support/ranks.h"

#include <ftw.h>
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

/* What a loss of power leaves is not tried here, so nothing waits for a disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

/* ---- folders of a test ------------------------------------------------------------------------------------------- */

static _Thread_local char scratch[64]; /* the same on all ranks */

static ls_status make_scratch(ls_comm *world) {
    snprintf(scratch, sizeof scratch, "/tmp/lockstep-test-XXXXXX");
    LS_CHECK(ls_comm_rank(world) != 0 || mkdtemp(scratch) != NULL);
    return ls_comm_broadcast(world, scratch, sizeof scratch, LS_U8, 0, NULL);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

static ls_status remove_scratch(ls_comm *world) {
    LS_TRY(ls_comm_barrier(world, NULL));
    if (ls_comm_rank(world) == 0) {
        (void)nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    return ls_comm_barrier(world, NULL);
}

/* Lent until the next call. */
static const char *in_scratch(const char *name) {
    static _Thread_local char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static const char *checkpoint_at(const char *folder, int64_t epochs_run, int64_t step) {
    static _Thread_local char path[PATH_MAX + LS_CHECKPOINT_NAME_LIMIT];
    char name[LS_CHECKPOINT_NAME_LIMIT];
    ls_checkpoint_name(name, epochs_run, step);
    snprintf(path, sizeof path, "%s/%s/%s", scratch, folder, name);
    return path;
}

/* ---- a training -------------------------------------------------------------------------------------------------- */

/* The first input of a sample is its number. */
static ls_dataset *make_dataset(int set, int64_t count) {
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

/* A callback that counts what has passed, and does something at a step. */
typedef struct watcher {
    ls_comm *comm;
    double seen[EPOCHS * SAMPLES]; /* a number of the samples of each step, of all ranks */
    int64_t signal_at, save_at;    /* 0: never */
    int64_t stop_at;               /* likewise; by the last rank alone */
    int64_t spoil_at;              /* the folder of checkpoints goes */
    const char *awaited;           /* training ends when this is there; NULL: nothing is */
    uint64_t began;
    double steps; /* its state */
    ls_named lent;
    ls_shape shape;
} watcher;

static ls_status watch_sample(ls_trial_state *state, void *user) {
    watcher *self = user;
    double sum = 0;
    for (int64_t i = 0; i < state->count; i++) {
        const double number = ls_at(state->input, (int64_t[]){i, 0});
        sum += (number + 1) * (number + 1);
    }
    self->seen[state->step % (EPOCHS * SAMPLES)] += sum;
    return LS_OK;
}

static ls_status watch_step(ls_trial_state *state, void *user) {
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

static ls_status watcher_state(void *user, const ls_named **tensors, int *count) {
    watcher *self = user;
    ls_tensor_drop(self->lent.tensor);
    self->lent = (ls_named){.name = "steps", .tensor = ls_tensor_over(&ls_cpu, &self->shape, LS_F64, &self->steps)};
    *tensors = &self->lent;
    *count = 1;
    return LS_OK;
}

static ls_status watcher_set_state(void *user, const ls_named *tensors, int count) {
    watcher *self = user;
    LS_CHECK(count == 1 && strcmp(tensors->name, "steps") == 0);
    self->steps = ls_item(tensors->tensor);
    return LS_OK;
}

typedef struct training {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *train, *validate;
    ls_trial *trial;
    watcher watcher;
} training;

typedef struct plan {
    const ls_checkpoint_options *checkpoints; /* NULL: none */
    const char *resume;
    int64_t batch_size;                           /* 0: global batches of GLOBAL_BATCH */
    int64_t global_batch;                         /* 0: that */
    enum { WHOLE, PLAIN, DIVIDED, PIPELINE } cut; /* over the ranks, the latter two */
    int64_t train_steps, max_steps, stop_at;
} plan;

static ls_module *make_model(ls_comm *comm, int cut) {
    if (cut == PIPELINE) {
        return ls_pipeline(ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_linear(8, 7), ls_nn_linear(7, 6),
                                         ls_nn_linear(6, 5), ls_nn_linear(5, 4), ls_nn_linear(4, CLASSES)),
                           comm, NULL);
    }
    if (cut == DIVIDED) {
        return ls_sequential(ls_nn_column_parallel(comm, INPUTS, 8, NULL), ls_nn_tanh(),
                             ls_nn_row_parallel(comm, 8, CLASSES, NULL));
    }
    if (cut == PLAIN) { /* gradients are weighed by the shares of the first batch that a module saw */
        return ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_tanh(), ls_nn_linear(8, CLASSES)), comm,
                                NULL);
    }
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, 8), ls_nn_batch_norm_1d(8, NULL), ls_nn_relu(),
                                     ls_nn_dropout(0.3), ls_nn_linear(8, CLASSES));
    return comm != NULL ? ls_data_parallel(model, comm, NULL) : model;
}

/* A step of a pipeline. */
static ls_status step_pipeline(ls_trial_state *state, void *user) {
    double loss = 0;
    (void)user;
    ls_optimizer_zero_grad(state->optimizer);
    LS_TRY(ls_pipeline_backward(state->model, state->input, state->target, ls_criterion_cross_entropy, NULL, &loss));
    state->loss = ls_scalar(loss, LS_F64);
    return ls_optimizer_step(state->optimizer);
}

static ls_status begin(training *t, ls_comm *comm, const plan *how) {
    memset(t, 0, sizeof *t);
    t->watcher.shape = LS_SCALAR;
    t->watcher.comm = comm;
    t->watcher.stop_at = how->stop_at;
    ls_comm *data = how->cut >= DIVIDED ? NULL : comm;
    const int64_t global_batch = how->global_batch > 0 ? how->global_batch : GLOBAL_BATCH;
    const ls_loader_options loading = {.batch_size = how->batch_size,
                                       .global_batch_size = how->batch_size > 0 ? 0 : global_batch,
                                       .comm = data,
                                       .seed = SEED};
    ls_seed(SEED);
    t->model = make_model(comm, how->cut);
    t->optimizer = ls_adam(t->model, &(ls_adam_options){.learning_rate = 0.01});
    t->train = ls_loader_new(make_dataset(0, SAMPLES), &loading);
    t->validate = ls_loader_new(make_dataset(1, HELD_BACK), &loading);
    const ls_callback watching = {.user = &t->watcher,
                                  .on_sample = watch_sample,
                                  .on_step_training = watch_step,
                                  .name = "watcher",
                                  .state = watcher_state,
                                  .set_state = watcher_set_state};
    const ls_callback callbacks[] = {watching, ls_checkpoint_callback(how->checkpoints)};
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
                                                .callbacks = callbacks,
                                                .callback_count = how->checkpoints != NULL ? 2 : 1,
                                                .train_steps = how->train_steps,
                                                .max_steps = how->max_steps,
                                                .resume = how->resume,
                                                .quiet = true});
    return t->trial != NULL ? LS_OK : ls_error_status();
}

static void end(training *t) {
    ls_trial_free(t->trial);
    ls_optimizer_free(t->optimizer);
    ls_module_free(t->model);
    ls_loader_free(t->train);
    ls_loader_free(t->validate);
    ls_tensor_drop(t->watcher.lent.tensor);
}

/* ---- outcomes ---------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    uint64_t model, buffers, optimizer;
    double history[EPOCHS][RESULTS], steps;
    int64_t epochs;
    ls_random_state random;
} outcome;

static uint64_t hash_tensor(uint64_t hash, const ls_tensor *tensor) {
    ls_tensor *dense = ls_tensor_dense_on_host("test", tensor, ls_dtype_of(tensor));
    hash = ls_hash(hash, ls_host_data(dense), (size_t)ls_numel(dense) * ls_dtype_size(ls_dtype_of(dense)));
    ls_tensor_drop(dense);
    return hash;
}

static ls_status look(const training *t, outcome *is) {
    static const char *const names[RESULTS] = {"loss", "acc",         "running_loss", "loss_std", "acc_var",
                                               "f1",   "running_acc", "val_loss",     "val_acc",  "val_f1"};
    const ls_named *tensors;
    int count;
    *is = (outcome){.model = ls_module_hash(t->model),
                    .buffers = LS_HASH_START,
                    .optimizer = LS_HASH_START,
                    .steps = t->watcher.steps,
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

static ls_status same(const outcome *is, const outcome *want) {
    LS_CHECK(is->epochs == want->epochs);
    LS_CHECK(is->model == want->model);
    LS_CHECK(is->buffers == want->buffers);
    LS_CHECK(is->optimizer == want->optimizer);
    LS_CHECK(memcmp(is->history, want->history, sizeof is->history) == 0);
    LS_CHECK(is->steps == want->steps);
    LS_CHECK(is->random.seed == want->random.seed && is->random.stream == want->random.stream);
    return LS_OK;
}

static ls_status train(ls_comm *comm, const plan *how, outcome *is) {
    training t;
    LS_TRY(begin(&t, comm, how));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, is));
    end(&t);
    return LS_OK;
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

/* A run goes on from the checkpoint, a fresh one or one that has trained already. */
static ls_status goes_on_from(ls_comm *comm, const plan *how, bool fresh, const char *checkpoint, const outcome *want) {
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

/* At step `step`; 0: at the end of epochs. Later ones come when the one before is on disk, whenever that is. */
static ls_status interrupted_at(ls_comm *world, int cut, int64_t step, const outcome *want) {
    const plan plain = {.cut = cut};
    char name[32];
    outcome is;
    snprintf(name, sizeof name, "step-%d-%d", cut, (int)step);
    const ls_checkpoint_options often = {.folder = in_scratch(name), .every_steps = step, .keep = 1000};
    LS_TRY(train(world, &(plan){.checkpoints = &often, .cut = cut}, &is));
    LS_TRY(same(&is, want)); /* writing them changes nothing */
    LS_TRY(goes_on_from(world, &plain, step % 2 != 0,
                        checkpoint_at(name, step > 0 ? (step - 1) / STEPS : 2, step > 0 ? step : 10), want));
    return goes_on_from(world, &plain, step % 2 == 0, in_scratch(name), want); /* the newest */
}

static ls_status same_bits(ls_comm *world) {
    outcome want;
    LS_TRY(train(world, &(plan){0}, &want));
    for (int64_t step = 0; step <= EPOCHS * STEPS; step += 3) {
        LS_TRY(interrupted_at(world, WHOLE, step, &want));
    }
    LS_TRY(interrupted_at(world, WHOLE, STEPS, &want)); /* behind the last batch of an epoch */
    LS_TRY(train(world, &(plan){.cut = PLAIN}, &want));
    return interrupted_at(world, PLAIN, 2 * STEPS - 1, &want); /* before a batch that is not full */
}

static ls_status divided_models(ls_comm *world) {
    outcome want;
    ls_comm *part = NULL;
    training t;
    LS_TRY(train(world, &(plan){.cut = DIVIDED}, &want));
    LS_TRY(interrupted_at(world, DIVIDED, 7, &want));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) == 0 ? 0 : 1, 0, &part)); /* it cannot be cut otherwise */
    LS_TRY(begin(&t, part, &(plan){.cut = DIVIDED}));
    LS_CHECK(ls_trial_load(t.trial, checkpoint_at("step-2-7", 1, 7)) == LS_ERR_UNSUPPORTED);
    LS_CHECK(strstr(ls_error_message(), "can go on with as many only") != NULL);
    end(&t);
    ls_comm_free(part);
    return LS_OK;
}

static ls_status pipelines(ls_comm *world) {
    outcome want;
    LS_TRY(train(world, &(plan){.cut = PIPELINE}, &want));
    LS_TRY(interrupted_at(world, PIPELINE, 7, &want));
    return interrupted_at(world, PIPELINE, 0, &want);
}

/* Rank 0's clock says when, and all follow. */
static ls_status by_time(ls_comm *world) {
    outcome want, is;
    ls_folder_names names;
    const ls_checkpoint_options at_once = {.folder = in_scratch("time"), .every_seconds = 1e-9, .keep = 1000};
    LS_TRY(train(world, &(plan){0}, &want));
    LS_TRY(train(world, &(plan){.checkpoints = &at_once}, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(ls_folder_list(in_scratch("time"), NULL, &names));
    LS_CHECK(names.count > EPOCHS); /* the first step, and the end of each epoch, at least */
    LS_CHECK(strcmp(names.items[0], "epoch-000000-step-0000000001") == 0);
    ls_folder_names_free(&names);
    return LS_OK;
}

/* A checkpoint is there some steps after it was due, and needs no end of an epoch. */
static ls_status in_the_midst(ls_comm *world) {
    training t;
    char path[PATH_MAX + 128];
    const ls_checkpoint_options once = {.folder = in_scratch("midst"), .every_epochs = 100};
    snprintf(path, sizeof path, "%s", checkpoint_at("midst", 0, 2));
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &once, .train_steps = INT64_MAX}));
    t.watcher.save_at = 2;
    t.watcher.awaited = path;
    t.watcher.began = ls_clock_ns();
    LS_TRY(ls_trial_run(t.trial, 1));
    LS_TRY(ls_checkpoint_verify(path));
    end(&t);
    return ls_comm_barrier(world, NULL);
}

/* Other communicators have parts that would be missing. */
static ls_status parts_of_others(ls_comm *world) {
    training t;
    const ls_checkpoint_options some = {.folder = in_scratch("parts")};
    ls_comm *alone = NULL;
    if (ls_world() != world || ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &alone));
    LS_TRY(begin(&t, alone, &(plan){.cut = DIVIDED, .checkpoints = &some}));
    LS_CHECK(ls_comm_rank(world) != 0 || ls_trial_run(t.trial, 1) == LS_ERR_UNSUPPORTED);
    LS_CHECK(ls_comm_rank(world) != 0 || strstr(ls_error_message(), "give ls_trial_options the .comm of all") != NULL);
    end(&t);
    ls_comm_free(alone);
    return ls_comm_barrier(world, NULL);
}

/* Epochs of fewer and of more steps than the loader's. */
static ls_status epochs_of_steps(ls_comm *world) {
    for (int64_t steps = 3; steps <= 7; steps += 4) {
        outcome want, is;
        char name[32];
        snprintf(name, sizeof name, "steps-%d", (int)steps);
        const ls_checkpoint_options once = {.folder = in_scratch(name), .every_steps = steps + 2, .keep = 100};
        LS_TRY(train(world, &(plan){.train_steps = steps}, &want));
        LS_TRY(train(world, &(plan){.train_steps = steps, .checkpoints = &once}, &is));
        LS_TRY(same(&is, &want));
        LS_TRY(goes_on_from(world, &(plan){.train_steps = steps}, true, checkpoint_at(name, 1, steps + 2), &want));
    }
    return LS_OK;
}

/* A run that ended in the midst of an epoch, and one that goes on from there, to the end of that epoch. */
static ls_status ended_in_the_midst(ls_comm *world) {
    outcome want, is;
    const plan until = {.max_steps = STEPS + 3};
    const ls_checkpoint_options there = {.folder = in_scratch("ended"), .every_steps = STEPS + 3};
    LS_TRY(train(world, &until, &want));
    LS_CHECK(want.epochs == 2);
    LS_TRY(train(world, &(plan){.max_steps = STEPS + 3, .checkpoints = &there}, &is));
    LS_TRY(same(&is, &want));
    return goes_on_from(world, &until, true, checkpoint_at("ended", 1, STEPS + 3), &want);
}

/* A hook ends the run in the midst of an epoch, behind a step that has a checkpoint: whoever goes on from there has
 * ended as well, and can be told to run on. */
static ls_status stopped_at_a_checkpoint(ls_comm *world) {
    enum { AT = STEPS + 2 };
    outcome want, is;
    training t;
    const ls_checkpoint_options there = {.folder = in_scratch("stopped"), .every_steps = AT};
    LS_TRY(train(world, &(plan){.stop_at = AT}, &want));
    LS_CHECK(want.epochs == 1 && want.steps == AT);
    LS_TRY(train(world, &(plan){.stop_at = AT, .checkpoints = &there}, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(begin(&t, world, &(plan){.resume = in_scratch("stopped")}));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_CHECK(ls_trial_history_count(t.trial) == EPOCHS);
    LS_CHECK(t.watcher.steps == EPOCHS * STEPS); /* an epoch was what was left of the loader's */
    end(&t);
    return LS_OK;
}

/* ---- other numbers of ranks -------------------------------------------------------------------------------------- */

/* Trains to the end from a checkpoint, and adds up on all ranks what was seen in each step. */
static ls_status seen_from(ls_comm *comm, const plan *how, const char *checkpoint, double *seen) {
    training t;
    LS_TRY(begin(&t, comm, how));
    LS_TRY(checkpoint != NULL ? ls_trial_load(t.trial, checkpoint) : LS_OK);
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    memcpy(seen, t.watcher.seen, sizeof t.watcher.seen);
    LS_TRY(ls_comm_allreduce(comm, seen, seen, EPOCHS * SAMPLES, LS_F64, LS_SUM, NULL));
    LS_CHECK(fabs(ls_trial_history(t.trial, 0, "loss")) < 100);
    end(&t);
    return LS_OK;
}

/* Steps behind the first `step` have the same samples. */
static ls_status saw_the_same(const double *is, const double *want, int64_t step) {
    for (int64_t i = 0; i < EPOCHS * SAMPLES; i++) {
        LS_CHECK(is[i] == (i < step ? 0 : want[i]));
    }
    return LS_OK;
}

static ls_status other_numbers_of_ranks(ls_comm *world) {
    ls_comm *alone = NULL;
    double want[EPOCHS * SAMPLES], is[EPOCHS * SAMPLES];
    outcome ignored;
    const int64_t ranks = ls_comm_size(world);
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &alone));
    const ls_checkpoint_options once = {.folder = in_scratch("many"), .every_steps = 7, .keep = 100};
    LS_TRY(train(world, &(plan){.checkpoints = &once}, &ignored));
    LS_TRY(seen_from(alone, &(plan){0}, NULL, want));
    LS_TRY(seen_from(alone, &(plan){0}, checkpoint_at("many", 1, 7), is));
    LS_TRY(saw_the_same(is, want, 7));
    /* Batches of each rank: two of all are as many of one as there are ranks. */
    const plan of_each = {.batch_size = 3,
                          .checkpoints = &(ls_checkpoint_options){.folder = in_scratch("each"), .every_steps = 2}};
    if (3 * ranks * 2 <= SAMPLES) {
        training t;
        LS_TRY(begin(&t, world, &of_each));
        t.watcher.signal_at = 0;
        LS_TRY(ls_trial_run(t.trial, 1));
        end(&t);
        LS_TRY(begin(&t, alone, &(plan){.batch_size = 5}));
        LS_CHECK(ls_trial_load(t.trial, checkpoint_at("each", 0, 2)) != LS_OK || ranks * 6 % 5 == 0);
        end(&t);
    }
    /* And the other way: of rank 0 alone to all. */
    char own[32];
    snprintf(own, sizeof own, "alone-%d", ls_comm_rank(world));
    const ls_checkpoint_options single = {.folder = in_scratch(own), .every_steps = 7, .keep = 100};
    LS_TRY(train(alone, &(plan){.checkpoints = &single}, &ignored));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(seen_from(world, &(plan){0}, checkpoint_at("alone-0", 1, 7), is));
    LS_TRY(saw_the_same(is, want, 7));
    ls_comm_free(alone);
    return LS_OK;
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static ls_status stopped_by_signal(ls_comm *world) {
    struct sigaction before, now;
    outcome want, is;
    training t;
    const ls_checkpoint_options seldom = {.folder = in_scratch("signal"), .every_epochs = 100};
    (void)sigaction(SIGUSR1, NULL, &before);
    LS_TRY(train(world, &(plan){0}, &want));
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &seldom}));
    t.watcher.signal_at = ls_comm_rank(world) == ls_comm_size(world) - 1 ? 8 : 0;
    const ls_status status = ls_trial_run(t.trial, EPOCHS);
    LS_CHECK(status == LS_ERR_STOPPED && strstr(ls_error_message(), "stopped by SIGUSR1 behind step ") != NULL);
    end(&t);
    LS_TRY(ls_comm_barrier(world, NULL));
    (void)sigaction(SIGUSR1, NULL, &now);
    LS_CHECK(now.sa_handler == before.sa_handler);
    LS_TRY(train(world, &(plan){.checkpoints = &seldom, .resume = in_scratch("signal")}, &is));
    return same(&is, &want);
}

/* The trial that was stopped can go on itself. */
static ls_status goes_on_by_itself(ls_comm *world) {
    outcome want, is;
    training t;
    const ls_checkpoint_options seldom = {.folder = in_scratch("itself"), .every_epochs = 100};
    LS_TRY(train(world, &(plan){0}, &want));
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &seldom}));
    t.watcher.signal_at = ls_comm_rank(world) == 0 ? 8 : 0;
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_STOPPED);
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(ls_trial_evaluate(t.trial, t.validate, "between"));
    t.watcher.signal_at = 0;
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, &is));
    end(&t);
    return same(&is, &want);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* The folder goes while rank 0 is in a hook: nobody can write there, and all are told. */
static ls_status cannot_write(ls_comm *world) {
    training t;
    const ls_checkpoint_options often = {.folder = in_scratch("spoiled"), .every_steps = 6};
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &often}));
    t.watcher.spoil_at = ls_comm_rank(world) == 0 ? 4 : 0;
    const ls_status status = ls_trial_run(t.trial, EPOCHS);
    LS_CHECK(status == LS_ERR_IO && strstr(ls_error_message(), "cannot make the folder") != NULL);
    end(&t);
    return ls_comm_barrier(world, NULL);
}

static ls_status other_options(ls_comm *world) {
    training t;
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    const ls_checkpoint_options differ = {.folder = in_scratch("differ"), .every_steps = last ? 2 : 3};
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &differ}));
    const ls_status status = ls_trial_run(t.trial, 1);
    LS_CHECK(status == LS_ERR_MISMATCH);
    LS_CHECK(strstr(ls_error_message(), "different options of ls_checkpoint_callback") != NULL);
    end(&t);
    LS_TRY(begin(&t, world, &(plan){.checkpoints = last ? &differ : NULL}));
    LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_MISMATCH);
    end(&t);
    return LS_OK;
}

/* The newest is damaged: the one before it counts, and the newest is put aside when training goes on. */
static ls_status damaged(ls_comm *world) {
    outcome want, is;
    char path[PATH_MAX + 128];
    const ls_checkpoint_options each = {.folder = in_scratch("damaged")};
    LS_TRY(train(world, &(plan){.checkpoints = &each}, &want));
    snprintf(path, sizeof path, "%s/rank-%04d.safetensors", checkpoint_at("damaged", 3, 15), ls_comm_size(world) - 1);
    LS_CHECK(ls_comm_rank(world) != 0 || truncate(path, 20) == 0);
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(train(world, &(plan){.checkpoints = &each, .resume = in_scratch("damaged")}, &is));
    LS_TRY(same(&is, &want));
    LS_CHECK(ls_comm_rank(world) != 0 || ls_checkpoint_verify(checkpoint_at("damaged", 3, 15)) == LS_OK);
    LS_CHECK(access(in_scratch("damaged/damaged-epoch-000003-step-0000000015"), F_OK) == 0);
    return LS_OK;
}

static void say_nothing(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    (void)line;
    (void)user;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(same_bits(world));
    LS_TRY(divided_models(world));
    LS_TRY(pipelines(world));
    LS_TRY(parts_of_others(world));
    LS_TRY(by_time(world));
    LS_TRY(in_the_midst(world));
    LS_TRY(epochs_of_steps(world));
    LS_TRY(ended_in_the_midst(world));
    LS_TRY(stopped_at_a_checkpoint(world));
    LS_TRY(other_numbers_of_ranks(world));
    LS_TRY(stopped_by_signal(world));
    LS_TRY(goes_on_by_itself(world));
    LS_TRY(cannot_write(world));
    LS_TRY(ls_comm_size(world) > 1 ? other_options(world) : LS_OK);
    ls_log_set_sink(say_nothing, NULL);
    LS_TRY(damaged(world));
    return remove_scratch(world);
}
