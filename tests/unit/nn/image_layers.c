/*
 * Layers for images are initialized as in PyTorch and refuse invalid arguments. Fusion in Sequential does not change
 * results.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/nn.h>

static void check_start(ls_module *layer, ls_shape weight, double fan_in) {
    assert_non_null(layer);
    const double bound = 1 / sqrt(fan_in);
    for (int i = 0; i < 2; i++) {
        const ls_tensor *parameter = ls_module_find(layer, i == 0 ? "weight" : "bias");
        assert_non_null(parameter);
        double largest = 0;
        for (int64_t k = 0; k < ls_numel(parameter); k++) {
            largest = fmax(largest, fabs((double)((const float *)elements(parameter))[k]));
        }
        assert_true(largest <= bound && largest > 0.7 * bound);
        if (i == 0) {
            assert_int_equal(ls_ndim(parameter), weight.ndim);
            for (int k = 0; k < weight.ndim; k++) {
                assert_int_equal(ls_size(parameter, k), weight.size[k]);
            }
        }
    }
    ls_module_free(layer);
}

TEST(test_layers_start_as_pytorchs) {
    ls_seed(4);
    check_start(ls_nn_conv_2d(4, 6, LS_SHAPE(3), NULL), LS_SHAPE(6, 4, 3, 3), 36);
    check_start(ls_nn_conv_1d(4, 12, LS_SHAPE(5), &(ls_conv_layer_options){.groups = 2}), LS_SHAPE(12, 2, 5), 10);
    check_start(ls_nn_conv_3d(2, 8, LS_SHAPE(1, 2, 3), NULL), LS_SHAPE(8, 2, 1, 2, 3), 12);
    check_start(ls_nn_conv_transpose_2d(4, 6, LS_SHAPE(2, 3), NULL), LS_SHAPE(4, 6, 2, 3), 36);
    check_start(ls_nn_conv_transpose_1d(4, 12, LS_SHAPE(5), &(ls_conv_transpose_layer_options){.groups = 2}),
                LS_SHAPE(4, 6, 5), 30);
    ls_module *plain = ls_nn_conv_2d(4, 6, LS_SHAPE(3), &(ls_conv_layer_options){.no_bias = true, .dtype = LS_F64});
    assert_int_equal(ls_module_parameter_count(plain), 1);
    assert_int_equal(ls_dtype_of(ls_module_parameter(plain, 0)), LS_F64);
    assert_string_equal(ls_module_type_name(plain), "Conv2d");
    ls_module_free(plain);
}

static void assert_refused(const ls_module *module, const char *words) {
    assert_null(module);
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message(words);
}

TEST(test_layers_refuse) {
    assert_refused(ls_nn_conv_2d(0, 6, LS_SHAPE(3), NULL),
                   "ls_nn_conv_2d: 0 channels in and 6 out: both must be positive");
    assert_refused(ls_nn_conv_2d(4, 6, LS_SHAPE(3, 3, 3), NULL),
                   "ls_nn_conv_2d: kernel has 3 numbers, but must have one, or one for each of 2 spatial axes");
    assert_refused(ls_nn_conv_1d(4, 6, LS_SHAPE(0), NULL), "ls_nn_conv_1d: kernel is [0]");
    assert_refused(ls_nn_conv_1d(4, 6, LS_SCALAR, NULL), "ls_nn_conv_1d: the kernel is empty");
    assert_refused(ls_nn_conv_3d(4, 6, LS_SHAPE(3), &(ls_conv_layer_options){.groups = 4}),
                   "ls_nn_conv_3d: 4 channels in and 6 out cannot be divided into 4 groups");
    assert_refused(ls_nn_max_pool(NULL), "ls_nn_max_pool: the kernel is empty");
    assert_refused(
        ls_nn_average_pool(&(ls_average_pool_options){.kernel = LS_SHAPE(2, 2), .stride = LS_SHAPE(1, 2, 3)}),
        "ls_nn_average_pool: kernel has 2 numbers");
    assert_refused(ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(2, 2), .padding = LS_SHAPE(2)}),
                   "ls_nn_max_pool: padding 2 is more than half the kernel size 2");
    assert_refused(ls_nn_adaptive_average_pool(LS_SHAPE(0)), "ls_nn_adaptive_average_pool: size is [0]");
    assert_refused(ls_nn_upsample(LS_SHAPE(2), &(ls_resize_options){.mode = (ls_resize_mode)7}),
                   "ls_nn_upsample: mode 7 is not LS_RESIZE_NEAREST or LS_RESIZE_LINEAR");
    assert_refused(ls_nn_upsample(LS_SHAPE(2), &(ls_resize_options){.align_corners = true}),
                   "ls_nn_upsample: mode 0 does not support align_corners");
    assert_refused(ls_nn_pixel_shuffle((int64_t)1 << 31), "must be positive and below 2^31");
    const ls_attention_layer_options rotary = {.rotary = true, .positions = {.base = -1}};
    assert_refused(ls_nn_multi_head_attention(4, 2, &rotary), "ls_nn_multi_head_attention: base is -1");
    assert_refused(ls_nn_batch_norm_2d(0, NULL), "ls_nn_batch_norm_2d: 0 channels: the number must be positive");
}

/* Each layer accepts only its number of axes; the first also accepts one axis less. */
TEST(test_batch_norms_refuse) {
    static ls_module *(*const constructors[])(int64_t, const ls_batch_norm_options *) = {
        ls_nn_batch_norm_1d, ls_nn_batch_norm_2d, ls_nn_batch_norm_3d};
    static const char *const messages[] = {
        "BatchNorm1d: x is [2, 4, 3, 3], but must be [n, channels, length] or [n, channels]",
        "BatchNorm2d: x is [2, 4, 3], but must be [n, channels, height, width]",
        "BatchNorm3d: x is [2, 4, 3, 3], but must be [n, channels, depth, height, width]"};
    for (int axes = 1; axes <= 3; axes++) {
        ls_module *norm = constructors[axes - 1](4, NULL);
        for (int given = 0; given <= 4; given++) {
            ls_scope *scope = ls_scope_begin();
            ls_shape shape = {.ndim = 2 + given, .size = {2, 4, 3, 3, 3, 3}};
            const bool fits = given == axes || (axes == 1 && given == 0);
            assert_int_equal(ls_forward(norm, ls_ones(shape, LS_F32)) != NULL, fits);
            assert_int_equal(ls_scope_end(scope), fits ? LS_OK : LS_ERR_SHAPE);
            if (given == (axes == 2 ? 1 : 2) && !fits) {
                assert_string_equal(ls_error_message(), messages[axes - 1]);
            }
        }
        ls_module_free(norm);
    }
}

