/*
 * Pointers that a training program keeps after the objects have been freed: loaders, optimizers, and batches of a
 * loader that has advanced. Every call on them fails with LS_ERR_STATE and a message with the call and the remedy.
 *
 * devices: cpu shadow cuda
 */
#include <lockstep/lockstep.h>

#include "tests/support/trials.h"

/* ---- loaders and optimizers that were freed ---------------------------------------------------------------------- */

static const char loader_freed[] = "the loader has already been freed (ls_loader_free)";
static const char optimizer_freed[] = "the optimizer has already been freed (ls_optimizer_free)";

TEST(test_calls_on_a_freed_loader) {
    ls_loader *loader = make_loader(0, TRAIN_COUNT);
    ls_batch batch;
    bool more;
    ls_loader_free(loader);
    expect_error(ls_loader_next(loader, &batch, &more), LS_ERR_STATE,
                 "ls_loader_next: the loader has already been freed");
    assert_true(batch.input == NULL && !more);
    expect_error(ls_loader_seek(loader, 0, 0), LS_ERR_STATE, "ls_loader_seek: the loader has already been freed");
    assert_int_equal(ls_loader_batch_count(loader), 0);
    assert_null(ls_loader_dataset(loader));
    ls_loader_free(loader); /* again: nothing */
}

TEST(test_calls_on_the_optimizer_of_a_freed_model) {
    const ls_named *tensors = NULL;
    int count = 0;
    ls_module *model = ls_nn_linear(2, 3);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    ls_module_free(model);
    static const char freed[] = "ls_adam: parameter 0 was freed: free the optimizer before the model";
    expect_error(ls_optimizer_step(optimizer), LS_ERR_STATE, freed);
    expect_error(ls_optimizer_state(optimizer, &tensors, &count), LS_ERR_STATE, freed);
    ls_optimizer_zero_grad(optimizer);
    ls_optimizer_free(optimizer);
}

TEST(test_calls_on_a_freed_optimizer) {
    setting s = make_setting();
    const ls_named *tensors = NULL;
    int count = 0;
    ls_schedule *schedule = ls_schedule_step(s.optimizer, 2, 0.5);
    ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
    assert_non_null(schedule);
    assert_non_null(scaler);
    ls_optimizer_free(s.optimizer);
    expect_error(ls_optimizer_step(s.optimizer), LS_ERR_STATE,
                 "ls_optimizer_step: the optimizer has already been freed");
    expect_error(ls_optimizer_add_group(s.optimizer, NULL, 0, NULL), LS_ERR_STATE, optimizer_freed);
    expect_error(ls_optimizer_set_learning_rate(s.optimizer, -1, 1), LS_ERR_STATE, optimizer_freed);
    expect_error(ls_optimizer_set_momentum(s.optimizer, 0.5), LS_ERR_STATE, optimizer_freed);
    expect_error(ls_optimizer_state(s.optimizer, &tensors, &count), LS_ERR_STATE, optimizer_freed);
    expect_error(ls_optimizer_set_state(s.optimizer, NULL, 0), LS_ERR_STATE, optimizer_freed);
    expect_error(ls_optimizer_load(s.optimizer, "file"), LS_ERR_STATE, optimizer_freed);
    expect_error(ls_schedule_advance(schedule), LS_ERR_STATE, optimizer_freed);
    expect_error(ls_grad_scaler_step(scaler, s.optimizer), LS_ERR_STATE, optimizer_freed);
    assert_null(ls_schedule_step(s.optimizer, 2, 0.5));
    assert_int_equal(ls_optimizer_group_count(s.optimizer), 0);
    assert_true(ls_optimizer_momentum(s.optimizer) == 0 && ls_optimizer_learning_rate(s.optimizer, 0) == 0);
    ls_optimizer_zero_grad(s.optimizer);
    ls_schedule_free(schedule);
    ls_grad_scaler_free(scaler);
    free_setting(&s); /* frees the optimizer a second time, which has no effect */
}

/* The borrowed object of a trial that is freed before the run. */
enum { TRAIN_LOADER, VALIDATION_LOADER, OPTIMIZER, MODEL, BORROWED };

