/*
 * tensor: creating elements, changing them in place, reading and comparing them.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>

#include "tensor/tensor.h"

static ls_scope *scope;

static int begin(void **state) {
    (void)state;
    scope = ls_scope_begin();
    return scope == NULL;
}

static int end(void **state) {
    (void)state;
    (void)ls_scope_end(scope); /* the scope contains only errors that the tests provoke */
    return 0;
}

#define AT(tensor, ...) ls_at(tensor, (const int64_t[]){__VA_ARGS__})

static const ls_dtype all_dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16, LS_I64, LS_I32, LS_U8, LS_BOOL};

TEST(test_filled_tensors_of_every_dtype) {
    for (size_t i = 0; i < sizeof all_dtypes / sizeof *all_dtypes; i++) {
        const ls_dtype dtype = all_dtypes[i];
        const ls_tensor *zeros = ls_zeros(LS_SHAPE(2, 3), dtype);
        const ls_tensor *ones = ls_ones(LS_SHAPE(2, 3), dtype);
        assert_int_equal(ls_dtype_of(ones), dtype);
        for (int64_t j = 0; j < 3; j++) {
            assert_true(AT(zeros, 1, j) == 0);
            assert_true(AT(ones, 1, j) == 1);
        }
        const double value = dtype == LS_BOOL ? 1 : ls_dtype_is_floating(dtype) ? 2.5 : 2;
        assert_true(AT(ls_full(LS_SHAPE(4), dtype, value), -1) == value);
    }
    assert_true(ls_item(ls_scalar(-1.25, LS_F16)) == -1.25);
    assert_null(ls_ones(LS_SHAPE(1), (ls_dtype)-1));
}

TEST(test_arange) {
    for (size_t i = 0; i < sizeof all_dtypes / sizeof *all_dtypes; i++) {
        if (all_dtypes[i] != LS_BOOL) {
            const ls_tensor *tensor = ls_arange(LS_SHAPE(4, 5), all_dtypes[i]);
            assert_true(AT(tensor, 0, 0) == 0);
            assert_true(AT(tensor, 2, 3) == 13);
        }
    }
    assert_null(ls_arange(LS_SHAPE(2), LS_BOOL));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
}

TEST(test_random_numbers_follow_the_generator) {
    ls_seed(17);
    const ls_tensor *uniform = ls_rand(LS_SHAPE(1000), LS_F64);
    const ls_tensor *normal = ls_randn(LS_SHAPE(1000), LS_F64);
    for (int64_t i = 0; i < 1000; i++) {
        assert_true(fabs(AT(uniform, i) - ls_random_uniform(17, 0, (uint64_t)i)) < 1e-6);
        assert_true(fabs(AT(normal, i) - ls_random_normal(17, 1, (uint64_t)i)) < 1e-5);
    }
    ls_seed(17);
    assert_true(ls_equal(ls_rand(LS_SHAPE(1000), LS_F64), uniform));
    assert_false(ls_equal(ls_rand(LS_SHAPE(1000), LS_F64), uniform));
    assert_int_equal(ls_random_get_state().stream, 2);
    assert_non_null(ls_randn(LS_SHAPE(8), LS_BF16));
    assert_null(ls_rand(LS_SHAPE(2), LS_I64));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
}

/* Rounding does not reach the upper limit, which bf16 otherwise reaches in one of 512 numbers. */
TEST(test_uniform_numbers_are_below_one) {
    const ls_dtype dtypes[] = {LS_F64, LS_F32, LS_BF16, LS_F16};
    const double largest[] = {1, 1, 1 - 0x1p-8, 1 - 0x1p-11};
    ls_seed(17);
    for (int i = 0; i < 4; i++) {
        ls_tensor *numbers = ls_rand(LS_SHAPE(200000), dtypes[i]);
        const double most = ls_item(ls_max(numbers));
        assert_true(i < 2 ? most < 1 : most == largest[i]);
        assert_true(ls_item(ls_min(numbers)) >= 0);
    }
}

