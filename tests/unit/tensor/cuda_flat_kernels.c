/*
 * The kernels of device/cuda for indices, random numbers, flat runs and optimizer steps, compiled for the host.
 * Their results are bit-identical to the results of the CPU's kernels, unless the two kernels add in different orders.
 * The kernels select their code paths by size; the tests cover all code paths.
 *
 * devices: cuda teams
 */
#include "tests/support/arrays.h"

#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cuda/cuda_kernels.h"

/* Fills the array with numbers whose sums depend on their order. */
static void fill_random(array *a, uint64_t stream) {
    for (int64_t i = 0; i < a->tensor.count; i++) {
        const double number = ls_random_normal(11, stream, (uint64_t)i);
        const double whole = a->tensor.dtype == LS_BOOL ? (double)(number > 0) : floor(fabs(40 * number));
        array_set(&a->tensor, i, ls_dtype_is_floating((ls_dtype)a->tensor.dtype) ? number : whole);
    }
}

static array random_array(ls_dtype dtype, int ndim, const int64_t *size, uint64_t stream) {
    array made = array_new(dtype, ndim, size, ARRAY_DENSE);
    fill_random(&made, stream);
    return made;
}

static array random_index(int ndim, const int64_t *size, int64_t bound) {
    array made = array_new(LS_I64, ndim, size, ARRAY_DENSE);
    for (int64_t i = 0; i < made.tensor.count; i++) {
        /* mostly few distinct values */
        array_set(&made.tensor, i,
                  (double)(array_dice(3) == 0 ? array_dice(bound) : array_dice(bound < 5 ? bound : 5)));
    }
    return made;
}

static void assert_same_bits(const array *a, const array *b) {
    assert_memory_equal(a->memory, b->memory, (size_t)a->tensor.count * ls_dtype_size((ls_dtype)a->tensor.dtype));
}

static void check_rows(ls_dtype dtype, int64_t outer, int64_t size, int64_t inner, int64_t many) {
    array y = random_array(dtype, 3, (const int64_t[]){outer, size, inner}, 1);
    array other = random_array(dtype, 3, (const int64_t[]){outer, size, inner}, 1);
    array x = random_array(dtype, 3, (const int64_t[]){outer, many, inner}, 2);
    array x_other = random_array(dtype, 3, (const int64_t[]){outer, many, inner}, 3);
    array index = random_index(1, &many, size);
    assert_int_equal(ls_cpu_index_add(NULL, &y.tensor, &x.tensor, 1, &index.tensor), LS_OK);
    assert_int_equal(ls_cuda_index_add(NULL, &other.tensor, &x.tensor, 1, &index.tensor), LS_OK);
    assert_same_bits(&y, &other);
    assert_int_equal(ls_cpu_index_select(NULL, &x.tensor, &y.tensor, 1, &index.tensor), LS_OK);
    assert_int_equal(ls_cuda_index_select(NULL, &x_other.tensor, &y.tensor, 1, &index.tensor), LS_OK);
    assert_same_bits(&x, &x_other);
    array_free(&y);
    array_free(&other);
    array_free(&x);
    array_free(&x_other);
    array_free(&index);
}

static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_I64, LS_I32, LS_U8, LS_BOOL};

TEST(test_rows) {
    for (int d = 0; d < 6; d++) {
        check_rows(dtypes[d], 2, 7, 3, 5);
        check_rows(dtypes[d], 1, 900, 12, 700);
        check_rows(dtypes[d], 3, 40, 5, 2300);
        check_rows(dtypes[d], 2, 1, 1, 513);
    }
    check_rows(LS_F32, 1, 5000, 64, 8192);
    check_rows(LS_F32, 1, 2, 4, 33000); /* four runs of four runs, and more */
    check_rows(LS_F32, 1, 3, 4, 0);
}

