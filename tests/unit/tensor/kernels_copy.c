/*
 * Kernels for copies, casts, fills and counting: all dtypes, any strides.
 *
 * devices: cpu cuda
 */
#include "tests/support/arrays.h"

#include "tests/support/kernels.h"

/* Fills the array with integers small enough for every dtype. */
static void fill_small(array *a) {
    for (int64_t i = 0; i < a->tensor.count; i++) {
        array_set(&a->tensor, i, (double)array_dice(a->tensor.dtype == LS_BOOL ? 2 : 100));
    }
}

static array random_array(ls_dtype dtype, int ndim, const int64_t *size) {
    return array_new(dtype, ndim, size, (array_layout)array_dice(ARRAY_LAYOUTS));
}

static void expect_equal(const char *what, const ls_tensor *is, const ls_tensor *want) {
    for (int64_t i = 0; i < is->count; i++) {
        const double number = array_get(want, is, i);
        array_expect(what, array_get(is, is, i), is->dtype == LS_BOOL ? number != 0 : number, 0);
    }
}

TEST(test_copy_and_cast_keep_small_integers) {
    for (int turn = 0; turn < 3000; turn++) {
        int64_t size[LS_MAX_DIMS];
        int64_t part[LS_MAX_DIMS];
        const int ndim = array_random_shape(size);
        const int part_ndim = array_random_part(ndim, size, part);
        array y = random_array((ls_dtype)(turn % LS_DTYPE_COUNT), ndim, size);
        array x = random_array((ls_dtype)(turn / LS_DTYPE_COUNT % LS_DTYPE_COUNT), part_ndim, part);
        fill_small(&x);
        if (x.tensor.dtype == y.tensor.dtype && turn % 3 != 0) {
            assert_int_equal(kernels()->copy(NULL, &y.tensor, &x.tensor), LS_OK);
        } else {
            assert_int_equal(kernels()->cast(NULL, &y.tensor, &x.tensor), LS_OK);
        }
        expect_equal("copy", &y.tensor, &x.tensor);
        array_free(&y);
        array_free(&x);
    }
}

/* Sizes larger than a strip, but not a multiple of it. */
TEST(test_transposed_copies) {
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_F16, LS_U8};
    const int64_t size[] = {3, 50, 37};
    for (int d = 0; d < 4; d++) {
        array x = array_new(dtypes[d], 3, size, ARRAY_DENSE);
        fill_small(&x);
        ls_tensor turned = x.tensor;
        turned.contiguous = false;
        for (int i = 0; i < 3; i++) {
            turned.size[i] = x.tensor.size[2 - i];
            turned.stride[i] = x.tensor.stride[2 - i];
        }
        array y = array_new(dtypes[d], 3, turned.size, ARRAY_DENSE);
        assert_int_equal(kernels()->copy(NULL, &y.tensor, &turned), LS_OK);
        expect_equal("transposed copy", &y.tensor, &turned);
        array z = array_new(dtypes[d], 3, size, ARRAY_STEPPED);
        assert_int_equal(kernels()->copy(NULL, &z.tensor, &x.tensor), LS_OK);
        expect_equal("stepped copy", &z.tensor, &x.tensor);
        array_free(&x);
        array_free(&y);
        array_free(&z);
    }
}

static double cast_number(ls_dtype to, ls_dtype from, double value) {
    array x = array_new(from, 0, NULL, ARRAY_DENSE);
    array y = array_new(to, 0, NULL, ARRAY_DENSE);
    array_set(&x.tensor, 0, value);
    assert_int_equal(kernels()->cast(NULL, &y.tensor, &x.tensor), LS_OK);
    const double is = array_get(&y.tensor, &y.tensor, 0);
    array_free(&x);
    array_free(&y);
    return is;
}

