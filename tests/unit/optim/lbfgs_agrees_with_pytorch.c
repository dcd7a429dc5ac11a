/*
 * L-BFGS with the starting points and problems of tests/fixtures/make_lbfgs.py: every evaluation in every step is at
 * the same point as PyTorch's.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/optim.h>

#include "tests/support/operations.h"

enum { POINTS = 10000, DATA_SEED = 3, MOST_LOSSES = 100 };

FIXTURES(fixtures, "lbfgs.txt")

/* ---- the problems ------------------------------------------------------------------------------------------------ */

typedef struct problem problem;
struct problem {
    ls_tensor *(*loss)(const problem *self);
    ls_tensor *p; /* the parameters, 1-d */
    ls_tensor *x; /* the regression's data */
    ls_tensor *y;
    double losses[MOST_LOSSES];
    int evaluations;
};

static ls_tensor *rosenbrock(const problem *self) {
    const int64_t pairs = ls_size(self->p, 0) - 1;
    ls_tensor *here = ls_narrow(self->p, 0, 0, pairs), *next = ls_narrow(self->p, 0, 1, pairs);
    ls_tensor *valley = ls_mul(ls_square(ls_sub(next, ls_square(here))), 100);
    return ls_sum(ls_add(valley, ls_square(ls_sub(here, 1))));
}

static ls_tensor *quadratic(const problem *self) {
    const int64_t n = ls_size(self->p, 0);
    ls_tensor *at = ls_arange(LS_SHAPE(n), LS_F64);
    ls_tensor *curvature = ls_pow(ls_full(LS_SHAPE(n), LS_F64, 100), ls_div(at, (double)(n - 1)));
    return ls_sum(ls_mul(ls_mul(curvature, 0.5), ls_square(ls_sub(self->p, ls_add(at, 1)))));
}

static ls_tensor *curve(ls_tensor *x, ls_tensor *p) {
    ls_tensor *slope = ls_add(ls_mul(ls_select(p, 0, 2), x), ls_select(p, 0, 1));
    return ls_add(ls_mul(slope, x), ls_select(p, 0, 0));
}

static ls_tensor *regression(const problem *self) {
    return ls_sum(ls_square(ls_sub(self->y, curve(self->x, self->p))));
}

/* Makes the data of the regression. */
static void make_points(problem *self, ls_dtype dtype) {
    ls_scope *scope = ls_scope_begin();
    const double truth[] = {0.1, 1, -2};
    ls_tensor *u = ls_empty(LS_SHAPE(POINTS), LS_F64);
    for (int i = 0; i < POINTS; i++) {
        ((double *)elements(u))[i] = ls_random_uniform(DATA_SEED, 0, (uint64_t)i);
    }
    self->x = ls_keep(ls_mul(ls_to(u, dtype), 2));
    self->y = ls_keep(curve(self->x, ls_to(ls_from(LS_SHAPE(3), LS_F64, truth), dtype)));
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static ls_status evaluate(void *argument, double *loss) {
    problem *self = argument;
    ls_tensor *value = self->loss(self);
    *loss = ls_item(value);
    assert_true(self->evaluations < MOST_LOSSES);
    self->losses[self->evaluations++] = *loss;
    return ls_backward(value);
}

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

static const fixture *part_of(const char *name, const char *part) {
    char full[64];
    (void)snprintf(full, sizeof full, "%s.%s", name, part);
    return fixture_find(fixtures, full);
}

static void check_near(const char *name, const char *what, int i, double is, double right, double tolerance) {
    if (!(fabs(is - right) <= tolerance * fabs(right) + 1e-9 * tolerance)) {
        fail_msg("%s: %s %d is %.17g, PyTorch's is %.17g", name, what, i, is, right);
    }
}

static void run_path(const char *name, problem *self, const ls_lbfgs_options *options, double tolerance) {
    const fixture *losses = part_of(name, "losses"), *steps = part_of(name, "evaluations");
    const fixture *parameters = part_of(name, "parameters");
    ls_optimizer *optimizer = ls_lbfgs(NULL, options);
    assert_int_equal(ls_set_requires_grad(self->p, true), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &self->p, 1, NULL), LS_OK);
    for (int step = 0; step < steps->count; step++) {
        const int before = self->evaluations;
        double first = 0;
        assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, self, &first), LS_OK);
        assert_int_equal(self->evaluations - before, (int)steps->values[step]);
        assert_true(first == self->losses[before]);
    }
    for (int i = 0; i < losses->count; i++) {
        check_near(name, "loss", i, self->losses[i], losses->values[i], tolerance);
    }
    for (int i = 0; i < parameters->count; i++) {
        check_near(name, "parameter", i, ls_at(self->p, (int64_t[]){i}), parameters->values[i], tolerance);
    }
    ls_optimizer_free(optimizer);
    ls_release(self->p);
}

TEST(test_rosenbrock) {
    const double valley[] = {-1.2, 1, -1.2, 1, -1.2, 1, -1.2, 1, -1.2, 1};
    problem fixed = {.loss = rosenbrock, .p = ls_from(LS_SHAPE(2), LS_F64, valley)};
    run_path("rosenbrock_fixed", &fixed, &(ls_lbfgs_options){.learning_rate = 0.2, .max_iterations = 5}, 1e-7);
    problem searched = {.loss = rosenbrock, .p = ls_from(LS_SHAPE(2), LS_F64, valley)};
    run_path("rosenbrock_wolfe", &searched, &(ls_lbfgs_options){.strong_wolfe = true}, 1e-7);
    problem wide = {.loss = rosenbrock, .p = ls_from(LS_SHAPE(10), LS_F64, valley)};
    run_path("rosenbrock_10_wolfe", &wide,
             &(ls_lbfgs_options){.strong_wolfe = true, .history_size = 4, .max_iterations = 12}, 1e-5);
}

TEST(test_quadratic) {
    problem fixed = {.loss = quadratic, .p = ls_zeros(LS_SHAPE(20), LS_F64)};
    run_path("quadratic_fixed", &fixed, &(ls_lbfgs_options){.history_size = 3}, 1e-7);
    problem searched = {.loss = quadratic, .p = ls_zeros(LS_SHAPE(20), LS_F64)};
    run_path(
        "quadratic_wolfe", &searched,
        &(ls_lbfgs_options){.strong_wolfe = true, .history_size = 5, .learning_rate = 0.5, .tolerance_gradient = 1e-5},
        1e-5);
    problem few = {.loss = quadratic, .p = ls_zeros(LS_SHAPE(20), LS_F64)};
    run_path("quadratic_few", &few,
             &(ls_lbfgs_options){.strong_wolfe = true, .max_iterations = 3, .max_evaluations = 7}, 1e-7);
}

static void run_regression(const char *name, ls_dtype dtype, const ls_lbfgs_options *options, double tolerance) {
    problem self = {.loss = regression, .p = ls_arange(LS_SHAPE(3), dtype)};
    make_points(&self, dtype);
    run_path(name, &self, options, tolerance);
    ls_release(self.x);
    ls_release(self.y);
}

TEST(test_regression) {
    run_regression("regression_fixed", LS_F64, NULL, 1e-7);
    run_regression("regression_wolfe", LS_F64, &(ls_lbfgs_options){.strong_wolfe = true, .tolerance_change = 1e-20},
                   1e-6);
    run_regression("regression_f32", LS_F32, &(ls_lbfgs_options){.strong_wolfe = true, .max_iterations = 6}, 1e-3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rosenbrock),
        cmocka_unit_test(test_quadratic),
        cmocka_unit_test(test_regression),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
