/*
 * Kernels of random numbers: known values, independence of size, ranges, moments; dropout.
 *
 * devices: cpu cuda
 */
#include "tests/support/arrays.h"

#include "base/random.h"
#include "tests/support/kernels.h"

static const ls_random_state state_of_tests = {.seed = 42, .stream = 7};

static array vector(ls_dtype dtype, int64_t count) {
    return array_new(dtype, 1, &count, ARRAY_DENSE);
}

static double at(const array *a, int64_t i) {
    return array_get(&a->tensor, &a->tensor, i);
}

/* Philox 4x32-10 for an all-zero counter and key, as published with Random123. */
TEST(test_known_values) {
    array uniform = vector(LS_F64, 2);
    const ls_random_state zero = {0, 0};
    assert_int_equal(kernels()->random_uniform(NULL, &uniform.tensor, zero, 0, 1), LS_OK);
    const uint64_t first = 0x6627e8d5e169c58dU;
    const uint64_t second = 0xbc57ac4c9b00dbd8U;
    assert_true(at(&uniform, 0) == (double)(first >> 11) * 0x1p-53);
    assert_true(at(&uniform, 1) == (double)(second >> 11) * 0x1p-53);
    array_free(&uniform);
}

/* Element i is number i of the stream for any size: whole pieces, odd remainders and single elements. */
TEST(test_elements_are_numbers_of_the_stream) {
    const int64_t counts[] = {0, 1, 2, 3, 255, 256, 257, 1000};
    const ls_random_state s = state_of_tests;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        array uniform = vector(LS_F64, counts[c]);
        array normal = vector(LS_F32, counts[c]);
        array integer = vector(LS_I64, counts[c]);
        assert_int_equal(kernels()->random_uniform(NULL, &uniform.tensor, s, -2, 3), LS_OK);
        assert_int_equal(kernels()->random_normal(NULL, &normal.tensor, s, 1, 0.5), LS_OK);
        assert_int_equal(kernels()->random_integer(NULL, &integer.tensor, s, -5, 20), LS_OK);
        for (int64_t i = 0; i < counts[c]; i++) {
            const uint64_t index = (uint64_t)i;
            assert_true(at(&uniform, i) == -2 + 5 * ls_random_uniform(s.seed, s.stream, index));
            assert_true(at(&normal, i) == (double)(float)(1 + 0.5 * ls_random_normal(s.seed, s.stream, index)));
            assert_true(at(&integer, i) == (double)ls_random_below(s.seed, s.stream, index, 25) - 5);
        }
        array_free(&uniform);
        array_free(&normal);
        array_free(&integer);
    }
}

TEST(test_ranges_and_moments) {
    enum { COUNT = 200000 };
    array uniform = vector(LS_F32, COUNT);
    array normal = vector(LS_F64, COUNT);
    array integer = vector(LS_I32, COUNT);
    assert_int_equal(kernels()->random_uniform(NULL, &uniform.tensor, state_of_tests, 0, 1), LS_OK);
    assert_int_equal(kernels()->random_normal(NULL, &normal.tensor, state_of_tests, 0, 1), LS_OK);
    assert_int_equal(kernels()->random_integer(NULL, &integer.tensor, state_of_tests, 3, 8), LS_OK);
    double sums[2] = {0};
    double squares[2] = {0};
    double fourth = 0;
    int counts[8] = {0};
    for (int64_t i = 0; i < COUNT; i++) {
        const double u = at(&uniform, i);
        const double z = at(&normal, i);
        assert_true(u >= 0 && u < 1);
        assert_true(at(&integer, i) >= 3 && at(&integer, i) < 8);
        counts[(int)at(&integer, i)]++;
        sums[0] += u;
        squares[0] += u * u;
        sums[1] += z;
        squares[1] += z * z;
        fourth += z * z * z * z;
    }
    /* Each value is within about five standard deviations of its expectation. */
    assert_true(fabs(sums[0] / COUNT - 0.5) < 0.0033);
    assert_true(fabs(squares[0] / COUNT - 1 / 3.0) < 0.0034);
    assert_true(fabs(sums[1] / COUNT) < 0.0112);
    assert_true(fabs(squares[1] / COUNT - 1) < 0.0159);
    assert_true(fabs(fourth / COUNT - 3) < 0.11);
    for (int i = 3; i < 8; i++) {
        assert_true(abs(counts[i] - COUNT / 5) < 900);
    }
    array_free(&uniform);
    array_free(&normal);
    array_free(&integer);
}

