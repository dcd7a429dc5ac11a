/*
 * A module that standardizes its inputs: fitted to a data set, saved with the model, and equal in a different program.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/data.h>
#include <lockstep/nn.h>

#include "tests/support/elements.h"
#include "tests/support/files.h"
#include "tests/support/operations.h"

enum { ROWS = 700 };

/* Writes a column of large numbers, a column of small numbers, a constant column, and the target. */
static const char *write_table(void) {
    static char text[64 * ROWS];
    int length = snprintf(text, sizeof text, "price,share,unit,sold\n");
    for (int i = 0; i < ROWS; i++) {
        length += snprintf(text + length, sizeof text - (size_t)length, "%.9g,%.9g,7,%d\n", 1e6 + 5e4 * sin(i),
                           1e-4 * cos(3 * i) - 0.5, i % 2);
    }
    return test_file("table.csv", text, (size_t)length);
}

static ls_dataset *table(void) {
    ls_dataset *data = ls_csv_dataset(write_table(), (const char *const[]){"sold"}, 1, NULL);
    assert_non_null(data);
    return data;
}

static ls_module *model_new(void) {
    ls_module *model = ls_sequential(ls_nn_standardize(3), ls_nn_linear(3, 4), ls_nn_tanh(), ls_nn_linear(4, 1));
    assert_non_null(model);
    return model;
}

/* Returns all rows of the table, in one batch. */
static ls_tensor *all_rows(void) {
    ls_loader *loader = ls_loader_new(table(), &(ls_loader_options){.batch_size = ROWS});
    ls_batch batch = {0};
    bool more = false;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    ls_tensor *rows = ls_clone(batch.input);
    ls_loader_free(loader);
    return rows;
}

SCOPED_TEST(test_columns_of_a_table) {
    ls_dataset *data = table();
    ls_module *model = model_new(), *standardize = ls_module_find_child(model, "0");
    assert_int_equal(ls_nn_standardize_fit(standardize, data), LS_OK);
    ls_dataset_free(data);
    ls_tensor *x = all_rows();
    ls_tensor *y = ls_forward(standardize, x), *first = ls_forward(model, x);
    ls_tensor *mean = ls_mean_axes(y, LS_AXES(0), false), *square = ls_mean_axes(ls_square(y), LS_AXES(0), false);
    assert_true(ls_allclose(mean, ls_from(LS_SHAPE(3), LS_F32, (const float[]){0, 0, 0}), 0, 2e-3));
    assert_true(ls_allclose(square, ls_from(LS_SHAPE(3), LS_F32, (const float[]){1, 1, 0}), 0, 2e-3));
    /* The statistics are saved with the model: another program that builds it computes bit-identical results. */
    const char *path = test_path("model.safetensors");
    assert_int_equal(ls_module_save(model, path, NULL), LS_OK);
    ls_module *other = model_new();
    assert_int_equal(ls_module_load(other, path), LS_OK);
    assert_true(ls_equal(ls_forward(other, x), first));
    assert_int_equal(ls_module_buffer_count(other), 2);
    assert_int_equal(ls_module_parameter_count(other), 4);
    ls_module_free(other);
    ls_module_free(model);
}

/* Tests u8 pixels, per channel, and numbers far from 0, whose squares would lose precision. */
SCOPED_TEST(test_channels_of_images) {
    enum { COUNT = 20, PIXELS = 6 };
    uint8_t pixels[COUNT * 2 * PIXELS];
    double sum[2] = {0}, squares[2] = {0};
    for (int i = 0; i < COUNT * 2 * PIXELS; i++) {
        const int channel = i / PIXELS % 2;
        pixels[i] = (uint8_t)(channel == 0 ? i * 7 % 50 : 200 + i * 5 % 9);
        sum[channel] += pixels[i] / (double)(COUNT * PIXELS);
        squares[channel] += (double)pixels[i] * pixels[i] / (COUNT * PIXELS);
    }
    ls_tensor *images = ls_from(LS_SHAPE(COUNT, 2, 2, 3), LS_U8, pixels);
    ls_dataset *data = ls_tensor_dataset(images, images);
    ls_module *module = ls_nn_standardize(2);
    assert_int_equal(ls_nn_standardize_fit(module, data), LS_OK);
    ls_dataset_free(data);
    for (int c = 0; c < 2; c++) {
        const double deviation = sqrt(squares[c] - sum[c] * sum[c]);
        assert_true(fabs(ls_item(ls_narrow(ls_module_find(module, "mean"), 0, c, 1)) - sum[c]) < 1e-4);
        assert_true(fabs(ls_item(ls_narrow(ls_module_find(module, "deviation"), 0, c, 1)) - deviation) < 1e-4);
    }
    ls_tensor *y = ls_forward(module, images), *half = ls_forward(module, ls_to(images, LS_BF16));
    assert_int_equal(ls_dtype_of(y), LS_F32);
    assert_int_equal(ls_dtype_of(half), LS_BF16);
    assert_true(ls_allclose(ls_mean_axes(y, LS_AXES(0, 2, 3), false), ls_zeros(LS_SHAPE(2), LS_F32), 0, 1e-5));
    ls_module_free(module);
    module = ls_nn_standardize(1);
    ls_tensor *far = ls_add(ls_mul(ls_arange(LS_SHAPE(1000, 1), LS_F64), 1e-6), 1e7);
    data = ls_tensor_dataset(far, far);
    assert_int_equal(ls_nn_standardize_fit(module, data), LS_OK);
    assert_true(fabs(ls_item(ls_module_find(module, "deviation")) / 1e-6 / sqrt((1e6 - 1) / 12) - 1) < 1e-3);
    ls_dataset_free(data);
    ls_module_free(module);
}

