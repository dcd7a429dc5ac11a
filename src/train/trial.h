/*
 * train: trials, callbacks, metrics, history and progress. This header: what a trial is inside.
 */
#ifndef LS_TRAIN_TRIAL_H
#define LS_TRAIN_TRIAL_H

#include <lockstep/parallel.h>
#include <lockstep/train.h>

#include "autograd/loss_divisor.h"
#include "base/status.h"
#include "tensor/device.h"

#define LS_METRIC_LIMIT      32
#define LS_METRIC_NAME_LIMIT 64
#define LS_FAILED_IN_LIMIT   96
#define LS_LABEL_LIMIT       64
#define LS_RESULT_LIMIT      (4 * LS_METRIC_LIMIT) /* training, validation and two more labels with every metric */

/* A named result; the name has its prefix: "val_loss". */
typedef struct ls_metric_value {
    char name[LS_METRIC_NAME_LIMIT];
    double value;
} ls_metric_value;

/* The results of one epoch, with room for all that can be measured. */
typedef struct ls_history_entry {
    ls_metric_value values[LS_RESULT_LIMIT];
    int count;
    int64_t train_steps; /* batches of its training */
    int64_t validate_steps;
} ls_history_entry;

/* The results of all epochs, with room for what was measured only. Epochs with the same names share the names. */
typedef struct ls_history_epoch {
    int64_t train_steps;
    int64_t validate_steps;
    size_t names; /* the offset of its first name */
    size_t first; /* the number of its first value */
    int count;    /* of names and values */
} ls_history_epoch;

typedef struct ls_history {
    ls_history_epoch *epochs;
    int64_t count;
    double *values;
    size_t value_count;
    char *names; /* each ends with a zero byte */
    size_t names_size;
    size_t epoch_room, value_room, names_room; /* allocated */
} ls_history;

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
    /* Throughput: time and samples of the training steps after the first LS_WARM_UP_STEPS; of all while there are no
     * more. */
    uint64_t training_ns;
    int64_t training_samples;
};

#define LS_WARM_UP_STEPS 10

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

/* step.c: one step, in a scope of its own, on the batch that was taken. */
void ls_trial_take_batch(ls_trial *trial, const ls_batch *batch);
ls_status ls_trial_in_scope(ls_trial *trial, ls_status (*step)(ls_trial *trial));
ls_status ls_trial_training_step(ls_trial *trial);
ls_status ls_trial_validation_step(ls_trial *trial);
ls_status ls_trial_prediction_step(ls_trial *trial);
/* What the present loss divides by on this rank, if that is not the number of samples (loss_divisor.h). 0: no target
 * counts, and the loss is NaN. NULL otherwise; borrowed until the step ends. */
ls_tensor *ls_trial_loss_divisor(const ls_trial *trial);

/* pass.c: one pass over a loader. */
typedef struct ls_trial_pass {
    ls_loader *loader;
    ls_trial_phase phase;
    int64_t steps; /* batches; 0: what is left of the loader's epoch */
    ls_status (*step)(ls_trial *trial);
    const char *label;       /* on the progress line */
    const char *prefix;      /* of the results' names; NULL: there are none */
    ls_history_entry *entry; /* they are put there, too */
} ls_trial_pass;
ls_status ls_trial_train_pass(ls_trial *trial, const ls_trial_pass *pass);
/* Of epoch 0. Training goes on from where its loader stood, if it is that one. */
ls_status ls_trial_measure_pass(ls_trial *trial, const ls_trial_pass *pass);
void ls_trial_enter(ls_trial *trial, ls_trial_phase phase, ls_loader *loader);

/* run.c: whether the run is over, be it in the midst of an epoch. */
bool ls_trial_has_ended(const ls_trial *trial);

/* evaluate.c: a pass of measuring, with hooks, or, where a hook asks for it, without; the trial is then as it was. */
ls_status ls_trial_evaluation_pass(ls_trial *trial, const ls_trial_pass *pass);

/* predict.c: keeps the outputs of the batch. */
ls_status ls_prediction_add(ls_trial *trial);

