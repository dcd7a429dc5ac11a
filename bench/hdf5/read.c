/*
 * Times a loader over a chunked, compressed HDF5 file in three orders, in turn: sequential (no_shuffle), shuffled by
 * blocks (shuffle_window), and shuffled by sample. Prints the median speed of each order, and the median over rounds of
 * its ratio to sequential reading. Shuffling by sample reads a chunk for each sample, so it reads only the first
 * samples of an epoch.
 *
 *     build-bench/bench/hdf5_read [THREADS [ROUNDS]]
 *
 * The file has 8,192 samples of f32 [32, 32] (32 MiB) in chunks of 64 samples (256 KiB), compressed by shuffle and
 * deflate. The cache holds 8 MiB, the window has 8 chunks. Defaults: no threads, 15 rounds. The file is in the page
 * cache.
 */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "../median.h"

enum { SAMPLES = 8192, SIDE = 32, CHUNK = 64, WINDOW = 8, BATCH = 64, CACHE = 8 << 20, ORDERS = 3, RANDOM = 512 };
enum { MOST_ROUNDS = 1000 };

static const char path[] = "hdf5_read_bench.h5";

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Smooth fields with some noise, which deflate compresses to about half the size. */
static void fill(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)(i % 1024) + (float)(ls_random_u32(1, 0, i) % 64) / 64;
    }
}

static int write_file(void) {
    const hsize_t size[] = {SAMPLES, SIDE, SIDE}, chunk[] = {CHUNK, SIDE, SIDE};
    const size_t count = (size_t)SAMPLES * SIDE * SIDE;
    float *values = malloc(count * sizeof *values);
    if (values == NULL) {
        return -1;
    }
    fill(values, count);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t space = H5Screate_simple(3, size, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, 3, chunk);
    H5Pset_shuffle(creation);
    H5Pset_deflate(creation, 4);
    const hid_t variable = H5Dcreate2(file, "u", H5T_IEEE_F32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    const herr_t status = H5Dwrite(variable, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    printf("compressed to %.0f %%\n", 100 * (double)H5Dget_storage_size(variable) / (double)(count * sizeof *values));
    H5Dclose(variable);
    H5Pclose(creation);
    H5Sclose(space);
    free(values);
    return H5Fclose(file) < 0 || status < 0 ? -1 : 0;
}

/* Reads an epoch, or its first samples, with a new cache. Returns samples per second. On failure, prints a message
 * and returns 0. */
static double read_samples(int order, int threads) {
    static const char *const names[] = {"u"};
    const ls_array_options options = {.input = {.variables = names, .variable_count = 1},
                                      .target = {.variables = names, .variable_count = 1},
                                      .cache_bytes = CACHE};
    const ls_loader_options loading = {.batch_size = BATCH,
                                       .seed = 3,
                                       .threads = threads,
                                       .no_shuffle = order == 0,
                                       .shuffle_window = order == 1 ? WINDOW : 0,
                                       .epoch_samples = order == 2 ? RANDOM : 0};
    const double begun = now();
    ls_loader *loader = ls_loader_new(ls_hdf5_dataset(path, &options), &loading);
    ls_batch batch;
    int64_t count = 0;
    bool more = loader != NULL;
    ls_status status = LS_OK;
    while (more && (status = ls_loader_next(loader, &batch, &more)) == LS_OK && more) {
        count += batch.count;
    }
    const double seconds = now() - begun;
    ls_loader_free(loader);
    if (loader == NULL || status != LS_OK) {
        fprintf(stderr, "hdf5_read: %s\n", ls_error_message());
        return 0;
    }
    return (double)count / seconds;
}

static int measure(int threads, int rounds) {
    static const char *const names[ORDERS] = {"sequential", "shuffled by blocks", "shuffled by sample"};
    static double speeds[ORDERS][MOST_ROUNDS], ratios[ORDERS][MOST_ROUNDS];
    for (int round = -1; round < rounds; round++) { /* the first round warms up */
        const int at = round < 0 ? 0 : round;
        for (int order = 0; order < ORDERS; order++) {
            speeds[order][at] = read_samples(order, threads);
            if (speeds[order][at] == 0) {
                return 1;
            }
            ratios[order][at] = speeds[order][at] / speeds[0][at];
        }
    }
    for (int order = 0; order < ORDERS; order++) {
        const double speed = median(speeds[order], rounds);
        printf("%-20s %8.0f samples/s %7.1f MiB/s  ratio %.3f\n", names[order], speed,
               speed * SIDE * SIDE * sizeof(float) / (1 << 20), median(ratios[order], rounds));
    }
    return 0;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 0, rounds = argc > 2 ? atoi(argv[2]) : 15;
    if (threads < 0 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: hdf5_read [THREADS [ROUNDS]]\n");
        return 2;
    }
    const int status = write_file() == 0 ? measure(threads, rounds) : 1;
    (void)unlink(path);
    return status;
}
