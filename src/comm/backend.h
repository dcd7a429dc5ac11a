/*
 * The boundary between communicators and what carries them. One folder under backend/ is one ls_backend: shared memory,
 * a world of one, later MPI, Gloo and NCCL as modules. The frame (comm.c, work.c) checks arguments, numbers the calls,
 * keeps them in order and remembers failures, so a backend only moves data.
 *
 * Rules for every entry:
 *  - Who locks: nobody. One thread at a time uses a state; different states may be used by different threads at once.
 *  - Order: the frame starts a call only when the one before it has finished, so a state holds one call at most.
 *  - What may fail: a failing entry has set the error message, which begins with the call's name and number as
 *    ls_call_describe writes them. After LS_ERR_MISMATCH the state is usable again; after any other failure of a call
 *    the frame makes no further call on it but close.
 *  - The contract of lockstep/comm.h: no entry waits longer than the join's timeout for a silent rank.
 *
 * Adding a call (gather, send, ...) means an ls_operation, its row in operation.c, an entry here and in the backends
 * that have it, and the public function in comm.c.
 */
#ifndef LS_COMM_BACKEND_H
#define LS_COMM_BACKEND_H

#include <lockstep/comm.h>

/* How a rank gets into a communicator: everything lent for the time of ls_comm_open. */
typedef struct ls_join {
    int rank;
    int size;
    int local_rank; /* among the ranks of this machine */
    int local_size;
    ls_store *store;    /* open, shared by all ranks; NULL only where size is 1 or `shared` is set */
    const char *prefix; /* begins every key that this communicator sets; no other communicator of the store has it */
    double timeout;     /* seconds to wait for a silent rank, positive */
    void *shared;       /* ls_run_threads: what the threads share; NULL between processes */
} ls_join;

typedef enum ls_operation {
    LS_OP_BARRIER = 0,
    LS_OP_BROADCAST,
    LS_OP_ALLREDUCE,
    LS_OP_ALLOC,
    LS_OP_COUNT
} ls_operation;

/* One call as the frame checked it. Fields that an operation does not have are 0. */
typedef struct ls_call {
    ls_operation operation;
    ls_dtype dtype;
    ls_reduction reduction;
    int root;
    size_t count;      /* elements; pairs for minloc and maxloc; bytes for alloc */
    size_t width;      /* bytes of one of these */
    const void *send;  /* the buffers stay the caller's and live until the call has finished */
    void *receive;     /* the same as send where the call is in place */
    uint64_t sequence; /* the number of this call on this communicator, from 1 */
} ls_call;

typedef struct ls_backend {
    const char *name;

    /* Joins the other ranks and gives a state. On failure nothing stays behind. Blocks, at most the timeout. */
    ls_status (*open)(const ls_join *join, void **state);

    /* Frees the state without waiting for others, in whatever condition it is; they learn that this rank left. */
    void (*close)(void *state);

    /*
     * Begin a call (copied by the backend where it needs it later) and do of it what is possible without waiting. On
     * LS_OK, progress is called until it reports the end.
     */
    ls_status (*barrier)(void *state, const ls_call *call);
    ls_status (*broadcast)(void *state, const ls_call *call);
    ls_status (*allreduce)(void *state, const ls_call *call);

    /* Moves the call that was begun; with `wait` until its end. `*finished` says whether the results are there. */
    ls_status (*progress)(void *state, bool wait, bool *finished);

    /*
     * Memory for ls_comm_alloc: a call like the others (all ranks, in order, number `sequence`), blocking. It is owned
     * by the state, at the latest until close; release is local and takes only what alloc gave.
     */
    ls_status (*alloc)(void *state, size_t size, uint64_t sequence, void **memory);
    void (*release)(void *state, void *memory);
} ls_backend;

extern const ls_backend ls_backend_self; /* a world of one */
extern const ls_backend ls_backend_shm;  /* ranks of one machine */

/* The backend of that name, or NULL with an error that lists the names there are. */
const ls_backend *ls_backend_find(const char *name);

/* "barrier", "broadcast", ...: the public name without its ls_comm_. */
const char *ls_operation_name(ls_operation operation);

/* Writes how messages name the call: "ls_comm_allreduce #17". Returns `text`. */
const char *ls_call_describe(ls_operation operation, uint64_t sequence, char *text, size_t capacity);

/* Writes all that ranks must agree on: "allreduce of 10 f32, sum". Returns `text`. */
const char *ls_call_detail(const ls_call *call, char *text, size_t capacity);

#endif