/* y may be larger than the index along the other axes. */
static void check_places(ls_dtype dtype, int axis, const int64_t *size, const int64_t *index_size) {
    array y = random_array(dtype, 3, size, 1);
    array other = random_array(dtype, 3, size, 1);
    array x = random_array(dtype, 3, index_size, 2);
    array x_other = random_array(dtype, 3, index_size, 3);
    array index = random_index(3, index_size, size[axis]);
    assert_int_equal(ls_cpu_scatter_add(NULL, &y.tensor, &x.tensor, axis, &index.tensor), LS_OK);
    assert_int_equal(ls_cuda_scatter_add(NULL, &other.tensor, &x.tensor, axis, &index.tensor), LS_OK);
    assert_same_bits(&y, &other);
    assert_int_equal(ls_cpu_take_along(NULL, &x.tensor, &y.tensor, axis, &index.tensor), LS_OK);
    assert_int_equal(ls_cuda_take_along(NULL, &x_other.tensor, &y.tensor, axis, &index.tensor), LS_OK);
    assert_same_bits(&x, &x_other);
    array_free(&y);
    array_free(&other);
    array_free(&x);
    array_free(&x_other);
    array_free(&index);
}

TEST(test_places) {
    for (int d = 0; d < 6; d++) {
        check_places(dtypes[d], 1, (const int64_t[]){4, 9, 5}, (const int64_t[]){3, 9, 4});
        check_places(dtypes[d], 2, (const int64_t[]){6, 5, 90}, (const int64_t[]){6, 4, 70});
        check_places(dtypes[d], 0, (const int64_t[]){30, 100, 90}, (const int64_t[]){20, 100, 90});
        check_places(dtypes[d], 0, (const int64_t[]){100, 3, 5}, (const int64_t[]){2100, 2, 5});
        check_places(dtypes[d], 2, (const int64_t[]){3, 5, 40}, (const int64_t[]){3, 5, 2500});
    }
    check_places(LS_F32, 0, (const int64_t[]){3, 2, 1}, (const int64_t[]){3, 0, 1});
}

TEST(test_random) {
    const int64_t counts[] = {0, 1, 2, 3, 4, 5, 1000, 1003};
    const ls_random_state from = {.seed = 42, .stream = 7};
    for (int turn = 0; turn < 16; turn++) {
        const int64_t count = counts[turn / 2];
        const ls_dtype dtype = turn % 2 == 0 ? LS_F32 : LS_F64;
        array y = array_new(dtype, 1, &count, ARRAY_DENSE), other = array_new(dtype, 1, &count, ARRAY_DENSE);
        array x = random_array(dtype, 1, &count, 5);
        assert_int_equal(ls_cpu_random_uniform(NULL, &y.tensor, from, -2, 3), LS_OK);
        assert_int_equal(ls_cuda_random_uniform(NULL, &other.tensor, from, -2, 3), LS_OK);
        assert_same_bits(&y, &other);
        assert_int_equal(ls_cpu_random_normal(NULL, &y.tensor, from, 1, 0.3), LS_OK);
        assert_int_equal(ls_cuda_random_normal(NULL, &other.tensor, from, 1, 0.3), LS_OK);
        assert_same_bits(&y, &other);
        for (uint64_t first = 0; first < 9; first += 1 + first) {
            assert_int_equal(ls_cpu_dropout(NULL, &y.tensor, &x.tensor, from, first, 0.4), LS_OK);
            assert_int_equal(ls_cuda_dropout(NULL, &other.tensor, &x.tensor, from, first, 0.4), LS_OK);
            assert_same_bits(&y, &other);
        }
        array_free(&y);
        array_free(&other);
        array_free(&x);
    }
    for (int d = 0; d < 5; d++) {
        array y = array_new(dtypes[d], 1, counts + 7, ARRAY_DENSE), other = array_new(dtypes[d], 1, counts + 7, 0);
        assert_int_equal(ls_cpu_random_integer(NULL, &y.tensor, from, 3, 200), LS_OK);
        assert_int_equal(ls_cuda_random_integer(NULL, &other.tensor, from, 3, 200), LS_OK);
        assert_same_bits(&y, &other);
        array_free(&y);
        array_free(&other);
    }
}

static void expect_near(double value, double want) {
    assert_true(isnan(want) ? isnan(value) : fabs(value - want) <= 1e-12 * (1 + fabs(want)));
}

