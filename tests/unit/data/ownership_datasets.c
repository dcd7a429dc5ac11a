/*
 * Ownership of tensors and data sets: data sets and loaders take ownership once or several times, in scopes and
 * outside, even if they fail. With the leak check of the address sanitizer, the test is complete. Otherwise, data sets
 * that count their destruction show that each is freed once.
 *
 * devices: cpu shadow cuda
 */
#include "base/status.h"
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <lockstep/autograd.h>
#include <lockstep/data.h>

static int ended; /* number of counting data sets that were freed */

static ls_status counting_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    (void)self;
    for (int64_t i = 0; i < samples->count; i++) {
        ((float *)elements(input))[i] = (float)samples->indices[i];
        ((float *)elements(target))[i] = (float)-samples->indices[i];
    }
    return LS_OK;
}

static void dataset_ends(ls_dataset *self) {
    (void)self;
    ended++;
}

/* Sample i is (i, -i). */
static ls_dataset *counting_set(int64_t count) {
    static const ls_dataset_type type = {.name = "counting", .fetch = counting_fetch, .free_state = dataset_ends};
    const ls_sample_layout layout = {.input_dtype = LS_F32, .target_dtype = LS_F32};
    ended = 0;
    return ls_dataset_new(&type, count, &layout);
}

static ls_loader *in_order(ls_dataset *dataset) {
    return ls_loader_new(dataset, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
}

/* Checks that the next batch begins with this input and this target. */
static void next_is(ls_loader *loader, double input, double target) {
    ls_batch batch;
    bool more = false;
    assert_non_null(loader);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_true(more);
    assert_true(((const float *)elements(batch.input))[0] == (float)input);
    assert_true(((const float *)elements(batch.target))[0] == (float)target);
}

TEST(test_inputs_that_are_their_own_targets) {
    for (int in_scope = 0; in_scope < 2; in_scope++) {
        ls_scope *scope = in_scope ? ls_scope_begin() : NULL;
        ls_tensor *x = ls_arange(LS_SHAPE(4, 3), LS_F32);
        ls_loader *loader = in_order(ls_tensor_dataset(x, x));
        if (!in_scope) {
            ls_release(x); /* no longer owned by the caller, so it has no effect */
        }
        next_is(loader, 0, 0);
        next_is(loader, 6, 6);
        if (in_scope) {
            assert_true(ls_item(ls_sum(x)) == 66);
            ls_release(x);
            assert_int_equal(ls_scope_end(scope), LS_OK);
            assert_int_equal(ls_loader_seek(loader, 0, 1), LS_OK);
            next_is(loader, 6, 6);
        }
        ls_loader_free(loader);
    }
}

TEST(test_one_tensor_in_two_data_sets) {
    ls_tensor *x = ls_arange(LS_SHAPE(4), LS_F32);
    ls_dataset *first = ls_tensor_dataset(x, ls_ones(LS_SHAPE(4), LS_F32));
    ls_dataset *second = ls_tensor_dataset(ls_zeros(LS_SHAPE(4), LS_F32), x);
    ls_dataset_free(first);
    ls_loader *loader = in_order(second);
    next_is(loader, 0, 0);
    next_is(loader, 0, 2);
    ls_loader_free(loader);
}

TEST(test_two_loaders_of_one_data_set) {
    for (int order = 0; order < 2; order++) {
        ls_dataset *dataset = counting_set(6);
        ls_loader *loaders[3] = {in_order(dataset), in_order(dataset)};
        loaders[2] = in_order(ls_loader_dataset(loaders[0]));
        ls_dataset_free(dataset); /* no longer owned by the caller, so it has no effect */
        next_is(loaders[0], 0, 0);
        ls_loader_free(loaders[order]);
        next_is(loaders[1 - order], order == 1 ? 2 : 0, order == 1 ? -2 : 0);
        ls_loader_free(loaders[1 - order]);
        next_is(loaders[2], 0, 0);
        assert_int_equal(ended, 0);
        ls_loader_free(loaders[2]);
        assert_int_equal(ended, 1);
    }
}

TEST(test_two_subsets_of_one_data_set) {
    for (int order = 0; order < 2; order++) {
        ls_dataset *whole = counting_set(10);
        ls_loader *parts[] = {in_order(ls_dataset_subset(whole, 0, 7)), in_order(ls_dataset_subset(whole, 7, 3))};
        ls_loader *all = in_order(whole);
        ls_loader_free(parts[order]);
        next_is(parts[1 - order], order == 1 ? 0 : 7, order == 1 ? 0 : -7);
        next_is(all, 0, 0);
        ls_loader_free(all);
        assert_int_equal(ended, 0);
        ls_loader_free(parts[1 - order]);
        assert_int_equal(ended, 1);
    }
}

TEST(test_a_retained_data_set) {
    ls_dataset *dataset = ls_dataset_retain(counting_set(4));
    for (int i = 0; i < 3; i++) { /* one loader after another */
        ls_loader *loader = in_order(dataset);
        next_is(loader, 0, 0);
        ls_loader_free(loader);
    }
    assert_null(ls_dataset_subset(dataset, 3, 9));
    assert_int_equal(ended, 0);
    ls_dataset_free(dataset);
    assert_int_equal(ended, 1);
    dataset =
        ls_dataset_retain(counting_set(4)); /* retained, and no object takes ownership, so there are two references */
    ls_dataset_free(dataset);
    assert_int_equal(ls_dataset_count(dataset), 4);
    ls_dataset_free(dataset);
    assert_int_equal(ended, 1);
    assert_null(ls_dataset_retain(NULL));
}

/* The usual order in a C program: objects created last are freed first. */
TEST(test_data_sets_that_are_gone) {
    ls_dataset *dataset = counting_set(4);
    ls_loader *loaders[] = {in_order(dataset), in_order(dataset)};
    ls_loader_free(loaders[1]);
    ls_loader_free(loaders[0]);
    assert_int_equal(ended, 1);
    ls_dataset_free(dataset);
    ls_dataset_free(dataset);
    assert_int_equal(ended, 1);
    assert_null(in_order(dataset));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    expect_message("keep it with ls_dataset_retain");
    assert_null(ls_dataset_subset(dataset, 0, 0));
    assert_null(ls_dataset_preload(dataset));
    assert_null(ls_dataset_flatten(dataset));
    assert_null(ls_dataset_retain(dataset));
    assert_int_equal(ls_dataset_count(dataset), 0);
}

/* Without an earlier error of a constructor, the constructors below report the missing data set. */
TEST(test_constructors_without_a_data_set) {
    ls_error_restore(LS_OK, "");
    assert_null(ls_loader_new(NULL, NULL));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message("ls_loader_new: the data set is NULL");
    ls_error_restore(LS_OK, "");
    assert_null(ls_dataset_normalize(NULL, 0, 1));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    ls_error_restore(LS_OK, "");
    assert_null(ls_dataset_random_flip(NULL, 0, 0));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    (void)ls_error_set(LS_ERR_IO, "no file");
    assert_null(ls_loader_new(ls_dataset_flatten(ls_dataset_subset(NULL, 0, 1)), NULL));
    assert_int_equal(ls_error_status(), LS_ERR_IO);
    expect_message("no file; ls_loader_new: the data set is NULL");
}

TEST(test_a_data_set_that_another_fails_to_take) {
    const ls_loader_options bad = {.batch_size = -1};
    ls_dataset *dataset = counting_set(4);
    ls_loader *loader = in_order(dataset);
    assert_null(ls_loader_new(dataset, &bad));
    assert_null(ls_dataset_subset(dataset, 0, 5));
    assert_null(ls_dataset_normalize(dataset, 0, 0));
    assert_null(ls_dataset_one_hot(dataset, 0));
    assert_null(ls_dataset_one_hot(dataset, -3));
    assert_null(ls_dataset_transform_input(dataset, NULL, NULL));
    assert_int_equal(ended, 0);
    next_is(loader, 0, 0);
    ls_loader_free(loader);
    assert_int_equal(ended, 1);
    assert_null(ls_loader_new(counting_set(4), &bad)); /* the inner constructor frees the data set */
    assert_int_equal(ended, 1);
    assert_null(ls_dataset_subset(counting_set(4), 0, 5));
    assert_int_equal(ended, 1);
    assert_null(ls_dataset_transform_target(counting_set(4), NULL, NULL));
    expect_message("ls_dataset_transform_target: the transform is NULL");
    assert_int_equal(ended, 1);
}

TEST(test_the_number_of_transforms) {
    ls_dataset *dataset = counting_set(4);
    for (int i = 0; i < 16; i++) {
        dataset = ls_dataset_flatten(dataset);
        assert_non_null(dataset);
    }
    assert_null(ls_dataset_flatten(dataset));
    expect_message("ls_dataset: the input has 16 transforms, which is the maximum");
}

TEST(test_tensors_that_a_data_set_fails_to_take) {
    for (int in_scope = 0; in_scope < 2; in_scope++) {
        ls_scope *scope = in_scope ? ls_scope_begin() : NULL;
        ls_tensor *x = ls_arange(LS_SHAPE(4), LS_F32);
        /* Outside a scope, freeing the first data set would free x if no other data set owned it. */
        ls_dataset *dataset = in_scope ? NULL : ls_tensor_dataset(x, x);
        assert_null(ls_tensor_dataset(x, NULL));
        assert_null(ls_tensor_dataset(NULL, x));
        assert_null(ls_tensor_dataset(x, ls_ones(LS_SHAPE(3), LS_F32)));
        assert_null(ls_tensor_dataset(ls_ones(LS_SHAPE(3), LS_F32), x));
        dataset = in_scope ? ls_tensor_dataset(x, x) : dataset;
        if (in_scope) {
            (void)ls_scope_end(scope);
        }
        ls_loader *loader = in_order(dataset);
        next_is(loader, 0, 0);
        next_is(loader, 2, 2);
        ls_loader_free(loader);
    }
    ls_tensor *number = ls_scalar(1, LS_F32);
    assert_null(ls_tensor_dataset(number, number)); /* freed once */
    assert_null(ls_tensor_dataset(number, number));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    expect_message("or was freed with its last owner");
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_F32);
    ls_tensor *y = ls_ones(LS_SHAPE(2), LS_F32);
    ls_dataset_free(ls_tensor_dataset(x, x));
    assert_null(ls_tensor_dataset(x, y)); /* frees y, too */
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    assert_int_equal(ls_numel(y), 0);
}

