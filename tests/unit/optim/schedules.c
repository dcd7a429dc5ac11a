/*
 * Schedules: groups, ends, warm-up, state, and invalid arguments.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <float.h>
#include <math.h>

#include <lockstep/optim.h>

#include "tests/support/allocator.h"
#include "tests/support/elements.h"

static ls_module *model;
static ls_optimizer *sgd, *plain; /* with momentum, and without; learning rate 0.1 */

static int make(void **state) {
    (void)state;
    model = ls_nn_linear(2, 2);
    sgd = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    plain = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    return sgd != NULL && plain != NULL ? 0 : 1;
}

static int unmake(void **state) {
    (void)state;
    ls_optimizer_free(sgd);
    ls_optimizer_free(plain);
    ls_module_free(model);
    return 0;
}

static void expect_none(const ls_schedule *schedule, const char *message) {
    assert_null(schedule);
    expect_message(message);
    assert_true(ls_optimizer_learning_rate(sgd, 0) == 0.1); /* nothing has changed */
    assert_true(ls_optimizer_momentum(sgd) == 0.9);
}

static void expect_near(double is, double right) {
    if (!(fabs(is - right) <= 1e-14)) {
        fail_msg("%.17g is not %.17g", is, right);
    }
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static ls_optimizer *two_groups(void) {
    ls_tensor *weight = ls_module_parameter(model, 0), *bias = ls_module_parameter(model, 1);
    ls_optimizer *optimizer = ls_sgd(NULL, &(ls_sgd_options){.learning_rate = 0.2, .momentum = 0.5});
    assert_int_equal(ls_optimizer_add_group(optimizer, &weight, 1, NULL), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &bias, 1, &(ls_group_options){.learning_rate = LS_ZERO}), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 0, &(ls_group_options){.learning_rate = 0.04}), LS_OK);
    return optimizer;
}

/* Each group has its own base rate, and a frozen group stays frozen, even if the largest or smallest rate is given. */
TEST(test_groups) {
    ls_optimizer *optimizer = two_groups();
    ls_schedule *schedule = ls_schedule_cosine(optimizer, 4, 0.02);
    assert_int_equal(ls_schedule_advance(schedule), LS_OK);
    assert_int_equal(ls_schedule_advance(schedule), LS_OK);
    expect_near(ls_optimizer_learning_rate(optimizer, 0), 0.11);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0);
    expect_near(ls_optimizer_learning_rate(optimizer, 2), 0.03);
    ls_schedule_free(schedule);
    ls_optimizer_free(optimizer);

    optimizer = two_groups();
    schedule = ls_schedule_one_cycle(optimizer, &(ls_one_cycle_options){.steps = 9});
    expect_near(ls_optimizer_learning_rate(optimizer, 0), 0.008);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0);
    expect_near(ls_optimizer_learning_rate(optimizer, 2), 0.0016);
    ls_schedule_free(schedule);
    ls_optimizer_free(optimizer);

    optimizer = two_groups();
    schedule = ls_schedule_cyclic(
        optimizer, &(ls_cyclic_options){.min_learning_rate = 0.1, .max_learning_rate = 0.3, .steps_up = 2});
    assert_int_equal(ls_schedule_advance(schedule), LS_OK);
    expect_near(ls_optimizer_learning_rate(optimizer, 0), 0.2);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0);
    expect_near(ls_optimizer_learning_rate(optimizer, 2), 0.2);

    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 0, NULL), LS_OK);
    assert_int_equal(ls_schedule_advance(schedule), LS_ERR_STATE);
    expect_message("ls_schedule_cyclic: the optimizer has 4 groups, but had 3 when the schedule was created");
    expect_near(ls_optimizer_learning_rate(optimizer, 0), 0.2);
    ls_schedule_free(schedule);

    schedule =
        ls_schedule_cyclic(optimizer, &(ls_cyclic_options){.min_learning_rate = LS_ZERO, .max_learning_rate = 0.3});
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0);
    ls_schedule_free(schedule);
    ls_optimizer_free(optimizer);
}

