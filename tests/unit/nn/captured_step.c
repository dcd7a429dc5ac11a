/*
 * Replays of captured steps: bit-identical results, what a program may change between replays, and every
 * mistake after a capture.
 *
 * devices: cpu
 */
#include "tests/support/captured.h"

#include <pthread.h>

/* ---- what may change between replays ----------------------------------------------------------------------------- */

static void check_training(ls_optimizer *(*make)(ls_module *model)) {
    classifier eager, captured;
    classifier_begin(&eager, make);
    classifier_begin(&captured, make);
    const float first = classifier_run(&eager);
    ls_step *step = classifier_capture(&captured);
    assert_true(ls_step_is_captured(step));
    assert_true((float)ls_item(ls_step_result(step)) == first);
    for (int i = 0; i < 100; i++) {
        change_batch(&eager, &captured, i);
        if (i == 30) { /* rates take effect */
            assert_int_equal(ls_optimizer_set_learning_rate(eager.optimizer, -1, 0.003), LS_OK);
            assert_int_equal(ls_optimizer_set_learning_rate(captured.optimizer, -1, 0.003), LS_OK);
        }
        if (i == 60) { /* so do other values of a parameter */
            const bool before = ls_no_grad(true);
            assert_int_equal(ls_fill(ls_module_parameter(eager.model, 0), 0.125), LS_OK);
            assert_int_equal(ls_fill(ls_module_parameter(captured.model, 0), 0.125), LS_OK);
            (void)ls_no_grad(before);
        }
        if (i % 10 == 9) { /* a step by the function */
            assert_true(classifier_run(&eager) == classifier_run(&captured));
        } else {
            const float loss = classifier_run(&eager);
            replay_step(step);
            assert_true((float)ls_item(ls_step_result(step)) == loss);
        }
        expect_equal_classifiers(&eager, &captured);
    }
    assert_int_equal(captured.runs, 11);
    classifier_end(&captured, step);
    classifier_end(&eager, NULL);
}

SCOPED_TEST(test_replays_have_the_same_bits) {
    check_training(make_adam);
    check_training(make_sgd);
}

/* The second run of a recomputed module is recorded, too. */
SCOPED_TEST(test_recomputed_modules) {
    classifier eager, captured;
    for (int i = 0; i < 2; i++) {
        classifier *self = i == 0 ? &eager : &captured;
        classifier_begin(self, make_sgd);
        ls_optimizer_free(self->optimizer);
        ls_module_free(self->model);
        ls_seed(7);
        ls_module *inner = ls_sequential(ls_nn_linear(FEATURES, 16), ls_nn_tanh(), ls_nn_linear(16, CLASSES));
        assert_int_equal(ls_recompute(inner, true), LS_OK);
        self->model = ls_sequential(ls_nn_linear(FEATURES, FEATURES), inner);
        self->optimizer = make_sgd(self->model);
    }
    (void)classifier_run(&eager);
    ls_step *step = classifier_capture(&captured);
    for (int i = 0; i < 10; i++) {
        change_batch(&eager, &captured, i);
        (void)classifier_run(&eager);
        replay_step(step);
        expect_equal_classifiers(&eager, &captured);
    }
    classifier_end(&captured, step);
    classifier_end(&eager, NULL);
}

static ls_tensor *predict(void *user) {
    const classifier *self = user;
    (void)ls_no_grad(true); /* until the step's scope ends */
    return ls_softmax(ls_forward(self->model, self->x), 1);
}

/* A step without a backward pass. */
SCOPED_TEST(test_predictions) {
    classifier self, other;
    classifier_begin(&self, make_sgd);
    classifier_begin(&other, make_sgd);
    ls_module_train(self.model, false);
    ls_step *step = ls_step_capture(predict, &self, NULL);
    assert_non_null(step);
    for (int i = 0; i < 3; i++) {
        change_batch(&self, &other, i);
        replay_step(step);
        assert_true(ls_equal(ls_step_result(step), predict(&self)));
        (void)ls_no_grad(false);
    }
    classifier_end(&self, step);
    classifier_end(&other, NULL);
}

/* Without ls_zero_grad in the function, the recorded step adds to gradients, or starts them, as in its first run. */
SCOPED_TEST(test_gradients_that_accumulate) {
    classifier eager, captured;
    classifier_begin(&eager, make_sgd);
    classifier_begin(&captured, make_sgd);
    eager.keeps_gradients = captured.keeps_gradients = true;
    ls_step *step = classifier_capture(&captured);
    expect_no_replay(step, "has a gradient, which the captured step overwrites");
    ls_step_free(step);
    (void)classifier_run(&eager);
    (void)classifier_run(&eager);
    step = classifier_capture(&captured);
    for (int i = 0; i < 5; i++) {
        (void)classifier_run(&eager);
        replay_step(step);
        expect_equal_classifiers(&eager, &captured);
    }
    ls_optimizer_zero_grad(captured.optimizer);
    expect_no_replay(step, "has no gradient, but had one");
    classifier_end(&captured, step);
    classifier_end(&eager, NULL);
}

