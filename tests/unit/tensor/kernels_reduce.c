/*
 * Kernels for reductions, positions of minima and maxima, and running sums: all dtypes, any axes, any strides.
 *
 * devices: cpu cuda
 */
#include "tests/support/arrays.h"

#include "base/status.h"
#include "tests/support/kernels.h"

static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_I64, LS_I32, LS_U8, LS_BOOL};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static array random_array(ls_dtype dtype, int ndim, const int64_t *size) {
    array made = array_new(dtype, ndim, size, (array_layout)array_dice(ARRAY_LAYOUTS));
    for (int64_t i = 0; i < made.tensor.count; i++) {
        const double number = dtype == LS_BOOL || dtype == LS_U8 ? (double)array_dice(2) : (double)array_dice(9) - 4;
        array_set(&made.tensor, i, ls_dtype_is_floating(dtype) ? number / 4 : number);
    }
    return made;
}

static double join_sum(double a, double b) {
    return a + b;
}

static double join_prod(double a, double b) {
    return a * b;
}

static double join_max(double a, double b) {
    return isnan(a) || a > b ? a : b;
}

static double join_min(double a, double b) {
    return isnan(a) || a < b ? a : b;
}

typedef struct reduction {
    const char *name;
    size_t kernel;
    double (*join)(double a, double b);
    double start;
} reduction;

static const reduction reductions[] = {{"sum", KERNEL(sum), join_sum, 0},
                                       {"prod", KERNEL(prod), join_prod, 1},
                                       {"max", KERNEL(max), join_max, -INFINITY},
                                       {"min", KERNEL(min), join_min, INFINITY}};

/* Returns the expected y in row-major order. y has size 1 along some axes of x. */
static double *reduce_plainly(const reduction *r, const ls_tensor *y, const ls_tensor *x) {
    double *const want = calloc((size_t)y->count + 1, sizeof *want);
    for (int64_t i = 0; i < y->count; i++) {
        want[i] = r->start;
    }
    for (int64_t i = 0; i < x->count; i++) {
        const int64_t offset = (const char *)array_at(y, x, i) - (const char *)y->data;
        for (int64_t k = 0; k < y->count; k++) {
            if ((const char *)array_at(y, y, k) - (const char *)y->data == offset) {
                want[k] = r->join(want[k], array_get(x, x, i));
            }
        }
    }
    return want;
}

static double held(ls_dtype dtype, double value) {
    if (dtype == LS_BOOL) {
        return value != 0;
    }
    if (dtype == LS_U8 || dtype == LS_I32) {
        const double range = dtype == LS_U8 ? 256 : 0x1p32;
        value -= range * floor(value / range + (dtype == LS_I32 ? 0.5 : 0));
    }
    return value;
}

TEST(test_reductions_over_any_axes) {
    for (int turn = 0; turn < 1200; turn++) {
        const reduction *const r = &reductions[turn % 4];
        const ls_dtype dtype = dtypes[turn / 4 % DTYPES];
        int64_t size[LS_MAX_DIMS];
        int64_t left[LS_MAX_DIMS];
        const int ndim = array_random_shape(size);
        bool empty = false;
        for (int i = 0; i < ndim; i++) {
            left[i] = array_dice(2) == 0 ? 1 : size[i];
            empty = empty || size[i] == 0;
        }
        array x = random_array(dtype, ndim, size);
        array y = random_array(dtype, ndim, left);
        for (int64_t i = 0; r->join == join_prod && i < x.tensor.count; i++) { /* keeps products in range */
            array_set(&x.tensor, i, dtype == LS_BOOL ? array_dice(30) != 0 : array_dice(9) == 0 && i < 300 ? 2 : 1);
        }
        const bool refused = empty && (r->join == join_max || r->join == join_min); /* by callers */
        if (!refused && y.tensor.count <= 200) {
            double *const want = reduce_plainly(r, &y.tensor, &x.tensor);
            assert_int_equal(KERNEL_AT(pair, r->kernel)(NULL, &y.tensor, &x.tensor), LS_OK);
            for (int64_t i = 0; i < y.tensor.count; i++) {
                array_expect(r->name, array_get(&y.tensor, &y.tensor, i), held(dtype, want[i]), 2e-6);
            }
            free(want);
        }
        array_free(&x);
        array_free(&y);
    }
}

