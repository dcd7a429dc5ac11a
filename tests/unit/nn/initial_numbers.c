/*
 * The numbers of initializers: their limits in every dtype, arguments that are refused, and far tails.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/allocator.h"
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <float.h>
#include <math.h>

#include <lockstep/nn.h>

static ls_scope *scope;

static int begin(void **state) {
    (void)state;
    ls_seed(11);
    scope = ls_scope_begin();
    return scope == NULL;
}

static int end(void **state) {
    (void)state;
    return ls_scope_end(scope) != LS_OK;
}

static void assert_within(const ls_tensor *tensor, double least, double most) {
    const ls_tensor *numbers = ls_to((ls_tensor *)tensor, LS_F64);
    for (int64_t i = 0; i < ls_numel(numbers); i++) {
        const double number = ((const double *)elements(numbers))[i];
        assert_true(number >= least && number <= most);
    }
}

/* Rounding to the dtype reaches neither the upper limit nor a number below the lower limit. */
TEST(test_uniform_numbers_keep_their_limits) {
    ls_tensor *t = ls_empty(LS_SHAPE(100000), LS_BF16);
    assert_int_equal(ls_nn_init_uniform(t, 1, 2), LS_OK);
    assert_within(t, 1, 2 - 0x1p-7);
    assert_true(ls_item(ls_max(t)) == 2 - 0x1p-7);
    assert_int_equal(ls_nn_init_uniform(t, -1.001, 1.001), LS_OK);
    assert_within(t, -1, 1);
    t = ls_empty(LS_SHAPE(100000), LS_F16);
    assert_int_equal(ls_nn_init_uniform(t, -2, -1), LS_OK);
    assert_within(t, -2, -1 - 0x1p-10);
    assert_int_equal(ls_nn_init_uniform(t, -1, 0), LS_OK);
    assert_within(t, -1, -0x1p-24);
    t = ls_empty(LS_SHAPE(1000), LS_F32);
    assert_int_equal(ls_nn_init_uniform(t, 0x1p24, 0x1p24 + 2), LS_OK);
    assert_within(t, 0x1p24, 0x1p24);
}

TEST(test_uniform_numbers_are_rounded_numbers_of_the_stream) {
    ls_tensor *t = ls_empty(LS_SHAPE(1000), LS_F32);
    const ls_random_state state = ls_random_get_state();
    assert_int_equal(ls_nn_init_uniform(t, -0.3, 0.7), LS_OK);
    const float *numbers = elements(t);
    for (uint64_t i = 0; i < 1000; i++) {
        const double number = -0.3 + (0.7 + 0.3) * ls_random_uniform(state.seed, state.stream, i);
        assert_true(numbers[i] == (float)number);
    }
}

TEST(test_wrong_limits_are_refused) {
    ls_tensor *t = ls_zeros(LS_SHAPE(4), LS_F32);
    const ls_random_state before = ls_random_get_state();
    const double uniform[][2] = {{NAN, 1},       {0, NAN},
                                 {2, 1},         {-INFINITY, 0},
                                 {0, INFINITY},  {-1.7e308, 1.7e308},
                                 {1e300, 2e300}, {1 + 1e-9, 1 + 2e-9},
                                 {1e300, 1e300}, {-1e39, -1e39}};
    for (size_t i = 0; i < sizeof uniform / sizeof *uniform; i++) {
        assert_int_equal(ls_nn_init_uniform(t, uniform[i][0], uniform[i][1]), LS_ERR_ARGUMENT);
        if (uniform[i][0] == -1.7e308) {
            expect_message("the difference of the limits -1.7e+308 and 1.7e+308 is too large for f64");
        }
    }
    const double normal[][2] = {{NAN, 1}, {INFINITY, 1}, {0, NAN}, {0, -1}, {0, INFINITY}};
    for (size_t i = 0; i < sizeof normal / sizeof *normal; i++) {
        assert_int_equal(ls_nn_init_normal(t, normal[i][0], normal[i][1]), LS_ERR_ARGUMENT);
    }
    ls_tensor *matrix = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    const double gains[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof gains / sizeof *gains; i++) {
        assert_int_equal(ls_nn_init_orthogonal(matrix, gains[i]), LS_ERR_ARGUMENT);
        expect_message("ls_nn_init_orthogonal: the gain ");
    }
    assert_within(matrix, 0, 0);
    assert_within(t, 0, 0);
    assert_int_equal(ls_random_get_state().stream, before.stream);
    assert_int_equal(ls_nn_init_uniform(t, 3, 3), LS_OK);
    assert_within(t, 3, 3);
    assert_int_equal(ls_nn_init_normal(t, 3, 0), LS_OK);
    assert_within(t, 3, 3);
}