/* ---- Sequential moves ReLU after a MaxPool ----------------------------------------------------------------------- */

/* Compares relu followed by the pool in Sequential with separate calls. */
static void check_relu_before(ls_module *pool) {
    assert_non_null(pool);
    ls_scope *scope = ls_scope_begin();
    float numbers[2 * 3 * 7 * 9];
    for (int i = 0; i < 2 * 3 * 7 * 9; i++) { /* windows with only positive numbers, with some, or with none; ties */
        numbers[i] = i % 53 == 7 ? NAN : (float)(i * 7919 % 17 - 12);
    }
    ls_tensor *x[2], *y[2];
    ls_module *layers = ls_sequential(ls_nn_relu(), pool);
    assert_non_null(layers);
    for (int i = 0; i < 2; i++) {
        x[i] = ls_from(LS_SHAPE(2, 3, 7, 9), LS_F32, numbers);
        assert_int_equal(ls_set_requires_grad(x[i], true), LS_OK);
    }
    y[0] = ls_forward(layers, x[0]);
    y[1] = ls_forward(pool, ls_relu(x[1]));
    assert_non_null(y[0]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_backward(ls_sum(ls_square(y[i]))), LS_OK);
    }
    assert_int_equal(ls_numel(y[0]), ls_numel(y[1]));
    assert_memory_equal(elements(y[0]), elements(y[1]), (size_t)ls_numel(y[0]) * sizeof(float));
    for (int64_t i = 0; i < ls_numel(x[0]); i++) {
        const float got = ((const float *)elements(ls_grad(x[0])))[i];
        const float expected = ((const float *)elements(ls_grad(x[1])))[i];
        assert_true(got == expected || (isnan(got) && isnan(expected)));
    }
    ls_module_free(layers);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_relu_before_a_pool) {
    check_relu_before(ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(2)}));
    check_relu_before(ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(3), .stride = LS_SHAPE(1)}));
    check_relu_before(ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(3), .padding = LS_SHAPE(1)}));
    check_relu_before(ls_nn_average_pool(&(ls_average_pool_options){.kernel = LS_SHAPE(2)}));
    check_relu_before(ls_nn_adaptive_max_pool(LS_SHAPE(3, 4)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_start_as_pytorchs),
        cmocka_unit_test(test_layers_refuse),
        cmocka_unit_test(test_batch_norms_refuse),
        cmocka_unit_test(test_relu_before_a_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
