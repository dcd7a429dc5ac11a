/*
 * Run by mpi_collectives.sh: ranks make three calls with MPI's own collectives. In the fourth, rank 1 misbehaves after
 * all ranks have agreed on the call. The functions below replace the library's functions in the module.
 */
#include <lockstep/mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static float numbers[200000], results[200000];
static const char *what = "";
static int rank, calls;

/* Returns whether MPI refuses to start this call on this rank. */
static int ends_here(MPI_Request *request, int *code) {
    static int nothing;
    if (++calls != 4 || rank != 1) {
        return 0;
    }
    if (strcmp(what, "kill") == 0) {
        raise(SIGKILL);
    } else if (strcmp(what, "stop") == 0) {
        raise(SIGSTOP);
    }
    *code = strcmp(what, "fail") == 0 ? MPI_ERR_OTHER : MPI_Irecv(&nothing, 1, MPI_INT, 0, 77, MPI_COMM_SELF, request);
    return 1;
}

int MPI_Iallreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    int code = MPI_SUCCESS;
    return ends_here(request, &code) ? code : PMPI_Iallreduce(send, receive, count, type, op, comm, request);
}

int MPI_Ibcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    int code = MPI_SUCCESS;
    return ends_here(request, &code) ? code : PMPI_Ibcast(buffer, count, type, root, comm, request);
}

static ls_status call(ls_comm *world, const char *name) {
    return strcmp(name, "broadcast") == 0 ? ls_comm_broadcast(world, results, 200000, LS_F32, 0, NULL)
                                          : ls_comm_allreduce(world, numbers, results, 200000, LS_F32, LS_SUM, NULL);
}

int main(int argc, char **argv) { /* CALL WHAT SECONDS */
    ls_init_options options = {.timeout = argc > 3 ? atof(argv[3]) : 60};
    ls_comm *world = ls_init(&options);
    if (argc < 4 || world == NULL || ls_comm_set_any_order(world, true) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 9;
    }
    what = argv[2];
    rank = ls_comm_rank(world);
    ls_status status = LS_OK;
    for (int i = 0; i < 4 && status == LS_OK; i++) {
        status = call(world, argv[1]);
    }
    if (status == LS_OK) { /* a rank may finish a broadcast before the others */
        status = ls_comm_barrier(world, NULL);
    }
    printf("%d: %s: %s\n", rank, ls_status_name(status), ls_error_message());
    fflush(stdout);
    sleep(2); /* the launcher kills all ranks if one fails: this gives the others time to print their errors */
    return status == LS_OK ? 0 : 1;
}
