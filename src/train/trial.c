/* What a trial is made of. */
#include "train/trial.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/hold.h"
#include "nn/module.h"
#include "tensor/tensor.h"
#include "train/checkpoint/checkpoint.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void release_callbacks(const ls_callback *callbacks, int count) {
    for (int i = 0; i < count; i++) {
        if (callbacks[i].release != NULL && !callbacks[i].invalid) {
            callbacks[i].release(callbacks[i].user);
        }
    }
}

static ls_status copy_callbacks(ls_trial *trial) {
    const ls_callback *callbacks = trial->options.callbacks;
    const size_t size = (size_t)trial->options.callback_count * sizeof *callbacks;
    trial->own_callbacks = ls_allocate(size);
    if (trial->own_callbacks == NULL) {
        return ls_fail_memory("ls_trial_new", size);
    }
    if (size > 0) {
        memcpy(trial->own_callbacks, callbacks, size);
    }
    trial->callbacks = trial->own_callbacks;
    return LS_OK;
}

/* The model goes where batches will be. */
static ls_status choose_device(ls_trial *trial) {
    const ls_trial_options *options = &trial->options;
    const ls_device *home = NULL;
    if (options->device == NULL) {
        return LS_OK;
    }
    trial->device = ls_device_find("ls_trial_new", options->device);
    if (trial->device == NULL) {
        return ls_error_status();
    }
    LS_TRY(ls_module_device(options->model, "ls_trial_new", &home));
    if (home == trial->device || ls_module_parameter_count(options->model) == 0) {
        return LS_OK;
    }
    const bool parallel = ls_data_parallel_comm(options->model) != NULL;
    if (options->optimizer != NULL || parallel) {
        return ls_fail(LS_ERR_STATE,
                       "ls_trial_new: batches are to go to %s, but the model is on %s, and %s has it already: "
                       "ls_to_device(model, \"%s\") before that, or ls_use_device before the model is made",
                       trial->device->name, home->name, parallel ? "ls_data_parallel" : "an optimizer",
                       trial->device->name);
    }
    return ls_module_to_device(options->model, options->device) != NULL ? LS_OK : ls_error_status();
}

static ls_status prepare(ls_trial *trial) {
    const ls_trial_options *options = &trial->options;
    trial->state = (ls_trial_state){
        .trial = trial,
        .model = options->model,
        .optimizer = options->optimizer,
        .comm = options->comm != NULL ? options->comm : ls_data_parallel_comm(options->model),
        .criterion = options->criterion,
        .criterion_user = options->criterion_user,
    };
    if (trial->state.comm != NULL) {
        LS_TRY(ls_comm_check_open("ls_trial_new", trial->state.comm));
        trial->comm = ls_comm_hold(trial->state.comm);
    }
    LS_TRY(choose_device(trial));
    LS_TRY(copy_callbacks(trial));
    LS_TRY(ls_metrics_find(trial));
    LS_TRY(LS_CALL(trial, on_init));
    return options->resume != NULL ? ls_trial_go_on_from(trial, options->resume, false) : LS_OK;
}

static ls_status check_numbers(const ls_trial_options *options) {
    if ((options->callbacks == NULL && options->callback_count > 0) ||
        (options->custom_metrics == NULL && options->custom_metric_count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: %d callbacks and %d custom metrics are counted, but not there",
                       options->callback_count, options->custom_metric_count);
    }
    if (options->autocast != LS_F32 && options->autocast != LS_BF16 && options->autocast != LS_F16) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: autocast is %s, must be bf16 or f16, or f32 for none",
                       ls_dtype_name(options->autocast));
    }
    if (options->max_steps < 0 || options->callback_count < 0 || options->custom_metric_count < 0 ||
        options->train_steps < 0 || options->validate_steps < 0 || options->evaluate_steps < 0) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_new: a negative number: %lld steps, %d callbacks, %d metrics, %lld, %lld and %lld "
                       "batches of an epoch of training, validation and evaluation",
                       (long long)options->max_steps, options->callback_count, options->custom_metric_count,
                       (long long)options->train_steps, (long long)options->validate_steps,
                       (long long)options->evaluate_steps);
    }
    return LS_OK;
}

/* A constructor of callbacks that failed has said why. */
static ls_status check_callbacks(const ls_trial_options *options) {
    for (int i = 0; i < options->callback_count; i++) {
        if (options->callbacks[i].invalid) {
            return ls_error_status() != LS_OK ? ls_error_status()
                                              : ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: callback %d is invalid", i);
        }
    }
    return LS_OK;
}

static ls_status check(const ls_trial_options *options) {
    LS_TRY(options != NULL ? check_numbers(options) : LS_OK);
    LS_TRY(options != NULL ? check_callbacks(options) : LS_OK);
    if (options == NULL || options->model == NULL || (options->criterion == NULL && options->step == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_new: a trial needs a model and a criterion, or a step of its own instead");
    }
    if (options->criterion == NULL && options->validate != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: validation needs a criterion, also beside a step of one's own");
    }
    return LS_OK;
}

/* Of options that are right. */
static ls_trial *make(const ls_trial_options *options) {
    ls_trial *trial = ls_allocate_zeroed(1, sizeof *trial);
    if (trial == NULL) {
        (void)ls_fail_memory("ls_trial_new", sizeof *trial);
        return NULL;
    }
    trial->options = *options;
    if (prepare(trial) != LS_OK) {
        trial->options.callback_count = 0; /* they, and metrics, are released by who calls this */
        ls_trial_free(trial);
        return NULL;
    }
    ls_metrics_take(trial);
    return trial;
}

ls_trial *ls_trial_new(const ls_trial_options *options) {
    ls_trial *trial = check(options) == LS_OK ? make(options) : NULL;
    if (trial == NULL && options != NULL && options->callbacks != NULL) {
        release_callbacks(options->callbacks, options->callback_count);
    }
    if (trial == NULL && options != NULL) {
        ls_metrics_drop(options->custom_metrics, options->custom_metric_count);
    }
    return trial;
}

void ls_trial_free(ls_trial *trial) {
    if (trial != NULL) {
        release_callbacks(trial->own_callbacks, trial->options.callback_count);
        ls_free(trial->own_callbacks);
        ls_metrics_free(trial);
        ls_history_free(&trial->history);
        ls_comm_drop(trial->comm);
        ls_free(trial);
    }
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
