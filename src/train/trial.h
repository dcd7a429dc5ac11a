/*
 * train: trials, callbacks, metrics, history and progress. This header has the fields of a trial, its hooks and its
 * metrics. The other files have their own headers. Each file calls only files before it in this list:
 *
 *   history.h, (hooks.c, metrics/), agree.h, progress.h, replicas.h, checkpoint/checkpoint.h, alike.h, setup.h and
 *   budget.h, step.h, pass.h, evaluate.h, (run.c, predict.c, replay.c)
 */
#ifndef LS_TRAIN_TRIAL_H
#define LS_TRAIN_TRIAL_H

#include <lockstep/parallel.h>
#include <lockstep/train.h>

#include "autograd/loss_divisor.h"
#include "base/status.h"
#include "tensor/account.h"
#include "tensor/device.h"
#include "train/history.h"

#define LS_FAILED_IN_LIMIT 96
#define LS_LABEL_LIMIT     64

/* The state of a progress line. */
typedef struct ls_progress {
    bool shown;    /* this rank shows progress */
    bool terminal; /* redrawn in place; otherwise one line at the end */
    char label[LS_LABEL_LIMIT];
    uint64_t began;
    int64_t first;   /* first batch since then */
    int64_t samples; /* samples of all ranks since then */
    uint64_t drawn;
} ls_progress;

/* predict.c: the collected outputs. */
typedef struct ls_prediction ls_prediction;

/*
 * The request of a rank between two steps, and its progress with writing a checkpoint. After an agreement, the largest
 * values of all ranks.
 */
enum { LS_ASKS_NOTHING = 0, LS_ASKS_TO_SAVE, LS_ASKS_TO_PAUSE /* plus the signal */ };
typedef struct ls_ballot {
    int64_t asks;
    int64_t writing;
} ls_ballot;

/* checkpoint/: writes the checkpoints of a trial with `.checkpoint`. */
typedef struct ls_checkpointer ls_checkpointer;

/* setup.c: the watch for ranks that train separate models. */
typedef struct ls_watch {
    bool user_hooks; /* some rank has callbacks of the program */
    bool user_step;  /* some rank has a user step */
    bool begun;
    bool model_communicates; /* this rank's forward or backward pass, criterion or user step communicates */
    bool ended;              /* the checks are done */
    uint64_t communication;  /* communication time of the thread at the beginning */
} ls_watch;

struct ls_callback {
    ls_callback_hooks hooks; /* hooks.name is NULL, or points to `name` */
    void *user;
    bool built_in;                   /* made by the library */
    bool owned;                      /* owned by a trial or another callback */
    struct ls_callback_copy *copies; /* arrays of ls_callback_array that this callback owns */
    char name[];
};

/* Bytes of a callback's name. */
#define LS_CALLBACK_NAME_LIMIT 80

struct ls_trial {
    ls_trial_options options;
    ls_callback *const *callbacks; /* the callbacks to call: of the trial, or of a replay */
    ls_callback **own_callbacks;
    struct ls_metrics *metrics;
    ls_trial_state state;
    const ls_device *device; /* device to which batches are moved; NULL: none */
    ls_comm *comm;           /* state.comm, with a reference */
    const ls_batch *batch;   /* of the present step; borrowed */
    ls_status slice_status;  /* of the first slice of this rank that has failed in the present step */
    ls_loss_divisor divisor; /* divisor of the loss in the state */
    ls_history_entry latest; /* last value of every metric */
    ls_history history;
    int64_t epochs_run;
    bool running;           /* in ls_trial_run */
    ls_memory_watch memory; /* the peak of tensor memory in the present run */
    bool memory_checked;    /* the run's first step with samples was compared with `.memory_limit` */
    bool continues; /* the next training pass continues within an epoch, from state.batch and the existing sums */
    bool stopped;   /* the checkpoint records that a hook stopped the run: the next run ends at once */
    bool measuring; /* in ls_trial_evaluate or ls_trial_predict, between runs */
    ls_prediction *prediction; /* NULL outside of ls_trial_predict */
    ls_watch watch;
    bool agrees; /* some rank has callbacks or a user step, so that all ranks agree after each step */
    bool agreed; /* the ranks have agreed on a failure */
    ls_ballot ballot;
    ls_checkpointer *checkpointer;      /* NULL without `.checkpoint` */
    char failed_in[LS_FAILED_IN_LIMIT]; /* "the hook on_end of callback 0: ", the part that failed, for messages on
                                           other ranks */
    ls_progress progress;
    ls_progress run_progress; /* progress of all epochs of a run, with options.bar_per_run */
    /*
     * Throughput: time and samples of the training steps after the warm-up (pass.c), or of all steps during the
     * warm-up.
     */
    uint64_t training_ns;
    int64_t training_samples;
};

