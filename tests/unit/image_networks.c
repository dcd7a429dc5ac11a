/*
 * Small convolutional networks drawn at random compute PyTorch's loss and gradients to 1e-9
 * (tests/fixtures/make_image_networks.py), and layers start as PyTorch's do and refuse what cannot be.
 */
#include "tests/support/elements.h"
#include "tests/support/operations.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/nn.h>

enum { NETWORKS = 40, CLASSES = 5, ROW = 10, MOST_LAYERS = 12 };

/* What the rows of a network's layers begin with. */
enum { CONV, TRANSPOSE, NORM, ACTIVATION, MAX_POOL, AVERAGE_POOL, ADAPTIVE_AVERAGE, ADAPTIVE_MAX };

static ls_module *convolution(const double *row, int axes, int64_t in) {
    typedef ls_module *constructor(int64_t in, int64_t out, ls_shape kernel, const ls_conv_options *options);
    static constructor *const convolutions[] = {ls_nn_conv_1d, ls_nn_conv_2d, ls_nn_conv_3d};
    static constructor *const transposes[] = {ls_nn_conv_transpose_1d, ls_nn_conv_transpose_2d,
                                              ls_nn_conv_transpose_3d};
    const int64_t first = (int64_t)row[2], last = (int64_t)row[3], middle = (int64_t)row[9];
    const ls_shape kernel = axes == 1   ? LS_SHAPE(first)
                            : axes == 2 ? LS_SHAPE(first, last)
                                        : LS_SHAPE(first, middle, last);
    const ls_conv_options options = {.stride = LS_SHAPE((int64_t)row[4]),
                                     .padding = LS_SHAPE((int64_t)row[5]),
                                     .dilation = LS_SHAPE((int64_t)row[6]),
                                     .groups = (int64_t)row[7],
                                     .no_bias = row[8] == 0,
                                     .dtype = LS_F64};
    return ((int)row[0] == CONV ? convolutions : transposes)[axes - 1](in, (int64_t)row[1], kernel, &options);
}

static ls_module *layer_of(const double *row, int axes, int64_t channels) {
    const ls_layer_options norm = {.dtype = LS_F64};
    ls_pool_options pool = {.kernel = LS_SHAPE((int64_t)row[1]), .stride = LS_SHAPE((int64_t)row[2])};
    pool.padding = LS_SHAPE((int64_t)row[3]);
    switch ((int)row[0]) {
    case CONV:
    case TRANSPOSE:
        return convolution(row, axes, channels);
    case NORM:
        return axes == 1   ? ls_nn_batch_norm_1d(channels, &norm)
               : axes == 2 ? ls_nn_batch_norm_2d(channels, &norm)
                           : ls_nn_batch_norm_3d(channels, &norm);
    case ACTIVATION:
        return row[1] == 0 ? ls_nn_relu() : row[1] == 1 ? ls_nn_tanh() : ls_nn_silu();
    case MAX_POOL:
        pool.ceil_mode = row[4] != 0;
        return ls_nn_max_pool(&pool);
    case AVERAGE_POOL:
        pool.exclude_padding = row[4] != 0;
        return ls_nn_average_pool(&pool);
    case ADAPTIVE_AVERAGE:
        return ls_nn_adaptive_average_pool(LS_SHAPE((int64_t)row[1]));
    default:
        return ls_nn_adaptive_max_pool(LS_SHAPE((int64_t)row[1]));
    }
}

