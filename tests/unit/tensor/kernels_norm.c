/*
 * Kernels of layer and batch normalization compared with plain formulas in double precision.
 *
 * devices: cpu cuda
 */
#include "tests/support/numbers.h"

#include "base/status.h"
#include "tests/support/kernels.h"

static const double epsilon = 1e-5;

/* Mean and 1/sqrt(variance + epsilon) of `count` groups. Each group consists of runs of `run` contiguous numbers,
 * `step` apart. */
typedef struct moments {
    double mean, variance, rstd;
} moments;

static moments moments_of(const ls_tensor *x, int64_t first, int64_t groups, int64_t step, int64_t run) {
    moments m = {0, 0, 0};
    for (int64_t i = 0; i < groups * run; i++) {
        m.mean += numbers_get(x, first + i / run * step + i % run) / (double)(groups * run);
    }
    for (int64_t i = 0; i < groups * run; i++) {
        const double d = numbers_get(x, first + i / run * step + i % run) - m.mean;
        m.variance += d * d / (double)(groups * run);
    }
    m.rstd = 1 / sqrt(m.variance + epsilon);
    return m;
}

/* Computes layer or batch normalization for one group, including its gradient. */
typedef struct group {
    int64_t first, groups, step, run;
} group;

static int64_t group_at(group s, int64_t i) {
    return s.first + i / s.run * s.step + i % s.run;
}

static void free_all(ls_tensor **tensors, size_t count) {
    for (size_t i = 0; i < count; i++) {
        numbers_free(tensors[i]);
    }
}

static void check_layer_norm(ls_dtype dtype, int64_t rows, int64_t width, bool affine) {
    ls_tensor x = numbers_random(dtype, LS_SHAPE(rows, width), 1, 3);
    ls_tensor g = numbers_random(dtype, LS_SHAPE(rows, width), 2, 0);
    ls_tensor weight = numbers_random(dtype, LS_SHAPE(width), 3, 1);
    ls_tensor bias = numbers_random(dtype, LS_SHAPE(width), 4, 0);
    ls_tensor d_weight = numbers_random(dtype, LS_SHAPE(width), 5, 0); /* not zero: it accumulates */
    ls_tensor d_bias = numbers_random(dtype, LS_SHAPE(width), 6, 0);
    const ls_tensor d_weight_before = numbers_random(dtype, LS_SHAPE(width), 5, 0);
    const ls_tensor d_bias_before = numbers_random(dtype, LS_SHAPE(width), 6, 0);
    ls_tensor y = numbers_new(dtype, LS_SHAPE(rows, width));
    ls_tensor dx = numbers_new(dtype, LS_SHAPE(rows, width));
    ls_tensor mean = numbers_new(dtype, LS_SHAPE(rows));
    ls_tensor rstd = numbers_new(dtype, LS_SHAPE(rows));
    assert_int_equal(kernels()->layer_norm(NULL, &y, &mean, &rstd, &x, width, affine ? &weight : NULL,
                                           affine ? &bias : NULL, epsilon),
                     LS_OK);
    assert_int_equal(kernels()->layer_norm_backward(NULL, &dx, affine ? &d_weight : NULL, affine ? &d_bias : NULL, &g,
                                                    &x, width, affine ? &weight : NULL, &mean, &rstd),
                     LS_OK);
    /* A row with one number has variance 0, so its rstd is large, and its gradient consists of rounding errors. */
    const double tolerance = numbers_tolerance(dtype) * (width == 1 ? 1000 : 10);
    for (int64_t r = 0; r < rows; r++) {
        const moments m = moments_of(&x, r * width, 1, 0, width);
        double sum = 0;
        double projection = 0;
        for (int64_t i = 0; i < width; i++) {
            const double gw = numbers_get(&g, r * width + i) * (affine ? numbers_get(&weight, i) : 1);
            sum += gw / (double)width;
            projection += gw * (numbers_get(&x, r * width + i) - m.mean) * m.rstd / (double)width;
        }
        numbers_expect("mean", numbers_get(&mean, r), m.mean, tolerance);
        numbers_expect("rstd", numbers_get(&rstd, r), m.rstd, tolerance);
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = r * width + i;
            const double hat = (numbers_get(&x, at) - m.mean) * m.rstd;
            const double w = affine ? numbers_get(&weight, i) : 1;
            numbers_expect("y", numbers_get(&y, at), hat * w + (affine ? numbers_get(&bias, i) : 0), tolerance);
            numbers_expect("dx", numbers_get(&dx, at), m.rstd * (numbers_get(&g, at) * w - sum - hat * projection),
                           tolerance);
        }
    }
    for (int64_t i = 0; affine && i < width; i++) {
        double w = numbers_get(&d_weight_before, i);
        double b = numbers_get(&d_bias_before, i);
        for (int64_t r = 0; r < rows; r++) {
            const moments m = moments_of(&x, r * width, 1, 0, width);
            w += numbers_get(&g, r * width + i) * (numbers_get(&x, r * width + i) - m.mean) * m.rstd;
            b += numbers_get(&g, r * width + i);
        }
        numbers_expect("d_weight", numbers_get(&d_weight, i), w, tolerance * 4);
        numbers_expect("d_bias", numbers_get(&d_bias, i), b, tolerance * 4);
    }
    ls_tensor before[] = {d_weight_before, d_bias_before};
    ls_tensor *all[] = {&x, &g, &weight, &bias, &d_weight, &d_bias, &y, &dx, &mean, &rstd, &before[0], &before[1]};
    free_all(all, sizeof all / sizeof all[0]);
}

TEST(test_layer_norm) {
    static const int64_t widths[] = {1, 2, 15, 16, 17, 64, 100};
    for (int i = 0; i < 7 * 4; i++) {
        check_layer_norm(i % 2 == 0 ? LS_F32 : LS_F64, 1 + i % 5, widths[i / 4], i / 2 % 2 == 0);
    }
}

