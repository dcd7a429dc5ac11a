/* Passes over a loader: training, validation, evaluation and prediction. */
#include "train/pass.h"

#include <math.h>

#include "data/loader.h"
#include "nn/module.h"
#include "train/progress.h"
#include "train/setup.h"

enum { WARM_UP_STEPS = 10 };

bool ls_trial_has_ended(const ls_trial *trial) {
    return trial->state.stop || (trial->options.max_steps > 0 && trial->state.step >= trial->options.max_steps);
}

static bool is_done(const ls_trial *trial, const ls_trial_pass *pass) {
    return (pass->phase == LS_PHASE_TRAINING && ls_trial_has_ended(trial)) ||
           (pass->steps > 0 && trial->state.batch >= pass->steps);
}

/* The throughput is reset at the first step after the warm-up. Shorter training is measured including its warm-up. */
static void measure_step(ls_trial *trial, uint64_t nanoseconds, int64_t samples) {
    if (trial->state.step == WARM_UP_STEPS + 1) {
        trial->training_ns = 0;
        trial->training_samples = 0;
    }
    trial->training_ns += nanoseconds;
    trial->training_samples += samples;
}

ls_status ls_trial_next_batch(const char *call, const ls_trial *trial, ls_batch *batch) {
    ls_loader *loader = trial->options.train;
    bool more;
    LS_TRY(ls_loader_next_on(loader, trial->device, batch, &more));
    if (!more) {
        LS_TRY(ls_loader_next_on(loader, trial->device, batch, &more));
    }
    return more ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: the training loader has no batches", call);
}

static ls_status run_batch(ls_trial *trial, const ls_trial_pass *pass, const ls_batch *batch, uint64_t began) {
    const bool training = pass->phase == LS_PHASE_TRAINING;
    LS_TRY(ls_trial_step(trial, batch, pass->step));
    if (training) {
        measure_step(trial, ls_clock_ns() - began, ls_trial_samples(&trial->state));
    }
    trial->state.batch++;
    ls_progress_step(trial);
    if (!training) {
        return LS_OK;
    }
    LS_TRY(ls_trial_watch_step(trial));
    return ls_trial_end_of_step(trial, false);
}

static ls_status no_batches(const ls_trial_pass *pass) {
    return ls_fail(LS_ERR_ARGUMENT, "ls_trial: .%s_steps is %lld, but the loader has no batches",
                   pass->phase == LS_PHASE_TRAINING     ? "train"
                   : pass->phase == LS_PHASE_VALIDATION ? "validate"
                                                        : "evaluate",
                   (long long)pass->steps);
}

static ls_status run_batches(ls_trial *trial, const ls_trial_pass *pass) {
    /* If a run stopped after the last batch of an epoch, the loader is still at the end of that epoch. */
    bool at_an_end = pass->steps == 0 && trial->state.batch > 0 && !trial->continues;
    int ends = 0;
    trial->continues = false;
    while (!is_done(trial, pass)) {
        ls_batch batch;
        bool more;
        const uint64_t began = ls_clock_ns();
        LS_TRY(ls_loader_next_on(pass->loader, trial->device, &batch, &more));
        ls_metrics_waited(trial, ls_clock_ns() - began);
        if (more) {
            LS_TRY(run_batch(trial, pass, &batch, began));
            at_an_end = false;
            ends = 0;
        } else if (at_an_end) {
            trial->state.batch = 0;
            at_an_end = false;
        } else if (pass->steps == 0) {
            break;
        } else if (++ends > 1) {
            return no_batches(pass);
        }
    }
    return LS_OK;
}

void ls_trial_expect(ls_trial *trial, ls_trial_phase phase, const ls_loader *loader, int64_t steps) {
    ls_trial_state *state = &trial->state;
    state->batches = steps > 0 ? steps : ls_loader_batch_count(loader);
    state->batch = 0;
    if (phase == LS_PHASE_TRAINING && steps == 0) {
        ls_loader_position(loader, NULL, &state->batch);
        state->batch = state->batch != state->batches ? state->batch : 0; /* the next batch is of the next epoch */
    }
}