/* An in-place change by a replay counts for tapes that saved the tensor. */
SCOPED_TEST(test_replays_count_as_changes) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_step *step = classifier_capture(&self);
    ls_tensor *weight = ls_module_parameter(self.model, 0);
    ls_tensor *loss = ls_sum(ls_square(weight));
    replay_step(step);
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_backward(loss), LS_ERR_STATE, "was later modified in place (by ls_");
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
    classifier_end(&self, step);
}

static int64_t activations(void) {
    ls_memory memory;
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    return memory.bytes[LS_MEMORY_ACTIVATIONS];
}

SCOPED_TEST(test_the_arena_is_smaller_than_its_blocks) {
    classifier self;
    classifier_begin(&self, make_sgd);
    const int64_t before = activations();
    self.x = ls_rand(LS_SHAPE(256, FEATURES), LS_F32);
    self.target = ls_full(LS_SHAPE(256), LS_I64, 1);
    const int64_t inputs = activations() - before;
    ls_step *step = classifier_capture(&self);
    const int64_t arena = activations() - before - inputs;
    /* The step makes three tensors of 256 x 16 floats and their gradients, and six of 256 x 3. */
    assert_in_range(arena, 1, 5 * 256 * 16 * 4);
    ls_step_free(step);
    assert_int_equal(activations(), before + inputs);
    classifier_end(&self, NULL);
}

static ls_tensor *keep_product(void *user) {
    ls_tensor **kept = user;
    ls_tensor *result = ls_square(kept[0]);
    ls_tensor *product = ls_mul(kept[0], 3);
    kept[1] = product != NULL ? ls_keep(product) : NULL;
    return result;
}

SCOPED_TEST(test_replays_change_tensors_that_the_step_made) {
    ls_tensor *kept[2] = {ls_ones(LS_SHAPE(3), LS_F32), NULL};
    ls_tensor *v = ls_ones(LS_SHAPE(3), LS_F32);
    assert_int_equal(ls_set_requires_grad(v, true), LS_OK);
    ls_step *step = ls_step_capture(keep_product, kept, NULL);
    assert_non_null(step);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_sum(ls_mul(v, kept[1]));
    assert_int_equal(ls_step_replay(step), LS_OK);
    expect_error(ls_backward(loss), LS_ERR_STATE, "ls_step_replay");
    (void)ls_scope_end(scope);
    ls_step_free(step);
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

SCOPED_TEST(test_freed_objects_are_reported) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_tensor *x = self.x;
    ls_step *step = classifier_capture(&self);
    ls_release(x);
    expect_no_replay(step, "argument 1 of ls_linear, [4, 6], was freed: capture the step again");
    ls_step_free(step);
    expect_no_replay(step, "the step has already been freed (ls_step_free)");
    expect_no_replay(NULL, "the step is NULL");

    self.x = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    step = classifier_capture(&self);
    ls_optimizer_free(self.optimizer);
    expect_no_replay(step, "the optimizer has already been freed");
    ls_step_free(step);
    self.optimizer = make_sgd(self.model);
    step = classifier_capture(&self);
    ls_optimizer_free(self.optimizer);
    self.optimizer = NULL;
    ls_module_free(self.model);
    self.model = NULL;
    expect_no_replay(step, "a module of the step, Sequential, was freed");
    classifier_end(&self, step);
}

/* A new optimizer must not get the address of an optimizer of a captured step. */
SCOPED_TEST(test_other_optimizers_are_reported) {
    classifier self, other;
    classifier_begin(&self, make_sgd);
    classifier_begin(&other, make_sgd);
    ls_step *step = classifier_capture(&self);
    (void)classifier_run(&other); /* the parameters of `other` now have gradients */
    const ls_optimizer *freed = self.optimizer;
    ls_optimizer_free(self.optimizer);
    for (int i = 0; i < 1000; i++) {
        ls_optimizer_free(other.optimizer);
        other.optimizer = make_sgd(other.model);
        assert_ptr_not_equal(other.optimizer, freed);
    }
    expect_no_replay(step, "ls_step_replay: the optimizer has already been freed");
    ls_step_free(step);

    self.optimizer = make_sgd(self.model);
    step = classifier_capture(&self);
    ls_tensor *added = ls_ones(LS_SHAPE(1), LS_F32);
    assert_int_equal(ls_set_requires_grad(added, true), LS_OK);
    assert_int_equal(ls_optimizer_add_group(self.optimizer, &added, 1, NULL), LS_OK);
    expect_no_replay(step, "ls_sgd has 2 groups, but had 1 when the step was captured");
    classifier_end(&self, step);
    classifier_end(&other, NULL);
}