TEST(test_add_sum_over_missing_axes) {
    for (int turn = 0; turn < 600; turn++) {
        const ls_dtype dtype = dtypes[turn % DTYPES];
        int64_t size[LS_MAX_DIMS];
        int64_t part[LS_MAX_DIMS];
        const int ndim = array_random_shape(size);
        const int part_ndim = array_random_part(ndim, size, part);
        array x = random_array(dtype, ndim, size);
        array y = random_array(dtype, part_ndim, part);
        if (y.tensor.count <= 200) {
            double *const want = reduce_plainly(&reductions[0], &y.tensor, &x.tensor);
            for (int64_t i = 0; i < y.tensor.count; i++) {
                want[i] += array_get(&y.tensor, &y.tensor, i);
            }
            assert_int_equal(kernels()->add_sum(NULL, &y.tensor, &x.tensor), LS_OK);
            for (int64_t i = 0; i < y.tensor.count; i++) {
                array_expect("add_sum", array_get(&y.tensor, &y.tensor, i), held(dtype, want[i]), 2e-6);
            }
            free(want);
        }
        array_free(&x);
        array_free(&y);
    }
}

/* Tests tiles, blocks of rows and lanes, and their remainders. */
TEST(test_sums_of_matrices) {
    const int64_t sizes[][2] = {{64, 512}, {9, 129}, {100, 10}, {1000, 3}, {1, 300}, {17, 1}, {8, 128}, {3, 1000}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int d = 0; d < 2; d++) {
            const int64_t *const size = sizes[s];
            array x = array_new(dtypes[d], 2, size, ARRAY_DENSE);
            array columns = array_new(dtypes[d], 2, (const int64_t[]){1, size[1]}, ARRAY_DENSE);
            array rows = array_new(dtypes[d], 2, (const int64_t[]){size[0], 1}, ARRAY_DENSE);
            array total = array_new(dtypes[d], 2, (const int64_t[]){1, 1}, ARRAY_DENSE);
            for (int64_t i = 0; i < x.tensor.count; i++) {
                array_set(&x.tensor, i, ls_random_normal(1, s, (uint64_t)i));
            }
            assert_int_equal(kernels()->sum(NULL, &columns.tensor, &x.tensor), LS_OK);
            assert_int_equal(kernels()->sum(NULL, &rows.tensor, &x.tensor), LS_OK);
            assert_int_equal(kernels()->sum(NULL, &total.tensor, &x.tensor), LS_OK);
            double *const want = calloc((size_t)(size[0] + size[1] + 1), sizeof *want);
            for (int64_t i = 0; i < x.tensor.count; i++) {
                const double number = array_get(&x.tensor, &x.tensor, i);
                want[i / size[1]] += number;
                want[size[0] + i % size[1]] += number;
                want[size[0] + size[1]] += number;
            }
            const double tolerance = d == 0 ? 1e-5 : 1e-13;
            for (int64_t i = 0; i < size[0]; i++) {
                array_expect("row", array_get(&rows.tensor, &rows.tensor, i), want[i], tolerance);
            }
            for (int64_t i = 0; i < size[1]; i++) {
                array_expect("column", array_get(&columns.tensor, &columns.tensor, i), want[size[0] + i], tolerance);
            }
            array_expect("total", array_get(&total.tensor, &total.tensor, 0), want[size[0] + size[1]], tolerance);
            free(want);
            array_free(&x);
            array_free(&columns);
            array_free(&rows);
            array_free(&total);
        }
    }
}

/* A sequential sum in f32 would stop near 1.6777216e7, where adding 1 changes nothing. */
TEST(test_long_sums_keep_their_digits) {
    const int64_t size[] = {1 << 21, 10};
    array x = array_new(LS_F32, 2, size, ARRAY_DENSE);
    array total = array_new(LS_F32, 2, (const int64_t[]){1, 1}, ARRAY_DENSE);
    array columns = array_new(LS_F32, 2, (const int64_t[]){1, 10}, ARRAY_DENSE);
    assert_int_equal(kernels()->fill(NULL, &x.tensor, 1.1), LS_OK);
    assert_int_equal(kernels()->sum(NULL, &total.tensor, &x.tensor), LS_OK);
    assert_int_equal(kernels()->sum(NULL, &columns.tensor, &x.tensor), LS_OK);
    array_expect("total", array_get(&total.tensor, &total.tensor, 0), (double)1.1F * (double)x.tensor.count, 1e-6);
    array_expect("column", array_get(&columns.tensor, &columns.tensor, 7), (double)1.1F * (1 << 21), 1e-6);
    array_free(&x);
    array_free(&total);
    array_free(&columns);
}

