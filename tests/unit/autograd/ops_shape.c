/*
 * Views, joins, copies and conversions: values, shared memory, gradients, rejected arguments.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include "tests/support/operations.h"

#define VALUES(...) ((const double[]){__VA_ARGS__})

static ls_tensor *counted(ls_shape shape, ls_dtype dtype) {
    return ls_arange(shape, dtype);
}

static bool share_memory(ls_tensor *view, ls_tensor *base, int64_t offset) {
    const int64_t index[LS_MAX_DIMS] = {0};
    const double before = ls_at(view, index);
    ((double *)elements(base))[offset] += 100;
    const bool shared = ls_at(view, index) == before + 100;
    ((double *)elements(base))[offset] -= 100;
    return shared;
}

SCOPED_TEST(test_views_share_memory) {
    ls_tensor *x = counted(LS_SHAPE(2, 3, 4), LS_F64);
    assert_true(share_memory(ls_reshape(x, LS_SHAPE(6, 4)), x, 0));
    assert_true(share_memory(ls_transpose(x, 0, 2), x, 0));
    assert_true(share_memory(ls_permute(x, LS_AXES(2, 0, 1)), x, 0));
    assert_true(share_memory(ls_expand(x, LS_SHAPE(5, 2, 3, 4)), x, 0));
    assert_true(share_memory(ls_narrow(x, 1, 1, 2), x, 4));
    assert_true(share_memory(ls_slice(x, -1, 1, 100, 2), x, 1));
    assert_true(share_memory(ls_select(x, 0, -1), x, 12));
    assert_true(share_memory(ls_flatten(x, 0, -1), x, 0));
    assert_true(share_memory(ls_unsqueeze(x, 0), x, 0));
    assert_true(share_memory(ls_squeeze(ls_narrow(x, 1, 2, 1), 1), x, 8));
    assert_true(share_memory(ls_detach(x), x, 0));
    assert_true(share_memory(ls_contiguous(x), x, 0));
    assert_true(share_memory(ls_to(x, LS_F64), x, 0));
    assert_true(share_memory(ls_flatten(ls_transpose(x, 0, 2), 0, 0), x, 0));
    assert_true(share_memory(ls_reshape(ls_transpose(x, 0, 2), LS_SHAPE(2, 2, 3, 2)), x, 0));
    assert_false(share_memory(ls_reshape(ls_transpose(x, 0, 2), LS_SHAPE(24)), x, 0));
    assert_false(share_memory(ls_contiguous(ls_transpose(x, 0, 2)), x, 0));
    assert_false(share_memory(ls_clone(x), x, 0));
}

/* Every reshape of a strided tensor equals the reshape of its dense copy. */
TEST(test_reshapes_of_strided_tensors) {
    const ls_shape targets[] = {LS_SHAPE(24),      LS_SHAPE(2, 12),   LS_SHAPE(12, 2),      LS_SHAPE(4, 3, 2),
                                LS_SHAPE(2, 2, 6), LS_SHAPE(1, 6, 4), LS_SHAPE(6, 1, 2, 2), LS_SHAPE(3, 2, 1, 4, 1)};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = counted(LS_SHAPE(4, 4, 6), LS_F32), *dense = counted(LS_SHAPE(2, 3, 4), LS_F32);
        ls_tensor *strided[] = {
            ls_permute(dense, LS_AXES(2, 0, 1)),
            ls_transpose(dense, 0, 1),
            ls_narrow(ls_narrow(x, 1, 1, 3), 2, 2, 2),
            ls_slice(ls_select(x, 0, 1), 1, 0, 6, 1),
            ls_expand(ls_narrow(ls_narrow(x, 0, 0, 1), 2, 0, 3), LS_SHAPE(2, 4, 3)),
            ls_expand(ls_reshape(counted(LS_SHAPE(6), LS_F32), LS_SHAPE(6, 1)), LS_SHAPE(6, 4)),
            ls_slice(ls_slice(x, 0, 0, 4, 3), 1, 0, 4, 2),
        };
        for (size_t k = 0; k < sizeof strided / sizeof *strided; k++) {
            ls_tensor *direct = ls_reshape(strided[k], targets[i]);
            ls_tensor *by_copy = ls_reshape(ls_clone(strided[k]), targets[i]);
            assert_true(ls_equal(direct, by_copy));
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_values_of_views) {
    ls_tensor *x = counted(LS_SHAPE(2, 3), LS_I64);
    check_values(ls_reshape(x, LS_SHAPE(3, -1)), LS_SHAPE(3, 2), LS_I64, VALUES(0, 1, 2, 3, 4, 5));
    check_values(ls_transpose(x, 0, -1), LS_SHAPE(3, 2), LS_I64, VALUES(0, 3, 1, 4, 2, 5));
    check_values(ls_permute(counted(LS_SHAPE(2, 1, 3), LS_F16), LS_AXES(-1, 0, 1)), LS_SHAPE(3, 2, 1), LS_F16,
                 VALUES(0, 3, 1, 4, 2, 5));
    check_values(ls_expand(ls_narrow(x, 1, 0, 1), LS_SHAPE(2, 2, 3)), LS_SHAPE(2, 2, 3), LS_I64,
                 VALUES(0, 0, 0, 3, 3, 3, 0, 0, 0, 3, 3, 3));
    check_values(ls_expand(x, LS_SHAPE(1, 1, 1, 1, 1, 1, 2, 3)), LS_SHAPE(1, 1, 1, 1, 1, 1, 2, 3), LS_I64,
                 VALUES(0, 1, 2, 3, 4, 5));
    check_values(ls_expand(x, LS_SHAPE(1, -1, -1)), LS_SHAPE(1, 2, 3), LS_I64, VALUES(0, 1, 2, 3, 4, 5));
    check_values(ls_narrow(x, -1, -2, 2), LS_SHAPE(2, 2), LS_I64, VALUES(1, 2, 4, 5));
    check_values(ls_select(x, 1, 2), LS_SHAPE(2), LS_I64, VALUES(2, 5));
    check_values(ls_select(ls_select(x, 1, -1), 0, 0), LS_SCALAR, LS_I64, VALUES(2));
    check_values(ls_flatten(ls_gt(counted(LS_SHAPE(2, 1, 3, 1), LS_F32), 0), 1, -2), LS_SHAPE(2, 3, 1), LS_BOOL,
                 VALUES(0, 1, 1, 1, 1, 1));
    check_values(ls_flatten(ls_scalar(4, LS_F32), 0, -1), LS_SHAPE(1), LS_F32, VALUES(4));
    check_values(ls_unsqueeze(x, -1), LS_SHAPE(2, 3, 1), LS_I64, VALUES(0, 1, 2, 3, 4, 5));
    check_values(ls_squeeze(ls_unsqueeze(x, 1), 1), LS_SHAPE(2, 3), LS_I64, VALUES(0, 1, 2, 3, 4, 5));
    check_values(ls_reshape(counted(LS_SHAPE(0, 3), LS_F32), LS_SHAPE(3, 0, 2)), LS_SHAPE(3, 0, 2), LS_F32, NULL);
    check_values(ls_reshape(counted(LS_SHAPE(1, 1), LS_F32), LS_SCALAR), LS_SCALAR, LS_F32, VALUES(0));
    check_values(ls_expand(counted(LS_SHAPE(1), LS_F32), LS_SHAPE(0)), LS_SHAPE(0), LS_F32, NULL);
}

/* As in Python: x[start:stop:step]. */
SCOPED_TEST(test_slices_follow_python) {
    ls_tensor *x = counted(LS_SHAPE(5), LS_F32);
    check_values(ls_slice(x, 0, 1, 4, 1), LS_SHAPE(3), LS_F32, VALUES(1, 2, 3));
    check_values(ls_slice(x, 0, 0, 5, 2), LS_SHAPE(3), LS_F32, VALUES(0, 2, 4));
    check_values(ls_slice(x, 0, 1, 5, 3), LS_SHAPE(2), LS_F32, VALUES(1, 4));
    check_values(ls_slice(x, 0, -2, 100, 1), LS_SHAPE(2), LS_F32, VALUES(3, 4));
    check_values(ls_slice(x, 0, -100, -3, 1), LS_SHAPE(2), LS_F32, VALUES(0, 1));
    check_values(ls_slice(x, 0, 3, 2, 1), LS_SHAPE(0), LS_F32, NULL);
    check_values(ls_slice(x, 0, 7, 9, 1), LS_SHAPE(0), LS_F32, NULL);
    check_values(ls_slice(x, 0, 2, INT64_MAX, INT64_MAX), LS_SHAPE(1), LS_F32, VALUES(2));
    check_values(ls_narrow(x, 0, 5, 0), LS_SHAPE(0), LS_F32, NULL);
}

SCOPED_TEST(test_joins) {
    ls_tensor *a = counted(LS_SHAPE(2, 2), LS_F32), *b = ls_add(ls_transpose(a, 0, 1), 10);
    check_values(ls_concat((ls_tensor *[]){a, b, a}, 3, 0), LS_SHAPE(6, 2), LS_F32,
                 VALUES(0, 1, 2, 3, 10, 12, 11, 13, 0, 1, 2, 3));
    check_values(ls_concat((ls_tensor *[]){a, ls_narrow(b, 1, 0, 1)}, 2, -1), LS_SHAPE(2, 3), LS_F32,
                 VALUES(0, 1, 10, 2, 3, 11));
    check_values(ls_stack((ls_tensor *[]){a, b}, 2, 0), LS_SHAPE(2, 2, 2), LS_F32, VALUES(0, 1, 2, 3, 10, 12, 11, 13));
    check_values(ls_stack((ls_tensor *[]){a, b}, 2, -1), LS_SHAPE(2, 2, 2), LS_F32, VALUES(0, 10, 1, 12, 2, 11, 3, 13));
    ls_tensor *ones[7];
    for (int i = 0; i < 7; i++) {
        ones[i] = ls_scalar(i, i % 2 == 0 ? LS_I32 : LS_BF16);
    }
    check_values(ls_stack(ones, 7, 0), LS_SHAPE(7), LS_BF16, VALUES(0, 1, 2, 3, 4, 5, 6));
    ls_tensor *half = ls_to(a, LS_F16), *brain = ls_to(a, LS_BF16);
    assert_int_equal(ls_dtype_of(ls_concat((ls_tensor *[]){half, brain}, 2, 0)), LS_F32);
    assert_int_equal(ls_dtype_of(ls_concat((ls_tensor *[]){half, half}, 2, 0)), LS_F16);
    check_values(ls_pad(a, 0, 1, 0, -1), LS_SHAPE(3, 2), LS_F32, VALUES(-1, -1, 0, 1, 2, 3));
    check_values(ls_pad(ls_transpose(a, 0, 1), 1, 0, 2, 9), LS_SHAPE(2, 4), LS_F32, VALUES(0, 2, 9, 9, 1, 3, 9, 9));
    check_values(ls_pad(counted(LS_SHAPE(0, 2), LS_I64), 0, 1, 1, 7), LS_SHAPE(2, 2), LS_I64, VALUES(7, 7, 7, 7));
}

TEST(test_splits) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = counted(LS_SHAPE(2, 5), LS_F64), *parts[3] = {NULL};
    assert_int_equal(ls_split(x, 1, 2, parts, 3), 3);
    check_values(parts[1], LS_SHAPE(2, 2), LS_F64, VALUES(2, 3, 7, 8));
    check_values(parts[2], LS_SHAPE(2, 1), LS_F64, VALUES(4, 9));
    assert_true(share_memory(parts[2], x, 4));
    assert_int_equal(ls_split(x, 0, 9, parts, 1), 1);
    assert_int_equal(ls_split(x, 1, 2, parts, 2), -1);
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    expect_message("makes 3 tensors, but the array has room for only 2");
    scope = ls_scope_begin();
    assert_int_equal(ls_split(NULL, 1, 2, parts, 2), -1);
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    expect_message("ls_split: argument 1 is NULL");
}