/* The same if something else than the step still holds the object. */
SCOPED_TEST(test_freed_objects_that_others_hold_are_reported) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_step *step = classifier_capture(&self);
    ls_tensor *w = ls_ones(LS_SHAPE(FEATURES), LS_F32);
    assert_int_equal(ls_set_requires_grad(w, true), LS_OK);
    ls_tensor *sum = ls_sum(ls_square(ls_mul(self.x, w))); /* the tape holds x */
    ls_release(self.x);
    expect_no_replay(step, "argument 1 of ls_linear, [4, 6], was freed by the program");
    assert_int_equal(ls_backward(sum), LS_OK);
    ls_step_free(step);

    ls_scope *scope = ls_scope_begin();
    self.x = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    step = classifier_capture(&self);
    ls_step *other = classifier_capture(&self);
    replay_step(step);
    replay_step(other);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    expect_no_replay(step, "argument 1 of ls_linear, [4, 6], was freed by the program");
    expect_no_replay(other, "argument 1 of ls_linear, [4, 6], was freed by the program");
    ls_step_free(other);
    ls_step_free(step);

    self.x = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    step = classifier_capture(&self);
    other = classifier_capture(&self);
    ls_module_free(self.model);
    self.model = NULL;
    expect_no_replay(step, "a module of the step, Sequential, was freed");
    expect_no_replay(other, "a module of the step, Sequential, was freed");
    ls_step_free(other);
    classifier_end(&self, step);
}

static ls_tensor *clipped_step(void *user) {
    classifier *self = user;
    self->runs++;
    ls_optimizer_zero_grad(self->optimizer);
    ls_tensor *loss = ls_cross_entropy(ls_forward(self->model, self->x), self->target, NULL);
    const bool clipped = ls_backward(loss) == LS_OK && ls_clip_grad_value(self->model, 0.1) == LS_OK &&
                         ls_clip_grad_norm(self->model, 0.2, NULL) == LS_OK;
    return clipped && ls_optimizer_step(self->optimizer) == LS_OK ? loss : NULL;
}

/* The norms, and whether they exceed the limit, differ from step to step. */
SCOPED_TEST(test_clipped_gradients) {
    classifier eager, captured, plain;
    classifier_begin(&eager, make_sgd);
    classifier_begin(&captured, make_sgd);
    classifier_begin(&plain, make_sgd);
    assert_non_null(clipped_step(&eager));
    (void)classifier_run(&plain);
    assert_true(ls_module_hash(plain.model) != ls_module_hash(eager.model));
    ls_step *step = ls_step_capture(clipped_step, &captured, NULL);
    assert_non_null(step);
    for (int i = 1; i < 30; i++) {
        change_batch(&eager, &captured, i);
        assert_non_null(clipped_step(&eager));
        replay_step(step);
        expect_equal_classifiers(&eager, &captured);
    }
    assert_int_equal(captured.runs, 1);
    classifier_end(&plain, NULL);
    classifier_end(&eager, NULL);
    classifier_end(&captured, step);
}

/* Only the steps hold the module: they do not hide from each other, nor from other calls, that it was freed. */
SCOPED_TEST(test_modules_that_only_steps_hold_are_freed) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_module *owner = ls_sequential(self.model);
    ls_step *step = classifier_capture(&self), *other = classifier_capture(&self);
    ls_module_free(owner);
    expect_no_replay(step, "a module of the step, Sequential, was freed");
    expect_no_replay(other, "a module of the step, Sequential, was freed");
    assert_null(ls_sequential(self.model)); /* takes no reference of a step */
    expect_message("the module was freed");
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_forward(self.model, self.x));
    expect_error(ls_scope_end(scope), LS_ERR_STATE, "the module was freed");
    assert_int_equal(ls_module_parameter_count(self.model), 0);
    assert_null(ls_module_parameter(self.model, 0));
    assert_int_equal(ls_module_hash(self.model), 0);
    expect_message("the module was freed");
    self.model = NULL;
    ls_step_free(other);
    classifier_end(&self, step);
}

