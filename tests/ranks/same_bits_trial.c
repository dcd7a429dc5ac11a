/*
 * Bit-identical results at every world size in trials: groups of ranks with .shards = W get the parameters, the states
 * and the history of W ranks without .shards. A run that is interrupted within an epoch continues on a different number
 * of ranks.
 *
 * ranks: 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include "parallel/parallel.h"
#include "tests/support/resumed.h"

enum { WIDTH = 24, RUN_EPOCHS = 4, INTERRUPTION = 7, LAST = 2 };

/* ---- a trial ----------------------------------------------------------------------------------------------------- */

typedef struct setup {
    int shards;
    int64_t max_steps;  /* 0: no interruption */
    const char *folder; /* of checkpoints; NULL: none */
    bool resumes;
    ls_dtype autocast;
    bool normalizes; /* the model has batch normalization */
    bool late;       /* from the fourth step on, the loss has additional terms */
} setup;

typedef struct objects {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_grad_scaler *scaler;
    ls_loader *train, *validate;
    ls_trial *trial;
    int64_t steps;
} objects;

/* Counts the steps of a trial. */
static ls_status count_step(ls_trial_state *state, void *user) {
    (void)state;
    ++*(int64_t *)user;
    return LS_OK;
}

/* A single mean in the first steps, later the sum with a mean of the output. */
static ls_tensor *late_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    const int64_t *steps = user;
    ls_tensor *loss = ls_cross_entropy(output, target, NULL);
    return *steps < 3 ? loss : ls_add(loss, ls_mul(ls_mean(ls_mul(output, output)), 0.1));
}

static ls_callback *make_schedule(ls_optimizer *optimizer) {
    ls_schedule *plateau = ls_schedule_plateau(optimizer, &(ls_plateau_options){.factor = 0.5, .no_patience = true});
    return ls_scheduler(plateau, &(ls_scheduler_options){.monitor = "val_loss"});
}

static ls_status make_objects(ls_comm *comm, const setup *p, objects *o) {
    const ls_loader_options loading = {
        .global_batch_size = GLOBAL_BATCH, .comm = comm, .seed = SEED, .shards = p->shards};
    ls_seed(SEED);
    *o = (objects){.model = ls_sequential(
                       ls_nn_linear(INPUTS, WIDTH), p->normalizes ? ls_nn_batch_norm_1d(WIDTH, NULL) : ls_nn_tanh(),
                       ls_nn_dropout(0.2), ls_nn_linear(WIDTH, WIDTH), ls_nn_relu(), ls_nn_linear(WIDTH, CLASSES))};
    o->model = ls_data_parallel(o->model, comm, &(ls_data_parallel_options){.shards = p->shards});
    o->optimizer = ls_adam(o->model, &(ls_adam_options){.learning_rate = 0.02});
    o->scaler = p->autocast != LS_F32 ? ls_grad_scaler_new(&(ls_grad_scaler_options){.growth_interval = 3}) : NULL;
    o->train = ls_loader_new(make_dataset(0, 4 * GLOBAL_BATCH + LAST), &loading);
    o->validate = ls_loader_new(make_dataset(1, HELD_BACK), &loading);
    LS_CHECK(o->model != NULL && o->optimizer != NULL && o->train != NULL && o->validate != NULL);
    ls_callback *callbacks[] = {ls_mixup(&(ls_mixup_options){.classes = CLASSES, .seed = SEED}),
                                ls_gradient_norm_clipping(0.7), make_schedule(o->optimizer), ls_weight_averaging(NULL),
                                ls_callback_new(&(ls_callback_hooks){.on_step_training = count_step}, &o->steps)};
    o->trial = ls_trial_new(&(ls_trial_options){
        .model = o->model,
        .optimizer = o->optimizer,
        .grad_scaler = o->scaler,
        .autocast = p->autocast,
        .criterion = p->late ? late_criterion : ls_criterion_cross_entropy,
        .criterion_user = p->late ? &o->steps : NULL,
        .train = o->train,
        .validate = o->validate,
        .metrics = LS_METRICS("loss", "lr", "epoch", "loss_std", "running_loss"),
        .callbacks = callbacks,
        .callback_count = sizeof callbacks / sizeof *callbacks,
        .checkpoint =
            p->folder != NULL
                ? &(ls_checkpoint_options){.folder = p->folder, .every_steps = INTERRUPTION, .no_signals = true}
                : NULL,
        .resume = p->resumes ? p->folder : NULL,
        .max_steps = p->max_steps,
        .quiet = true});
    LS_CHECK(o->trial != NULL);
    return LS_OK;
}