/* In f32, many numbers near the upper limit would be rounded to it, but no number may reach it. */
TEST(test_uniform_never_reaches_its_end) {
    array narrow = vector(LS_F32, 5000);
    assert_int_equal(kernels()->random_uniform(NULL, &narrow.tensor, state_of_tests, 1, 1 + 0x1p-22), LS_OK);
    for (int64_t i = 0; i < 5000; i++) {
        assert_true(at(&narrow, i) >= 1 && at(&narrow, i) < 1 + 0x1p-22);
    }
    assert_int_equal(kernels()->random_uniform(NULL, &narrow.tensor, state_of_tests, 2, 2), LS_OK);
    assert_true(at(&narrow, 4999) == 2);
    array_free(&narrow);
}

TEST(test_integers_of_every_range) {
    array wide = vector(LS_I64, 1000);
    assert_int_equal(kernels()->random_integer(NULL, &wide.tensor, state_of_tests, INT64_MIN, INT64_MAX), LS_OK);
    int negative = 0;
    for (int64_t i = 0; i < 1000; i++) {
        negative += at(&wide, i) < 0;
    }
    assert_true(negative > 400 && negative < 600);
    array single = vector(LS_U8, 100);
    assert_int_equal(kernels()->random_integer(NULL, &single.tensor, state_of_tests, 9, 10), LS_OK);
    assert_true(at(&single, 0) == 9 && at(&single, 99) == 9);
    array_free(&wide);
    array_free(&single);
}

static void check_dropout(ls_dtype dtype, int64_t count, double p) {
    array x = vector(dtype, count);
    array y = vector(dtype, count);
    array longer = vector(dtype, count + 300);
    assert_int_equal(kernels()->fill(NULL, &x.tensor, 3), LS_OK);
    assert_int_equal(kernels()->fill(NULL, &longer.tensor, 3), LS_OK);
    assert_int_equal(kernels()->dropout(NULL, &y.tensor, &x.tensor, state_of_tests, 0, p), LS_OK);
    assert_int_equal(kernels()->dropout(NULL, &longer.tensor, &longer.tensor, state_of_tests, 0, p), LS_OK);
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const bool lives = at(&y, i) != 0;
        array_expect("dropout", at(&y, i), lives ? 3 / (1 - p) : 0, 1e-6);
        array_expect("dropout of a longer one", at(&longer, i), at(&y, i), 0);
        kept += lives;
    }
    assert_true(fabs((double)kept - (1 - p) * (double)count) <= 5 * sqrt((double)count * p * (1 - p)));
    array_free(&x);
    array_free(&y);
    array_free(&longer);
}

TEST(test_dropout) {
    const double probabilities[] = {0, 0.1, 0.5, 0.9, 1};
    for (int i = 0; i < 5; i++) {
        check_dropout(LS_F32, 10000, probabilities[i]);
        check_dropout(LS_F64, 777, probabilities[i]);
        check_dropout(LS_F32, 1, probabilities[i]);
    }
    array x = vector(LS_I32, 3);
    assert_int_equal(kernels()->dropout(NULL, &x.tensor, &x.tensor, state_of_tests, 0, 0.5), LS_ERR_UNSUPPORTED);
    array_free(&x);
}

/* Dropped elements are 0 even if they were NaN. */
TEST(test_dropout_of_nan) {
    array x = vector(LS_F32, 1000);
    assert_int_equal(kernels()->fill(NULL, &x.tensor, NAN), LS_OK);
    assert_int_equal(kernels()->dropout(NULL, &x.tensor, &x.tensor, state_of_tests, 0, 0.5), LS_OK);
    int zeros = 0;
    for (int64_t i = 0; i < 1000; i++) {
        zeros += at(&x, i) == 0;
    }
    assert_true(zeros > 400 && zeros < 600);
    array_free(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_elements_are_numbers_of_the_stream),
        cmocka_unit_test(test_ranges_and_moments),
        cmocka_unit_test(test_uniform_never_reaches_its_end),
        cmocka_unit_test(test_integers_of_every_range),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_dropout_of_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