/* An owner that a module or a tensor gets after the capture changes nothing. */
SCOPED_TEST(test_new_owners) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_step *step = classifier_capture(&self);
    ls_module *outer = ls_sequential(self.model, ls_nn_tanh());
    ls_dataset *dataset = ls_tensor_dataset(self.x, self.target);
    assert_non_null(outer);
    assert_non_null(dataset);
    replay_step(step);
    ls_dataset_free(dataset);
    replay_step(step);
    self.model = outer;
    classifier_end(&self, step);
}

static ls_tensor *step_with_gradient(void *user) {
    classifier *self = user;
    ls_optimizer_zero_grad(self->optimizer);
    ls_tensor *y = ls_forward(self->model, self->x);
    const ls_backward_options options = {.gradient = self->gradient};
    return ls_backward_with(y, &options) == LS_OK && ls_optimizer_step(self->optimizer) == LS_OK ? y : NULL;
}

SCOPED_TEST(test_initial_gradients) {
    classifier eager, captured;
    classifier_begin(&eager, make_sgd);
    classifier_begin(&captured, make_sgd);
    eager.gradient = captured.gradient = ls_ones(LS_SHAPE(BATCH, CLASSES), LS_F32);
    assert_non_null(step_with_gradient(&eager));
    ls_step *step = ls_step_capture(step_with_gradient, &captured, NULL);
    assert_non_null(step);
    for (int i = 0; i < 3; i++) {
        change_batch(&eager, &captured, i);
        assert_int_equal(ls_fill(captured.gradient, 0.1 * i), LS_OK);
        assert_non_null(step_with_gradient(&eager));
        replay_step(step);
        expect_equal_classifiers(&eager, &captured);
    }
    ls_tensor *before = captured.gradient;
    captured.gradient = ls_zeros(LS_SHAPE(BATCH, CLASSES), LS_F32);
    ls_release(before);
    expect_no_replay(step, "a tensor passed to ls_backward_with, [4, 3], was freed: capture the step again");
    classifier_end(&captured, step);
    classifier_end(&eager, NULL);
}

static ls_tensor *copy_inner(classifier *self, ls_tensor *loss) {
    return ls_copy_into(self->copy, self->copied) == LS_OK ? loss : NULL;
}

SCOPED_TEST(test_freed_sources_of_copies_are_reported) {
    classifier self;
    classifier_begin(&self, make_sgd);
    self.also = copy_inner;
    self.copied = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    self.copy = ls_zeros(LS_SHAPE(BATCH, FEATURES), LS_F32);
    ls_step *step = classifier_capture(&self);
    assert_int_equal(ls_fill(self.copied, 3), LS_OK);
    replay_step(step);
    assert_true(ls_equal(self.copy, self.copied));
    ls_release(self.copied);
    expect_no_replay(step, "a tensor passed to ls_copy_into, [4, 6], was freed");
    classifier_end(&self, step);
}

SCOPED_TEST(test_changed_modes_are_reported) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_step *step = classifier_capture(&self);
    ls_module_train(self.model, false);
    expect_no_replay(step, "was in training mode when the step was captured");
    ls_module_train(self.model, true);
    replay_step(step);
    const ls_dtype before = ls_autocast(LS_BF16);
    expect_no_replay(step, "ls_no_grad or ls_autocast have changed");
    (void)ls_autocast(before);
    assert_int_equal(ls_set_requires_grad(ls_module_parameter(self.model, 0), false), LS_OK);
    expect_no_replay(step, "requires no gradient any more");
    assert_int_equal(ls_set_requires_grad(ls_module_parameter(self.model, 0), true), LS_OK);
    replay_step(step);
    classifier_end(&self, step);
}

/* A parameter that moves to a flat buffer, or an input whose shape changes. */
SCOPED_TEST(test_moved_tensors_are_reported) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_optimizer_free(self.optimizer);
    ls_module_free(self.model);
    self.model = ls_nn_linear(FEATURES, CLASSES);
    self.optimizer = ls_sgd(NULL, &(ls_sgd_options){.learning_rate = 0.1});
    ls_tensor *parameters[] = {ls_module_parameter(self.model, 0), ls_module_parameter(self.model, 1)};
    assert_int_equal(ls_optimizer_add_group(self.optimizer, parameters, 2, NULL), LS_OK);
    ls_step *step = classifier_capture(&self);
    replay_step(step);
    ls_optimizer *other = make_adam(self.model);
    expect_no_replay(step, "has moved to other memory");
    ls_optimizer_free(other);
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_copy_into(self.x, ls_rand(LS_SHAPE(BATCH + 1, FEATURES), LS_F32)), LS_ERR_SHAPE, "ls_copy_into");
    assert_int_equal(ls_scope_end(scope), LS_ERR_SHAPE);
    classifier_end(&self, step);
}

