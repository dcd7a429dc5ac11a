/* Averages of a model's weights over its training. */
#include "train/callbacks/callback.h"

#include <math.h>

#include "tensor/scope.h"

static const char *const maker = "ls_weight_averaging";

typedef struct averaging {
    ls_weight_averaging_options options;
    int64_t count;        /* of weights that were averaged */
    ls_snapshot averages; /* or the weights, while these are in their place */
    bool swapped;
    ls_state_list lent;
} averaging;

/* average = keep average + (1 - keep) weights */
static ls_status average_one(ls_tensor *average, ls_tensor *weights, double keep) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    const bool before = ls_no_grad(true);
    ls_tensor *next = weights; /* of counters the last */
    if (ls_dtype_is_floating(ls_dtype_of(average))) {
        next = ls_add(ls_mul(average, keep), ls_mul(weights, 1 - keep));
    }
    const ls_status copied = next != NULL ? ls_copy_into(average, next) : ls_error_status();
    ls_no_grad(before);
    const ls_status ended = ls_scope_close(scope);
    return copied != LS_OK ? copied : ended;
}

static ls_status average(averaging *self) {
    const double decay = self->options.decay;
    const double keep = self->count == 0 ? 0 : decay > 0 ? decay : (double)self->count / (double)(self->count + 1);
    self->count++;
    if (keep == 0) {
        return ls_snapshot_take(&self->averages);
    }
    for (int i = 0; i < self->averages.count; i++) {
        LS_TRY(average_one(self->averages.tensors[i], ls_snapshot_source(&self->averages, i), keep));
    }
    return LS_OK;
}

static bool is_time(const averaging *self, const ls_trial_state *state, bool step) {
    return step == (self->options.decay > 0) && state->epoch >= self->options.first_epoch &&
           ls_callback_in_run(state) && !ls_callback_in_replay(state);
}

static ls_status on_init(ls_trial_state *state, void *user) {
    return ls_snapshot_make(maker, &((averaging *)user)->averages, state->model);
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    return is_time(user, state, true) ? average(user) : LS_OK;
}

/* Before validation, so that the averages have the epoch in them. */
static ls_status on_end_training(ls_trial_state *state, void *user) {
    return is_time(user, state, false) ? average(user) : LS_OK;
}

static ls_status on_start_validation(ls_trial_state *state, void *user) {
    averaging *self = user;
    self->swapped = self->count > 0 && !self->options.no_swap && !ls_callback_in_replay(state);
    return self->swapped ? ls_snapshot_swap(&self->averages) : LS_OK;
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    averaging *self = user;
    const bool swapped = self->swapped;
    (void)state;
    self->swapped = false;
    return swapped ? ls_snapshot_swap(&self->averages) : LS_OK;
}

static ls_status on_end(ls_trial_state *state, void *user) {
    const averaging *self = user;
    const bool keeps = self->options.keep && self->count > 0 && ls_callback_in_run(state);
    return keeps && !ls_callback_in_replay(state) ? ls_snapshot_put(&self->averages) : LS_OK;
}

static ls_status list(void *user, ls_state_list *list) {
    averaging *self = user;
    LS_TRY(ls_callback_list_count(list, "count", &self->count));
    return ls_snapshot_list(&self->averages, "average", list);
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_callback_state(user, list, &((averaging *)user)->lent, tensors, count);
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    return ls_callback_set_state(maker, user, list, tensors, count);
}

static void release(void *user) {
    averaging *self = user;
    ls_snapshot_forget(&self->averages);
    ls_state_forget(&self->lent);
    ls_free(self);
}

ls_callback ls_weight_averaging(const ls_weight_averaging_options *options) {
    static const ls_weight_averaging_options defaults;
    options = options != NULL ? options : &defaults;
    if (!(options->decay >= 0 && options->decay < 1) || options->first_epoch < 0) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: decay %g must be from 0 to below 1, and first_epoch %lld not negative",
                      maker, options->decay, (long long)options->first_epoch);
        return ls_callback_failed();
    }
    averaging *self = ls_callback_allocate(maker, sizeof *self);
    if (self == NULL) {
        return ls_callback_failed();
    }
    self->options = *options;
    return (ls_callback){.user = self,
                         .on_init = on_init,
                         .on_step_training = on_step_training,
                         .on_end_training = on_end_training,
                         .on_start_validation = on_start_validation,
                         .on_end_validation = on_end_validation,
                         .on_end = on_end,
                         .name = "weight_averaging",
                         .state = state,
                         .set_state = set_state,
                         .release = release};
}

int64_t ls_weight_averaging_count(const ls_callback *callback) {
    const averaging *self = ls_callback_memory(callback, release);
    return self != NULL ? self->count : 0;
}
