/*
 * The errors of the vectorized f32 functions relative to libm in double precision, over all f32 numbers, in units in
 * the last place of the true result, as promised by exponential.h.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <math.h>

#include "base/float16.h"
#include "tensor/device/cpu/cpu_kernels.h"

enum { PIECE = 4096, STEP = 4001 /* every STEP-th number is tested; STEP is a prime */ };

typedef struct accuracy {
    const char *name;
    ls_map_kernel *kernel;
    double (*truth)(double x);
    double from, to; /* of x */
    double units;
} accuracy;

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static double gelu(double x) {
    return x * erfc(-x * 0.70710678118654752440) / 2;
}

/* For large arguments, the results are tiny, and have only the few digits of a subnormal factor, or of x^2. */
static const accuracy cases[] = {
    {"exp", ls_cpu_exp, exp, -INFINITY, INFINITY, 1.5},    {"sigmoid", ls_cpu_sigmoid, sigmoid, -INFINITY, INFINITY, 3},
    {"tanh", ls_cpu_tanh, tanh, -INFINITY, INFINITY, 2},   {"silu", ls_cpu_silu, silu, -87, INFINITY, 4},
    {"silu", ls_cpu_silu, silu, -INFINITY, INFINITY, 100}, {"gelu", ls_cpu_gelu, gelu, -6, INFINITY, 6},
    {"gelu", ls_cpu_gelu, gelu, -INFINITY, INFINITY, 14},
};

static double unit_of(double truth) {
    int exponent = 0;
    (void)frexp(truth, &exponent);
    return ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
}

/* Returns the difference between a result and the true value in units in the last place. Results out of range must
 * be infinite. */
static double distance(float is, double truth) {
    if (isnan(truth) || isnan(is)) {
        return isnan(truth) && isnan(is) ? 0 : INFINITY;
    }
    if (fabs(truth) >= 0x1.ffffffp127) {
        return (double)is == (truth > 0 ? INFINITY : -INFINITY) ? 0 : INFINITY;
    }
    return fabs((double)is - truth) / unit_of(truth);
}

static void apply(ls_map_kernel *kernel, float *x, float *y, int64_t count, int64_t step) {
    const ls_tensor from = {
        .data = x, .ndim = 1, .size = {count}, .stride = {step}, .count = count, .contiguous = step == 1};
    ls_tensor to = {.data = y, .ndim = 1, .size = {count}, .stride = {1}, .count = count, .contiguous = true};
    assert_int_equal(kernel(NULL, &to, (const ls_tensor *const[]){&from}, NULL), LS_OK);
}

static void check_case(const accuracy *c) {
    static float x[PIECE], y[PIECE];
    double worst = 0;
    float at = 0;
    uint64_t bits = 0;
    while (bits < UINT32_MAX) {
        int64_t count = 0;
        for (; count < PIECE && bits < UINT32_MAX; bits += STEP) {
            const float number = ls_float_of_bits((uint32_t)bits);
            if ((double)number >= c->from && (double)number <= c->to) {
                x[count++] = number;
            }
        }
        apply(c->kernel, x, y, count, 1);
        for (int64_t i = 0; i < count; i++) {
            const double units = distance(y[i], c->truth((double)x[i]));
            at = units > worst ? x[i] : at;
            worst = fmax(worst, units);
        }
    }
    print_message("%s from %g on is up to %.2f units away, at %g\n", c->name, c->from, worst, (double)at);
    assert_true(worst < c->units);
}

TEST(test_accuracy) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case(&cases[i]);
    }
}

/* Returns the kernel's result for one number. It must not depend on neighbors in memory. */
static float one(ls_map_kernel *kernel, float number) {
    float x[40], y[2][20];
    for (int i = 0; i < 40; i++) {
        x[i] = number;
    }
    apply(kernel, x, y[0], 20, 1);
    apply(kernel, x, y[1], 20, 2);
    for (int i = 0; i < 20; i++) {
        assert_true(memcmp(&y[0][i], &y[0][0], sizeof(float)) == 0 || isnan(number)); /* NaN has two signs */
        assert_true(memcmp(&y[1][i], &y[0][0], sizeof(float)) == 0 || isnan(number));
    }
    return y[0][0];
}

TEST(test_edges) {
    ls_map_kernel *const all[] = {ls_cpu_exp, ls_cpu_sigmoid, ls_cpu_tanh, ls_cpu_silu, ls_cpu_gelu};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_true(isnan(one(all[i], NAN)));
        assert_true(isnan(one(all[i], -NAN)));
    }
    assert_true(one(ls_cpu_exp, 0) == 1 && one(ls_cpu_exp, -0.0F) == 1);
    assert_true(one(ls_cpu_exp, INFINITY) == INFINITY && one(ls_cpu_exp, -INFINITY) == 0);
    assert_true(one(ls_cpu_exp, -103) == 0x1.8p-149F || one(ls_cpu_exp, -103) == 0x1p-149F); /* subnormal */
    assert_true(one(ls_cpu_sigmoid, INFINITY) == 1 && one(ls_cpu_sigmoid, -INFINITY) == 0);
    assert_true(one(ls_cpu_sigmoid, 0) == 0.5F);
    assert_true(one(ls_cpu_tanh, INFINITY) == 1 && one(ls_cpu_tanh, -INFINITY) == -1);
    assert_true(one(ls_cpu_tanh, 0) == 0 && signbit(one(ls_cpu_tanh, -0.0F)));
    assert_true(one(ls_cpu_tanh, 0x1p-149F) == 0x1p-149F && one(ls_cpu_tanh, -0x1p-140F) == -0x1p-140F);
    assert_true(one(ls_cpu_silu, INFINITY) == INFINITY && one(ls_cpu_silu, -0x1p127F) == 0);
    assert_true(one(ls_cpu_gelu, INFINITY) == INFINITY && one(ls_cpu_gelu, -0x1p127F) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accuracy), cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
