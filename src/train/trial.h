/*
 * train: trials, callbacks, metrics, history and progress. This header declares the fields of a trial, its hooks and
 * its metrics. The other files have their own headers. Each file calls only files that precede it in this list:
 *
 *   history.h, (hooks.c, metrics/), agree.h, progress.h, replicas.h, checkpoint/checkpoint.h, alike.h, setup.h and
 *   budget.h, captured.h, step.h, pass.h, (run.c, predict.c, replay.c)
 */
#ifndef LS_TRAIN_TRIAL_H
#define LS_TRAIN_TRIAL_H

#include <lockstep/parallel.h>
#include <lockstep/step.h>
#include <lockstep/train.h>

#include "autograd/loss_divisor.h"
#include "base/freed.h"
#include "base/status.h"
#include "tensor/account.h"
#include "tensor/device.h"
#include "train/history.h"

#define LS_FAILED_IN_LIMIT 96
#define LS_LABEL_LIMIT     64

/* The state of a progress line. */
typedef struct ls_progress {
    bool shown;    /* this rank shows progress */
    bool terminal; /* redrawn in place; otherwise printed once, at the end */
    char label[LS_LABEL_LIMIT];
    uint64_t began;
    int64_t first;   /* first batch since then */
    int64_t samples; /* samples of all ranks since then */
    uint64_t drawn;
} ls_progress;

/* predict.c: the collected outputs. */
typedef struct ls_prediction ls_prediction;

/*
 * What a rank requests between two steps, and how far it is in writing a checkpoint. After an agreement, these are the
 * maximum values over all ranks.
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
    bool user_hooks; /* some rank has callbacks made by the program */
    bool user_step;  /* some rank has a user step */
    bool begun;
    bool model_communicates;   /* this rank's forward or backward pass, criterion or user step communicates */
    bool ended;                /* the checks are done */
    bool loss_reported;        /* a warning has named the epoch whose loss is not finite */
    bool standardize_reported; /* a warning has named a module created by ls_nn_standardize that was never fitted */
    bool hooks_communicate;    /* hooks of the program on this rank communicate */
    int64_t batch;             /* hash of the first global batch; 0 if the loader splits batches */
    uint64_t communication;    /* communication time of the thread at the start */
} ls_watch;

/* captured.c: the captured default step. */
typedef struct ls_trial_capture {
    ls_step *step;      /* NULL if nothing is captured */
    bool stopped;       /* the trial captures no more */
    bool logged_shapes; /* the log says that batches have other shapes */
    int captures;       /* captures since the last replay, because a check failed */
    ls_status (*compute)(struct ls_trial *trial);
    ls_tensor *input, *target;   /* copies of the batch; owned */
    ls_tensor *output, *divisor; /* results of the latest run of the step; owned */
    bool is_sum;                 /* the loss is a sum */
    int64_t count;               /* samples of the captured batch */
    ls_module *model;            /* this and the next three: of the trial when the step was captured */
    ls_optimizer *optimizer;
    ls_criterion criterion;
    void *criterion_user;
} ls_trial_capture;

/*
 * Writes the options of a callback's kind, such as the name of a metric: with other ones, its state has no meaning.
 * With `all`, writes all options. Writes nothing that changes during training. If this is NULL, the kind has no
 * options, and `describe` writes all.
 */
typedef void (*ls_callback_identifier)(void *user, bool all, char *text, size_t size);

/* Sets the states of the callbacks in a group: see ls_callback_set_saved. */
typedef ls_status (*ls_callback_state_setter)(void *user, ls_optimizer *optimizer, const ls_named *tensors, int count);

struct ls_callback {
    ls_callback_hooks hooks; /* hooks.name is NULL, or points to `name` */
    void *user;
    ls_callback_identifier identify;
    ls_callback_state_setter set_saved; /* set for callback groups; otherwise NULL */
    bool built_in;                      /* made by the library */
    bool captured;                      /* the hooks within the step only call functions that captured steps repeat */
    bool owned;                         /* owned by a trial or another callback */
    bool freed;
    struct ls_callback_copy *copies; /* arrays of ls_callback_array that this callback owns */
    char name[];
};