TEST(test_equal_limits_are_numbers_of_the_dtype) {
    static const struct {
        ls_dtype dtype;
        double most;
    } cases[] = {{LS_F16, 65504}, {LS_BF16, 0x1.fep127}, {LS_F32, FLT_MAX}, {LS_F64, DBL_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_tensor *t = ls_zeros(LS_SHAPE(4), cases[i].dtype);
        for (int sign = -1; sign <= 1; sign += 2) {
            const double most = sign * cases[i].most, above = nextafter(most, sign > 0 ? HUGE_VAL : -HUGE_VAL);
            assert_int_equal(ls_nn_init_uniform(t, most, most), LS_OK);
            assert_true(ls_at(t, (const int64_t[]){0}) == most);
            assert_int_equal(ls_nn_init_uniform(t, above, above), LS_ERR_ARGUMENT);
            assert_true(ls_at(t, (const int64_t[]){0}) == most);
        }
    }
}

/* The square of the slope overflows, but the deviation is a number of f64. */
TEST(test_large_slopes) {
    ls_tensor *t = ls_zeros(LS_SHAPE(100, 50), LS_F64);
    const double slopes[] = {1e153, -1e154, 1e200, -1e300};
    for (size_t k = 0; k < sizeof slopes / sizeof *slopes; k++) {
        const double scale = fabs(slopes[k]);
        double sum = 0, largest = 0;
        assert_int_equal(ls_nn_init_kaiming_normal(t, slopes[k]), LS_OK);
        const double *numbers = elements(t);
        for (int i = 0; i < 5000; i++) {
            sum += numbers[i] * scale * numbers[i] * scale;
        }
        assert_true(fabs(sqrt(sum / 5000) - sqrt(2.0 / 50)) < 0.02);
        assert_int_equal(ls_nn_init_kaiming_uniform(t, slopes[k]), LS_OK);
        numbers = elements(t);
        for (int i = 0; i < 5000; i++) {
            largest = fmax(largest, fabs(numbers[i]) * scale);
        }
        assert_true(largest <= sqrt(6.0 / 50) * (1 + 1e-9) && largest > 0.99 * sqrt(6.0 / 50));
    }
}

/* Returns the mean and the variance of the normal distribution within [low, high], by the midpoint rule. */
static void moments_within(double low, double high, double *mean, double *variance) {
    enum { STEPS = 100000 };
    const double mode = high < 0 ? high : fmax(low, 0);
    double sums[3] = {0};
    for (int i = 0; i < STEPS; i++) {
        const double x = low + (high - low) * (i + 0.5) / STEPS;
        const double density = exp(-(x - mode) * (x + mode) / 2);
        sums[0] += density;
        sums[1] += density * (x - mode);
        sums[2] += density * (x - mode) * (x - mode);
    }
    const double distance = sums[1] / sums[0];
    *mean = mode + distance;
    *variance = sums[2] / sums[0] - distance * distance;
}

/* Intervals that a thousand numbers of the normal distribution often miss: tails, and narrow intervals. */
TEST(test_tails_of_truncated_normal_numbers) {
    enum { COUNT = 4000 };
    const double limits[][2] = {{3, INFINITY},     {4, 5},        {-5, -4}, {8, 8.001},       {100, 101}, {-1e-5, 2e-5},
                                {-INFINITY, -3.5}, {0.5, 0.5001}, {4.1, 6}, {-INFINITY, -4.1}};
    ls_tensor *t = ls_empty(LS_SHAPE(COUNT), LS_F64);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const double low = limits[i][0];
        const double high = limits[i][1];
        double mean;
        double variance;
        moments_within(fmax(low, -40), fmin(high, fmax(low, 0) + 40), &mean, &variance);
        assert_int_equal(ls_nn_init_truncated_normal(t, 0, 1, low, high), LS_OK);
        assert_within(t, low, high);
        const double error = ls_item(ls_mean(t)) - mean;
        assert_true(fabs(error) < 5 * sqrt(variance / COUNT));
        assert_true(fabs(ls_item(ls_var(t)) / variance - 1) < 0.25);
    }
}

