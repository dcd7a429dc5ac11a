/*
 * The kernels of device/cuda along axes, compiled for the host, compared with the CPU's: reductions, minima and maxima,
 * running sums, softmax and sorting, on all code paths, which depend on sizes.
 *
 * devices: cuda teams
 */
#include "tests/support/arrays.h"

#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cuda/cuda_kernels.h"

static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_I64, LS_I32, LS_U8, LS_BOOL};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* Draws fractions whose sums are exact in f32, so that the order does not matter. */
static array random_array(ls_dtype dtype, int ndim, const int64_t *size, array_layout layout) {
    array made = array_new(dtype, ndim, size, layout);
    for (int64_t i = 0; i < made.tensor.count; i++) {
        const double number = ls_random_normal(5, (uint64_t)ndim, (uint64_t)i);
        const double whole = dtype == LS_BOOL ? (double)(number > 0) : floor(fabs(2 * number));
        array_set(&made.tensor, i, ls_dtype_is_floating(dtype) ? floor(64 * number) / 64 : whole);
    }
    return made;
}

/* Adds several NaN, preceded by an infinity, and ties. */
static void spoil(array *a) {
    for (int64_t i = 0; i < a->tensor.count; i += 7) {
        array_set(&a->tensor, i, i % 11 == 3 ? (double)NAN : i % 3 == 0 ? -INFINITY : 0.5);
    }
}

/* Both arrays must have NaN at the same positions. */
static void expect_near(const char *name, const array *is, const array *want) {
    const double tolerance = want->tensor.dtype == LS_F32 ? 2e-6 : 1e-13;
    for (int64_t i = 0; i < want->tensor.count; i++) {
        const double a = array_get(&is->tensor, &is->tensor, i), b = array_get(&want->tensor, &want->tensor, i);
        if (!(a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * (1 + fabs(b)))) {
            fail_msg("%s: element %lld is %.9g, not %.9g", name, (long long)i, a, b);
        }
    }
}

typedef struct reduction {
    const char *name;
    ls_pair_kernel *cpu, *cuda;
} reduction;

/* Bit i of `kept` is set if axis i is kept. */
static void check_reduction(const reduction *r, ls_dtype dtype, int ndim, const int64_t *size, int kept,
                            array_layout layout) {
    int64_t left[LS_MAX_DIMS];
    for (int axis = 0; axis < ndim; axis++) {
        left[axis] = (kept >> axis & 1) != 0 ? size[axis] : 1;
    }
    array x = random_array(dtype, ndim, size, layout);
    array want = random_array(dtype, ndim, left, ARRAY_DENSE);
    array y = random_array(dtype, ndim, left, ARRAY_DENSE);
    assert_int_equal(r->cpu(NULL, &want.tensor, &x.tensor), LS_OK);
    assert_int_equal(r->cuda(NULL, &y.tensor, &x.tensor), LS_OK);
    expect_near(r->name, &y, &want);
    array_free(&x);
    array_free(&want);
    array_free(&y);
}

TEST(test_reductions) {
    const reduction reductions[] = {{"sum", ls_cpu_sum, ls_cuda_sum},
                                    {"prod", ls_cpu_prod, ls_cuda_prod},
                                    {"max", ls_cpu_max, ls_cuda_max},
                                    {"min", ls_cpu_min, ls_cuda_min},
                                    {"add_sum", ls_cpu_add_sum, ls_cuda_add_sum}};
    const int64_t sizes[][3] = {{1, 1, 1},     {5, 9, 30},   {3, 2, 33},   {2, 3, 1024}, {2, 1025, 3}, {4, 1030, 2},
                                {1, 2, 20001}, {300, 7, 50}, {2, 9000, 1}, {1, 3, 4096}, {0, 3, 4},    {8, 16, 1030}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int kept = 0; kept < 8; kept++) {
            for (int r = 0; r < 5; r++) {
                check_reduction(&reductions[r], dtypes[(s + (size_t)kept + (size_t)r) % DTYPES], 3, sizes[s], kept,
                                (array_layout)((s + (size_t)r) % ARRAY_LAYOUTS));
                check_reduction(&reductions[r], LS_F32, 3, sizes[s], kept, ARRAY_DENSE);
            }
        }
    }
}