/* From the rows; *x is the input. */
static ls_module *network_of(const double *numbers, ls_tensor **x) {
    ls_module *layers[MOST_LAYERS];
    const int axes = (int)*numbers++;
    ls_shape shape = {.ndim = 2 + axes};
    for (int i = 0; i < shape.ndim; i++) {
        shape.size[i] = (int64_t)*numbers++;
    }
    *x = wave(shape, 1);
    int64_t channels = shape.size[1];
    const int count = (int)*numbers++;
    const int64_t width = (int64_t)*numbers++;
    assert_true(count + 2 <= MOST_LAYERS);
    for (int i = 0; i < count; i++, numbers += ROW) {
        layers[i] = layer_of(numbers, axes, channels);
        channels = numbers[0] == CONV || numbers[0] == TRANSPOSE ? (int64_t)numbers[1] : channels;
    }
    layers[count] = ls_nn_flatten();
    layers[count + 1] = ls_nn_linear_with(width, CLASSES, &(ls_layer_options){.dtype = LS_F64});
    ls_module *model = ls_sequential_of(layers, count + 2);
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        ls_no_grad(true);
        assert_int_equal(ls_copy_into(parameter, wave_between(ls_shape_of(parameter), 2 + i, -0.6, 0.7)), LS_OK);
        ls_no_grad(false);
    }
    return model;
}

static void assert_number(const fixture *expected, int at, double is) {
    const double right = expected->values[at];
    assert_true(at < expected->count);
    if (!(fabs(is - right) <= 1e-9 * fmax(1.0, fabs(right)))) {
        fail_msg("%s: number %d is %.15g, PyTorch has %.15g", expected->name, at, is, right);
    }
}

static void assert_gradient(const fixture *expected, int at, const ls_tensor *gradient) {
    assert_non_null(gradient);
    const double *value = elements(gradient);
    const double *weight = elements(wave_between(ls_shape_of(gradient), 99, -2.0, 2.0));
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < ls_numel(gradient); i++) {
        sum += value[i] * weight[i];
        squares += value[i] * value[i];
    }
    assert_number(expected, at, sum);
    assert_number(expected, at + 1, squares);
}

static void test_networks_are_pytorchs(void **state) {
    fixture *networks = fixtures_load("image_networks.txt");
    (void)state;
    for (int64_t i = 0; i < NETWORKS; i++) {
        char name[48], layers[64];
        snprintf(name, sizeof name, "network/%d", (int)i);
        snprintf(layers, sizeof layers, "%s/layers", name);
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = NULL;
        ls_module *model = network_of(fixture_find(networks, layers)->values, &x);
        ls_tensor *loss = ls_cross_entropy(ls_forward(model, x), ls_arange(LS_SHAPE(ls_size(x, 0)), LS_I64), NULL);
        const fixture *expected = fixture_find(networks, name);
        if (ls_backward(loss) != LS_OK) {
            fail_msg("%s: %s", name, ls_error_message());
        }
        const int parameters = ls_module_parameter_count(model);
        assert_number(expected, 0, ls_item(loss));
        assert_gradient(expected, 1, ls_grad(x));
        for (int k = 0; k < parameters; k++) {
            assert_gradient(expected, 3 + 2 * k, ls_grad(ls_module_parameter(model, k)));
        }
        assert_int_equal(expected->count, 3 + 2 * parameters);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        ls_module_free(model);
    }
    fixtures_free(networks);
}

/* ---- what layers are --------------------------------------------------------------------------------------------- */

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

static void test_layers_start_as_pytorchs(void **state) {
    (void)state;
    ls_seed(4);
    check_start(ls_nn_conv_2d(4, 6, LS_SHAPE(3), NULL), LS_SHAPE(6, 4, 3, 3), 36);
    check_start(ls_nn_conv_1d(4, 12, LS_SHAPE(5), &(ls_conv_options){.groups = 2}), LS_SHAPE(12, 2, 5), 10);
    check_start(ls_nn_conv_3d(2, 8, LS_SHAPE(1, 2, 3), NULL), LS_SHAPE(8, 2, 1, 2, 3), 12);
    check_start(ls_nn_conv_transpose_2d(4, 6, LS_SHAPE(2, 3), NULL), LS_SHAPE(4, 6, 2, 3), 36);
    check_start(ls_nn_conv_transpose_1d(4, 12, LS_SHAPE(5), &(ls_conv_options){.groups = 2}), LS_SHAPE(4, 6, 5), 30);
    ls_module *plain = ls_nn_conv_2d(4, 6, LS_SHAPE(3), &(ls_conv_options){.no_bias = true, .dtype = LS_F64});
    assert_int_equal(ls_module_parameter_count(plain), 1);
    assert_int_equal(ls_dtype_of(ls_module_parameter(plain, 0)), LS_F64);
    assert_string_equal(ls_module_type_name(plain), "Conv2d");
    ls_module_free(plain);
}

