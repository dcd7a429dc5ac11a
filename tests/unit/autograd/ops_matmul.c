/*
 * ls_matmul and ls_linear: values and gradients compared with PyTorch's, strides, accumulation, other dtypes, invalid
 * shapes.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/autograd.h>

#include "autograd/ops/linear.h"
#include "tests/support/operations.h"

FIXTURES(fixtures, "operations.txt")

TEST(test_products_agree_with_pytorch) {
    const struct {
        const char *name;
        ls_shape a, b;
    } cases[] = {
        {"vector_vector", LS_SHAPE(5), LS_SHAPE(5)},
        {"matrix_vector", LS_SHAPE(3, 4), LS_SHAPE(4)},
        {"vector_matrix", LS_SHAPE(4), LS_SHAPE(4, 3)},
        {"matrix_matrix", LS_SHAPE(3, 4), LS_SHAPE(4, 2)},
        {"batches_matrix", LS_SHAPE(2, 3, 3, 4), LS_SHAPE(4, 2)},
        {"matrix_batches", LS_SHAPE(3, 4), LS_SHAPE(2, 4, 2)},
        {"batches_broadcast", LS_SHAPE(2, 1, 3, 4), LS_SHAPE(3, 4, 2)},
        {"batches_vector", LS_SHAPE(2, 3, 4), LS_SHAPE(4)},
        {"vector_batches", LS_SHAPE(4), LS_SHAPE(2, 4, 3)},
        {"single_rows", LS_SHAPE(3, 1, 4), LS_SHAPE(4, 2)},
        {"nothing_inside", LS_SHAPE(2, 0), LS_SHAPE(0, 3)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *inputs[] = {wave(cases[i].a, 1), wave(cases[i].b, 2)};
        char name[64];
        snprintf(name, sizeof name, "matmul/%s", cases[i].name);
        check_against(fixtures, name, ls_matmul(inputs[0], inputs[1]), inputs, 2, NULL, 0);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_views_agree_with_pytorch) {
    ls_tensor *inputs[] = {wave(LS_SHAPE(4, 3), 1), wave(LS_SHAPE(2, 5, 4), 2)};
    check_against(fixtures, "matmul/transposed",
                  ls_matmul(ls_transpose(inputs[0], 0, 1), ls_transpose(inputs[1], 1, 2)), inputs, 2, NULL, 0);
    ls_tensor *others[] = {wave(LS_SHAPE(3, 2, 4), 1), wave(LS_SHAPE(4, 6), 2)};
    check_against(fixtures, "matmul/strided",
                  ls_matmul(ls_permute(others[0], LS_AXES(1, 0, 2)), ls_slice(others[1], 1, 0, 6, 2)), others, 2, NULL,
                  0);
}

TEST(test_linear_agrees_with_pytorch) {
    const struct {
        const char *name;
        ls_shape x;
    } cases[] = {{"matrix", LS_SHAPE(5, 4)}, {"batches", LS_SHAPE(2, 3, 4)}, {"vector", LS_SHAPE(4)}};
    for (size_t i = 0; i < 3; i++) {
        for (int form = 0; form < 3; form++) {
            static const char *const forms[] = {"linear", "linear_no_bias", "linear_relu"};
            ls_scope *scope = ls_scope_begin();
            ls_tensor *inputs[] = {wave(cases[i].x, 1), wave(LS_SHAPE(3, 4), 2), wave(LS_SHAPE(3), 3)};
            ls_tensor *bias = form == 1 ? NULL : inputs[2];
            ls_tensor *y = form == 2 ? ls_linear_activation(inputs[0], inputs[1], bias, LS_ACTIVATION_RELU)
                                     : ls_linear(inputs[0], inputs[1], bias);
            char name[64];
            snprintf(name, sizeof name, "%s/%s", forms[form], cases[i].name);
            check_against(fixtures, name, y, inputs, bias == NULL ? 2 : 3, NULL, 0);
            assert_int_equal(ls_scope_end(scope), LS_OK);
        }
    }
}

/* Strided operands give the same result as dense copies. */
SCOPED_TEST(test_linear_of_views) {
    ls_tensor *wide = wave(LS_SHAPE(5, 8), 1);
    ls_tensor *weight = wave(LS_SHAPE(4, 6), 2);
    ls_tensor *bias = wave(LS_SHAPE(12), 3);
    ls_tensor *views[][3] = {
        {ls_narrow(wide, 1, 2, 4), ls_transpose(weight, 0, 1), ls_narrow(bias, 0, 1, 6)},
        {ls_slice(wide, 1, 0, 8, 2), ls_transpose(weight, 0, 1), ls_slice(bias, 0, 0, 12, 2)},
        {ls_transpose(ls_narrow(weight, 1, 0, 3), 0, 1), ls_slice(ls_transpose(wide, 0, 1), 1, 1, 5, 1), NULL},
    };
    for (int i = 0; i < 3; i++) {
        ls_tensor *const *v = views[i];
        ls_tensor *y = ls_linear(v[0], v[1], v[2]);
        ls_tensor *dense = ls_linear(ls_clone(v[0]), ls_clone(v[1]), v[2] == NULL ? NULL : ls_clone(v[2]));
        assert_true(ls_allclose(y, dense, 1e-13, 1e-13));
        const ls_backward_options keep = {.keep_tape = true}; /* the views are recorded, too */
        assert_int_equal(ls_backward_with(ls_sum(ls_square(y)), &keep), LS_OK);
        ls_tensor *by_view = ls_clone(ls_grad(weight));
        ls_zero_grad(weight);
        ls_zero_grad(wide);
        assert_int_equal(ls_backward(ls_sum(ls_square(dense))), LS_OK);
        assert_true(ls_allclose(by_view, ls_grad(weight), 1e-12, 1e-12));
        ls_zero_grad(weight);
        ls_zero_grad(wide);
        ls_zero_grad(bias);
    }
}

