/*
 * Trials compared with torchbearer 0.5.5 (tests/fixtures/make_torchbearer.py): with the same weights and batches, the
 * history has the same columns and values, and the same hooks are called in the same order.
 *
 * devices: cpu
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>
#include <string.h>

#include <lockstep/train.h>

#include "tests/support/operations.h"

enum {
    SAMPLES = 144,
    HELD_BACK = 36,
    TEST = 24,
    BATCH = 12,
    INPUTS = 4,
    HIDDEN = 8,
    CLASSES = 3,
    EPOCHS = 5,
    WEIGHT_SEED = 17,
    DATA_SEED = 18
};

FIXTURES(fixtures, "torchbearer.txt")

/* ---- the same trial ---------------------------------------------------------------------------------------------- */

static void set_numbers(ls_tensor *tensor, uint64_t seed, uint64_t stream) {
    double *values = elements(tensor);
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        values[i] = 2.0 * ls_random_uniform(seed, stream, (uint64_t)i) - 1.0;
    }
}

/* A sample's class is the number of positive values among its first two. */
static ls_loader *make_data(uint64_t stream, int64_t count) {
    ls_tensor *x = ls_empty(LS_SHAPE(count, INPUTS), LS_F64), *target = ls_empty(LS_SHAPE(count), LS_I64);
    set_numbers(x, DATA_SEED, stream);
    const double *values = elements(x);
    for (int64_t row = 0; row < count; row++) {
        ((int64_t *)elements(target))[row] = (values[row * INPUTS] > 0) + (values[row * INPUTS + 1] > 0);
    }
    return ls_loader_new(ls_tensor_dataset(x, target), &(ls_loader_options){.batch_size = BATCH, .no_shuffle = true});
}

typedef struct participants {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *train, *validate, *test;
    ls_trial *trial;
} participants;

static participants make_trial(ls_callback *const *callbacks, int count) {
    const ls_linear_options wide = {.dtype = LS_F64};
    participants p = {.train = make_data(0, SAMPLES), .validate = make_data(1, HELD_BACK), .test = make_data(2, TEST)};
    p.model = ls_sequential(ls_nn_linear_with(INPUTS, HIDDEN, &wide), ls_nn_tanh(),
                            ls_nn_linear_with(HIDDEN, CLASSES, &wide));
    for (int i = 0; i < ls_module_parameter_count(p.model); i++) {
        set_numbers(ls_module_parameter(p.model, i), WEIGHT_SEED, (uint64_t)i);
    }
    p.optimizer = ls_sgd(p.model, &(ls_sgd_options){.learning_rate = 0.2, .momentum = 0.5});
    p.trial = ls_trial_new(&(ls_trial_options){.model = p.model,
                                               .optimizer = p.optimizer,
                                               .criterion = ls_criterion_cross_entropy,
                                               .train = p.train,
                                               .validate = p.validate,
                                               .metrics = LS_METRICS("running_acc", "running_loss", "acc", "loss"),
                                               .callbacks = callbacks,
                                               .callback_count = count,
                                               .quiet = true});
    assert_non_null(p.trial);
    return p;
}

static void free_all(participants *p) {
    ls_trial_free(p->trial);
    ls_optimizer_free(p->optimizer);
    ls_module_free(p->model);
    ls_loader_free(p->train);
    ls_loader_free(p->validate);
    ls_loader_free(p->test);
}

/* ---- the history ------------------------------------------------------------------------------------------------- */

/* torchbearer computes its means in f32. */
static void check_column(const ls_trial *trial, const char *name, int64_t first) {
    const fixture *column = fixture_find(fixtures, name);
    for (int i = 0; i < column->count; i++) {
        const double is = ls_trial_history(trial, first + i, name);
        if (!(fabs(is - column->values[i]) <= 1e-6)) {
            fail_msg("%s of epoch %d is %.9g, torchbearer's is %.9g", name, (int)first + i, is, column->values[i]);
        }
    }
}

