/*
 * RMSNorm, GroupNorm, InstanceNorm and Residual: values and gradients from PyTorch's formulas, names, refusals.
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/unit.h"

#include <lockstep/nn.h>

#include "tests/support/operations.h"

FIXTURES(language, "language.txt")

/* Initializes the module's parameters with waves. Stores x and then the parameters in `inputs`. Returns their
 * number. */
static int waves_of(ls_module *module, ls_tensor *x, ls_tensor **inputs) {
    assert_non_null(module);
    inputs[0] = x;
    const int count = ls_module_parameter_count(module);
    const bool before = ls_no_grad(true);
    for (int i = 0; i < count; i++) {
        inputs[1 + i] = ls_module_parameter(module, i);
        ls_tensor *values = wave_between(ls_shape_of(inputs[1 + i]), 2 + i, -2, 2);
        assert_int_equal(ls_copy_into(inputs[1 + i], values), LS_OK);
    }
    (void)ls_no_grad(before);
    return 1 + count;
}

static void agrees(const char *name, ls_module *module, ls_shape shape) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *inputs[4];
    const int count = waves_of(module, wave(shape, 1), inputs);
    check_against(language, name, ls_forward(module, inputs[0]), inputs, count, NULL, 0);
    ls_module_free(module);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_agree_with_pytorch) {
    const ls_norm_options f64 = {.dtype = LS_F64};
    const ls_rms_norm_options rms_f64 = {.dtype = LS_F64};
    agrees("rms_norm/1", ls_nn_rms_norm(LS_SHAPE(4), &rms_f64), LS_SHAPE(2, 3, 4));
    agrees("rms_norm/2", ls_nn_rms_norm(LS_SHAPE(3, 4), &rms_f64), LS_SHAPE(2, 3, 4));
    agrees("rms_norm/plain", ls_nn_rms_norm(LS_SHAPE(4), &(ls_rms_norm_options){.no_affine = true, .epsilon = 1e-3}),
           LS_SHAPE(2, 3, 4));
    agrees("group_norm/4d/1", ls_nn_group_norm(1, 6, &f64), LS_SHAPE(2, 6, 2, 3));
    agrees("group_norm/4d/3", ls_nn_group_norm(3, 6, &f64), LS_SHAPE(2, 6, 2, 3));
    agrees("group_norm/3d/1", ls_nn_group_norm(1, 6, &f64), LS_SHAPE(2, 6, 5));
    agrees("group_norm/3d/3", ls_nn_group_norm(3, 6, &f64), LS_SHAPE(2, 6, 5));
    agrees("group_norm/2d/1", ls_nn_group_norm(1, 6, &f64), LS_SHAPE(3, 6));
    agrees("group_norm/2d/3", ls_nn_group_norm(3, 6, &f64), LS_SHAPE(3, 6));
    agrees("instance_norm", ls_nn_instance_norm(3, NULL), LS_SHAPE(2, 3, 4, 2));
}

TEST(test_parameters) {
    ls_module *rms = ls_nn_rms_norm(LS_SHAPE(4), NULL);
    assert_int_equal(ls_module_parameter_count(rms), 1);
    assert_non_null(ls_module_find(rms, "weight"));
    ls_module_free(rms);
    ls_module *group = ls_nn_group_norm(2, 4, &(ls_norm_options){.no_bias = true});
    assert_int_equal(ls_module_parameter_count(group), 1);
    ls_module_free(group);
    ls_module *plain = ls_nn_instance_norm(4, NULL);
    assert_int_equal(ls_module_parameter_count(plain), 0);
    ls_module_free(plain);
    ls_module *instance = ls_nn_instance_norm(4, &(ls_instance_norm_options){.affine = true});
    assert_int_equal(ls_module_parameter_count(instance), 2);
    ls_module_free(instance);
}

static ls_tensor *give_back(ls_tensor *x, void *user) {
    (void)user;
    return x;
}

static ls_status keep_output(ls_module_call *call, void *user) {
    *(ls_tensor **)user = ls_keep(call->outputs[0]);
    return LS_OK;
}

/* The residual addition does not change an output of `f` that a hook has kept. */
SCOPED_TEST(test_residual_with_a_hook) {
    ls_tensor *kept = NULL;
    ls_module *module = ls_nn_residual(ls_nn_relu());
    assert_int_not_equal(
        ls_module_add_hooks(ls_module_child(module, 0), &(ls_module_hooks){.user = &kept, .forward = keep_output}), 0);
    ls_tensor *x = ls_full(LS_SHAPE(2), LS_F64, 3);
    assert_non_null(ls_forward(module, x));
    assert_true(ls_equal(kept, x));
    ls_module_free(module);
    ls_release(kept);
}

