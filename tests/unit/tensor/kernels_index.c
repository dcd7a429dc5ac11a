/*
 * Kernels for indexed reads and additions compared with plain loops, and indices out of range.
 *
 * devices: cpu cuda
 */
#include "tests/support/arrays.h"

#include "base/status.h"
#include "tests/support/kernels.h"

static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_I64, LS_I32, LS_U8, LS_BOOL};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static array random_dense(ls_dtype dtype, int ndim, const int64_t *size, int64_t bound) {
    array made = array_new(dtype, ndim, size, ARRAY_DENSE);
    for (int64_t i = 0; i < made.tensor.count; i++) {
        array_set(&made.tensor, i, (double)array_dice(dtype == LS_BOOL ? 2 : bound));
    }
    return made;
}

static double get(const array *a, int64_t i) {
    return array_get(&a->tensor, &a->tensor, i);
}

static double held(ls_dtype dtype, double value) {
    return dtype == LS_BOOL ? value != 0 : value;
}

/* Draws a shape with at least one axis and no empty axis, and chooses one of its axes. */
static int random_shape(int64_t *size, int *axis) {
    for (;;) {
        const int ndim = array_random_shape(size);
        int64_t count = 1;
        for (int i = 0; i < ndim; i++) {
            count *= size[i];
        }
        if (ndim > 0 && count > 0) {
            *axis = (int)array_dice(ndim);
            return ndim;
        }
    }
}

/*
 * Takes element i of a tensor shaped `size`, and moves it to `place` along the axis. Returns its position in a tensor
 * whose axis has size `along`.
 */
static int64_t moved(int ndim, const int64_t *size, int axis, int64_t i, int64_t place, int64_t along) {
    int64_t inner = 1;
    for (int k = axis + 1; k < ndim; k++) {
        inner *= size[k];
    }
    return (i / (inner * size[axis]) * along + place) * inner + i % inner;
}

static int64_t place_along(int ndim, const int64_t *size, int axis, int64_t i) {
    for (int k = ndim - 1; k > axis; k--) {
        i /= size[k];
    }
    return i % size[axis];
}

static void check_index_select_and_add(ls_dtype dtype) {
    int64_t size[LS_MAX_DIMS];
    int axis;
    const int ndim = random_shape(size, &axis);
    const int64_t along = size[axis];
    array x = random_dense(dtype, ndim, size, 10);
    const int64_t index_size[] = {2, array_dice(5)};
    array index = random_dense(LS_I64, 2, index_size, along);
    size[axis] = index.tensor.count;
    array y = random_dense(dtype, ndim, size, 10);
    assert_int_equal(kernels()->index_select(NULL, &y.tensor, &x.tensor, axis, &index.tensor), LS_OK);
    double *const want = calloc((size_t)x.tensor.count, sizeof *want);
    for (int64_t i = 0; i < x.tensor.count; i++) {
        want[i] = get(&x, i);
    }
    for (int64_t i = 0; i < y.tensor.count; i++) {
        const int64_t place = (int64_t)get(&index, place_along(ndim, size, axis, i));
        const int64_t from = moved(ndim, size, axis, i, place, along);
        array_expect("index_select", get(&y, i), get(&x, from), 0);
        want[from] += get(&y, i);
    }
    assert_int_equal(kernels()->index_add(NULL, &x.tensor, &y.tensor, axis, &index.tensor), LS_OK);
    for (int64_t i = 0; i < x.tensor.count; i++) {
        array_expect("index_add", get(&x, i), held(dtype, want[i]), 0);
    }
    free(want);
    array_free(&x);
    array_free(&y);
    array_free(&index);
}