/* Fits a module to a column of f64. */
static ls_status fit_column(ls_module *module, const double *numbers, int64_t rows) {
    ls_tensor *column = ls_from(LS_SHAPE(rows, 1), LS_F64, numbers);
    ls_dataset *data = ls_tensor_dataset(column, column);
    const ls_status status = ls_nn_standardize_fit(module, data);
    ls_dataset_free(data);
    return status;
}

/* A constant column has standard deviation 1 even if its mean is rounded. Values that do not fit in the f32 buffers
 * are refused. */
SCOPED_TEST(test_columns_of_f64) {
    ls_module *module = ls_nn_standardize(1);
    const double constant[10] = {.1, .1, .1, .1, .1, .1, .1, .1, .1, .1};
    assert_int_equal(fit_column(module, constant, 10), LS_OK);
    assert_true(ls_item(ls_module_find(module, "deviation")) == 1);
    assert_true(ls_item(ls_module_find(module, "mean")) == (double)0.1F);
    expect_error(fit_column(module, (const double[]){1e-50, 2e-50, 3e-50}, 3), LS_ERR_ARGUMENT,
                 "column 0 contains values from 1e-50 to 3e-50, which are too close together");
    expect_error(fit_column(module, (const double[]){1e100, 2e100, 3e100}, 3), LS_ERR_ARGUMENT, "too large");
    expect_error(fit_column(module, (const double[]){1e200, 2e200, 3e200}, 3), LS_ERR_ARGUMENT,
                 "column 0 contains values from 1e+200 to 3e+200, which are too large: f32 cannot hold");
    assert_true(ls_item(ls_module_find(module, "deviation")) == 1);
    ls_module_free(module);
}

/* With `.nan_is_mean`, a missing value changes neither the statistics nor the gradients. */
SCOPED_TEST(test_missing_values) {
    const float values[] = {1, NAN, 3, 10, NAN, 30, 8, 20};
    ls_tensor *rows = ls_from(LS_SHAPE(4, 2), LS_F32, values);
    ls_dataset *data = ls_tensor_dataset(rows, rows);
    ls_module *module = ls_nn_standardize_with(2, &(ls_standardize_options){.nan_is_mean = true});
    assert_int_equal(ls_nn_standardize_fit(module, data), LS_OK);
    ls_dataset_free(data);
    const float mean[] = {4, 20}, deviation[] = {sqrtf(26 / 3.0F), sqrtf(200 / 3.0F)};
    assert_true(ls_allclose(ls_module_find(module, "mean"), ls_from(LS_SHAPE(2), LS_F32, mean), 1e-6, 0));
    assert_true(ls_allclose(ls_module_find(module, "deviation"), ls_from(LS_SHAPE(2), LS_F32, deviation), 1e-6, 0));
    float expected[8], gradient[8];
    for (int i = 0; i < 8; i++) {
        expected[i] = isnan(values[i]) ? 0 : (values[i] - mean[i % 2]) / deviation[i % 2];
        gradient[i] = 2 * expected[i] / deviation[i % 2];
    }
    ls_set_requires_grad(rows, true);
    ls_tensor *y = ls_forward(module, rows);
    assert_true(ls_allclose(y, ls_from(LS_SHAPE(4, 2), LS_F32, expected), 1e-6, 1e-6));
    assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
    assert_true(ls_allclose(ls_grad(rows), ls_from(LS_SHAPE(4, 2), LS_F32, gradient), 1e-5, 1e-6));
    assert_int_equal(ls_dtype_of(ls_forward(module, ls_ones(LS_SHAPE(1, 2), LS_I32))), LS_F32);
    ls_tensor *empty = ls_from(LS_SHAPE(2, 2), LS_F32, (const float[]){1, NAN, 2, NAN});
    data = ls_tensor_dataset(empty, empty);
    expect_error(ls_nn_standardize_fit(module, data), LS_ERR_ARGUMENT, "column 1 contains only NaN");
    ls_dataset_free(data);
    ls_tensor *infinite = ls_from(LS_SHAPE(1, 2), LS_F32, (const float[]){1, INFINITY});
    data = ls_tensor_dataset(infinite, infinite);
    expect_error(ls_nn_standardize_fit(module, data), LS_ERR_ARGUMENT, "column 1 contains infinity in samples 0 to 0");
    ls_dataset_free(data);
    ls_module_free(module);
}

