/* A learning rate range test before the first epoch, which restores the trial afterwards. */
#include "train/callbacks/callback.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "data/loader.h"
#include "parallel/data_parallel.h"
#include "train/captured.h"
#include "train/checkpoint/checkpoint.h"
#include "train/pass.h"

static const char *const maker = "ls_rate_finder";

typedef struct rate_finder {
    ls_rate_finder_options options;
    double *losses; /* loss of each step, over all ranks */
    double *smooth; /* smoothed losses */
    int64_t count;  /* steps taken */
    int64_t done;   /* nonzero if the test has already run */
    double best;    /* smoothed loss */
    double suggestion;
    ls_callback *recorder; /* the only callback of the trial during the test */
    ls_state_list listed;
} rate_finder;

static double rate_at(const rate_finder *self, int64_t step) {
    const ls_rate_finder_options *o = &self->options;
    return o->lowest * pow(o->highest / o->lowest, (double)step / (double)(o->steps - 1));
}

/* ---- saved and restored state ------------------------------------------------------------------------------------ */

/* Everything that a training step changes. */
typedef struct before {
    ls_trial_state state;
    ls_callback *const *callbacks;
    int callback_count;
    ls_outer *outer;
    ls_random_state random;
    int64_t epoch, batch; /* position of the loader */
    ls_snapshot model;
    ls_copies optimizer, scaler; /* copies of the states of optimizer and scaler */
    float *powersgd;             /* copy of the error feedback; or NULL */
} before;

static ls_status remember_powersgd(before *b, const ls_module *model) {
    int64_t count = 0;
    const float *numbers = ls_data_parallel_powersgd(model, &count);
    const size_t bytes = (size_t)count * sizeof *numbers;
    if (numbers == NULL || bytes == 0) {
        return LS_OK;
    }
    b->powersgd = ls_allocate(bytes);
    if (b->powersgd == NULL) {
        return ls_fail_memory(maker, bytes);
    }
    memcpy(b->powersgd, numbers, bytes);
    return LS_OK;
}

static void put_powersgd_back(const before *b, const ls_module *model) {
    int64_t count = 0;
    float *numbers = ls_data_parallel_powersgd(model, &count);
    if (b->powersgd != NULL) {
        memcpy(numbers, b->powersgd, (size_t)count * sizeof *numbers);
    }
}

static ls_status remember_states(before *b, ls_optimizer *optimizer, ls_grad_scaler *scaler) {
    const ls_named *tensors;
    int count;
    LS_TRY(ls_optimizer_state(optimizer, &tensors, &count));
    LS_TRY(ls_copies_add(&b->optimizer, "", tensors, count));
    if (scaler == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_grad_scaler_state(scaler, &tensors, &count));
    return ls_copies_add(&b->scaler, "", tensors, count);
}

static ls_status remember(before *b, ls_trial *trial) {
    const ls_trial_state *state = &trial->state;
    *b = (before){.state = *state,
                  .callbacks = trial->callbacks,
                  .callback_count = trial->options.callback_count,
                  .outer = trial->options.outer,
                  .random = ls_random_get_state()};
    ls_loader_position(trial->options.train, &b->epoch, &b->batch);
    LS_TRY(ls_snapshot_make(maker, &b->model, state->model, false));
    LS_TRY(remember_states(b, state->optimizer, trial->options.grad_scaler));
    LS_TRY(remember_powersgd(b, state->model));
    return ls_metrics_push(trial);
}

static ls_status put_back(const before *b, ls_trial *trial) {
    ls_metrics_pop(trial);
    trial->callbacks = b->callbacks;
    trial->options.callback_count = b->callback_count;
    trial->options.outer = b->outer;
    ls_trial_forget_capture(trial); /* the captured step of the test lacks the callbacks */
    trial->state = b->state;
    ls_random_set_state(b->random);
    ls_optimizer_zero_grad(b->state.optimizer);
    put_powersgd_back(b, b->state.model);
    LS_TRY(ls_snapshot_put(maker, &b->model));
    LS_TRY(ls_optimizer_set_state(b->state.optimizer, b->optimizer.items, b->optimizer.count));
    if (trial->options.grad_scaler != NULL) {
        LS_TRY(ls_grad_scaler_set_state(trial->options.grad_scaler, b->scaler.items, b->scaler.count));
    }
    return ls_loader_seek(trial->options.train, b->epoch, b->batch);
}

static void forget(before *b) {
    ls_snapshot_forget(&b->model);
    ls_copies_free(&b->optimizer);
    ls_copies_free(&b->scaler);
    ls_free(b->powersgd);
}

/* ---- the sweep --------------------------------------------------------------------------------------------------- */