/* Size of a callback's name in bytes. */
#define LS_CALLBACK_NAME_LIMIT 80

/* The end of a run. */
typedef struct ls_run_end {
    struct ls_run_end *next;
    uint64_t time;          /* 0 before the end */
    uint64_t communication; /* communication time of the thread */
} ls_run_end;

/* For on_start, at most once in a run: sets `end`, which belongs to a callback of the trial, when the run ends, even if
 * it fails. */
void ls_trial_note_end(ls_trial *trial, ls_run_end *end);

struct ls_trial {
    ls_trial_options options;
    ls_callback *const *callbacks; /* the callbacks to call: the trial's callbacks, or a replay's callbacks */
    ls_callback **own_callbacks;   /* NULL in a record that ls_trial_free has retired */
    struct ls_metrics *metrics;
    ls_trial_state state;
    const ls_device *device; /* device to which batches are moved; NULL if batches are not moved */
    ls_comm *comm;           /* state.comm, with a reference */
    const ls_batch *batch;   /* batch of the current step; borrowed */
    ls_status slice_status;  /* status of this rank's first slice that failed in the current step */
    ls_loss_divisor divisor; /* divisor of the loss in `state` */
    bool slices_sum;         /* with `.shards`: the loss of a slice of the current step is a sum */
    ls_trial_capture capture;
    ls_history_entry latest; /* latest value of every metric */
    ls_history history;
    int64_t epochs_run;
    int64_t loads;          /* number of checkpoints that the trial has loaded */
    bool running;           /* in ls_trial_run */
    bool started;           /* this run has called on_start */
    ls_run_end *ends;       /* for callbacks of the run in progress: see ls_trial_note_end */
    ls_memory_watch memory; /* tracks the peak of tensor memory in the current run */
    bool memory_checked;    /* the run's first step with samples has been checked against `.memory_limit` */
    bool continues; /* the next training pass continues within an epoch, from state.batch and the existing sums */
    bool stopped;   /* the checkpoint records that a hook stopped the run, so the next run ends immediately */
    bool in_on_init;
    int swapping;              /* number of ls_weight_averaging that put their averages into the model for validation */
    bool measuring;            /* in ls_trial_evaluate or ls_trial_predict, between runs */
    bool shares_reported;      /* a warning has said that results are for this rank's samples only */
    ls_prediction *prediction; /* NULL outside of ls_trial_predict */
    ls_watch watch;
    bool agrees; /* some rank has callbacks or a user step, so all ranks agree after each step */
    bool agreed; /* the ranks have agreed on a failure */
    ls_ballot ballot;
    ls_checkpointer *checkpointer;      /* NULL without `.checkpoint` */
    char failed_in[LS_FAILED_IN_LIMIT]; /* the part that failed, for other ranks: "the hook on_end of callback 0: " */
    ls_progress progress;
    ls_progress run_progress; /* progress of all epochs of a run, if options.bar_per_run is set */
    /*
     * Throughput: time and samples (ls_trial_samples) of this rank's training steps after the warm-up (pass.c) or,
     * during the warm-up, of all steps.
     */
    uint64_t training_ns;
    int64_t training_samples;
};

/*
 * Sets an error if a user function failed without a message. `errors` is the value of ls_error_count before the call.
 */
static inline ls_status ls_explain(ls_status status, uint32_t errors, const char *kind, const char *name) {
    return status == LS_OK || ls_error_count != errors
               ? status
               : ls_fail(status, "ls_trial: the %s \"%s\" failed with %s", kind, name, ls_status_name(status));
}

/* Fails with LS_ERR_STATE if the trial was freed. */
static inline ls_status ls_trial_check_here(const char *call, const ls_trial *trial) {
    return trial->own_callbacks != NULL ? LS_OK : ls_fail_freed(call, "trial", "ls_trial_free");
}

/* Returns whether a hook or a user step of the trial may be the caller. */
static inline bool ls_trial_is_busy(const ls_trial *trial) {
    return trial->in_on_init || trial->running || trial->measuring;
}

