/* Averages a model's weights over training. */
#include "train/callbacks/callback.h"
#include "train/replicas.h"

static const char *const maker = "ls_weight_averaging";

typedef struct averaging {
    ls_weight_averaging_options options;
    ls_ema *averages; /* NULL before ls_trial_new */
    bool swapped;
    bool has_epoch; /* the averages include the current epoch */
    bool skipped;   /* the averages do not include the latest step, because the ranks had different parameters */
} averaging;

static bool is_time(const averaging *self, const ls_trial_state *state, bool step) {
    return step == (self->options.decay > 0) && state->epoch >= self->options.first_epoch &&
           ls_callback_in_real_run(state);
}

/* If two callbacks swapped, swapping back in the same order would leave averages in the model, and training would lose
 * the weights. */
static ls_status check_alone(const ls_trial *trial) {
    return trial->swapping <= 1
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: another ls_weight_averaging of the trial puts its averages into the model for "
                         "validation: set .no_swap of one of them",
                         maker);
}

static ls_status on_init(ls_trial_state *state, void *user) {
    averaging *self = user;
    state->trial->swapping += self->options.no_swap ? 0 : 1;
    LS_TRY(state->trial->options.validate != NULL ? check_alone(state->trial) : LS_OK);
    LS_TRY(ls_callback_needs_parameters(state, maker, ""));
    ls_ema_free(self->averages);
    self->averages = ls_ema_new(state->model, self->options.decay);
    return ls_made(self->averages);
}

/* A condition (ls_only_if) may have skipped on_init, which makes the averages. */
static ls_status check_begun(const averaging *self) {
    return self->averages != NULL
               ? LS_OK
               : ls_fail(LS_ERR_STATE, "%s: a condition skipped on_init: set .first_epoch instead of the condition",
                         maker);
}

static ls_status update(const averaging *self) {
    LS_TRY(check_begun(self));
    return ls_ema_update(self->averages);
}

/* Between two outer steps, the ranks would average different parameters. One rank skips the same steps. */
static ls_status on_step_training(ls_trial_state *state, void *user) {
    averaging *self = user;
    if (!is_time(self, state, true)) {
        return LS_OK;
    }
    self->skipped = ls_trial_awaits_outer_step(state->trial) || ls_module_is_unsynchronized(state->model);
    return self->skipped ? LS_OK : update(self);
}

/* A trial makes an outer step after the last step of an epoch. */
static ls_status on_end_training(ls_trial_state *state, void *user) {
    averaging *self = user;
    const bool updates = self->skipped && is_time(self, state, true) && !ls_module_is_unsynchronized(state->model);
    self->skipped = false;
    return updates ? update(self) : LS_OK;
}

/* Adds the epoch to the averages once. Not called for an epoch that a hook stopped. */
static ls_status add_epoch(averaging *self, const ls_trial_state *state) {
    if (self->has_epoch || !is_time(self, state, false)) {
        return LS_OK;
    }
    self->has_epoch = true;
    return update(self);
}

/* Updates the averages before validation, so that they include the epoch. After a failed validation, the averages are
 * still in the model. */
static ls_status on_start_validation(ls_trial_state *state, void *user) {
    averaging *self = user;
    if (self->swapped) {
        return LS_OK;
    }
    LS_TRY(add_epoch(self, state));
    if (ls_ema_count(self->averages) == 0 || self->options.no_swap || ls_callback_in_replay(state)) {
        return LS_OK;
    }
    LS_TRY(check_alone(state->trial)); /* on_init checks only trials with .validate */
    self->swapped = true;
    return ls_ema_swap(self->averages);
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    averaging *self = user;
    const bool swapped = self->swapped;
    (void)state;
    self->swapped = false;
    return swapped ? ls_ema_swap(self->averages) : LS_OK;
}

/* Updates the averages of a trial without validation. */
static ls_status on_end_epoch(ls_trial_state *state, void *user) {
    averaging *self = user;
    const ls_status status = add_epoch(self, state);
    self->has_epoch = false;
    return status;
}

/* Ends the validation and the epoch of an earlier run that failed. */
static ls_status on_start(ls_trial_state *state, void *user) {
    averaging *self = user;
    self->has_epoch = self->skipped = false;
    return on_end_validation(state, user);
}

static ls_status on_end(ls_trial_state *state, void *user) {
    const averaging *self = user;
    const bool keeps = self->options.keep && ls_ema_count(self->averages) > 0 && ls_callback_in_real_run(state);
    return keeps ? ls_ema_put(self->averages) : LS_OK;
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    const averaging *self = user;
    LS_TRY(check_begun(self));
    return ls_ema_state(self->averages, tensors, count);
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    return ls_ema_set_state(((averaging *)user)->averages, tensors, count);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_weight_averaging_options, decay),
                                      LS_FIELD(ls_weight_averaging_options, first_epoch),
                                      LS_FIELD(ls_weight_averaging_options, no_swap),
                                      LS_FIELD(ls_weight_averaging_options, keep),
                                      {.name = NULL}};
    ls_describe(text, size, maker, fields, &((const averaging *)user)->options);
}

static void release(void *user) {
    averaging *self = user;
    ls_ema_free(self->averages);
    ls_free(self);
}

ls_callback *ls_weight_averaging(const ls_weight_averaging_options *options) {
    static const ls_weight_averaging_options defaults;
    options = options != NULL ? options : &defaults;
    if (!(options->decay >= 0 && options->decay < 1) || options->decay == LS_ZERO || options->first_epoch < 0) {
        return ls_fail_null(
            LS_ERR_ARGUMENT,
            "%s: decay %g must be above 0 and below 1, or 0 for the mean of epochs, and first_epoch %lld must "
            "not be negative",
            maker, options->decay, (long long)options->first_epoch);
    }
    const averaging self = {.options = *options};
    return ls_callback_of(maker, &self, sizeof self,
                          &(ls_callback_hooks){.on_init = on_init,
                                               .on_start = on_start,
                                               .on_step_training = on_step_training,
                                               .on_end_training = on_end_training,
                                               .on_start_validation = on_start_validation,
                                               .on_end_validation = on_end_validation,
                                               .on_end_epoch = on_end_epoch,
                                               .on_end = on_end,
                                               .name = "weight_averaging",
                                               .describe = describe,
                                               .state = state,
                                               .set_state = set_state,
                                               .release = release});
}

int64_t ls_weight_averaging_count(const ls_callback *callback) {
    const averaging *self = ls_callback_memory(callback, release);
    return self != NULL ? ls_ema_count(self->averages) : 0;
}