static void check_batch_norm(ls_dtype dtype, ls_shape shape, bool affine, bool training) {
    const int64_t channels = shape.size[1];
    ls_tensor x = numbers_random(dtype, shape, 1, 3);
    ls_tensor g = numbers_random(dtype, shape, 2, 0);
    ls_tensor weight = numbers_random(dtype, LS_SHAPE(channels), 3, 1);
    ls_tensor bias = numbers_random(dtype, LS_SHAPE(channels), 4, 0);
    ls_tensor d_weight = numbers_random(dtype, LS_SHAPE(channels), 5, 0);
    ls_tensor d_bias = numbers_random(dtype, LS_SHAPE(channels), 6, 0);
    ls_tensor d_weight_before = numbers_random(dtype, LS_SHAPE(channels), 5, 0);
    ls_tensor d_bias_before = numbers_random(dtype, LS_SHAPE(channels), 6, 0);
    ls_tensor y = numbers_new(dtype, shape);
    ls_tensor dx = numbers_new(dtype, shape);
    ls_tensor mean = numbers_new(dtype, LS_SHAPE(channels));
    ls_tensor variance = numbers_new(dtype, LS_SHAPE(channels));
    ls_tensor rstd = numbers_new(dtype, LS_SHAPE(channels));
    const double tolerance = numbers_tolerance(dtype) * 10;
    const int64_t inner = x.stride[1];
    const int64_t samples = x.count / channels;
    assert_int_equal(kernels()->batch_norm_statistics(NULL, &mean, &variance, &x), LS_OK);
    for (int64_t c = 0; c < channels; c++) {
        const moments m = moments_of(&x, c * inner, shape.size[0], channels * inner, inner);
        numbers_expect("mean", numbers_get(&mean, c), m.mean, tolerance);
        numbers_expect("variance", numbers_get(&variance, c), m.variance, tolerance);
        numbers_set(&mean, c, training ? m.mean : 2.5 + 0.1 * (double)c); /* running ones differ */
        numbers_set(&rstd, c, training ? m.rstd : 0.7);
    }
    assert_int_equal(kernels()->batch_norm(NULL, &y, &x, &mean, &rstd, affine ? &weight : NULL, affine ? &bias : NULL),
                     LS_OK);
    assert_int_equal(kernels()->batch_norm_backward(NULL, &dx, affine ? &d_weight : NULL, affine ? &d_bias : NULL, &g,
                                                    &x, &mean, &rstd, affine ? &weight : NULL, training),
                     LS_OK);
    for (int64_t c = 0; c < channels; c++) {
        const group s = {c * inner, shape.size[0], channels * inner, inner};
        const double w = affine ? numbers_get(&weight, c) : 1;
        const double factor = numbers_get(&rstd, c);
        double sum = 0;
        double projection = 0;
        for (int64_t i = 0; i < samples; i++) {
            const int64_t at = group_at(s, i);
            sum += numbers_get(&g, at);
            projection += numbers_get(&g, at) * (numbers_get(&x, at) - numbers_get(&mean, c)) * factor;
        }
        for (int64_t i = 0; i < samples; i++) {
            const int64_t at = group_at(s, i);
            const double hat = (numbers_get(&x, at) - numbers_get(&mean, c)) * factor;
            const double correction = training ? (sum + hat * projection) / (double)samples : 0;
            numbers_expect("y", numbers_get(&y, at), hat * w + (affine ? numbers_get(&bias, c) : 0), tolerance);
            numbers_expect("dx", numbers_get(&dx, at), w * factor * (numbers_get(&g, at) - correction), tolerance);
        }
        const double dw = numbers_get(&d_weight_before, c) + (affine ? projection : 0);
        const double db = numbers_get(&d_bias_before, c) + (affine ? sum : 0);
        numbers_expect("d_weight", numbers_get(&d_weight, c), dw, tolerance);
        numbers_expect("d_bias", numbers_get(&d_bias, c), db, tolerance);
    }
    ls_tensor *all[] = {&x, &g,  &weight, &bias,     &d_weight, &d_bias, &d_weight_before, &d_bias_before,
                        &y, &dx, &mean,   &variance, &rstd};
    free_all(all, sizeof all / sizeof all[0]);
}

TEST(test_batch_norm) {
    const ls_shape shapes[] = {LS_SHAPE(2, 1),   LS_SHAPE(8, 5),     LS_SHAPE(16, 64),
                               LS_SHAPE(9, 130), LS_SHAPE(4, 3, 20), LS_SHAPE(2, 70, 3, 2)};
    for (int i = 0; i < 6 * 8; i++) {
        check_batch_norm(i % 2 == 0 ? LS_F32 : LS_F64, shapes[i / 8], i / 2 % 2 == 0, i / 4 % 2 == 0);
    }
}

/* For numbers far from zero, the variance keeps its precision. */
TEST(test_variance_far_from_zero) {
    ls_tensor x = numbers_random(LS_F32, LS_SHAPE(1000, 2), 1, 1000);
    ls_tensor mean = numbers_new(LS_F32, LS_SHAPE(2));
    ls_tensor variance = numbers_new(LS_F32, LS_SHAPE(2));
    assert_int_equal(kernels()->batch_norm_statistics(NULL, &mean, &variance, &x), LS_OK);
    for (int c = 0; c < 2; c++) {
        const moments m = moments_of(&x, c, 1000, 2, 1);
        numbers_expect("variance", numbers_get(&variance, c), m.variance, 1e-6);
    }
    ls_tensor *all[] = {&x, &mean, &variance};
    free_all(all, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_batch_norm),
        cmocka_unit_test(test_variance_far_from_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
