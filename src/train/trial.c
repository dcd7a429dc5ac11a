/* Makes and frees trials. */
#include "train/trial.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "comm/hold.h"
#include "comm/public_call.h"
#include "nn/module.h"
#include "parallel/outer.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"
#include "train/captured.h"
#include "train/checkpoint/checkpoint.h"
#include "train/replicas.h"

/* ---- making ------------------------------------------------------------------------------------------------------ */

static ls_status choose_device(ls_trial *trial) {
    const ls_trial_options *options = &trial->options;
    const ls_device *home = NULL;
    if (options->device == NULL) {
        return LS_OK;
    }
    trial->device = ls_device_find("ls_trial_new", options->device);
    LS_TRY(ls_made(trial->device));
    LS_TRY(ls_module_device(options->model, "ls_trial_new", &home));
    if (home == trial->device || ls_module_parameter_count(options->model) == 0) {
        return LS_OK;
    }
    const bool parallel = ls_data_parallel_comm(options->model) != NULL;
    if (options->optimizer != NULL || options->outer != NULL || parallel) {
        return ls_fail(LS_ERR_STATE,
                       "ls_trial_new: .device is %s, but the model is on %s and already belongs to %s: call "
                       "ls_to_device(model, \"%s\") first, or ls_use_device before the model is created",
                       trial->device->name, home->name, parallel ? "ls_data_parallel" : "an optimizer",
                       trial->device->name);
    }
    return ls_module_to_device(options->model, options->device) != NULL ? LS_OK : ls_error_status();
}

static ls_comm *comm_of(const ls_trial_options *options) {
    return options->comm != NULL    ? options->comm
           : options->outer != NULL ? ls_outer_comm(options->outer)
                                    : ls_data_parallel_comm(options->model);
}

static ls_status prepare(ls_trial *trial) {
    const ls_trial_options *options = &trial->options;
    trial->state = (ls_trial_state){
        .trial = trial,
        .model = options->model,
        .optimizer = options->optimizer,
        .comm = comm_of(options),
        .criterion = options->criterion,
        .criterion_user = options->criterion_user,
    };
    if (trial->state.comm != NULL) {
        LS_TRY(ls_comm_check_open("ls_trial_new", trial->state.comm));
        trial->comm = ls_comm_hold(trial->state.comm);
    }
    LS_TRY(choose_device(trial));
    if (options->checkpoint != NULL) {
        trial->checkpointer = ls_checkpointer_new(options->checkpoint);
        LS_TRY(ls_made(trial->checkpointer));
    }
    LS_TRY(ls_metrics_find(trial));
    trial->in_on_init = true;
    LS_TRY(LS_CALL(trial, on_init));
    trial->in_on_init = false;
    return options->resume != NULL ? ls_trial_go_on_from(trial, options->resume, false) : LS_OK;
}

static ls_status check_numbers(const ls_trial_options *options) {
    if (options->custom_metrics == NULL && options->custom_metric_count > 0) {
        return ls_fail_missing("ls_trial_new: the array of %d custom metrics", options->custom_metric_count);
    }
    if (options->autocast != LS_F32 && options->autocast != LS_BF16 && options->autocast != LS_F16) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: autocast is %s, but must be bf16 or f16, or f32 to disable it",
                       ls_dtype_name(options->autocast));
    }
    const struct {
        const char *option;
        int64_t number;
    } counts[] = {{"max_steps", options->max_steps},
                  {"memory_limit", options->memory_limit},
                  {"custom_metric_count", options->custom_metric_count},
                  {"train_steps", options->train_steps},
                  {"validate_steps", options->validate_steps},
                  {"evaluate_steps", options->evaluate_steps}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].number < 0) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: .%s is %lld, but must not be negative", counts[i].option,
                           (long long)counts[i].number);
        }
    }
    return LS_OK;
}

static ls_status check(const ls_trial_options *options) {
    LS_TRY(check_numbers(options));
    if (options->model == NULL) {
        return ls_fail_missing("ls_trial_new: a trial needs a model, but .model");
    }
    if (options->criterion == NULL && options->step == NULL) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_new: a trial needs a criterion or a user step: set .criterion or .step");
    }
    if (options->criterion == NULL && options->validate != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_new: validation needs a criterion, even with a user step");
    }
    LS_TRY(ls_trial_check_outer(options));
    return ls_trial_check_shards(options);
}

/* Takes ownership of the callbacks. On failure, the caller still owns the metrics. */
static ls_trial *make(const ls_trial_options *options, ls_callback **callbacks) {
    ls_trial *trial = ls_allocate_zeroed(1, sizeof *trial);
    if (trial == NULL) {
        (void)ls_fail_memory("ls_trial_new", sizeof *trial);
        ls_callbacks_free(callbacks, options->callback_count);
        return NULL;
    }
    trial->options = *options;
    trial->callbacks = trial->own_callbacks = callbacks;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_TRIAL_NEW);
    const bool failed = check(options) != LS_OK || prepare(trial) != LS_OK;
    (void)ls_public_end(outer, LS_OK);
    if (failed) {
        ls_trial_free(trial);
        return NULL;
    }
    ls_metrics_take(trial);
    return trial;
}

ls_trial *ls_trial_new(const ls_trial_options *options) {
    if (options == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_trial_new: the options are NULL");
    }
    ls_callback **callbacks = ls_callbacks_take("ls_trial_new", options->callbacks, options->callback_count);
    ls_trial *trial = callbacks != NULL ? make(options, callbacks) : NULL;
    if (trial == NULL) {
        ls_metrics_drop(options->custom_metrics, options->custom_metric_count);
    }
    return trial;
}

void ls_trial_free(ls_trial *trial) {
    if (trial != NULL && trial->own_callbacks != NULL) {
        ls_trial_forget_capture(trial);
        ls_callbacks_free(trial->own_callbacks, trial->options.callback_count);
        ls_checkpointer_free(trial->checkpointer);
        ls_metrics_free(trial);
        ls_history_free(&trial->history);
        ls_comm_drop(trial->comm);
        *trial = (ls_trial){.own_callbacks = NULL};
        ls_retire(trial, LS_RETIRED_SINGLE);
    }
}

double ls_trial_throughput(ls_trial *trial) {
    if (trial == NULL || ls_trial_check_here("ls_trial_throughput", trial) != LS_OK) {
        return 0;
    }
    /* the slowest rank determines the duration of a step */
    int64_t time = (int64_t)trial->training_ns, samples = trial->training_samples;
    ls_comm *comm = trial->state.comm;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_TRIAL_THROUGHPUT);
    const bool failed = comm != NULL && (ls_comm_allreduce(comm, &time, &time, 1, LS_I64, LS_MAX, NULL) != LS_OK ||
                                         ls_comm_allreduce(comm, &samples, &samples, 1, LS_I64, LS_SUM, NULL) != LS_OK);
    (void)ls_public_end(outer, LS_OK);
    if (failed) {
        return 0;
    }
    return time > 0 ? (double)samples / ((double)time * 1e-9) : 0;
}
