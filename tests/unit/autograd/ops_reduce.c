/*
 * Reductions: values, axes, dtypes, empty tensors, gradients in difficult cases, refusals.
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/unit.h"

#include <math.h>

#include "tests/support/operations.h"

#define VALUES(...) ((const double[]){__VA_ARGS__})

static const double nan_value = (double)NAN;
static const double infinite = (double)INFINITY;

static ls_tensor *numbers(ls_shape shape, ls_dtype dtype, const double *values) {
    return ls_to(ls_from(shape, LS_F64, values), dtype);
}

/* Returns 0 to 23 with alternating sign, as [2, 3, 4]. */
static ls_tensor *counted(ls_dtype dtype) {
    double values[24];
    for (int i = 0; i < 24; i++) {
        values[i] = i % 2 == 0 ? i : -i;
    }
    return numbers(LS_SHAPE(2, 3, 4), dtype, values);
}

TEST(test_values) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_F16};
    for (int i = 0; i < 3; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = counted(dtypes[i]);
        check_values(ls_sum(x), LS_SCALAR, dtypes[i], VALUES(-12));
        check_values(ls_sum_axes(x, LS_AXES(0, 2), true), LS_SHAPE(1, 3, 1), dtypes[i], VALUES(-4, -4, -4));
        check_values(ls_sum_axes(x, LS_AXES(1), false), LS_SHAPE(2, 4), dtypes[i],
                     VALUES(12, -15, 18, -21, 48, -51, 54, -57));
        check_values(ls_mean(x), LS_SCALAR, dtypes[i], VALUES(-0.5));
        check_values(ls_mean_axes(x, LS_AXES(-1), false), LS_SHAPE(2, 3), dtypes[i],
                     VALUES(-0.5, -0.5, -0.5, -0.5, -0.5, -0.5));
        check_values(ls_max(x), LS_SCALAR, dtypes[i], VALUES(22));
        check_values(ls_max_axes(x, LS_AXES(-1, -2), false), LS_SHAPE(2), dtypes[i], VALUES(10, 22));
        check_values(ls_min(x), LS_SCALAR, dtypes[i], VALUES(-23));
        check_values(ls_min_axes(x, LS_AXES(0), true), LS_SHAPE(1, 3, 4), dtypes[i],
                     VALUES(0, -13, 2, -15, 4, -17, 6, -19, 8, -21, 10, -23));
        check_values(ls_prod_axes(ls_narrow(x, 2, 1, 2), LS_AXES(2), false), LS_SHAPE(2, 3), dtypes[i],
                     VALUES(-2, -30, -90, -182, -306, -462));
        check_values(ls_var_axes(x, LS_AXES(2), 1, false), LS_SHAPE(2, 3), dtypes[i],
                     VALUES(13.0 / 3, 125.0 / 3, 365.0 / 3, 733.0 / 3, 1229.0 / 3, 1853.0 / 3));
        check_values(ls_norm_axes(x, 2, LS_AXES(2), true), LS_SHAPE(2, 3, 1), dtypes[i],
                     VALUES(sqrt(14), sqrt(126), sqrt(366), sqrt(734), sqrt(1230), sqrt(1854)));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_statistics) {
    ls_tensor *x = numbers(LS_SHAPE(4), LS_F64, VALUES(1, -2, 3, -6));
    check_values(ls_var(x), LS_SCALAR, LS_F64, VALUES(46.0 / 3));
    check_values(ls_var_axes(x, LS_ALL_AXES, 0, false), LS_SCALAR, LS_F64, VALUES(11.5));
    check_values(ls_var_axes(x, LS_ALL_AXES, 4, false), LS_SCALAR, LS_F64, VALUES(infinite));
    ls_tensor *large = numbers(LS_SHAPE(2), LS_F32, VALUES(16777216, 16777218)); /* f32 cannot represent the mean */
    check_values(ls_var(large), LS_SCALAR, LS_F32, VALUES(2));
    ls_tensor *equal = numbers(LS_SHAPE(3), LS_F32, VALUES(0.1, 0.1, 0.1));
    check_values(ls_var(equal), LS_SCALAR, LS_F32, VALUES(0));
    check_values(ls_norm(ls_sqrt(ls_var(ls_mul(equal, 1e10)))), LS_SCALAR, LS_F32, VALUES(0));
    check_values(ls_norm(x), LS_SCALAR, LS_F64, VALUES(sqrt(50)));
    check_values(ls_norm_axes(x, 1, LS_AXES(0), false), LS_SCALAR, LS_F64, VALUES(12));
    check_values(ls_norm_axes(x, 3, LS_AXES(0), true), LS_SHAPE(1), LS_F64, VALUES(6.3163596));
    check_values(ls_norm_axes(x, infinite, LS_AXES(0), false), LS_SCALAR, LS_F64, VALUES(6));
}

