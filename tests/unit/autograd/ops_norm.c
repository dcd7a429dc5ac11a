/*
 * ls_layer_norm and ls_batch_norm: values, gradients and running statistics compared with PyTorch's; refusals.
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/unit.h"

#include <lockstep/nn.h>

#include "tensor/device.h"
#include "tests/support/operations.h"

FIXTURES(fixtures, "operations.txt")

SCOPED_TEST(test_layer_norm_agrees_with_pytorch) {
    ls_tensor *one[] = {wave(LS_SHAPE(2, 3, 4), 1), wave(LS_SHAPE(4), 2), wave(LS_SHAPE(4), 3)};
    check_against(fixtures, "layer_norm/1", ls_layer_norm(one[0], 0, one[1], one[2], 1e-5), one, 3, NULL, 0);
    ls_tensor *two[] = {wave(LS_SHAPE(2, 3, 4), 1), wave(LS_SHAPE(3, 4), 2), wave(LS_SHAPE(3, 4), 3)};
    check_against(fixtures, "layer_norm/2", ls_layer_norm(two[0], 2, two[1], two[2], 1e-3), two, 3, NULL, 0);
    ls_tensor *plain = wave(LS_SHAPE(2, 3, 4), 1);
    check_against(fixtures, "layer_norm/plain", ls_layer_norm(plain, 1, NULL, NULL, 1e-5), &plain, 1, NULL, 0);
}

TEST(test_batch_norm_agrees_with_pytorch) {
    const struct {
        const char *name;
        ls_shape x;
    } cases[] = {{"2d", LS_SHAPE(5, 3)}, {"3d", LS_SHAPE(2, 3, 4)}, {"4d", LS_SHAPE(2, 3, 2, 2)}};
    for (int i = 0; i < 3; i++) {
        for (int training = 0; training < 2; training++) {
            ls_scope *scope = ls_scope_begin();
            ls_tensor *inputs[] = {wave(cases[i].x, 1), wave(LS_SHAPE(3), 2), wave(LS_SHAPE(3), 3)};
            ls_tensor *running[] = {wave_between(LS_SHAPE(3), 4, -2, 2), wave_between(LS_SHAPE(3), 5, 0.5, 2)};
            char name[64];
            snprintf(name, sizeof name, "batch_norm/%s/%s", cases[i].name, training != 0 ? "training" : "eval");
            ls_tensor *y =
                ls_batch_norm(inputs[0], running[0], running[1], inputs[1], inputs[2], training != 0, 0.1, 1e-5);
            check_against(fixtures, name, y, inputs, 3, running, 2);
            assert_int_equal(ls_scope_end(scope), LS_OK);
        }
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = wave(LS_SHAPE(4, 2), 1);
    check_against(fixtures, "batch_norm/plain", ls_batch_norm(x, NULL, NULL, NULL, NULL, true, 0.1, 1e-5), &x, 1, NULL,
                  0);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* Computes only the gradient of the weight, twice: the second adds to the first. */
SCOPED_TEST(test_weight_gradients_accumulate) {
    ls_tensor *x = ls_detach(wave(LS_SHAPE(5, 3), 1));
    ls_tensor *leaves[] = {wave(LS_SHAPE(3), 2), wave(LS_SHAPE(3), 3)};
    ls_tensor *first[2];
    for (int pass = 0; pass < 2; pass++) {
        ls_tensor *y = ls_add(ls_layer_norm(x, 1, leaves[0], leaves[1], 1e-5),
                              ls_batch_norm(x, NULL, NULL, leaves[0], leaves[1], true, 0.1, 1e-5));
        assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
        for (int i = 0; i < 2 && pass == 0; i++) {
            first[i] = ls_clone(ls_grad(leaves[i]));
        }
    }
    for (int i = 0; i < 2; i++) {
        assert_true(ls_allclose(ls_grad(leaves[i]), ls_mul(first[i], 2), 1e-13, 1e-13));
    }
}

SCOPED_TEST(test_views_and_half_precision) {
    ls_tensor *view = ls_transpose(wave(LS_SHAPE(4, 5), 1), 0, 1);
    ls_tensor *dense = ls_clone(view);
    assert_true(ls_equal(ls_layer_norm(view, 1, NULL, NULL, 1e-5), ls_layer_norm(dense, 1, NULL, NULL, 1e-5)));
    assert_true(ls_equal(ls_batch_norm(view, NULL, NULL, NULL, NULL, true, 0.1, 1e-5),
                         ls_batch_norm(dense, NULL, NULL, NULL, NULL, true, 0.1, 1e-5)));
    ls_tensor *half = ls_to(ls_detach(view), LS_BF16);
    assert_int_equal(ls_set_requires_grad(half, true), LS_OK);
    ls_tensor *weight = ls_ones(LS_SHAPE(4), LS_F32);
    ls_tensor *y = ls_batch_norm(half, NULL, NULL, weight, NULL, true, 0.1, 1e-5);
    assert_int_equal(ls_dtype_of(y), LS_BF16);
    assert_true(
        ls_allclose(ls_to(y, LS_F64), ls_batch_norm(dense, NULL, NULL, NULL, NULL, true, 0.1, 1e-5), 2e-2, 2e-2));
    assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
    assert_int_equal(ls_dtype_of(ls_grad(half)), LS_BF16);
    assert_int_equal(ls_dtype_of(ls_layer_norm(half, 1, NULL, NULL, 1e-5)), LS_BF16);
}

