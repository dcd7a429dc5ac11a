/*
 * Messages over an MPI communicator that is Lockstep's own: nonblocking messages between two ranks, the MPI tag being
 * the channel, and MPI's own collectives. MPI connects ranks by itself and tells of no death, so every peer is
 * LS_PEER_REACHED from the beginning.
 *
 * MPI cannot take back what was sent, nor what has begun to come, nor a collective. So an endpoint that closes in the
 * middle of a call waits for MPI to be done with large buffers and with the program's own. It lives on without its
 * owner until every other rank has told it that nothing more comes: Open MPI gives the number of a communicator that
 * was freed to a later one, and would count a late message as one of that. Until then it takes in, and drops, what
 * comes.
 */
#ifndef LS_COMM_TRANSPORT_MPI_H
#define LS_COMM_TRANSPORT_MPI_H

#include <mpi.h>

#include "comm/transport.h"

/* Reductions that MPI computes correctly: for each dtype, bit r stands for ls_reduction r. */
typedef struct ls_mpi_reductions {
    uint16_t correct[LS_DTYPE_COUNT];
} ls_mpi_reductions;

typedef struct ls_mpi_options {
    int rank; /* in the communicator that ls_mpi_connect gives it */
    int size;
    ls_place place;
    size_t unasked;      /* bytes of the largest message that each of them sends without asking the receiver */
    size_t most;         /* bytes of the largest MPI message: what is larger is divided; 0: 1 GiB */
    double timeout;      /* seconds that closing waits at most for a rank that does not take what was sent to it */
    bool oversubscribed; /* there are more ranks than cores on this machine */
    bool one_machine;    /* all ranks are on this one */
    bool world;          /* for the owner to ask: no part of another communicator */
    ls_own_collectives own;
    ls_mpi_reductions reductions; /* correct on all ranks, so that all choose alike */
} ls_mpi_options;

/* reductions.c: the reductions that this process's MPI library computes correctly. Checks the library on the first call
 * of a process. MPI must be running. */
ls_mpi_reductions ls_mpi_check_reductions(void);

/* An endpoint that takes receives, and begins them when it is connected. NULL and an error. */
ls_endpoint *ls_mpi_endpoint(const ls_mpi_options *options);

/* Gives it its communicator, which it takes over, also where this fails, and which nobody else uses. */
ls_status ls_mpi_connect(ls_endpoint *endpoint, MPI_Comm comm);

/* What it was made with, lent. */
const ls_mpi_options *ls_mpi_options_of(const ls_endpoint *endpoint);

/* The communicator that it has. */
MPI_Comm ls_mpi_comm_of(const ls_endpoint *endpoint);

/* Endpoints call MPI no more, which is about to be finalized: what they are to do is LS_ERR_STATE, but for closing. */
void ls_mpi_note_finalized(void);

/* LS_ERR_STATE if the program has called MPI_Finalize, or if the thread level with which MPI was started forbids this
 * thread a call of MPI now. */
ls_status ls_mpi_check_allowed(void);

/* Looks once at endpoints that have closed, and frees those that are done with; whether there are no others. */
bool ls_mpi_progress_closing(void);

/* The error of an MPI call that failed, for `function`: LS_ERR_PEER where a message was too long, else LS_ERR_IO. */
ls_status ls_mpi_fail(const char *function, int code);

#endif
