/*
 * Kernels of optimizer steps and flat kernels compared with scalar formulas in double precision.
 *
 * devices: cpu cuda
 */
#include "tests/support/numbers.h"

#include "base/status.h"
#include "tests/support/kernels.h"

enum { COUNT = 53, STEPS = 6 }; /* more than a vector, and not a multiple of it */

/* The numbers of an optimizer, and a copy for the reference. */
typedef struct training {
    ls_dtype dtype;
    ls_tensor parameter, gradient, state[3];
    double p[COUNT], s[3][COUNT];
} training;

static training training_start(ls_dtype dtype) {
    training t = {.dtype = dtype, .parameter = numbers_random(dtype, LS_SHAPE(COUNT), 1, 0)};
    t.gradient = numbers_new(dtype, LS_SHAPE(COUNT));
    for (int k = 0; k < 3; k++) {
        t.state[k] = numbers_new(dtype, LS_SHAPE(COUNT));
    }
    for (int i = 0; i < COUNT; i++) {
        t.p[i] = numbers_get(&t.parameter, i);
    }
    return t;
}

static void training_draw_gradient(training *t, int step) {
    numbers_free(&t->gradient);
    t->gradient = numbers_random(t->dtype, LS_SHAPE(COUNT), (uint64_t)(100 + step), 0);
}

static void training_check(const training *t, const char *what) {
    const double tolerance = 40 * numbers_tolerance(t->dtype);
    for (int i = 0; i < COUNT; i++) {
        numbers_expect(what, numbers_get(&t->parameter, i), t->p[i], tolerance);
        for (int k = 0; k < 3; k++) {
            numbers_expect("its state", numbers_get(&t->state[k], i), t->s[k][i], tolerance);
        }
    }
}

static void training_end(training *t) {
    numbers_free(&t->parameter);
    numbers_free(&t->gradient);
    for (int k = 0; k < 3; k++) {
        numbers_free(&t->state[k]);
    }
}

static void check_sgd(ls_dtype dtype, double momentum, double dampening, bool nesterov, double decay) {
    training t = training_start(dtype);
    for (int i = 0; i < COUNT && momentum != 0; i++) {
        numbers_set(&t.state[0], i, NAN); /* the kernel must write the buffer before it reads it */
    }
    for (int n = 1; n <= STEPS; n++) {
        training_draw_gradient(&t, n);
        const ls_sgd_step step = {.dtype = dtype,
                                  .count = COUNT,
                                  .parameter = t.parameter.data,
                                  .gradient = t.gradient.data,
                                  .momentum_buffer = momentum != 0 ? t.state[0].data : NULL,
                                  .learning_rate = 0.1,
                                  .momentum = momentum,
                                  .dampening = dampening,
                                  .weight_decay = decay,
                                  .nesterov = nesterov,
                                  .first = n == 1};
        assert_int_equal(kernels()->sgd(NULL, &step), LS_OK);
        for (int i = 0; i < COUNT; i++) {
            double d = numbers_get(&t.gradient, i) + decay * t.p[i];
            if (momentum != 0) {
                t.s[0][i] = n == 1 ? d : momentum * t.s[0][i] + (1 - dampening) * d;
                d = nesterov ? d + momentum * t.s[0][i] : t.s[0][i];
            }
            t.p[i] -= 0.1 * d;
        }
    }
    training_check(&t, "sgd");
    training_end(&t);
}

TEST(test_sgd) {
    for (int type = 0; type < 2; type++) {
        const ls_dtype dtype = type == 0 ? LS_F32 : LS_F64;
        check_sgd(dtype, 0, 0, false, 0);
        check_sgd(dtype, 0, 0, false, 0.01);
        check_sgd(dtype, 0.9, 0, false, 0);
        check_sgd(dtype, 0.9, 0.3, false, 0.01);
        check_sgd(dtype, 0.9, 0, true, 0.01);
    }
}