/* A layer created for 16-bit floats runs, learns and keeps its statistics in f32. */
TEST(test_batch_norm_layers_of_halves) {
    const ls_dtype halves[] = {LS_BF16, LS_F16};
    for (int i = 0; i < 2; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *layer = ls_nn_batch_norm_1d(4, &(ls_batch_norm_options){.dtype = halves[i]});
        ls_module *exact = ls_nn_batch_norm_1d(4, NULL);
        assert_non_null(layer);
        ls_tensor *x = ls_detach(ls_to(wave(LS_SHAPE(6, 4), 1), halves[i]));
        for (int training = 1; training >= 0; training--) {
            ls_module_train(layer, training != 0);
            ls_module_train(exact, training != 0);
            ls_tensor *y = ls_forward(layer, x);
            ls_tensor *truth = ls_forward(exact, ls_to(x, LS_F32));
            assert_int_equal(ls_dtype_of(y), halves[i]);
            assert_true(ls_allclose(ls_to(y, LS_F32), truth, 1e-2, 1e-2));
            assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
            assert_int_equal(ls_backward(ls_sum(ls_square(truth))), LS_OK);
        }
        ls_tensor *weight = ls_module_find(layer, "weight");
        assert_int_equal(ls_dtype_of(weight), halves[i]);
        assert_int_equal(ls_dtype_of(ls_grad(weight)), halves[i]);
        assert_true(ls_allclose(ls_to(ls_grad(weight), LS_F32), ls_grad(ls_module_find(exact, "weight")), 2e-2, 2e-2));
        for (int k = 0; k < 2; k++) {
            assert_int_equal(ls_dtype_of(ls_module_buffer(layer, k)), LS_F32);
            assert_true(ls_allclose(ls_module_buffer(layer, k), ls_module_buffer(exact, k), 1e-6, 1e-6));
        }
        ls_module_free(layer);
        ls_module_free(exact);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

static ls_tensor *zeros(ls_shape shape) {
    return ls_zeros(shape, LS_F32);
}

SCOPED_TEST(test_layer_norm_refuses) {
    ls_tensor *x = zeros(LS_SHAPE(2, 3));
    check_refused(ls_layer_norm(x, 1, zeros(LS_SHAPE(4)), NULL, 1e-5), LS_ERR_SHAPE,
                  "ls_layer_norm: weight is [4], but must have the shape of the last 1 axes of [2, 3]");
    check_refused(ls_layer_norm(zeros(LS_SHAPE(2, 3)), 3, NULL, NULL, 1e-5), LS_ERR_ARGUMENT,
                  "the last 3 axes of [2, 3]");
    check_refused(ls_layer_norm(zeros(LS_SHAPE(2, 3)), 0, NULL, NULL, 1e-5), LS_ERR_ARGUMENT, "0 axes");
    check_refused(ls_layer_norm(zeros(LS_SHAPE(2, 3)), 1, NULL, NULL, -1), LS_ERR_ARGUMENT, "epsilon is -1");
    check_refused(ls_layer_norm(NULL, 1, NULL, NULL, 1e-5), LS_ERR_ARGUMENT, "ls_layer_norm: argument 1 is NULL");
    check_refused(ls_batch_norm(NULL, NULL, NULL, NULL, NULL, true, 0.1, 1e-5), LS_ERR_ARGUMENT,
                  "ls_batch_norm: argument 1 is NULL");
}

/* As in PyTorch, running statistics are unchanged, and gradients of weight and bias are 0. */
SCOPED_TEST(test_batch_norm_of_no_samples) {
    ls_tensor *x = zeros(LS_SHAPE(0, 2, 3));
    ls_tensor *mean = ls_from(LS_SHAPE(2), LS_F32, (const float[]){3, 4}),
              *var = ls_from(LS_SHAPE(2), LS_F32, (const float[]){2, 5});
    ls_tensor *weight = ls_ones(LS_SHAPE(2), LS_F32), *bias = ls_zeros(LS_SHAPE(2), LS_F32);
    ls_tensor *const leaves[] = {x, weight, bias};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ls_set_requires_grad(leaves[i], true), LS_OK);
    }
    ls_tensor *y = ls_batch_norm(x, mean, var, weight, bias, true, 0.1, 1e-5);
    check_values(y, LS_SHAPE(0, 2, 3), LS_F32, (const double[]){0});
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    check_values(mean, LS_SHAPE(2), LS_F32, (const double[]){3, 4});
    check_values(var, LS_SHAPE(2), LS_F32, (const double[]){2, 5});
    check_values(ls_grad(weight), LS_SHAPE(2), LS_F32, (const double[]){0, 0});
    check_values(ls_grad(bias), LS_SHAPE(2), LS_F32, (const double[]){0, 0});
}

