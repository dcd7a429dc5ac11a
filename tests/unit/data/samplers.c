/*
 * The order of samples in loaders: weighted sampling, a custom order, and the number of samples.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>
#include <lockstep/data.h>

/* Sample i is the number i, with the same target. */
static ls_dataset *numbers(int64_t count) {
    ls_tensor *x = ls_arange(LS_SHAPE(count), LS_F64);
    return ls_tensor_dataset(x, x);
}

/* Reads the loader's epoch from the current position. */
static int64_t read_epoch(ls_loader *loader, int64_t *seen, int64_t capacity) {
    int64_t count = 0;
    for (;;) {
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        if (!more) {
            return count;
        }
        for (int64_t i = 0; i < batch.count; i++) {
            assert_true(count < capacity);
            seen[count++] = (int64_t)((const double *)elements(batch.input))[i];
        }
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

enum { N = 6, DRAWS = 3000 };
static const double weights[N] = {0, 3, 0.5, 0, 6.5, 0};

/* Returns draw i as documented. */
static int64_t expected_draw(uint64_t seed, uint64_t epoch, uint64_t i) {
    double all = 0;
    double sum = 0;
    for (int sample = 0; sample < N; sample++) {
        all += weights[sample];
    }
    for (int64_t sample = 0; sample < N; sample++) {
        sum += weights[sample];
        if (sum > ls_random_uniform(seed, epoch, i) * all) {
            return sample;
        }
    }
    return -1;
}

static ls_loader *weighted(int64_t batch_size, int64_t epoch_samples) {
    double copied[N];
    memcpy(copied, weights, sizeof copied);
    ls_loader *loader = ls_loader_new(numbers(N), &(ls_loader_options){.batch_size = batch_size,
                                                                       .weights = copied,
                                                                       .weight_count = N,
                                                                       .epoch_samples = epoch_samples,
                                                                       .seed = 11});
    assert_non_null(loader);
    memset(copied, 0, sizeof copied);
    return loader;
}

TEST(test_draws_follow_the_formula) {
    int64_t seen[DRAWS];
    int64_t often[N] = {0};
    ls_loader *loader = weighted(7, DRAWS);
    assert_int_equal(ls_loader_batch_count(loader), (DRAWS + 6) / 7);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        assert_int_equal(read_epoch(loader, seen, DRAWS), DRAWS);
        for (int i = 0; i < DRAWS; i++) {
            assert_int_equal(seen[i], expected_draw(11, epoch, (uint64_t)i));
            often[seen[i]]++;
        }
    }
    for (int i = 0; i < N; i++) { /* within five standard deviations */
        const double share = weights[i] / 10;
        assert_true(fabs((double)often[i] - 2 * DRAWS * share) <= 5 * sqrt(2 * DRAWS * share * (1 - share)));
    }
    ls_loader_free(loader);
}

/* Draws are independent of earlier draws and of the batch size. */
TEST(test_draws_depend_on_epoch_and_index_only) {
    int64_t first[N];
    int64_t again[N];
    ls_loader *loader = weighted(2, 0);
    assert_int_equal(ls_loader_seek(loader, 5, 0), LS_OK);
    assert_int_equal(read_epoch(loader, first, N), N);
    assert_int_equal(read_epoch(loader, again, N), N); /* epoch 6 */
    assert_memory_not_equal(first, again, sizeof first);
    assert_int_equal(ls_loader_seek(loader, 5, 1), LS_OK);
    assert_int_equal(read_epoch(loader, again, N), N - 2);
    assert_memory_equal(first + 2, again, (N - 2) * sizeof *first);
    ls_loader_free(loader);
    loader = weighted(5, 0);
    assert_int_equal(ls_loader_seek(loader, 5, 0), LS_OK);
    assert_int_equal(read_epoch(loader, again, N), N);
    assert_memory_equal(first, again, sizeof first);
    ls_loader_free(loader);
}

/* ---- custom orders ----------------------------------------------------------------------------------------------- */

/* Backwards and cyclic, from a start that depends on the epoch. */
static ls_status backwards(int64_t epoch, int64_t *order, int64_t count, void *user) {
    const int64_t *n = user;
    for (int64_t i = 0; i < count; i++) {
        order[i] = (*n - 1 - i % *n + epoch) % *n;
    }
    return LS_OK;
}

static ls_status fail_in_epoch_1(int64_t epoch, int64_t *order, int64_t count, void *user) {
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        order[i] = i == 2 && epoch == 0 ? 4 : 0;
    }
    return epoch == 1 ? LS_ERR_IO : LS_OK;
}

/* An order computed by tensor operations, one of which fails in epoch 1. */
static ls_status by_tensors(int64_t epoch, int64_t *order, int64_t count, void *user) {
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        order[i] = (int64_t)ls_item(ls_mul(ls_ones(LS_SHAPE(1), LS_F64), (double)i));
    }
    ls_add(ls_ones(LS_SHAPE(2), LS_F32), ls_ones(LS_SHAPE(epoch == 1 ? 3 : 2), LS_F32));
    return LS_OK;
}

/* A sampler's tensors belong to a separate scope. */
TEST(test_own_order_by_tensors) {
    ls_batch batch;
    bool more;
    ls_loader *loader = ls_loader_new(numbers(4), &(ls_loader_options){.batch_size = 4, .sampler = by_tensors});
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_int_equal(ls_loader_seek(loader, 1, 0), LS_OK);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_SHAPE);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_loader_free(loader);
}