/*
 * Sets an error if a function of the program failed without a message. `errors` is ls_error_count from before the call.
 */
static inline ls_status ls_explain(ls_status status, uint32_t errors, const char *kind, const char *name) {
    return status == LS_OK || ls_error_count != errors
               ? status
               : ls_fail(status, "ls_trial: the %s \"%s\" failed with %s", kind, name, ls_status_name(status));
}

/* Returns the rank of this process, or the number of ranks: 0 and 1 without a communicator. */
static inline int ls_trial_rank(const ls_trial_state *state) {
    return state->comm != NULL ? ls_comm_rank(state->comm) : 0;
}

static inline int ls_trial_size(const ls_trial_state *state) {
    return state->comm != NULL ? ls_comm_size(state->comm) : 1;
}

/* callbacks/make.c: makes a callback of the library, like ls_callback_new. */
ls_callback *ls_callback_make(const ls_callback_hooks *hooks, void *user);
/* Fails if the number of callbacks is negative, or if the array is missing. */
ls_status ls_callbacks_check_list(const char *call, ls_callback *const *callbacks, int count);
/*
 * Takes ownership of the callbacks. Returns a copy of the array, for ls_callbacks_free. Returns NULL if an element is
 * NULL, has an owner, or is in the array twice; frees the callbacks without an owner then.
 */
ls_callback **ls_callbacks_take(const char *call, ls_callback *const *callbacks, int count);
void ls_callbacks_free(ls_callback **callbacks, int count);

/* hooks.c: returns a callback's name, or "callback N". */
const char *ls_trial_callback_name(const ls_callback *callback, int i, char number[24]);

/* Returns the hook at this offset in ls_callback_hooks. Returns NULL if the callback does not have the hook. */
static inline ls_callback_function ls_callback_hook(const ls_callback *callback, size_t offset) {
    return *(const ls_callback_function *)(const void *)((const char *)&callback->hooks + offset);
}

/* Calls one hook of every callback that has it. `hook` is the offset in ls_callback_hooks, `name` the name. */
ls_status ls_trial_call_hooks(ls_trial *trial, size_t hook, const char *name);
#define LS_CALL(trial, hook) ls_trial_call_hooks((trial), offsetof(ls_callback_hooks, hook), #hook)
/*
 * Sets the error of code of the program, such as a hook. If the code did not set a message (`says_why` is false), an
 * older message must not appear as its reason.
 */
ls_status ls_trial_fail_in(ls_trial *trial, ls_status status, bool says_why, const char *what);

/*
 * Returns the divisor of the present loss on this rank (loss_divisor.h), or NULL if the loss is a mean over samples.
 * Value 0: no target counts, and the loss is NaN. Borrowed until the step ends.
 */
static inline ls_tensor *ls_trial_loss_divisor(const ls_trial *trial) {
    return trial->divisor.least;
}