static void check_adam(ls_dtype dtype, bool decoupled, bool amsgrad, double decay) {
    training t = training_start(dtype);
    for (int n = 1; n <= STEPS; n++) {
        training_draw_gradient(&t, n);
        const double correction1 = 1 - pow(0.9, n);
        const double correction2 = 1 - pow(0.999, n);
        const ls_adam_step step = {.dtype = dtype,
                                   .count = COUNT,
                                   .parameter = t.parameter.data,
                                   .gradient = t.gradient.data,
                                   .first_moment = t.state[0].data,
                                   .second_moment = t.state[1].data,
                                   .largest_second_moment = amsgrad ? t.state[2].data : NULL,
                                   .beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .epsilon = 1e-8,
                                   .parameter_decay = decoupled ? 0.01 * decay : 0,
                                   .gradient_decay = decoupled ? 0 : decay,
                                   .rate = 0.01 / correction1,
                                   .root = 1 / sqrt(correction2)};
        assert_int_equal(kernels()->adam(NULL, &step), LS_OK);
        for (int i = 0; i < COUNT; i++) {
            double g = numbers_get(&t.gradient, i);
            if (decoupled) {
                t.p[i] *= 1 - 0.01 * decay;
            } else {
                g += decay * t.p[i];
            }
            t.s[0][i] = 0.9 * t.s[0][i] + (1 - 0.9) * g;
            t.s[1][i] = 0.999 * t.s[1][i] + (1 - 0.999) * g * g;
            t.s[2][i] = amsgrad ? fmax(t.s[2][i], t.s[1][i]) : 0;
            const double v = amsgrad ? t.s[2][i] : t.s[1][i];
            t.p[i] -= 0.01 / correction1 * t.s[0][i] / (sqrt(v) / sqrt(correction2) + 1e-8);
        }
    }
    training_check(&t, "adam");
    training_end(&t);
}

TEST(test_adam) {
    for (int way = 0; way < 16; way++) {
        check_adam((way & 1) != 0 ? LS_F64 : LS_F32, (way & 2) != 0, (way & 4) != 0, (way & 8) != 0 ? 0.1 : 0);
    }
}

/* A parameter that never had a gradient does not change. */
TEST(test_adam_without_gradient) {
    float p[20];
    const float zero[20] = {0};
    float m[20] = {0};
    float v[20] = {0};
    for (int i = 0; i < 20; i++) {
        p[i] = 1;
    }
    const ls_adam_step step = {.count = 20,
                               .parameter = p,
                               .gradient = zero,
                               .first_moment = m,
                               .second_moment = v,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .epsilon = 1e-8,
                               .rate = 10,
                               .root = 1 / sqrt(0.001)};
    assert_int_equal(kernels()->adam(NULL, &step), LS_OK);
    for (int i = 0; i < 20; i++) {
        assert_true(p[i] == 1);
    }
}

static void check_rmsprop(ls_dtype dtype, bool centered, double momentum, double decay) {
    training t = training_start(dtype);
    for (int n = 1; n <= STEPS; n++) {
        training_draw_gradient(&t, n);
        const ls_rmsprop_step step = {.dtype = dtype,
                                      .count = COUNT,
                                      .parameter = t.parameter.data,
                                      .gradient = t.gradient.data,
                                      .square_average = t.state[0].data,
                                      .gradient_average = centered ? t.state[1].data : NULL,
                                      .momentum_buffer = momentum != 0 ? t.state[2].data : NULL,
                                      .learning_rate = 0.01,
                                      .alpha = 0.9,
                                      .epsilon = 1e-6,
                                      .momentum = momentum,
                                      .weight_decay = decay};
        assert_int_equal(kernels()->rmsprop(NULL, &step), LS_OK);
        for (int i = 0; i < COUNT; i++) {
            const double g = numbers_get(&t.gradient, i) + decay * t.p[i];
            t.s[0][i] = 0.9 * t.s[0][i] + (1 - 0.9) * g * g;
            t.s[1][i] = centered ? 0.9 * t.s[1][i] + (1 - 0.9) * g : 0;
            const double change = g / (sqrt(t.s[0][i] - t.s[1][i] * t.s[1][i]) + 1e-6);
            t.s[2][i] = momentum != 0 ? momentum * t.s[2][i] + change : 0;
            t.p[i] -= 0.01 * (momentum != 0 ? t.s[2][i] : change);
        }
    }
    training_check(&t, "rmsprop");
    training_end(&t);
}