static ls_tensor *plus_ten(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_add(batch, 10.0);
}

TEST(test_transforms_leave_what_others_hold) {
    ls_dataset *dataset = counting_set(4);
    assert_ptr_equal(ls_dataset_transform_input(dataset, plus_ten, NULL), dataset);
    ls_loader *plain = in_order(dataset);
    ls_dataset *more = ls_dataset_transform_input(dataset, plus_ten, NULL);
    assert_ptr_not_equal(more, dataset);
    assert_ptr_equal(ls_dataset_normalize(more, 0, 2), more); /* now its own */
    ls_loader *changed = in_order(more);
    next_is(plain, 10, 0);
    next_is(changed, 10, 0);
    next_is(plain, 12, -2);
    next_is(changed, 11, -2);
    ls_loader_free(plain);
    assert_int_equal(ended, 0);
    ls_loader_free(changed);
    assert_int_equal(ended, 1);
    dataset = ls_dataset_retain(counting_set(4));
    more = ls_dataset_transform_input(dataset, plus_ten, NULL);
    assert_ptr_not_equal(more, dataset);
    ls_dataset_free(more);
    plain = in_order(dataset);
    next_is(plain, 0, 0);
    ls_loader_free(plain);
    ls_dataset_free(dataset);
    assert_int_equal(ended, 1);
}

