/* Averages a model's weights over training. */
#include "train/callbacks/callback.h"

static const char *const maker = "ls_weight_averaging";

typedef struct averaging {
    ls_weight_averaging_options options;
    ls_ema *averages; /* NULL before ls_trial_new */
    bool swapped;
} averaging;

static bool is_time(const averaging *self, const ls_trial_state *state, bool step) {
    return step == (self->options.decay > 0) && state->epoch >= self->options.first_epoch &&
           ls_callback_in_run(state) && !ls_callback_in_replay(state);
}

static ls_status on_init(ls_trial_state *state, void *user) {
    averaging *self = user;
    LS_TRY(ls_callback_needs_parameters(state, maker, ""));
    ls_ema_free(self->averages);
    self->averages = ls_ema_new(state->model, self->options.decay);
    return self->averages != NULL ? LS_OK : ls_error_status();
}

/* Between two outer steps, the ranks would average different parameters. */
static ls_status on_step_training(ls_trial_state *state, void *user) {
    const averaging *self = user;
    return is_time(self, state, true) && !state->model->unsynchronized ? ls_ema_update(self->averages) : LS_OK;
}

/* Updates the averages before validation, so that they include the epoch. */
static ls_status on_end_training(ls_trial_state *state, void *user) {
    const averaging *self = user;
    return is_time(self, state, false) ? ls_ema_update(self->averages) : LS_OK;
}

/* After a failed validation, the averages are still in the model. */
static ls_status on_start_validation(ls_trial_state *state, void *user) {
    averaging *self = user;
    if (self->swapped) {
        return LS_OK;
    }
    self->swapped = ls_ema_count(self->averages) > 0 && !self->options.no_swap && !ls_callback_in_replay(state);
    return self->swapped ? ls_ema_swap(self->averages) : LS_OK;
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    averaging *self = user;
    const bool swapped = self->swapped;
    (void)state;
    self->swapped = false;
    return swapped ? ls_ema_swap(self->averages) : LS_OK;
}

static ls_status on_end(ls_trial_state *state, void *user) {
    const averaging *self = user;
    const bool keeps = self->options.keep && ls_ema_count(self->averages) > 0 && ls_callback_in_run(state);
    return keeps && !ls_callback_in_replay(state) ? ls_ema_put(self->averages) : LS_OK;
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_ema_state(((averaging *)user)->averages, tensors, count);
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
    if (!(options->decay >= 0 && options->decay < 1) || options->first_epoch < 0) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: decay %g must be from 0 to below 1, and first_epoch %lld not negative",
                      maker, options->decay, (long long)options->first_epoch);
        return NULL;
    }
    averaging *self = ls_callback_allocate(maker, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    self->options = *options;
    return ls_callback_make(
        &(ls_callback_hooks){.on_init = on_init,
                             .on_start = on_end_validation, /* for an earlier run that failed during validation */
                             .on_step_training = on_step_training,
                             .on_end_training = on_end_training,
                             .on_start_validation = on_start_validation,
                             .on_end_validation = on_end_validation,
                             .on_end = on_end,
                             .name = "weight_averaging",
                             .describe = describe,
                             .state = state,
                             .set_state = set_state,
                             .release = release},
        self);
}

int64_t ls_weight_averaging_count(const ls_callback *callback) {
    const averaging *self = ls_callback_memory(callback, release);
    return self != NULL ? ls_ema_count(self->averages) : 0;
}