/* A file keeps .nan_is_mean: a model without the option would return NaN without an error. */
SCOPED_TEST(test_load_refuses_to_lose_nan_is_mean) {
    const ls_standardize_options options = {.nan_is_mean = true};
    ls_module *with = ls_sequential(ls_nn_standardize_with(2, &options), ls_nn_linear(2, 1));
    ls_module *without = ls_sequential(ls_nn_standardize(2), ls_nn_linear(2, 1));
    const char *path = test_path("with.safetensors"), *other_path = test_path("without.safetensors");
    assert_int_equal(ls_module_save(with, path, (const char *const[]){"class 0", "adelie", NULL}), LS_OK);
    assert_int_equal(ls_module_save(without, other_path, NULL), LS_OK);
    ls_tensor *before = ls_clone(ls_module_find(without, "1.weight"));
    expect_error(ls_module_load(without, path), LS_ERR_FORMAT,
                 "the layer of 0.mean replaces NaN with the mean, but in the model it does not; create it with "
                 "ls_nn_standardize_with and .nan_is_mean = true");
    assert_true(ls_equal(ls_module_find(without, "1.weight"), before));
    assert_int_equal(ls_module_load(with, path), LS_OK);
    assert_int_equal(ls_module_load(with, other_path), LS_OK); /* also a file of an older version */
    expect_error(ls_module_save(with, path, (const char *const[]){"0.mean", "mine", NULL}), LS_ERR_ARGUMENT,
                 "the metadata cannot have the key 0.mean");
    ls_module_free(with);
    ls_module_free(without);
    /* Each module of a model has its own option. */
    ls_module *second = ls_sequential(ls_nn_standardize(2), ls_nn_standardize_with(2, &options));
    ls_module *first = ls_sequential(ls_nn_standardize_with(2, &options), ls_nn_standardize(2));
    assert_int_equal(ls_module_save(second, path, NULL), LS_OK);
    expect_error(ls_module_load(first, path), LS_ERR_FORMAT, "the layer of 1.mean replaces NaN");
    ls_module_free(second);
    /* In a file, or in the model, one module may have several names. */
    ls_module *shared = ls_nn_standardize_with(2, &options);
    second = ls_sequential(shared, shared);
    assert_int_equal(ls_module_save(second, path, NULL), LS_OK);
    expect_error(ls_module_load(first, path), LS_ERR_FORMAT, "the layer of 1.mean replaces NaN");
    assert_int_equal(ls_module_load(second, path), LS_OK);
    ls_module_free(second);
    second = ls_sequential(ls_nn_standardize(2), ls_nn_standardize_with(2, &options));
    assert_int_equal(ls_module_save(second, path, NULL), LS_OK);
    ls_module_free(second);
    shared = ls_nn_standardize(2);
    second = ls_sequential(shared, shared);
    expect_error(ls_module_load(second, path), LS_ERR_FORMAT, "the layer of 1.mean replaces NaN");
    ls_module_free(second);
    ls_module_free(first);
}

SCOPED_TEST(test_refusals) {
    assert_null(ls_nn_standardize(0));
    ls_module *module = ls_nn_standardize(3), *linear = ls_nn_linear(3, 3), *two = ls_nn_standardize(2);
    ls_dataset *data = table();
    expect_error(ls_nn_standardize_fit(linear, data), LS_ERR_ARGUMENT,
                 "expected a module created by ls_nn_standardize, not Linear");
    expect_error(ls_nn_standardize_fit(NULL, data), LS_ERR_ARGUMENT, "not NULL");
    expect_error(ls_nn_standardize_fit(module, NULL), LS_ERR_ARGUMENT, "the data set is NULL");
    expect_error(ls_nn_standardize_fit(two, data), LS_ERR_SHAPE,
                 "inputs are [3], but must be [2, ...]; give ls_nn_standardize the number of columns");
    ls_dataset_free(data);
    ls_tensor *rows = ls_from(LS_SHAPE(2, 3), LS_F32, (const float[]){1, 2, 3, 4, NAN, 6});
    data = ls_tensor_dataset(rows, rows);
    expect_error(ls_nn_standardize_fit(module, data), LS_ERR_ARGUMENT,
                 "column 1 contains NaN or infinity in samples 0 to 1");
    assert_true(ls_equal(ls_module_find(module, "mean"), ls_zeros(LS_SHAPE(3), LS_F32)));
    ls_dataset_free(data);
    check_refused(ls_forward(module, ls_ones(LS_SHAPE(2, 4), LS_F32)), LS_ERR_SHAPE,
                  "Standardize: x is [2, 4], but must be [n, 3, ...]");
    ls_module_free(module);
    expect_error(ls_nn_standardize_fit(two, data), LS_ERR_STATE, "the data set was freed");
    data = table();
    expect_error(ls_nn_standardize_fit(module, data), LS_ERR_STATE, "the module was freed");
    ls_dataset_free(data);
    ls_module_free(linear);
    ls_module_free(two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns_of_a_table), cmocka_unit_test(test_channels_of_images),
        cmocka_unit_test(test_columns_of_f64),     cmocka_unit_test(test_load_refuses_to_lose_nan_is_mean),
        cmocka_unit_test(test_missing_values),     cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
