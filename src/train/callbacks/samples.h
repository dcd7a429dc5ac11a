/* Callbacks that change samples: what is random about them, and the samples that they are mixed with. */
#ifndef LS_TRAIN_CALLBACKS_SAMPLES_H
#define LS_TRAIN_CALLBACKS_SAMPLES_H

#include "base/draws.h"
#include "train/callbacks/callback.h"

enum { LS_WHOLE_BATCH = -1 };

/* Random numbers of the sample at a place in the global batch, or of LS_WHOLE_BATCH. `salt` differs from one kind of
 * callback to another. */
ls_draws ls_draws_of(const ls_trial_state *state, uint64_t seed, uint64_t salt, int64_t place);

/* This rank's first place in the global batch. LS_ERR_UNSUPPORTED where the loader shares samples out in another way
 * than ls_loader_new. */
ls_status ls_first_place(const ls_trial_state *state, const char *call, int64_t *first);

/* Another sample for each of this rank's: by a permutation of the global batch. */
typedef struct ls_partners {
    int64_t *order;
    int64_t room;
    ls_tensor *input; /* on the host */
    ls_tensor *target;
} ls_partners;

/* Fetches them; they are on the batch's device then, lent. */
ls_status ls_partners_fetch(ls_partners *self, const char *call, ls_trial_state *state, ls_draws draws,
                            ls_tensor **input, ls_tensor **target);
void ls_partners_free(ls_partners *self);

/* LS_ERR_ARGUMENT where inputs are not floating. */
ls_status ls_check_inputs(const ls_trial_state *state, const char *call);

/* Class numbers as rows of f32; rows as they are; NULL with an error. */
ls_tensor *ls_target_rows(const char *call, ls_tensor *target, int64_t classes);
/* share target + (1 - share) other, as rows. */
ls_tensor *ls_mix_targets(const char *call, ls_tensor *target, ls_tensor *other, double share, int64_t classes);
/* share x + (1 - share) y. */
ls_tensor *ls_mix(ls_tensor *x, ls_tensor *y, double share);

/* A target or an input that was made is put into the state; NULL is the failure that it is. */
static inline ls_status ls_put_tensor(ls_tensor **place, ls_tensor *made) {
    *place = made != NULL ? made : *place;
    return made != NULL ? LS_OK : ls_error_status();
}

#endif
