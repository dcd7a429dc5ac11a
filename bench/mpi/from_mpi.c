/*
 * Compares the backends of ls_comm_from_mpi on one machine. Times an in-place all-reduce of f32 in four ways, in turn:
 * over shared memory (the default) from ordinary memory and from ls_comm_alloc, over backend mpi, and by MPI_Allreduce.
 * Prints the median of all rounds. A round takes as long as its slowest rank. Built once for each MPI library that
 * CMake finds:
 *
 *     mpirun.openmpi --bind-to core -np 2 build-bench/bench/from_mpi_openmpi [BYTES [ROUNDS]]
 *     mpirun.mpich -bind-to core -np 2 build-bench/bench/from_mpi_mpich [BYTES [ROUNDS]]
 *
 * The defaults are 2,700,000 bytes, about the gradients of examples/fashion_mnist, and 15 rounds.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/mpi.h>

enum { CALLS = 20, WARM_UP_ROUNDS = 2, CONTESTANTS = 4 };

typedef struct contestant {
    const char *name;
    ls_comm *comm; /* NULL: MPI_Allreduce */
    float *buffer;
    double *times; /* microseconds per call, one entry per round */
} contestant;

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ls_status all_reduce(const contestant *c, size_t count) {
    if (c->comm != NULL) {
        return ls_comm_allreduce(c->comm, c->buffer, c->buffer, count, LS_F32, LS_SUM, NULL);
    }
    MPI_Allreduce(MPI_IN_PLACE, c->buffer, (int)count, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD); /* ends the job on failure */
    return LS_OK;
}

/* Times one round. Each call multiplies the elements, initially 1, by the number of ranks. */
static ls_status measure(const contestant *c, size_t count, double *microseconds) {
    int size;
    float expected = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (size_t i = 0; i < count; i++) {
        c->buffer[i] = 1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = MPI_Wtime();
    for (int call = 0; call < CALLS; call++) {
        const ls_status status = all_reduce(c, count);
        if (status != LS_OK) {
            fprintf(stderr, "from_mpi: %s: %s\n", c->name, ls_error_message());
            return status;
        }
        expected *= (float)size;
    }
    *microseconds = (MPI_Wtime() - begun) * 1e6 / CALLS;
    if (c->buffer[0] != expected || c->buffer[count - 1] != expected) {
        fprintf(stderr, "from_mpi: %s: wrong result\n", c->name);
        return LS_ERR_STATE;
    }
    return LS_OK;
}

static ls_status run(const contestant *contestants, size_t count, int rounds) {
    ls_status status = LS_OK;
    for (int round = -WARM_UP_ROUNDS; round < rounds && status == LS_OK; round++) {
        for (int k = 0; k < CONTESTANTS && status == LS_OK; k++) {
            double time = 0;
            status = measure(&contestants[k], count, &time);
            if (round >= 0) {
                contestants[k].times[round] = time;
            }
        }
    }
    return status;
}

static void print(const contestant *contestants, size_t bytes, int rounds) {
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) {
        printf("%s, all-reduce of %zu bytes by %d ranks, medians of %d rounds of %d calls\n", LS_MPI_LIBRARY, bytes,
               size, rounds, CALLS);
    }
    for (int k = 0; k < CONTESTANTS; k++) {
        MPI_Allreduce(MPI_IN_PLACE, contestants[k].times, rounds, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        qsort(contestants[k].times, (size_t)rounds, sizeof(double), compare);
        if (rank == 0) {
            printf("%-24s %10.1f us\n", contestants[k].name, contestants[k].times[rounds / 2]);
        }
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    const size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 2700000;
    const int rounds = argc > 2 ? atoi(argv[2]) : 15;
    ls_comm *shared = ls_comm_from_mpi(MPI_COMM_WORLD, NULL);
    ls_comm *mpi = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = "mpi"});
    float *ordinary = malloc(bytes), *allocated = shared != NULL ? ls_comm_alloc(shared, bytes) : NULL;
    if (bytes < sizeof(float) || rounds < 1 || mpi == NULL || ordinary == NULL || allocated == NULL) {
        fprintf(stderr, "usage: from_mpi [BYTES [ROUNDS]]; last error: %s\n", ls_error_message());
        MPI_Abort(MPI_COMM_WORLD, 2);
        return 2;
    }
    contestant contestants[CONTESTANTS] = {{"default", shared, ordinary, NULL},
                                           {"default, ls_comm_alloc", shared, allocated, NULL},
                                           {"backend mpi", mpi, ordinary, NULL},
                                           {"MPI_Allreduce", NULL, ordinary, NULL}};
    for (int k = 0; k < CONTESTANTS; k++) {
        contestants[k].times = calloc((size_t)rounds, sizeof(double));
    }
    if (run(contestants, bytes / sizeof(float), rounds) != LS_OK) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    print(contestants, bytes, rounds);
    for (int k = 0; k < CONTESTANTS; k++) {
        free(contestants[k].times);
    }
    ls_comm_release(shared, allocated);
    free(ordinary);
    ls_comm_free(mpi);
    ls_comm_free(shared);
    MPI_Finalize();
    return 0;
}