TEST(test_random_integers) {
    for (size_t i = 0; i < sizeof all_dtypes / sizeof *all_dtypes; i++) {
        const int64_t high = all_dtypes[i] == LS_BOOL ? 2 : 6;
        const ls_tensor *tensor = ls_randint(LS_SHAPE(400), all_dtypes[i], 0, high);
        int seen[6] = {0};
        for (int64_t j = 0; j < 400; j++) {
            const double value = AT(tensor, j);
            assert_true(value >= 0 && value < (double)high && value == floor(value));
            seen[(int)value]++;
        }
        for (int64_t value = 0; value < high; value++) {
            assert_true(seen[value] > 30);
        }
    }
    assert_null(ls_randint(LS_SHAPE(1), LS_I64, 3, 3));
    assert_null(ls_randint(LS_SHAPE(1), LS_U8, 0, 257));
    assert_non_null(ls_randint(LS_SHAPE(1), LS_U8, 0, 256));
    assert_null(ls_randint(LS_SHAPE(1), LS_F16, 0, 5000));
    assert_null(ls_randint(LS_SHAPE(1), LS_BF16, 512, 513));
    expect_message("ls_randint: [512, 513) exceeds -256 to 256, where bf16 has every integer");
    assert_null(ls_randint(LS_SHAPE(1), LS_I32, -3000000000, 0));
}

TEST(test_permutations) {
    ls_seed(3);
    const ls_tensor *order = ls_randperm(100);
    assert_int_equal(ls_dtype_of(order), LS_I64);
    int seen[100] = {0};
    int moved = 0;
    for (int i = 0; i < 100; i++) {
        const int64_t number = ((const int64_t *)elements(order))[i];
        assert_true(number >= 0 && number < 100);
        seen[number]++;
        moved += number != i;
    }
    for (int i = 0; i < 100; i++) {
        assert_int_equal(seen[i], 1);
    }
    assert_true(moved > 80);
    ls_seed(3);
    assert_true(ls_equal(ls_randperm(100), order));
    assert_int_equal(ls_numel(ls_randperm(0)), 0);
    assert_null(ls_randperm(-1));
}

static void count_release(void *data, void *user) {
    (void)data;
    *(int *)user += 1;
}

TEST(test_from_memory) {
    double numbers[] = {1, 2, 3, 4};
    ls_tensor *copy = ls_from(LS_SHAPE(2, 2), LS_F64, numbers);
    ls_tensor *lent = ls_from_memory(LS_SHAPE(2, 2), LS_F64, numbers, NULL, NULL);
    numbers[3] = 9;
    assert_true(AT(copy, 1, 1) == 4);
    assert_true(AT(lent, 1, 1) == 9);
    assert_null(ls_from(LS_SHAPE(2), LS_F32, NULL));
    assert_non_null(ls_from(LS_SHAPE(0), LS_F32, NULL));
    int released = 0;
    assert_null(ls_from_memory(LS_SHAPE(1), LS_F64, (char *)numbers + 1, count_release, &released));
    assert_null(ls_from_memory(LS_SHAPE(1, -1), LS_F64, numbers, count_release, &released));
    assert_null(ls_from_memory(LS_SHAPE(INT64_MAX, 4), LS_F64, numbers, count_release, &released));
    assert_int_equal(released, 3); /* the memory is released even after a failure */
    ls_tensor *none = ls_from_memory(LS_SHAPE(0, 3), LS_F64, numbers, count_release, &released);
    assert_int_equal(ls_size(none, 1), 3);
    ls_release(none);
    assert_int_equal(released, 4);
    assert_int_equal(ls_numel(ls_from_memory(LS_SHAPE(0), LS_F64, NULL, NULL, NULL)), 0);
    ls_release(lent);
}

