/*
 * Block-wise shuffling in the loader: each sample occurs once, windows consist of whole blocks, global batches are
 * sorted by block, and the order is the same for any number of threads. Also parts of data sets.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <lockstep/autograd.h>
#include <lockstep/data.h>

#include "data/dataset.h"

enum { SAMPLES = 1003, BLOCK = 10, BLOCKS = 101, WINDOW = 4, BATCH = 16 };

/* Sample i is the number i. A data set of tensors has no blocks of its own. */
static ls_dataset *numbers(int64_t count) {
    ls_tensor *x = ls_arange(LS_SHAPE(count), LS_I64);
    return ls_tensor_dataset(x, x);
}

/* Reads an epoch of `count` samples. */
static void read_epoch(ls_loader *loader, int64_t *order, int64_t count) {
    int64_t read = 0;
    ls_batch batch;
    bool more = true;
    assert_non_null(loader);
    for (;;) {
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        if (!more) {
            break;
        }
        assert_true(read + batch.count <= count);
        memcpy(order + read, elements(batch.input), (size_t)batch.count * sizeof *order);
        read += batch.count;
    }
    assert_int_equal(read, count);
}

static void expect_permutation(const int64_t *order, int64_t count) {
    bool seen[SAMPLES] = {false};
    for (int64_t i = 0; i < count; i++) {
        assert_true(order[i] >= 0 && order[i] < count && !seen[order[i]]);
        seen[order[i]] = true;
    }
}

/* Returns the number of block reads of a reader whose cache holds `cached` blocks. */
static int count_reads(const int64_t *order, int64_t count, int64_t first, int cached) {
    int64_t cache[64];
    int reads = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t block = (order[i] + BLOCK - first) / BLOCK;
        int at = 0;
        while (at < size && cache[at] != block) {
            at++;
        }
        if (at == size) {
            reads++;
            size += size < cached;
            at = size - 1;
        }
        memmove(cache + 1, cache, (size_t)at * sizeof *cache); /* the least recently used block is the last */
        cache[0] = block;
    }
    return reads;
}