/* In f64, the sum of equal shares is bit-identical to the sum of the whole. Ranks that add their sums in a balanced
 * tree rely on this. */
TEST(test_equal_shares_sum_to_the_bits_of_the_whole) {
    const int64_t counts[] = {10000, 1 << 16, 2 * 10001, 16 * 1001};
    for (size_t c = 0; c < 4; c++) {
        array x = random_array(LS_F64, 1, &counts[c], ARRAY_DENSE);
        double sums[3] = {0};
        for (int i = 0; i < 3; i++) {
            ls_tensor part = x.tensor, sum = {.dtype = LS_F64, .count = 1, .contiguous = true, .data = &sums[i]};
            part.count = part.size[0] = i < 2 ? counts[c] / 2 : counts[c];
            part.data = (double *)x.memory + (i == 1 ? counts[c] / 2 : 0);
            assert_int_equal(ls_cuda_sum(NULL, &sum, &part), LS_OK);
        }
        sums[0] += sums[1];
        assert_memory_equal(&sums[0], &sums[2], sizeof sums[0]);
        array_free(&x);
    }
}

/* Outer size, width, inner size: the reduced axis is the middle one. */
static const int64_t shapes[][3] = {{3, 1, 1},      {40, 10, 1},   {7, 32, 1},   {5, 33, 1},    {3, 256, 1},
                                    {3, 700, 1},    {2, 1500, 1},  {2, 4096, 1}, {2, 10001, 1}, {2, 17, 5},
                                    {2, 100, 3},    {1, 2050, 2},  {0, 5, 2},    {2, 64, 3},    {130, 3, 130},
                                    {16400, 65, 1}, {1, 65, 16400}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], SMALL_SHAPES = SHAPES - 2 };

static void check_along(ls_dtype dtype, const int64_t *shape, array_layout layout, bool spoilt) {
    const int64_t one[] = {shape[0], 1, shape[2]};
    array x = random_array(dtype, 3, shape, layout);
    array want = array_new(LS_I64, 3, one, ARRAY_DENSE), found = array_new(LS_I64, 3, one, ARRAY_DENSE);
    array sums = array_new(dtype, 3, shape, ARRAY_DENSE), own = array_new(dtype, 3, shape, ARRAY_DENSE);
    if (spoilt) {
        spoil(&x);
    }
    assert_int_equal(ls_cpu_argmax(NULL, &want.tensor, &x.tensor, 1), LS_OK);
    assert_int_equal(ls_cuda_argmax(NULL, &found.tensor, &x.tensor, 1), LS_OK);
    expect_near("argmax", &found, &want);
    assert_int_equal(ls_cpu_argmin(NULL, &want.tensor, &x.tensor, 1), LS_OK);
    assert_int_equal(ls_cuda_argmin(NULL, &found.tensor, &x.tensor, 1), LS_OK);
    expect_near("argmin", &found, &want);
    for (int reverse = 0; reverse < 2; reverse++) {
        assert_int_equal(ls_cpu_cumsum(NULL, &sums.tensor, &x.tensor, 1, reverse != 0), LS_OK);
        assert_int_equal(ls_cuda_cumsum(NULL, &own.tensor, &x.tensor, 1, reverse != 0), LS_OK);
        expect_near("cumsum", &own, &sums);
    }
    array_free(&x);
    array_free(&want);
    array_free(&found);
    array_free(&sums);
    array_free(&own);
}

TEST(test_extremes_and_running_sums) {
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t d = 0; d < (s < SMALL_SHAPES ? (size_t)DTYPES : 1); d++) {
            check_along(dtypes[d], shapes[s], (array_layout)((s + d) % ARRAY_LAYOUTS), false);
        }
        check_along(LS_F32, shapes[s], ARRAY_DENSE, true);
        if (s < SMALL_SHAPES) {
            check_along(LS_F64, shapes[s], ARRAY_PERMUTED, true);
        }
    }
}

