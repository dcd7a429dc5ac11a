/* For tests of metrics: keeps the counts of metrics in the middle of an epoch. */
#ifndef LS_TESTS_SUPPORT_KEPT_METRICS_H
#define LS_TESTS_SUPPORT_KEPT_METRICS_H

#include "train/trial.h"

/* The counts of metrics after a step. keep_state is the hook that stores them. */
typedef struct kept_state {
    int64_t after;
    ls_named tensors[LS_METRIC_LIMIT];
    int count;
} kept_state;

static inline ls_status keep_state(ls_trial_state *state, void *user) {
    kept_state *kept = user;
    if (state->step != kept->after) {
        return LS_OK;
    }
    const ls_named *tensors;
    LS_TRY(ls_metrics_state(state->trial, &tensors, &kept->count));
    for (int i = 0; i < kept->count; i++) {
        kept->tensors[i] = (ls_named){.name = tensors[i].name, .tensor = ls_keep(ls_clone(tensors[i].tensor))};
    }
    return LS_OK;
}

static inline void release_state(kept_state *kept) {
    for (int i = 0; i < kept->count; i++) {
        ls_release(kept->tensors[i].tensor);
    }
}

#endif
