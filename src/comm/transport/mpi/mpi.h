/*
 * The transport over MPI. It uses a separate MPI communicator that belongs to Lockstep: nonblocking messages between
 * two ranks, whose MPI tag is the channel, and MPI's own collectives. MPI connects the ranks itself and does not report
 * the exit of a rank, so every peer is LS_PEER_REACHED from the beginning.
 *
 * MPI cannot withdraw a send, a message that has begun to arrive, or a collective. So an endpoint that was closed
 * during a call continues to exist without its owner until MPI no longer uses buffers of that call, and until every
 * other rank has announced that it sends nothing more. In the meantime, it receives and discards messages. Otherwise, a
 * late message could reach a later communicator, because Open MPI reuses the number of a freed communicator.
 */
#ifndef LS_COMM_TRANSPORT_MPI_H
#define LS_COMM_TRANSPORT_MPI_H

#include <mpi.h>

#include "comm/transport.h"

/* Reductions that MPI computes correctly: a bit mask per dtype, in which bit r stands for ls_reduction r. */
typedef struct ls_mpi_reductions {
    uint16_t correct[LS_DTYPE_COUNT];
} ls_mpi_reductions;

typedef struct ls_mpi_options {
    int rank; /* rank in the communicator that ls_mpi_connect passes to the endpoint */
    int size;
    ls_place place;
    size_t unasked;      /* size in bytes of the largest message that all ranks send eagerly */
    size_t most;         /* size in bytes of the largest MPI message; larger transfers are divided. 0 selects
                            LS_TRANSPORT_LEAST_EXACT; tests select less */
    double timeout;      /* the longest time, in seconds, for which ls_mpi_finish_closed waits for the endpoint */
    bool oversubscribed; /* this machine has more ranks than cores */
    bool one_machine;    /* all ranks are on this machine */
    bool world; /* used only by the owner: this is the job's own communicator, neither split from another one nor
                   adopted */
    ls_own_collectives own;
    ls_mpi_reductions reductions; /* correct on all ranks, so that all ranks choose the same algorithm */
} ls_mpi_options;

/* In reductions.c: returns the reductions that this process's MPI library computes correctly. The first call of a
 * process checks the library. MPI must be running. */
ls_mpi_reductions ls_mpi_check_reductions(void);

/* Returns an endpoint that is not connected yet: it accepts receives, and begins them when it is connected. Returns
 * NULL with an error set on failure. */
ls_endpoint *ls_mpi_endpoint(const ls_mpi_options *options);

/* Connects the endpoint to its communicator. Takes ownership of `comm`, even on failure. No other code may use
 * `comm`. */
ls_status ls_mpi_connect(ls_endpoint *endpoint, MPI_Comm comm);

/* Returns a borrowed pointer to the options of the endpoint. */
const ls_mpi_options *ls_mpi_options_of(const ls_endpoint *endpoint);

/* Returns the communicator of the endpoint; MPI_COMM_NULL if it is not connected. */
MPI_Comm ls_mpi_comm_of(const ls_endpoint *endpoint);

/* Records that MPI is about to be finalized. Afterwards, endpoints make no MPI calls: all functions except `close`
 * fail with LS_ERR_STATE. */
void ls_mpi_note_finalized(void);

/* Fails with LS_ERR_STATE if the program has called MPI_Finalize, or if MPI's thread level does not allow this thread
 * to call MPI now. */
ls_status ls_mpi_check_allowed(void);

/* Polls the closed endpoints once, and frees the finished ones. Returns true if none is left. */
bool ls_mpi_progress_closing(void);

/*
 * Polls the closed endpoints once. Returns true if MPI has finished with all of the program's buffers. With `wait`,
 * first waits for this, but for each endpoint no longer than its timeout, and no longer than 5 s after all its other
 * ranks have left. After this time, logs a warning, and no longer waits for the endpoint. Returns true if this thread
 * must not call MPI.
 */
bool ls_mpi_finish_closed(bool wait);

/* Sets the error from an MPI function that failed with `code`, and returns its status: LS_ERR_PEER if a message was
 * too long, otherwise LS_ERR_IO. */
ls_status ls_mpi_fail(const char *function, int code);

#endif