static void check_flat(ls_dtype dtype, int64_t count) {
    array x = random_array(dtype, 1, &count, 1), y = random_array(dtype, 1, &count, 2);
    array z = random_array(dtype, 1, &count, 2);
    const void *const p = x.memory;
    double want = 7, got = 9;
    assert_int_equal(ls_cpu_axpy(NULL, dtype, count, -1.7, p, y.memory), LS_OK);
    assert_int_equal(ls_cuda_axpy(NULL, dtype, count, -1.7, p, z.memory), LS_OK);
    assert_same_bits(&y, &z);
    assert_int_equal(ls_cpu_scale(NULL, dtype, count, 0.3, y.memory), LS_OK);
    assert_int_equal(ls_cuda_scale(NULL, dtype, count, 0.3, z.memory), LS_OK);
    assert_same_bits(&y, &z);
    assert_int_equal(ls_cpu_dot(NULL, dtype, count, p, y.memory, &want), LS_OK);
    assert_int_equal(ls_cuda_dot(NULL, dtype, count, p, y.memory, &got), LS_OK);
    expect_near(got, want);
    assert_int_equal(ls_cpu_sum_of_magnitudes(NULL, dtype, count, p, &want), LS_OK);
    assert_int_equal(ls_cuda_sum_of_magnitudes(NULL, dtype, count, p, &got), LS_OK);
    expect_near(got, want);
    for (int turn = 0; turn < 3; turn++) { /* with a NaN at the end, and then in the middle */
        assert_int_equal(ls_cpu_largest_magnitude(NULL, dtype, count, p, &want), LS_OK);
        assert_int_equal(ls_cuda_largest_magnitude(NULL, dtype, count, p, &got), LS_OK);
        expect_near(got, want);
        if (count > 0) {
            array_set(&x.tensor, count - 1, 1);
            array_set(&x.tensor, turn == 0 ? count - 1 : count / 2, NAN);
        }
    }
    double found = 0.5;
    assert_int_equal(ls_cuda_unscale(NULL, dtype, count, 0.5, y.memory, &found), LS_OK);
    assert_true(found == 0.5);
    assert_int_equal(ls_cpu_scale(NULL, dtype, count, 0.5, z.memory), LS_OK);
    assert_same_bits(&y, &z);
    if (count > 0) {
        array_set(&y.tensor, count - 1, count % 2 == 0 ? NAN : -INFINITY);
        assert_int_equal(ls_cuda_unscale(NULL, dtype, count, 0.5, y.memory, &found), LS_OK);
        assert_true(found == 1);
    }
    array_free(&x);
    array_free(&y);
    array_free(&z);
}

TEST(test_flat) {
    const int64_t counts[] = {0, 1, 3, 4, 6, 1001, 8192, 8193, 100000};
    for (int i = 0; i < 9; i++) {
        check_flat(LS_F32, counts[i]);
        check_flat(LS_F64, counts[i]);
    }
}

/* Parameter, gradient and state for either kernel; unaligned if `count` is odd. */
enum { ARRAYS = 5 };
typedef struct numbers {
    array of[ARRAYS];
    void *at[ARRAYS];
} numbers;

static numbers numbers_begin(ls_dtype dtype, int64_t count) {
    numbers made;
    for (int k = 0; k < ARRAYS; k++) {
        const int64_t more = count + count % 2;
        made.of[k] = random_array(dtype, 1, &more, (uint64_t)k + 1);
        made.at[k] = (char *)made.of[k].memory + (size_t)(more - count) * ls_dtype_size(dtype);
        for (int64_t i = 0; k > 1 && i < more; i++) { /* second moments are not negative */
            array_set(&made.of[k].tensor, i, fabs(array_get(&made.of[k].tensor, &made.of[k].tensor, i)));
        }
    }
    return made;
}

static void numbers_compare(const char *what, numbers *a, numbers *b) {
    for (int k = 0; k < ARRAYS; k++) {
        const ls_tensor *const t = &a->of[k].tensor, *const u = &b->of[k].tensor;
        const double tolerance = t->dtype == LS_F32 ? 1e-6 : 1e-13;
        for (int64_t i = 0; i < t->count; i++) {
            array_expect(what, array_get(u, u, i), array_get(t, t, i), tolerance);
        }
        array_free(&a->of[k]);
        array_free(&b->of[k]);
    }
}

