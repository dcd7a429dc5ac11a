/*
 * Measures an all-reduce between two ranks of this machine, by size: microseconds per call, the median over calls, on
 * the slower rank. "ordinary" memory is from malloc, "shared" memory from ls_comm_alloc. Each rank writes its "fresh"
 * buffers just before the call, as a program writes gradients; "again" buffers keep the previous call's result. Use it
 * to tune the tables of backend shm.
 *
 *     build-bench/bench/allreduce [RANKS]
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/comm.h>

enum { ROUNDS = 300, BATCH = 64 };

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static ls_status slowest_median(ls_comm *world, double *times, int count, double *result) {
    qsort(times, (size_t)count, sizeof *times, compare);
    *result = times[count / 2];
    return ls_comm_allreduce(world, result, result, 1, LS_F64, LS_MAX, NULL);
}

static ls_status measure(ls_comm *world, float *buffer, size_t count, bool fresh, double *result) {
    double times[ROUNDS];
    const int batch = !fresh && count <= 4096 ? BATCH : 1;
    const int rounds = count > 1000000 ? ROUNDS / 5 : ROUNDS;
    for (int round = -5; round < rounds; round++) {
        if (fresh) {
            for (size_t i = 0; i < count; i++) {
                buffer[i] = (float)(round + 7);
            }
        }
        ls_status status = ls_comm_barrier(world, NULL);
        const uint64_t start = ls_clock_ns();
        for (int i = 0; i < batch && status == LS_OK; i++) {
            status = ls_comm_allreduce(world, buffer, buffer, count, LS_F32, LS_AVG, NULL);
        }
        if (status != LS_OK) {
            return status;
        }
        if (round >= 0) {
            times[round] = (double)(ls_clock_ns() - start) / batch;
        }
    }
    return slowest_median(world, times, rounds, result);
}

static ls_status run(ls_comm *world, void *argument) {
    (void)argument;
    static const size_t sizes[] = {4,     64,     80,     256,    1024,    4800,    8192,    16384,   32768,
                                   65536, 131072, 262144, 524288, 1048576, 2700000, 4194304, 16777216};
    const size_t most = 16777216;
    float *buffers[2] = {malloc(most), ls_comm_alloc(world, most)};
    if (buffers[0] == NULL || buffers[1] == NULL) {
        return LS_ERR_MEMORY;
    }
    if (ls_comm_rank(world) == 0) {
        printf("%10s  %12s %12s  %12s %12s   (microseconds)\n", "bytes", "ord. again", "ord. fresh", "shared again",
               "shared fresh");
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double times[4];
        for (int kind = 0; kind < 4; kind++) {
            const ls_status status = measure(world, buffers[kind / 2], sizes[i] / 4, kind % 2 == 1, &times[kind]);
            if (status != LS_OK) {
                return status;
            }
        }
        if (ls_comm_rank(world) == 0) {
            printf("%10zu  %12.2f %12.2f  %12.2f %12.2f\n", sizes[i], times[0] / 1e3, times[1] / 1e3, times[2] / 1e3,
                   times[3] / 1e3);
            fflush(stdout);
        }
    }
    free(buffers[0]);
    return LS_OK;
}

int main(int argc, char **argv) {
    const int ranks = argc > 1 ? atoi(argv[1]) : 2;
    const ls_status status = ls_spawn(ranks, run, NULL);
    if (status != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
    }
    return status == LS_OK ? 0 : 1;
}