static void free_objects(objects *o) {
    ls_trial_free(o->trial);
    ls_optimizer_free(o->optimizer);
    ls_grad_scaler_free(o->scaler);
    ls_loader_free(o->train);
    ls_loader_free(o->validate);
    ls_module_free(o->model);
}

/* Returns a hash of the parameters, the states and the history. */
static ls_status hash_of(const objects *o, uint64_t *hash) {
    static const char *const results[] = {"loss", "val_loss", "lr", "loss_std", "val_loss_std", "running_loss"};
    const ls_named *states;
    int count;
    *hash = ls_module_hash(o->model);
    for (int i = 0; i < ls_module_buffer_count(o->model); i++) {
        LS_TRY(ls_hash_elements("test", ls_module_buffer(o->model, i), hash));
    }
    LS_TRY(ls_optimizer_state(o->optimizer, &states, &count));
    for (int i = 0; i < count; i++) {
        LS_TRY(ls_hash_elements("test", states[i].tensor, hash));
    }
    for (int64_t epoch = 0; epoch < RUN_EPOCHS; epoch++) {
        for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
            const double value = ls_trial_history(o->trial, epoch, results[i]);
            LS_CHECK(isfinite(value));
            *hash = ls_hash(*hash, &value, sizeof value);
        }
    }
    return LS_OK;
}

static ls_status run(ls_comm *comm, const setup *p, uint64_t *hash) {
    objects o;
    ls_scope *scope = ls_scope_begin();
    LS_TRY(make_objects(comm, p, &o));
    LS_TRY(ls_trial_run(o.trial, RUN_EPOCHS));
    ls_status status = hash != NULL ? hash_of(&o, hash) : LS_OK;
    free_objects(&o);
    LS_TRY(ls_scope_end(scope));
    return status;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static ls_status check_group(ls_comm *group, const setup *p, uint64_t want) {
    uint64_t hash = 0;
    LS_TRY(run(group, p, &hash));
    LS_CHECK(hash == want);
    return LS_OK;
}

static ls_status same_bits(ls_comm *world, ls_dtype autocast, bool normalizes, bool late) {
    const int size = ls_comm_size(world);
    uint64_t want;
    LS_TRY(run(world, &(setup){.autocast = autocast, .normalizes = normalizes, .late = late},
               &want)); /* ranks are slices */
    for (int first = 1; first <= size / 2 + 1 && first <= size; first++) {
        ls_comm *group = NULL;
        LS_TRY(ls_comm_split(world, ls_comm_rank(world) < first, 0, &group));
        const ls_status status = check_group(
            group, &(setup){.shards = size, .autocast = autocast, .normalizes = normalizes, .late = late}, want);
        ls_comm_free(group);
        LS_TRY(status);
    }
    return LS_OK;
}

/* Trains with all ranks up to a step within an epoch, and continues with some of the ranks; and the reverse. */
static ls_status resume(ls_comm *world, bool normalizes) {
    const int size = ls_comm_size(world), shards = size + 2;
    uint64_t want;
    LS_TRY(run(world, &(setup){.shards = shards, .normalizes = normalizes}, &want));
    for (int first = 1; first < size; first++) {
        const bool shrinks = first % 2 == 0;
        char name[64], folder[PATH_MAX];
        ls_comm *group = NULL;
        LS_TRY(ls_comm_split(world, ls_comm_rank(world) < first, 0, &group));
        const bool is_first = ls_comm_rank(world) < first;
        snprintf(name, sizeof name, "from-%d-%d", first, normalizes);
        snprintf(folder, sizeof folder, "%s", in_scratch(name));
        const setup interrupted = {
            .shards = shards, .folder = folder, .max_steps = INTERRUPTION, .normalizes = normalizes};
        const setup resumed = {.shards = shards, .folder = folder, .resumes = true, .normalizes = normalizes};
        ls_status status = shrinks ? run(world, &interrupted, NULL) : is_first ? run(group, &interrupted, NULL) : LS_OK;
        LS_TRY(ls_comm_barrier(world, NULL));
        status = status != LS_OK ? status : !shrinks ? check_group(world, &resumed, want) : LS_OK;
        status = status == LS_OK && shrinks && is_first ? check_group(group, &resumed, want) : status;
        ls_comm_free(group);
        LS_TRY(status);
        LS_TRY(ls_comm_barrier(world, NULL));
    }
    return LS_OK;
}

/* The metrics of an epoch belong to slices, so they cannot continue with a different number of slices. */
static ls_status other_shards(ls_comm *world) {
    const int size = ls_comm_size(world);
    char folder[PATH_MAX];
    objects o;
    snprintf(folder, sizeof folder, "%s", in_scratch("other"));
    LS_TRY(run(world, &(setup){.shards = size + 1, .folder = folder, .max_steps = INTERRUPTION}, NULL));
    LS_TRY(make_objects(world, &(setup){.shards = size + 2}, &o));
    LS_CHECK(ls_trial_load(o.trial, folder) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("was taken within an epoch with .shards = ");
    free_objects(&o);
    return LS_OK;
}

/* A loader with a different number of slices would train on different samples. */
static ls_status other_loader(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_module *model =
        ls_data_parallel(ls_nn_linear(INPUTS, CLASSES), world, &(ls_data_parallel_options){.shards = size + 1});
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_loader *loader =
        ls_loader_new(make_dataset(0, SAMPLES), &(ls_loader_options){.global_batch_size = GLOBAL_BATCH, .comm = world});
    LS_CHECK(ls_trial_new(&(ls_trial_options){
                 .model = model, .optimizer = optimizer, .criterion = ls_criterion_cross_entropy, .train = loader}) ==
             NULL);
    LS_EXPECT_MESSAGE(".shards");
    LS_CHECK(ls_loader_new(make_dataset(0, SAMPLES), &(ls_loader_options){.comm = world, .shards = size - 1}) == NULL ||
             size == 1);
    ls_optimizer_free(optimizer);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

/* Predictions have the order of the data set, and are bit-identical to the predictions of W ranks. */
static ls_status predict(ls_comm *comm, int shards, uint64_t *hash) {
    objects o;
    ls_scope *scope = ls_scope_begin();
    LS_TRY(make_objects(comm, &(setup){.shards = shards}, &o));
    LS_TRY(ls_trial_run(o.trial, 1));
    ls_loader *shuffled = ls_loader_new(
        make_dataset(1, HELD_BACK),
        &(ls_loader_options){.global_batch_size = GLOBAL_BATCH, .comm = comm, .seed = SEED, .shards = shards});
    ls_tensor *rows = NULL;
    LS_TRY(ls_trial_predict(o.trial, shuffled, true, &rows));
    LS_CHECK(rows != NULL && ls_size(rows, 0) == HELD_BACK);
    *hash = LS_HASH_START;
    LS_TRY(ls_hash_elements("test", rows, hash));
    LS_TRY(ls_trial_evaluate(o.trial, shuffled, "again"));
    const double loss = ls_trial_metric(o.trial, "again_loss");
    *hash = ls_hash(*hash, &loss, sizeof loss);
    ls_loader *other = ls_loader_new(make_dataset(1, HELD_BACK), &(ls_loader_options){.comm = comm});
    LS_CHECK(shards == 0 || ls_trial_evaluate(o.trial, other, "other") == LS_ERR_ARGUMENT);
    ls_loader_free(other);
    ls_loader_free(shuffled);
    free_objects(&o);
    return ls_scope_end(scope) == LS_OK ? LS_OK : ls_error_status();
}

static ls_status same_predictions(ls_comm *world) {
    const int size = ls_comm_size(world);
    uint64_t want, hash = 0;
    ls_comm *group = NULL;
    LS_TRY(predict(world, 0, &want));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) < 1, 0, &group));
    const ls_status status = predict(group, size, &hash);
    ls_comm_free(group);
    LS_TRY(status);
    LS_CHECK(hash == want);
    return LS_OK;
}

