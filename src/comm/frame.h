/* The inside of a communicator and of its work, for comm.c and work.c alone. */
#ifndef LS_COMM_FRAME_H
#define LS_COMM_FRAME_H

#include "base/status.h"
#include "comm/comm.h"

/* One asynchronous call. Those not waited for yet are in the communicator's list `open`; those not finished also in its
 * queue, in the order of the calls. */
struct ls_work {
    ls_comm *comm; /* NULL once the communicator is gone */
    ls_call call;
    bool begun;
    bool finished;
    ls_status status;
    ls_work *next_queued;
    ls_work *next_open;
    ls_work **open_link; /* what points to this one in the list of open work */
    char message[LS_ERROR_CAPACITY];
};

struct ls_comm {
    const ls_backend *backend;
    void *state;
    int rank;
    int size;
    int local_rank;
    int local_size;
    uint64_t sequence; /* number of the latest call */
    ls_work *first_queued;
    ls_work *last_queued;
    ls_work *open;
    ls_work *spare; /* finished and waited for: kept, so that a steady state allocates nothing */
    void (*on_free)(void *argument);
    void *on_free_argument;
    ls_status failed; /* LS_OK until a call failed in a way that revokes the communicator */
    char message[LS_ERROR_CAPACITY];
};

/* Whether the communicator still works; otherwise its failure again. */
ls_status ls_comm_check(const ls_comm *comm);

/* Begins `call` on the backend; notes failures that revoke the communicator. */
ls_status ls_comm_begin(ls_comm *comm, const ls_call *call);

/* Moves the call that was begun. */
ls_status ls_comm_progress(ls_comm *comm, bool wait, bool *finished);

/* Carries out all queued work. Failures stay with the work. */
void ls_comm_drain(ls_comm *comm);

/* Queues `call` and gives its work. */
ls_status ls_work_queue(ls_comm *comm, const ls_call *call, ls_work **work);

/* Ends the communicator's side of all work when it is freed. */
void ls_work_abandon(ls_comm *comm);

#endif