TEST(test_history) {
    participants p = make_trial(NULL, 0);
    assert_int_equal(ls_trial_run(p.trial, EPOCHS), LS_OK);
    assert_int_equal(ls_trial_evaluate(p.trial, p.test, "test"), LS_OK);
    static const char *const names[] = {"loss", "acc", "val_loss", "val_acc", "running_loss", "running_acc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(fixture_find(fixtures, names[i])->count, EPOCHS);
        check_column(p.trial, names[i], 0);
    }
    check_column(p.trial, "test_loss", EPOCHS - 1);
    check_column(p.trial, "test_acc", EPOCHS - 1);
    free_all(&p);
}

/* ---- the hooks --------------------------------------------------------------------------------------------------- */

typedef struct calls {
    double numbers[1024];
    int count;
} calls;

static ls_status note(void *user, int number) {
    calls *made = user;
    made->numbers[made->count++] = number;
    return LS_OK;
}

#define HOOKS(apply)                                                                                                   \
    apply(0, init) apply(1, start) apply(2, start_epoch) apply(3, start_training) apply(4, sample) apply(5, forward)   \
        apply(6, criterion) apply(7, backward) apply(8, step_training) apply(9, end_training)                          \
            apply(10, start_validation) apply(11, sample_validation) apply(12, forward_validation)                     \
                apply(13, criterion_validation) apply(14, step_validation) apply(15, end_validation)                   \
                    apply(16, end_epoch) apply(17, checkpoint) apply(18, end)
#define NOTING(number, name)                                                                                           \
    static ls_status note_##name(ls_trial_state *state, void *user) {                                                  \
        (void)state;                                                                                                   \
        return note(user, number);                                                                                     \
    }
HOOKS(NOTING)
#define FIELD(number, name) .on_##name = note_##name,

static void check_calls(const char *name, calls *made) {
    const fixture *expected = fixture_find(fixtures, name);
    for (int i = 0; i < expected->count && i < made->count; i++) {
        if (made->numbers[i] != expected->values[i]) {
            fail_msg("%s: call %d is of hook %g, torchbearer's of %g", name, i, made->numbers[i], expected->values[i]);
        }
    }
    assert_int_equal(made->count, expected->count);
    made->count = 0;
}

TEST(test_hooks) {
    calls made = {.count = 0};
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){HOOKS(FIELD)}, &made);
    participants p = make_trial(&callback, 1);
    check_calls("hooks_new", &made);
    assert_int_equal(ls_trial_run(p.trial, 2), LS_OK);
    check_calls("hooks_run", &made);
    assert_int_equal(ls_trial_run(p.trial, 3), LS_OK);
    check_calls("hooks_run_on", &made);
    assert_int_equal(ls_trial_evaluate(p.trial, p.test, "test"), LS_OK);
    check_calls("hooks_evaluate", &made);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *outputs;
    assert_int_equal(ls_trial_predict(p.trial, p.test, false, &outputs), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    check_calls("hooks_predict", &made);
    assert_int_equal(ls_trial_replay(p.trial, &callback, 1, false), LS_OK);
    check_calls("hooks_replay", &made);
    assert_int_equal(ls_trial_replay(p.trial, &callback, 1, true), LS_OK);
    check_calls("hooks_replay_briefly", &made);
    free_all(&p);
}

static ls_status stop_at_sixteen(ls_trial_state *state, void *user) {
    (void)user;
    state->stop = state->epoch == 1 && state->batch == 3;
    return LS_OK;
}

TEST(test_hooks_of_a_run_that_is_stopped) {
    calls made = {.count = 0};
    ls_callback *const callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_step_training = stop_at_sixteen}, NULL),
                                      ls_callback_new(&(ls_callback_hooks){HOOKS(FIELD)}, &made)};
    participants p = make_trial(callbacks, 2);
    assert_int_equal(ls_trial_run(p.trial, EPOCHS), LS_OK);
    check_calls("hooks_stopped", &made);
    assert_int_equal(ls_trial_history_count(p.trial), (int64_t)fixture_find(fixtures, "epochs_stopped")->values[0]);
    free_all(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_history),
        cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_hooks_of_a_run_that_is_stopped),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
