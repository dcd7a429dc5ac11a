/* The training loop. */
#include "train/trial.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/hold.h"
#include "tensor/tensor.h"

/* What was the user's, a hook, say, and says nothing, must not be heard with the words of an older error. */
static ls_status fail_in(ls_trial *trial, ls_status status, bool says_why, const char *what) {
    if (!says_why) {
        return ls_fail(status, "ls_trial: %s failed with %s", what, ls_status_name(status));
    }
    snprintf(trial->failed_in, sizeof trial->failed_in, "%s: ", what);
    return status;
}

/* Calls one hook, given by its place in ls_callback and its name, of every callback that has it. */
static ls_status call_hooks(ls_trial *trial, size_t hook, const char *name) {
    for (int i = 0; i < trial->options.callback_count; i++) {
        const ls_callback *callback = &trial->callbacks[i];
        const ls_callback_function function =
            *(const ls_callback_function *)(const void *)((const char *)callback + hook);
        if (function == NULL) {
            continue;
        }
        const uint32_t errors = ls_error_count;
        const ls_status status = function(&trial->state, callback->user);
        if (status != LS_OK) {
            char what[LS_FAILED_IN_LIMIT - 2];
            snprintf(what, sizeof what, "the hook %s of callback %d", name, i);
            return fail_in(trial, status, ls_error_count != errors, what);
        }
    }
    return LS_OK;
}

#define CALL(trial, hook) call_hooks((trial), offsetof(ls_callback, hook), #hook)

/* ---- making ------------------------------------------------------------------------------------------------------ */

static ls_status copy_callbacks(ls_trial *trial) {
    const size_t size = (size_t)trial->options.callback_count * sizeof *trial->callbacks;
    trial->callbacks = ls_allocate(size);
    if (trial->callbacks == NULL) {
        return ls_fail_memory("ls_trial_new", size);
    }
    if (size > 0) {
        memcpy(trial->callbacks, trial->options.callbacks, size);
    }
    return LS_OK;
}

static ls_status prepare(ls_trial *trial) {
    const ls_trial_options *options = &trial->options;
    trial->state = (ls_trial_state){
        .trial = trial,
        .model = options->model,
        .optimizer = options->optimizer,
        .comm = options->comm != NULL ? options->comm : ls_data_parallel_comm(options->model),
    };
    if (trial->state.comm != NULL) {
        LS_TRY(ls_comm_check_open("ls_trial_new", trial->state.comm));
        trial->comm = ls_comm_hold(trial->state.comm);
    }
    LS_TRY(copy_callbacks(trial));
    LS_TRY(ls_metrics_find(trial));
    return CALL(trial, on_init);
}

ls_trial *ls_trial_new(const ls_trial_options *options) {
    if (options == NULL || options->model == NULL || (options->criterion == NULL && options->step == NULL)) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "ls_trial_new: a trial needs a model and a criterion, or a step of its own instead");
    }
    if (options->criterion == NULL && options->validate != NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_trial_new: validation needs a criterion, also beside a step of one's "
                                             "own");
    }
    if ((options->callbacks == NULL && options->callback_count > 0) ||
        (options->custom_metrics == NULL && options->custom_metric_count > 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "ls_trial_new: %d callbacks and %d custom metrics are counted, but not there",
                            options->callback_count, options->custom_metric_count);
    }
    if (options->max_steps < 0 || options->callback_count < 0 || options->custom_metric_count < 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_trial_new: a negative number: %lld steps, %d callbacks, %d metrics",
                            (long long)options->max_steps, options->callback_count, options->custom_metric_count);
    }
    ls_trial *trial = ls_allocate_zeroed(1, sizeof *trial);
    if (trial == NULL) {
        (void)ls_fail_memory("ls_trial_new", sizeof *trial);
        return NULL;
    }
    trial->options = *options;
    if (prepare(trial) != LS_OK) {
        ls_trial_free(trial);
        return NULL;
    }
    return trial;
}