TEST(test_own_order) {
    int64_t n = 4;
    int64_t seen[10];
    ls_loader *loader = ls_loader_new(
        numbers(n),
        &(ls_loader_options){.batch_size = 3, .sampler = backwards, .sampler_user = &n, .epoch_samples = 10});
    assert_int_equal(ls_loader_batch_count(loader), 4);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        assert_int_equal(read_epoch(loader, seen, 10), 10);
        for (int64_t i = 0; i < 10; i++) {
            assert_int_equal(seen[i], (3 - i % 4 + epoch) % 4);
        }
    }
    ls_loader_free(loader);
}

TEST(test_own_order_that_is_wrong) {
    ls_batch batch;
    bool more;
    ls_loader *loader = ls_loader_new(numbers(4), &(ls_loader_options){.sampler = fail_in_epoch_1});
    for (int i = 0; i < 2; i++) { /* called again */
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_ARGUMENT);
        expect_message("the sampler returned 4 as index 2 of epoch 0, but the data set has 4 samples");
    }
    assert_int_equal(ls_loader_seek(loader, 1, 0), LS_OK);
    (void)ls_error_set(LS_ERR_PEER, "an older error");
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_IO);
    expect_message("failed with LS_ERR_IO");
    assert_int_equal(ls_loader_seek(loader, 2, 0), LS_OK);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    ls_loader_free(loader);
}

/* ---- numbers of samples ------------------------------------------------------------------------------------------ */

TEST(test_fewer_samples_than_there_are) {
    int64_t all[9];
    int64_t some[9];
    for (int in_order = 0; in_order < 2; in_order++) {
        ls_loader_options options = {.batch_size = 2, .seed = 3, .no_shuffle = in_order == 1};
        ls_loader *whole = ls_loader_new(numbers(9), &options);
        options.epoch_samples = 5;
        ls_loader *part = ls_loader_new(numbers(9), &options);
        assert_int_equal(ls_loader_batch_count(part), 3);
        for (int epoch = 0; epoch < 3; epoch++) { /* different in each epoch: the first samples of its order */
            assert_int_equal(read_epoch(whole, all, 9), 9);
            assert_int_equal(read_epoch(part, some, 9), 5);
            assert_memory_equal(all, some, 5 * sizeof *all);
        }
        ls_loader_free(whole);
        ls_loader_free(part);
    }
}

static void expect_no_loader(const ls_loader_options *options, const char *reason) {
    (void)ls_error_set(LS_ERR_PEER, "an older error");
    assert_null(ls_loader_new(numbers(3), options));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message(reason);
}

TEST(test_wrong_options) {
    const double bad[][3] = {{1, -0.5, 1}, {1, 1, NAN}, {INFINITY, 1, 1}, {0, 0, 0}, {1e308, 1e308, 1}};
    static const char *const reasons[] = {"weight 1 is -0.5", "weight 2 is nan", "weight 0 is inf", "add up to 0",
                                          "add up to inf"};
    for (int i = 0; i < 5; i++) {
        expect_no_loader(&(ls_loader_options){.weights = bad[i], .weight_count = 3}, reasons[i]);
    }
    const double good[] = {1, 2, 3, 4};
    expect_no_loader(&(ls_loader_options){.weights = good, .weight_count = 4}, "4 weights for 3 samples");
    expect_no_loader(&(ls_loader_options){.weights = good}, "0 weights for 3 samples");
    expect_no_loader(&(ls_loader_options){.weights = good, .weight_count = 3, .no_shuffle = true},
                     "set at most one of .weights, .sampler, .no_shuffle and .shuffle_window");
    expect_no_loader(&(ls_loader_options){.weights = good, .weight_count = 3, .sampler = backwards},
                     "set at most one of .weights, .sampler, .no_shuffle and .shuffle_window");
    expect_no_loader(&(ls_loader_options){.sampler = backwards, .no_shuffle = true},
                     "set at most one of .weights, .sampler, .no_shuffle and .shuffle_window");
    expect_no_loader(&(ls_loader_options){.epoch_samples = 4}, "an epoch has 4 samples, but the data set has only 3");
    expect_no_loader(&(ls_loader_options){.epoch_samples = -1, .sampler = backwards}, "an epoch has -1 samples");
    expect_no_loader(&(ls_loader_options){.epoch_samples = INT64_MAX / 2, .sampler = backwards},
                     "an epoch has 4611686018427387903 samples, whose order does not fit into memory");
    assert_null(ls_loader_new(numbers(0), &(ls_loader_options){.epoch_samples = 1, .sampler = backwards}));
    ls_loader *nothing = ls_loader_new(numbers(0), &(ls_loader_options){.weights = good});
    assert_int_equal(ls_loader_batch_count(nothing), 0);
    ls_loader_free(nothing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws_follow_the_formula),
        cmocka_unit_test(test_draws_depend_on_epoch_and_index_only),
        cmocka_unit_test(test_own_order),
        cmocka_unit_test(test_own_order_by_tensors),
        cmocka_unit_test(test_own_order_that_is_wrong),
        cmocka_unit_test(test_fewer_samples_than_there_are),
        cmocka_unit_test(test_wrong_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
