/*
 * Optimizers that evaluate the loss themselves: conjugate gradients on problems with known minima, and for all such
 * optimizers, losses that are not finite, closures that fail, and parameters that are refused.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/optim.h>

/* ---- problems ---------------------------------------------------------------------------------------------------- */

typedef struct problem {
    ls_tensor *(*loss)(ls_tensor *p);
    ls_tensor *p;
    int evaluations;
    int fail_at; /* number of the evaluation that fails; 0 means none */
} problem;

static problem *problem_new(ls_tensor *(*loss)(ls_tensor *p), ls_dtype dtype, int64_t count, const double *start) {
    problem *self = calloc(1, sizeof *self);
    assert_non_null(self);
    ls_scope *scope = ls_scope_begin();
    self->loss = loss;
    self->p = ls_keep(ls_clone(ls_to(ls_from(LS_SHAPE(count), LS_F64, start), dtype)));
    assert_int_equal(ls_set_requires_grad(self->p, true), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return self;
}

static void problem_free(problem *self, ls_optimizer *optimizer) {
    ls_optimizer_free(optimizer);
    ls_release(self->p);
    free(self);
}

static ls_status evaluate(void *argument, double *loss) {
    problem *self = argument;
    if (++self->evaluations == self->fail_at) {
        return ls_error_set(LS_ERR_STOPPED, "evaluation %d is not to be", self->evaluations);
    }
    ls_tensor *value = self->loss(self->p);
    *loss = ls_item(value);
    return ls_backward(value);
}

static ls_optimizer *over(ls_optimizer *optimizer, problem *self) {
    assert_non_null(optimizer);
    assert_int_equal(ls_optimizer_add_group(optimizer, &self->p, 1, NULL), LS_OK);
    return optimizer;
}

static double at(const problem *self, int64_t i) {
    return ls_at(self->p, &i);
}

/* Has the curvatures 1, 10 and 100, and its minimum at (1, 2, 3). */
static ls_tensor *bowl(ls_tensor *p) {
    const double curvature[] = {1, 10, 100}, lowest[] = {1, 2, 3};
    ls_tensor *away = ls_sub(p, ls_to(ls_from(LS_SHAPE(3), LS_F64, lowest), ls_dtype_of(p)));
    return ls_sum(ls_mul(ls_to(ls_from(LS_SHAPE(3), LS_F64, curvature), ls_dtype_of(p)), ls_square(away)));
}

static ls_tensor *rosenbrock(ls_tensor *p) {
    ls_tensor *x = ls_select(p, 0, 0), *y = ls_select(p, 0, 1);
    return ls_add(ls_mul(ls_square(ls_sub(y, ls_square(x))), 100), ls_square(ls_sub(x, 1)));
}

/* x - log(x): infinite at 0, NaN below, minimum at 1. */
static ls_tensor *barrier(ls_tensor *p) {
    return ls_sum(ls_sub(p, ls_log(p)));
}

/* ---- conjugate gradients ----------------------------------------------------------------------------------------- */

static void check_conjugate(ls_conjugate_formula formula, ls_dtype dtype, double tolerance) {
    problem *self = problem_new(bowl, dtype, 3, (const double[]){-3, 5, 4});
    ls_optimizer *optimizer = over(
        ls_conjugate_gradient(NULL, &(ls_conjugate_gradient_options){.formula = formula, .max_iterations = 40}), self);
    double before = 0;
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, &before), LS_OK);
    assert_true(before == 16 + 10 * 9 + 100);
    for (int i = 0; i < 3; i++) {
        if (!(fabs(at(self, i) - (i + 1)) <= tolerance)) {
            fail_msg("formula %d: parameter %d is %.9g after %d evaluations", (int)formula, i, at(self, i),
                     self->evaluations);
        }
    }
    assert_in_range(self->evaluations, 4, 60); /* steepest descent needs hundreds */
    problem_free(self, optimizer);
}

TEST(test_conjugate_gradients_find_the_bottom) {
    check_conjugate(LS_POLAK_RIBIERE, LS_F64, 1e-4);
    check_conjugate(LS_FLETCHER_REEVES, LS_F64, 1e-4);
    check_conjugate(LS_POLAK_RIBIERE, LS_F32, 1e-3);
}