TEST(test_truncated_normal_numbers_keep_their_limits) {
    ls_tensor *t = ls_empty(LS_SHAPE(100000), LS_BF16);
    assert_int_equal(ls_nn_init_truncated_normal(t, 0, 1, -1.001, 1.001), LS_OK);
    assert_within(t, -1, 1);
    t = ls_zeros(LS_SHAPE(2), LS_F32);
    const double wrong[][4] = {{NAN, 1, -1, 1}, {0, NAN, -1, 1}, {0, INFINITY, -1, 1},       {0, 0, -1, 1},
                               {0, 1, 2, -2},   {0, 1, NAN, 1},  {0, 1, 1 + 1e-9, 1 + 2e-9}, {0, 1e-300, 1e10, 2e10}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const double *of = wrong[i];
        assert_int_equal(ls_nn_init_truncated_normal(t, of[0], of[1], of[2], of[3]), LS_ERR_ARGUMENT);
    }
    assert_within(t, 0, 0);
}

TEST(test_truncated_normal_numbers_are_refused_with_the_reason) {
    ls_tensor *t = ls_zeros(LS_SHAPE(2), LS_F32);
    const char *const limits = "must be finite, the deviation 0 finite and positive, and the limit -1 below 1";
    expect_error(ls_nn_init_truncated_normal(t, 2, 0, -1, 1), LS_ERR_ARGUMENT, limits);
    expect_error(ls_nn_init_truncated_normal(t, NAN, 1, -1, 1), LS_ERR_ARGUMENT, "the mean nan must be finite");
    expect_error(ls_nn_init_truncated_normal(t, 0, 1e-300, 1e10, 2e10), LS_ERR_ARGUMENT, "is too far from the mean 0");
}

/* The error has the name of the function that the program called. */
TEST(test_wrong_gains_are_refused) {
    static const struct {
        ls_status (*initialize)(ls_tensor *tensor, double gain);
        const char *message;
    } calls[] = {
        {ls_nn_init_xavier_uniform, "ls_nn_init_xavier_uniform: the gain is "},
        {ls_nn_init_xavier_normal, "ls_nn_init_xavier_normal: the gain is "},
        {ls_nn_init_orthogonal, "ls_nn_init_orthogonal: the gain is "},
        {ls_nn_init_kaiming_uniform, "ls_nn_init_kaiming_uniform: the slope is "},
        {ls_nn_init_kaiming_normal, "ls_nn_init_kaiming_normal: the slope is "},
    };
    const double wrong[] = {NAN, INFINITY, -INFINITY, -1};
    ls_tensor *t = ls_zeros(LS_SHAPE(2, 2), LS_F32);
    const ls_random_state before = ls_random_get_state();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const int count = i < 2 ? 4 : 3; /* the other numbers may be negative */
        for (int j = 0; j < count; j++) {
            expect_error(calls[i].initialize(t, wrong[j]), LS_ERR_ARGUMENT, calls[i].message);
        }
    }
    assert_within(t, 0, 0);
    assert_int_equal(ls_random_get_state().stream, before.stream);
    assert_int_equal(ls_nn_init_kaiming_uniform(t, -1), LS_OK);
    assert_int_equal(ls_nn_init_orthogonal(t, 0), LS_OK);
    assert_within(t, 0, 0);
}

/* A layer that is created although an allocation failed has the documented initial values. */
TEST(test_initial_numbers_after_a_failed_allocation) {
    test_allocator allocator;
    bool complete = false;
    for (long call = 0; !complete; call++) {
        test_allocator_start(&allocator);
        atomic_store(&allocator.fail_once, call);
        ls_module *layer = ls_nn_multi_head_attention(4, 2, NULL);
        complete = atomic_load(&allocator.calls) <= call;
        atomic_store(&allocator.fail_once, -1);
        assert_true(layer != NULL || ls_error_status() == LS_ERR_MEMORY);
        if (layer != NULL) {
            ls_scope *inner = ls_scope_begin();
            assert_within(ls_module_find(layer, "out_proj.bias"), 0, 0);
            assert_int_equal(ls_scope_end(inner), LS_OK);
        }
        ls_module_free(layer);
        assert_int_equal(test_allocator_stop(&allocator), 0);
    }
}

int main(void) {
#define NUMBERS_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        NUMBERS_TEST(test_uniform_numbers_keep_their_limits),
        NUMBERS_TEST(test_uniform_numbers_are_rounded_numbers_of_the_stream),
        NUMBERS_TEST(test_wrong_limits_are_refused),
        NUMBERS_TEST(test_equal_limits_are_numbers_of_the_dtype),
        NUMBERS_TEST(test_large_slopes),
        NUMBERS_TEST(test_tails_of_truncated_normal_numbers),
        NUMBERS_TEST(test_truncated_normal_numbers_keep_their_limits),
        NUMBERS_TEST(test_truncated_normal_numbers_are_refused_with_the_reason),
        NUMBERS_TEST(test_wrong_gains_are_refused),
        cmocka_unit_test(test_initial_numbers_after_a_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