SCOPED_TEST(test_batch_norm_refuses) {
    ls_tensor *x = zeros(LS_SHAPE(2, 3));
    check_refused(ls_batch_norm(x, NULL, NULL, zeros(LS_SHAPE(2)), NULL, true, 0.1, 1e-5), LS_ERR_SHAPE,
                  "ls_batch_norm: weight is [2], but must be [3] for [2, 3]");
    check_refused(
        ls_batch_norm(zeros(LS_SHAPE(1, 3)), NULL, NULL, NULL, NULL, true, 0.1, 1e-5), LS_ERR_SHAPE,
        "more than one value per channel; x is [1, 3]: use larger batches, or omit a smaller last batch (.drop");
    check_refused(ls_batch_norm(zeros(LS_SHAPE(2, 3)), NULL, NULL, NULL, NULL, false, 0.1, 1e-5), LS_ERR_ARGUMENT,
                  "if training is false");
    check_refused(ls_batch_norm(zeros(LS_SHAPE(2)), NULL, NULL, NULL, NULL, true, 0.1, 1e-5), LS_ERR_SHAPE,
                  "x is [2], but must be [n, channels, ...]");
    check_refused(ls_batch_norm(zeros(LS_SHAPE(2, 3)), zeros(LS_SHAPE(3)), NULL, NULL, NULL, true, 0.1, 1e-5),
                  LS_ERR_ARGUMENT, "give both running_mean and running_var");
    ls_tensor *wide = ls_zeros(LS_SHAPE(3), LS_F64);
    check_refused(ls_batch_norm(zeros(LS_SHAPE(2, 3)), wide, wide, NULL, NULL, false, 0.1, 1e-5), LS_ERR_SHAPE,
                  "running_mean is f64, but must be f32 for x of f32");
    ls_tensor *strided = ls_slice(zeros(LS_SHAPE(6)), 0, 0, 6, 2);
    check_refused(ls_batch_norm(zeros(LS_SHAPE(2, 3)), strided, strided, NULL, NULL, false, 0.1, 1e-5), LS_ERR_SHAPE,
                  "running_mean is changed in place and must be contiguous");
}

/* The running statistics are changed by kernels of x's device. */
SCOPED_TEST(test_batch_norm_on_two_devices) {
    ls_tensor *x = zeros(LS_SHAPE(2, 3)), *here = zeros(LS_SHAPE(3)), *there = zeros(LS_SHAPE(3));
    const ls_device *device = ls_tensor_device(x);
    ls_device other = *device;
    other.name = "elsewhere";
    there->storage->device = &other;
    for (int training = 0; training < 2; training++) {
        check_refused(ls_batch_norm(x, there, here, NULL, NULL, training != 0, 0.1, 1e-5), LS_ERR_ARGUMENT,
                      "ls_batch_norm: running_mean is on elsewhere, but x is on ");
        check_refused(ls_batch_norm(x, here, there, NULL, NULL, training != 0, 0.1, 1e-5), LS_ERR_ARGUMENT,
                      "ls_batch_norm: running_var is on elsewhere, but x is on ");
        check_refused(ls_batch_norm(x, here, here, there, NULL, training != 0, 0.1, 1e-5), LS_ERR_ARGUMENT,
                      "ls_batch_norm: weight is on elsewhere, but x is on ");
    }
    there->storage->device = device;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm_agrees_with_pytorch), cmocka_unit_test(test_batch_norm_agrees_with_pytorch),
        cmocka_unit_test(test_weight_gradients_accumulate),    cmocka_unit_test(test_views_and_half_precision),
        cmocka_unit_test(test_batch_norm_layers_of_halves),    cmocka_unit_test(test_layer_norm_refuses),
        cmocka_unit_test(test_batch_norm_of_no_samples),       cmocka_unit_test(test_batch_norm_refuses),
        cmocka_unit_test(test_batch_norm_on_two_devices),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