TEST(test_rmsprop) {
    for (int way = 0; way < 16; way++) {
        check_rmsprop((way & 1) != 0 ? LS_F64 : LS_F32, (way & 2) != 0, (way & 4) != 0 ? 0.9 : 0,
                      (way & 8) != 0 ? 0.1 : 0);
    }
}

static void test_adagrad(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        training t = training_start((way & 1) != 0 ? LS_F64 : LS_F32);
        const double decay = (way & 2) != 0 ? 0.1 : 0;
        for (int n = 1; n <= STEPS; n++) {
            training_draw_gradient(&t, n);
            const ls_adagrad_step step = {.dtype = t.dtype,
                                          .count = COUNT,
                                          .parameter = t.parameter.data,
                                          .gradient = t.gradient.data,
                                          .sum = t.state[0].data,
                                          .learning_rate = 0.1,
                                          .epsilon = 1e-10,
                                          .weight_decay = decay};
            assert_int_equal(kernels()->adagrad(NULL, &step), LS_OK);
            for (int i = 0; i < COUNT; i++) {
                const double g = numbers_get(&t.gradient, i) + decay * t.p[i];
                t.s[0][i] += g * g;
                t.p[i] -= 0.1 * g / (sqrt(t.s[0][i]) + 1e-10);
            }
        }
        training_check(&t, "adagrad");
        training_end(&t);
    }
}

/* ---- Muon -------------------------------------------------------------------------------------------------------- */

enum { SIDE = 150 };

/* c = a b, with a [m, k] and b [k, n] */
static void multiply(int m, int n, int k, const double *a, const double *b, double *c) {
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            c[i * n + j] = 0;
            for (int p = 0; p < k; p++) {
                c[i * n + j] += a[i * k + p] * b[p * n + j];
            }
        }
    }
}

/* The plain formula for any shape: X = a X + (b X X^T + c (X X^T)^2) X. */
static void orthogonalise(int rows, int columns, double *x) {
    static double transposed[SIDE * SIDE], gram[SIDE * SIDE], square[SIDE * SIDE], product[SIDE * SIDE];
    double norm = 0;
    for (int i = 0; i < rows * columns; i++) {
        norm += x[i] * x[i];
    }
    for (int i = 0; i < rows * columns; i++) {
        x[i] /= fmax(sqrt(norm), 1e-7);
    }
    for (int turn = 0; turn < 5; turn++) {
        for (int i = 0; i < rows * columns; i++) {
            transposed[i % columns * rows + i / columns] = x[i];
        }
        multiply(rows, rows, columns, x, transposed, gram);
        multiply(rows, rows, rows, gram, gram, square);
        for (int i = 0; i < rows * rows; i++) {
            gram[i] = -4.7750 * gram[i] + 2.0315 * square[i];
        }
        multiply(rows, columns, rows, gram, x, product);
        for (int i = 0; i < rows * columns; i++) {
            x[i] = 3.4445 * x[i] + product[i];
        }
    }
}