/* The logged loss of each batch does not include the gradient scaler's factor. */
static ls_status log_of_batches(ls_comm *world) {
    char path[PATH_MAX];
    objects o;
    ls_scope *scope = ls_scope_begin();
    snprintf(path, sizeof path, "%s", in_scratch("log.csv"));
    const ls_loader_options loading = {
        .global_batch_size = GLOBAL_BATCH, .comm = world, .shards = ls_comm_size(world) + 1};
    o = (objects){.model = ls_data_parallel(ls_nn_linear(INPUTS, CLASSES), world,
                                            &(ls_data_parallel_options){.shards = ls_comm_size(world) + 1})};
    o.optimizer = ls_sgd(o.model, NULL);
    o.scaler = ls_grad_scaler_new(NULL);
    o.train = ls_loader_new(make_dataset(0, SAMPLES), &loading);
    ls_callback *log[] = {ls_csv_log(path, &(ls_csv_log_options){.per_batch = true, .no_header = true})};
    o.trial = ls_trial_new(&(ls_trial_options){.model = o.model,
                                               .optimizer = o.optimizer,
                                               .grad_scaler = o.scaler,
                                               .criterion = ls_criterion_cross_entropy,
                                               .train = o.train,
                                               .callbacks = log,
                                               .callback_count = 1,
                                               .quiet = true});
    LS_CHECK(o.trial != NULL);
    LS_TRY(ls_trial_run(o.trial, 1));
    free_objects(&o);
    LS_TRY(ls_scope_end(scope));
    LS_TRY(ls_comm_barrier(world, NULL));
    FILE *file = fopen(path, "r");
    double loss = 0;
    LS_CHECK(file != NULL && fscanf(file, "%*d,%*d,%lf", &loss) == 1);
    fclose(file);
    LS_CHECK(loss > 0.01 && loss < 100);
    return LS_OK;
}