static void begin(ls_trial *trial, const ls_trial_pass *pass) {
    ls_trial_state *state = &trial->state;
    state->batches = pass->steps > 0 ? pass->steps : ls_loader_batch_count(pass->loader);
    if (!trial->continues) {
        state->batch = 0;
        if (pass->steps == 0) {
            ls_loader_position(pass->loader, NULL, &state->batch);
        }
    }
    ls_metrics_begin(trial, pass->prefix, trial->continues);
    ls_progress_begin(trial, pass->label);
}

/*
 * Logs one warning on rank 0 if the mean training loss is not finite: the run would train nothing from then on. A pass
 * without a batch, because a hook stopped the run, has no loss.
 */
static void check_loss(ls_trial *trial, const ls_trial_pass *pass) {
    const bool has_loss = pass->phase == LS_PHASE_TRAINING && trial->progress.samples > 0;
    const double *loss = has_loss ? ls_history_find(pass->entry, "loss") : NULL;
    if (loss != NULL && !isfinite(*loss) && !trial->watch.loss_reported && ls_trial_rank(&trial->state) == 0) {
        trial->watch.loss_reported = true;
        ls_log_write(LS_LOG_WARNING,
                     "ls_trial_run: the training loss of epoch %lld is %g, so the model may contain NaN: check the "
                     "inputs and the learning rate; the callback ls_terminate_on_nan(NULL) names the first step",
                     (long long)trial->state.epoch, *loss);
    }
}

static ls_status run_pass(ls_trial *trial, const ls_trial_pass *pass) {
    begin(trial, pass);
    const bool before = ls_no_grad(pass->phase != LS_PHASE_TRAINING);
    ls_status status = run_batches(trial, pass);
    ls_no_grad(before);
    if (status == LS_OK && pass->prefix == NULL) {
        return LS_OK;
    }
    status = status == LS_OK ? ls_metrics_end(trial, pass->entry) : status;
    if (status != LS_OK) {
        if (!trial->continues) { /* a run that a signal stopped continues with its numbers */
            ls_metrics_begin(trial, NULL, false);
        }
        return status;
    }
    check_loss(trial, pass);
    ls_progress_end(trial, pass->prefix);
    return LS_OK;
}

/* Skips the rest of the loader's epoch, unless the run ended within the epoch. */
static ls_status skip_rest(const ls_trial *trial, const ls_trial_pass *pass) {
    int64_t epoch, batch;
    ls_loader_position(pass->loader, &epoch, &batch);
    const bool whole = pass->steps > 0 && trial->state.batch >= pass->steps;
    return whole && batch > 0 && !trial->options.endless ? ls_loader_seek(pass->loader, epoch + 1, 0) : LS_OK;
}

ls_status ls_trial_train_pass(ls_trial *trial, const ls_trial_pass *pass) {
    LS_TRY(run_pass(trial, pass));
    return skip_rest(trial, pass);
}

ls_status ls_trial_seek_back(ls_loader *loader, int64_t epoch, int64_t batch, ls_status status) {
    ls_saved_error first = {.status = LS_OK};
    ls_error_save_first(&first, status);
    ls_error_save_first(&first, ls_loader_seek(loader, epoch, batch));
    return ls_error_put_back_first(&first);
}

ls_status ls_trial_measure_pass(ls_trial *trial, const ls_trial_pass *pass) {
    int64_t epoch, batch;
    LS_TRY(ls_module_check_synchronized("ls_trial", trial->state.model));
    ls_loader_position(pass->loader, &epoch, &batch);
    LS_TRY(ls_loader_seek(pass->loader, 0, 0));
    const ls_status status = run_pass(trial, pass);
    if (pass->loader != trial->options.train) {
        return status;
    }
    return ls_trial_seek_back(pass->loader, epoch, batch, status);
}

void ls_trial_enter(ls_trial *trial, ls_trial_phase phase, ls_loader *loader) {
    trial->state.phase = phase;
    trial->state.loader = loader;
}
