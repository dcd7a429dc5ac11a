/*
 * tensor: ownership of tensors, when they are freed, and the source of their memory.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <pthread.h>

#include "tensor/device.h"
#include "tests/support/allocator.h"

static int released;

static void count_release(void *data, void *user) {
    (void)data;
    *(int *)user += 1;
}

/* Makes a tensor whose destruction is counted in `released`. */
static ls_tensor *make_watched(void) {
    static float memory[6];
    return ls_from_memory(LS_SHAPE(2, 3), LS_F32, memory, count_release, &released);
}

static int start(void **state) {
    (void)state;
    released = 0;
    (void)ls_error_set(LS_OK, "%s", "");
    return 0;
}

TEST(test_a_scope_frees_what_was_made_in_it) {
    ls_scope *scope = ls_scope_begin();
    assert_non_null(make_watched());
    assert_non_null(make_watched());
    assert_int_equal(released, 0);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(released, 2);
}

TEST(test_without_a_scope_the_user_frees) {
    ls_tensor *tensor = make_watched();
    assert_ptr_equal(ls_keep(tensor), tensor);
    assert_int_equal(released, 0);
    ls_release(tensor);
    assert_int_equal(released, 1);
    ls_release(NULL);
    assert_null(ls_keep(NULL));
}

TEST(test_keep_lifts_one_scope_at_a_time) {
    ls_scope *outer = ls_scope_begin();
    ls_scope *inner = ls_scope_begin();
    ls_tensor *once = ls_keep(make_watched());
    ls_tensor *twice = ls_keep(ls_keep(make_watched()));
    assert_non_null(make_watched());
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_int_equal(released, 1);
    assert_int_equal(ls_numel(once), 6);
    assert_int_equal(ls_scope_end(outer), LS_OK);
    assert_int_equal(released, 2);
    assert_int_equal(ls_numel(twice), 6);
    ls_release(twice);
    assert_int_equal(released, 3);
}

TEST(test_release_inside_a_scope) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *first = make_watched();
    ls_tensor *second = make_watched();
    ls_tensor *third = make_watched();
    ls_release(second);
    assert_int_equal(released, 1);
    ls_release(third);
    assert_int_equal(released, 2);
    assert_int_equal(ls_size(first, 1), 3);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(released, 3);
}

TEST(test_a_scope_ends_only_when_innermost) {
    ls_scope *outer = ls_scope_begin();
    ls_scope *inner = ls_scope_begin();
    assert_int_equal(ls_scope_end(outer), LS_ERR_STATE);
    expect_message("innermost");
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_int_equal(ls_scope_end(outer), LS_OK);
}

TEST(test_a_scope_tells_its_first_error) {
    ls_scope *outer = ls_scope_begin();
    ls_scope *inner = ls_scope_begin();
    assert_null(ls_empty(LS_SHAPE(2, -3), LS_F32));
    char first[256];
    snprintf(first, sizeof first, "%s", ls_error_message());
    assert_string_equal(first, "ls_empty: shape [2, -3] has a negative size");
    assert_null(ls_empty(LS_SHAPE(1), (ls_dtype)99));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    assert_int_equal(ls_scope_end(inner), LS_ERR_SHAPE);
    assert_string_equal(ls_error_message(), first);
    assert_int_equal(ls_scope_end(outer), LS_OK); /* the inner scope has already reported its error */
}

TEST(test_ending_no_scope) {
    assert_int_equal(ls_scope_end(NULL), LS_ERR_ARGUMENT);
}

TEST(test_functions_for_macros) {
    const int64_t sizes[LS_MAX_DIMS + 1] = {2, 3, 4};
    const int axes[LS_MAX_DIMS + 1] = {1, -1};
    const ls_shape shape = ls_shape_make(3, sizes), same = LS_SHAPE(2, 3, 4);
    const ls_axes two = ls_axes_make(2, axes), both = LS_AXES(1, -1);
    assert_int_equal(shape.ndim, 3);
    assert_int_equal(same.ndim, 3);
    assert_memory_equal(shape.size, same.size, sizeof shape.size);
    assert_memory_equal(&two, &both, sizeof two);
    assert_int_equal(ls_shape_make(0, NULL).ndim, 0);
    assert_int_equal(ls_shape_make(LS_MAX_DIMS + 1, sizes).ndim, -1);
    assert_int_equal(ls_shape_make(-3, NULL).ndim, -1);
    assert_int_equal(ls_shape_make(2, NULL).ndim, -1);
    assert_int_equal(ls_axes_make(2, NULL).count, -1);
    assert_int_equal(ls_axes_make(LS_MAX_DIMS + 1, axes).count, -1);
    assert_int_equal(ls_axes_make(-3, NULL).count, -1);
    assert_true(ls_option_zero() == LS_ZERO);
}