SCOPED_TEST(test_dtypes) {
    const ls_dtype dtypes[] = {LS_I64, LS_I32, LS_U8};
    for (int i = 0; i < 3; i++) {
        ls_tensor *x = numbers(LS_SHAPE(2, 2), dtypes[i], VALUES(200, 100, 50, 3));
        check_values(ls_sum(x), LS_SCALAR, LS_I64, VALUES(353));
        check_values(ls_prod_axes(x, LS_AXES(1), false), LS_SHAPE(2), LS_I64, VALUES(20000, 150));
        check_values(ls_cumsum(x, 0), LS_SHAPE(2, 2), LS_I64, VALUES(200, 100, 250, 103));
        check_values(ls_max_axes(x, LS_AXES(0), false), LS_SHAPE(2), dtypes[i], VALUES(200, 100));
        check_values(ls_min(x), LS_SCALAR, dtypes[i], VALUES(3));
        check_values(ls_argmin(x, 1, false), LS_SHAPE(2), LS_I64, VALUES(1, 1));
    }
    ls_tensor *right = numbers(LS_SHAPE(3), LS_BOOL, VALUES(1, 0, 1));
    check_values(ls_sum(right), LS_SCALAR, LS_I64, VALUES(2));
    check_values(ls_max(right), LS_SCALAR, LS_BOOL, VALUES(1));
    check_values(ls_mean(numbers(LS_SHAPE(2), LS_BF16, VALUES(1, 2))), LS_SCALAR, LS_BF16, VALUES(1.5));
}

SCOPED_TEST(test_single_numbers_and_nothing) {
    ls_tensor *one = ls_scalar(3, LS_F32), *none = ls_zeros(LS_SHAPE(2, 0), LS_F32);
    check_values(ls_sum(one), LS_SCALAR, LS_F32, VALUES(3));
    check_values(ls_max(one), LS_SCALAR, LS_F32, VALUES(3));
    check_values(ls_var(one), LS_SCALAR, LS_F32, VALUES(nan_value));
    check_values(ls_sum(none), LS_SCALAR, LS_F32, VALUES(0));
    check_values(ls_sum_axes(none, LS_AXES(1), false), LS_SHAPE(2), LS_F32, VALUES(0, 0));
    check_values(ls_sum_axes(none, LS_AXES(0), false), LS_SHAPE(0), LS_F32, NULL);
    check_values(ls_prod_axes(none, LS_AXES(1), true), LS_SHAPE(2, 1), LS_F32, VALUES(1, 1));
    check_values(ls_mean(none), LS_SCALAR, LS_F32, VALUES(nan_value));
    check_values(ls_norm(none), LS_SCALAR, LS_F32, VALUES(0));
    check_values(ls_max_axes(none, LS_AXES(0), false), LS_SHAPE(0), LS_F32, NULL);
    check_values(ls_argmax(none, 0, true), LS_SHAPE(1, 0), LS_I64, NULL);
    check_values(ls_cumsum(none, 1), LS_SHAPE(2, 0), LS_F32, NULL);
}

SCOPED_TEST(test_arguments_and_running_sums) {
    ls_tensor *x = numbers(LS_SHAPE(2, 3), LS_F32, VALUES(1, 5, 5, 2, 0, 0));
    check_values(ls_argmax(x, 1, false), LS_SHAPE(2), LS_I64, VALUES(1, 0));
    check_values(ls_argmin(x, -1, true), LS_SHAPE(2, 1), LS_I64, VALUES(0, 1));
    check_values(ls_argmax(x, 0, false), LS_SHAPE(3), LS_I64, VALUES(1, 0, 0));
    check_values(ls_argmax(ls_transpose(x, 0, 1), 0, false), LS_SHAPE(2), LS_I64, VALUES(1, 0));
    check_values(ls_argmax(ls_to(x, LS_BF16), 1, false), LS_SHAPE(2), LS_I64, VALUES(1, 0));
    check_values(ls_cumsum(x, 1), LS_SHAPE(2, 3), LS_F32, VALUES(1, 6, 11, 2, 2, 2));
    check_values(ls_cumsum(ls_transpose(x, 0, 1), 1), LS_SHAPE(3, 2), LS_F32, VALUES(1, 3, 5, 5, 5, 5));
}

static ls_tensor *products(ls_tensor **x, int count, void *user) {
    (void)count;
    (void)user;
    return ls_prod_axes(x[0], LS_AXES(1), false);
}

/*
 * Tests rows with no zero, one zero and two zeros: the gradient of an element is nonzero only if no other element is
 * zero.
 */
SCOPED_TEST(test_gradient_of_products_with_zeros) {
    ls_tensor *x = leaf_from(LS_SHAPE(3, 3), VALUES(2, 3, 4, 2, 0, 4, 0, 3, 0));
    assert_int_equal(ls_gradcheck(products, &x, 1, NULL, NULL), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_prod_axes(x, LS_AXES(1), true))), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(3, 3), LS_F64, VALUES(12, 8, 6, 0, 8, 0, 0, 0, 0));
}

