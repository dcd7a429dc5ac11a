/* For tests of captured steps: a small classifier, and checks of its step and its replays. */
#ifndef LS_TESTS_SUPPORT_CAPTURED_H
#define LS_TESTS_SUPPORT_CAPTURED_H

#include <lockstep/lockstep.h>

#include "tensor/device/cpu/cpu.h"
#include "tensor/scope.h"
#include "tests/support/unit.h"

enum { BATCH = 4, FEATURES = 6, CLASSES = 3 };

typedef struct classifier {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *x, *target;
    ls_tensor *(*also)(struct classifier *self, ls_tensor *loss); /* what a test adds to the step; or NULL */
    int runs;                                                     /* of the function */
    bool keeps_gradients;
    ls_step *inner;
    ls_comm *comm;
    ls_tensor *copied, *copy;
    ls_tensor *gradient; /* for ls_backward_with */
    ls_grad_scaler *scaler;
} classifier;

static inline ls_tensor *classifier_step(void *user) {
    classifier *self = user;
    self->runs++;
    if (!self->keeps_gradients) {
        ls_optimizer_zero_grad(self->optimizer);
    }
    ls_tensor *loss = ls_cross_entropy(ls_forward(self->model, self->x), self->target, NULL);
    loss = self->also != NULL ? self->also(self, loss) : loss;
    return ls_backward(loss) == LS_OK && ls_optimizer_step(self->optimizer) == LS_OK ? loss : NULL;
}

static inline ls_optimizer *make_adam(ls_module *model) {
    return ls_adam(model, &(ls_adam_options){.learning_rate = 0.01});
}

static inline ls_optimizer *make_sgd(ls_module *model) {
    return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.01});
}

static inline void classifier_begin(classifier *self, ls_optimizer *(*make)(ls_module *model)) {
    ls_seed(3);
    *self = (classifier){.model = ls_sequential(ls_nn_linear(FEATURES, 16), ls_nn_relu(), ls_nn_batch_norm_1d(16, NULL),
                                                ls_nn_linear(16, CLASSES))};
    self->optimizer = make(self->model);
    assert_non_null(self->optimizer);
    self->x = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    self->target = ls_to(ls_arange(LS_SHAPE(BATCH), LS_I64), LS_I64);
    ((int64_t *)ls_data(self->target))[BATCH - 1] = 1;
}

static inline void classifier_end(classifier *self, ls_step *step) {
    ls_step_free(step);
    ls_optimizer_free(self->optimizer);
    ls_module_free(self->model);
    assert_null(ls_thread()->capture);
    assert_ptr_equal(ls_cpu.kernels, &ls_cpu_kernels);
}

static inline ls_step *classifier_capture(classifier *self) {
    ls_step *step = ls_step_capture(classifier_step, self, NULL);
    if (step == NULL) {
        fail_msg("%s", ls_error_message());
    }
    return step;
}

static inline void replay_step(ls_step *step) {
    if (ls_step_replay(step) != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
}

static inline void expect_no_replay(ls_step *step, const char *reason) {
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_step_replay(step), LS_ERR_STATE, reason);
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
}

static inline float classifier_run(classifier *self) {
    ls_scope *scope = ls_scope_begin();
    const float loss = (float)ls_item(classifier_step(self));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return loss;
}

static inline void expect_equal_classifiers(const classifier *a, const classifier *b) {
    for (int i = 0; i < ls_module_parameter_count(a->model); i++) {
        assert_true(ls_equal(ls_module_parameter(a->model, i), ls_module_parameter(b->model, i)));
    }
    for (int i = 0; i < ls_module_buffer_count(a->model); i++) {
        assert_true(ls_equal(ls_module_buffer(a->model, i), ls_module_buffer(b->model, i)));
    }
}

/* Gives both the same new batch. */
static inline void change_batch(classifier *a, classifier *b, int i) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_mul(ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32), 1 + 0.1 * i);
    ls_tensor *target = ls_full(LS_SHAPE(BATCH), LS_I64, i % CLASSES);
    assert_int_equal(ls_copy_into(a->x, x), LS_OK);
    assert_int_equal(ls_copy_into(b->x, x), LS_OK);
    assert_int_equal(ls_copy_into(a->target, target), LS_OK);
    assert_int_equal(ls_copy_into(b->target, target), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* Captures in its own scope, which gets the error. */
static inline void expect_refused(classifier *self, ls_status status, const char *reason) {
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_step_capture(classifier_step, self, NULL));
    expect_error(ls_error_status(), status, reason);
    assert_int_equal(ls_scope_end(scope), status);
    assert_null(ls_thread()->capture);
}

#endif