TEST(test_from_strided) {
    double numbers[12];
    for (int i = 0; i < 12; i++) {
        numbers[i] = i;
    }
    int released = 0;
    /* Columns 0 and 2 of the column-major [3, 4] in `numbers`, transposed. */
    ls_tensor *part =
        ls_from_strided(LS_SHAPE(2, 3), (const int64_t[]){6, 1}, LS_F64, numbers, count_release, &released);
    assert_true(AT(part, 1, 2) == 8);
    assert_false(ls_is_contiguous(part));
    assert_null(ls_data(part));
    assert_ptr_equal(ls_data_strided(part), numbers);
    ls_tensor *row = ls_select(part, 0, 1);
    assert_ptr_equal(ls_data_strided(row), &numbers[6]);
    assert_int_equal(ls_fill(part, -1), LS_OK);
    assert_true(numbers[2] == -1 && numbers[3] == 3 && numbers[6] == -1 && numbers[9] == 9);
    ls_release(part);
    assert_int_equal(released, 0); /* a view still uses the memory */
    ls_release(row);
    assert_int_equal(released, 1);
    ls_tensor *dense = ls_from_strided(LS_SHAPE(3, 4), NULL, LS_F64, numbers, NULL, NULL);
    assert_true(ls_is_contiguous(dense) && AT(dense, 2, 3) == 11);
    ls_release(dense);
    ls_tensor *line = ls_from_strided(LS_SHAPE(1, 4), (const int64_t[]){0, 3}, LS_F64, numbers, NULL, NULL);
    assert_true(AT(line, 0, 1) == 3);
    ls_release(line);
    assert_null(ls_data_strided(NULL));
}

TEST(test_from_strided_refuses_shared_elements) {
    double numbers[12] = {0};
    int released = 0;
    const int64_t strides[][2] = {{1, 1}, {2, 1}, {0, 1}, {-3, 1}, {1, 2}};
    for (int i = 0; i < 5; i++) {
        assert_null(ls_from_strided(LS_SHAPE(3, 3), strides[i], LS_F64, numbers, count_release, &released));
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
        expect_message("ls_from_strided: the stride of axis ");
        assert_int_equal(released, i + 1);
    }
    assert_null(ls_from_strided(LS_SHAPE(3, 3), (const int64_t[]){INT64_MAX / 2, 1}, LS_F64, numbers, NULL, NULL));
    assert_int_equal(ls_error_status(), LS_ERR_SHAPE);
    assert_null(ls_from_strided(LS_SHAPE(2), (const int64_t[]){2}, LS_F64, NULL, NULL, NULL));
    /* The elements are distinct, but in an order that the rule of strides excludes. */
    assert_null(ls_from_strided(LS_SHAPE(3, 2), (const int64_t[]){2, 3}, LS_F64, numbers, NULL, NULL));
    expect_message("ls_from_strided: the stride of axis 1 is 3, but must be at least 5, the number of elements that");
    /* The distance of the elements in bytes exceeds int64_t, and wrapped around to a neighbor. */
    const int64_t wrapping[] = {((int64_t)1 << 61) + 1, ((int64_t)1 << 60) + 1};
    for (int i = 0; i < 2; i++) {
        assert_null(ls_from_strided(LS_SHAPE(2), &wrapping[i], LS_F64, numbers, NULL, NULL));
        assert_int_equal(ls_error_status(), LS_ERR_SHAPE);
        expect_message("ls_from_strided: the stride of axis 0, ");
    }
}

TEST(test_reading_one_element) {
    ls_tensor *tensor = ls_arange(LS_SHAPE(3, 4), LS_F32);
    assert_true(AT(tensor, -1, -2) == 10);
    assert_true(isnan(AT(tensor, 3, 0)));
    assert_string_equal(ls_error_message(), "ls_at: index 3 is out of range along axis 0 of [3, 4]");
    assert_true(isnan(AT(tensor, 0, -5)));
    assert_true(isnan(ls_item(tensor)));
    assert_string_equal(ls_error_message(), "ls_item: the tensor [3, 4] has 12 elements, not one");
    assert_true(isnan(ls_item(NULL)));
    assert_true(isnan(ls_at(tensor, NULL)));
    const int64_t index = 0;
    assert_true(isnan(ls_at(NULL, &index)));
    assert_true(ls_item(ls_full(LS_SHAPE(1, 1), LS_I64, 5)) == 5);
}

