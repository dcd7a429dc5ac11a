/* Prints plain lines to standard output. */
#include "train/callbacks/callback.h"

#include <math.h>
#include <stdio.h>

#include "base/locale.h"
#include "parallel/slices.h"

static const char *const maker = "ls_console";

typedef struct console {
    int digits;
    bool per_batch;
} console;

static void print_head(const ls_trial_state *state, char kind) {
    printf("%lld/%lld(%c):", (long long)state->epoch, (long long)state->epochs, kind);
}

static void print_value(const console *self, bool *first, const char *name, double value) {
    ls_fprintf(stdout, "%s %s=%.*g", *first ? "" : ",", name, self->digits, value);
    *first = false;
}

static ls_status end_line(void) {
    putchar('\n');
    return fflush(stdout) == 0 ? LS_OK : ls_fail(LS_ERR_IO, "%s: cannot write to standard output", maker);
}

static char kind_of(const ls_trial_state *state, bool training) {
    return training ? 't' : state->phase == LS_PHASE_EVALUATION ? 'e' : 'v';
}

static ls_status print_batch(const console *self, const ls_trial_state *state, bool training) {
    const char *name;
    bool first = true;
    if (!self->per_batch || !ls_callback_is_first_rank(state) || ls_callback_in_replay(state) ||
        state->phase == LS_PHASE_PREDICTION) {
        return LS_OK;
    }
    print_head(state, kind_of(state, training));
    printf(" %lld", (long long)state->batch + 1);
    if (state->batches >= 0) {
        printf("/%lld", (long long)state->batches);
    }
    for (int i = 0; (name = ls_metrics_name(state->trial, i)) != NULL; i++) {
        const double value = ls_metrics_so_far(state->trial, i);
        if (!isnan(value)) {
            print_value(self, &first, name, value);
        }
    }
    return end_line();
}

/* Prints the results of the pass: the metrics whose names have the prefix of the pass. */
static ls_status print_pass(const console *self, const ls_trial_state *state, bool training) {
    const char *name;
    bool first = true;
    if (!ls_callback_is_first_rank(state) || state->phase == LS_PHASE_PREDICTION) {
        return LS_OK;
    }
    print_head(state, kind_of(state, training));
    for (int i = 0; (name = ls_metrics_name(state->trial, i)) != NULL; i++) {
        char full[LS_LABEL_LIMIT + LS_METRIC_NAME_LIMIT];
        const bool evaluation = state->phase == LS_PHASE_EVALUATION;
        snprintf(full, sizeof full, "%s%s%s",
                 evaluation ? state->trial->progress.label
                 : training ? ""
                            : "val",
                 training ? "" : "_", name);
        const double *value = ls_history_find(&state->trial->latest, full);
        if (value != NULL) { /* some metrics are not computed in every pass */
            print_value(self, &first, full, *value);
        }
    }
    return end_line();
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    return print_batch(user, state, true);
}

static ls_status on_end_training(ls_trial_state *state, void *user) {
    return print_pass(user, state, true);
}

/* With `.shards`, this hook is called once for each slice of the batch. */
static ls_status on_step_validation(ls_trial_state *state, void *user) {
    const ls_slices *slices = ls_data_parallel_slices(state->model);
    const bool whole = slices == NULL || slices->running + 1 == slices->count;
    return whole ? print_batch(user, state, false) : LS_OK;
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    return print_pass(user, state, false);
}

ls_callback *ls_console(const ls_console_options *options) {
    console self = {.digits = options != NULL ? options->digits : 0,
                    .per_batch = options != NULL && options->per_batch};
    if (self.digits < 0 || self.digits > 17) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: digits is %d, but must be from 1 to 17, or 0 for the default, 4",
                            maker, self.digits);
    }
    self.digits = self.digits > 0 ? self.digits : 4;
    return ls_callback_of(maker, &self, sizeof self,
                          &(ls_callback_hooks){.on_step_training = on_step_training,
                                               .on_end_training = on_end_training,
                                               .on_step_validation = on_step_validation,
                                               .on_end_validation = on_end_validation,
                                               .name = "console",
                                               .describe = ls_callback_describe_nothing,
                                               .release = ls_free});
}