static void assert_refused(const ls_module *module, const char *words) {
    assert_null(module);
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    if (strstr(ls_error_message(), words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", ls_error_message(), words);
    }
}

static void test_layers_refuse(void **state) {
    (void)state;
    assert_refused(ls_nn_conv_2d(0, 6, LS_SHAPE(3), NULL),
                   "ls_nn_conv_2d: 0 channels in and 6 out: both must be positive");
    assert_refused(ls_nn_conv_2d(4, 6, LS_SHAPE(3, 3, 3), NULL),
                   "ls_nn_conv_2d: kernel has 3 numbers, must have one, or one for each of 2 spatial axes");
    assert_refused(ls_nn_conv_1d(4, 6, LS_SHAPE(0), NULL), "ls_nn_conv_1d: kernel is [0]");
    assert_refused(ls_nn_conv_1d(4, 6, LS_SCALAR, NULL), "ls_nn_conv_1d: no kernel is given");
    assert_refused(ls_nn_conv_3d(4, 6, LS_SHAPE(3), &(ls_conv_options){.groups = 4}),
                   "ls_nn_conv_3d: 4 channels in and 6 out cannot be divided into 4 groups");
    assert_refused(ls_nn_conv_transpose_2d(4, 6, LS_SHAPE(3), &(ls_conv_options){.same = true}),
                   "ls_nn_conv_transpose_2d: \"same\" padding is not for transposed convolution");
    assert_refused(ls_nn_max_pool(NULL), "ls_nn_max_pool: no kernel is given");
    assert_refused(ls_nn_average_pool(&(ls_pool_options){.kernel = LS_SHAPE(2, 2), .stride = LS_SHAPE(1, 2, 3)}),
                   "ls_nn_average_pool: kernel has 2 numbers");
    assert_refused(ls_nn_average_pool(&(ls_pool_options){.kernel = LS_SHAPE(2), .dilation = LS_SHAPE(2)}),
                   "ls_nn_average_pool: dilation is of maximum pooling only");
    assert_refused(ls_nn_max_pool(&(ls_pool_options){.kernel = LS_SHAPE(2, 2), .padding = LS_SHAPE(2)}),
                   "ls_nn_max_pool: padding of 2 is more than half of the kernel's 2");
    assert_refused(ls_nn_adaptive_average_pool(LS_SHAPE(0)), "ls_nn_adaptive_average_pool: size is [0]");
    assert_refused(ls_nn_batch_norm_2d(0, NULL), "ls_nn_batch_norm_2d: 0 channels: the number must be positive");
}

/* Each takes x of its own axes only; the first that of one axis fewer, too. */
static void test_batch_norms_refuse(void **state) {
    (void)state;
    static ls_module *(*const constructors[])(int64_t, const ls_layer_options *) = {
        ls_nn_batch_norm_1d, ls_nn_batch_norm_2d, ls_nn_batch_norm_3d};
    static const char *const messages[] = {
        "BatchNorm1d: x is [2, 4, 3, 3], must be [n, channels, length] or [n, channels]",
        "BatchNorm2d: x is [2, 4, 3], must be [n, channels, height, width]",
        "BatchNorm3d: x is [2, 4, 3, 3], must be [n, channels, depth, height, width]"};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_networks_are_pytorchs),
        cmocka_unit_test(test_layers_start_as_pytorchs),
        cmocka_unit_test(test_layers_refuse),
        cmocka_unit_test(test_batch_norms_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
