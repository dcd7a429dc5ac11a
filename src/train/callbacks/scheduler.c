/* Advances a learning-rate schedule. */
#include "train/callbacks/callback.h"

#include <stdio.h>
#include <string.h>

#include "optim/schedule.h"

static const char *const maker = "ls_scheduler";

typedef struct scheduler {
    ls_schedule *schedule;
    bool per_step;
    bool monitors;
    char monitor[LS_METRIC_NAME_LIMIT];
} scheduler;

static ls_status on_start(ls_trial_state *state, void *user) {
    const scheduler *self = user;
    return self->monitors && ls_callback_in_real_run(state)
               ? ls_metrics_check_result(state->trial, maker, self->monitor)
               : LS_OK;
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    const scheduler *self = user;
    return self->per_step && !ls_callback_in_replay(state) ? ls_schedule_advance(self->schedule) : LS_OK;
}

static ls_status on_end_epoch(ls_trial_state *state, void *user) {
    const scheduler *self = user;
    if (self->per_step || !ls_callback_in_real_run(state)) {
        return LS_OK;
    }
    if (!self->monitors) {
        return ls_schedule_advance(self->schedule);
    }
    double value;
    LS_TRY(ls_callback_metric(state, maker, self->monitor, &value));
    return ls_schedule_advance_by(self->schedule, value);
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_schedule_state(((scheduler *)user)->schedule, tensors, count);
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    return ls_schedule_set_state(((scheduler *)user)->schedule, tensors, count);
}

static void describe_with(const scheduler *self, bool step, char *text, size_t size) {
    snprintf(text, size, "%s%s%s: ", maker,
             self->per_step   ? " for each step"
             : self->monitors ? " by "
                              : "",
             self->monitors ? self->monitor : "");
    const size_t length = strlen(text);
    ls_schedule_describe(self->schedule, step, text + length, size - length);
}

static void describe(void *user, char *text, size_t size) {
    describe_with(user, true, text, size);
}

/* The state counts steps or epochs, or has values of a metric. */
static void identify(void *user, bool all, char *text, size_t size) {
    const scheduler *self = user;
    if (all) {
        describe_with(self, false, text, size);
    } else {
        snprintf(text, size, "(%s)", self->per_step ? "each step" : self->monitors ? self->monitor : "each epoch");
    }
}

static void release(void *user) {
    scheduler *self = user;
    ls_schedule_free(self->schedule);
    ls_free(self);
}

static ls_status check(const ls_schedule *schedule, const ls_scheduler_options *options) {
    LS_TRY(ls_schedule_check_here(maker, schedule));
    if (options->monitor == NULL && schedule->type->look != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the schedule needs a metric: set .monitor, for example to \"val_loss\"",
                       maker);
    }
    if (options->per_step && options->monitor != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric \"%s\" is measured per epoch, not per step", maker,
                       options->monitor);
    }
    return ls_callback_check_name(maker, options->monitor);
}

ls_callback *ls_scheduler(ls_schedule *schedule, const ls_scheduler_options *options) {
    static const ls_scheduler_options defaults;
    options = options != NULL ? options : &defaults;
    scheduler *self = check(schedule, options) == LS_OK ? ls_allocate_for(maker, 1, sizeof *self) : NULL;
    if (self == NULL) {
        ls_schedule_free(schedule);
        return NULL;
    }
    *self = (scheduler){.schedule = schedule, .per_step = options->per_step, .monitors = options->monitor != NULL};
    ls_callback_copy_name(self->monitor, self->monitors ? options->monitor : "");
    const ls_callback_hooks hooks = {.on_start = on_start,
                                     .on_step_training = on_step_training,
                                     .on_end_epoch = on_end_epoch,
                                     .name = "scheduler",
                                     .describe = describe,
                                     .state = state,
                                     .set_state = set_state,
                                     .release = release};
    return ls_callback_set_identify(ls_callback_make(&hooks, self), identify);
}
