/* For tests of trials: a fixed linear model of three classes over small sets of random samples, and trials that
 * train it. */
#ifndef LS_TESTS_SUPPORT_TRIALS_H
#define LS_TESTS_SUPPORT_TRIALS_H

#include <math.h>

#include <lockstep/train.h>

#include "tests/support/elements.h"
#include "tests/support/unit.h"

enum { TRAIN_COUNT = 11, TEST_COUNT = 5, BATCH = 4, CLASSES = 3 };

static inline double input_at(int set, int64_t i) {
    return ls_random_normal(5, (uint64_t)set, (uint64_t)i);
}

static inline int64_t target_at(int set, int64_t row) {
    return (int64_t)(ls_random_u32(6, (uint64_t)set, (uint64_t)row) % CLASSES);
}

static inline ls_loader *make_loader_with(int set, int64_t count, const ls_loader_options *how) {
    ls_tensor *input = ls_empty(LS_SHAPE(count, 2), LS_F64);
    ls_tensor *target = ls_empty(LS_SHAPE(count), LS_I64);
    for (int64_t i = 0; i < 2 * count; i++) {
        ((double *)elements(input))[i] = input_at(set, i);
    }
    for (int64_t row = 0; row < count; row++) {
        ((int64_t *)elements(target))[row] = target_at(set, row);
    }
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(input, target), how);
    assert_non_null(loader);
    return loader;
}

static inline ls_loader *make_loader(int set, int64_t count) {
    return make_loader_with(set, count, &(ls_loader_options){.batch_size = BATCH});
}

typedef struct setting {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *train;
    ls_loader *validate;
} setting;

/* Makes a fixed linear model with 3 training and 2 validation batches. It learns only if a learning rate is set. */
static inline setting make_setting(void) {
    setting s = {.train = make_loader(0, TRAIN_COUNT), .validate = make_loader(1, TEST_COUNT)};
    ls_seed(3);
    s.model = ls_nn_linear_with(2, CLASSES, &(ls_linear_options){.dtype = LS_F64});
    s.optimizer = ls_sgd(s.model, NULL);
    assert_non_null(s.optimizer);
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0), LS_OK);
    return s;
}

static inline void free_setting(setting *s) {
    ls_optimizer_free(s->optimizer);
    ls_module_free(s->model);
    ls_loader_free(s->train);
    ls_loader_free(s->validate);
}

static inline ls_trial_options options_of(const setting *s) {
    return (ls_trial_options){.model = s->model,
                              .optimizer = s->optimizer,
                              .criterion = ls_criterion_cross_entropy,
                              .train = s->train,
                              .validate = s->validate,
                              .quiet = true};
}

#endif