static int evaluations_in_valley(const ls_conjugate_gradient_options *options) {
    problem *self = problem_new(rosenbrock, LS_F64, 2, (const double[]){-1.2, 1});
    ls_optimizer *optimizer = over(ls_conjugate_gradient(NULL, options), self);
    while (self->evaluations < 5000 && fabs(at(self, 0) - 1) > 1e-4) {
        assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK);
    }
    const int evaluations = self->evaluations;
    problem_free(self, optimizer);
    return evaluations;
}

TEST(test_conjugate_gradients_along_a_valley) {
    const int ours = evaluations_in_valley(&(ls_conjugate_gradient_options){.tolerance_change = 1e-300});
    const int steepest =
        evaluations_in_valley(&(ls_conjugate_gradient_options){.tolerance_change = 1e-300, .restart_every = 1});
    assert_in_range(ours, 10, 300);
    assert_in_range(steepest, 10 * ours, 6000);
}

/* ---- losses that are not finite ---------------------------------------------------------------------------------- */

TEST(test_a_search_steps_back_from_what_is_not_finite) {
    for (int method = 0; method < 2; method++) {
        problem *self = problem_new(barrier, LS_F64, 1, (const double[]){3});
        ls_optimizer *optimizer =
            over(method == 0 ? ls_lbfgs(NULL, &(ls_lbfgs_options){.learning_rate = 20, .strong_wolfe = true})
                             : ls_conjugate_gradient(NULL, &(ls_conjugate_gradient_options){.learning_rate = 20}),
                 self);
        assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK);
        if (!(fabs(at(self, 0) - 1) < 1e-4)) {
            fail_msg("method %d ends at %.9g", method, at(self, 0));
        }
        problem_free(self, optimizer);
    }
}

TEST(test_fixed_steps_into_what_is_not_finite_are_an_error) {
    problem *self = problem_new(barrier, LS_F64, 1, (const double[]){3});
    ls_optimizer *optimizer = over(ls_lbfgs(NULL, &(ls_lbfgs_options){.learning_rate = 20}), self);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_ERR_STATE);
    assert_string_equal(ls_error_message(),
                        "ls_lbfgs: the loss of evaluation 2 is not finite; a smaller learning_rate or "
                        "strong_wolfe may help");
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_ERR_STATE);
    assert_string_equal(ls_error_message(), "ls_lbfgs: the loss of evaluation 1 is not finite; begin elsewhere");
    problem_free(self, optimizer);
}

/* The gradient of the square root at 0 is not finite. */
static ls_tensor *root(ls_tensor *p) {
    return ls_sum(ls_sqrt(p));
}

TEST(test_a_gradient_that_is_not_finite_is_an_error) {
    problem *self = problem_new(root, LS_F64, 2, (const double[]){1, 0});
    ls_optimizer *optimizer = over(ls_lbfgs(NULL, &(ls_lbfgs_options){.strong_wolfe = true}), self);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_ERR_STATE);
    assert_string_equal(ls_error_message(), "ls_lbfgs: the gradient of evaluation 1 is not finite");
    assert_true(at(self, 0) == 1 && at(self, 1) == 0);
    problem_free(self, optimizer);
}

/* ---- closures ---------------------------------------------------------------------------------------------------- */

TEST(test_a_closure_that_fails_ends_the_step) {
    problem *self = problem_new(rosenbrock, LS_F64, 2, (const double[]){-1.2, 1});
    ls_optimizer *optimizer = over(ls_lbfgs(NULL, &(ls_lbfgs_options){.strong_wolfe = true}), self);
    self->fail_at = 2;
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_ERR_STOPPED);
    assert_string_equal(ls_error_message(), "evaluation 2 is not to be");
    assert_true(at(self, 0) == -1.2 && at(self, 1) == 1); /* the start of the search */
    assert_int_equal(ls_optimizer_last_step(optimizer).reason, LS_STOP_FAILED);
    assert_int_equal(ls_optimizer_last_step(optimizer).evaluations, 2);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK);
    problem_free(self, optimizer);
}

static ls_status make_too_much(void *argument, double *loss) {
    (void)ls_matmul(ls_zeros(LS_SHAPE(2, 3), LS_F64), ls_zeros(LS_SHAPE(2, 3), LS_F64));
    return evaluate(argument, loss);
}