/* Frozen groups stay frozen. */
static ls_status set_rates(ls_optimizer *optimizer, double rate) {
    for (int i = 0; i < ls_optimizer_group_count(optimizer); i++) {
        if (ls_optimizer_learning_rate(optimizer, i) > 0) {
            LS_TRY(ls_optimizer_set_learning_rate(optimizer, i, rate));
        }
    }
    return LS_OK;
}

/* Fails if the test would train nothing. In a pipeline, the groups of some ranks may be frozen. */
static ls_status check_rates(const ls_trial_state *state) {
    uint8_t any = 0;
    for (int i = 0; i < ls_optimizer_group_count(state->optimizer); i++) {
        any = any || ls_optimizer_learning_rate(state->optimizer, i) > 0;
    }
    if (ls_comm_size(state->comm) > 1) {
        LS_TRY(ls_comm_allreduce(state->comm, &any, &any, 1, LS_U8, LS_MAX, NULL));
    }
    return any != 0 ? LS_OK
                    : ls_fail(LS_ERR_STATE,
                              "%s: all learning rates are 0, so the test would train nothing: set a rate, or let the "
                              "warm-up of the schedule start above 0",
                              maker);
}

/* The only hook of the test. Corrects the bias of the average as in Adam, because the average starts at 0. */
static ls_status on_step(ls_trial_state *state, void *user) {
    rate_finder *self = user;
    const double keep = self->options.smoothing;
    const int64_t i = self->count++;
    LS_TRY(ls_callback_batch_loss(state, &self->losses[i]));
    const double past = i > 0 ? self->smooth[i - 1] * (1 - pow(keep, (double)i)) : 0;
    self->smooth[i] = (keep * past + (1 - keep) * self->losses[i]) / (1 - pow(keep, (double)i + 1));
    self->best = i == 0 || self->smooth[i] < self->best ? self->smooth[i] : self->best;
    return LS_OK;
}

/* A loss may be negative, for example a negative log-likelihood. */
static bool has_diverged(const rate_finder *self) {
    const double last = self->smooth[self->count - 1];
    return !isfinite(last) || last - self->best > (self->options.divergence - 1) * fabs(self->best);
}

/* A user step may accumulate gradients over the batches of an epoch. */
static void count_batch(ls_trial_state *state) {
    state->batch++;
    if (state->batch == state->batches) {
        state->batch = 0;
    }
}

/* Without outer steps, which would change the state of the outer optimizer: each replica then trains alone. */
static ls_status sweep(rate_finder *self, ls_trial *trial) {
    ls_trial_forget_capture(trial);
    trial->options.outer = NULL;
    trial->callbacks = &self->recorder;
    trial->options.callback_count = 1;
    ls_trial_enter(trial, LS_PHASE_TRAINING, trial->options.train);
    ls_trial_expect(trial, LS_PHASE_TRAINING, trial->options.train, trial->options.train_steps);
    ls_metrics_begin(trial, NULL, false);
    for (self->count = 0; self->count < self->options.steps;) {
        ls_batch batch;
        LS_TRY(set_rates(trial->state.optimizer, rate_at(self, self->count)));
        LS_TRY(ls_trial_next_batch(maker, trial, &batch));
        LS_TRY(ls_trial_step(trial, &batch, ls_trial_training_step));
        count_batch(&trial->state);
        if (has_diverged(self)) {
            break;
        }
    }
    return LS_OK;
}

/*
 * Finds the steepest descent of the smoothed loss by central differences, because the rates are equally spaced on a
 * logarithmic scale. Skips the first 10 percent, where the average covers few values.
 */
static void suggest(rate_finder *self) {
    double steepest = 0;
    self->suggestion = NAN;
    for (int64_t i = 1 + self->count / 10; i + 1 < self->count; i++) {
        const double slope = (self->smooth[i + 1] - self->smooth[i - 1]) / 2;
        if (slope < steepest) {
            steepest = slope;
            self->suggestion = rate_at(self, i);
        }
    }
}

static ls_status on_init(ls_trial_state *state, void *user) {
    (void)user;
    LS_TRY(ls_callback_needs_parameters(state, maker, ""));
    return state->optimizer != NULL && state->trial->options.train != NULL
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the trial needs an optimizer and a training loader", maker);
}

/* Returns the first error, even if the restoration fails too. */
static ls_status sweep_and_put_back(rate_finder *self, ls_trial *trial) {
    before b = {.epoch = 0};
    ls_status status = remember(&b, trial);
    if (status == LS_OK) {
        ls_saved_error first = {.status = LS_OK};
        const bool off = ls_no_grad(false);
        ls_error_save_first(&first, sweep(self, trial));
        (void)ls_no_grad(off);
        ls_error_save_first(&first, put_back(&b, trial));
        status = ls_error_put_back_first(&first);
    }
    forget(&b);
    return status;
}

