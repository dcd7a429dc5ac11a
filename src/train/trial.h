/*
 * train: trials, callbacks, metrics, history and progress. This header: the fields of a trial, its hooks and its
 * metrics. The other files have headers of their own; each calls only files before it in this list:
 *
 *   history.h, (hooks.c, metrics/), agree.h, progress.h, checkpoint/checkpoint.h, alike.h and setup.h, step.h, pass.h,
 *   evaluate.h, (run.c, predict.c, replay.c)
 */
#ifndef LS_TRAIN_TRIAL_H
#define LS_TRAIN_TRIAL_H

#include <lockstep/train.h>

#include "autograd/loss_divisor.h"
#include "base/status.h"
#include "tensor/device.h"
#include "train/history.h"

#define LS_FAILED_IN_LIMIT 96
#define LS_LABEL_LIMIT     64

/* What stands on the progress line. */
typedef struct ls_progress {
    bool shown;    /* by this rank at all */
    bool terminal; /* redrawn in place, else one line at the end */
    char label[LS_LABEL_LIMIT];
    uint64_t began;
    int64_t first;   /* batch that was to be done then */
    int64_t samples; /* since then, all ranks' */
    uint64_t drawn;
} ls_progress;

/* What predict.c collects. */
typedef struct ls_prediction ls_prediction;

/* What a rank asks for between two steps, and how far it is with writing a checkpoint; behind an agreement the largest
 * of all ranks. */
enum { LS_ASKS_NOTHING = 0, LS_ASKS_TO_SAVE, LS_ASKS_TO_PAUSE /* plus the signal */ };
typedef struct ls_ballot {
    int64_t asks;
    int64_t writing;
} ls_ballot;

/* checkpoint/: what a trial with ls_checkpoint_callback has for it. */
typedef struct ls_checkpointer ls_checkpointer;

/* setup.c: whether ranks train apart. */
typedef struct ls_watch {
    bool own_hooks; /* some rank has callbacks of the program's own */
    bool own_step;  /* some rank has a step of the program's own */
    bool begun;
    bool model_communicates; /* this rank's forward or backward pass, criterion or own step does */
    bool ended;              /* the checks are done */
    uint64_t communication;  /* what the thread's meter showed at the beginning */
} ls_watch;

struct ls_trial {
    ls_trial_options options;
    const ls_callback *callbacks; /* those that are called: its own, or a replay's */
    ls_callback *own_callbacks;
    struct ls_metrics *metrics;
    ls_trial_state state;
    const ls_device *device; /* where batches are brought to; NULL: nowhere */
    ls_comm *comm;           /* held */
    ls_loss_divisor divisor; /* of the loss in the state */
    ls_history_entry latest; /* every metric's last value */
    ls_history history;
    int64_t epochs_run;
    bool running;   /* in ls_trial_run */
    bool continues; /* the next training pass goes on in the midst of an epoch, from state.batch and the sums as they
                       are */
    bool stopped;   /* a hook had stopped the run before the checkpoint that the trial goes on from: the next one ends
                       as that did */
    bool measuring; /* in ls_trial_evaluate or ls_trial_predict, between runs */
    ls_prediction *prediction; /* NULL outside of ls_trial_predict */
    ls_watch watch;
    bool agrees; /* some rank has callbacks or a step of its own, so that all agree on going on */
    bool agreed; /* on a failure */
    ls_ballot ballot;
    ls_checkpointer *checkpointer;      /* lent by its callback; NULL: there is none */
    char failed_in[LS_FAILED_IN_LIMIT]; /* "the hook on_end of callback 0: ", where that failed; for other ranks */
    ls_progress progress;
    ls_progress run_progress; /* of all epochs of a run, where options.bar_per_run */
    /* Throughput: time and samples of the training steps after the warm-up (pass.c); of all steps while there are no
     * more. */
    uint64_t training_ns;
    int64_t training_samples;
};