static void check_take_along_and_scatter(ls_dtype dtype) {
    int64_t size[LS_MAX_DIMS];
    int axis;
    const int ndim = random_shape(size, &axis);
    const int64_t along = size[axis];
    array x = random_dense(dtype, ndim, size, 10);
    size[axis] = array_dice(5);
    array index = random_dense(LS_I64, ndim, size, along);
    array y = random_dense(dtype, ndim, size, 10);
    assert_int_equal(kernels()->take_along(NULL, &y.tensor, &x.tensor, axis, &index.tensor), LS_OK);
    double *const want = calloc((size_t)x.tensor.count, sizeof *want);
    for (int64_t i = 0; i < x.tensor.count; i++) {
        want[i] = get(&x, i);
    }
    for (int64_t i = 0; i < y.tensor.count; i++) {
        const int64_t from = moved(ndim, size, axis, i, (int64_t)get(&index, i), along);
        array_expect("take_along", get(&y, i), get(&x, from), 0);
        want[from] += get(&y, i);
    }
    assert_int_equal(kernels()->scatter_add(NULL, &x.tensor, &y.tensor, axis, &index.tensor), LS_OK);
    for (int64_t i = 0; i < x.tensor.count; i++) {
        array_expect("scatter_add", get(&x, i), held(dtype, want[i]), 0);
    }
    free(want);
    array_free(&x);
    array_free(&y);
    array_free(&index);
}

TEST(test_indexed_reads_and_additions) {
    for (int turn = 0; turn < 600; turn++) {
        check_index_select_and_add(dtypes[turn % DTYPES]);
        check_take_along_and_scatter(dtypes[turn % DTYPES]);
    }
}

/* take_along may read only a part of the other axes. */
TEST(test_take_along_from_a_larger_tensor) {
    array x = random_dense(LS_F32, 2, (const int64_t[]){5, 7}, 100);
    array index = random_dense(LS_I64, 2, (const int64_t[]){3, 4}, 7);
    array y = random_dense(LS_F32, 2, (const int64_t[]){3, 4}, 1);
    assert_int_equal(kernels()->take_along(NULL, &y.tensor, &x.tensor, 1, &index.tensor), LS_OK);
    for (int64_t i = 0; i < 12; i++) {
        array_expect("take_along", get(&y, i), get(&x, i / 4 * 7 + (int64_t)get(&index, i)), 0);
    }
    array_free(&x);
    array_free(&index);
    array_free(&y);
}

TEST(test_an_index_out_of_range_is_named) {
    array x = random_dense(LS_F32, 2, (const int64_t[]){4, 3}, 100);
    array y = random_dense(LS_F32, 2, (const int64_t[]){4, 3}, 100);
    array index = random_dense(LS_I64, 1, (const int64_t[]){4}, 1);
    array table = random_dense(LS_I64, 2, (const int64_t[]){4, 3}, 1);
    array_set(&index.tensor, 2, 4);
    array_set(&index.tensor, 3, -9);
    array_set(&table.tensor, 7, -1);
    const double before = get(&y, 0);
    assert_int_equal(kernels()->index_select(NULL, &y.tensor, &x.tensor, 0, &index.tensor), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "index_select: index 4 at position 2 is out of range for axis 0 of size 4");
    assert_int_equal(kernels()->index_add(NULL, &y.tensor, &x.tensor, 0, &index.tensor), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "index_add: index 4 at position 2 is out of range for axis 0 of size 4");
    assert_int_equal(kernels()->take_along(NULL, &y.tensor, &x.tensor, 1, &table.tensor), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "take_along: index -1 at position 7 is out of range for axis 1 of size 3");
    assert_int_equal(kernels()->scatter_add(NULL, &y.tensor, &x.tensor, 1, &table.tensor), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "scatter_add: index -1 at position 7 is out of range for axis 1 of size 3");
    array_expect("y after failures", get(&y, 0), before, 0);
    array_free(&x);
    array_free(&y);
    array_free(&index);
    array_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_indexed_reads_and_additions),
        cmocka_unit_test(test_take_along_from_a_larger_tensor),
        cmocka_unit_test(test_an_index_out_of_range_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