typedef struct slice_hook {
    ls_loader *loader;
    bool predicts;
} slice_hook;

static ls_status evaluate_within(ls_trial_state *state, void *user) {
    const slice_hook *hook = user;
    ls_tensor *outputs = NULL;
    return hook->predicts ? ls_trial_predict(state->trial, hook->loader, true, &outputs)
                          : ls_trial_evaluate(state->trial, hook->loader, "hook");
}

/* A hook of a slice may not evaluate the model: ranks have different numbers of slices. */
static ls_status run_slice_hook(ls_comm *comm, const ls_callback_hooks *hooks, slice_hook *hook) {
    const int shards = ls_comm_size(comm) + 1;
    const ls_loader_options loading = {.global_batch_size = GLOBAL_BATCH, .comm = comm, .shards = shards};
    objects o = {
        .model = ls_data_parallel(ls_nn_linear(INPUTS, CLASSES), comm, &(ls_data_parallel_options){.shards = shards})};
    o.optimizer = ls_sgd(o.model, NULL);
    o.train = ls_loader_new(make_dataset(0, SAMPLES), &loading);
    o.validate = ls_loader_new(make_dataset(1, HELD_BACK), &loading);
    hook->loader = ls_loader_new(make_dataset(1, HELD_BACK), &loading);
    o.trial = ls_trial_new(&(ls_trial_options){.model = o.model,
                                               .optimizer = o.optimizer,
                                               .criterion = ls_criterion_cross_entropy,
                                               .train = o.train,
                                               .validate = o.validate,
                                               LS_CALLBACKS(ls_callback_new(hooks, hook)),
                                               .quiet = true});
    LS_CHECK(o.trial != NULL && hook->loader != NULL);
    LS_CHECK(ls_trial_run(o.trial, 1) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE(hook->predicts ? "ls_trial_predict: called by a hook that runs once for each slice"
                                     : "ls_trial_evaluate: called by a hook that runs once for each slice");
    ls_loader_free(hook->loader);
    free_objects(&o);
    return LS_OK;
}

static ls_status refuse_in_slices(ls_comm *world) {
    const ls_callback_hooks hooks[] = {{.on_sample = evaluate_within},
                                       {.on_forward = evaluate_within},
                                       {.on_criterion = evaluate_within},
                                       {.on_sample_validation = evaluate_within},
                                       {.on_step_validation = evaluate_within}};
    ls_comm *alone = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &alone));
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        LS_TRY(run_slice_hook(world, &hooks[i], &(slice_hook){.predicts = i % 2 == 1}));
        LS_TRY(run_slice_hook(alone, &hooks[i], &(slice_hook){.predicts = i % 2 == 0}));
    }
    ls_comm_free(alone);
    return LS_OK;
}

static ls_status own_step(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_OK;
}

/* Trials that could not be bit-identical are refused. */
static ls_status refuse_trials(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_module *model =
        ls_data_parallel(ls_nn_linear(INPUTS, CLASSES), world, &(ls_data_parallel_options){.shards = size + 1});
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_trial_options options = {.model = model, .optimizer = optimizer, .step = own_step};
    LS_CHECK(ls_trial_new(&options) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("ls_data_parallel_step");
    ls_comm *group = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &group));
    options = (ls_trial_options){
        .model = model, .optimizer = optimizer, .criterion = ls_criterion_cross_entropy, .comm = group};
    LS_CHECK(ls_trial_new(&options) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("the trial's communicator has 1");
    ls_comm_free(group);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    ls_status status = same_bits(world, LS_F32, false, false);
    status = status == LS_OK ? same_bits(world, LS_F16, false, false) : status;
    status = status == LS_OK ? same_bits(world, LS_F32, true, false) : status;
    status = status == LS_OK ? same_bits(world, LS_F32, false, true) : status;
    status = status == LS_OK ? same_bits(world, LS_F32, true, true) : status;
    status = status == LS_OK ? resume(world, false) : status;
    status = status == LS_OK ? resume(world, true) : status;
    status = status == LS_OK ? other_shards(world) : status;
    status = status == LS_OK ? other_loader(world) : status;
    status = status == LS_OK ? same_predictions(world) : status;
    status = status == LS_OK ? log_of_batches(world) : status;
    status = status == LS_OK ? refuse_trials(world) : status;
    status = status == LS_OK ? refuse_in_slices(world) : status;
    LS_TRY(remove_scratch(world));
    return status;
}