/* An error of a kernel, such as a target that is not a class, leaves the parameters as they were. */
SCOPED_TEST(test_errors_of_a_replay) {
    classifier eager, captured;
    classifier_begin(&eager, make_adam);
    classifier_begin(&captured, make_adam);
    (void)classifier_run(&eager);
    ls_step *step = classifier_capture(&captured);
    assert_int_equal(ls_fill(captured.target, CLASSES), LS_OK);
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_step_replay(step), LS_ERR_ARGUMENT, "target[0] of the batch is 3, but there are 3 classes");
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    for (int i = 0; i < ls_module_parameter_count(eager.model); i++) {
        assert_true(ls_equal(ls_module_parameter(eager.model, i), ls_module_parameter(captured.model, i)));
    }
    assert_int_equal(ls_fill(captured.target, 1), LS_OK);
    replay_step(step);
    classifier_end(&captured, step);
    classifier_end(&eager, NULL);
}

static void *replay_elsewhere(void *step) {
    expect_error(ls_step_replay(step), LS_ERR_STATE, "another thread has captured the step");
    return NULL;
}

static void *capture_elsewhere(void *user) {
    classifier *self = user;
    self->inner = classifier_capture(self);
    return NULL;
}

/* The second thread's state may get the address of the first thread's state, because the first thread has ended. */
SCOPED_TEST(test_threads_that_end) {
    classifier self;
    classifier_begin(&self, make_sgd);
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, capture_elsewhere, &self), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(pthread_create(&thread, NULL, replay_elsewhere, self.inner), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        ls_step_free(self.inner);
    }
    classifier_end(&self, NULL);
}

/* A thread that has called ls_thread_end captures its steps again. */
TEST(test_thread_end) {
    classifier self;
    ls_scope *scope = ls_scope_begin();
    classifier_begin(&self, make_sgd);
    (void)ls_keep(self.x);
    (void)ls_keep(self.target);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_step *step = classifier_capture(&self);
    ls_thread_end();
    expect_error(ls_step_replay(step), LS_ERR_STATE, "or this thread before ls_thread_end: capture the step again");
    ls_step_free(step);
    step = classifier_capture(&self);
    replay_step(step);
    classifier_end(&self, step);
    ls_release(self.x);
    ls_release(self.target);
}

/* Each thread has its own capture; the other threads run as usual meanwhile. */
static void *train_alone(void *user) {
    classifier self;
    ls_scope *scope = ls_scope_begin();
    (void)user;
    classifier_begin(&self, make_adam);
    for (int i = 0; i < 20; i++) {
        ls_step *step = classifier_capture(&self);
        replay_step(step);
        (void)classifier_run(&self);
        ls_step_free(step);
    }
    assert_int_equal(self.runs, 40);
    ls_optimizer_free(self.optimizer);
    ls_module_free(self.model);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return NULL;
}

SCOPED_TEST(test_threads) {
    classifier self;
    pthread_t threads[3];
    classifier_begin(&self, make_sgd);
    ls_step *step = classifier_capture(&self);
    assert_int_equal(pthread_create(&threads[0], NULL, replay_elsewhere, step), 0);
    assert_int_equal(pthread_join(threads[0], NULL), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, train_alone, NULL), 0);
    }
    for (int i = 0; i < 200; i++) {
        replay_step(step);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    classifier_end(&self, step);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays_have_the_same_bits),
        cmocka_unit_test(test_recomputed_modules),
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_gradients_that_accumulate),
        cmocka_unit_test(test_replays_count_as_changes),
        cmocka_unit_test(test_the_arena_is_smaller_than_its_blocks),
        cmocka_unit_test(test_replays_change_tensors_that_the_step_made),
        cmocka_unit_test(test_freed_objects_are_reported),
        cmocka_unit_test(test_other_optimizers_are_reported),
        cmocka_unit_test(test_freed_objects_that_others_hold_are_reported),
        cmocka_unit_test(test_clipped_gradients),
        cmocka_unit_test(test_modules_that_only_steps_hold_are_freed),
        cmocka_unit_test(test_new_owners),
        cmocka_unit_test(test_initial_gradients),
        cmocka_unit_test(test_freed_sources_of_copies_are_reported),
        cmocka_unit_test(test_changed_modes_are_reported),
        cmocka_unit_test(test_moved_tensors_are_reported),
        cmocka_unit_test(test_errors_of_a_replay),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_threads_that_end),
        cmocka_unit_test(test_thread_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