TEST(test_shapes_that_cannot_be) {
    assert_null(ls_empty(ls_shape_make(-3, NULL), LS_F32));
    expect_message("ls_empty: the shape has more than 8 dimensions, fewer than 0, or no sizes");
    assert_null(ls_empty(LS_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1), LS_F32));
    assert_int_equal(ls_error_status(), LS_ERR_SHAPE);
    assert_null(ls_empty(LS_SHAPE(INT64_MAX, INT64_MAX), LS_F32));
    assert_int_equal(ls_error_status(), LS_ERR_MEMORY);
    assert_null(ls_empty(LS_SHAPE(INT64_MAX / 2), LS_F64));
    assert_int_equal(ls_error_status(), LS_ERR_MEMORY);
    assert_null(ls_empty(LS_SHAPE((int64_t)1 << 58), LS_U8));
    assert_int_equal(ls_error_status(), LS_ERR_MEMORY);
}

TEST(test_empty_tensors) {
    ls_tensor *tensor = ls_zeros(LS_SHAPE(3, 0, 2), LS_F64);
    assert_non_null(tensor);
    assert_int_equal(ls_numel(tensor), 0);
    assert_int_equal(ls_ndim(tensor), 3);
    assert_true(ls_is_contiguous(tensor));
    ls_release(tensor);
}

TEST(test_views_share_memory) {
    ls_tensor *base = make_watched();
    ls_tensor *other = ls_alias(base);
    ls_tensor *column = ls_tensor_view(base, 1, (const int64_t[]){2}, (const int64_t[]){3}, 1);
    assert_ptr_equal(ls_data(other), ls_data(base));
    assert_ptr_equal(ls_data_const(other), ls_data(other));
    assert_false(ls_is_contiguous(column));
    assert_null(ls_data(column));
    assert_null(ls_data_const(column));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    assert_int_equal(ls_fill(base, 4), LS_OK);
    assert_true(ls_at(column, (const int64_t[]){1}) == 4.0);
    ls_release(base);
    ls_release(other);
    assert_int_equal(released, 0);
    assert_true(ls_at(column, (const int64_t[]){0}) == 4.0);
    ls_release(column);
    assert_int_equal(released, 1);
}

TEST(test_looking) {
    ls_tensor *tensor = ls_empty(LS_SHAPE(2, 3, 4), LS_I32);
    assert_int_equal(ls_size(tensor, -1), 4);
    assert_int_equal(ls_stride(tensor, 0), 12);
    assert_int_equal(ls_size(tensor, 3), 0);
    assert_int_equal(ls_size(tensor, -4), 0);
    const ls_shape shape = ls_shape_of(tensor);
    assert_int_equal(shape.ndim, 3);
    assert_int_equal(shape.size[1], 3);
    assert_int_equal(ls_dtype_of(tensor), LS_I32);
    assert_string_equal(LS_SHAPE_TEXT(tensor), "[2, 3, 4]");
    assert_int_equal(ls_ndim(NULL) + (int)ls_numel(NULL) + (int)ls_size(NULL, 0), 0);
    assert_null(ls_data(NULL));
    assert_null(ls_data_const(NULL));
    ls_release(tensor);
}

TEST(test_take_and_give) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *tensor = ls_tensor_take(make_watched());
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(released, 0);
    scope = ls_scope_begin();
    assert_ptr_equal(ls_tensor_give(tensor), tensor);
    assert_ptr_equal(ls_tensor_give(ls_tensor_hold(tensor)), tensor); /* a second reference is not added to the scope */
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(released, 1);
    assert_null(ls_tensor_take(NULL));
    assert_null(ls_tensor_give(NULL));
}

TEST(test_rehome_keeps_handles_good) {
    ls_tensor *flat = ls_zeros(LS_SHAPE(10), LS_F32);
    ls_tensor *tensor = ls_full(LS_SHAPE(2, 2), LS_F32, 7);
    assert_int_equal(ls_tensor_move_storage(tensor, flat->storage, 3, true), LS_OK);
    const float *numbers = elements(flat);
    assert_true(numbers[2] == 0 && numbers[3] == 7 && numbers[6] == 7 && numbers[7] == 0);
    ls_release(flat);
    assert_true(ls_at(tensor, (const int64_t[]){1, 1}) == 7.0);
    ls_release(tensor);
}

TEST(test_size_classes) {
    int last = 0;
    for (size_t bytes = 0; bytes < 100000; bytes += bytes < 2100 ? 1 : 97) {
        const int bin = ls_cache_bin(bytes);
        assert_true(bin == last || bin == last + 1);
        assert_true(ls_cache_bin_bytes(bin) >= bytes);
        assert_true(bin == 0 || ls_cache_bin_bytes(bin - 1) < bytes);
        last = bin;
    }
}