/* hooks.c: a callback's name, or its number in place of that. */
const char *ls_trial_callback_name(const ls_callback *callback, int i, char number[24]);

/* Calls one hook, given by its place in ls_callback and its name, of every callback that has it. */
ls_status ls_trial_call_hooks(ls_trial *trial, size_t hook, const char *name);
#define LS_CALL(trial, hook) ls_trial_call_hooks((trial), offsetof(ls_callback, hook), #hook)
/* What was the user's, a hook, say, and says nothing, must not be heard with the words of an older error. */
ls_status ls_trial_fail_in(ls_trial *trial, ls_status status, bool says_why, const char *what);

/* Returns what the present loss divides by on this rank, if that is not the number of samples (loss_divisor.h); else
 * NULL. 0: no target counts, and the loss is NaN. Borrowed until the step ends. */
static inline ls_tensor *ls_trial_loss_divisor(const ls_trial *trial) {
    return trial->divisor.least;
}

/* metrics/: makes trial->metrics from the options; the users' own are lent until ls_metrics_take. */
ls_status ls_metrics_find(ls_trial *trial);
void ls_metrics_take(ls_trial *trial);
/* Frees what constructors of metrics made, and users' own, where no trial has taken them. `metrics` may be NULL. */
void ls_metrics_drop(const ls_metric *metrics, int count);
void ls_metrics_free(ls_trial *trial);
/* Begins a pass; adds the batch in trial->state, on every rank, also where its share is empty; and ends it: over all
 * ranks, stored as prefix + name in trial->latest and, unless that is NULL, in `entry`. */
void ls_metrics_begin(ls_trial *trial);
ls_status ls_metrics_add(ls_trial *trial);
/* The loader took so long to make the next batch. */
void ls_metrics_waited(ls_trial *trial, uint64_t nanoseconds);
ls_status ls_metrics_end(ls_trial *trial, const char *prefix, ls_history_entry *entry);
/* The numbers of a pass that another interrupts are kept, and that one has its own; and back. */
ls_status ls_metrics_push(ls_trial *trial);
void ls_metrics_pop(ls_trial *trial);
/* Writes metric number `index` with its options into `text`; false when there are no more. */
bool ls_metrics_describe(const ls_trial *trial, int index, char *text, size_t size);
/* Whether a metric has this name. */
bool ls_metrics_has(const ls_trial *trial, const char *name);
/* LS_ERR_ARGUMENT, with the names of the results that there are: "CALL: there is no metric "NAME"; available: loss".
 * With `several`, also those of several numbers. */
ls_status ls_metrics_refuse(const ls_trial *trial, const char *call, const char *name, bool several);
/* The same before the first epoch, where a run will have no result of that name, unless hooks or a step of the
 * program's own may add it (ls_trial_evaluate). */
ls_status ls_metrics_check_result(const ls_trial *trial, const char *call, const char *name);
/* The length of the longest metric's name. */
size_t ls_metrics_longest(const ls_trial *trial);
/* Of the metrics that have one value in this pass: the name of number `index`, NULL when there are no more; and its
 * value so far, of this rank's samples, NAN where there is none. */
const char *ls_metrics_name(const ls_trial *trial, int index);
double ls_metrics_so_far(const ls_trial *trial, int index);
/* What this rank has counted in the pass that is under way, one tensor of f64 for each metric: what a trial that goes
 * on in the midst of an epoch is given. Lent until the metrics are used again. And back; LS_ERR_FORMAT, and nothing is
 * changed, where names or sizes are not those of these metrics. */
ls_status ls_metrics_state(ls_trial *trial, const ls_named **tensors, int *count);
ls_status ls_metrics_set_state(ls_trial *trial, const ls_named *tensors, int count);
/* The same of a rank that is no more, to what this one has counted; with `nothing`, as if that one had counted as many
 * batches with empty shares: for a rank that is new. */
ls_status ls_metrics_add_state(ls_trial *trial, const ls_named *tensors, int count, bool nothing);

#endif
