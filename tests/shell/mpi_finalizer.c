/*
 * Run by the tests of backend mpi: rank 1 calls MPI_Finalize without ls_comm_free, while the other ranks wait for it.
 * Later calls of rank 1 fail.
 */
#include <lockstep/lockstep.h>
#include <lockstep/mpi.h>
#include <mpi.h>
#include <stdio.h>
static void call_both(ls_comm *comm, ls_comm *part) {
    for (int i = 0; i < 2; i++) {
        const ls_status status = ls_comm_barrier(i == 0 ? comm : part, NULL);
        printf("%d: %s: %s\n", ls_comm_rank(comm), ls_status_name(status), ls_error_message());
    }
    fflush(stdout);
}

int main(int argc, char **argv) { /* BACKEND */
    MPI_Init(&argc, &argv);
    ls_comm *comm = ls_comm_from_mpi(MPI_COMM_WORLD, &(ls_init_options){.backend = argv[1], .timeout = 60});
    ls_comm *part = NULL;
    if (comm == NULL || ls_comm_split(comm, 0, ls_comm_rank(comm), &part) != LS_OK ||
        ls_comm_barrier(comm, NULL) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 9;
    }
    const int rank = ls_comm_rank(comm);
    if (rank != 1) {
        call_both(comm, part);
    }
    const int ended = MPI_Finalize();
    if (rank == 1) {
        call_both(comm, part);
        ls_comm_free(part);
        ls_comm_free(comm);
    }
    return ended;
}
