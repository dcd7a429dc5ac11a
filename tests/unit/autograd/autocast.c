/*
 * Mixed precision: an operation under ls_autocast equals the operation on rounded operands. Networks give PyTorch's
 * loss and gradients (tests/fixtures/make_autocast.py) to the precision of bf16. Parameters and gradients stay f32.
 * Training on Fashion-MNIST has almost the same result as in f32, on one rank and on two. All are tested in bf16 and in
 * f16.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/operations.h"
#include "tests/support/unit.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "base/float16.h"
#include "base/status.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/device/cpu/libraries.h"

FIXTURES(fixtures, "autocast.txt")

/* ---- one operation ----------------------------------------------------------------------------------------------- */

static ls_tensor *linear(ls_tensor **x) {
    return ls_linear(x[0], x[1], x[2]);
}

static ls_tensor *matmul(ls_tensor **x) {
    return ls_matmul(x[0], x[1]);
}

static ls_tensor *conv(ls_tensor **x) {
    return ls_conv(x[0], x[1], x[2], &(ls_conv_options){.padding = LS_SHAPE(1, 1)});
}

static ls_tensor *conv_transpose(ls_tensor **x) {
    return ls_conv_transpose(x[0], x[1], x[2], &(ls_conv_transpose_options){.stride = LS_SHAPE(2, 2)});
}

/* `third`, the bias, is not rounded. */
typedef struct product_case {
    const char *name;
    ls_tensor *(*function)(ls_tensor **x);
    ls_shape first, second, third;
} product_case;

static ls_tensor *rounded_to(ls_dtype half, ls_tensor *x) {
    return ls_to(ls_to(ls_detach(x), half), LS_F32);
}

static ls_tensor *rounded(ls_tensor *x) {
    return rounded_to(LS_BF16, x);
}

static ls_tensor *leaf(ls_tensor *x) {
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    return x;
}

static void expect_near(const char *name, const char *what, const ls_tensor *a, const ls_tensor *b, double tolerance) {
    const float *left = elements(a), *right = elements(b);
    double largest = 0;
    for (int64_t i = 0; i < ls_numel(b); i++) {
        largest = fmax(largest, fabs((double)right[i]));
    }
    assert_int_equal(ls_dtype_of(a), LS_F32);
    for (int64_t i = 0; i < ls_numel(b); i++) {
        if (!(fabs((double)left[i] - (double)right[i]) <= tolerance * largest)) {
            fail_msg("%s: %s[%lld] is %g, not %g", name, what, (long long)i, (double)left[i], (double)right[i]);
        }
    }
}

