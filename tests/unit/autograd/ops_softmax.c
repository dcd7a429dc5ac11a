/*
 * ls_softmax, ls_log_softmax and ls_logsumexp compared with PyTorch's values.
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>

#include "tests/support/operations.h"

FIXTURES(fixtures, "operations.txt")

static ls_tensor *logsumexp(ls_tensor *x, int axis) {
    return ls_logsumexp(x, axis, false);
}

static const struct {
    const char *name;
    ls_tensor *(*function)(ls_tensor *x, int axis);
} functions[] = {{"softmax", ls_softmax}, {"log_softmax", ls_log_softmax}, {"logsumexp", logsumexp}};

TEST(test_values_agree_with_pytorch) {
    for (int f = 0; f < 3; f++) {
        for (int axis = 0; axis < 3; axis++) {
            for (int large = 0; large < 2; large++) {
                ls_scope *scope = ls_scope_begin();
                ls_tensor *x = large != 0 ? wave_between(LS_SHAPE(2, 3, 4), 1, 900, 1100) : wave(LS_SHAPE(2, 3, 4), 1);
                assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
                char name[64];
                snprintf(name, sizeof name, "%s/%s%d", functions[f].name, large != 0 ? "large" : "", axis);
                check_against(fixtures, name, functions[f].function(x, axis - (large != 0 ? 3 : 0)), &x, 1, NULL, 0);
                assert_int_equal(ls_scope_end(scope), LS_OK);
            }
        }
    }
}

TEST(test_views_give_what_copies_give) {
    for (int f = 0; f < 3; f++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = wave(LS_SHAPE(4, 6, 3), 1);
        ls_tensor *view = ls_slice(ls_permute(x, LS_AXES(2, 0, 1)), 2, 1, 6, 2);
        ls_tensor *y = functions[f].function(view, 2);
        ls_tensor *dense = functions[f].function(ls_clone(view), 2);
        assert_true(ls_allclose(y, dense, 1e-14, 1e-14));
        const ls_backward_options keep = {.keep_tape = true}; /* the view is recorded, too */
        assert_int_equal(ls_backward_with(ls_sum(ls_square(y)), &keep), LS_OK);
        ls_tensor *by_view = ls_clone(ls_grad(x));
        ls_zero_grad(x);
        assert_int_equal(ls_backward(ls_sum(ls_square(dense))), LS_OK);
        assert_true(ls_allclose(ls_grad(x), by_view, 1e-13, 1e-13));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_logsumexp_of_infinities) {
    const double values[] = {-INFINITY, -INFINITY, 0, -INFINITY, INFINITY, 1};
    ls_tensor *x = ls_from(LS_SHAPE(3, 2), LS_F64, values);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_tensor *y = ls_logsumexp(x, 1, true);
    const double expected[] = {-INFINITY, 0, INFINITY};
    assert_true(ls_equal(y, ls_from(LS_SHAPE(3, 1), LS_F64, expected)));
    assert_int_equal(ls_backward(ls_sum(ls_narrow(y, 0, 0, 2))), LS_OK);
    const double *gradient = elements(ls_grad(x));
    assert_true(gradient[0] == 0 && gradient[1] == 0 && gradient[2] == 1 && gradient[3] == 0);
    ls_tensor *nothing = ls_logsumexp(ls_empty(LS_SHAPE(2, 0), LS_F32), 1, false);
    assert_true(ls_equal(nothing, ls_full(LS_SHAPE(2), LS_F32, -INFINITY)));
}

SCOPED_TEST(test_half_precision_comes_back_half) {
    ls_tensor *exact = ls_detach(wave(LS_SHAPE(3, 4), 1));
    ls_tensor *x = ls_to(exact, LS_BF16);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    for (int f = 0; f < 3; f++) {
        ls_tensor *y = functions[f].function(x, 1);
        assert_int_equal(ls_dtype_of(y), LS_BF16);
        assert_true(ls_allclose(ls_to(y, LS_F64), functions[f].function(exact, 1), 2e-2, 2e-2));
        assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
        assert_int_equal(ls_dtype_of(ls_grad(x)), LS_BF16);
    }
}

SCOPED_TEST(test_refusals) {
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_softmax(x, 2), LS_ERR_ARGUMENT, "ls_softmax: axis 2 does not exist in [2, 3]");
    check_refused(ls_logsumexp(NULL, 0, false), LS_ERR_ARGUMENT, "ls_logsumexp: argument 1 is NULL");
    check_refused(ls_log_softmax(ls_zeros(LS_SHAPE(2), LS_I32), 0), LS_ERR_SHAPE,
                  "ls_log_softmax: expected a floating-point tensor, not i32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_agree_with_pytorch),
        cmocka_unit_test(test_views_give_what_copies_give),
        cmocka_unit_test(test_logsumexp_of_infinities),
        cmocka_unit_test(test_half_precision_comes_back_half),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
