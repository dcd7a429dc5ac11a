/* For tests of metrics: the outputs and targets of tests/fixtures/make_metrics.py, and trials that measure them. */
#ifndef LS_TESTS_SUPPORT_SCORES_H
#define LS_TESTS_SUPPORT_SCORES_H

#include <lockstep/train.h>

#include "tests/support/elements.h"

enum { SCORE_STEPS = 9973 };

/* Returns pseudorandom number i in [0, limit - 1]. */
static inline int64_t score_digit(uint32_t salt, int64_t i, uint32_t limit) {
    uint32_t x = (uint32_t)i * UINT32_C(2654435761) + salt * UINT32_C(40503) + 12345;
    x = (x ^ x >> 15) * UINT32_C(2246822519);
    return (x ^ x >> 13) % limit;
}

/* Makes numbers from -1 to 1. With few steps, many numbers are equal. */
static inline ls_tensor *scores_of_steps(uint32_t salt, ls_shape shape, uint32_t steps) {
    ls_tensor *scores = ls_empty(shape, LS_F64);
    for (int64_t i = 0; i < ls_numel(scores); i++) {
        ((double *)elements(scores))[i] = (double)score_digit(salt, i, steps) * 2.0 / (steps - 1) - 1.0;
    }
    return scores;
}

static inline ls_tensor *scores(uint32_t salt, ls_shape shape) {
    return scores_of_steps(salt, shape, SCORE_STEPS);
}

static inline ls_tensor *score_targets(uint32_t salt, int64_t count, uint32_t limit) {
    ls_tensor *targets = ls_empty(LS_SHAPE(count), LS_I64);
    for (int64_t i = 0; i < count; i++) {
        ((int64_t *)elements(targets))[i] = score_digit(salt, i, limit);
    }
    return targets;
}

static inline ls_tensor *as_it_is(ls_tensor *x, void *user) {
    (void)user;
    return x;
}

/* A criterion for outputs that are only measured. */
static inline ls_tensor *mean_of_outputs(ls_tensor *output, ls_tensor *target, void *user) {
    (void)target;
    (void)user;
    return ls_mean(output);
}

#endif