TEST(test_no_groups) {
    ls_optimizer *optimizer = ls_adam(NULL, NULL);
    ls_schedule *schedule = ls_schedule_exponential(optimizer, 0.5);
    const ls_named *tensors = NULL;
    int count = 0;
    assert_int_equal(ls_schedule_advance(schedule), LS_OK);
    assert_int_equal(ls_schedule_state(schedule, &tensors, &count), LS_OK);
    assert_int_equal(ls_schedule_set_state(schedule, tensors, count), LS_OK);
    ls_schedule_free(schedule);
    ls_optimizer_free(optimizer);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

TEST(test_one_cycle_ends) {
    ls_optimizer *optimizer = two_groups();
    ls_schedule *schedule = ls_schedule_warm_up(
        ls_schedule_one_cycle(optimizer, &(ls_one_cycle_options){.steps = 5, .linear = true}), 3, 0);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0);
    assert_true(ls_optimizer_momentum(optimizer) == 0.95);
    for (int step = 0; step < 8; step++) {
        assert_int_equal(ls_schedule_advance(schedule), LS_OK);
    }
    expect_near(ls_optimizer_learning_rate(optimizer, 0), 0.2 / 25 / 1e4); /* and not below */
    assert_int_equal(ls_schedule_advance(schedule), LS_ERR_STATE);
    expect_message("ls_schedule_one_cycle: all 8 steps are done");
    assert_int_equal(ls_schedule_advance_by(schedule, 1), LS_ERR_STATE);
    ls_schedule_free(schedule);
    ls_optimizer_free(optimizer);
}

TEST(test_momentum_left_alone) {
    ls_schedule *schedule = ls_schedule_one_cycle(plain, &(ls_one_cycle_options){.steps = 5, .no_momentum = true});
    assert_int_equal(ls_schedule_advance(schedule), LS_OK);
    assert_true(ls_optimizer_momentum(plain) == 0);
    ls_schedule_free(schedule);
    assert_int_equal(ls_optimizer_set_learning_rate(plain, -1, 0.1), LS_OK);
}

/* Metrics are ignored during warm-up. */
TEST(test_plateau_after_warm_up) {
    ls_optimizer *optimizer = two_groups();
    const ls_plateau_options options = {.no_patience = true, .factor = 0.5};
    ls_schedule *schedule = ls_schedule_warm_up(ls_schedule_plateau(optimizer, &options), 2, 0.5);
    static const double metrics[] = {0.1, 0.2, 5, 4, NAN, 3.9, INFINITY, -INFINITY};
    static const double rates[] = {0.15, 0.2, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(ls_schedule_advance_by(schedule, metrics[i]), LS_OK);
        expect_near(ls_optimizer_learning_rate(optimizer, 0), rates[i]);
        const ls_named *tensors = NULL;
        int count = 0;
        assert_int_equal(ls_schedule_state(schedule, &tensors, &count), LS_OK);
        assert_int_equal(count, 6);
        assert_int_equal(ls_schedule_set_state(schedule, tensors, count), LS_OK); /* all values are always finite */
    }
    assert_int_equal(ls_schedule_advance(schedule), LS_ERR_STATE);
    expect_message("ls_schedule_plateau needs a metric: call ls_schedule_advance_by");
    ls_schedule_free(schedule);

    const ls_plateau_options to_zero = {.no_patience = true, .factor = LS_ZERO, .minimum = LS_ZERO};
    schedule = ls_schedule_plateau(optimizer, &to_zero);
    assert_int_equal(ls_schedule_advance_by(schedule, NAN), LS_OK);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0);
    ls_schedule_free(schedule);
    ls_optimizer_free(optimizer);
}

static double worse(int64_t step, void *user) {
    return step < 3 ? 1 : *(const double *)user;
}

TEST(test_function_that_goes_wrong) {
    static const double wrong[] = {NAN, INFINITY, -1};
    for (int i = 0; i < 3; i++) {
        double factor = wrong[i];
        ls_optimizer *optimizer = two_groups();
        ls_schedule *schedule = ls_schedule_function(optimizer, worse, &factor);
        assert_int_equal(ls_schedule_advance(schedule), LS_OK);
        assert_int_equal(ls_schedule_advance(schedule), LS_OK);
        assert_int_equal(ls_schedule_advance(schedule), LS_ERR_ARGUMENT);
        expect_message("ls_schedule_function: at step 3 the learning rate of group 0 is ");
        assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.2);
        factor = 0.5; /* the step did not take place, and can be repeated */
        assert_int_equal(ls_schedule_advance(schedule), LS_OK);
        assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.1);
        ls_schedule_free(schedule);
        ls_optimizer_free(optimizer);
    }
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

static const ls_tensor *find(ls_schedule *schedule, const char *name) {
    const ls_named *tensors = NULL;
    int count = 0;
    assert_int_equal(ls_schedule_state(schedule, &tensors, &count), LS_OK);
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return tensors[i].tensor;
        }
    }
    fail_msg("there is no %s", name);
    return NULL;
}