TEST(test_preloading_a_shared_data_set) {
    ls_dataset *dataset = counting_set(4);
    ls_loader *read = in_order(dataset);
    ls_loader *kept = in_order(ls_dataset_preload(dataset));
    ls_loader_free(read);
    assert_int_equal(ended, 1);
    next_is(kept, 0, 0);
    next_is(kept, 2, -2);
    ls_loader_free(kept);
}

TEST(test_a_batch_becomes_a_data_set) {
    ls_loader *loader = in_order(counting_set(4));
    ls_batch batch;
    bool more = false;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    ls_release(batch.target); /* borrowed: no effect */
    ls_loader *copy = in_order(ls_tensor_dataset(batch.input, batch.target));
    next_is(loader, 2, -2);
    next_is(copy, 0, 0);
    ls_loader_free(loader);
    assert_int_equal(ls_loader_seek(copy, 0, 0), LS_OK);
    next_is(copy, 0, 0);
    ls_loader_free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs_that_are_their_own_targets),
        cmocka_unit_test(test_one_tensor_in_two_data_sets),
        cmocka_unit_test(test_two_loaders_of_one_data_set),
        cmocka_unit_test(test_two_subsets_of_one_data_set),
        cmocka_unit_test(test_a_retained_data_set),
        cmocka_unit_test(test_data_sets_that_are_gone),
        cmocka_unit_test(test_constructors_without_a_data_set),
        cmocka_unit_test(test_a_data_set_that_another_fails_to_take),
        cmocka_unit_test(test_the_number_of_transforms),
        cmocka_unit_test(test_tensors_that_a_data_set_fails_to_take),
        cmocka_unit_test(test_transforms_leave_what_others_hold),
        cmocka_unit_test(test_preloading_a_shared_data_set),
        cmocka_unit_test(test_a_batch_becomes_a_data_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