/* Return the rank of this process, and the number of ranks. Without a communicator, these are 0 and 1. */
static inline int ls_trial_rank(const ls_trial_state *state) {
    return state->comm != NULL ? ls_comm_rank(state->comm) : 0;
}

static inline int ls_trial_size(const ls_trial_state *state) {
    return state->comm != NULL ? ls_comm_size(state->comm) : 1;
}

/* callbacks/make.c: creates a built-in callback, like ls_callback_new. */
ls_callback *ls_callback_make(const ls_callback_hooks *hooks, void *user);

/* captured.c: returns the name of a hook that prevents the capture of a step; NULL if the callback has none. */
const char *ls_callback_hook_within_step(const ls_callback *callback);

/* Sets `captured` of a callback, and returns it. NULL is allowed. */
static inline ls_callback *ls_callback_mark_captured(ls_callback *callback) {
    if (callback != NULL) {
        callback->captured = true;
    }
    return callback;
}
/* Sets `identify`. NULL is allowed. */
static inline ls_callback *ls_callback_set_identify(ls_callback *callback, ls_callback_identifier identify) {
    if (callback != NULL) {
        callback->identify = identify;
    }
    return callback;
}
/*
 * Calls hooks.set_state, which the callback defines, with a state from a checkpoint. Built-in callbacks, also in
 * groups, then keep the learning rates of `optimizer`. If `optimizer` is NULL, they may set the rates of their own
 * optimizers.
 */
ls_status ls_callback_set_saved(const ls_callback *callback, ls_optimizer *optimizer, const ls_named *tensors,
                                int count);
/* Fails with LS_ERR_STATE if the callback with index `i` in its array was freed. */
ls_status ls_callback_check_here(const char *call, const ls_callback *callback, int i);
/* Fails if the number of callbacks is negative, or if the array is missing. */
ls_status ls_callbacks_check_list(const char *call, ls_callback *const *callbacks, int count);
/*
 * Takes ownership of the callbacks. Returns a copy of the array, to be freed with ls_callbacks_free. If an element is
 * NULL, has an owner, or occurs twice, returns NULL and frees the callbacks without an owner.
 */
ls_callback **ls_callbacks_take(const char *call, ls_callback *const *callbacks, int count);
void ls_callbacks_free(ls_callback **callbacks, int count);

/* hooks.c: returns a callback's name, or "callback N". */
const char *ls_trial_callback_name(const ls_callback *callback, int i, char number[24]);

/* Writes the callback's kind: its name, if it has one, and the options of the kind. With `all`, writes its description:
 * its name and all options. */
void ls_callback_identify(const ls_callback *callback, int i, bool all, char *text, size_t size);

/* Returns the hook at this offset in ls_callback_hooks, or NULL if the callback does not define the hook. */
static inline ls_callback_function ls_callback_hook(const ls_callback *callback, size_t offset) {
    return *(const ls_callback_function *)(const void *)((const char *)&callback->hooks + offset);
}

/* Calls one hook of every callback that defines it. `hook` is the offset in ls_callback_hooks, and `name` is the
 * hook's name. */
ls_status ls_trial_call_hooks(ls_trial *trial, size_t hook, const char *name);
#define LS_CALL(trial, hook) ls_trial_call_hooks((trial), offsetof(ls_callback_hooks, hook), #hook)
/*
 * Sets the error from the program's code, such as a hook. If the code did not set a message (`says_why` is false),
 * prevents an older message from appearing as the reason.
 */
ls_status ls_trial_fail_in(ls_trial *trial, ls_status status, bool says_why, const char *what);

/*
 * Returns the divisor of the current loss on this rank (loss_divisor.h), or NULL if the loss is a mean over samples. If
 * the divisor's value is 0, no target counts, and the loss is NaN. The tensor is borrowed until the step ends.
 */
static inline ls_tensor *ls_trial_loss_divisor(const ls_trial *trial) {
    return trial->divisor.least;
}

/*
 * Returns the weight of the loss in the sum over the ranks' samples: a mean over samples is multiplied by this rank's
 * number of samples, and a sum by the number of samples of all ranks. Divided by all samples, the means are averaged
 * and the sums are added.
 */
