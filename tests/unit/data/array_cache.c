/*
 * How often an HDF5 data set reads each block of its file, counted by intercepting HDF5's read function: once per epoch
 * and window, with strides and samples of several steps, in the largest window that the cache allows.
 *
 * devices: cpu
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <dlfcn.h>

#include "tests/support/array_files.h"
#include "tests/support/files.h"

enum { STEPS = 1200, WIDTH = 4, CHUNK = 8, CHUNKS = STEPS / CHUNK, CHUNK_BYTES = CHUNK * WIDTH * 4, BATCH = 6 };

static int64_t reads;

/* Replaces HDF5's function, for the plug-in, too. */
__attribute__((visibility("default"))) herr_t H5Dread(hid_t variable, hid_t type, hid_t memory, hid_t file,
                                                      hid_t transfer, void *to) {
    static herr_t (*function)(hid_t, hid_t, hid_t, hid_t, hid_t, void *);
    if (function == NULL) {
        *(void **)&function = dlsym(RTLD_NEXT, "H5Dread");
    }
    reads++;
    return function(variable, type, memory, file, transfer, to);
}

/* Writes variable u [steps, width] and variable label [steps], each with its own chunk size. */
static const char *write_steps(void) {
    static char path[320];
    const hsize_t size[] = {STEPS, WIDTH}, chunk[] = {CHUNK, WIDTH}, other[] = {3 * CHUNK / 2};
    snprintf(path, sizeof path, "%s", test_path("steps.h5"));
    const hid_t file = hdf5_new_file(path);
    assert_true(hdf5_add_values(file, "u", 0, 2, size, chunk));
    assert_true(hdf5_add_values(file, "label", 1, 1, size, other));
    assert_int_equal(H5Fclose(file), 0);
    return path;
}

/* Fails the test unless the steps of each sample are consecutive. */
static void check_samples(const ls_batch *batch, int64_t steps) {
    const float *values = elements(batch->input);
    for (int64_t sample = 0; sample < batch->count; sample++, values += steps * WIDTH) {
        int64_t first = 0;
        while (values[0] != array_value(0, first * WIDTH)) {
            first++;
            assert_true(first < STEPS);
        }
        for (int64_t i = 0; i < steps * WIDTH; i++) {
            assert_true(values[i] == array_value(0, first * WIDTH + i));
        }
    }
}

/* Reads one epoch from the loader, and returns the number of samples. */
static int64_t read_epoch(ls_loader *loader, int64_t steps) {
    int64_t samples = 0;
    ls_batch batch;
    for (bool more = true; more; samples += batch.count) {
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        if (more) {
            check_samples(&batch, steps);
        }
    }
    return samples;
}

/* Reads an epoch with the largest window for a cache of `chunks` chunks. Returns the number of reads. */
static int64_t count_reads(ls_array_options options, int64_t chunks, int64_t block) {
    const int64_t steps = options.input.steps > 0 ? options.input.steps : 1;
    options.cache_bytes = chunks * CHUNK_BYTES;
    ls_dataset *dataset = ls_dataset_retain(ls_hdf5_dataset(write_steps(), &options));
    assert_non_null(dataset);
    assert_int_equal(ls_dataset_block(dataset), block);
    ls_loader_options loading = {.batch_size = BATCH, .seed = 3, .shuffle_window = 1};
    ls_loader *loader = ls_loader_new(dataset, &loading), *larger = loader;
    assert_non_null(loader);
    while (larger != NULL && loading.shuffle_window < CHUNKS) {
        loading.shuffle_window++;
        larger = ls_loader_new(dataset, &loading);
        if (larger != NULL) {
            ls_loader_free(loader);
            loader = larger;
        }
    }
    reads = 0;
    assert_int_equal(read_epoch(loader, steps), ls_dataset_count(dataset));
    ls_loader_free(loader);
    ls_dataset_free(dataset);
    return reads;
}

/* The stride does not divide the chunk size, so the samples of three chunks form a block. */
TEST(stride_across_chunks) {
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("u")}, .stride = 3};
    assert_int_equal(count_reads(options, 24, CHUNK), CHUNKS);
}

TEST(stride_that_divides_chunks) {
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("u")}, .stride = 4};
    assert_int_equal(count_reads(options, 24, CHUNK / 4), CHUNKS);
}

/* Each sample begins in a separate chunk. */
TEST(stride_larger_than_chunks) {
    const ls_array_options options = {.input = {NAMES("u"), .steps = 5}, .target = {NAMES("u")}, .stride = 19};
    assert_true(count_reads(options, 24, 1) <= 2 * (STEPS / 19 + 1));
}

/* The samples of a block need four chunks: their own, and the chunks of the next 17 steps. */
TEST(several_steps) {
    const ls_array_options options = {.input = {NAMES("u"), .steps = 18}, .target = {NAMES("u"), .first = 18}};
    assert_true(count_reads(options, 24, CHUNK) <= 4 * CHUNKS);
    const ls_array_options strided = {.input = {NAMES("u"), .steps = 10}, .target = {NAMES("u")}, .stride = 3};
    assert_true(count_reads(strided, 40, CHUNK) <= 5 * CHUNKS / 3);
}

/* A chunk of u may need two chunks of the labels, which have a different size. */
TEST(chunks_of_several_sizes) {
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("label")}};
    assert_true(count_reads(options, 16, CHUNK) <= CHUNKS + 4 * CHUNKS / 3);
}

/* A loader that is moved to the middle of an epoch returns the rest of this epoch, in the same order. */
TEST(middle_of_an_epoch) {
    enum { MIDDLE = 71 };
    const ls_array_options options = {.input = {NAMES("u")}, .target = {NAMES("u"), .first = 1}};
    const char *path = write_steps();
    for (int threads = 0; threads < 3; threads += 2) {
        const ls_loader_options loading = {.batch_size = BATCH, .seed = 3, .shuffle_window = 4, .threads = threads};
        ls_loader *whole = ls_loader_new(ls_hdf5_dataset(path, &options), &loading);
        ls_loader *moved = ls_loader_new(ls_hdf5_dataset(path, &options), &loading);
        ls_batch batch, same;
        bool more = true, more_of_same = true;
        assert_int_equal(ls_loader_seek(moved, 1, MIDDLE), LS_OK);
        assert_int_equal(ls_loader_seek(whole, 1, 0), LS_OK);
        for (int64_t i = 0; more; i++) {
            assert_int_equal(ls_loader_next(whole, &batch, &more), LS_OK);
            if (i >= MIDDLE) {
                assert_int_equal(ls_loader_next(moved, &same, &more_of_same), LS_OK);
                assert_true(more == more_of_same && batch.count == same.count);
                assert_true(!more || memcmp(elements(batch.input), elements(same.input),
                                            (size_t)batch.count * WIDTH * sizeof(float)) == 0);
            }
        }
        ls_loader_free(whole);
        ls_loader_free(moved);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stride_across_chunks),      cmocka_unit_test(stride_that_divides_chunks),
        cmocka_unit_test(stride_larger_than_chunks), cmocka_unit_test(several_steps),
        cmocka_unit_test(chunks_of_several_sizes),   cmocka_unit_test(middle_of_an_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
