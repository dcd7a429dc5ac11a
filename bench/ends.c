/*
 * Measures the resources of ranks and the time of shutdown: the largest number of descriptors of any rank after
 * ls_data_parallel and a training step, the longest ls_comm_free if ranks free communicators in different orders, and
 * the longest ls_finalize. Run it under a launcher:
 *
 *     LOCKSTEP_BACKEND=tcp build-bench/bin/lockstep run -n 256 build-bench/bench/ends
 *     LOCKSTEP_BACKEND=mpi mpirun.openmpi --oversubscribe -np 4 build-bench/bench/ends
 */
#include <dirent.h>
#include <stdio.h>
#include <time.h>

#include <lockstep/parallel.h>

enum { PARTS = 6 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int count_descriptors(void) {
    int count = -1; /* the descriptor of the folder itself is not counted */
    DIR *folder = opendir("/proc/self/fd");
    for (const struct dirent *entry = folder != NULL ? readdir(folder) : NULL; entry != NULL; entry = readdir(folder)) {
        count += entry->d_name[0] != '.';
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count;
}

static ls_status train(ls_comm *world) {
    ls_module *model = ls_data_parallel(ls_nn_linear(30, 20), world, NULL);
    ls_scope *scope = ls_scope_begin();
    ls_status status = ls_backward(ls_mean(ls_forward(model, ls_full(LS_SHAPE(2, 30), LS_F32, 1))));
    const ls_status ended = ls_scope_end(scope);
    status = status != LS_OK ? status : ended;
    ls_module_free(model);
    return status;
}

/* Stores the duration of this rank's longest ls_comm_free. */
static ls_status free_parts(ls_comm *world, double *longest) {
    const int rank = ls_comm_rank(world);
    ls_comm *parts[PARTS];
    for (int i = 0; i < PARTS; i++) {
        ls_status status = ls_comm_split(world, 0, rank, &parts[i]);
        status = status == LS_OK ? ls_comm_barrier(parts[i], NULL) : status;
        if (status != LS_OK) {
            return status;
        }
    }
    for (int i = 0; i < PARTS; i++) {
        const int turn = rank % 2 == 0 ? i : PARTS - 1 - i;
        const double begun = now();
        ls_comm_free(parts[(turn + rank) % PARTS]);
        *longest = now() - begun > *longest ? now() - begun : *longest;
    }
    return LS_OK;
}

int main(void) {
    ls_comm *world = ls_init(NULL);
    double most[2] = {0}; /* descriptors; seconds */
    ls_status status = world != NULL ? train(world) : LS_ERR_STATE;
    /* Rank 0 serves the store, so it has a connection for each rank. */
    most[0] = ls_comm_rank(world) != 0 ? count_descriptors() : 0;
    status = status == LS_OK ? ls_comm_barrier(world, NULL) : status;
    status = status == LS_OK ? free_parts(world, &most[1]) : status;
    status = status == LS_OK ? ls_comm_allreduce(world, most, most, 2, LS_F64, LS_MAX, NULL) : status;
    if (status != LS_OK) {
        fprintf(stderr, "ends: %s\n", ls_error_message());
        return 1;
    }
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    const double begun = now();
    status = ls_finalize();
    if (rank == 0) {
        printf("%d ranks: %.0f descriptors at most (rank 0 aside), ls_comm_free %.1f ms at most, ls_finalize %.1f ms\n",
               size, most[0], most[1] * 1e3, (now() - begun) * 1e3);
    }
    return status == LS_OK ? 0 : 1;
}