TEST(test_what_goes_wrong_in_a_closure_is_told) {
    problem *self = problem_new(rosenbrock, LS_F64, 2, (const double[]){-1.2, 1});
    ls_optimizer *optimizer = over(ls_lbfgs(NULL, NULL), self);
    assert_int_equal(ls_optimizer_step_closure(optimizer, make_too_much, self, NULL), LS_ERR_SHAPE);
    assert_int_equal(ls_optimizer_step_closure(optimizer, NULL, self, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_step_closure(NULL, evaluate, self, NULL), LS_ERR_ARGUMENT);
    const bool recording_off = ls_no_grad(true);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK); /* the closure still records */
    assert_true(ls_no_grad(recording_off));
    problem_free(self, optimizer);
}

TEST(test_other_optimizers_take_closures_too) {
    problem *self = problem_new(bowl, LS_F64, 3, (const double[]){0, 0, 0});
    ls_optimizer *optimizer = over(ls_sgd(NULL, &(ls_sgd_options){.learning_rate = 0.001}), self);
    double loss = 0;
    for (int step = 0; step < 2; step++) {
        assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, &loss), LS_OK);
    }
    assert_int_equal(self->evaluations, 2);
    assert_true(fabs(at(self, 2) - 3 * (1 - 0.8 * 0.8)) < 1e-12); /* only the second gradient, not the sum of both */
    assert_true(loss < 1 + 40 + 900);
    problem_free(self, optimizer);
}

static ls_status end_at_nan(void *user, double *loss) {
    const ls_status status = evaluate(user, loss);
    *loss = NAN;
    return status;
}

TEST(test_a_loss_that_is_not_finite_is_refused) {
    problem *self = problem_new(bowl, LS_F64, 3, (const double[]){0, 0, 0});
    ls_optimizer *optimizer = over(ls_sgd(NULL, &(ls_sgd_options){.learning_rate = 0.001}), self);
    expect_error(ls_optimizer_step_closure(optimizer, end_at_nan, self, NULL), LS_ERR_STATE, "the loss is nan");
    assert_true(at(self, 0) == 0 && at(self, 1) == 0 && at(self, 2) == 0);
    problem_free(self, optimizer);
}

/* ---- why a step stopped ------------------------------------------------------------------------------------------ */

static void expect_stop(ls_optimizer *optimizer, const double *start, ls_stop_reason reason, int iterations) {
    problem *self = problem_new(bowl, LS_F64, 3, start);
    (void)over(optimizer, self);
    assert_int_equal(ls_optimizer_last_step(optimizer).reason, LS_STOP_NONE);
    for (int step = 1; step <= 2; step++) { /* the second step counts from zero again */
        self->evaluations = 0;
        assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK);
        const ls_step_info info = ls_optimizer_last_step(optimizer);
        assert_int_equal(info.evaluations, self->evaluations);
        if (step == 1) {
            assert_string_equal(ls_stop_reason_name(info.reason), ls_stop_reason_name(reason));
            assert_true(iterations < 0 || info.iterations == iterations);
        }
    }
    problem_free(self, optimizer);
}

TEST(test_the_reason_of_a_stop_is_known) {
    const double away[] = {-3, 5, 4}, lowest[] = {1, 2, 3};
    expect_stop(ls_lbfgs(NULL, NULL), lowest, LS_STOP_GRADIENT, 0);
    expect_stop(ls_lbfgs(NULL, &(ls_lbfgs_options){.max_iterations = 2, .max_evaluations = 9}), away,
                LS_STOP_ITERATIONS, 2);
    expect_stop(ls_lbfgs(NULL, &(ls_lbfgs_options){.max_iterations = 9, .max_evaluations = 3}), away,
                LS_STOP_EVALUATIONS, 2);
    expect_stop(ls_lbfgs(NULL, &(ls_lbfgs_options){.tolerance_change = 1e3, .tolerance_gradient = LS_ZERO}), away,
                LS_STOP_CHANGE, 1);
    expect_stop(ls_lbfgs(NULL, &(ls_lbfgs_options){.tolerance_change = 1e9}), away, LS_STOP_DIRECTION, 1);
    expect_stop(ls_conjugate_gradient(NULL, &(ls_conjugate_gradient_options){.max_iterations = 50}), away,
                LS_STOP_GRADIENT, -1);
    expect_stop(ls_sgd(NULL, NULL), away, LS_STOP_ONE_STEP, 1);
    assert_int_equal(ls_optimizer_last_step(NULL).reason, LS_STOP_NONE);
    assert_string_equal(ls_stop_reason_name((ls_stop_reason)99), "unknown");
}

