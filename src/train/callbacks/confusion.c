/* Prints a confusion matrix. */
#include "train/callbacks/callback.h"

#include <math.h>
#include <stdio.h>

#include "base/locale.h"

static const char *const maker = "ls_confusion_printer";

enum { WIDEST = 20 };

typedef struct confusion {
    char metric[LS_METRIC_NAME_LIMIT];
    bool shares;
} confusion;

/* Rows are targets, and columns are predictions. */
static void print_row(const confusion *self, const double *row, int classes, int target) {
    double sum = 0;
    for (int i = 0; i < classes; i++) {
        sum += row[i];
    }
    printf("%8d", target);
    for (int i = 0; i < classes; i++) {
        if (self->shares) {
            ls_fprintf(stdout, " %7.3f", sum > 0 ? row[i] / sum : 0);
        } else {
            printf(" %7.0f", row[i]);
        }
    }
    putchar('\n');
}

static ls_status print_table(const confusion *self, const char *name, const double *counts, int64_t count) {
    const int classes = (int)(sqrt((double)count) + 0.5);
    if (classes > WIDEST) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: a table of %d classes exceeds the limit of %d", maker, classes, WIDEST);
    }
    printf("%s: one row per target class, one column per predicted class\n        ", name);
    for (int i = 0; i < classes; i++) {
        printf(" %7d", i);
    }
    putchar('\n');
    for (int i = 0; i < classes; i++) {
        print_row(self, counts + (size_t)i * (size_t)classes, classes, i);
    }
    return fflush(stdout) == 0 ? LS_OK : ls_fail(LS_ERR_IO, "%s: cannot write to standard output", maker);
}

static ls_status on_start(ls_trial_state *state, void *user) {
    const confusion *self = user;
    return ls_metrics_check_confusion(state->trial, maker, self->metric);
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    const confusion *self = user;
    const ls_trial *trial = state->trial;
    char name[LS_LABEL_LIMIT + LS_METRIC_NAME_LIMIT];
    int64_t count;
    if (ls_callback_in_replay(state) || state->phase == LS_PHASE_PREDICTION) {
        return LS_OK;
    }
    LS_TRY(ls_metrics_check_confusion(trial, maker, self->metric)); /* a condition may have skipped on_start */
    (void)snprintf(name, sizeof name, "%s_%s", state->phase == LS_PHASE_EVALUATION ? trial->progress.label : "val",
                   self->metric);
    const double *counts = ls_trial_metric_values(trial, name, &count);
    if (counts == NULL && trial->progress.samples > 0) {
        return ls_metrics_refuse(trial, maker, name, true);
    }
    return counts != NULL && ls_callback_is_first_rank(state) ? print_table(self, name, counts, count) : LS_OK;
}

ls_callback *ls_confusion_printer(const char *metric, bool shares) {
    confusion self = {.shares = shares};
    if (ls_callback_check_name(maker, metric) != LS_OK) {
        return NULL;
    }
    ls_callback_copy_name(self.metric, metric != NULL ? metric : "confusion");
    return ls_callback_of(maker, &self, sizeof self,
                          &(ls_callback_hooks){.on_start = on_start,
                                               .on_end_validation = on_end_validation,
                                               .name = "confusion_printer",
                                               .describe = ls_callback_describe_nothing,
                                               .release = ls_free});
}
