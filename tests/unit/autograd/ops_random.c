/*
 * ls_dropout: kept and dropped elements, gradient, position in the random streams, refusals.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>

#include "tests/support/operations.h"

SCOPED_TEST(test_dropout_drops_and_scales) {
    ls_seed(3);
    ls_tensor *x = ls_ones(LS_SHAPE(100, 100), LS_F32);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_tensor *y = ls_dropout(x, 0.25);
    const float *values = elements(y);
    int kept = 0;
    for (int i = 0; i < 10000; i++) {
        assert_true(values[i] == 0.0F || values[i] == 1.0F / 0.75F);
        kept += values[i] != 0.0F;
    }
    assert_in_range(kept, 7300, 7700);
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    assert_true(ls_equal(ls_grad(x), y)); /* for an input of ones, the gradient is the scaled mask */
    assert_false(ls_equal(ls_dropout(x, 0.25), y));
    ls_seed(3);
    assert_true(ls_equal(ls_dropout(x, 0.25), y));
}

SCOPED_TEST(test_dropout_of_nothing_and_of_all) {
    ls_tensor *x = wave(LS_SHAPE(3, 4), 1);
    assert_true(ls_equal(ls_dropout(x, 0), x));
    ls_tensor *none = ls_dropout(ls_transpose(x, 0, 1), 1);
    assert_true(ls_equal(none, ls_zeros(LS_SHAPE(4, 3), LS_F64)));
    assert_int_equal(ls_backward(ls_sum(none)), LS_OK);
    assert_true(ls_equal(ls_grad(x), ls_zeros(LS_SHAPE(3, 4), LS_F64)));
}

SCOPED_TEST(test_half_precision_stays_half) {
    ls_tensor *x = ls_ones(LS_SHAPE(50), LS_F16);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_tensor *y = ls_dropout(x, 0.5);
    assert_int_equal(ls_dtype_of(y), LS_F16);
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    assert_true(ls_equal(ls_grad(x), y));
}

SCOPED_TEST(test_refusals) {
    check_refused(ls_dropout(NULL, 0.5), LS_ERR_ARGUMENT, "ls_dropout: argument 1 is NULL");
    check_refused(ls_dropout(ls_zeros(LS_SHAPE(2), LS_F32), 1.5), LS_ERR_ARGUMENT, "ls_dropout: p is 1.5");
    check_refused(ls_dropout(ls_zeros(LS_SHAPE(2), LS_F32), NAN), LS_ERR_ARGUMENT, "ls_dropout: p is");
    check_refused(ls_dropout(ls_zeros(LS_SHAPE(2), LS_I64), 0.5), LS_ERR_SHAPE,
                  "ls_dropout: expected a floating-point tensor, not i64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout_drops_and_scales),
        cmocka_unit_test(test_dropout_of_nothing_and_of_all),
        cmocka_unit_test(test_half_precision_stays_half),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