/* Both kernels compute the same step, on numbers at different addresses. */
#define CHECK(kernel, ...)                                                                                             \
    do {                                                                                                               \
        numbers cpu = numbers_begin(dtype, count), cuda = numbers_begin(dtype, count);                                 \
        for (int turn = 0; turn < 3; turn++) {                                                                         \
            numbers *n = &cpu;                                                                                         \
            const ls_##kernel##_step one = {.dtype = dtype, __VA_ARGS__};                                              \
            n = &cuda;                                                                                                 \
            const ls_##kernel##_step two = {.dtype = dtype, __VA_ARGS__};                                              \
            assert_int_equal(ls_cpu_##kernel(NULL, &one), LS_OK);                                                      \
            assert_int_equal(ls_cuda_##kernel(NULL, &two), LS_OK);                                                     \
        }                                                                                                              \
        numbers_compare(#kernel, &cpu, &cuda);                                                                         \
    } while (0)
#define PLACE .count = count, .parameter = n->at[0], .gradient = n->at[1]

static void check_steps(ls_dtype dtype, int64_t count, int way) {
    const bool a = (way & 1) != 0, b = (way & 2) != 0;
    CHECK(sgd, PLACE, .momentum_buffer = a ? n->at[2] : NULL, .learning_rate = 0.1, .momentum = 0.9, .dampening = 0.2,
          .weight_decay = 0.01, .nesterov = b, .first = turn == 0);
    CHECK(adam, PLACE, .first_moment = n->at[2], .second_moment = n->at[3],
          .largest_second_moment = a ? n->at[4] : NULL, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8,
          .parameter_decay = 0.01, .gradient_decay = 0.02, .rate = 0.1, .gradient_rate = b ? 0.03 : 0, .root = 1.2);
    CHECK(rmsprop, PLACE, .square_average = n->at[2], .gradient_average = a ? n->at[3] : NULL,
          .momentum_buffer = b ? n->at[4] : NULL, .learning_rate = 0.1, .alpha = 0.9, .epsilon = 1e-8, .momentum = 0.8,
          .weight_decay = 0.01);
    CHECK(adagrad, PLACE, .sum = n->at[2], .learning_rate = 0.1, .epsilon = 1e-8, .weight_decay = 0.01);
    CHECK(adadelta, PLACE, .square_average = n->at[2], .change_average = n->at[3], .learning_rate = 0.1, .rho = 0.9,
          .epsilon = 1e-6, .weight_decay = 0.01);
    CHECK(lion, PLACE, .average = n->at[2], .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.01);
    CHECK(lamb, PLACE, .first_moment = n->at[2], .second_moment = n->at[3], .learning_rate = 0.1, .beta1 = 0.9,
          .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.01, .correction1 = 0.5, .correction2 = 0.6);
}

TEST(test_steps) {
    const int64_t counts[] = {0, 1, 4, 7, 53, 20000, 20003};
    for (int turn = 0; turn < 28; turn++) {
        check_steps(LS_F32, counts[turn / 4], turn % 4);
        check_steps(LS_F64, counts[turn / 4], turn % 4);
    }
}

static void check_muon(ls_dtype dtype, int64_t rows, int64_t columns, bool nesterov) {
    const int64_t count = rows * columns, room = ls_muon_work(rows, columns) + 1;
    array work = array_new(dtype, 1, &room, ARRAY_DENSE);
    CHECK(muon, .rows = rows, .columns = columns, .parameter = n->at[0], .gradient = n->at[1],
          .momentum_buffer = n->at[2], .work = work.memory, .rate = 0.1, .momentum = 0.9, .parameter_decay = 0.01,
          .epsilon = 1e-7, .a = 3.4445, .b = -4.775, .c = 2.0315, .iterations = 1, .nesterov = nesterov);
    array_free(&work);
}

TEST(test_muon) {
    for (int way = 0; way < 4; way++) {
        const ls_dtype dtype = (way & 1) != 0 ? LS_F64 : LS_F32;
        check_muon(dtype, 12, 9, (way & 2) != 0);
        check_muon(dtype, 9, 31, (way & 2) != 0);
        check_muon(dtype, 1, 1, (way & 2) != 0);
        check_muon(dtype, 0, 4, (way & 2) != 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows), cmocka_unit_test(test_places), cmocka_unit_test(test_random),
        cmocka_unit_test(test_flat), cmocka_unit_test(test_steps),  cmocka_unit_test(test_muon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