TEST(test_names) {
    ls_optimizer *optimizer = two_groups();
    ls_schedule *schedule = ls_schedule_plateau(optimizer, &(ls_plateau_options){.no_patience = true, .cooldown = 7});
    assert_int_equal(ls_schedule_advance_by(schedule, 3), LS_OK);
    assert_int_equal(ls_schedule_advance_by(schedule, 4), LS_OK);
    assert_true(ls_item(find(schedule, "last_epoch")) == 2);
    assert_true(ls_item(find(schedule, "best")) == 3);
    assert_true(ls_item(find(schedule, "num_bad_epochs")) == 0);
    assert_true(ls_item(find(schedule, "cooldown_counter")) == 7);
    assert_true(ls_item(find(schedule, "reductions")) == 1);
    assert_int_equal(ls_size(find(schedule, "base_lrs"), 0), 3);
    assert_true(((const double *)elements(find(schedule, "base_lrs")))[0] == 0.2);
    ls_schedule_free(schedule);
    ls_optimizer_free(optimizer);
}

/* Tries a state that does not match. Checks the message, and that the schedule continues unchanged. */
static void expect_refused_state(ls_schedule *from, ls_schedule *into, ls_optimizer *optimizer, const char *message) {
    const ls_named *tensors = NULL;
    int count = 0;
    const double rate = ls_optimizer_learning_rate(optimizer, 0), step = ls_item(find(into, "last_epoch"));
    assert_int_equal(ls_schedule_state(from, &tensors, &count), LS_OK);
    assert_int_not_equal(ls_schedule_set_state(into, tensors, count), LS_OK);
    expect_message(message);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == rate);
    assert_true(ls_item(find(into, "last_epoch")) == step);
}

TEST(test_states_that_do_not_fit) {
    ls_optimizer *one = ls_sgd(model, &(ls_sgd_options){.momentum = 0.9}), *other = two_groups();
    ls_schedule *cycle = ls_schedule_one_cycle(one, &(ls_one_cycle_options){.steps = 4});
    ls_schedule *plateau = ls_schedule_plateau(one, NULL);
    ls_schedule *far = ls_schedule_exponential(one, 0.99);
    ls_schedule *groups = ls_schedule_exponential(other, 0.99);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ls_schedule_advance(far), LS_OK);
    }
    expect_refused_state(far, cycle, one, "last_epoch is 5, but this ls_schedule_one_cycle has 4 steps");
    expect_refused_state(far, plateau, one, "the file has no tensor best, which this ls_schedule_plateau needs");
    expect_refused_state(plateau, far, one, "the file has a tensor best that this ls_schedule_exponential does not");
    expect_refused_state(groups, far, one,
                         "base_lrs is [3] of f64 in the file, but [1] of f64 in this ls_schedule_expo");
    ((double *)elements(find(far, "base_lrs")))[0] = -1;
    expect_refused_state(far, cycle, one, "base_lrs contains -1");
    assert_int_equal(ls_schedule_set_state(far, NULL, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_schedule_set_state(NULL, NULL, 0), LS_ERR_ARGUMENT);
    assert_int_equal(ls_schedule_state(NULL, NULL, NULL), LS_ERR_ARGUMENT);
    ls_schedule_free(cycle);
    ls_schedule_free(plateau);
    ls_schedule_free(far);
    ls_schedule_free(groups);
    ls_optimizer_free(one);
    ls_optimizer_free(other);
}

TEST(test_failing_allocations) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    ls_optimizer *optimizer = ls_sgd(NULL, NULL);
    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 0, NULL), LS_OK);
    ls_schedule *schedule = NULL;
    long failures = 0;
    for (; schedule == NULL; failures += schedule == NULL) {
        atomic_store(&allocator.fail_from, atomic_load(&allocator.calls) + failures);
        schedule = ls_schedule_multi_step(optimizer, (const int64_t[]){1, 2}, 2, 0);
        atomic_store(&allocator.fail_from, -1);
        assert_true(schedule != NULL || ls_error_status() == LS_ERR_MEMORY);
    }
    assert_true(failures >= 3);
    const ls_named *tensors = NULL;
    int count = 0;
    failures = 0;
    assert_int_equal(ls_schedule_advance(schedule), LS_OK);
    ls_schedule *other = ls_schedule_multi_step(optimizer, (const int64_t[]){1, 2}, 2, 0);
    assert_int_equal(ls_schedule_state(schedule, &tensors, &count), LS_OK);
    for (ls_status status = LS_ERR_MEMORY; status != LS_OK; failures += status != LS_OK) {
        atomic_store(&allocator.fail_from, atomic_load(&allocator.calls) + failures);
        status = ls_schedule_set_state(other, tensors, count);
        atomic_store(&allocator.fail_from, -1);
        assert_true(status == LS_OK || status == LS_ERR_MEMORY);
        assert_true(ls_item(find(other, "last_epoch")) == (status == LS_OK ? 1 : 0));
    }
    assert_true(failures > 3);
    ls_schedule_free(schedule);
    ls_schedule_free(other);
    ls_optimizer_free(optimizer);
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