/* agree.c: learns whether any rank has callbacks or a step of its own. Collective, as the next. */
ls_status ls_trial_begin_agreeing(ls_trial *trial);
/* setup.c: returns an error if the trial would train nothing. */
ls_status ls_trial_check_setup(const ls_trial *trial);
/* Watches a trial from its first step on, at most to the end of its first epoch. ls_trial_watch_step (after a training
 * step) and ls_trial_watch_epoch (after an epoch) log a warning, once in a trial, if the ranks train apart; both are
 * collective. ls_trial_watch_end ends the watch with the run. */
void ls_trial_watch_begin(ls_trial *trial);
ls_status ls_trial_watch_step(ls_trial *trial, const ls_batch *batch);
ls_status ls_trial_watch_epoch(ls_trial *trial);
void ls_trial_watch_end(ls_trial *trial);

/* run.c: returns LS_ERR_MISMATCH if the ranks of a data-parallel model have different parameters. Collective. */
ls_status ls_trial_check_replicas(const ls_trial *trial);

/* alike.c: LS_ERR_MISMATCH where ranks have different loaders, checkpoints, optimizers, metrics or callbacks.
 * Collective. */
ls_status ls_trial_check_alike(const ls_trial *trial);
/* agree.c: tells the other ranks the `status` of this rank: all go on or stop alike, or fail with the status
 * and the message of the rank that failed. A rank that has not failed takes part where `agrees` says so. */
ls_status ls_trial_agree(ls_trial *trial, ls_status status);

/* The same where a run or an evaluation ends, in which all ranks always take part: one may fail after its last call. */
ls_status ls_trial_agree_at_end(ls_trial *trial, ls_status status);

/* checkpoint/: where a run begins, where it ends well (waits for what is being written), and where it ends anyhow. */
ls_status ls_checkpoints_begin(ls_trial *trial);
ls_status ls_checkpoints_finish(ls_trial *trial);
void ls_checkpoints_end(ls_trial *trial);
/* Between two steps, and at the end of an epoch, when all hooks have run: ranks agree on going on, and write
 * checkpoints where they are due. LS_ERR_STOPPED where a signal has asked for room. */
ls_status ls_trial_end_of_step(ls_trial *trial, bool epoch);
/* Puts the trial where the newest checkpoint in the folder is; where there is none it stays, or fails if one is needed.
 * Collective. */
ls_status ls_trial_go_on_from(ls_trial *trial, const char *folder, bool needed);
/* Makes the checkpointer of a trial. Copies the options. Returns NULL on failure. */
ls_checkpointer *ls_checkpointer_new(const ls_checkpoint_options *options);
void ls_checkpointer_free(ls_checkpointer *checkpointer);
/* Writes its options, which must be the same on all ranks, into `text`. */
void ls_checkpointer_describe(const ls_checkpointer *checkpointer, char *text, size_t size);

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

/* Stores a value under its name, replacing an older one. Fails when there are too many names. */
ls_status ls_history_put(ls_history_entry *entry, const char *name, double value);
double ls_history_get(const ls_history_entry *entry, const char *name);
/* The value, lent; NULL when there is none. */
const double *ls_history_find(const ls_history_entry *entry, const char *name);

/* Appends an epoch with these results, or adds them to the last epoch, if there is one. On failure the history is as it
 * was. */
ls_status ls_history_append(ls_history *history, const ls_history_entry *entry);
ls_status ls_history_extend(ls_history *history, const ls_history_entry *results);
/* The results of an epoch that is there. */
void ls_history_entry_of(const ls_history *history, int64_t epoch, ls_history_entry *entry);
/* Room for so many epochs and values in all, so that appending them allocates no more than names. */
ls_status ls_history_reserve(ls_history *history, size_t epochs, size_t values);
ls_status ls_history_copy(ls_history *to, const ls_history *from);
void ls_history_free(ls_history *history);

/* Progress of a run of which one bar is shown, and of a pass over a loader: "0/3(t)" for training, "0/3(v)" for
 * validation. */
void ls_progress_begin_run(ls_trial *trial);
void ls_progress_epoch(ls_trial *trial);
void ls_progress_end_run(ls_trial *trial);
void ls_progress_begin(ls_trial *trial, const char *label);
void ls_progress_step(ls_trial *trial);
void ls_progress_end(ls_trial *trial, const char *prefix);

#endif