TEST(test_memory_is_aligned_and_used_again) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    for (int round = 0; round < 5; round++) {
        ls_scope *scope = ls_scope_begin();
        for (int64_t n = 1; n < 3000; n = n * 3 / 2 + 1) {
            const ls_tensor *tensor = ls_empty(LS_SHAPE(n), LS_F64);
            assert_int_equal((uintptr_t)tensor->data % 64, 0);
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
#ifndef LS_SANITIZED
        if (round < 2) { /* the records of the first round are not reused before the end of the second round */
            atomic_store(&allocator.calls, 0);
        }
        assert_int_equal(atomic_load(&allocator.calls), 0);
#endif
    }
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

static void *free_in_thread(void *tensor) {
    ls_release(tensor);
    return NULL;
}

static void *leave_things_open(void *unused) {
    (void)ls_scope_begin();
    assert_non_null(make_watched());
    (void)ls_scope_begin();
    assert_non_null(make_watched());
    return unused;
}

static void run_thread(void *(*function)(void *), void *argument) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, function, argument), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

TEST(test_threads_give_everything_back) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    run_thread(free_in_thread, ls_zeros(LS_SHAPE(1000), LS_F32));
    run_thread(leave_things_open, NULL);
    assert_int_equal(released, 2);
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

/* A thread that only frees other threads' allocations caches at most the limit. */
TEST(test_a_cache_has_a_limit) {
    ls_cache cache;
    ls_cache_init(&cache);
    cache.limit = 1000;
    for (int i = 0; i < 3; i++) {
        ls_cache other;
        ls_cache_init(&other);
        void *block = ls_cache_allocate(&other, 512);
        assert_non_null(block);
        ls_cache_release(&cache, block, 512);
    }
    assert_true(cache.held <= cache.limit);
    ls_cache_empty(&cache);
    assert_int_equal(cache.held, 0);
}

/* A cache with blocks of other sizes is emptied before an out-of-memory error is reported. */
TEST(test_a_full_cache_is_emptied_when_memory_is_short) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    ls_release(ls_empty(LS_SHAPE(5000), LS_F32));
    atomic_store(&allocator.fail_once, atomic_load(&allocator.calls));
    ls_tensor *tensor = ls_empty(LS_SHAPE(50000), LS_F32);
#ifndef LS_SANITIZED
    assert_non_null(tensor);
#endif
    ls_release(tensor);
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

static ls_status make_a_few(void) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_tensor *base = ls_full(LS_SHAPE(3, 4), LS_F64, 2);
    ls_tensor *kept = ls_keep(base != NULL ? ls_alias(base) : NULL);
    (void)ls_randperm(5);
    (void)ls_randint(LS_SHAPE(4), LS_F16, 0, 9);
    (void)make_watched();
    const ls_status status = ls_scope_end(scope);
    ls_release(kept);
    return status;
}

TEST(test_every_failing_allocation_is_an_error) {
    test_allocator allocator;
    bool worked = false;
    for (long fail = 0; fail < 100 && !worked; fail++) {
        test_allocator_start(&allocator);
        atomic_store(&allocator.fail_from, fail);
        const ls_status status = make_a_few();
        assert_true(status == LS_ERR_MEMORY || status == LS_OK);
        worked = status == LS_OK;
        assert_int_equal(test_allocator_stop(&allocator), 0);
    }
    assert_true(worked);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_scope_frees_what_was_made_in_it, start),
        cmocka_unit_test_setup(test_without_a_scope_the_user_frees, start),
        cmocka_unit_test_setup(test_keep_lifts_one_scope_at_a_time, start),
        cmocka_unit_test_setup(test_release_inside_a_scope, start),
        cmocka_unit_test_setup(test_a_scope_ends_only_when_innermost, start),
        cmocka_unit_test_setup(test_a_scope_tells_its_first_error, start),
        cmocka_unit_test_setup(test_ending_no_scope, start),
        cmocka_unit_test_setup(test_functions_for_macros, start),
        cmocka_unit_test_setup(test_shapes_that_cannot_be, start),
        cmocka_unit_test_setup(test_empty_tensors, start),
        cmocka_unit_test_setup(test_views_share_memory, start),
        cmocka_unit_test_setup(test_looking, start),
        cmocka_unit_test_setup(test_take_and_give, start),
        cmocka_unit_test_setup(test_rehome_keeps_handles_good, start),
        cmocka_unit_test_setup(test_size_classes, start),
        cmocka_unit_test_setup(test_memory_is_aligned_and_used_again, start),
        cmocka_unit_test_setup(test_threads_give_everything_back, start),
        cmocka_unit_test_setup(test_a_cache_has_a_limit, start),
        cmocka_unit_test_setup(test_a_full_cache_is_emptied_when_memory_is_short, start),
        cmocka_unit_test_setup(test_every_failing_allocation_is_an_error, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