static void check_product(const product_case *c, ls_dtype half) {
    static const char *const names[] = {"gradient of the first", "gradient of the second"};
    ls_scope *scope = ls_scope_begin();
    ls_seed(3);
    ls_tensor *given[3] = {leaf(ls_randn(c->first, LS_F32)), leaf(ls_randn(c->second, LS_F32)),
                           c->third.ndim > 0 ? leaf(ls_randn(c->third, LS_F32)) : NULL};
    ls_tensor *exact[3] = {leaf(rounded_to(half, given[0])), leaf(rounded_to(half, given[1])), given[2]};
    assert_int_equal(ls_autocast(half), LS_F32);
    ls_tensor *y = c->function(given);
    assert_int_equal(ls_autocast(LS_F32), half);
    ls_tensor *right = c->function(exact), *plain = c->function(given);
    expect_near(c->name, "y", y, right, 2e-6);
    assert_false(ls_equal(y, plain)); /* the product was rounded */
    /* The backward pass of an operation recorded under autocast rounds, even if autocast is off during the backward
     * pass. */
    ls_tensor *g = ls_randn(LS_SHAPE(ls_numel(y)), LS_F32);
    g = ls_reshape(g, ls_shape_of(y));
    assert_int_equal(ls_backward_with(y, &(ls_backward_options){.gradient = g}), LS_OK);
    assert_int_equal(ls_backward_with(right, &(ls_backward_options){.gradient = rounded_to(half, g)}), LS_OK);
    for (int i = 0; i < 2; i++) {
        expect_near(c->name, names[i], ls_grad(given[i]), ls_grad(exact[i]), 2e-6);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static void test_products_are_of_rounded_operands(void **state) {
    const product_case cases[] = {
        {"linear", linear, LS_SHAPE(5, 7), LS_SHAPE(3, 7), LS_SHAPE(3)},
        {"linear, large", linear, LS_SHAPE(64, 200), LS_SHAPE(120, 200), LS_SHAPE(120)},
        {"matmul", matmul, LS_SHAPE(3, 6, 9), LS_SHAPE(3, 9, 4), LS_SCALAR},
        {"matmul, large", matmul, LS_SHAPE(2, 70, 130), LS_SHAPE(130, 128), LS_SCALAR},
        {"conv", conv, LS_SHAPE(2, 3, 5, 6), LS_SHAPE(4, 3, 3, 3), LS_SHAPE(4)},
        {"conv, large", conv, LS_SHAPE(5, 16, 14, 14), LS_SHAPE(32, 16, 3, 3), LS_SHAPE(32)},
        {"conv_transpose", conv_transpose, LS_SHAPE(2, 4, 5, 6), LS_SHAPE(4, 3, 2, 2), LS_SHAPE(3)},
        {"conv_transpose, large", conv_transpose, LS_SHAPE(3, 32, 10, 9), LS_SHAPE(32, 16, 4, 4), LS_SHAPE(16)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_product(&cases[i], LS_BF16);
        check_product(&cases[i], LS_F16);
    }
}

/*
 * Attention also rounds between its two products: the result is close to f32's with rounded operands, but not equal.
 * With one query and one key, only the value and its gradient are rounded.
 */
static void check_attention(ls_dtype half) {
    for (int64_t length = 20; length > 0; length -= 19) {
        ls_scope *scope = ls_scope_begin();
        ls_seed(4);
        ls_tensor *given[3], *exact[3];
        for (int i = 0; i < 3; i++) {
            given[i] = leaf(ls_randn(LS_SHAPE(2, 3, length, 16), LS_F32));
            exact[i] = leaf(rounded_to(half, given[i]));
        }
        (void)ls_autocast(half);
        ls_tensor *y = ls_attention(given[0], given[1], given[2], NULL);
        (void)ls_autocast(LS_F32);
        ls_tensor *right = ls_attention(exact[0], exact[1], exact[2], NULL), *g = ls_randn(ls_shape_of(y), LS_F32);
        assert_int_equal(ls_backward_with(y, &(ls_backward_options){.gradient = g}), LS_OK);
        assert_int_equal(ls_backward_with(right, &(ls_backward_options){.gradient = rounded_to(half, g)}), LS_OK);
        expect_near("attention", "y", y, right, 0.01);
        assert_true(ls_equal(y, right) == (length == 1));
        for (int i = 0; i < 3 && length > 1; i++) {
            expect_near("attention", "a gradient", ls_grad(given[i]), ls_grad(exact[i]), 0.02);
        }
        assert_true(ls_equal(ls_grad(given[2]), ls_grad(exact[2])) == (length == 1));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

TEST(test_attention) {
    check_attention(LS_BF16);
    check_attention(LS_F16);
}

/* Every 16-bit float, and numbers between two of them, round as in ls_to. */
SCOPED_TEST(test_rounding) {
    enum { COUNT = 1 << 18 };
    static const ls_dtype halves[] = {LS_BF16, LS_F16};
    assert_int_equal(ls_use_device("cpu"), LS_OK);
    for (int k = 0; k < 2; k++) {
        ls_tensor *x = ls_empty(LS_SHAPE(COUNT), LS_F32), made;
        for (uint32_t i = 0; i < COUNT; i++) { /* the 16-bit float, a value just above it, the midpoint to the next
                                                  float, a value just above the midpoint */
            const uint32_t bits = i / 4, after = halves[k] == LS_BF16 ? 0x8000 : 0x1000;
            const float half =
                halves[k] == LS_BF16 ? ls_bf16_to_float((uint16_t)bits) : ls_f16_to_float((uint16_t)bits);
            ((float *)ls_data(x))[i] = ls_float_of_bits(ls_bits_of_float(half) + i / 2 % 2 * after + i % 2);
        }
        ls_tensor *wanted = rounded_to(halves[k], x);
        assert_int_equal(ls_rounded_begin(x, halves[k], &made), LS_OK);
        for (int64_t i = 0; i < COUNT; i++) {
            const float is = ((const float *)made.data)[i], want = ((const float *)ls_data_const(wanted))[i];
            if (ls_bits_of_float(is) != ls_bits_of_float(want) && !(isnan(is) && isnan(want))) {
                fail_msg("%a became %a, not %a", (double)((const float *)ls_data_const(x))[i], (double)is,
                         (double)want);
            }
        }
        ls_rounded_end(&made);
    }
}

/* oneDNN's products in bf16, even if they are slower on this CPU, so that oneDNN would not choose them. */
SCOPED_TEST(test_products_of_onednn) {
    enum { M = 37, N = 150, K = 220 };
    const ls_onednn *onednn = ls_onednn_open();
    assert_int_equal(ls_use_device("cpu"), LS_OK);
    for (int way = 0; way < 8; way++) {
        const bool turned_a = (way & 1) != 0, turned_b = (way & 2) != 0;
        ls_tensor *a = ls_randn(LS_SHAPE(M * K), LS_F32), *b = ls_randn(LS_SHAPE(N * K), LS_F32);
        ls_tensor *c = ls_randn(LS_SHAPE(M, N), LS_F32), *expected = ls_clone(c);
        ls_gemm gemm = {.m = M, .n = N, .k = K, .rounds_to = LS_BF16, .accumulate = (way & 4) != 0};
        gemm.a = ls_data_const(a), gemm.lda = turned_a ? M : K, gemm.transpose_a = turned_a;
        gemm.b = ls_data_const(b), gemm.ldb = turned_b ? K : N, gemm.transpose_b = turned_b;
        gemm.c = ls_data(c), gemm.ldc = N;
        const ls_status status = onednn != NULL ? onednn->gemm_bf16(&gemm) : LS_ERR_UNSUPPORTED;
        if (status == LS_ERR_UNSUPPORTED) {
            print_message("no product of bf16 here\n");
            break;
        }
        assert_int_equal(status, LS_OK);
        a = rounded(a), b = rounded(b);
        gemm.a = ls_data_const(a), gemm.b = ls_data_const(b), gemm.c = ls_data(expected), gemm.rounds_to = LS_F32;
        assert_int_equal(ls_cpu_gemm(NULL, &gemm), LS_OK);
        expect_near("oneDNN", "c", c, expected, 2e-6);
    }
}

SCOPED_TEST(test_convolutions_of_onednn) {
    enum { N = 19, IN = 16, OUT = 32, SIDE = 14, KERNEL = 3, LEFT = SIDE - KERNEL + 1 };
    const ls_onednn *onednn = ls_onednn_open();
    const ls_window window = {.kernel = {1, KERNEL, KERNEL}, .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .groups = 1};
    assert_int_equal(ls_use_device("cpu"), LS_OK);
    for (int work = LS_CONV_SMALL; work <= LS_CONV_WEIGHT; work++) {
        ls_tensor *given[] = {ls_randn(LS_SHAPE(N, IN, 1, SIDE, SIDE), LS_F32),
                              ls_randn(LS_SHAPE(N, OUT, 1, LEFT, LEFT), LS_F32),
                              ls_randn(LS_SHAPE(OUT, IN, 1, KERNEL, KERNEL), LS_F32)};
        const int made = work == LS_CONV_SMALL ? 1 : work == LS_CONV_LARGE ? 0 : 2;
        ls_tensor *expected = ls_clone(given[made]), *exact[3];
        const ls_status status =
            onednn == NULL ? LS_ERR_UNSUPPORTED
                           : onednn->conv((ls_conv_work)work, given[0], given[1], given[2], NULL, &window, true);
        if (status == LS_ERR_UNSUPPORTED) {
            print_message("no convolution of bf16 here\n");
            assert_int_equal(work, LS_CONV_SMALL); /* all three or none */
            break;
        }
        assert_int_equal(status, LS_OK);
        for (int i = 0; i < 3; i++) {
            exact[i] = i == made ? expected : rounded(given[i]);
        }
        assert_int_equal(onednn->conv((ls_conv_work)work, exact[0], exact[1], exact[2], NULL, &window, false), LS_OK);
        expect_near("oneDNN", "the result", given[made], expected, 2e-6);
    }
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

static ls_tensor *attend(ls_tensor *x, void *user) {
    (void)user;
    ls_tensor *q = ls_narrow(x, 2, 0, 8), *k = ls_narrow(x, 2, 8, 8), *v = ls_narrow(x, 2, 16, 8);
    return ls_mean_axes(ls_attention(q, k, v, NULL), LS_AXES(1), false);
}

static ls_module *network(int number) {
    const ls_conv_layer_options first = {.padding = LS_SHAPE(1)},
                                second = {.stride = LS_SHAPE(2), .padding = LS_SHAPE(1)};
    return number == 0 ? ls_sequential(ls_nn_linear(40, 64), ls_nn_relu(), ls_nn_linear(64, 48), ls_nn_tanh(),
                                       ls_nn_linear(48, 10))
           : number == 1
               ? ls_sequential(ls_nn_conv_2d(3, 8, LS_SHAPE(3), &first), ls_nn_relu(),
                               ls_nn_average_pool(&(ls_average_pool_options){.kernel = LS_SHAPE(2)}),
                               ls_nn_conv_2d(8, 16, LS_SHAPE(3), &second), ls_nn_relu(), ls_nn_flatten(),
                               ls_nn_linear(256, 10))
               : ls_sequential(ls_nn_linear(12, 24), ls_nn_function("attend", attend, NULL), ls_nn_linear(8, 10));
}

/*
 * Compares a number with PyTorch's, to the tolerance of rounding: PyTorch also rounds results, and the gradient of a
 * bias is a sum of numbers that almost cancel. The tests above make exact comparisons.
 */
static void expect_number(const char *name, int index, double value, double right, double tolerance) {
    if (!(fabs(value - right) <= tolerance)) {
        fail_msg("%s: number %d is %g, PyTorch's is %g", name, index, value, right);
    }
}

static void expect_gradient(const char *name, const fixture *right, int index, const ls_tensor *gradient) {
    assert_non_null(gradient);
    assert_int_equal(ls_dtype_of(gradient), LS_F32);
    const float *values = elements(gradient);
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < ls_numel(gradient); i++) {
        const double x = (double)values[i];
        sum += x * (-2 + 2 * (1 + sin(1.37 * 99 + 0.73 * (double)i)));
        squares += x * x;
    }
    const double size = sqrt(squares * (double)ls_numel(gradient));
    expect_number(name, index, sum, right->values[index], 0.15 * size);
    expect_number(name, index + 1, squares, right->values[index + 1], 0.25 * squares);
}

static void check_network(int number) {
    static const char *const names[] = {"mlp", "cnn", "attention"};
    const ls_shape shapes[] = {LS_SHAPE(16, 40), LS_SHAPE(6, 3, 14, 14), LS_SHAPE(3, 20, 12)};
    const fixture *right = fixture_find(fixtures, names[number]);
    ls_scope *scope = ls_scope_begin();
    ls_module *model = network(number);
    assert_non_null(model);
    const int count = ls_module_parameter_count(model);
    assert_int_equal(right->count, 3 + 2 * count);
    for (int i = 0; i < count; i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        const double bound = 1 / sqrt((double)ls_numel(parameter) / (double)ls_size(parameter, 0));
        ls_tensor *values = ls_to(ls_detach(wave_between(ls_shape_of(parameter), i + 2, -bound, bound)), LS_F32);
        const bool before = ls_no_grad(true);
        assert_int_equal(ls_copy_into(parameter, values), LS_OK);
        (void)ls_no_grad(before);
    }
    ls_tensor *x = leaf(ls_to(ls_detach(wave(shapes[number], 1)), LS_F32));
    ls_tensor *target = ls_arange(LS_SHAPE(shapes[number].size[0]), LS_I64);
    target = ls_sub(target, ls_mul(ls_to(ls_ge(target, 10), LS_I64), 10));
    const ls_dtype before = ls_autocast(LS_BF16);
    ls_tensor *y = ls_forward(model, x);
    ls_tensor *loss = ls_cross_entropy(y, target, NULL);
    (void)ls_autocast(before);
    assert_int_equal(ls_dtype_of(y), LS_F32);
    expect_number(names[number], 0, ls_item(loss), right->values[0], 0.005 * right->values[0]);
    assert_true(ls_item(loss) != ls_item(ls_cross_entropy(ls_forward(model, x), target, NULL)));
    assert_int_equal(ls_backward(loss), LS_OK);
    expect_gradient(names[number], right, 1, ls_grad(x));
    for (int i = 0; i < count; i++) {
        assert_int_equal(ls_dtype_of(ls_module_parameter(model, i)), LS_F32);
        expect_gradient(names[number], right, 3 + 2 * i, ls_grad(ls_module_parameter(model, i)));
    }
    ls_module_free(model);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_networks_are_those_of_pytorch) {
    for (int i = 0; i < 3; i++) {
        check_network(i);
    }
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

#define FOLDER "/usr/share/datasets/fashion-mnist/"

enum { SAMPLES = 1024, EPOCHS = 3 };

typedef struct training {
    ls_dtype autocast;
    double loss[2]; /* of each rank */
} training;

static ls_tensor *with_channel(ls_tensor *x, void *user) {
    (void)user;
    return ls_unsqueeze(x, 1);
}

static ls_status train(ls_comm *world, void *argument) {
    training *what = argument;
    ls_seed(5);
    ls_dataset *set = ls_idx_dataset(FOLDER "t10k-images-idx3-ubyte.gz", FOLDER "t10k-labels-idx1-ubyte.gz");
    set = ls_dataset_preload(ls_dataset_normalize(ls_dataset_subset(set, 0, SAMPLES), 0.286, 0.353));
    ls_module *model =
        ls_sequential(ls_nn_function("with_channel", with_channel, NULL),
                      ls_nn_conv_2d(1, 8, LS_SHAPE(3), &(ls_conv_layer_options){.stride = LS_SHAPE(2)}), ls_nn_relu(),
                      ls_nn_flatten(), ls_nn_linear(8 * 13 * 13, 64), ls_nn_relu(), ls_nn_linear(64, 10));
    if (world != NULL) {
        model = ls_data_parallel(model, world, NULL);
    }
    ls_optimizer *optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = 0.002});
    ls_grad_scaler *scaler = what->autocast == LS_F16 ? ls_grad_scaler_new(NULL) : NULL;
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.global_batch_size = 64, .comm = world, .seed = 2});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .metrics = LS_METRICS("loss"),
                                                       .autocast = what->autocast,
                                                       .grad_scaler = scaler,
                                                       .quiet = true});
    ls_status status = trial != NULL ? ls_trial_run(trial, EPOCHS) : ls_error_status();
    if (status == LS_OK) {
        what->loss[world != NULL ? ls_comm_rank(world) : 0] = ls_trial_metric(trial, "loss");
    }
    for (int i = 0; status == LS_OK && i < ls_module_parameter_count(model); i++) {
        status = ls_dtype_of(ls_module_parameter(model, i)) == LS_F32 ? LS_OK : LS_ERR_INTERNAL;
    }
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_grad_scaler_free(scaler);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return status;
}