TEST(test_gradients_of_views_meet) {
    for (int leaf = 0; leaf < 2; leaf++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = leaf_from(LS_SHAPE(2, 3), VALUES(1, 2, 3, 4, 5, 6));
        ls_tensor *y = leaf ? x : ls_mul(x, 1);
        ls_tensor *corner = ls_narrow(ls_select(y, 0, 0), 0, 1, 2), *column = ls_select(y, 1, 2);
        ls_tensor *loss = ls_add(ls_sum(ls_mul(corner, 10)), ls_sum(column));
        assert_int_equal(ls_backward(ls_add(loss, ls_sum(ls_expand(y, LS_SHAPE(4, 2, 3))))), LS_OK);
        check_values(ls_grad(x), LS_SHAPE(2, 3), LS_F64, VALUES(4, 14, 15, 4, 4, 5));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* 16-bit floats pass through views and joins unchanged; sums of gradients are computed in f32. */
SCOPED_TEST(test_gradients_in_half_precision) {
    ls_tensor *x = counted(LS_SHAPE(2, 2), LS_BF16);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_tensor *rows[] = {ls_select(x, 0, 0), ls_select(x, 0, 1), ls_select(x, 0, 0)};
    ls_tensor *y = ls_pad(ls_stack(rows, 3, 0), 1, 0, 1, 5);
    assert_int_equal(ls_dtype_of(y), LS_BF16);
    assert_int_equal(ls_backward(ls_sum(ls_square(ls_to(y, LS_F64)))), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(2, 2), LS_BF16, VALUES(0, 4, 4, 6));
}

SCOPED_TEST(test_conversions) {
    ls_tensor *x = ls_from(LS_SHAPE(4), LS_F64, VALUES(-1.75, 0, 0.5, 300));
    check_values(ls_to(x, LS_I64), LS_SHAPE(4), LS_I64, VALUES(-1, 0, 0, 300));
    check_values(ls_to(x, LS_BOOL), LS_SHAPE(4), LS_BOOL, VALUES(1, 0, 1, 1));
    check_values(ls_to(x, LS_F16), LS_SHAPE(4), LS_F16, VALUES(-1.75, 0, 0.5, 300));
    check_values(ls_to(ls_to(x, LS_I32), LS_F32), LS_SHAPE(4), LS_F32, VALUES(-1, 0, 0, 300));
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    assert_false(ls_requires_grad(ls_to(x, LS_I64)));
    assert_false(ls_requires_grad(ls_detach(x)));
    assert_true(ls_requires_grad(ls_contiguous(x)));
    assert_int_equal(ls_backward(ls_sum(ls_mul(ls_to(x, LS_F32), ls_detach(ls_to(x, LS_F32))))), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(4), LS_F64, VALUES(-1.75, 0, 0.5, 300));
}

static void refuses(ls_scope *scope, const ls_tensor *result, const char *words) {
    assert_null(result);
    assert_int_not_equal(ls_scope_end(scope), LS_OK);
    expect_message(words);
}

#define REFUSES(expression, words)                                                                                     \
    do {                                                                                                               \
        ls_scope *refusal = ls_scope_begin();                                                                          \
        ls_tensor *x = ls_ones(LS_SHAPE(2, 3), LS_F32);                                                                \
        refuses(refusal, expression, words);                                                                           \
        (void)x;                                                                                                       \
    } while (0)

TEST(test_refusals) {
    REFUSES(ls_reshape(x, LS_SHAPE(4, 2)), "ls_reshape: [2, 3] has 6 elements, which cannot form [4, 2]");
    REFUSES(ls_reshape(x, LS_SHAPE(-1, 4)), "ls_reshape: [2, 3] has 6 elements");
    REFUSES(ls_reshape(x, LS_SHAPE(-1, -1)), "at most one size may be negative, and it must be -1");
    REFUSES(ls_reshape(x, LS_SHAPE(-2, -3)), "ls_reshape: [-2, -3]");
    REFUSES(ls_reshape(x, LS_SHAPE(INT64_MAX, 8)), "ls_reshape: [2, 3] has 6 elements");
    REFUSES(ls_reshape(x, LS_SHAPE(0, -1)), "ls_reshape: [2, 3] has 6 elements");
    REFUSES(ls_reshape(x, LS_SHAPE(1, 1, 1, 1, 1, 1, 1, 2, 3)), "ls_reshape: more than 8 dimensions");
    REFUSES(
        ls_reshape(ls_zeros(LS_SHAPE(0), LS_F32), LS_SHAPE(0, INT64_C(1) << 40, INT64_C(1) << 40)),
        "ls_reshape: [0] cannot become [0, 1099511627776, 1099511627776]: it has more elements than int64_t can count");
    REFUSES(ls_reshape(ls_zeros(LS_SHAPE(0), LS_F32), LS_SHAPE(-1, INT64_C(1) << 40, INT64_C(1) << 40)),
            "it has more elements than int64_t can count");
    REFUSES(ls_transpose(x, 0, 2), "ls_transpose: axis 2 does not exist in [2, 3]");
    REFUSES(ls_permute(x, LS_AXES(0, 0)), "ls_permute: axis 0 is given twice");
    REFUSES(ls_permute(x, LS_AXES(0, 1, 2)), "ls_permute: 3 axes are given for [2, 3]");
    REFUSES(ls_expand(x, LS_SHAPE(2, 4)), "ls_expand: [2, 3] cannot become [2, 4]: axis 1 has size 3");
    REFUSES(ls_expand(x, LS_SHAPE(3)), "ls_expand: [2, 3] cannot become [3]");
    REFUSES(ls_expand(x, LS_SHAPE(-1, 2, 3)), "ls_expand: [2, 3] cannot become [-1, 2, 3]");
    REFUSES(ls_expand(x, ((ls_shape){100, {0}})), "ls_expand: more than 8 dimensions");
    ls_scope *scope = ls_scope_begin();
    ls_tensor *one = ls_ones(LS_SHAPE(1), LS_U8);
    REFUSES(ls_expand(one, LS_SHAPE(INT64_C(1) << 40, INT64_C(1) << 40)),
            "it has more elements than int64_t can count");
    ls_tensor *long_one = ls_expand(one, LS_SHAPE(INT64_C(1) << 62));
    REFUSES(ls_concat((ls_tensor *[]){long_one, long_one}, 2, 0), "more positions along axis 0 than int64_t can count");
    assert_int_equal(ls_scope_end(scope), LS_OK);
    REFUSES(ls_narrow(x, 1, 1, 3),
            "ls_narrow: cannot take 3 positions, starting at 1, of axis 1 of [2, 3], which has 3");
    REFUSES(ls_narrow(x, 1, 0, -1), "ls_narrow: cannot take -1 positions");
    REFUSES(ls_narrow(x, 1, INT64_MIN, 1), "ls_narrow: cannot take 1 positions");
    REFUSES(ls_slice(x, 1, 0, 3, 0), "ls_slice: step is 0");
    REFUSES(ls_slice(x, 2, 0, 3, 1), "ls_slice: axis 2");
    REFUSES(ls_select(x, 0, 2), "ls_select: position 2 is out of range for axis 0 of [2, 3], which has 2 positions");
    REFUSES(ls_select(x, 0, -3), "ls_select: position -3");
    REFUSES(ls_squeeze(x, 1), "ls_squeeze: axis 1 of [2, 3] has size 3, not 1");
    REFUSES(ls_unsqueeze(x, 3), "ls_unsqueeze: cannot insert axis 3 into [2, 3]");
    REFUSES(ls_unsqueeze(ls_ones(LS_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), LS_F32), 0),
            "already has the maximum of 8 dimensions");
    REFUSES(ls_flatten(x, 1, 0), "ls_flatten: the first axis 1 is after the last axis 0");
    REFUSES(ls_pad(x, 0, -1, 0, 0), "ls_pad: -1 positions before and 0 after");
    REFUSES(ls_pad(x, 0, INT64_MAX, 0, 0), "ls_pad: ");
    REFUSES(ls_pad(ls_ones(LS_SHAPE(2), LS_U8), 0, 1, 0, 300), "ls_pad: 300 does not fit into u8");
    REFUSES(ls_pad(ls_ones(LS_SHAPE(2), LS_BOOL), 0, 1, 0, 0.5), "ls_pad: 0.5 does not fit into bool");
    REFUSES(ls_concat((ls_tensor *[]){x, ls_ones(LS_SHAPE(2, 2), LS_F32)}, 2, 0),
            "ls_concat: tensor 1, [2, 2], does not fit tensor 0, [2, 3], along axis 0");
    REFUSES(ls_concat((ls_tensor *[]){x, x}, 2, 2), "ls_concat: axis 2");
    REFUSES(ls_concat(NULL, 0, 0), "ls_concat: needs at least one tensor");
    REFUSES(ls_concat((ls_tensor *[]){ls_ones(LS_SCALAR, LS_F32)}, 1, 0), "ls_concat: axis 0");
    REFUSES(ls_stack((ls_tensor *[]){x, ls_ones(LS_SHAPE(3), LS_F32)}, 2, 0), "ls_stack: tensor 1 is [3]");
    REFUSES(ls_to(x, (ls_dtype)77), "ls_to: 77 is not a dtype");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views_share_memory),
        cmocka_unit_test(test_reshapes_of_strided_tensors),
        cmocka_unit_test(test_values_of_views),
        cmocka_unit_test(test_slices_follow_python),
        cmocka_unit_test(test_joins),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_gradients_of_views_meet),
        cmocka_unit_test(test_gradients_in_half_precision),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