void ls_trial_free(ls_trial *trial) {
    if (trial != NULL) {
        ls_free(trial->callbacks);
        ls_free(trial->history);
        ls_comm_drop(trial->comm);
        ls_free(trial);
    }
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static void take_batch(ls_trial *trial, const ls_batch *batch) {
    ls_trial_state *state = &trial->state;
    state->input = batch->input;
    state->target = batch->target;
    state->output = NULL;
    state->loss = NULL;
    state->count = batch->count;
    state->global_count = batch->global_count;
}

/* A failure by returning NULL, told in its own words unless there were none since `errors` were counted. */
static ls_status nothing_made(const char *what, uint32_t errors) {
    return ls_error_count != errors ? ls_error_status()
                                    : ls_fail(LS_ERR_ARGUMENT, "ls_trial: %s returned NULL without an error", what);
}

/* From sample to loss, with the hooks of training or of validation. */
static ls_status compute_loss(ls_trial *trial, bool training) {
    ls_trial_state *state = &trial->state;
    const uint32_t errors = ls_error_count;
    LS_TRY(training ? CALL(trial, on_sample) : CALL(trial, on_sample_validation));
    state->output = ls_forward(state->model, state->input);
    if (state->output == NULL) {
        return nothing_made("the model", errors);
    }
    LS_TRY(training ? CALL(trial, on_forward) : CALL(trial, on_forward_validation));
    state->loss = trial->options.criterion(state->output, state->target, trial->options.criterion_user);
    if (state->loss == NULL) {
        return nothing_made("the criterion", errors);
    }
    return training ? CALL(trial, on_criterion) : CALL(trial, on_criterion_validation);
}

/* A rank whose share of the batch is empty takes part in what the others do together. */
static ls_status backward(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    ls_optimizer_zero_grad(state->optimizer);
    if (state->count > 0) {
        LS_TRY(compute_loss(trial, true));
        return ls_backward(state->loss);
    }
    return ls_data_parallel_comm(state->model) != NULL ? ls_data_parallel_skip(state->model) : LS_OK;
}

static ls_status ready_made_step(ls_trial *trial) {
    LS_TRY(backward(trial));
    LS_TRY(CALL(trial, on_backward));
    return ls_optimizer_step(trial->state.optimizer);
}

/* What a step leaves for the metrics must not have gone with a scope of its own. */
static ls_status is_left(const char *what, const ls_tensor *tensor) {
    return tensor == NULL || ls_tensor_is_here(what, tensor) ? LS_OK : ls_error_status();
}

/* Of a rank whose share is empty, too: only the step knows what the others do together. */
static ls_status own_step(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    LS_TRY(state->count > 0 ? CALL(trial, on_sample) : LS_OK);
    const uint32_t errors = ls_error_count;
    const ls_status status = trial->options.step(state, trial->options.step_user);
    if (status != LS_OK) {
        return fail_in(trial, status, ls_error_count != errors, "the step");
    }
    LS_TRY(is_left("ls_trial: the step's output", state->output));
    return is_left("ls_trial: the step's loss", state->loss);
}

static ls_status training_step(ls_trial *trial) {
    ls_trial_state *state = &trial->state;
    LS_TRY(trial->options.step != NULL ? own_step(trial) : ready_made_step(trial));
    state->step++;
    if (state->count > 0) {
        LS_TRY(ls_metrics_add(trial));
    }
    return CALL(trial, on_step_training);
}

static ls_status validation_step(ls_trial *trial) {
    if (trial->state.count > 0) {
        LS_TRY(compute_loss(trial, false));
        LS_TRY(ls_metrics_add(trial));
    }
    return CALL(trial, on_step_validation);
}

/* Carries out a step in a scope of its own. A failure keeps its message over the end of the scope. */
static ls_status in_scope(ls_trial *trial, ls_status (*step)(ls_trial *trial)) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    const ls_status status = step(trial);
    trial->state.input = trial->state.target = trial->state.output = trial->state.loss = NULL;
    if (status == LS_OK) {
        return ls_scope_end(scope);
    }
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    (void)ls_scope_end(scope);
    ls_error_restore(status, message);
    return status;
}