static inline double ls_trial_loss_samples(const ls_trial *trial) {
    return (double)(trial->divisor.is_sum ? trial->state.global_count : trial->state.count);
}

/*
 * Returns this rank's part of the samples of a batch, to be summed over the trial's ranks. Each rank may have its own
 * loader. A trial without a communicator counts the samples of all ranks that share its loader.
 */
static inline int64_t ls_trial_samples(const ls_trial_state *state) {
    return state->comm != NULL ? state->count : state->global_count;
}

/* metrics/: creates trial->metrics from the options. The trial borrows custom metrics until ls_metrics_take. */
ls_status ls_metrics_find(ls_trial *trial);
void ls_metrics_take(ls_trial *trial);
/* Frees the metrics that have no owner. `metrics` and its elements may be NULL. */
void ls_metrics_drop(ls_metric *const *metrics, int count);
void ls_metrics_free(ls_trial *trial);
/*
 * Begins a pass. `prefix` is the prefix of its results; NULL if it has no results. If the pass continues, its numbers
 * come from ls_metrics_set_state.
 */
void ls_metrics_begin(ls_trial *trial, const char *prefix, bool continues);
/*
 * ls_metrics_enter selects the numbers of a slice of this rank (parallel/slices.h) for the following calls. It returns
 * the previously selected numbers, to be passed to ls_metrics_leave.
 */
struct ls_metric_set *ls_metrics_enter(ls_trial *trial, int slice);
void ls_metrics_leave(ls_trial *trial, struct ls_metric_set *whole);
/* Adds the batch in trial->state, on every rank, even if its share is empty. */
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
/* Writes the metric with index `index`, including its options, into `text`. Returns false if there is no such
 * metric. */
bool ls_metrics_describe(const ls_trial *trial, int index, char *text, size_t size);
/* Returns whether a metric has this name. */
bool ls_metrics_has(const ls_trial *trial, const char *name);
/*
 * Fails with LS_ERR_ARGUMENT, and lists the available results: "CALL: there is no metric "NAME"; available: loss". With
 * `several`, also lists results with several numbers.
 */
ls_status ls_metrics_refuse(const ls_trial *trial, const char *call, const char *name, bool several);
/*
 * Before the first epoch, fails in the same way if a run will not have a result with this name. Succeeds if hooks or
 * the user step may add the result (ls_trial_evaluate).
 */
ls_status ls_metrics_check_result(const ls_trial *trial, const char *call, const char *name);
/* Fails with LS_ERR_ARGUMENT if the trial does not measure the metric, or if the metric is not a confusion matrix.
 * `name` has no prefix. */
ls_status ls_metrics_check_confusion(const ls_trial *trial, const char *call, const char *name);
/* Returns the length of the longest metric name. */
size_t ls_metrics_longest(const ls_trial *trial);
/*
 * ls_metrics_name returns the name of the `index`-th metric that has a single value in this pass, or NULL after the
 * last. ls_metrics_so_far returns its value over this rank's samples so far, for the progress line, or NAN before the
 * first batch.
 */
const char *ls_metrics_name(const ls_trial *trial, int index);
double ls_metrics_so_far(const ls_trial *trial, int index);
/*
 * For checkpoints, ls_metrics_state lists this rank's numbers in the current pass, as one f64 tensor per metric. It
 * returns borrowed pointers, which are valid until the metrics are used again. ls_metrics_set_state restores the
 * numbers in a trial that resumes. If names or sizes do not match, it fails with LS_ERR_FORMAT and changes nothing.
 */
ls_status ls_metrics_state(ls_trial *trial, const ls_named **tensors, int *count);
ls_status ls_metrics_set_state(ls_trial *trial, const ls_named *tensors, int count);
/*
 * Adds the numbers of another rank to this rank's numbers, for a trial that resumes on fewer ranks. With `nothing`,
 * starts like a rank whose shares of all batches were empty, for a new rank.
 */
ls_status ls_metrics_add_state(ls_trial *trial, const ls_named *tensors, int count, bool nothing);

#endif
