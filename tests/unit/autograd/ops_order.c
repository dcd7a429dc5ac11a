/*
 * Operations that choose, move and sort elements: rounding, truth values, triangles, flips, sorting. Expected values
 * and gradients are PyTorch's if there is a fixture, and written here otherwise; NaN, ties and every dtype; refusals.
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/unit.h"

#include <math.h>

#include "tests/support/elements.h"
#include "tests/support/operations.h"

#define VALUES(...) ((const double[]){__VA_ARGS__})

FIXTURES(language, "language.txt")

static ls_tensor *of(ls_shape shape, ls_dtype dtype, const double *values) {
    return ls_to(ls_from(shape, LS_F64, values), dtype);
}

SCOPED_TEST(test_agrees_with_pytorch) {
    const ls_shape cube = LS_SHAPE(2, 3, 4);
    ls_tensor *mask = ls_lt(wave_between(LS_SHAPE(3, 1), 5, -2, 2), 0.0);
    ls_tensor *x = NULL;
#define AGREES(name, expression)                                                                                       \
    x = wave(cube, 1);                                                                                                 \
    check_against(language, name, expression, &x, 1, NULL, 0);
    AGREES("floor", ls_floor(x))
    AGREES("ceil", ls_ceil(x))
    AGREES("round", ls_round(x))
    AGREES("sign", ls_sign(x))
    AGREES("masked_fill", ls_masked_fill(x, mask, 0.5))
    AGREES("tril/0", ls_tril(x, 0))
    AGREES("tril/1", ls_tril(x, 1))
    AGREES("triu/0", ls_triu(x, 0))
    AGREES("triu/-1", ls_triu(x, -1))
    AGREES("flip/12", ls_flip(x, LS_AXES(1, -1)))
    AGREES("flip/all", ls_flip(x, LS_ALL_AXES))
    AGREES("roll/1", ls_roll(x, 1, 1))
    AGREES("roll/-5", ls_roll(x, -5, 2))
    AGREES("repeat", ls_repeat(x, LS_SHAPE(2, 1, 3, 2)))
    AGREES("sort/0", ls_sort(x, 0, false, NULL))
    AGREES("sort/1", ls_sort(x, 1, true, NULL))
    AGREES("sort/2", ls_sort(x, -1, false, NULL))
    AGREES("top_k/1", ls_top_k(x, 2, 1, false, NULL))
    AGREES("top_k/2", ls_top_k(x, 3, -1, true, NULL))
    AGREES("top_k/none", ls_top_k(x, 0, -1, true, NULL))
}

SCOPED_TEST(test_steps) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16};
    const double values[] = {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2, -0.25, (double)INFINITY, (double)NAN};
    for (int i = 0; i < 4; i++) {
        ls_tensor *x = of(LS_SHAPE(10), dtypes[i], values);
        const double inf = (double)INFINITY, nan = (double)NAN;
        check_values(ls_round(x), LS_SHAPE(10), dtypes[i], VALUES(-2, -2, 0, 0, 2, 2, 2, 0, inf, nan));
        check_values(ls_floor(x), LS_SHAPE(10), dtypes[i], VALUES(-3, -2, -1, 0, 1, 2, 2, -1, inf, nan));
        check_values(ls_ceil(x), LS_SHAPE(10), dtypes[i], VALUES(-2, -1, 0, 1, 2, 3, 2, 0, inf, nan));
        check_values(ls_sign(x), LS_SHAPE(10), dtypes[i], VALUES(-1, -1, -1, 1, 1, 1, 1, -1, 1, 0));
        check_values(ls_is_nan(x), LS_SHAPE(10), LS_BOOL, VALUES(0, 0, 0, 0, 0, 0, 0, 0, 0, 1));
        check_values(ls_is_finite(x), LS_SHAPE(10), LS_BOOL, VALUES(1, 1, 1, 1, 1, 1, 1, 1, 0, 0));
    }
    ls_tensor *whole = of(LS_SHAPE(3), LS_I64, VALUES(-7, 0, 9));
    check_values(ls_round(whole), LS_SHAPE(3), LS_I64, VALUES(-7, 0, 9));
    check_values(ls_sign(whole), LS_SHAPE(3), LS_I64, VALUES(-1, 0, 1));
    check_values(ls_is_finite(whole), LS_SHAPE(3), LS_BOOL, VALUES(1, 1, 1));
    check_values(ls_is_nan(whole), LS_SHAPE(3), LS_BOOL, VALUES(0, 0, 0));
}

SCOPED_TEST(test_logic) {
    ls_tensor *a = of(LS_SHAPE(4, 1), LS_F32, VALUES(0, 0.25, -3, NAN));
    ls_tensor *b = of(LS_SHAPE(2), LS_I32, VALUES(0, 256));
    check_values(ls_logical_and(a, b), LS_SHAPE(4, 2), LS_BOOL, VALUES(0, 0, 0, 1, 0, 1, 0, 1));
    check_values(ls_logical_or(a, b), LS_SHAPE(4, 2), LS_BOOL, VALUES(0, 1, 1, 1, 1, 1, 1, 1));
    check_values(ls_logical_xor(a, b), LS_SHAPE(4, 2), LS_BOOL, VALUES(0, 1, 1, 0, 1, 0, 1, 0));
    check_values(ls_logical_not(a), LS_SHAPE(4, 1), LS_BOOL, VALUES(1, 0, 0, 0));
}

TEST(test_order_of_all_dtypes) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16, LS_I64, LS_I32, LS_U8};
    for (int i = 0; i < 7; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_transpose(of(LS_SHAPE(3, 2), dtypes[i], VALUES(5, 1, 2, 1, 5, 0)), 0, 1);
        ls_tensor *index = NULL;
        check_values(ls_sort(x, 1, false, &index), LS_SHAPE(2, 3), dtypes[i], VALUES(2, 5, 5, 0, 1, 1));
        check_values(index, LS_SHAPE(2, 3), LS_I64, VALUES(1, 0, 2, 2, 0, 1));
        check_values(ls_argsort(x, 1, true), LS_SHAPE(2, 3), LS_I64, VALUES(0, 2, 1, 0, 1, 2));
        check_values(ls_top_k(x, 2, 1, false, &index), LS_SHAPE(2, 2), dtypes[i], VALUES(5, 5, 1, 1));
        check_values(index, LS_SHAPE(2, 2), LS_I64, VALUES(0, 2, 0, 1));
        check_values(ls_argsort(x, 0, false), LS_SHAPE(2, 3), LS_I64, VALUES(1, 1, 1, 0, 0, 0));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = of(LS_SHAPE(5), LS_F32, VALUES(NAN, 1, INFINITY, NAN, -1));
    check_values(ls_argsort(x, 0, false), LS_SHAPE(5), LS_I64, VALUES(4, 1, 2, 0, 3));
    check_values(ls_argsort(x, 0, true), LS_SHAPE(5), LS_I64, VALUES(0, 3, 2, 1, 4));
    check_values(ls_argsort(ls_gt(x, 0.5), 0, true), LS_SHAPE(5), LS_I64, VALUES(1, 2, 0, 3, 4));
    check_values(ls_sort(ls_zeros(LS_SHAPE(2, 0), LS_F32), 1, false, NULL), LS_SHAPE(2, 0), LS_F32, NULL);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/*
 * Sorts many lines, with lengths near the run sizes of the merge sort and many ties: each pair is in order, and ties
 * are stable.
 */