/* A second backward pass adds to the gradients of the first. */
TEST(test_gradients_accumulate) {
    for (int rows = 0; rows <= 2; rows++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = wave(LS_SHAPE(rows, 4), 1);
        ls_tensor *leaves[] = {wave(LS_SHAPE(3, 4), 2), wave(LS_SHAPE(3), 3), x, wave(LS_SHAPE(4, 3), 4)};
        ls_tensor *first[4];
        for (int pass = 0; pass < 2; pass++) {
            ls_tensor *y = ls_add(ls_linear(x, leaves[0], leaves[1]), ls_matmul(x, leaves[3]));
            assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
            for (int i = 0; i < 4 && pass == 0; i++) {
                first[i] = ls_clone(ls_grad(leaves[i]));
            }
        }
        for (int i = 0; i < 4; i++) {
            assert_non_null(first[i]);
            assert_true(ls_allclose(ls_grad(leaves[i]), ls_mul(first[i], 2), 1e-13, 1e-13));
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_one_tensor_on_both_sides) {
    ls_tensor *x = wave(LS_SHAPE(3, 3), 1);
    assert_int_equal(ls_backward(ls_sum(ls_matmul(x, x))), LS_OK);
    ls_tensor *ones = ls_ones(LS_SHAPE(3, 3), LS_F64);
    ls_tensor *frozen = ls_detach(x);
    ls_tensor *turned = ls_transpose(frozen, 0, 1);
    assert_true(ls_allclose(ls_grad(x), ls_add(ls_matmul(ones, turned), ls_matmul(turned, ones)), 1e-13, 1e-13));
}

TEST(test_half_precision_goes_through_f32) {
    const ls_dtype halves[] = {LS_BF16, LS_F16};
    for (int i = 0; i < 2; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_to(ls_detach(wave(LS_SHAPE(4, 3), 1)), halves[i]);
        ls_tensor *weight = ls_to(ls_detach(wave(LS_SHAPE(2, 3), 2)), halves[i]);
        assert_int_equal(ls_set_requires_grad(weight, true), LS_OK);
        ls_tensor *y = ls_linear(x, weight, NULL);
        assert_int_equal(ls_dtype_of(y), halves[i]);
        ls_tensor *exact = ls_matmul(ls_to(x, LS_F64), ls_transpose(ls_to(ls_detach(weight), LS_F64), 0, 1));
        assert_true(ls_allclose(ls_to(y, LS_F64), exact, 8e-3, 1e-2));
        assert_true(ls_allclose(ls_to(ls_matmul(x, ls_transpose(weight, 0, 1)), LS_F64), exact, 8e-3, 1e-2));
        assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
        assert_int_equal(ls_dtype_of(ls_grad(weight)), halves[i]);
        ls_tensor *sums = ls_sum_axes(ls_to(x, LS_F64), LS_AXES(0), true);
        assert_true(ls_allclose(ls_to(ls_grad(weight), LS_F64), ls_expand(sums, LS_SHAPE(2, 3)), 1e-2, 1e-2));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

static ls_tensor *zeros(ls_shape shape) {
    return ls_zeros(shape, LS_F32);
}

SCOPED_TEST(test_wrong_shapes_are_named) {
    check_refused(ls_matmul(zeros(LS_SHAPE(64, 784)), zeros(LS_SHAPE(100, 10))), LS_ERR_SHAPE,
                  "ls_matmul: [64, 784] x [100, 10]: inner sizes 784 and 100 differ");
    check_refused(ls_matmul(zeros(LS_SHAPE(2, 3, 4)), zeros(LS_SHAPE(3, 4, 5))), LS_ERR_SHAPE,
                  "ls_matmul: [2, 3, 4] x [3, 4, 5]: batch sizes do not broadcast");
    check_refused(ls_matmul(zeros(LS_SCALAR), zeros(LS_SHAPE(3))), LS_ERR_SHAPE, "ls_matmul: [] x [3]");
    check_refused(ls_matmul(ls_zeros(LS_SHAPE(3), LS_I64), ls_zeros(LS_SHAPE(3), LS_I64)), LS_ERR_SHAPE,
                  "ls_matmul: expected a floating-point tensor, not i64");
    check_refused(ls_matmul(zeros(LS_SHAPE(3)), ls_zeros(LS_SHAPE(3), LS_F64)), LS_ERR_SHAPE, "f32 and f64");
    check_refused(
        ls_linear(zeros(LS_SHAPE(64, 784)), zeros(LS_SHAPE(10, 100)), NULL), LS_ERR_SHAPE,
        "ls_linear: the last axis of x [64, 784] must have 100 elements, one for each input of weight [10, 100]");
    check_refused(ls_linear(zeros(LS_SHAPE(4)), zeros(LS_SHAPE(4)), NULL), LS_ERR_SHAPE, "weight is [4]");
    check_refused(ls_linear(zeros(LS_SHAPE(4)), zeros(LS_SHAPE(3, 4)), zeros(LS_SHAPE(4))), LS_ERR_SHAPE,
                  "bias is [4], but must be [3]");
}

SCOPED_TEST(test_null_is_refused) {
    ls_tensor *x = zeros(LS_SHAPE(2, 2));
    check_refused(ls_matmul(NULL, x), LS_ERR_ARGUMENT, "ls_matmul: argument 1 is NULL");
    check_refused(ls_matmul(x, NULL), LS_ERR_ARGUMENT, "ls_matmul: argument 2 is NULL");
    check_refused(ls_linear(NULL, x, NULL), LS_ERR_ARGUMENT, "ls_linear: argument 1 is NULL");
    check_refused(ls_linear(x, NULL, NULL), LS_ERR_ARGUMENT, "ls_linear: argument 2 is NULL");
    ls_release(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_agree_with_pytorch),
        cmocka_unit_test(test_views_agree_with_pytorch),
        cmocka_unit_test(test_linear_agrees_with_pytorch),
        cmocka_unit_test(test_linear_of_views),
        cmocka_unit_test(test_gradients_accumulate),
        cmocka_unit_test(test_one_tensor_on_both_sides),
        cmocka_unit_test(test_half_precision_goes_through_f32),
        cmocka_unit_test(test_wrong_shapes_are_named),
        cmocka_unit_test(test_null_is_refused),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
