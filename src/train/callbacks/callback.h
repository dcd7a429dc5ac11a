/*
 * callbacks: one file each. A callback's memory is a struct that its constructor makes and `release` frees; what it
 * remembers is listed as named tensors over that memory, by the list that optimizers have. This header: what they
 * share.
 */
#ifndef LS_TRAIN_CALLBACKS_CALLBACK_H
#define LS_TRAIN_CALLBACKS_CALLBACK_H

#include <lockstep/callbacks.h>

#include "base/describe.h"
#include "base/memory.h"
#include "base/option.h"
#include "optim/optimizer.h"
#include "optim/snapshot.h"
#include "train/trial.h"

/* `describe` of a callback that ranks need not have alike: it acts on one rank and exchanges nothing. */
void ls_callback_describe_nothing(void *user, char *text, size_t size);

/* Cleared memory of a callback; NULL with an error. */
void *ls_callback_allocate(const char *call, size_t size);

/* The memory of a callback that `release` frees; NULL for one of another kind. */
void *ls_callback_memory(const ls_callback *callback, void (*release)(void *user));

/* Whether an epoch of a run has ended, and not an evaluation, whose hooks are called too. */
static inline bool ls_callback_in_run(const ls_trial_state *state) {
    return state->trial->running;
}

/* Whether this is a replay, which computes nothing. */
static inline bool ls_callback_in_replay(const ls_trial_state *state) {
    return state->phase == LS_PHASE_REPLAY;
}

/* LS_ERR_ARGUMENT where the trial has a step of its own, which has to call `instead`; for on_init. */
ls_status ls_callback_needs_hooks(const ls_trial_state *state, const char *call, const char *instead);

/* LS_ERR_ARGUMENT for a metric's name that is too long to be one; NULL is none. */
ls_status ls_callback_check_name(const char *call, const char *name);
void ls_callback_copy_name(char copy[LS_METRIC_NAME_LIMIT], const char *name);

/* The last value of a metric; LS_ERR_ARGUMENT where there is none of that name. */
ls_status ls_callback_metric(const ls_trial_state *state, const char *call, const char *name, double *value);

/* The mean of the step's loss over the samples of all ranks; NAN where there is none. Collective. */
ls_status ls_callback_batch_loss(const ls_trial_state *state, double *loss);

/* This process's rank: 0 without a communicator. */
static inline int ls_callback_rank(const ls_trial_state *state) {
    return state->comm != NULL ? ls_comm_rank(state->comm) : 0;
}

/* Whether what only rank 0 does is done here. */
static inline bool ls_callback_is_first_rank(const ls_trial_state *state) {
    return ls_callback_rank(state) == 0;
}

/* Adds one number of the callback's memory to a list. */
ls_status ls_callback_list_real(ls_state_list *list, const char *word, double *number);
ls_status ls_callback_list_count(ls_state_list *list, const char *word, int64_t *number);

/* `state` of ls_callback_hooks by a function that lists: the list is made anew. */
typedef ls_status (*ls_callback_list)(void *self, ls_state_list *list);
ls_status ls_callback_state(void *self, ls_callback_list make, ls_state_list *lent, const ls_named **tensors,
                            int *count);
/* `set_state`: into the memory that the function lists, where the names, shapes and dtypes are its own. */
ls_status ls_callback_set_state(const char *call, void *self, ls_callback_list make, const ls_named *tensors,
                                int count);

#endif