TEST(test_copy_into_broadcasts_and_converts) {
    ls_tensor *to = ls_zeros(LS_SHAPE(2, 3), LS_F16);
    assert_int_equal(ls_copy_into(to, ls_arange(LS_SHAPE(3), LS_I32)), LS_OK);
    assert_true(AT(to, 1, 2) == 2);
    assert_int_equal(ls_copy_into(to, ls_scalar(7, LS_F64)), LS_OK);
    assert_true(AT(to, 0, 0) == 7);
    assert_int_equal(ls_copy_into(to, ls_arange(LS_SHAPE(2, 1), LS_F16)), LS_OK);
    assert_true(AT(to, 1, 0) == 1 && AT(to, 0, 2) == 0);
    assert_int_equal(ls_copy_into(to, ls_zeros(LS_SHAPE(2), LS_F16)), LS_ERR_SHAPE);
    assert_string_equal(ls_error_message(), "ls_copy_into: [2] does not broadcast to [2, 3]");
    assert_int_equal(ls_copy_into(to, ls_zeros(LS_SHAPE(1, 2, 3), LS_F16)), LS_ERR_SHAPE);
    assert_int_equal(ls_copy_into(NULL, to), LS_ERR_ARGUMENT);
}

TEST(test_copy_into_overlapping_memory) {
    ls_tensor *tensor = ls_arange(LS_SHAPE(6), LS_F32);
    const int64_t size = 5;
    const int64_t stride = 1;
    ls_tensor *front = ls_tensor_view(tensor, 1, &size, &stride, 0);
    ls_tensor *back = ls_tensor_view(tensor, 1, &size, &stride, 1);
    assert_int_equal(ls_copy_into(back, front), LS_OK);
    for (int64_t i = 1; i < 6; i++) {
        assert_true(AT(tensor, i) == (double)(i - 1));
    }
    ls_tensor *square = ls_arange(LS_SHAPE(2, 2), LS_F32);
    ls_tensor *transposed = ls_tensor_view(square, 2, (const int64_t[]){2, 2}, (const int64_t[]){1, 2}, 0);
    assert_int_equal(ls_copy_into(square, transposed), LS_OK);
    assert_true(AT(square, 0, 1) == 2 && AT(square, 1, 0) == 1);
}

TEST(test_what_may_not_be_changed) {
    ls_tensor *leaf = ls_zeros(LS_SHAPE(2), LS_F32);
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    assert_int_equal(ls_fill(leaf, 1), LS_ERR_STATE);
    assert_int_equal(ls_copy_into(leaf, leaf), LS_ERR_STATE);
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_fill(leaf, 1), LS_OK);
    (void)ls_no_grad(before);
    assert_true(AT(leaf, 1) == 1);
    ls_tensor *repeated = ls_tensor_view(leaf, 2, (const int64_t[]){3, 2}, (const int64_t[]){0, 1}, 0);
    assert_int_equal(ls_fill(repeated, 1), LS_ERR_STATE);
    assert_int_equal(ls_fill(NULL, 1), LS_ERR_ARGUMENT);
}

TEST(test_equal) {
    ls_tensor *a = ls_arange(LS_SHAPE(2, 3), LS_F32);
    ls_tensor *b = ls_arange(LS_SHAPE(2, 3), LS_F32);
    assert_true(ls_equal(a, b));
    assert_false(ls_equal(a, ls_arange(LS_SHAPE(3, 2), LS_F32)));
    assert_false(ls_equal(a, ls_arange(LS_SHAPE(2, 3), LS_F64)));
    assert_false(ls_equal(a, NULL));
    ls_tensor *crossed = ls_tensor_view(a, 2, (const int64_t[]){3, 2}, (const int64_t[]){1, 3}, 0);
    const float columns[] = {0, 3, 1, 4, 2, 5};
    assert_true(ls_equal(crossed, ls_from(LS_SHAPE(3, 2), LS_F32, columns)));
    ((float *)elements(b))[5] = -0.0F;
    assert_false(ls_equal(a, b));
    assert_false(ls_equal(ls_full(LS_SHAPE(1), LS_F32, 0.0), ls_full(LS_SHAPE(1), LS_F32, -0.0))); /* bits */
    assert_true(ls_equal(ls_full(LS_SHAPE(1), LS_F64, NAN), ls_full(LS_SHAPE(1), LS_F64, NAN)));
}