/* Frees enough modules that the library's records for stale pointers are replaced. */
static void free_modules(void) {
    ls_module *layers[100];
    for (int i = 0; i < 100; i++) {
        layers[i] = ls_nn_relu();
    }
    ls_module_free(ls_sequential_of(layers, 100));
}

TEST(test_a_trial_of_what_was_freed) {
    for (int which = 0; which < BORROWED; which++) {
        setting s = make_setting();
        const ls_trial_options options = options_of(&s);
        ls_trial *trial = ls_trial_new(&options);
        assert_non_null(trial);
        if (which == OPTIMIZER) {
            ls_optimizer_free(s.optimizer);
        } else if (which == MODEL) {
            ls_module_free(s.model);
        } else {
            ls_loader_free(which == TRAIN_LOADER ? s.train : s.validate);
        }
        if (which != MODEL) {
            free_modules();
        }
        expect_error(ls_trial_run(trial, 1), LS_ERR_STATE,
                     which == OPTIMIZER ? optimizer_freed
                     : which == MODEL   ? "the module was freed, by ls_module_free"
                                        : loader_freed);
        if (which != MODEL) {
            expect_message("ls_trial_run: ");
        }
        if (which == VALIDATION_LOADER) {
            expect_error(ls_trial_evaluate(trial, s.validate, "test"), LS_ERR_STATE, loader_freed);
        }
        ls_trial_free(trial);
        free_setting(&s);
    }
}

/* ---- batches that were kept -------------------------------------------------------------------------------------- */

enum { SAMPLES = 600, KEPT = 28 };

static const char past[] = "belongs to an earlier batch of its loader; copy it with ls_clone";

static ls_loader *numbers(const ls_loader_options *how) {
    ls_loader *loader = ls_loader_new(
        ls_tensor_dataset(ls_arange(LS_SHAPE(SAMPLES), LS_F64), ls_arange(LS_SHAPE(SAMPLES), LS_I64)), how);
    assert_non_null(loader);
    return loader;
}

static ls_batch next(ls_loader *loader) {
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_true(more);
    return batch;
}

static void expect_past(ls_tensor *tensor) {
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_sum(tensor));
    expect_error(ls_scope_end(scope), LS_ERR_STATE, past);
    expect_message("ls_sum: ");
}

/* Releasing a program's own tensors does not shorten the time during which stale batches are detected. */
static void release_some(void) {
    for (int i = 0; i < 20; i++) {
        ls_release(ls_zeros(LS_SHAPE(2), LS_F64));
    }
}

static void check_kept(ls_loader *loader) {
    ls_tensor *kept[KEPT][2];
    for (int i = 0; i < KEPT; i++) {
        const ls_batch batch = next(loader);
        kept[i][0] = batch.input;
        kept[i][1] = batch.target;
        assert_true(ls_at(batch.input, (const int64_t[]){0}) == 2 * i);
        for (int k = 0; k < i; k++) {
            expect_past(kept[k][0]);
            expect_past(kept[k][1]);
        }
        release_some();
    }
    ls_loader_free(loader);
    expect_past(kept[KEPT - 1][0]);
    expect_past(kept[KEPT - 1][1]);
}

static ls_status make_next(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    (void)self;
    (void)epoch;
    (void)more;
    batch->input = ls_full(LS_SHAPE(2), LS_F64, 2.0 * (double)number);
    batch->target = ls_zeros(LS_SHAPE(2), LS_I64);
    return LS_OK;
}

static ls_tensor *unchanged(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_add(batch, 0.0);
}

TEST(test_kept_batches_are_told) {
    static const ls_loader_type type = {.name = "own", .next = make_next};
    check_kept(numbers(&(ls_loader_options){.batch_size = 2, .no_shuffle = true}));
    check_kept(numbers(&(ls_loader_options){.batch_size = 2, .no_shuffle = true, .threads = 2}));
    check_kept(ls_loader_custom(&type, -1));
    ls_dataset *changed = ls_dataset_transform_input(
        ls_tensor_dataset(ls_arange(LS_SHAPE(SAMPLES), LS_F64), ls_arange(LS_SHAPE(SAMPLES), LS_I64)), unchanged, NULL);
    check_kept(ls_loader_new(changed, &(ls_loader_options){.batch_size = 2, .no_shuffle = true}));
}