static ls_status on_start(ls_trial_state *state, void *user) {
    rate_finder *self = user;
    ls_trial *trial = state->trial;
    const bool first = ls_callback_in_real_run(state) && trial->epochs_run == 0;
    if (!first || state->step > 0 || self->done) {
        return LS_OK;
    }
    LS_TRY(check_rates(state));
    LS_TRY(sweep_and_put_back(self, trial));
    self->done = 1;
    suggest(self);
    return self->options.apply && !isnan(self->suggestion) ? set_rates(state->optimizer, self->suggestion) : LS_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static ls_status list(void *user, ls_state_list *list) {
    return ls_callback_list_count(list, "done", &((rate_finder *)user)->done);
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_callback_state(user, list, &((rate_finder *)user)->listed, tensors, count);
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    return ls_callback_set_state(maker, user, list, tensors, count);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_rate_finder_options, lowest),
                                      LS_FIELD(ls_rate_finder_options, highest),
                                      LS_FIELD(ls_rate_finder_options, steps),
                                      LS_FIELD(ls_rate_finder_options, smoothing),
                                      LS_FIELD(ls_rate_finder_options, divergence),
                                      LS_FIELD(ls_rate_finder_options, apply),
                                      {.name = NULL}};
    ls_describe(text, size, maker, fields, &((const rate_finder *)user)->options);
}

static void release(void *user) {
    rate_finder *self = user;
    ls_state_forget(&self->listed);
    ls_callback_free(self->recorder);
    ls_free(self->losses);
    ls_free(self->smooth);
    ls_free(self);
}

static ls_status check(const ls_rate_finder_options *o) {
    if (!(o->lowest > 0) || !(o->highest > o->lowest) || !isfinite(o->highest)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: rates from %g to %g: the first must be positive, and the last larger",
                       maker, o->lowest, o->highest);
    }
    if (o->steps < 3 || !(o->divergence > 1)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %lld steps must be 3 or more, and divergence %g above 1", maker,
                       (long long)o->steps, o->divergence);
    }
    return o->smoothing < 1 ? ls_option_within(maker, "smoothing", o->smoothing, 0, 1)
                            : ls_fail(LS_ERR_ARGUMENT, "%s: smoothing %g must be below 1", maker, o->smoothing);
}

ls_callback *ls_rate_finder(const ls_rate_finder_options *options) {
    ls_rate_finder_options o = options != NULL ? *options : (ls_rate_finder_options){.steps = 0};
    o.lowest = ls_option(o.lowest, 1e-7);
    o.highest = ls_option(o.highest, 10);
    o.steps = o.steps != 0 ? o.steps : 100;
    o.smoothing = ls_option(o.smoothing, 0.9);
    o.divergence = ls_option(o.divergence, 4);
    rate_finder *self = check(&o) == LS_OK ? ls_allocate_for(maker, 1, sizeof *self) : NULL;
    if (self == NULL) {
        return NULL;
    }
    self->options = o;
    self->suggestion = NAN;
    self->losses = ls_allocate_zeroed((size_t)o.steps, sizeof *self->losses);
    self->smooth = ls_allocate_zeroed((size_t)o.steps, sizeof *self->smooth);
    self->recorder = ls_callback_make(&(ls_callback_hooks){.on_step_training = on_step, .name = maker}, self);
    if (self->losses == NULL || self->smooth == NULL || self->recorder == NULL) {
        (void)ls_fail_memory(maker, 2 * (size_t)o.steps * sizeof *self->losses);
        release(self);
        return NULL;
    }
    return ls_callback_make(&(ls_callback_hooks){.on_init = on_init,
                                                 .on_start = on_start,
                                                 .name = "rate_finder",
                                                 .describe = describe,
                                                 .state = state,
                                                 .set_state = set_state,
                                                 .release = release},
                            self);
}

double ls_rate_finder_suggestion(const ls_callback *callback) {
    const rate_finder *self = ls_callback_memory(callback, release);
    return self != NULL ? self->suggestion : NAN;
}

int64_t ls_rate_finder_count(const ls_callback *callback) {
    const rate_finder *self = ls_callback_memory(callback, release);
    return self != NULL ? self->count : 0;
}

void ls_rate_finder_point(const ls_callback *callback, int64_t step, double *rate, double *loss) {
    const rate_finder *self = ls_callback_memory(callback, release);
    const bool there = self != NULL && step >= 0 && step < self->count;
    if (rate != NULL) {
        *rate = there ? rate_at(self, step) : NAN;
    }
    if (loss != NULL) {
        *loss = there ? self->losses[step] : NAN;
    }
}
