/*
 * train: trials, callbacks, metrics, history and progress. This header: the fields of a trial, its hooks and its
 * metrics. The other files have headers of their own; each calls only files before it in this list:
 *
 *   history.h, (hooks.c, metrics/), agree.h, progress.h, checkpoint/checkpoint.h, alike.h and setup.h, step.h, pass.h,
 *   evaluate.h, (run.c, predict.c, replay.c)
 */
#ifndef LS_TRAIN_TRIAL_H
#define LS_TRAIN_TRIAL_H

#include <lockstep/parallel.h>
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

/* checkpoint/: writes the checkpoints of a trial with `.checkpoint`. */
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

struct ls_callback {
    ls_callback_hooks hooks; /* hooks.name is NULL, or points to `name` */
    void *user;
    bool built_in;                   /* the library made it */
    bool owned;                      /* by a trial or another callback */
    struct ls_callback_copy *copies; /* of arrays: ls_callback_array */
    char name[];
};

struct ls_trial {
    ls_trial_options options;
    ls_callback *const *callbacks; /* the callbacks to call: the trial's own, or a replay's */
    ls_callback **own_callbacks;
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
    ls_checkpointer *checkpointer;      /* NULL: there is none */
    char failed_in[LS_FAILED_IN_LIMIT]; /* "the hook on_end of callback 0: ", where that failed; for other ranks */
    ls_progress progress;
    ls_progress run_progress; /* of all epochs of a run, where options.bar_per_run */
    /* Throughput: time and samples of the training steps after the warm-up (pass.c); of all steps while there are no
     * more. */
    uint64_t training_ns;
    int64_t training_samples;
};

/* callbacks/make.c: makes a callback of the library, as ls_callback_new. */
ls_callback *ls_callback_make(const ls_callback_hooks *hooks, void *user);
/* Fails if there are fewer than 0 callbacks, or no array of them. */
ls_status ls_callbacks_check_list(const char *call, ls_callback *const *callbacks, int count);
/* Takes ownership of the callbacks. Returns a copy of the array, for ls_callbacks_free. Returns NULL if an element is
 * NULL, has an owner, or is in the array twice; the callbacks without an owner are freed then. */
ls_callback **ls_callbacks_take(const char *call, ls_callback *const *callbacks, int count);
void ls_callbacks_free(ls_callback **callbacks, int count);

/* hooks.c: a callback's name, or "callback N". */
const char *ls_trial_callback_name(const ls_callback *callback, int i, char number[24]);

/* Returns the hook at this offset in ls_callback_hooks; NULL if the callback does not have it. */
static inline ls_callback_function ls_callback_hook(const ls_callback *callback, size_t offset) {
    return *(const ls_callback_function *)(const void *)((const char *)&callback->hooks + offset);
}

/* Calls one hook, given by its offset in ls_callback_hooks and its name, of every callback that has it. */
ls_status ls_trial_call_hooks(ls_trial *trial, size_t hook, const char *name);
#define LS_CALL(trial, hook) ls_trial_call_hooks((trial), offsetof(ls_callback_hooks, hook), #hook)
/* What was the user's, a hook, say, and says nothing, must not be heard with the words of an older error. */
ls_status ls_trial_fail_in(ls_trial *trial, ls_status status, bool says_why, const char *what);

/* Returns what the present loss divides by on this rank, if that is not the number of samples (loss_divisor.h); else
 * NULL. 0: no target counts, and the loss is NaN. Borrowed until the step ends. */
static inline ls_tensor *ls_trial_loss_divisor(const ls_trial *trial) {
    return trial->divisor.least;
}

/* metrics/: makes trial->metrics from the options. The trial borrows custom metrics until ls_metrics_take. */
ls_status ls_metrics_find(ls_trial *trial);
void ls_metrics_take(ls_trial *trial);
/* Frees the metrics that no trial has taken. `metrics` and its elements may be NULL. */
void ls_metrics_drop(ls_metric *const *metrics, int count);
void ls_metrics_free(ls_trial *trial);
/* Begins a pass whose results have the prefix, or NULL if there are none. A pass that continues has its numbers from
 * ls_metrics_set_state. */
void ls_metrics_begin(ls_trial *trial, const char *prefix, bool continues);
/* Adds the batch in trial->state, on every rank, also if its share is empty. */
ls_status ls_metrics_add(ls_trial *trial);
/* Adds the time that the loader took for the next batch. */
void ls_metrics_waited(ls_trial *trial, uint64_t nanoseconds);
/* Ends the pass: merges the numbers of all ranks, and stores the results in trial->latest and, unless it is NULL, in
 * `entry`. Collective. */
ls_status ls_metrics_end(ls_trial *trial, ls_history_entry *entry);
/* Puts the numbers of an interrupted pass aside; and restores them. */
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
/* Of the metrics with one value in this pass: the name of number `index`, NULL if there are no more, and its value so
 * far, of this rank's samples, for the progress line. NAN before the first batch. */
const char *ls_metrics_name(const ls_trial *trial, int index);
double ls_metrics_so_far(const ls_trial *trial, int index);
/* Lists the numbers of this rank in the pass that is under way, one tensor of f64 for each metric, for checkpoints. The
 * tensors are borrowed until the metrics are used again. The second call restores the numbers in a trial that resumes;
 * it fails with LS_ERR_FORMAT, and changes nothing, if names or sizes do not fit these metrics. */
ls_status ls_metrics_state(ls_trial *trial, const ls_named **tensors, int *count);
ls_status ls_metrics_set_state(ls_trial *trial, const ls_named *tensors, int count);
/* Adds the numbers of another rank to those of this rank, if there are fewer ranks now. With `nothing`, begins like a
 * rank whose shares of all batches were empty, if this rank is new. */
ls_status ls_metrics_add_state(ls_trial *trial, const ls_named *tensors, int count, bool nothing);

#endif