static void check_muon(ls_dtype dtype, int rows, int columns, bool nesterov) {
    static double p[SIDE * SIDE], buffer[SIDE * SIDE], x[SIDE * SIDE];
    const int count = rows * columns;
    ls_tensor parameter = numbers_random(dtype, LS_SHAPE(rows, columns), 1, 0);
    ls_tensor momentum = numbers_new(dtype, LS_SHAPE(rows, columns));
    ls_tensor work = numbers_new(dtype, LS_SHAPE(ls_muon_work(rows, columns)));
    for (int i = 0; i < count; i++) {
        p[i] = numbers_get(&parameter, i);
        buffer[i] = 0;
    }
    for (int n = 1; n <= 2; n++) {
        ls_tensor gradient = numbers_random(dtype, LS_SHAPE(rows, columns), (uint64_t)(100 + n), 0);
        const ls_muon_step step = {.dtype = dtype,
                                   .rows = rows,
                                   .columns = columns,
                                   .parameter = parameter.data,
                                   .gradient = gradient.data,
                                   .momentum_buffer = momentum.data,
                                   .work = work.data,
                                   .rate = 0.1,
                                   .momentum = 0.9,
                                   .parameter_decay = 0.05,
                                   .epsilon = 1e-7,
                                   .a = 3.4445,
                                   .b = -4.7750,
                                   .c = 2.0315,
                                   .iterations = 5,
                                   .nesterov = nesterov};
        assert_int_equal(kernels()->muon(NULL, &step), LS_OK);
        for (int i = 0; i < count; i++) {
            const double g = numbers_get(&gradient, i);
            buffer[i] = 0.9 * buffer[i] + 0.1 * g;
            x[i] = nesterov ? 0.9 * buffer[i] + 0.1 * g : buffer[i];
        }
        orthogonalise(rows, columns, x);
        for (int i = 0; i < count; i++) {
            p[i] = 0.95 * p[i] - 0.1 * x[i];
        }
        numbers_free(&gradient);
    }
    const double tolerance = dtype == LS_F32 ? 1e-4 : 1e-11;
    for (int i = 0; i < count; i++) {
        numbers_expect("muon", numbers_get(&parameter, i), p[i], tolerance);
        numbers_expect("its momentum", numbers_get(&momentum, i), buffer[i], 40 * numbers_tolerance(dtype));
    }
    numbers_free(&parameter);
    numbers_free(&momentum);
    numbers_free(&work);
}

/* Tests all combinations of full and partial blocks in the products. */
TEST(test_muon) {
    static const int shapes[][2] = {{1, 1},  {1, 9},  {9, 1},   {3, 4},   {4, 16},
                                    {8, 32}, {5, 17}, {37, 70}, {70, 37}, {33, 129}};
    for (int i = 0; i < 20; i++) {
        check_muon(i % 2 == 0 ? LS_F32 : LS_F64, shapes[i / 2][0], shapes[i / 2][1], i % 3 == 0);
    }
    assert_int_equal(kernels()->muon(NULL, &(ls_muon_step){.dtype = LS_F32}), LS_OK); /* [0, 0] */
}

/* ---- flat kernels ------------------------------------------------------------------------------------------------ */

static void check_flat(ls_dtype dtype, int64_t count) {
    ls_tensor x = numbers_random(dtype, LS_SHAPE(count), 1, 0);
    ls_tensor y = numbers_random(dtype, LS_SHAPE(count), 2, 0);
    ls_tensor before = numbers_random(dtype, LS_SHAPE(count), 2, 0);
    double products = 0, magnitudes = 0, largest = 0;
    double dot = -1, sum = -1, most = -1;
    assert_int_equal(kernels()->dot(NULL, dtype, count, x.data, y.data, &dot), LS_OK);
    assert_int_equal(kernels()->sum_of_magnitudes(NULL, dtype, count, x.data, &sum), LS_OK);
    assert_int_equal(kernels()->largest_magnitude(NULL, dtype, count, x.data, &most), LS_OK);
    assert_int_equal(kernels()->axpy(NULL, dtype, count, -0.3, x.data, y.data), LS_OK);
    assert_int_equal(kernels()->scale(NULL, dtype, count, 1.7, y.data), LS_OK);
    for (int64_t i = 0; i < count; i++) {
        products += numbers_get(&x, i) * numbers_get(&before, i);
        magnitudes += fabs(numbers_get(&x, i));
        largest = fmax(largest, fabs(numbers_get(&x, i)));
        numbers_expect("scaled", numbers_get(&y, i), 1.7 * (numbers_get(&before, i) - 0.3 * numbers_get(&x, i)),
                       numbers_tolerance(dtype));
    }
    numbers_expect("sum of products", dot, products, 1e-13);
    numbers_expect("sum of magnitudes", sum, magnitudes, 1e-13);
    numbers_expect("largest magnitude", most, largest, 0);
    numbers_free(&x);
    numbers_free(&y);
    numbers_free(&before);
}