static ls_status refuse_calls(void *user, double *loss) {
    (void)user;
    *loss = 0;
    return LS_ERR_INTERNAL;
}

TEST(test_an_optimizer_without_a_group_takes_no_step) {
    ls_optimizer *const optimizers[] = {ls_lbfgs(NULL, NULL), ls_conjugate_gradient(NULL, NULL), ls_adam(NULL, NULL)};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ls_optimizer_step_closure(optimizers[i], refuse_calls, NULL, NULL), LS_ERR_STATE);
        expect_message("ls_optimizer_step_closure: ");
        expect_message("got NULL as the model, and ls_optimizer_add_group was not called");
        assert_int_equal(ls_optimizer_last_step(optimizers[i]).reason, LS_STOP_FAILED);
        ls_optimizer_free(optimizers[i]);
    }
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

TEST(test_a_parameter_without_a_gradient_stays) {
    problem *self = problem_new(bowl, LS_F64, 3, (const double[]){0, 0, 0});
    ls_tensor *idle = ls_ones(LS_SHAPE(5), LS_F64);
    ls_optimizer *optimizer = ls_lbfgs(NULL, &(ls_lbfgs_options){.strong_wolfe = true});
    assert_int_equal(ls_set_requires_grad(idle, true), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, (ls_tensor *[]){idle, self->p}, 2, NULL), LS_OK);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK);
    assert_true(fabs(at(self, 2) - 3) < 1e-4);
    for (int64_t i = 0; i < 5; i++) {
        assert_true(ls_at(idle, &i) == 1);
    }
    problem_free(self, optimizer);
    ls_release(idle);
}

static ls_tensor *second;

static ls_tensor *bowl_of_two(ls_tensor *p) {
    return bowl(ls_add(p, second));
}

/* The directions of the steps before the freeze would move `second`, too, so the optimizer must forget them. */
static void check_frozen_stays(ls_optimizer *optimizer) {
    problem *self = problem_new(bowl_of_two, LS_F64, 3, (const double[]){0, 0, 0});
    second = ls_ones(LS_SHAPE(3), LS_F64);
    assert_int_equal(ls_set_requires_grad(second, true), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, (ls_tensor *[]){self->p, second}, 2, NULL), LS_OK);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK);
    double frozen[3], free[3];
    for (int64_t i = 0; i < 3; i++) {
        frozen[i] = ls_at(second, &i);
        free[i] = ls_at(self->p, &i);
    }
    assert_int_equal(ls_set_requires_grad(second, false), LS_OK);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, NULL), LS_OK);
    assert_true(ls_optimizer_last_step(optimizer).iterations == 1);
    int moved = 0;
    for (int64_t i = 0; i < 3; i++) {
        assert_true(ls_at(second, &i) == frozen[i]);
        moved += ls_at(self->p, &i) != free[i];
    }
    assert_true(moved > 0);
    problem_free(self, optimizer);
    ls_release(second);
}

TEST(test_a_frozen_parameter_stays) {
    check_frozen_stays(ls_lbfgs(NULL, &(ls_lbfgs_options){.max_iterations = 1}));
    check_frozen_stays(ls_conjugate_gradient(NULL, &(ls_conjugate_gradient_options){.max_iterations = 1}));
}

TEST(test_without_parameters_the_loss_is_evaluated_once) {
    problem *self = problem_new(bowl, LS_F64, 3, (const double[]){0, 0, 0});
    ls_optimizer *optimizer = ls_lbfgs(NULL, NULL);
    double loss = 0;
    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 0, NULL), LS_OK);
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, &loss), LS_OK);
    assert_true(loss == 1 + 40 + 900);
    assert_int_equal(self->evaluations, 1);
    expect_error(ls_optimizer_step_closure(optimizer, end_at_nan, self, NULL), LS_ERR_STATE, "the loss is nan");
    assert_int_equal(ls_optimizer_last_step(optimizer).reason, LS_STOP_FAILED);
    problem_free(self, optimizer);
}