SCOPED_TEST(windows_of_whole_blocks) {
    int64_t orders[3][SAMPLES];
    const ls_loader_options options = {
        .batch_size = BATCH, .seed = 5, .shuffle_window = WINDOW, .shuffle_block = BLOCK};
    ls_loader *loader = ls_loader_new(numbers(SAMPLES), &options);
    for (int epoch = 0; epoch < 2; epoch++) {
        read_epoch(loader, orders[epoch], SAMPLES);
        expect_permutation(orders[epoch], SAMPLES);
        assert_int_equal(count_reads(orders[epoch], SAMPLES, 0, 2 * WINDOW), BLOCKS);
        for (int64_t i = 1; i < SAMPLES; i++) { /* within a batch, a block does not recur after a different block */
            for (int64_t before = i / BATCH * BATCH; before + 1 < i; before++) {
                assert_true(orders[epoch][before] / BLOCK != orders[epoch][i] / BLOCK ||
                            orders[epoch][before + 1] / BLOCK == orders[epoch][i] / BLOCK);
            }
        }
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
    /* The samples are mixed: a window has several blocks, and a batch draws from more blocks than necessary. */
    int mixed = 0;
    for (int64_t batch = 0; batch + BATCH <= SAMPLES; batch += BATCH) {
        mixed += count_reads(orders[0] + batch, BATCH, 0, 64) > (BATCH + BLOCK - 1) / BLOCK;
    }
    assert_true(mixed > SAMPLES / BATCH / 2);
    assert_int_equal(ls_loader_seek(loader, 0, 0), LS_OK);
    read_epoch(loader, orders[2], SAMPLES);
    assert_memory_equal(orders[0], orders[2], sizeof orders[0]);
    ls_loader_free(loader);
}

/* If the window covers all blocks, each batch is drawn from the whole data set. If block and window are 1, single
 * samples are shuffled. */
SCOPED_TEST(extreme_windows) {
    static const int64_t cases[][2] = {{BLOCKS + 5, BLOCK}, {1, 1}, {1, SAMPLES}, {1, 2 * SAMPLES}, {3, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t order[SAMPLES], threaded[SAMPLES];
        ls_loader_options options = {
            .global_batch_size = BATCH, .seed = i, .shuffle_window = cases[i][0], .shuffle_block = cases[i][1]};
        ls_loader *loader = ls_loader_new(numbers(SAMPLES), &options);
        read_epoch(loader, order, SAMPLES);
        ls_loader_free(loader);
        expect_permutation(order, SAMPLES);
        options.threads = 3;
        loader = ls_loader_new(numbers(SAMPLES), &options);
        read_epoch(loader, threaded, SAMPLES);
        ls_loader_free(loader);
        assert_memory_equal(order, threaded, sizeof order);
    }
}

/* With contiguous shares of each global batch, a rank reads few blocks in addition to its share of them. */
SCOPED_TEST(ranks_read_parts) {
    enum { RANKS = 2, WIDE = 8 };
    int64_t order[SAMPLES], share[SAMPLES];
    const ls_loader_options options = {
        .global_batch_size = BATCH, .seed = 5, .shuffle_window = WIDE, .shuffle_block = BLOCK};
    ls_loader *loader = ls_loader_new(numbers(SAMPLES), &options);
    read_epoch(loader, order, SAMPLES);
    ls_loader_free(loader);
    for (int rank = 0; rank < RANKS; rank++) {
        int64_t count = 0;
        for (int64_t i = 0; i < SAMPLES; i++) {
            if (i % BATCH / (BATCH / RANKS) == rank) {
                share[count++] = order[i];
            }
        }
        assert_true(count_reads(share, count, 0, WIDE + 2) < BLOCKS * 3 / 4);
    }
}

/* A contiguous part keeps the blocks, which are counted from its own first sample. */
SCOPED_TEST(parts_of_data_sets) {
    enum { FIRST = 37, COUNT = 500 };
    int64_t order[COUNT];
    ls_dataset *whole = numbers(SAMPLES);
    whole->storage = (ls_sample_storage){.block = BLOCK, .cached = INT64_MAX};
    ls_dataset *part = ls_dataset_subset(ls_dataset_subset(whole, 7, SAMPLES - 7), FIRST - 7, COUNT);
    assert_int_equal(ls_dataset_block(part), BLOCK);
    assert_int_equal(part->storage.first, 3);
    ls_loader *loader = ls_loader_new(part, &(ls_loader_options){.batch_size = BATCH, .shuffle_window = WINDOW});
    read_epoch(loader, order, COUNT);
    for (int i = 0; i < COUNT; i++) {
        order[i] -= FIRST;
    }
    expect_permutation(order, COUNT);
    assert_int_equal(count_reads(order, COUNT, 3, 2 * WINDOW), 1 + (COUNT - 3 + BLOCK - 1) / BLOCK);
    ls_loader_free(loader);
}

/* If possible, blocks of the loader begin where blocks of the data set begin. */
SCOPED_TEST(blocks_of_a_part) {
    enum { FIRST = 7, COUNT = 500, PART_BLOCKS = 1 + (COUNT - 3 + BLOCK - 1) / BLOCK };
    int64_t order[COUNT];
    ls_dataset *whole = numbers(SAMPLES);
    whole->storage = (ls_sample_storage){.block = BLOCK, .cached = 4 * WINDOW};
    ls_dataset *part = ls_dataset_retain(ls_dataset_subset(whole, FIRST, COUNT));
    ls_loader_options options = {.batch_size = BATCH, .shuffle_window = WINDOW, .shuffle_block = 2 * BLOCK};
    ls_loader *loader = ls_loader_new(part, &options);
    read_epoch(loader, order, COUNT);
    for (int i = 0; i < COUNT; i++) {
        order[i] -= FIRST;
    }
    expect_permutation(order, COUNT);
    assert_int_equal(count_reads(order, COUNT, 3, 4 * WINDOW), PART_BLOCKS);
    ls_loader_free(loader);
    options.shuffle_window = WINDOW + 1;
    assert_null(ls_loader_new(part, &options));
    expect_message("windows of 4");
    options.shuffle_block = BLOCK + 2; /* may span three blocks: 1 + 10 + 1 samples */
    assert_null(ls_loader_new(part, &options));
    expect_message("windows of 2");
    options.shuffle_block = BLOCK + 1;
    assert_null(ls_loader_new(part, &options));
    expect_message("windows of 4");
    ls_dataset_free(part);
}

SCOPED_TEST(mistakes) {
    ls_dataset *set = numbers(SAMPLES);
    static const double weights[SAMPLES];
    const struct {
        ls_loader_options options;
        const char *part;
    } cases[] = {
        {{.shuffle_window = 2}, "the data set has no blocks"},
        {{.shuffle_block = 2}, ".shuffle_block needs a .shuffle_window"},
        {{.shuffle_window = -1, .shuffle_block = 2}, "must be 0 or more"},
        {{.shuffle_window = 2, .shuffle_block = 2, .no_shuffle = true}, "set at most one of"},
        {{.shuffle_window = 2, .shuffle_block = 2, .weights = weights, .weight_count = SAMPLES}, "set at most one of"},
    };
    assert_int_equal(ls_dataset_block(set), 0);
    assert_int_equal(ls_dataset_block(NULL), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(ls_loader_new(numbers(SAMPLES), &cases[i].options));
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
        expect_message(cases[i].part);
    }
    ls_dataset_free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_whole_blocks), cmocka_unit_test(extreme_windows),
        cmocka_unit_test(ranks_read_parts),        cmocka_unit_test(parts_of_data_sets),
        cmocka_unit_test(blocks_of_a_part),        cmocka_unit_test(mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