TEST(test_flat_kernels) {
    static const int64_t counts[] = {0, 1, 15, 16, 17, 100, 1000};
    for (int i = 0; i < 14; i++) {
        check_flat(i % 2 == 0 ? LS_F32 : LS_F64, counts[i / 2]);
    }
    double sum = 0;
    const float big = 1e30F;
    assert_int_equal(kernels()->dot(NULL, LS_F32, 1, &big, &big, &sum), LS_OK);
    numbers_expect("a square beyond f32", sum, 1e60, 1e-6);
    const double some[] = {3, -4, NAN, 2};
    assert_int_equal(kernels()->largest_magnitude(NULL, LS_F64, 4, some, &sum), LS_OK);
    assert_true(isnan(sum));
    const float floats[] = {3, -INFINITY, 2, -NAN};
    assert_int_equal(kernels()->largest_magnitude(NULL, LS_F32, 3, floats, &sum), LS_OK);
    assert_true(isinf(sum));
    assert_int_equal(kernels()->largest_magnitude(NULL, LS_F32, 4, floats, &sum), LS_OK);
    assert_true(isnan(sum));
}

static void check_unscale(ls_dtype dtype, int64_t count) {
    const double bad[] = {(double)INFINITY, -(double)INFINITY, (double)NAN, dtype == LS_F32 ? 3e38 : 1.7e308};
    ls_tensor y = numbers_random(dtype, LS_SHAPE(count), 3, 0);
    ls_tensor before = numbers_random(dtype, LS_SHAPE(count), 3, 0);
    double found = 0;
    assert_int_equal(kernels()->unscale(NULL, dtype, count, 1.5, y.data, &found), LS_OK);
    assert_true(found == 0);
    for (int64_t i = 0; i < count; i++) {
        numbers_expect("unscaled", numbers_get(&y, i), 1.5 * numbers_get(&before, i), numbers_tolerance(dtype));
    }
    for (int64_t i = 0; i < count; i++) {
        numbers_set(&y, i, bad[i % 4]); /* the last number overflows when it is multiplied */
        found = 0;
        assert_int_equal(kernels()->unscale(NULL, dtype, count, 1.5, y.data, &found), LS_OK);
        assert_true(found == 1);
        numbers_set(&y, i, 0);
    }
    found = 1; /* found in another stretch */
    assert_int_equal(kernels()->unscale(NULL, dtype, count, 1, y.data, &found), LS_OK);
    assert_true(found == 1);
    numbers_free(&y);
    numbers_free(&before);
}

TEST(test_unscale) {
    static const int64_t counts[] = {0, 1, 15, 16, 17, 100};
    for (int i = 0; i < 12; i++) {
        check_unscale(i % 2 == 0 ? LS_F32 : LS_F64, counts[i / 2]);
    }
}

TEST(test_other_types_are_refused) {
    double sum = 0;
    int64_t x = 1;
    assert_int_equal(kernels()->axpy(NULL, LS_I64, 1, 1, &x, &x), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->scale(NULL, LS_I64, 1, 1, &x), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->unscale(NULL, LS_I64, 1, 1, &x, &sum), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->dot(NULL, LS_I64, 1, &x, &x, &sum), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->sum_of_magnitudes(NULL, LS_I64, 1, &x, &sum), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->largest_magnitude(NULL, LS_I64, 1, &x, &sum), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->sgd(NULL, &(ls_sgd_step){.dtype = LS_I64}), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->adam(NULL, &(ls_adam_step){.dtype = LS_BF16}), LS_ERR_UNSUPPORTED);
    expect_message("has no kernel for bf16");
    assert_int_equal(kernels()->rmsprop(NULL, &(ls_rmsprop_step){.dtype = LS_I64}), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->adagrad(NULL, &(ls_adagrad_step){.dtype = LS_I64}), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->adadelta(NULL, &(ls_adadelta_step){.dtype = LS_I64}), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->lion(NULL, &(ls_lion_step){.dtype = LS_I64}), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->lamb(NULL, &(ls_lamb_step){.dtype = LS_I64}), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->muon(NULL, &(ls_muon_step){.dtype = LS_I64}), LS_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_adam_without_gradient),
        cmocka_unit_test(test_rmsprop),
        cmocka_unit_test(test_adagrad),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_flat_kernels),
        cmocka_unit_test(test_unscale),
        cmocka_unit_test(test_other_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