TEST(test_long_lines) {
    const int64_t lengths[] = {1, 15, 16, 17, 31, 33, 64, 100, 1000};
    for (int i = 0; i < 9; i++) {
        for (int descending = 0; descending < 2; descending++) {
            ls_scope *scope = ls_scope_begin();
            const int64_t n = lengths[i];
            ls_seed(3);
            ls_tensor *x = ls_randint(LS_SHAPE(n, 3), LS_I32, 0, n / 3 + 2);
            ls_tensor *index = ls_argsort(x, 0, descending != 0);
            const int32_t *key = elements(x);
            const int64_t *at = elements(index);
            for (int64_t k = 1; k < n; k++) {
                for (int64_t c = 0; c < 3; c++) {
                    const int64_t before = at[(k - 1) * 3 + c], after = at[k * 3 + c];
                    const int32_t a = key[before * 3 + c], b = key[after * 3 + c];
                    assert_true(descending != 0 ? a >= b : a <= b);
                    assert_true(a != b || before < after);
                }
            }
            assert_int_equal(ls_scope_end(scope), LS_OK);
        }
    }
}

SCOPED_TEST(test_places) {
    ls_tensor *x = ls_arange(LS_SHAPE(2, 3), LS_I32);
    check_values(ls_flip(x, LS_AXES(-1)), LS_SHAPE(2, 3), LS_I32, VALUES(2, 1, 0, 5, 4, 3));
    check_values(ls_roll(x, 4, -1), LS_SHAPE(2, 3), LS_I32, VALUES(2, 0, 1, 5, 3, 4));
    check_values(ls_roll(x, 3, -1), LS_SHAPE(2, 3), LS_I32, VALUES(0, 1, 2, 3, 4, 5));
    check_values(ls_repeat(x, LS_SHAPE(2, 1)), LS_SHAPE(4, 3), LS_I32, VALUES(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
    ls_tensor *eight = ls_reshape(x, LS_SHAPE(1, 1, 1, 1, 1, 1, 2, 3));
    check_values(ls_repeat(eight, LS_SHAPE(1, 1, 1, 1, 2, 1, 1, 2)), LS_SHAPE(1, 1, 1, 1, 2, 1, 2, 6), LS_I32,
                 VALUES(0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5));
    check_values(ls_repeat(x, LS_SHAPE(0, 1)), LS_SHAPE(0, 3), LS_I32, NULL);
    check_values(ls_tril(ls_gt(x, 0), 0), LS_SHAPE(2, 3), LS_BOOL, VALUES(0, 0, 0, 1, 1, 0));
    const int64_t far[] = {INT64_MIN, -2, 3, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        ls_tensor *none = ls_zeros(LS_SHAPE(2, 3), LS_I32);
        assert_true(ls_equal(ls_tril(x, far[i]), i < 2 ? none : x));
        assert_true(ls_equal(ls_triu(x, far[i]), i < 2 ? x : none));
    }
    check_values(ls_triu(of(LS_SHAPE(2, 2), LS_BF16, VALUES(INFINITY, 2, NAN, 4)), 0), LS_SHAPE(2, 2), LS_BF16,
                 VALUES(INFINITY, 2, 0, 4));
    check_values(ls_masked_fill(x, ls_gt(x, 3), -9), LS_SHAPE(2, 3), LS_I32, VALUES(0, 1, 2, 3, -9, -9));
}

#define REFUSED(expression, status, words)                                                                             \
    scope = ls_scope_begin();                                                                                          \
    x = ls_arange(LS_SHAPE(2, 3), LS_I32);                                                                             \
    check_refused_in(scope, expression, status, words);

TEST(test_refusals) {
    ls_scope *scope;
    ls_tensor *x;
    REFUSED(ls_floor(NULL), LS_ERR_ARGUMENT, "ls_floor: argument 1 is NULL")
    REFUSED(ls_sign(ls_gt(x, 1)), LS_ERR_SHAPE, "ls_sign: the tensor is bool")
    REFUSED(ls_logical_and(x, NULL), LS_ERR_ARGUMENT, "ls_logical_and: argument 2 is NULL")
    REFUSED(ls_logical_or(x, ls_zeros(LS_SHAPE(2), LS_BOOL)), LS_ERR_SHAPE,
            "ls_logical_or: [2, 3] does not broadcast with [2]")
    REFUSED(ls_masked_fill(x, NULL, 1), LS_ERR_ARGUMENT, "ls_masked_fill: argument 2 is NULL")
    REFUSED(ls_masked_fill(x, ls_zeros(LS_SHAPE(4, 2, 3), LS_BOOL), 1), LS_ERR_SHAPE, "does not broadcast to x of")
    REFUSED(ls_masked_fill(x, ls_gt(x, 1), 0.5), LS_ERR_ARGUMENT, "0.5 does not fit into i32")
    REFUSED(ls_tril(ls_select(x, 0, 0), 0), LS_ERR_SHAPE, "ls_tril: [3] contains no matrices")
    REFUSED(ls_flip(x, LS_AXES(0, -2)), LS_ERR_ARGUMENT, "ls_flip: axis 0 is given twice")
    REFUSED(ls_flip(x, LS_AXES(2)), LS_ERR_ARGUMENT, "ls_flip: axis 2 does not exist in [2, 3]")
    REFUSED(ls_flip(ls_zeros(LS_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), LS_F32), LS_AXES(0, 1, 2, 3, 4, 5, 6, 7, 0)),
            LS_ERR_ARGUMENT, "ls_flip: more than 8 axes")
    REFUSED(ls_roll(x, 1, 2), LS_ERR_ARGUMENT, "ls_roll: axis 2 does not exist in [2, 3]")
    REFUSED(ls_repeat(x, LS_SHAPE(2)), LS_ERR_SHAPE, "ls_repeat: 1 repeat counts are given for [2, 3]")
    REFUSED(ls_repeat(x, LS_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1)), LS_ERR_SHAPE, "ls_repeat: 9 repeat counts are given")
    REFUSED(ls_repeat(x, LS_SHAPE(2, -1)), LS_ERR_ARGUMENT, "ls_repeat: cannot repeat axis 1 -1 times")
    REFUSED(ls_repeat(ls_zeros(LS_SHAPE(5000000000, 0), LS_F32), LS_SHAPE(5000000000, 1)), LS_ERR_SHAPE,
            "ls_repeat: [5000000000, 0] with axis 0 repeated 5000000000 times has more elements than int64_t can count")
    REFUSED(ls_sort(NULL, 0, false, NULL), LS_ERR_ARGUMENT, "ls_sort: argument 1 is NULL")
    REFUSED(ls_argsort(x, -3, false), LS_ERR_ARGUMENT, "ls_argsort: axis -3 does not exist in [2, 3]")
    REFUSED(ls_top_k(x, 4, 1, false, NULL), LS_ERR_ARGUMENT,
            "ls_top_k: cannot take the top 4 of 3 positions along axis 1 of [2, 3]")
    REFUSED(ls_top_k(x, -1, 1, false, NULL), LS_ERR_ARGUMENT, "ls_top_k: cannot take the top -1 of 3")
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_pytorch),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_logic),
        cmocka_unit_test(test_order_of_all_dtypes),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, language_begin, language_end);
}
