/* Ends a run when a metric has stopped improving. */
#include "train/callbacks/callback.h"

#include <math.h>
#include <string.h>

static const char *const maker = "ls_early_stopping";

typedef struct early_stopping {
    ls_early_stopping_options options;
    char monitor[LS_METRIC_NAME_LIMIT];
    bool larger_is_better;
    int64_t seen; /* number of epochs */
    int64_t wait; /* number of most recent epochs without improvement */
    int64_t stopped;
    double best;
    bool resumed;      /* the state comes from a checkpoint, and no run has begun since then */
    ls_snapshot model; /* the model after the best epoch */
    ls_state_list listed;
} early_stopping;

static ls_status on_init(ls_trial_state *state, void *user) {
    early_stopping *self = user;
    if (!self->options.restore_best) {
        return LS_OK;
    }
    LS_TRY(ls_callback_needs_parameters(state, maker, "omit .restore_best and use .checkpoint with .best, "));
    return ls_snapshot_make(maker, &self->model, state->model, false);
}

static bool has_waited(const early_stopping *self) {
    return self->wait > 0 && self->wait >= self->options.patience;
}

/* A checkpoint after the last epoch belongs to a run that has ended. */
static ls_status on_start(ls_trial_state *state, void *user) {
    early_stopping *self = user;
    if (ls_callback_in_real_run(state)) {
        LS_TRY(ls_metrics_check_result(state->trial, maker, self->monitor));
        if (self->resumed && has_waited(self)) {
            self->stopped = 1;
            state->stop = true;
        }
        self->resumed = false;
    }
    return LS_OK;
}

static bool is_better(const early_stopping *self, double value) {
    return self->seen == 0 || (self->larger_is_better ? value - self->options.min_delta > self->best
                                                      : value + self->options.min_delta < self->best);
}

/* Copies the best model. A condition (ls_only_if) may have skipped on_init, which makes room for the copy. */
static ls_status keep_model(const early_stopping *self, const ls_trial_state *state) {
    if (!self->options.restore_best || ls_callback_in_replay(state)) {
        return LS_OK;
    }
    return self->model.model != NULL
               ? ls_snapshot_take(maker, &self->model)
               : ls_fail(LS_ERR_STATE,
                         "%s: a condition skipped on_init, which .restore_best needs: let the condition be true in "
                         "on_init, or use .checkpoint with .best",
                         maker);
}

static ls_status on_end_epoch(ls_trial_state *state, void *user) {
    early_stopping *self = user;
    double value;
    if (!ls_callback_in_run(state)) {
        return LS_OK;
    }
    LS_TRY(ls_callback_metric(state, maker, self->monitor, &value));
    if (isfinite(value) && is_better(self, value)) {
        self->best = value;
        self->wait = 0;
        self->seen++;
        return keep_model(self, state);
    }
    self->wait++;
    if (has_waited(self)) {
        self->stopped = 1;
        state->stop = true;
    }
    return LS_OK;
}

static ls_status on_end(ls_trial_state *state, void *user) {
    early_stopping *self = user;
    const bool restores = self->options.restore_best && self->seen > 0 && ls_callback_in_real_run(state);
    return restores ? ls_snapshot_put(maker, &self->model) : LS_OK;
}

static ls_status list(void *user, ls_state_list *list) {
    early_stopping *self = user;
    LS_TRY(ls_callback_list_count(list, "seen", &self->seen));
    LS_TRY(ls_callback_list_count(list, "wait", &self->wait));
    LS_TRY(ls_callback_list_count(list, "stopped", &self->stopped));
    LS_TRY(ls_callback_list_real(list, "best", &self->best));
    return ls_snapshot_list(&self->model, "best", list);
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_callback_state(user, list, &((early_stopping *)user)->listed, tensors, count);
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    LS_TRY(ls_callback_set_state(maker, user, list, tensors, count));
    ((early_stopping *)user)->resumed = true;
    return LS_OK;
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {
        LS_FIELD(ls_early_stopping_options, monitor),      LS_FIELD(ls_early_stopping_options, mode),
        LS_FIELD(ls_early_stopping_options, min_delta),    LS_FIELD(ls_early_stopping_options, patience),
        LS_FIELD(ls_early_stopping_options, restore_best), {.name = NULL}};
    ls_describe(text, size, maker, fields, &((const early_stopping *)user)->options);
}

/* Values of different metrics cannot be compared, and neither can the best values of different directions. */
static void identify(void *user, bool all, char *text, size_t size) {
    const early_stopping *self = user;
    if (all) {
        describe(user, text, size);
        return;
    }
    snprintf(text, size, "(%s %s)", self->larger_is_better ? "highest" : "lowest", self->monitor);
}

static void release(void *user) {
    early_stopping *self = user;
    ls_snapshot_forget(&self->model);
    ls_state_forget(&self->listed);
    ls_free(self);
}

static ls_status check(const ls_early_stopping_options *options) {
    if (options->mode < LS_MONITOR_AUTO || options->mode > LS_MONITOR_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the mode %d does not exist", maker, (int)options->mode);
    }
    if (!(options->min_delta >= 0) || options->patience < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: min_delta %g and patience %lld must not be negative", maker,
                       options->min_delta, (long long)options->patience);
    }
    return ls_callback_check_name(maker, options->monitor);
}

ls_callback *ls_early_stopping(const ls_early_stopping_options *options) {
    static const ls_early_stopping_options defaults;
    options = options != NULL ? options : &defaults;
    early_stopping *self = check(options) == LS_OK ? ls_allocate_for(maker, 1, sizeof *self) : NULL;
    if (self == NULL) {
        return NULL;
    }
    self->options = *options;
    ls_callback_copy_name(self->monitor, options->monitor != NULL ? options->monitor : "val_loss");
    self->options.monitor = self->monitor;
    self->larger_is_better =
        options->mode == LS_MONITOR_MAX || (options->mode == LS_MONITOR_AUTO && strstr(self->monitor, "acc") != NULL);
    const ls_callback_hooks hooks = {.on_init = on_init,
                                     .on_start = on_start,
                                     .on_end_epoch = on_end_epoch,
                                     .on_end = on_end,
                                     .name = "early_stopping",
                                     .describe = describe,
                                     .state = state,
                                     .set_state = set_state,
                                     .release = release};
    return ls_callback_set_identify(ls_callback_make(&hooks, self), identify);
}

double ls_early_stopping_best(const ls_callback *callback) {
    const early_stopping *self = ls_callback_memory(callback, release);
    return self != NULL && self->seen > 0 ? self->best : NAN;
}

bool ls_early_stopping_stopped(const ls_callback *callback) {
    const early_stopping *self = ls_callback_memory(callback, release);
    return self != NULL && self->stopped != 0;
}
