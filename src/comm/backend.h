/*
 * The boundary between communicators and what carries them. One folder under backend/ is one ls_backend: shared memory,
 * sockets, a world of one, and MPI, Gloo and NCCL as modules. The frame (comm.c, work.c) checks arguments, numbers the
 * calls, keeps them in order and remembers failures, so a backend only moves data.
 *
 * Rules for every entry:
 *  - Who locks: nobody. One thread at a time uses a state; different states may be used by different threads at once.
 *  - Order: the frame starts a call only when the one before it has finished, so a state holds one call at most.
 *  - What may fail: a failing entry has set the error message, which begins with the call's name and number as
 *    ls_call_describe writes them. After LS_ERR_MISMATCH the state is usable again; after any other failure of a call
 *    the frame makes no further call on it but close.
 *  - The contract of lockstep/comm.h: no entry waits longer than the join's timeout for a silent rank.
 *
 * What a backend must have: open, close, every entry of `begin`, post, test and progress. ls_comm_alloc begins with an
 * all-reduce: begin[LS_OP_ALLREDUCE] gets a call whose `operation` is LS_OP_ALLOC.
 *
 * A backend outside the core is a module, see module.h. Adding a call means an ls_operation, its row in pieces.c, an
 * entry, and the public function.
 */
#ifndef LS_COMM_BACKEND_H
#define LS_COMM_BACKEND_H

#include <lockstep/comm.h>

/* How a rank gets into a communicator: everything lent for the time of ls_comm_open. */
typedef struct ls_join_context {
    int rank;
    int size;
    int local_rank; /* among the ranks of this machine */
    int local_size;
    ls_store *store;    /* open, shared by all ranks; NULL only where size is 1 or `shared` is set */
    const char *prefix; /* begins every key that this communicator sets; no other communicator of the store has it */
    double timeout;     /* seconds to wait for a silent rank, positive */
    void *shared;       /* ls_run_threads: what the threads share; NULL between processes */
    uint64_t machine;   /* equal on ranks of one machine; for what a split communicator calls local */
    const char
        *address; /* of this machine, numeric: where to listen for data; NULL where the ranks meet without a store */
} ls_join_context;

typedef enum ls_operation {
    LS_OP_BARRIER = 0,
    LS_OP_BROADCAST,
    LS_OP_ALLREDUCE,
    LS_OP_ALLOC,
    LS_OP_REDUCE,
    LS_OP_GATHER,
    LS_OP_GATHERV,
    LS_OP_ALLGATHER,
    LS_OP_ALLGATHERV,
    LS_OP_SCATTER,
    LS_OP_SCATTERV,
    LS_OP_REDUCE_SCATTER,
    LS_OP_REDUCE_SCATTERV,
    LS_OP_ALLTOALL,
    LS_OP_ALLTOALLV,
    LS_OP_SPLIT, /* an allgather of what the ranks want */
    LS_OP_SEND,
    LS_OP_RECV,
    LS_OP_COUNT
} ls_operation;

/*
 * One call as the frame checked it (check.c). Fields that an operation does not have are 0. Counts
 * and displacements are in elements of `width` bytes. `count` is what the public call says; for allgatherv and
 * reduce_scatterv it is this rank's own. An exchange has all four arrays and no count; calls that end in v have those
 * of their varying side, displacements included. Where the own part of an exchange is sent to the very place it is
 * received at, there is nothing to move.
 */
typedef struct ls_call {
    ls_operation operation;
    ls_dtype dtype;
    ls_reduction reduction;
    int root;          /* send, recv: the other rank */
    int tag;           /* send, recv */
    size_t count;      /* elements; pairs for minloc and maxloc */
    size_t width;      /* bytes of one of these */
    const void *send;  /* the buffers stay the caller's and live until the call has finished */
    void *receive;     /* the same as send where the call is in place */
    uint64_t sequence; /* the number of this call on this communicator, from 1; send and recv are numbered apart */
    const size_t *send_counts;
    const size_t *send_displacements;
    const size_t *receive_counts;
    const size_t *receive_displacements;
    bool waits;     /* send, recv: the caller has nothing else to do until the end */
    bool any_order; /* reductions: values may be combined in any order */
    void *stream;   /* the buffers are in memory of a device, and this is its stream, as the device's libraries know it,
                       by which they are written and read; NULL: in memory of the host */
    size_t total;   /* all ranks must agree on it. allgatherv, reduce_scatterv: the sum of counts; alloc: the bytes */
    uint32_t layout;    /* allgatherv, reduce_scatterv: a hash of counts */
    uint32_t algorithm; /* set by the backend: ls_algorithm_number of the rank's setting for this operation */
} ls_call;

