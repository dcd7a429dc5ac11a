/* Helpers for callbacks that change samples: random numbers, and partners (the samples that are mixed in). */
#ifndef LS_TRAIN_CALLBACKS_SAMPLES_H
#define LS_TRAIN_CALLBACKS_SAMPLES_H

#include "base/draws.h"
#include "train/callbacks/callback.h"

enum { LS_WHOLE_BATCH = -1 };

/*
 * Returns the random stream for the sample with index `place` in the global batch, or for LS_WHOLE_BATCH. `salt`
 * differs between kinds of callbacks.
 */
ls_draws ls_draws_of(const ls_trial_state *state, uint64_t seed, uint64_t salt, int64_t place);

/*
 * Finds the index of this rank's first sample in the global batch. Fails with LS_ERR_UNSUPPORTED if the loader does not
 * report which samples it has given to this rank.
 */
ls_status ls_first_place(const ls_trial_state *state, const char *call, int64_t *first);

/* A partner for each sample of this rank, from a permutation of the global batch. */
typedef struct ls_partners {
    int64_t *order;
    int64_t room;
    ls_tensor *input; /* in host memory */
    ls_tensor *target;
} ls_partners;

/* Copies the partners to the device of the batch. Returns borrowed pointers. */
ls_status ls_partners_fetch(ls_partners *self, const char *call, ls_trial_state *state, ls_draws draws,
                            ls_tensor **input, ls_tensor **target);
void ls_partners_free(ls_partners *self);

/* Fails with LS_ERR_SHAPE if the inputs do not have one row per sample: ls_manifold_mixup appends rows. */
ls_status ls_check_rows(const ls_trial_state *state, const char *call);
/* Fails like ls_check_rows, and with LS_ERR_ARGUMENT if the inputs are not floating-point. */
ls_status ls_check_inputs(const ls_trial_state *state, const char *call);

/* Converts class numbers to one-hot rows of f32. Returns rows unchanged. Returns NULL on failure. */
ls_tensor *ls_target_rows(const char *call, ls_tensor *target, int64_t classes);
/* Returns share target + (1 - share) other, as rows. */
ls_tensor *ls_mix_targets(const char *call, ls_tensor *target, ls_tensor *other, double share, int64_t classes);
/* Returns share * x + (1 - share) * y. */
ls_tensor *ls_mix(ls_tensor *x, ls_tensor *y, double share);

/* Stores a new target or input in the state. If `made` is NULL, returns the error. */
static inline ls_status ls_put_tensor(ls_tensor **place, ls_tensor *made) {
    *place = made != NULL ? made : *place;
    return ls_made(made);
}

#endif