TEST(test_training_ends_where_f32_does) {
    if (access(FOLDER "t10k-images-idx3-ubyte.gz", R_OK) != 0) {
        skip();
    }
    training plain = {.autocast = LS_F32};
    if (train(NULL, &plain) != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
    assert_true(plain.loss[0] > 0.1 && plain.loss[0] < 1.2); /* the model has learned */
    for (int i = 0; i < 2; i++) {
        training mixed = {.autocast = i == 0 ? LS_BF16 : LS_F16}, spread = mixed;
        if (train(NULL, &mixed) != LS_OK) {
            fail_msg("%s", ls_error_message());
        }
        if (ls_run_threads(2, train, &spread) != LS_OK) {
            fail_msg("two ranks: %s", ls_error_message());
        }
        assert_true(mixed.loss[0] != plain.loss[0]);
        assert_true(fabs(mixed.loss[0] - plain.loss[0]) < 0.03 * plain.loss[0]);
        assert_true(spread.loss[0] == spread.loss[1]);
        assert_true(fabs(spread.loss[0] - mixed.loss[0]) < 0.02 * mixed.loss[0]);
    }
}

/* ---- the warning ------------------------------------------------------------------------------------------------- */

static void count_warning(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    *(int *)user +=
        level == LS_LOG_WARNING && strstr(line, "matrix products in f16 are not faster than in f32") != NULL;
}

/* If autocast cannot be faster, it warns once per process. On devices whose speed is unknown, it does not warn. */
TEST(test_warns_once) {
    int warnings = 0;
    ls_log_set_sink(count_warning, &warnings);
    for (int i = 0; i < 3; i++) {
        (void)ls_autocast(LS_F16);
        (void)ls_autocast(LS_F32);
    }
    ls_log_set_sink(NULL, NULL);
    assert_int_equal(warnings, strcmp(ls_default_device(), "cpu") == 0 ? 1 : 0);
}

/* ---- data sets --------------------------------------------------------------------------------------------------- */

static ls_tensor *turn(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples, (void)user;
    return ls_matmul(batch, ls_add(ls_mul(ls_arange(LS_SHAPE(3, 3), LS_F32), 0.1), 1.0));
}

/* A program's transforms give the same result on whichever thread makes the batch. */
TEST(test_batches_are_those_of_f32) {
    float wanted[6] = {0};
    for (int i = 0; i < 3; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_add(ls_mul(ls_arange(LS_SHAPE(2, 3), LS_F32), 0.3), 0.7);
        ls_dataset *set = ls_dataset_transform_input(ls_tensor_dataset(x, ls_zeros(LS_SHAPE(2), LS_I64)), turn, NULL);
        ls_loader *loader = ls_loader_new(
            set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true, .threads = i == 2 ? 1 : 0, .device = "cpu"});
        ls_batch batch;
        bool more;
        assert_int_equal(ls_autocast(i > 0 ? LS_BF16 : LS_F32), LS_F32);
        const ls_status status = ls_loader_next(loader, &batch, &more);
        assert_int_equal(ls_autocast(LS_F32), i > 0 ? LS_BF16 : LS_F32); /* autocast is as before */
        assert_int_equal(status, LS_OK);
        if (i == 0) {
            memcpy(wanted, elements(batch.input), sizeof wanted);
        }
        assert_memory_equal(elements(batch.input), wanted, sizeof wanted);
        ls_loader_free(loader);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

TEST(test_refuses) {
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_autocast(LS_I32), LS_F32);
    assert_int_equal(ls_autocast(LS_F32), LS_F32); /* nothing changed */
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(),
                        "ls_autocast: the dtype is i32, but must be LS_BF16 or LS_F16, or LS_F32 to end autocast");
    scope = ls_scope_begin();
    ls_tensor *wide = ls_randn(LS_SHAPE(4, 4), LS_F64), *y = ls_matmul(wide, wide);
    (void)ls_autocast(LS_BF16);
    assert_true(ls_equal(ls_matmul(wide, wide), y));
    (void)ls_autocast(LS_F32);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_null(ls_trial_new(&(ls_trial_options){.autocast = LS_I32}));
    expect_message("autocast is i32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warns_once), /* first: no other test may have caused the warning before */
        cmocka_unit_test(test_products_are_of_rounded_operands),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_products_of_onednn),
        cmocka_unit_test(test_convolutions_of_onednn),
        cmocka_unit_test(test_networks_are_those_of_pytorch),
        cmocka_unit_test(test_training_ends_where_f32_does),
        cmocka_unit_test(test_batches_are_those_of_f32),
        cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