/* Why a rank makes no more calls on a communicator. */
typedef enum ls_leave_reason {
    LS_LEAVE_NONE = 0,
    LS_LEAVE_FREED,     /* it freed the communicator */
    LS_LEAVE_FINALIZED, /* it called ls_finalize */
    LS_LEAVE_EXITED,    /* its process exits without ls_finalize */
    LS_LEAVE_FAILED     /* it gave up after a failure */
} ls_leave_reason;

/*
 * Begins a call (copied by the backend where it needs it later) and does of it what is possible without waiting. On
 * LS_OK, progress is called until it reports the end.
 */
typedef ls_status ls_backend_begin(void *state, const ls_call *call);

typedef struct ls_backend {
    const char *name;

    /* Joins the other ranks and gives a state. On failure nothing stays behind. Blocks, at most the timeout. */
    ls_status (*open)(const ls_join_context *join, void **state);

    /* Frees the state without waiting for others, in whatever condition it is; they learn that this rank left. */
    void (*close)(void *state);

    /*
     * Tells the others that this rank makes no more calls, and why; what it has sent still arrives. Those that wait for
     * more of it fail with LS_ERR_PEER, at once. Only close and release come after this: memory of
     * alloc stays until then. NULL: there are no others.
     */
    void (*leave)(void *state, ls_leave_reason reason);

    /*
     * After leave: waits, at most the timeout, until all others have called ls_finalize too. LS_ERR_PEER where one left
     * for another reason. For ranks that met without a store; NULL: such ranks do not have this backend.
     */
    ls_status (*finalize_barrier)(void *state);

    /*
     * Tells the others that this rank can go on no more, for a reason that the frame has met between calls: this
     * thread's error, of `status`. They fail with LS_ERR_PEER, at once. NULL: there are no others.
     */
    void (*abort)(void *state, ls_status status);

    /*
     * The rank whose end was the reason of the failure that ended the communicator; -1: unknown. This rank, where it
     * was the end of none: it failed itself, or another called ls_finalize. NULL: there are no others.
     */
    int (*failed_rank)(const void *state);

    /*
     * Queried before every call: LS_ERR_STATE if the backend's library does not allow this thread to make a call now.
     * The communicator stays usable. Any thread may call this. NULL: every call is allowed.
     */
    ls_status (*check)(const void *state);

    ls_backend_begin *begin[LS_OP_COUNT];

    /*
     * Whether collectives take buffers in memory of a device, with its stream in ls_call: those that reduce so, or
     * those that only move data. The same on all ranks; barriers and messages never do. NULL: none does.
     */
    bool (*accepts_device_memory)(const void *state, bool reduces, ls_dtype dtype, ls_reduction reduction);

    /*
     * Carries out a call from beginning to end, waiting, with less ado than `begin` and `progress`; false: this is
     * none for it, and nothing was done. `*status` becomes what those two would return. NULL: there is no shorter way.
     */
    bool (*try_fast_path)(void *state, const ls_call *call, ls_status *status);

    /* How the latest call, or send, travelled, in a word that the backend's page explains. NULL: there is one way. */
    const char *(*algorithm_name)(const void *state);

    /* Messages that this rank has sent so far, and their bytes. NULL: they are not counted. */
    void (*traffic)(const void *state, uint64_t *messages, uint64_t *bytes);

    /* Moves the call that was begun; with `wait` until its end. `*finished` says whether the results are there. Both
     * this and test also move all that was posted. */
    ls_status (*progress)(void *state, bool wait, bool *finished);

    /*
     * Begins a send or receive, independent of the other calls: any number may be under way. `*request` is NULL when it
     * has finished already, else test is called with it until it reports the end or fails, which frees it. close frees
     * those that are left. A receive of something else than was sent is LS_ERR_MISMATCH.
     */
    ls_status (*post)(void *state, const ls_call *call, void **request);
    ls_status (*test)(void *state, void *request, bool wait, bool *finished);

    /*
     * Opens the state of a communicator made of ranks of this one: `join` is lent as for open; ranks[i] is the rank
     * here of the new rank i. Called by all ranks together while no call is in progress, with `join` NULL on those that
     * join none. On failure of the new group alone, this state goes on. NULL: the frame calls open, which meets through
     * the store.
     */
    ls_status (*split)(void *state, const ls_join_context *join, const int *ranks, void **result);

    /*
     * Opens a state over the program's own communicator: `handle` points to an MPI_Comm, or to an MPI_Fint if `fortran`
     * is true. `join` has the timeout and the machine; this adds rank and size. All ranks of the communicator call it.
     * It blocks, at most the timeout for each of its steps. NULL if the backend has no such communicators.
     */
    ls_status (*adopt)(const void *handle, bool fortran, ls_join_context *join, void **state);

    /*
     * Memory for ls_comm_alloc: a call like the others (all ranks, in order, number `sequence`), blocking. It is owned
     * by the state, at the latest until close; release is local and takes only what alloc gave. NULL: ordinary memory.
     */
    ls_status (*alloc)(void *state, size_t size, uint64_t sequence, void **memory);
    void (*release)(void *state, void *memory);
} ls_backend;