/* The same numbers give bit-identical sums at any address. */
TEST(test_sums_do_not_depend_on_the_address) {
    float memory[1100];
    float first = 0;
    for (int64_t shift = 0; shift < 20; shift++) {
        ls_tensor x = {
            .data = memory + shift, .count = 1000, .ndim = 1, .size = {1000}, .stride = {1}, .contiguous = true};
        for (int64_t i = 0; i < 1000; i++) {
            memory[shift + i] = (float)ls_random_normal(1, 2, (uint64_t)i);
        }
        float sum = 0;
        ls_tensor y = {.data = &sum, .count = 1, .ndim = 1, .size = {1}, .stride = {1}, .contiguous = true};
        assert_int_equal(kernels()->sum(NULL, &y, &x), LS_OK);
        first = shift == 0 ? sum : first;
        assert_memory_equal(&sum, &first, sizeof sum);
    }
}

static double sum_of(double *numbers, int64_t count) {
    double sum = 0;
    ls_tensor x = {.data = numbers,
                   .dtype = LS_F64,
                   .count = count,
                   .ndim = 1,
                   .size = {count},
                   .stride = {1},
                   .contiguous = true};
    ls_tensor y = {
        .data = &sum, .dtype = LS_F64, .count = 1, .ndim = 1, .size = {1}, .stride = {1}, .contiguous = true};
    assert_int_equal(kernels()->sum(NULL, &y, &x), LS_OK);
    return sum;
}

/* Ranks that add their sums in a balanced tree rely on this. */
TEST(test_equal_shares_sum_to_the_bits_of_the_whole) {
    enum { COUNT = 10000 };
    double numbers[COUNT], shares[16];
    for (int64_t i = 0; i < COUNT; i++) {
        numbers[i] = ls_random_normal(1, 3, (uint64_t)i);
    }
    const double whole = sum_of(numbers, COUNT);
    for (int count = 2; count <= 16; count *= 2) {
        for (int i = 0; i < count; i++) {
            shares[i] = sum_of(numbers + i * (COUNT / count), COUNT / count);
        }
        for (int step = 1; step < count; step *= 2) {
            for (int i = 0; i < count; i += 2 * step) {
                shares[i] += shares[i + step];
            }
        }
        assert_memory_equal(&shares[0], &whole, sizeof whole);
    }
}

TEST(test_extremes_of_nan) {
    for (int64_t place = 0; place < 40; place++) {
        float memory[40] = {0};
        memory[place] = NAN;
        memory[39 - place] = place == 39 - place ? NAN : INFINITY;
        const ls_tensor x = {.data = memory, .count = 40, .ndim = 1, .size = {40}, .stride = {1}, .contiguous = true};
        float extreme = 0;
        int64_t found = -1;
        ls_tensor y = {.data = &extreme, .count = 1, .ndim = 1, .size = {1}, .stride = {1}, .contiguous = true};
        assert_int_equal(kernels()->max(NULL, &y, &x), LS_OK);
        assert_true(isnan(extreme));
        assert_int_equal(kernels()->min(NULL, &y, &x), LS_OK);
        assert_true(isnan(extreme));
        y.data = &found;
        y.dtype = LS_I64;
        assert_int_equal(kernels()->argmax(NULL, &y, &x, 0), LS_OK);
        assert_int_equal(found, place);
        assert_int_equal(kernels()->argmin(NULL, &y, &x, 0), LS_OK);
        assert_int_equal(found, place);
    }
}

/* Returns element k along the axis, at position i of y (size 1 along the axis). */
static double along(const ls_tensor *x, const ls_tensor *y, int axis, int64_t i, int64_t k) {
    ls_tensor first = *x; /* x's slice at k */
    first.size[axis] = 1;
    first.data = (char *)x->data + k * x->stride[axis] * (int64_t)ls_dtype_size((ls_dtype)x->dtype);
    return array_get(&first, y, i);
}

