/*
 * callbacks: one file per callback. A constructor allocates the struct of a callback, and `release` frees it. The state
 * of a callback is a list of named tensors that use the memory of this struct (ls_state_list, as for optimizers). This
 * header declares the functions that callbacks share.
 */
#ifndef LS_TRAIN_CALLBACKS_CALLBACK_H
#define LS_TRAIN_CALLBACKS_CALLBACK_H

#include <lockstep/callbacks.h>

#include <stdio.h>

#include "base/describe.h"
#include "base/memory.h"
#include "base/option.h"
#include "optim/optimizer.h"
#include "optim/snapshot.h"
#include "train/trial.h"

/* `describe` for callbacks that may differ between ranks, because they do not communicate. */
void ls_callback_describe_nothing(void *user, char *text, size_t size);

/*
 * Creates a built-in callback with a copy of its struct, the `size` bytes at `self`. hooks->release frees the copy.
 * Returns NULL on failure.
 */
ls_callback *ls_callback_of(const char *maker, const void *self, size_t size, const ls_callback_hooks *hooks);

/* Returns the struct of a callback whose kind has this `release`, or NULL for other kinds. */
void *ls_callback_memory(const ls_callback *callback, void (*release)(void *user));

/* Returns whether ls_trial_run or ls_trial_replay calls the hook, not ls_trial_evaluate. */
static inline bool ls_callback_in_run(const ls_trial_state *state) {
    return state->trial->running;
}

/* Returns whether ls_trial_replay, which computes nothing, calls the hook. */
static inline bool ls_callback_in_replay(const ls_trial_state *state) {
    return state->phase == LS_PHASE_REPLAY;
}

static inline bool ls_callback_in_real_run(const ls_trial_state *state) {
    return ls_callback_in_run(state) && !ls_callback_in_replay(state);
}

/*
 * For on_init: fails with LS_ERR_ARGUMENT if the trial has a user step. The message recommends calling `instead` in the
 * user step.
 */
ls_status ls_callback_needs_hooks(const ls_trial_state *state, const char *call, const char *instead);

/*
 * Fails with LS_ERR_UNSUPPORTED if this rank has only a part of a parameter's gradient (.zero = 2 or 3) or, with
 * `layers`, of the parameter (a sharded layer). The message recommends `instead`.
 */
ls_status ls_callback_needs_whole(const ls_trial_state *state, const char *call, bool layers, const char *instead);

/*
 * Fails with LS_ERR_UNSUPPORTED if this rank has only a part of the parameters (.zero = 3), unless
 * ls_data_parallel_gather gave it all. The message recommends `instead` first, for example "omit .keep, ".
 */
ls_status ls_callback_needs_parameters(const ls_trial_state *state, const char *call, const char *instead);

/* Fails with LS_ERR_ARGUMENT if the name of a metric is too long. NULL is allowed. */
ls_status ls_callback_check_name(const char *call, const char *name);
void ls_callback_copy_name(char copy[LS_METRIC_NAME_LIMIT], const char *name);

/* Gets the last value of a metric. Fails with LS_ERR_ARGUMENT if the trial lacks the metric. */
ls_status ls_callback_metric(const ls_trial_state *state, const char *call, const char *name, double *value);

/* Computes the mean of the step's loss over the samples of all ranks; NAN if there is no loss. Collective. */
ls_status ls_callback_batch_loss(const ls_trial_state *state, double *loss);

/* Returns whether this is rank 0, the only rank that prints and writes files. */
static inline bool ls_callback_is_first_rank(const ls_trial_state *state) {
    return ls_trial_rank(state) == 0;
}

/*
 * For a file that a trial continues: from the current file position, keeps complete lines until `keeps` rejects a line,
 * truncates the file there, and seeks to its end. Fails with LS_ERR_IO if the file is not a regular file or cannot be
 * changed; `call` and `path` are for the message.
 */
typedef bool (*ls_callback_keeps)(void *user, const char *line);
ls_status ls_callback_cut_lines(const char *call, const char *path, FILE *file, ls_callback_keeps keeps, void *user);

/* Returns a group with the name and the description of its first callback. Takes ownership of the callbacks. */
ls_callback *ls_callbacks_as_first(const char *call, ls_callback *const *callbacks, int count);

/* Returns a timer that only measures: it has no state, prints no table, and computes no values over ranks. */
ls_callback *ls_timer_bare(const char *call);
const char *ls_time_name(ls_time what);

/* Adds one number of a callback's struct to a list. */
ls_status ls_callback_list_real(ls_state_list *list, const char *word, double *number);
ls_status ls_callback_list_count(ls_state_list *list, const char *word, int64_t *number);

/* Implements `state` of ls_callback_hooks through a function that fills a list. `listed` contains the list until the
   next call. */
typedef ls_status (*ls_callback_list)(void *self, ls_state_list *list);
ls_status ls_callback_state(void *self, ls_callback_list make, ls_state_list *listed, const ls_named **tensors,
                            int *count);
/* Implements `set_state`: copies the tensors to the listed memory. Fails if names, shapes or dtypes differ. */
ls_status ls_callback_set_state(const char *call, void *self, ls_callback_list make, const ls_named *tensors,
                                int count);

#endif