extern const ls_backend ls_backend_self; /* a world of one */
extern const ls_backend ls_backend_shm;  /* ranks of one machine */
extern const ls_backend ls_backend_tcp;  /* ranks anywhere */

/* Differs between builds whose ranks cannot share memory. */
extern const uint64_t ls_shm_layout_number;

/* The backend of that name, which may be a module that this opens (module.h). NULL and an error when there is none. */
const ls_backend *ls_backend_find(const char *name);

/* Backend mpi on the MPI library of that name, "openmpi" or "mpich". */
const ls_backend *ls_backend_find_mpi(const char *library);

/* "barrier", "broadcast", ...: the public name without its ls_comm_. */
const char *ls_operation_name(ls_operation operation);

/* Writes how messages name the call: "ls_comm_allreduce #17". Returns `text`. */
const char *ls_call_describe(ls_operation operation, uint64_t sequence, char *text, size_t capacity);

/* What messages say of a rank that left: "called ls_finalize". */
const char *ls_leave_describe(ls_leave_reason reason);

/* Ranks that a message names: "rank 1", "ranks 0, 2, 3", with dots at the end where there is no room for all. */
typedef struct ls_rank_list {
    char text[400];
    size_t length;
    int count;
    int first; /* that was added */
} ls_rank_list;

void ls_rank_list_add(ls_rank_list *list, int rank);

/* A call that waits for others. */
typedef struct ls_waiting {
    const ls_call *call; /* NULL: ls_finalize */
    const ls_rank_list *awaited;
    uint64_t waited_ns;
    uint64_t *told_ns; /* how long it had waited when the log was told last; the caller's, 0 at first */
    const char *more;  /* ends the sentence */
    bool knows_latest; /* of the first rank that is awaited, which call it began last: */
    ls_operation latest;
    uint64_t latest_sequence; /* 0: it made none */
} ls_waiting;

/* Tells the log of it when the wait has lasted 10 s, and then every minute. Asked now and then by who waits. */
void ls_comm_tell_waiting(const ls_waiting *waiting);

/* The count that ranks must agree on: 0 where each may have its own. */
size_t ls_call_agreed(const ls_call *call);

/* Writes all that ranks must agree on: "allreduce of 10 f32, sum". Returns `text`. */
const char *ls_call_detail(const ls_call *call, char *text, size_t capacity);

#endif
