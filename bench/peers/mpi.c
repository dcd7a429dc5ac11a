/*
 * MPI itself, measured with the method of `lockstep bench`. Built once for each MPI library that CMake finds:
 *
 *     mpirun.openmpi --bind-to core -np 2 build-bench/bench/peers_mpi_openmpi allreduce --sizes 4,1K,1M
 *     mpirun.mpich -bind-to core -np 2 build-bench/bench/peers_mpi_mpich allreduce
 *
 * MPI ends the job if a call fails, so no status is checked.
 */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure.h"

static int rank, ranks;

static bool supports(peer_collective collective) {
    (void)collective;
    return true;
}

static void pingpong(const peer_call *call) {
    const int other = rank ^ 1;
    if (other >= ranks) {
        return;
    }
    if (rank < other) {
        MPI_Send(call->send, (int)call->count, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
    }
    MPI_Recv(call->receive, (int)call->count, MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank > other) {
        MPI_Send(call->send, (int)call->count, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
    }
}

static void run(const peer_call *call) {
    const int count = (int)call->count;
    switch (call->collective) {
    case PEER_ALLREDUCE:
        MPI_Allreduce(MPI_IN_PLACE, call->receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case PEER_BROADCAST:
        MPI_Bcast(call->receive, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case PEER_ALLGATHER:
        MPI_Allgather(call->send, count, MPI_FLOAT, call->receive, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case PEER_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(call->send, call->receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case PEER_ALLTOALL:
        MPI_Alltoall(call->send, count, MPI_FLOAT, call->receive, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case PEER_PINGPONG:
        pingpong(call);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
}

static void barrier(void) {
    MPI_Barrier(MPI_COMM_WORLD);
}

static void most(double *values, size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, values, (int)count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

/* "Open MPI 4.1.4", "MPICH 4.0.2" */
static void name_library(char *name, size_t capacity) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
#ifdef OPEN_MPI
    snprintf(name, capacity, "Open MPI %d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
#else
    char number[32] = "";
    (void)sscanf(version, "MPICH Version: %31s", number);
    snprintf(name, capacity, "MPICH %s", number);
#endif
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char name[64];
    name_library(name, sizeof name);
    const peer self = {
        .name = name, .rank = rank, .ranks = ranks, .supports = supports, .run = run, .barrier = barrier, .most = most};
    const int exit_status = peer_measure(&self, argc, argv);
    MPI_Finalize();
    return exit_status;
}