/* Runs the kernel once into separate memory, and once into the memory of an operand: x, then dy. */
static void check_softmax(ls_dtype dtype, const int64_t *shape, bool spoilt, bool log) {
    ls_along_kernel *const cpu = log ? ls_cpu_log_softmax : ls_cpu_softmax;
    ls_along_kernel *const cuda = log ? ls_cuda_log_softmax : ls_cuda_softmax;
    ls_along_backward_kernel *const cpu_back = log ? ls_cpu_log_softmax_backward : ls_cpu_softmax_backward;
    ls_along_backward_kernel *const cuda_back = log ? ls_cuda_log_softmax_backward : ls_cuda_softmax_backward;
    array x = random_array(dtype, 3, shape, ARRAY_DENSE), dy = random_array(dtype, 3, shape, ARRAY_DENSE);
    array y = array_new(dtype, 3, shape, ARRAY_DENSE), dx = array_new(dtype, 3, shape, ARRAY_DENSE);
    array own = array_new(dtype, 3, shape, ARRAY_DENSE);
    for (int64_t i = 0; spoilt && i < x.tensor.count;
         i++) { /* a block with NaN, a block of -Inf, and a block of mostly -Inf */
        const int64_t block = i / (shape[1] * shape[2]);
        if (block == 0 ? i % 5 == 1 : block == 1 || (block == 2 && i % 50 < 49)) {
            array_set(&x.tensor, i, block == 0 ? (double)NAN : -INFINITY);
        }
    }
    assert_int_equal(cpu(NULL, &y.tensor, &x.tensor, 1), LS_OK);
    assert_int_equal(cuda(NULL, &own.tensor, &x.tensor, 1), LS_OK);
    expect_near("softmax", &own, &y);
    assert_int_equal(cuda(NULL, &x.tensor, &x.tensor, 1), LS_OK);
    expect_near("softmax in place", &x, &y);
    assert_int_equal(cpu_back(NULL, &dx.tensor, &dy.tensor, &y.tensor, 1), LS_OK);
    assert_int_equal(cuda_back(NULL, &own.tensor, &dy.tensor, &y.tensor, 1), LS_OK);
    expect_near("gradient of softmax", &own, &dx);
    assert_int_equal(cuda_back(NULL, &dy.tensor, &dy.tensor, &y.tensor, 1), LS_OK);
    expect_near("gradient of softmax in place", &dy, &dx);
    array_free(&x);
    array_free(&dy);
    array_free(&y);
    array_free(&dx);
    array_free(&own);
}

TEST(test_softmax) {
    for (size_t s = 0; s < SHAPES; s++) {
        for (int turn = 0; turn < (s < SMALL_SHAPES ? 8 : 1); turn++) {
            check_softmax(turn % 2 == 0 ? LS_F32 : LS_F64, shapes[s], turn / 2 % 2 == 1, turn / 4 == 1);
        }
    }
}

TEST(test_orders) {
    for (size_t s = 0; s < SMALL_SHAPES; s++) {
        for (size_t turn = 0; turn < 2 * DTYPES + 4; turn++) {
            const bool reverse = turn % 2 == 1, spoilt = turn >= 2 * DTYPES;
            const ls_dtype dtype = spoilt ? (turn < 2 * DTYPES + 2 ? LS_F32 : LS_F64) : dtypes[turn / 2];
            array x = random_array(dtype, 3, shapes[s], ARRAY_DENSE);
            array want = array_new(LS_I64, 3, shapes[s], ARRAY_DENSE);
            array y = array_new(LS_I64, 3, shapes[s], ARRAY_DENSE);
            if (spoilt) {
                spoil(&x);
            }
            assert_int_equal(ls_cpu_argsort(NULL, &want.tensor, &x.tensor, 1, reverse), LS_OK);
            assert_int_equal(ls_cuda_argsort(NULL, &y.tensor, &x.tensor, 1, reverse), LS_OK);
            expect_near("argsort", &y, &want);
            array_free(&x);
            array_free(&want);
            array_free(&y);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_equal_shares_sum_to_the_bits_of_the_whole),
        cmocka_unit_test(test_extremes_and_running_sums),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