static void check_along(ls_dtype dtype, int ndim, const int64_t *size, int axis) {
    int64_t one[LS_MAX_DIMS];
    memcpy(one, size, (size_t)ndim * sizeof *one);
    one[axis] = 1;
    array x = random_array(dtype, ndim, size);
    array most = array_new(LS_I64, ndim, one, ARRAY_STEPPED);
    array least = array_new(LS_I64, ndim, one, ARRAY_PERMUTED);
    array sums = random_array(dtype, ndim, size);
    array back = random_array(dtype, ndim, size);
    assert_int_equal(kernels()->argmax(NULL, &most.tensor, &x.tensor, axis), LS_OK);
    assert_int_equal(kernels()->argmin(NULL, &least.tensor, &x.tensor, axis), LS_OK);
    assert_int_equal(kernels()->cumsum(NULL, &sums.tensor, &x.tensor, axis, false), LS_OK);
    assert_int_equal(kernels()->cumsum(NULL, &back.tensor, &x.tensor, axis, true), LS_OK);
    for (int64_t i = 0; i < most.tensor.count; i++) {
        int64_t highest = 0;
        int64_t lowest = 0;
        double total = 0;
        double rest = 0;
        for (int64_t k = 0; k < size[axis]; k++) {
            const double number = along(&x.tensor, &most.tensor, axis, i, k);
            highest = number > along(&x.tensor, &most.tensor, axis, i, highest) ? k : highest;
            lowest = number < along(&x.tensor, &most.tensor, axis, i, lowest) ? k : lowest;
            total += number;
            rest += along(&x.tensor, &most.tensor, axis, i, size[axis] - 1 - k);
            array_expect("cumsum", along(&sums.tensor, &most.tensor, axis, i, k), held(dtype, total), 1e-6);
            array_expect("cumsum from the end", along(&back.tensor, &most.tensor, axis, i, size[axis] - 1 - k),
                         held(dtype, rest), 1e-6);
        }
        array_expect("argmax", array_get(&most.tensor, &most.tensor, i), (double)highest, 0);
        array_expect("argmin", array_get(&least.tensor, &least.tensor, i), (double)lowest, 0);
    }
    array_free(&x);
    array_free(&most);
    array_free(&least);
    array_free(&sums);
    array_free(&back);
}

TEST(test_along_every_axis) {
    for (int turn = 0; turn < 300; turn++) {
        int64_t size[LS_MAX_DIMS];
        const int ndim = array_random_shape(size);
        for (int axis = 0; axis < ndim; axis++) {
            if (size[axis] > 0) {
                check_along(dtypes[turn % DTYPES], ndim, size, axis);
            }
        }
    }
}

TEST(test_a_dtype_without_kernel_is_named) {
    array x = array_new(LS_BF16, 1, (const int64_t[]){3}, ARRAY_DENSE);
    array y = array_new(LS_BF16, 1, (const int64_t[]){1}, ARRAY_DENSE);
    assert_int_equal(kernels()->sum(NULL, &y.tensor, &x.tensor), LS_ERR_UNSUPPORTED);
    expect_message("has no kernel for bf16");
    assert_int_equal(kernels()->add_sum(NULL, &y.tensor, &x.tensor), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->argmax(NULL, &y.tensor, &x.tensor, 0), LS_ERR_UNSUPPORTED);
    assert_int_equal(kernels()->cumsum(NULL, &x.tensor, &x.tensor, 0, false), LS_ERR_UNSUPPORTED);
    array_free(&x);
    array_free(&y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions_over_any_axes),
        cmocka_unit_test(test_add_sum_over_missing_axes),
        cmocka_unit_test(test_sums_of_matrices),
        cmocka_unit_test(test_long_sums_keep_their_digits),
        cmocka_unit_test(test_sums_do_not_depend_on_the_address),
        cmocka_unit_test(test_equal_shares_sum_to_the_bits_of_the_whole),
        cmocka_unit_test(test_extremes_of_nan),
        cmocka_unit_test(test_along_every_axis),
        cmocka_unit_test(test_a_dtype_without_kernel_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