TEST(test_allclose) {
    const double one[] = {1, NAN, INFINITY, -1e-9};
    const double other[] = {1.0005, NAN, INFINITY, 0};
    ls_tensor *a = ls_from(LS_SHAPE(4), LS_F64, one);
    ls_tensor *b = ls_from(LS_SHAPE(4), LS_F64, other);
    assert_true(ls_allclose(a, b, 1e-3, 1e-8));
    assert_false(ls_allclose(a, b, 1e-4, 1e-8));
    assert_false(ls_allclose(a, b, 1e-3, 0));
    assert_false(ls_allclose(a, NULL, 1, 1));
    assert_false(ls_allclose(ls_full(LS_SHAPE(1), LS_F32, INFINITY), ls_full(LS_SHAPE(1), LS_F32, 1), 1, 1));
    assert_true(ls_allclose(ls_full(LS_SHAPE(2), LS_BF16, 3), ls_full(LS_SHAPE(2), LS_I32, 3), 0, 0));
}

/* Also integers that a double does not represent. */
TEST(test_allclose_of_integers) {
    ls_tensor *a = ls_from(LS_SHAPE(2), LS_I64, (const int64_t[]){((int64_t)1 << 53) + 1, INT64_MIN});
    ls_tensor *b = ls_from(LS_SHAPE(2), LS_I64, (const int64_t[]){(int64_t)1 << 53, INT64_MIN});
    assert_true(ls_allclose(a, a, 0, 0));
    assert_false(ls_allclose(a, b, 0, 0));
    assert_false(ls_allclose(b, a, 0, 0.5));
    assert_true(ls_allclose(a, b, 0, 1));
    assert_true(ls_allclose(a, b, 0x1p-53, 0));
    ls_tensor *most = ls_from(LS_SHAPE(1), LS_I64, (const int64_t[]){INT64_MAX});
    ls_tensor *least = ls_from(LS_SHAPE(1), LS_I64, (const int64_t[]){INT64_MIN});
    assert_false(ls_allclose(most, least, 1, 0));
    assert_true(ls_allclose(most, least, 2, 0));
    assert_true(ls_allclose(ls_ones(LS_SHAPE(2), LS_BOOL), ls_ones(LS_SHAPE(2), LS_U8), 0, 0));
    assert_false(ls_allclose(a, a, 0, NAN));
    assert_false(ls_allclose(a, a, 0, -1));
    const int64_t more = ((int64_t)1 << 53) + 1;
    assert_false(ls_allclose(ls_from(LS_SHAPE(1), LS_I64, &more), ls_zeros(LS_SHAPE(1), LS_I64), 0, 0x1p53));
    assert_true(ls_allclose(most, least, 0, INFINITY));
}

#define ELEMENT_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        ELEMENT_TEST(test_filled_tensors_of_every_dtype),
        ELEMENT_TEST(test_arange),
        ELEMENT_TEST(test_random_numbers_follow_the_generator),
        ELEMENT_TEST(test_uniform_numbers_are_below_one),
        ELEMENT_TEST(test_random_integers),
        ELEMENT_TEST(test_permutations),
        ELEMENT_TEST(test_from_memory),
        ELEMENT_TEST(test_from_strided),
        ELEMENT_TEST(test_from_strided_refuses_shared_elements),
        ELEMENT_TEST(test_reading_one_element),
        ELEMENT_TEST(test_copy_into_broadcasts_and_converts),
        ELEMENT_TEST(test_copy_into_overlapping_memory),
        ELEMENT_TEST(test_what_may_not_be_changed),
        ELEMENT_TEST(test_equal),
        ELEMENT_TEST(test_allclose),
        ELEMENT_TEST(test_allclose_of_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
