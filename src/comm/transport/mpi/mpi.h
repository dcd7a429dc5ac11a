/*
 * Messages over an MPI communicator that is Lockstep's own: nonblocking messages between two ranks, the MPI tag being
 * the channel. MPI connects ranks by itself and tells of no death, so every peer is LS_PEER_REACHED from the beginning.
 *
 * MPI cannot take back what was sent, nor what has begun to come. So an endpoint that closes waits for MPI to be done
 * with large buffers, and lives on without its owner, retired, until every other rank has told it that nothing more
 * comes: Open MPI gives the number of a communicator that was freed to a later one, and would count a late message as
 * one of that. Until then it takes in, and drops, what comes.
 */
#ifndef LS_COMM_TRANSPORT_MPI_H
#define LS_COMM_TRANSPORT_MPI_H

#include <mpi.h>

#include "comm/transport.h"

typedef struct ls_mpi_options {
    MPI_Comm comm;       /* its ranks are the endpoint's; nobody else uses it */
    size_t unasked;      /* bytes of the largest message that each of them sends without asking the receiver */
    size_t most;         /* bytes of the largest MPI message: what is larger is divided; 0: 1 GiB */
    double timeout;      /* seconds that closing waits at most for a rank that does not take what was sent to it */
    bool oversubscribed; /* there are more ranks than cores on this machine */
    bool world;          /* for the owner to ask: no part of another communicator */
} ls_mpi_options;

/* An endpoint over the communicator, which it takes over, also where it fails. NULL and an error. */
ls_endpoint *ls_mpi_endpoint(const ls_mpi_options *options);

/* What it was made with, lent. */
const ls_mpi_options *ls_mpi_options_of(const ls_endpoint *endpoint);

/* The program has finalized MPI: the endpoint does nothing any more but close. */
void ls_mpi_forsake(ls_endpoint *endpoint);

/* Looks once at endpoints that are retired, and frees those that are done with; whether there are no others. */
bool ls_mpi_sweep(void);

/* Whether MPI is initialized and not finalized. */
bool ls_mpi_runs(void);

/* The error of an MPI call that failed, for `function`: LS_ERR_PEER where a message was too long, else LS_ERR_IO. */
ls_status ls_mpi_fail(const char *function, int code);

#endif
