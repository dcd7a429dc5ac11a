/*
 * For rank tests of callbacks: a small classifier over fixed random samples, trained by all ranks together, or by this
 * process alone with the same global batches.
 */
#ifndef LS_TESTS_SUPPORT_TRAINING_H
#define LS_TESTS_SUPPORT_TRAINING_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "tests/support/elements.h"
#include "tests/support/ranks.h"

enum { TRAINING_SAMPLES = 60, TRAINING_INPUTS = 4, TRAINING_CLASSES = 3, TRAINING_SEED = 21 };

typedef struct training {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *train;
    ls_loader *validate;
    ls_trial *trial;
} training;

/* The differences between trainings. */
typedef struct training_plan {
    ls_callback *const *callbacks;
    int callback_count;
    const ls_checkpoint_options *checkpoint;
    int64_t global_batch; /* 0: 12 */
    int64_t max_steps;
    ls_criterion criterion; /* NULL: cross entropy */
    ls_callback_function step;
    void *step_user;
    double learning_rate; /* 0: 0.05 */
    const char *resume;
    bool capture;
    bool normalizes; /* the model has batch normalization */
    ls_data_parallel_options parallel;
} training_plan;

static inline ls_dataset *training_samples(int set, int64_t count) {
    ls_tensor *input = ls_empty(LS_SHAPE(count, TRAINING_INPUTS), LS_F64);
    ls_tensor *target = ls_empty(LS_SHAPE(count), LS_I64);
    double *x = elements(input);
    int64_t *classes = elements(target);
    for (int64_t row = 0; x != NULL && row < count; row++) {
        for (int64_t i = 0; i < TRAINING_INPUTS; i++) {
            x[row * TRAINING_INPUTS + i] =
                ls_random_normal(TRAINING_SEED, (uint64_t)set, (uint64_t)(row * TRAINING_INPUTS + i));
        }
        classes[row] = (x[row * TRAINING_INPUTS] > 0) + (x[row * TRAINING_INPUTS + 1] > 0.3);
    }
    return ls_tensor_dataset(input, target);
}

/*
 * Prepares a training run. The optimizer is created before the callbacks, because some need it. If `comm` is NULL, this
 * process trains alone.
 */
static inline ls_status training_prepare(training *t, const training_plan *plan, ls_comm *comm) {
    const ls_linear_options layer = {.dtype = LS_F64};
    const ls_loader_options loading = {.global_batch_size = plan->global_batch > 0 ? plan->global_batch : 12,
                                       .comm = comm,
                                       .seed = TRAINING_SEED,
                                       .threads = comm != NULL ? 2 : 0};
    ls_seed(TRAINING_SEED);
    ls_module *first = ls_nn_linear_with(TRAINING_INPUTS, 6, &layer);
    first = plan->normalizes ? ls_sequential(first, ls_nn_batch_norm_1d(6, &(ls_batch_norm_options){.dtype = LS_F64}))
                             : first;
    *t = (training){.model = ls_sequential(first, ls_nn_tanh(), ls_nn_linear_with(6, TRAINING_CLASSES, &layer))};
    if (comm != NULL) {
        t->model = ls_data_parallel(t->model, comm, &plan->parallel);
    }
    t->optimizer =
        ls_sgd(t->model, &(ls_sgd_options){.learning_rate = plan->learning_rate > 0 ? plan->learning_rate : 0.05,
                                           .momentum = 0.7});
    t->train = ls_loader_new(training_samples(0, TRAINING_SAMPLES), &loading);
    t->validate = ls_loader_new(training_samples(1, 9), &loading);
    LS_CHECK(t->model != NULL && t->optimizer != NULL && t->train != NULL && t->validate != NULL);
    return LS_OK;
}

static inline void training_start(training *t, const training_plan *plan) {
    t->trial = ls_trial_new(
        &(ls_trial_options){.model = t->model,
                            .optimizer = t->optimizer,
                            .criterion = plan->criterion != NULL ? plan->criterion : ls_criterion_cross_entropy,
                            .step = plan->step,
                            .step_user = plan->step_user,
                            .train = t->train,
                            .validate = t->validate,
                            .metrics = LS_METRICS("loss", "acc"),
                            .callbacks = plan->callbacks,
                            .callback_count = plan->callback_count,
                            .checkpoint = plan->checkpoint,
                            .max_steps = plan->max_steps,
                            .resume = plan->resume,
                            .capture = plan->capture,
                            .quiet = true});
}

static inline ls_status training_begin(training *t, const training_plan *plan, ls_comm *comm) {
    LS_TRY(training_prepare(t, plan, comm));
    training_start(t, plan);
    LS_CHECK(t->trial != NULL);
    return LS_OK;
}

static inline void training_end(training *t) {
    ls_trial_free(t->trial);
    ls_optimizer_free(t->optimizer);
    ls_loader_free(t->train);
    ls_loader_free(t->validate);
    ls_module_free(t->model);
}

/* Fails the test unless all ranks have the same number. */
static inline ls_status same_on_all(ls_comm *world, double value) {
    return ranks_have_same_bytes(world, &value, sizeof value);
}

/* Returns the largest difference between the parameters of two models. */
static inline double parameter_difference(const ls_module *a, const ls_module *b) {
    double largest = ls_module_parameter_count(a) == ls_module_parameter_count(b) ? 0 : INFINITY;
    ls_scope *scope = ls_scope_begin();
    const bool before = ls_no_grad(true);
    for (int i = 0; isfinite(largest) && i < ls_module_parameter_count(a); i++) {
        const double difference = ls_item(ls_max(ls_abs(ls_sub(ls_module_parameter(a, i), ls_module_parameter(b, i)))));
        largest = difference <= largest ? largest : difference;
    }
    ls_no_grad(before);
    return ls_scope_end(scope) == LS_OK ? largest : INFINITY;
}

#endif