static void check_refused_group(ls_optimizer *optimizer, ls_tensor *const *parameters, int count,
                                const ls_group_options *options, const char *message) {
    assert_int_equal(ls_optimizer_add_group(optimizer, parameters, count, options), LS_ERR_UNSUPPORTED);
    assert_string_equal(ls_error_message(), message);
}

TEST(test_what_they_cannot_work_on_is_refused) {
    ls_tensor *single = ls_ones(LS_SHAPE(2), LS_F32), *twice = ls_ones(LS_SHAPE(2), LS_F64);
    assert_int_equal(ls_set_requires_grad(single, true), LS_OK);
    assert_int_equal(ls_set_requires_grad(twice, true), LS_OK);
    ls_optimizer *optimizer = ls_conjugate_gradient(NULL, NULL);
    check_refused_group(
        optimizer, (ls_tensor *[]){single, twice}, 2, NULL,
        "ls_conjugate_gradient: parameter 1 is f64, but parameter 0 is f32; all must have the same dtype");
    check_refused_group(optimizer, &single, 1, &(ls_group_options){.weight_decay = 0.5},
                        "ls_conjugate_gradient: weight_decay is 0.5, but must be 0; add the decay to the loss instead");
    assert_int_equal(ls_optimizer_add_group(optimizer, &single, 1, NULL), LS_OK);
    check_refused_group(optimizer, &twice, 1, NULL,
                        "ls_conjugate_gradient: it already has a group of parameters, and can have only one");
    assert_int_equal(ls_optimizer_group_count(optimizer), 1);
    assert_int_equal(ls_optimizer_step(optimizer), LS_ERR_STATE);
    assert_string_equal(ls_error_message(), "ls_optimizer_step: ls_conjugate_gradient evaluates the loss itself: "
                                            "call ls_optimizer_step_closure with a function that evaluates it");
    ls_optimizer_free(optimizer);
    ls_release(single);
    ls_release(twice);
}

TEST(test_options_out_of_range_are_refused) {
    assert_null(ls_lbfgs(NULL, &(ls_lbfgs_options){.history_size = -1}));
    assert_string_equal(ls_error_message(), "ls_lbfgs: history_size is -1, but must be between 1 and 1e+06");
    assert_null(ls_lbfgs(NULL, &(ls_lbfgs_options){.learning_rate = -1}));
    assert_null(ls_lbfgs(NULL, &(ls_lbfgs_options){.max_iterations = -1}));
    assert_null(ls_lbfgs(NULL, &(ls_lbfgs_options){.max_evaluations = -1}));
    assert_null(ls_lbfgs(NULL, &(ls_lbfgs_options){.tolerance_gradient = NAN}));
    assert_null(ls_lbfgs(NULL, &(ls_lbfgs_options){.tolerance_change = -1}));
    assert_null(ls_conjugate_gradient(NULL, &(ls_conjugate_gradient_options){.restart_every = -1}));
    assert_null(ls_conjugate_gradient(NULL, &(ls_conjugate_gradient_options){.formula = 2}));
    assert_string_equal(ls_error_message(), "ls_conjugate_gradient: there is no formula 2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conjugate_gradients_find_the_bottom),
        cmocka_unit_test(test_conjugate_gradients_along_a_valley),
        cmocka_unit_test(test_a_search_steps_back_from_what_is_not_finite),
        cmocka_unit_test(test_fixed_steps_into_what_is_not_finite_are_an_error),
        cmocka_unit_test(test_a_gradient_that_is_not_finite_is_an_error),
        cmocka_unit_test(test_a_closure_that_fails_ends_the_step),
        cmocka_unit_test(test_what_goes_wrong_in_a_closure_is_told),
        cmocka_unit_test(test_other_optimizers_take_closures_too),
        cmocka_unit_test(test_a_loss_that_is_not_finite_is_refused),
        cmocka_unit_test(test_the_reason_of_a_stop_is_known),
        cmocka_unit_test(test_an_optimizer_without_a_group_takes_no_step),
        cmocka_unit_test(test_a_parameter_without_a_gradient_stays),
        cmocka_unit_test(test_a_frozen_parameter_stays),
        cmocka_unit_test(test_without_parameters_the_loss_is_evaluated_once),
        cmocka_unit_test(test_what_they_cannot_work_on_is_refused),
        cmocka_unit_test(test_options_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