TEST(test_residual) {
    ls_scope *scope = ls_scope_begin();
    ls_module *module = ls_nn_residual(ls_sequential(ls_nn_linear(2, 3), ls_nn_relu(), ls_nn_linear(3, 2)));
    assert_non_null(module);
    assert_non_null(ls_module_find(module, "0.2.weight"));
    ls_tensor *x = ls_to(wave(LS_SHAPE(4, 2), 1), LS_F32);
    ls_tensor *y = ls_forward(module, x);
    assert_true(ls_equal(y, ls_add(x, ls_forward(ls_module_child(module, 0), x))));
    ls_module_free(module);
    module = ls_nn_residual(ls_nn_function("Same", give_back, NULL));
    assert_true(ls_equal(ls_forward(module, x), ls_add(x, x)));
    ls_module_free(module);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_null(ls_nn_residual(NULL));
    expect_message("Residual");
}

SCOPED_TEST(test_refusals) {
    assert_null(ls_nn_rms_norm(LS_SCALAR, NULL));
    expect_message("ls_nn_rms_norm: the shape must have 1 to 8 axes with positive sizes");
    assert_null(ls_nn_layer_norm(LS_SHAPE(2, 0), NULL));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    assert_null(ls_nn_rms_norm(LS_SHAPE(-1), &(ls_rms_norm_options){.no_affine = true}));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    assert_null(ls_nn_batch_norm_1d(2, &(ls_batch_norm_options){.dtype = LS_I64}));
    expect_message("ls_nn_batch_norm_1d: the dtype is i64, but must be floating-point");
    assert_null(ls_nn_group_norm(4, 6, NULL));
    expect_message("ls_nn_group_norm: 6 channels cannot be divided into 4 equal groups");
    assert_null(ls_nn_instance_norm(0, NULL));
    expect_message("ls_nn_instance_norm: 0 channels");
    check_refused(ls_group_norm(ls_ones(LS_SHAPE(2, 5), LS_F32), 2, NULL, NULL, 1e-5), LS_ERR_SHAPE,
                  "ls_group_norm: cannot form 2 equal groups of the channels of [2, 5]");
    check_refused(ls_group_norm(ls_ones(LS_SHAPE(2, 4), LS_F32), 2, NULL, ls_ones(LS_SHAPE(3), LS_F32), 1e-5),
                  LS_ERR_SHAPE, "ls_group_norm: bias is [3], but must be [4]");
    check_refused(ls_group_norm(ls_ones(LS_SHAPE(2, 4), LS_F32), 2, NULL, NULL, -1), LS_ERR_ARGUMENT,
                  "ls_group_norm: epsilon is -1");
    check_refused(ls_rms_norm(NULL, 1, NULL, 1e-5), LS_ERR_ARGUMENT, "ls_rms_norm: argument 1 is NULL");
    check_refused(ls_rms_norm(ls_ones(LS_SHAPE(2, 4), LS_F32), 1, NULL, -1), LS_ERR_ARGUMENT,
                  "ls_rms_norm: epsilon is -1");
}

/* Without weight and bias, no operation compares the sizes of x with the sizes of the layer. */
TEST(test_layers_without_parameters_check_sizes) {
    const ls_norm_options bare = {.no_affine = true};
    ls_module *norms[] = {ls_nn_layer_norm(LS_SHAPE(3, 4), &bare),
                          ls_nn_rms_norm(LS_SHAPE(3, 4), &(ls_rms_norm_options){.no_affine = true}),
                          ls_nn_group_norm(1, 3, &bare), ls_nn_instance_norm(3, NULL)};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        ls_scope *scope = ls_scope_begin();
        assert_non_null(ls_forward(norms[i], ls_ones(LS_SHAPE(2, 3, 4), LS_F32)));
        check_refused_in(scope, ls_forward(norms[i], ls_ones(LS_SHAPE(2, 6, 5), LS_F32)), LS_ERR_SHAPE,
                         i < 2 ? "x is [2, 6, 5], but its last axes must be [3, 4]"
                               : "x is [2, 6, 5], but must be [n, 3, ...]");
        ls_module_free(norms[i]);
    }
    ls_module *instance = ls_nn_instance_norm(3, NULL);
    check_refused(ls_forward(instance, ls_ones(LS_SHAPE(2, 3), LS_F32)), LS_ERR_SHAPE,
                  "InstanceNorm: x is [2, 3], but must be [n, channels, length, ...]");
    ls_module_free(instance);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agree_with_pytorch), cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_residual),           cmocka_unit_test(test_residual_with_a_hook),
        cmocka_unit_test(test_refusals),           cmocka_unit_test(test_layers_without_parameters_check_sizes),
    };
    return cmocka_run_group_tests(tests, language_begin, language_end);
}