/* ---- passes over a loader ---------------------------------------------------------------------------------------- */

static bool reached_limit(const ls_trial *trial) {
    return trial->state.stop || (trial->options.max_steps > 0 && trial->state.step >= trial->options.max_steps);
}

/* The step after the warm-up makes what was measured until then void: only shorter training is judged by it. */
static void measure_step(ls_trial *trial, uint64_t nanoseconds, int64_t samples) {
    if (trial->state.step == LS_WARM_UP_STEPS + 1) {
        trial->training_ns = 0;
        trial->training_samples = 0;
    }
    trial->training_ns += nanoseconds;
    trial->training_samples += samples;
}

static ls_status run_batches(ls_trial *trial, ls_loader *loader, bool training) {
    ls_trial_state *state = &trial->state;
    bool began_within = state->batch > 0;
    while (!(training && reached_limit(trial))) {
        ls_batch batch;
        bool more;
        const uint64_t began = ls_clock_ns();
        LS_TRY(ls_loader_next(loader, &batch, &more));
        if (!more && training && began_within) {
            began_within = false; /* a run that was stopped behind the last batch of an epoch has left it there */
            state->batch = 0;
            continue;
        }
        if (!more) {
            break;
        }
        began_within = false;
        take_batch(trial, &batch);
        LS_TRY(in_scope(trial, training ? training_step : validation_step));
        if (training) {
            measure_step(trial, ls_clock_ns() - began, batch.global_count);
        }
        state->batch++;
        ls_progress_step(trial);
        LS_TRY(training ? ls_trial_agree(trial, LS_OK) : LS_OK);
    }
    return LS_OK;
}

/* One pass over the loader. Its results are stored as the latest, and in `entry` unless that is NULL. */
static ls_status pass(ls_trial *trial, ls_loader *loader, bool training, const char *label, const char *prefix,
                      ls_history_entry *entry) {
    ls_module_train(trial->state.model, training);
    const bool before = ls_no_grad(!training);
    ls_metrics_begin(trial);
    trial->state.batches = ls_loader_batch_count(loader);
    ls_loader_position(loader, NULL, &trial->state.batch);
    ls_progress_begin(trial, label);
    ls_status status = run_batches(trial, loader, training);
    ls_no_grad(before);
    if (status == LS_OK) {
        status = ls_metrics_end(trial, prefix, entry);
    }
    if (status == LS_OK) {
        ls_progress_end(trial, prefix);
    }
    return status;
}

/* A pass over epoch 0, for measuring. Training goes on from where its loader stood, if it is that one. */
static ls_status measure(ls_trial *trial, ls_loader *loader, const char *label, const char *prefix,
                         ls_history_entry *entry) {
    int64_t epoch, batch;
    ls_loader_position(loader, &epoch, &batch);
    LS_TRY(ls_loader_seek(loader, 0, 0));
    LS_TRY(pass(trial, loader, false, label, prefix, entry));
    return loader == trial->options.train ? ls_loader_seek(loader, epoch, batch) : LS_OK;
}

static ls_status run_epoch(ls_trial *trial) {
    char label[48];
    ls_history_entry entry = {.count = 0};
    LS_TRY(CALL(trial, on_start_epoch));
    LS_TRY(CALL(trial, on_start_training));
    LS_TRY(ls_trial_agree(trial, LS_OK));
    snprintf(label, sizeof label, "%lld/%lld(t)", (long long)trial->state.epoch, (long long)trial->state.epochs);
    LS_TRY(pass(trial, trial->options.train, true, label, "", &entry));
    LS_TRY(CALL(trial, on_end_training));
    if (trial->options.validate != NULL) {
        LS_TRY(CALL(trial, on_start_validation));
        snprintf(label, sizeof label, "%lld/%lld(v)", (long long)trial->state.epoch, (long long)trial->state.epochs);
        LS_TRY(measure(trial, trial->options.validate, label, "val_", &entry));
        LS_TRY(CALL(trial, on_end_validation));
    }
    LS_TRY(ls_history_append(trial, &entry));
    trial->epochs_run++;
    LS_TRY(CALL(trial, on_end_epoch));
    LS_TRY(CALL(trial, on_checkpoint));
    return ls_trial_agree(trial, LS_OK);
}

