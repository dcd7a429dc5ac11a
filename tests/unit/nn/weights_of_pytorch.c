/*
 * Weights of PyTorch models with batch and layer normalization, and with convolutions: they load unchanged, and the
 * results are PyTorch's, in both modes, forward and backward. Files and scripts: tests/fixtures/make_norms.py and
 * make_cnn.py.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>
#include <lockstep/nn.h>

#include "tests/support/files.h"

static const char weights[] = LS_FIXTURES "/pytorch_norms.safetensors";

static ls_module *model_new(void) {
    ls_module *model = ls_sequential(
        ls_nn_linear(6, 8), ls_nn_batch_norm_1d(8, NULL), ls_nn_relu(),
        ls_nn_linear_with(8, 5, &(ls_linear_options){.no_bias = true}),
        ls_nn_batch_norm_1d(5, &(ls_batch_norm_options){.epsilon = 1e-3, .momentum = 0.3, .no_affine = true}),
        ls_nn_layer_norm(LS_SHAPE(5), NULL), ls_nn_gelu(), ls_nn_linear(5, 3));
    assert_non_null(model);
    return model;
}

static ls_module *convolutional_new(void) {
    ls_module *model = ls_sequential(
        ls_nn_conv_2d(2, 6, LS_SHAPE(3), &(ls_conv_layer_options){.padding = LS_SHAPE(1), .no_bias = true}),
        ls_nn_batch_norm_2d(6, NULL), ls_nn_relu(), ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(2)}),
        ls_nn_conv_2d(6, 6, LS_SHAPE(3),
                      &(ls_conv_layer_options){.stride = LS_SHAPE(2), .padding = LS_SHAPE(1), .groups = 6}),
        ls_nn_batch_norm_2d(6, &(ls_batch_norm_options){.epsilon = 1e-3, .momentum = 0.3}), ls_nn_silu(),
        ls_nn_conv_transpose_2d(6, 4, LS_SHAPE(2), &(ls_conv_transpose_layer_options){.stride = LS_SHAPE(2)}),
        ls_nn_adaptive_average_pool(LS_SHAPE(2)), ls_nn_flatten(), ls_nn_linear(16, 5));
    assert_non_null(model);
    return model;
}

static void assert_close(const ls_safetensors *values, const char *prefix, const char *name, const ls_tensor *is) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const ls_tensor *want = ls_safetensors_find(values, full);
    assert_non_null(want);
    assert_non_null(is);
    if (!ls_allclose(is, want, 2e-5, 1e-6)) {
        fail_msg("%s is not PyTorch's", full);
    }
}

/* Checks the model, and takes ownership of it. */
static void check_model(ls_module *model, const char *file, const char *values_file, int parameters, int buffers) {
    ls_safetensors *values = ls_safetensors_load(values_file);
    assert_non_null(values);
    assert_int_equal(ls_module_load(model, file), LS_OK);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_to_device(ls_safetensors_find(values, "x"), ls_default_device());
    ls_module_train(model, false);
    assert_close(values, "", "eval", ls_forward(model, x));
    ls_module_train(model, true);
    ls_tensor *y = ls_forward(model, x);
    assert_close(values, "", "train", y);
    assert_int_equal(ls_backward(ls_mean(ls_square(y))), LS_OK);
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        assert_close(values, "gradient.", ls_module_parameter_name(model, i), ls_grad(ls_module_parameter(model, i)));
    }
    for (int i = 0; i < ls_module_buffer_count(model); i++) {
        assert_close(values, "after.", ls_module_buffer_name(model, i), ls_module_buffer(model, i));
    }
    assert_int_equal(ls_module_parameter_count(model), parameters);
    assert_int_equal(ls_module_buffer_count(model), buffers);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(model);
    ls_safetensors_free(values);
}

TEST(test_the_model_computes_what_pytorch_does) {
    check_model(model_new(), weights, LS_FIXTURES "/pytorch_norms_values.safetensors", 9, 4);
}

TEST(test_the_convolutional_model_computes_what_pytorch_does) {
    check_model(convolutional_new(), LS_FIXTURES "/pytorch_cnn.safetensors",
                LS_FIXTURES "/pytorch_cnn_values.safetensors", 11, 4);
}

/* ---- names that one side lacks ----------------------------------------------------------------------------------- */

static char told[256];

static void note(const char *sign, const char *name) {
    const size_t length = strlen(told);
    snprintf(told + length, sizeof told - length, "%s%s ", sign, name);
}

static void note_missing(const char *name, void *user) {
    assert_ptr_equal(user, told);
    note("-", name);
}

static void note_extra(const char *name, void *user) {
    assert_ptr_equal(user, told);
    note("+", name);
}

static void note_mismatched(const char *name, void *user) {
    assert_ptr_equal(user, told);
    note("!", name);
}

static ls_status load(ls_module *module, const char *path, bool missing, bool extra) {
    told[0] = '\0';
    return ls_module_load_with(module, path,
                               &(ls_module_load_options){.allow_missing = missing,
                                                         .allow_extra = extra,
                                                         .on_missing = note_missing,
                                                         .on_extra = note_extra,
                                                         .user = told});
}

static char logged[512];

static void note_log(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    (void)user;
    assert_int_equal(level, LS_LOG_WARNING);
    const size_t length = strlen(logged);
    snprintf(logged + length, sizeof logged - length, "%s\n", line);
}

/*
 * A layer of a different size keeps its values, and the program's list and the log name it. The layers before it are
 * loaded.
 */