/* ---- wrong input ------------------------------------------------------------------------------------------------- */

TEST(test_wrong_numbers) {
    expect_none(ls_schedule_step(sgd, 0, 0), "ls_schedule_step: steps is 0, but must be between 1 and 2^53");
    expect_none(ls_schedule_step(sgd, 3, -0.1), "ls_schedule_step: gamma is -0.1");
    expect_none(ls_schedule_exponential(sgd, NAN), "ls_schedule_exponential: gamma is nan");
    expect_none(ls_schedule_multi_step(sgd, NULL, 1, 0), "ls_schedule_multi_step: the milestones are NULL");
    expect_none(ls_schedule_multi_step(sgd, (const int64_t[]){3, 2}, 2, 0), "milestone 1 is 2, but must be at least 3");
    expect_none(ls_schedule_multi_step(sgd, (const int64_t[]){3}, 1, -1), "ls_schedule_multi_step: gamma is -1");
    expect_none(ls_schedule_cosine(sgd, -5, 0), "ls_schedule_cosine: steps is -5");
    expect_none(ls_schedule_cosine(sgd, INT64_MAX, 0), "ls_schedule_cosine: steps is 9223372036854775807");
    expect_none(ls_schedule_cosine(sgd, 5, -1), "ls_schedule_cosine: minimum is -1");
    expect_none(ls_schedule_cosine_warm_restarts(sgd, 5, -1, 0), "multiplier is -1");
    expect_none(ls_schedule_linear(sgd, 0, 0, 0), "ls_schedule_linear: steps is 0");
    expect_none(ls_schedule_linear(sgd, 4, -1, 0), "ls_schedule_linear: start is -1");
    expect_none(ls_schedule_linear(sgd, 4, 0, -1), "ls_schedule_linear: end is -1");
    expect_none(ls_schedule_polynomial(sgd, 0, 0), "ls_schedule_polynomial: steps is 0");
    expect_none(ls_schedule_polynomial(sgd, 4, -2), "ls_schedule_polynomial: power is -2");
    expect_none(ls_schedule_function(sgd, NULL, NULL), "ls_schedule_function: the function is NULL");
    expect_none(ls_schedule_warm_up(ls_schedule_step(sgd, 5, 0), -1, 0.1), "ls_schedule_warm_up: steps is -1");
    expect_none(ls_schedule_warm_up(ls_schedule_step(sgd, 5, 0), 1, 1.1), "ls_schedule_warm_up: start is 1.1");
}

TEST(test_wrong_options) {
    typedef ls_one_cycle_options one;
    expect_none(ls_schedule_one_cycle(sgd, NULL), "ls_schedule_one_cycle: steps is 0");
    expect_none(ls_schedule_one_cycle(sgd, &(one){.steps = 5, .rising = 1.5}), "rising is 1.5");
    expect_none(ls_schedule_one_cycle(sgd, &(one){.steps = 5, .rising = 0.6, .three_phases = true}), "rising is 0.6");
    expect_none(ls_schedule_one_cycle(sgd, &(one){.steps = 5, .max_learning_rate = -1}), "max_learning_rate is -1");
    expect_none(ls_schedule_one_cycle(sgd, &(one){.steps = 5, .initial_divisor = 0.5}), "initial_divisor is 0.5");
    expect_none(ls_schedule_one_cycle(sgd, &(one){.steps = 5, .final_divisor = LS_ZERO}), "final_divisor is 0");
    expect_none(ls_schedule_one_cycle(sgd, &(one){.steps = 5, .min_momentum = -1}), "min_momentum is -1");
    expect_none(ls_schedule_one_cycle(sgd, &(one){.steps = 5, .max_momentum = 1}), "max_momentum is 1");
    expect_none(ls_schedule_cyclic(sgd, NULL), "ls_schedule_cyclic: max_learning_rate is 0, but must be set");
    typedef ls_cyclic_options cyclic;
    expect_none(ls_schedule_cyclic(sgd, &(cyclic){.max_learning_rate = LS_ZERO}), "max_learning_rate is 0");
    expect_none(ls_schedule_cyclic(sgd, &(cyclic){.max_learning_rate = 1, .steps_up = -1}), "steps_up is -1");
    expect_none(ls_schedule_cyclic(sgd, &(cyclic){.max_learning_rate = 1, .steps_down = -1}), "steps_down is -1");
    expect_none(ls_schedule_cyclic(sgd, &(cyclic){.max_learning_rate = 1, .gamma = 2}), "gamma is 2");
    expect_none(ls_schedule_cyclic(sgd, &(cyclic){.max_learning_rate = 1, .min_learning_rate = -1}),
                "min_learning_rate is -1");
    expect_none(ls_schedule_cyclic(sgd, &(cyclic){.max_learning_rate = 1, .heights = (ls_cycle_heights)7}),
                "7 is not an ls_cycle_heights");
    typedef ls_plateau_options plateau;
    expect_none(ls_schedule_plateau(sgd, &(plateau){.factor = 1}), "ls_schedule_plateau: factor is 1");
    expect_none(ls_schedule_plateau(sgd, &(plateau){.patience = -1}), "patience is -1");
    expect_none(ls_schedule_plateau(sgd, &(plateau){.cooldown = -1}), "cooldown is -1");
    expect_none(ls_schedule_plateau(sgd, &(plateau){.threshold = -1}), "threshold is -1");
    expect_none(ls_schedule_plateau(sgd, &(plateau){.minimum = -1}), "minimum is -1");
    expect_none(ls_schedule_plateau(sgd, &(plateau){.epsilon = -1}), "epsilon is -1");
}