static ls_status run_epochs(ls_trial *trial, int64_t epochs) {
    LS_TRY(ls_trial_begin_agreeing(trial));
    LS_TRY(CALL(trial, on_start));
    LS_TRY(ls_trial_agree(trial, LS_OK));
    while (trial->epochs_run < epochs && !reached_limit(trial)) {
        trial->state.epoch = trial->epochs_run;
        LS_TRY(run_epoch(trial));
    }
    return CALL(trial, on_end);
}

ls_status ls_trial_run(ls_trial *trial, int64_t epochs) {
    if (trial == NULL || trial->options.train == NULL ||
        (trial->options.optimizer == NULL && trial->options.step == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_run: a loader of training data and an optimizer are needed, or a step "
                       "of one's own instead of that");
    }
    trial->state.epochs = epochs;
    trial->state.stop = false;
    trial->running = true;
    const ls_status status = ls_trial_agree_at_end(trial, run_epochs(trial, epochs));
    trial->running = false;
    return status;
}

/* A pass without hooks. One of them may have asked for it, in the midst of an epoch that goes on afterwards. */
static ls_status evaluate(ls_trial *trial, ls_loader *loader, const char *label, const char *prefix) {
    const ls_trial_state state = trial->state;
    const ls_progress progress = trial->progress;
    const bool training = ls_module_is_training(state.model);
    const int hooks = trial->options.callback_count;
    ls_metric_sum sums[LS_METRIC_LIMIT];
    memcpy(sums, trial->sums, sizeof sums);
    trial->options.callback_count = 0;
    const ls_status status = measure(trial, loader, label, prefix, NULL);
    trial->options.callback_count = hooks;
    memcpy(trial->sums, sums, sizeof sums);
    ls_module_train(state.model, training);
    trial->progress = progress;
    trial->state = state;
    return status;
}

ls_status ls_trial_evaluate(ls_trial *trial, ls_loader *loader, const char *label) {
    if (trial == NULL || loader == NULL || label == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_evaluate: the trial, the loader or the label is NULL");
    }
    if (trial->options.criterion == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_evaluate: the trial was made without a criterion");
    }
    char prefix[LS_METRIC_NAME_LIMIT];
    if (strlen(label) + 1 + ls_metrics_longest(trial) + 1 > LS_METRIC_NAME_LIMIT) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_evaluate: the label \"%s\" is too long: with a metric's name it may have %d "
                       "bytes",
                       label, LS_METRIC_NAME_LIMIT - 1);
    }
    snprintf(prefix, sizeof prefix, "%s_", label);
    const ls_status status = evaluate(trial, loader, label, prefix);
    if (trial->running) {
        return status; /* to the hook that asked for it */
    }
    trial->agreed = false;
    return ls_trial_agree_at_end(trial, status);
}

double ls_trial_throughput(ls_trial *trial) {
    if (trial == NULL) {
        return 0;
    }
    /* The slowest rank's time is the time the step took. */
    int64_t time = (int64_t)trial->training_ns;
    if (trial->state.comm != NULL &&
        ls_comm_allreduce(trial->state.comm, &time, &time, 1, LS_I64, LS_MAX, NULL) != LS_OK) {
        return 0;
    }
    return time > 0 ? (double)trial->training_samples / ((double)time * 1e-9) : 0;
}