/* metrics/: makes trial->metrics from the options. The trial borrows custom metrics until ls_metrics_take. */
ls_status ls_metrics_find(ls_trial *trial);
void ls_metrics_take(ls_trial *trial);
/* Frees the metrics that have no owner. `metrics` and its elements may be NULL. */
void ls_metrics_drop(ls_metric *const *metrics, int count);
void ls_metrics_free(ls_trial *trial);
/*
 * Begins a pass whose results have the prefix; NULL: no results. If the pass continues, its numbers come from
 * ls_metrics_set_state.
 */
void ls_metrics_begin(ls_trial *trial, const char *prefix, bool continues);
/*
 * ls_metrics_enter selects the numbers of a slice of this rank (parallel/slices.h) for the following calls, and returns
 * the numbers that it replaces, for ls_metrics_leave.
 */
struct ls_metric_set *ls_metrics_enter(ls_trial *trial, int slice);
void ls_metrics_leave(ls_trial *trial, struct ls_metric_set *whole);
/* Adds the batch in trial->state, on every rank, also if its share is empty. */
ls_status ls_metrics_add(ls_trial *trial);
/* Adds the time that the loader took for the next batch. */
void ls_metrics_waited(ls_trial *trial, uint64_t nanoseconds);
/*
 * Ends the pass: merges the numbers of all ranks, and stores the results in trial->latest and in `entry`, which may be
 * NULL. Collective.
 */
ls_status ls_metrics_end(ls_trial *trial, ls_history_entry *entry);
/* ls_metrics_push saves the numbers of an interrupted pass. ls_metrics_pop restores them. */
ls_status ls_metrics_push(ls_trial *trial);
void ls_metrics_pop(ls_trial *trial);
/* Writes metric number `index` with its options into `text`. Returns false if there is no such metric. */
bool ls_metrics_describe(const ls_trial *trial, int index, char *text, size_t size);
/* Returns whether a metric has this name. */
bool ls_metrics_has(const ls_trial *trial, const char *name);
/*
 * Fails with LS_ERR_ARGUMENT and the names of the available results: "CALL: there is no metric "NAME"; available:
 * loss". With `several`, also lists results that have several numbers.
 */
ls_status ls_metrics_refuse(const ls_trial *trial, const char *call, const char *name, bool several);
/*
 * Does the same before the first epoch, if a run will not have a result of that name. Succeeds if hooks or the user
 * step may add it (ls_trial_evaluate).
 */
ls_status ls_metrics_check_result(const ls_trial *trial, const char *call, const char *name);
/* Fails in the same way if the trial does not measure the metric. `name` has no prefix. */
ls_status ls_metrics_check_measured(const ls_trial *trial, const char *call, const char *name);
/* Returns the length of the longest metric's name. */
size_t ls_metrics_longest(const ls_trial *trial);
/*
 * ls_metrics_name returns the name of metric number `index`, counted over the metrics with one value in this pass; NULL
 * after the last. ls_metrics_so_far returns its value over this rank's samples so far, for the progress line; NAN
 * before the first batch.
 */
const char *ls_metrics_name(const ls_trial *trial, int index);
double ls_metrics_so_far(const ls_trial *trial, int index);
/*
 * ls_metrics_state lists the numbers of this rank in the current pass, one f64 tensor for each metric, for checkpoints.
 * Returns borrowed pointers, valid until the metrics are used again. ls_metrics_set_state restores the numbers in a
 * trial that resumes. If names or sizes do not fit, it fails with LS_ERR_FORMAT and changes nothing.
 */
ls_status ls_metrics_state(ls_trial *trial, const ls_named **tensors, int *count);
ls_status ls_metrics_set_state(ls_trial *trial, const ls_named *tensors, int count);
/*
 * Adds the numbers of another rank to the numbers of this rank, if there are fewer ranks now. With `nothing`, begins
 * like a rank whose shares of all batches were empty, for a new rank.
 */
ls_status ls_metrics_add_state(ls_trial *trial, const ls_named *tensors, int count, bool nothing);

#endif