TEST(test_wrong_calls) {
    expect_none(ls_schedule_cosine(ls_sgd(model, &(ls_sgd_options){.momentum = -2}), 5, 0),
                "ls_sgd: momentum is -2"); /* the reason why there is no optimizer */
    expect_message("ls_schedule_cosine: the optimizer");
    expect_none(ls_schedule_warm_up(NULL, 3, 0), "ls_schedule_warm_up: the schedule");
    assert_int_not_equal(ls_schedule_advance(NULL), LS_OK);
    assert_int_not_equal(ls_schedule_advance_by(NULL, 1), LS_OK);
    ls_schedule_free(NULL);
    expect_none(ls_schedule_warm_up(ls_schedule_warm_up(ls_schedule_linear(sgd, 9, 1, 1), 2, 1), 2, 0),
                "the ls_schedule_linear has a warm-up");
    ls_schedule *advanced = ls_schedule_linear(sgd, 9, 1, 1);
    assert_int_equal(ls_schedule_advance(advanced), LS_OK);
    expect_none(ls_schedule_warm_up(advanced, 2, 0), "the ls_schedule_linear has been advanced");
}

/* Momentum can be cycled if the optimizer has momentum. */
TEST(test_momentum) {
    assert_null(ls_schedule_one_cycle(plain, &(ls_one_cycle_options){.steps = 5}));
    expect_message("ls_sgd was created without momentum");
    assert_true(ls_optimizer_learning_rate(plain, 0) == 0.1);
    ls_optimizer *adagrad = ls_adagrad(model, NULL);
    assert_null(ls_schedule_cyclic(adagrad, &(ls_cyclic_options){.max_learning_rate = 1}));
    expect_message("ls_adagrad is a method without momentum");
    assert_true(ls_optimizer_momentum(adagrad) == 0);
    ls_optimizer_free(adagrad);
    assert_true(ls_optimizer_momentum(NULL) == 0);
    assert_int_not_equal(ls_optimizer_set_momentum(NULL, 0.5), LS_OK);
    static const double wrong[] = {0, 1, -0.5, NAN};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ls_optimizer_set_momentum(sgd, wrong[i]), LS_ERR_ARGUMENT);
        expect_message("ls_sgd: momentum is ");
    }
    ls_optimizer *rmsprop = ls_rmsprop(model, &(ls_rmsprop_options){.momentum = 0.3});
    ls_optimizer *adamw = ls_adamw(model, NULL);
    assert_true(ls_optimizer_momentum(rmsprop) == 0.3);
    assert_true(ls_optimizer_momentum(adamw) == 0.9);
    assert_int_equal(ls_optimizer_set_momentum(adamw, 0.7), LS_OK);
    assert_true(ls_optimizer_momentum(adamw) == 0.7);
    ls_optimizer_free(rmsprop);
    ls_optimizer_free(adamw);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_no_groups),
        cmocka_unit_test(test_one_cycle_ends),
        cmocka_unit_test(test_momentum_left_alone),
        cmocka_unit_test(test_plateau_after_warm_up),
        cmocka_unit_test(test_function_that_goes_wrong),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_states_that_do_not_fit),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_wrong_numbers),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_momentum),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