TEST(test_casts_round_cut_and_hold) {
    static const struct {
        ls_dtype to, from;
        double value, want;
    } cases[] = {
        {LS_F32, LS_F64, 0.1, (double)0.1F},
        {LS_F32, LS_F64, 1e300, INFINITY},
        {LS_F32, LS_I64, 16777217, 16777216}, /* to even */
        {LS_F64, LS_I64, 16777217, 16777217},
        {LS_BF16, LS_F32, 1.00390625, 1}, /* halfway, to even */
        {LS_BF16, LS_F32, 1.01171875, 1.015625},
        {LS_BF16, LS_F64, NAN, NAN},
        {LS_F16, LS_F32, 65504, 65504},
        {LS_F16, LS_F32, 65520, INFINITY},
        {LS_F16, LS_F64, 1.00048828125, 1},                             /* halfway, to even */
        {LS_F16, LS_F32, 5.9604644775390625e-8, 5.9604644775390625e-8}, /* the smallest */
        {LS_F16, LS_I64, -3, -3},
        {LS_F32, LS_F16, 0.333251953125, 0.333251953125},
        {LS_I64, LS_F32, 2.9, 2},
        {LS_I64, LS_F64, -2.9, -2},
        {LS_I64, LS_F64, 1e300, 9223372036854775807.0},
        {LS_I64, LS_F32, -INFINITY, -9223372036854775808.0},
        {LS_I64, LS_F64, NAN, 0},
        {LS_I32, LS_F32, 3e9, 2147483647},
        {LS_I32, LS_F64, -2147483648.5, -2147483648.0},
        {LS_I32, LS_F64, -1e10, -2147483648.0},
        {LS_I32, LS_F16, -7.5, -7},
        {LS_I32, LS_F32, NAN, 0},
        {LS_U8, LS_F32, 255.9, 255},
        {LS_U8, LS_F32, 256, 255},
        {LS_U8, LS_F64, -0.9, 0},
        {LS_U8, LS_F64, -5, 0},
        {LS_U8, LS_BF16, 200, 200},
        {LS_U8, LS_I64, 258, 2}, /* integers wrap */
        {LS_I32, LS_I64, 4294967297.0, 1},
        {LS_BOOL, LS_F32, 0.25, 1},
        {LS_BOOL, LS_F64, NAN, 1},
        {LS_BOOL, LS_F16, -0.0, 0},
        {LS_BOOL, LS_I64, 256, 1},
        {LS_F32, LS_BOOL, 1, 1},
        {LS_F32, LS_U8, 255, 255},
        {LS_I64, LS_BOOL, 2, 1}, /* any value other than 0 becomes 1 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char what[64];
        snprintf(what, sizeof what, "%g from %s to %s", cases[i].value, ls_dtype_name(cases[i].from),
                 ls_dtype_name(cases[i].to));
        array_expect(what, cast_number(cases[i].to, cases[i].from, cases[i].value), cases[i].want, 0);
    }
}

/* Long enough for the vectorized loops, whose results must equal the results of the scalar loops. */
TEST(test_long_casts_are_those_of_single_numbers) {
    const int64_t size[] = {1000};
    for (int turn = 0; turn < LS_DTYPE_COUNT; turn++) {
        const ls_dtype to = (ls_dtype)turn;
        array x = array_new(LS_F32, 1, size, ARRAY_DENSE);
        array y = array_new(to, 1, size, ARRAY_DENSE);
        for (int64_t i = 0; i < 1000; i++) {
            const float special[] = {NAN, INFINITY, -INFINITY, 1e30F, 0.5F, -0.5F};
            const double plain = ls_random_normal(1, 2, (uint64_t)i) * pow(10, (double)array_dice(12) - 6);
            array_set(&x.tensor, i, i % 50 < 6 ? (double)special[i % 50] : plain);
        }
        assert_int_equal(kernels()->cast(NULL, &y.tensor, &x.tensor), LS_OK);
        for (int64_t i = 0; i < 1000; i++) {
            const double want = cast_number(to, LS_F32, array_get(&x.tensor, &x.tensor, i));
            array_expect(ls_dtype_name(to), array_get(&y.tensor, &y.tensor, i), want, 0);
        }
        array_free(&x);
        array_free(&y);
    }
}

TEST(test_fill_and_count) {
    const double values[] = {0, 1, 3, -0.0, 2.75};
    for (int turn = 0; turn < 800; turn++) {
        int64_t size[LS_MAX_DIMS];
        const int ndim = array_random_shape(size);
        const ls_dtype dtype = (ls_dtype)(turn % LS_DTYPE_COUNT);
        const double value = values[turn / LS_DTYPE_COUNT % 5];
        array y = random_array(dtype, ndim, size);
        array dense = array_new(dtype, ndim, size, ARRAY_DENSE);
        assert_int_equal(kernels()->fill(NULL, &y.tensor, value), LS_OK);
        assert_int_equal(kernels()->count_up(NULL, &dense.tensor), LS_OK);
        const double held = dtype == LS_BOOL ? value != 0 : ls_dtype_is_floating(dtype) ? value : trunc(value);
        for (int64_t i = 0; i < y.tensor.count; i++) {
            const double is = array_get(&y.tensor, &y.tensor, i);
            array_expect("fill", is, held, 0);
            assert_true(signbit(is) == (signbit(value) != 0 && ls_dtype_is_floating(dtype)));
            const double number = dtype == LS_BOOL ? i != 0 : dtype == LS_U8 ? (double)(i % 256) : (double)i;
            array_expect("count_up", array_get(&dense.tensor, &dense.tensor, i), number,
                         dtype == LS_BF16 ? 4e-3 : 5e-4);
        }
        array_free(&y);
        array_free(&dense);
    }
}

/* Elements in the gaps of a strided tensor are not changed. */
TEST(test_nothing_is_written_between_elements) {
    float memory[20];
    memset(memory, 0x7f, sizeof memory);
    ls_tensor y = {.data = memory, .count = 10, .ndim = 1, .size = {10}, .stride = {2}};
    assert_int_equal(kernels()->fill(NULL, &y, 0), LS_OK);
    for (int i = 0; i < 20; i++) {
        assert_true((memory[i] == 0) == (i % 2 == 0));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_and_cast_keep_small_integers),
        cmocka_unit_test(test_transposed_copies),
        cmocka_unit_test(test_casts_round_cut_and_hold),
        cmocka_unit_test(test_long_casts_are_those_of_single_numbers),
        cmocka_unit_test(test_fill_and_count),
        cmocka_unit_test(test_nothing_is_written_between_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