/* References to a batch, or to its elements, keep it alive. */
TEST(test_what_holds_a_batch_keeps_it) {
    for (int threads = 0; threads < 2; threads++) {
        ls_loader *loader = numbers(&(ls_loader_options){.batch_size = 2, .no_shuffle = true, .threads = threads});
        ls_scope *scope = ls_scope_begin();
        ls_batch batch = next(loader);
        ls_tensor *copy = ls_clone(batch.input);
        ls_tensor *view = ls_alias(batch.input);
        ls_tensor *weight = ls_ones(LS_SHAPE(2), LS_F64);
        assert_int_equal(ls_set_requires_grad(weight, true), LS_OK);
        batch = next(loader);
        ls_tensor *loss = ls_sum(ls_mul(batch.input, weight));
        ls_dataset *set = ls_tensor_dataset(batch.input, batch.target);
        for (int i = 0; i < 2 * KEPT; i++) {
            (void)next(loader);
        }
        assert_true(ls_item(ls_sum(copy)) == 1 && ls_item(ls_sum(view)) == 1);
        assert_int_equal(ls_backward(loss), LS_OK);
        assert_true(ls_item(ls_sum(ls_grad(weight))) == 5);
        ls_loader *again = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
        assert_true(ls_item(ls_sum(next(again).input)) == 5);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        ls_loader_free(again);
        ls_loader_free(loader);
    }
}

/* The program made a batch tensor a leaf: its gradient is not passed on to the next batch. */
TEST(test_a_batch_that_wants_a_gradient) {
    ls_loader *loader = numbers(&(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch = next(loader);
    ls_tensor *first = batch.input;
    assert_int_equal(ls_set_requires_grad(first, true), LS_OK);
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_backward(ls_sum(ls_square(first))), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    batch = next(loader);
    expect_past(first);
    assert_null(ls_grad(batch.input));
    assert_false(ls_requires_grad(batch.input));
    ls_loader_free(loader);
}

/* ---- the thread's state ------------------------------------------------------------------------------------------ */

static ls_status end_thread(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    ls_thread_end();
    return LS_OK;
}

/* A hook must not end the scopes of the trial. The program's own scopes stay open, too. */
TEST(test_a_hook_that_ends_the_thread) {
    const ls_callback_hooks hooks[] = {{.on_init = end_thread},
                                       {.on_start = end_thread},
                                       {.on_start_epoch = end_thread},
                                       {.on_start_training = end_thread},
                                       {.on_sample = end_thread},
                                       {.on_forward = end_thread},
                                       {.on_backward = end_thread},
                                       {.on_step_training = end_thread},
                                       {.on_end_training = end_thread},
                                       {.on_step_validation = end_thread},
                                       {.on_end_validation = end_thread},
                                       {.on_end_epoch = end_thread},
                                       {.on_end = end_thread}};
    for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++) {
        setting s = make_setting();
        ls_scope *scope = ls_scope_begin();
        ls_callback *const callbacks[] = {ls_callback_new(&hooks[i], NULL)};
        ls_trial_options options = options_of(&s);
        options.callbacks = callbacks;
        options.callback_count = 1;
        ls_trial *trial = ls_trial_new(&options);
        assert_true((trial == NULL) == (hooks[i].on_init != NULL));
        expect_error(trial != NULL ? ls_trial_run(trial, 1) : ls_error_status(), LS_ERR_STATE, "ls_thread_end: ");
        ls_trial_free(trial);
        (void)ls_scope_end(scope);
        free_setting(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_on_a_freed_loader),
        cmocka_unit_test(test_calls_on_a_freed_optimizer),
        cmocka_unit_test(test_calls_on_the_optimizer_of_a_freed_model),
        cmocka_unit_test(test_a_trial_of_what_was_freed),
        cmocka_unit_test(test_kept_batches_are_told),
        cmocka_unit_test(test_what_holds_a_batch_keeps_it),
        cmocka_unit_test(test_a_batch_that_wants_a_gradient),
        cmocka_unit_test(test_a_hook_that_ends_the_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