TEST(test_mismatched_shapes_are_skipped) {
    ls_module *source = ls_sequential(ls_nn_linear(4, 3), ls_nn_linear(3, 5));
    ls_module *other = ls_sequential(ls_nn_linear(4, 3), ls_nn_linear(3, 2));
    ls_tensor *weight = ls_clone(ls_module_find(other, "1.weight")), *bias = ls_clone(ls_module_find(other, "1.bias"));
    const char *path = test_path("mismatched.safetensors");
    assert_int_equal(ls_module_save(source, path, NULL), LS_OK);
    ls_module_load_options options = {.on_mismatched = note_mismatched, .user = told};
    const uint64_t before = ls_module_hash(other);
    told[0] = '\0';
    assert_int_equal(ls_module_load_with(other, path, &options), LS_ERR_SHAPE);
    assert_string_equal(told, "!1.weight !1.bias ");
    assert_true(ls_module_hash(other) == before);
    told[0] = '\0';
    options.skip_mismatched = true;
    ls_log_set_sink(note_log, NULL);
    assert_int_equal(ls_module_load_with(other, path, &options), LS_OK);
    ls_log_set_sink(NULL, NULL);
    assert_string_equal(told, "!1.weight !1.bias ");
    assert_non_null(
        strstr(logged, "1.weight is [5, 3] in the file and [2, 3] in the model; the model keeps its values\n"));
    assert_non_null(strstr(logged, "1.bias is [5] in the file and [2] in the model; the model keeps its values\n"));
    assert_true(ls_equal(ls_module_find(other, "0.weight"), ls_module_find(source, "0.weight")));
    assert_true(ls_equal(ls_module_find(other, "0.bias"), ls_module_find(source, "0.bias")));
    assert_true(ls_equal(ls_module_find(other, "1.weight"), weight));
    assert_true(ls_equal(ls_module_find(other, "1.bias"), bias));
    ls_release(weight);
    ls_release(bias);
    ls_module_free(source);
    ls_module_free(other);
}

TEST(test_missing_and_extra_names) {
    /* The model's first layer, a different name with the same size, and a name that the file lacks. */
    ls_module *part = ls_sequential(ls_nn_linear(6, 8), ls_nn_relu(), ls_nn_linear(2, 2));
    ls_tensor *before = ls_clone(ls_module_find(part, "2.weight"));
    const char *all = "-2.weight -2.bias +1.bias +1.running_mean +1.running_var +1.weight +3.weight +4.running_mean "
                      "+4.running_var +5.bias +5.weight +7.bias +7.weight ";
    /* If the model has no matching BatchNorm, names of counters are treated like other names. */
    const char *counters = "+1.num_batches_tracked +4.num_batches_tracked ";
    char want[256];
    snprintf(want, sizeof want, "-2.weight -2.bias %s%s", counters, all + strlen("-2.weight -2.bias "));
    const uint64_t hash = ls_module_hash(part);
    assert_int_equal(load(part, weights, false, true), LS_ERR_FORMAT);
    assert_ptr_equal(strstr(ls_error_message(), "ls_module_load_with: "), ls_error_message());
    expect_message("pytorch_norms.safetensors has no tensor 2.weight");
    assert_string_equal(told, want);
    assert_int_equal(load(part, weights, true, false), LS_ERR_FORMAT);
    expect_message("has a tensor 1.num_batches_tracked that the model does not have");
    assert_string_equal(told, want);
    assert_true(ls_module_hash(part) == hash);
    assert_int_equal(load(part, weights, true, true), LS_OK);
    assert_string_equal(told, want);
    assert_true(ls_equal(ls_module_find(part, "2.weight"), before));
    ls_module *model = model_new();
    assert_int_equal(load(model, weights, false, false), LS_OK);
    assert_string_equal(told, "");
    assert_true(ls_equal(ls_module_find(part, "0.weight"), ls_module_find(model, "0.weight")));
    ls_module_free(part);
    part = ls_sequential(ls_nn_linear(6, 7)); /* existing tensors must still match */
    assert_int_equal(load(part, weights, true, true), LS_ERR_SHAPE);
    ls_module_free(part);
    ls_module_free(model);
    ls_release(before);
}

/* Names that only resemble a batch counter are not skipped. */
TEST(test_counters_are_known_by_what_they_are) {
    ls_module *norm = ls_nn_batch_norm_1d(2, NULL);
    ls_tensor *counter = ls_zeros(LS_SCALAR, LS_I64);
    ls_tensor *row = ls_zeros(LS_SHAPE(1), LS_I64);
    ls_tensor *real = ls_zeros(LS_SCALAR, LS_F32);
    const struct {
        ls_named added;
        bool good;
    } cases[] = {{{"num_batches_tracked", counter}, true},         {{"num_batches_tracked", row}, false},
                 {{"num_batches_tracked", real}, false},           {{"0.num_batches_tracked", counter}, false},
                 {{"xnum_batches_tracked", counter}, false},       {{"num_batches", counter}, false},
                 {{"running_num_batches_tracked", counter}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_named tensors[5] = {cases[i].added};
        for (int k = 0; k < 4; k++) {
            static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
            tensors[1 + k] = (ls_named){.name = names[k], .tensor = ls_module_find(norm, names[k])};
        }
        const char *path = test_path("counter.safetensors");
        assert_int_equal(ls_safetensors_save(path, tensors, 5, NULL), LS_OK);
        assert_int_equal(ls_module_load(norm, path), cases[i].good ? LS_OK : LS_ERR_FORMAT);
    }
    ls_release(counter);
    ls_release(row);
    ls_release(real);
    ls_module_free(norm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_model_computes_what_pytorch_does),
        cmocka_unit_test(test_the_convolutional_model_computes_what_pytorch_does),
        cmocka_unit_test(test_missing_and_extra_names),
        cmocka_unit_test(test_mismatched_shapes_are_skipped),
        cmocka_unit_test(test_counters_are_known_by_what_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