SCOPED_TEST(test_gradient_of_extremes_goes_to_the_first) {
    ls_tensor *x = leaf_from(LS_SHAPE(2, 2, 2), VALUES(1, 7, 7, 3, 7, 2, 0, 7));
    assert_int_equal(ls_backward(ls_max(x)), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(2, 2, 2), LS_F64, VALUES(0, 1, 0, 0, 0, 0, 0, 0));
    ls_zero_grad(x);
    assert_int_equal(ls_backward(ls_sum(ls_max_axes(x, LS_AXES(0, 2), false))), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(2, 2, 2), LS_F64, VALUES(0, 1, 1, 0, 0, 0, 0, 0));
    ls_zero_grad(x);
    assert_int_equal(ls_backward(ls_sum(ls_max_axes(x, LS_AXES(1), true))), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(2, 2, 2), LS_F64, VALUES(0, 1, 1, 0, 1, 0, 0, 1));
    ls_zero_grad(x);
    assert_int_equal(ls_backward(ls_norm_axes(ls_neg(x), infinite, LS_ALL_AXES, false)), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(2, 2, 2), LS_F64, VALUES(0, 1, 0, 0, 0, 0, 0, 0));
}

TEST(test_gradient_of_norms_at_zero) {
    const double ps[] = {0.5, 1, 1.5, 2, 3, infinite};
    for (int i = 0; i < 6; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = leaf_from(LS_SHAPE(2, 2), VALUES(0, 0, 0, -2));
        assert_int_equal(ls_backward(ls_sum(ls_norm_axes(x, ps[i], LS_AXES(1), false))), LS_OK);
        check_values(ls_grad(x), LS_SHAPE(2, 2), LS_F64, VALUES(0, 0, 0, -1));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_gradients_add_up) {
    ls_tensor *x = leaf_from(LS_SHAPE(2, 3), VALUES(1, 2, 3, 4, 5, 6));
    ls_tensor *y = ls_mul(x, 2); /* not a leaf, so its gradient accumulates on the tape */
    ls_tensor *loss = ls_add(ls_add(ls_sum(y), ls_mean(y)), ls_sum(ls_max_axes(y, LS_AXES(0), false)));
    assert_int_equal(ls_backward(ls_add(loss, ls_sum(x))), LS_OK);
    const double low = 3 + 1.0 / 3, high = low + 2;
    check_values(ls_grad(x), LS_SHAPE(2, 3), LS_F64, VALUES(low, low, low, high, high, high));
}

SCOPED_TEST(test_refusals) {
    check_refused(ls_sum_axes(ls_ones(LS_SHAPE(2, 3), LS_F32), LS_AXES(0, 2), false), LS_ERR_ARGUMENT,
                  "ls_sum: axis 2 does not exist in [2, 3], which has 2 axes");
    check_refused(ls_mean_axes(ls_ones(LS_SHAPE(2, 3), LS_F32), LS_AXES(1, -1), false), LS_ERR_ARGUMENT,
                  "ls_mean: axis 1 is given twice");
    check_refused(ls_sum_axes(ls_ones(LS_SHAPE(2), LS_F32), LS_AXES(0, 1, 2, 3, 4, 5, 6, 7, 8), false), LS_ERR_ARGUMENT,
                  "ls_sum: more than 8 axes");
    check_refused(ls_mean(ls_ones(LS_SHAPE(2), LS_I64)), LS_ERR_SHAPE, "ls_mean: the tensor is i64");
    check_refused(ls_max(ls_ones(LS_SHAPE(0, 2), LS_F32)), LS_ERR_SHAPE, "ls_max: the tensor has no elements: [0, 2]");
    check_refused(ls_argmax(ls_ones(LS_SHAPE(2, 0), LS_F32), 1, false), LS_ERR_SHAPE,
                  "ls_argmax: the tensor has no elements");
    check_refused(ls_argmin(ls_ones(LS_SHAPE(2), LS_F32), -2, false), LS_ERR_ARGUMENT, "ls_argmin: axis -2");
    check_refused(ls_cumsum(ls_ones(LS_SHAPE(2), LS_F32), 1), LS_ERR_ARGUMENT,
                  "ls_cumsum: axis 1 does not exist in [2]");
    check_refused(ls_norm_axes(ls_ones(LS_SHAPE(2), LS_F32), 0, LS_AXES(0), false), LS_ERR_ARGUMENT, "ls_norm: p is 0");
    check_refused(ls_norm_axes(ls_ones(LS_SHAPE(0), LS_F32), infinite, LS_AXES(0), false), LS_ERR_SHAPE,
                  "ls_norm: there is no maximum, because a tensor of");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_single_numbers_and_nothing),
        cmocka_unit_test(test_arguments_and_running_sums),
        cmocka_unit_test(test_gradient_of_products_with_zeros),
        cmocka_unit_test(test_gradient_of_extremes_goes_to_the_first),
        cmocka_unit_test(test_gradient_of_norms_at_zero),
        cmocka_unit_test(test_gradients_add_up),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
