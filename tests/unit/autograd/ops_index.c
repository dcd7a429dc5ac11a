/*
 * Elements selected by index: values, dtypes of index and elements, gradients of repeated indices, refusals.
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/unit.h"

#include "tests/support/operations.h"

#define VALUES(...) ((const double[]){__VA_ARGS__})

static ls_tensor *indices(ls_shape shape, ls_dtype dtype, const double *values) {
    return ls_to(ls_from(shape, LS_F64, values), dtype);
}

TEST(test_values) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16, LS_I64, LS_I32, LS_U8};
    for (int i = 0; i < 7; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_arange(LS_SHAPE(3, 4), dtypes[i]);
        const ls_dtype index_dtype = i % 2 == 0 ? LS_I64 : LS_I32;
        ls_tensor *index = indices(LS_SHAPE(3), index_dtype, VALUES(2, 0, 2));
        check_values(ls_index_select(x, 0, index), LS_SHAPE(3, 4), dtypes[i],
                     VALUES(8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11));
        check_values(ls_index_select(x, -1, index), LS_SHAPE(3, 3), dtypes[i], VALUES(2, 0, 2, 6, 4, 6, 10, 8, 10));
        check_values(ls_index_select(ls_transpose(x, 0, 1), 1, index), LS_SHAPE(4, 3), dtypes[i],
                     VALUES(8, 0, 8, 9, 1, 9, 10, 2, 10, 11, 3, 11));
        check_values(ls_embedding(x, indices(LS_SHAPE(1, 2), index_dtype, VALUES(1, 0))), LS_SHAPE(1, 2, 4), dtypes[i],
                     VALUES(4, 5, 6, 7, 0, 1, 2, 3));
        check_values(ls_take_along_axis(x, 1, indices(LS_SHAPE(3, 2), index_dtype, VALUES(0, 3, 1, 1, 2, 0))),
                     LS_SHAPE(3, 2), dtypes[i], VALUES(0, 3, 5, 5, 10, 8));
        check_values(ls_take_along_axis(x, 0, indices(LS_SHAPE(1, 4), index_dtype, VALUES(2, 0, 1, 2))), LS_SHAPE(1, 4),
                     dtypes[i], VALUES(8, 1, 6, 11));
        check_values(ls_take_along_axis(x, 0, indices(LS_SHAPE(4, 2), index_dtype, VALUES(2, 0, 1, 2, 0, 0, 1, 1))),
                     LS_SHAPE(4, 2), dtypes[i], VALUES(8, 1, 4, 9, 0, 1, 4, 5));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_strided_and_empty_indices) {
    ls_tensor *x = ls_arange(LS_SHAPE(4, 2), LS_F32);
    ls_tensor *index = ls_slice(indices(LS_SHAPE(4), LS_I64, VALUES(3, 9, 1, 9)), 0, 0, 4, 2);
    check_values(ls_index_select(x, 0, index), LS_SHAPE(2, 2), LS_F32, VALUES(6, 7, 2, 3));
    check_values(ls_embedding(x, ls_transpose(indices(LS_SHAPE(2, 2), LS_I32, VALUES(0, 1, 2, 3)), 0, 1)),
                 LS_SHAPE(2, 2, 2), LS_F32, VALUES(0, 1, 4, 5, 2, 3, 6, 7));
    check_values(ls_embedding(x, indices(LS_SCALAR, LS_I64, VALUES(3))), LS_SHAPE(2), LS_F32, VALUES(6, 7));
    check_values(ls_embedding(x, ls_zeros(LS_SHAPE(0, 3), LS_I64)), LS_SHAPE(0, 3, 2), LS_F32, NULL);
    check_values(ls_index_select(x, 1, ls_zeros(LS_SHAPE(0), LS_I64)), LS_SHAPE(4, 0), LS_F32, NULL);
    check_values(ls_index_select(ls_gt(x, 3), 1, ls_zeros(LS_SHAPE(1), LS_I64)), LS_SHAPE(4, 1), LS_BOOL,
                 VALUES(0, 0, 1, 1));
}

/* A row that is selected twice gets both gradients, an unselected row gets 0, and earlier gradients remain. */
TEST(test_gradients_of_repeated_indices) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16};
    for (int i = 0; i < 3; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *weight = ls_ones(LS_SHAPE(4, 2), dtypes[i]);
        assert_int_equal(ls_set_requires_grad(weight, true), LS_OK);
        ls_tensor *rows = ls_embedding(weight, indices(LS_SHAPE(3), LS_I64, VALUES(2, 0, 2)));
        assert_int_equal(ls_backward(ls_sum(ls_mul(rows, ls_arange(LS_SHAPE(3, 2), LS_BF16)))), LS_OK);
        check_values(ls_grad(weight), LS_SHAPE(4, 2), dtypes[i], VALUES(2, 3, 0, 0, 4, 6, 0, 0));
        ls_tensor *same = ls_index_select(weight, 1, indices(LS_SHAPE(2), LS_I64, VALUES(1, 1)));
        assert_int_equal(ls_backward(ls_sum(same)), LS_OK);
        check_values(ls_grad(weight), LS_SHAPE(4, 2), dtypes[i], VALUES(2, 5, 0, 2, 4, 8, 0, 2));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_refusals) {
    check_refused(ls_embedding(ls_ones(LS_SHAPE(4, 2), LS_F32), indices(LS_SHAPE(2), LS_I32, VALUES(1, 4))),
                  LS_ERR_ARGUMENT, "ls_embedding: index 4");
    check_refused(ls_index_select(ls_ones(LS_SHAPE(4), LS_F32), 0, indices(LS_SHAPE(1), LS_I64, VALUES(-1))),
                  LS_ERR_ARGUMENT, "ls_index_select: index -1");
    check_refused(ls_take_along_axis(ls_ones(LS_SHAPE(4), LS_F32), 0, indices(LS_SHAPE(3), LS_I64, VALUES(0, 7, 1))),
                  LS_ERR_ARGUMENT, "ls_take_along_axis: index 7");
    check_refused(ls_index_select(ls_ones(LS_SHAPE(4), LS_F32), 0, ls_zeros(LS_SHAPE(1), LS_F32)), LS_ERR_SHAPE,
                  "ls_index_select: the index is a tensor of f32");
    check_refused(ls_index_select(ls_ones(LS_SHAPE(4), LS_F32), 0, ls_zeros(LS_SHAPE(1, 1), LS_I64)), LS_ERR_SHAPE,
                  "ls_index_select: the index is [1, 1]");
    check_refused(ls_index_select(ls_ones(LS_SHAPE(4), LS_F32), 1, ls_zeros(LS_SHAPE(1), LS_I64)), LS_ERR_ARGUMENT,
                  "ls_index_select: axis 1");
    check_refused(ls_embedding(ls_ones(LS_SHAPE(4), LS_F32), ls_zeros(LS_SHAPE(1), LS_I64)), LS_ERR_SHAPE,
                  "ls_embedding: cannot select rows of [4]");
    check_refused(ls_take_along_axis(ls_ones(LS_SHAPE(2, 3), LS_F32), 1, ls_zeros(LS_SHAPE(3, 1), LS_I64)),
                  LS_ERR_SHAPE, "ls_take_along_axis: an index of [3, 1] does not fit [2, 3]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_strided_and_empty_indices),
        cmocka_unit_test(test_gradients_of_repeated_indices),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
