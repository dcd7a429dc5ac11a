/*
 * The interface of backends. Each folder under backend/ has one ls_backend: shared memory, sockets, a world of one
 * rank, and MPI, Gloo and NCCL as plug-ins (module.h). The caller of a backend is the call layer (record.c, work.c),
 * which checks arguments, numbers the calls, keeps them in order and remembers failures. A backend only moves data.
 *
 * Rules for every function:
 *  - Locking: the caller locks. Only one thread at a time uses a state. Different threads may use different states.
 *  - Order: a call begins after the previous call has finished, so a state has at most one call in progress.
 *  - Errors: a failing function sets the error message, which begins with the name and number of the call as written by
 *    ls_call_describe. After LS_ERR_MISMATCH, the state remains usable. After any other failure of a call, the caller
 *    calls only close.
 *  - Blocking: no function waits longer for a silent rank than the timeout in ls_join_context.
 *
 * Every backend has open, close, all functions of `begin`, post, test and progress. ls_comm_alloc begins with an
 * all-reduce: begin[LS_OP_ALLREDUCE] gets a call with the operation LS_OP_ALLOC.
 *
 * A new call needs an ls_operation, a row in pieces.c, a `begin` function, and the public function.
 */
#ifndef LS_COMM_BACKEND_H
#define LS_COMM_BACKEND_H

#include <lockstep/comm.h>

/* How a rank joins a communicator. ls_comm_open borrows all pointers until it returns. */
typedef struct ls_join_context {
    int rank;
    int size;
    int local_rank; /* rank among the ranks of this machine */
    int local_size;
    ls_store *store;        /* an open store that all ranks share; NULL only if size is 1 or `shared` is set */
    const char *prefix;     /* prefix of every key that this communicator sets; unique in the store */
    double timeout;         /* seconds to wait for a silent rank, positive */
    void *shared;           /* memory shared by the threads of ls_run_threads; NULL for processes */
    uint64_t machine;       /* equal for ranks on the same machine */
    const char *address;    /* numeric data address of this machine; NULL if the ranks meet without a store */
    void (*mpi_ends)(void); /* for `adopt`: MPI_Finalize calls it first */
    bool alone;             /* set by `adopt`: MPI connects no other process */
} ls_join_context;

/* Collectives come first, followed by LS_OP_SEND: see ls_operation_is_collective. */
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
    LS_OP_SPLIT, /* executed as an all-gather of colors and keys */
    LS_OP_SEND,
    LS_OP_RECV,
    LS_OP_RECV_ANY,
    LS_OP_MONITORED_BARRIER, /* a send or receive of ls_comm_monitored_barrier: see ls_call_sends */
    LS_OP_COUNT
} ls_operation;

/*
 * Returns true for the calls that all ranks make in the same order. Returns false for sends, receives and invalid
 * numbers from a header.
 */
static inline bool ls_operation_is_collective(uint32_t operation) {
    return operation < LS_OP_SEND;
}

/*
 * A call whose arguments check.c has checked. Fields that an operation does not use are 0. Counts and displacements are
 * in elements of `width` bytes. `count` is the count of the public call; for allgatherv and reduce_scatterv, it is this
 * rank's count. alltoallv has all four arrays and no count. Other calls that end in v have the arrays of the side with
 * varying counts. If a rank's own part is sent to the address that receives it, the backend does not move it.
 */
typedef struct ls_call {
    ls_operation operation;
    ls_dtype dtype;
    ls_reduction reduction;
    int root;          /* the other rank for send and recv; LS_ANY_RANK for recv_any */
    int tag;           /* send, recv, recv_any */
    int *source;       /* receives the sender of a recv_any; may be NULL */
    size_t count;      /* number of elements; of pairs for minloc and maxloc */
    size_t width;      /* bytes of an element */
    const void *send;  /* the backend borrows the buffers until the call has finished */
    void *receive;     /* equal to `send` if the call is in place */
    uint64_t sequence; /* number of this call on this communicator, from 1; sends and receives have their own numbers */
    const size_t *send_counts;
    const size_t *send_displacements;
    const size_t *receive_counts;
    const size_t *receive_displacements;
    bool waits;          /* send, recv: the caller waits until the call has finished */
    bool untimed;        /* send, recv: the caller limits the wait itself and logs it */
    bool any_order;      /* for reductions: values may be combined in any order */
    void *stream;        /* device stream if the buffers are in device memory; NULL if they are in host memory */
    size_t total;        /* equal on all ranks. allgatherv, reduce_scatterv: sum of the counts; alloc: size in bytes */
    uint32_t layout;     /* allgatherv, reduce_scatterv: a hash of the counts */
    uint32_t algorithm;  /* set by the backend: ls_algorithm_number of this rank's setting for this operation */
    uint8_t public_call; /* an ls_public_call; only for messages */
    const bool *contested; /* atomic: becomes true when another thread calls on the communicator; NULL if not tracked */
} ls_call;

/* Value of ls_call.root for a receive from any rank. */
#define LS_ANY_RANK (-1)

/* The tag of the library's internal messages. User tags are never negative. */
#define LS_TAG_INTERNAL INT32_MIN

/* Returns true if the call is a send, and false if it is a receive. For the calls that ls_backend.post gets. */
static inline bool ls_call_sends(const ls_call *call) {
    return call->operation == LS_OP_SEND || (call->operation == LS_OP_MONITORED_BARRIER && call->send != NULL);
}

/*
 * In threads.c, for waiting calls: fails with LS_ERR_STATE if another thread has called on the communicator during the
 * call. The other ranks may be waiting for that thread's call, which was refused, so this call must not wait for them.
 */
ls_status ls_call_check_threads(const ls_call *call);

/* Why a rank makes no more calls on a communicator. */
typedef enum ls_leave_reason {
    LS_LEAVE_NONE = 0,
    LS_LEAVE_FREED,     /* the rank freed the communicator */
    LS_LEAVE_FINALIZED, /* the rank called ls_finalize */
    LS_LEAVE_EXITED,    /* the rank's process exits without calling ls_finalize */
    LS_LEAVE_FAILED,    /* the rank aborted after a failure */
    LS_LEAVE_MPI_ENDED  /* the rank called MPI_Finalize, and still has the communicator */
} ls_leave_reason;

/* Begins a call without waiting. The backend copies `call` if necessary. After LS_OK, the caller calls progress
 * until it reports that the call has finished. */
typedef ls_status ls_backend_begin(void *state, const ls_call *call);

typedef struct ls_backend {
    const char *name;
    bool sends_by_library; /* a library sends data between machines, and LOCKSTEP_WIRE cannot protect this data */

    /* Joins the other ranks and sets `*state`. Leaves nothing behind on failure. Blocks at most until the timeout. */
    ls_status (*open)(const ls_join_context *join, void **state);

    /* Frees the state, whatever its condition, without waiting. Notifies the other ranks that this rank has left. */
    void (*close)(void *state);

    /*
     * Returns true if the backend's library no longer uses the program's buffers of calls, on any communicator, that
     * were unfinished at close. With `wait`, first waits for this, at most until the timeout. NULL if `close` itself
     * ends all use of the buffers.
     */
    bool (*finish_closed)(bool wait);

    /*
     * Notifies the other ranks that this rank makes no more calls, and why. Data that this rank has sent still arrives.
     * Ranks that wait for more data fail with LS_ERR_PEER at once. Afterwards, only close and release are called;
     * memory from alloc stays valid until then. NULL for a world of one rank.
     */
    void (*leave)(void *state, ls_leave_reason reason);

    /*
     * Called after leave with LS_LEAVE_FINALIZED: advances the sends that this rank has begun, without waiting. Returns
     * true while some of them are unfinished and their receivers are alive. May set an error. NULL if sends progress
     * without their sender.
     */
    bool (*advance_sends)(void *state);

    /* Called after the last advance_sends: stops using the buffers of unfinished sends. NULL if only close can do
     * this. */
    void (*withdraw_sends)(void *state);

    /*
     * Called after leave: waits, at most until the timeout, until all other ranks have called ls_finalize. Fails with
     * LS_ERR_PEER if a rank left for another reason. For ranks that met without a store; NULL if the backend never
     * serves such ranks.
     */
    ls_status (*finalize_barrier)(void *state);

    /*
     * Revokes the communicator after a failure that was detected outside the backend, with this thread's error, whose
     * status is `status`. The other ranks fail at once: with LS_ERR_PEER if `failed_rank` is this rank, otherwise with
     * the same error. NULL for a world of one rank.
     */
    void (*abort)(void *state, ls_status status, int failed_rank);

    /*
     * Returns the rank whose exit caused the communicator to fail, or -1 if unknown. Returns this rank if no rank
     * exited: this rank failed, or another rank called ls_finalize. NULL for a world of one rank.
     */
    int (*failed_rank)(const void *state);

    /*
     * Runs before every call. Fails with LS_ERR_STATE if the backend's library does not allow this thread to make a
     * call now; the communicator stays usable. Any thread may call this function. NULL if every call is allowed.
     */
    ls_status (*check)(const void *state);

    /* Returns true if any thread may advance the state while no other thread uses it. NULL means that any thread
     * may. */
    bool (*any_thread)(const void *state);

    ls_backend_begin *begin[LS_OP_COUNT];

    /*
     * Returns true if collectives accept buffers in device memory (with ls_call.stream set), for reductions with this
     * dtype and reduction, or for calls that only move data. The answer is the same on all ranks. Barriers and messages
     * never accept device memory. NULL if no call does.
     */
    bool (*accepts_device_memory)(const void *state, bool reduces, ls_dtype dtype, ls_reduction reduction);

    /*
     * Executes a whole call, blocking, faster than `begin` and `progress` would, and sets `*status` to the same result.
     * Returns false, without any effect, if it does not support the call. NULL if there is no fast path.
     */
    bool (*try_fast_path)(void *state, const ls_call *call, ls_status *status);

    /* Returns the name of the algorithm that the latest call or send used. NULL if there is only one algorithm. */
    const char *(*algorithm_name)(const void *state);

    /* Returns the number of messages that this rank has sent, and their total bytes. NULL if the backend does not
     * count them. */
    void (*traffic)(const void *state, uint64_t *messages, uint64_t *bytes);

    /* Advances the call in progress; with `wait`, until it has finished. Sets `*finished` to true when it has
     * finished. This function and test also advance all posted messages. */
    ls_status (*progress)(void *state, bool wait, bool *finished);

    /*
     * Begins a send or receive, independently of other calls; any number may be in progress. Sets `*request` to NULL if
     * it has already finished. Otherwise the caller calls test until it reports completion or fails, which frees the
     * request. close frees the remaining requests. A receive fails with LS_ERR_MISMATCH if its count or dtype differs
     * from the message's number. A receive from any rank fails if all other ranks have left.
     */
    ls_status (*post)(void *state, const ls_call *call, void **request);
    ls_status (*test)(void *state, void *request, bool wait, bool *finished);

    /*
     * Opens a communicator of some ranks of this communicator. Borrows `join`, as open does. ranks[i] is the rank in
     * this communicator of rank i of the new one. All ranks call it together while no call is in progress; `join` is
     * NULL on ranks that do not join. If only the new communicator fails, this state stays usable. NULL if the caller
     * must use open, so that the ranks meet through the store.
     */
    ls_status (*split)(void *state, const ls_join_context *join, const int *ranks, void **result);

    /*
     * Opens a state on top of the program's own communicator. `handle` points to an MPI_Comm, or to an MPI_Fint if
     * `fortran` is true. `join` contains the timeout and the machine; this function adds rank and size. All ranks of
     * the communicator call it. Each of its steps blocks at most until the timeout. NULL if the backend does not
     * support this.
     */
    ls_status (*adopt)(const void *handle, bool fortran, ls_join_context *join, void **state);

    /*
     * Allocates memory for ls_comm_alloc: a blocking collective call (all ranks, in order, with number `sequence`). The
     * state owns the memory and frees it at close at the latest. release is a local call. NULL selects ordinary memory.
     */
    ls_status (*alloc)(void *state, size_t size, uint64_t sequence, void **memory);
    void (*release)(void *state, void *memory);
} ls_backend;

extern const ls_backend ls_backend_self; /* a world of one */
extern const ls_backend ls_backend_shm;  /* ranks of one machine */
extern const ls_backend ls_backend_tcp;  /* ranks anywhere */

/* A number that differs between builds whose ranks cannot share memory. */
extern const uint64_t ls_shm_layout_number;

/* Returns the backend with this name, which is loaded if it is a plug-in (module.h). Returns NULL and sets an error
 * on failure. */
const ls_backend *ls_backend_find(const char *name);

/* Returns backend mpi for the MPI library "openmpi" or "mpich". */
const ls_backend *ls_backend_find_mpi(const char *library);

/* Returns the public name without its prefix ls_comm_: "barrier", "broadcast", ... */
const char *ls_operation_name(ls_operation operation);

/* Writes the name of a call for messages: "ls_comm_allreduce #17". Returns `text`. */
const char *ls_call_describe(ls_operation operation, uint64_t sequence, char *text, size_t capacity);

/* Returns a phrase for messages about a rank that left: "called ls_finalize". */
const char *ls_leave_describe(ls_leave_reason reason);

/* A list of ranks for a message: "rank 1", "ranks 0, 2, 3", truncated with dots if there are too many. */
typedef struct ls_rank_list {
    char text[400];
    size_t length;
    int count;
    int first; /* the first rank that was added */
} ls_rank_list;

void ls_rank_list_add(ls_rank_list *list, int rank);

/* A call that waits for other ranks. */
typedef struct ls_waiting {
    const ls_call *call; /* NULL: ls_finalize */
    const ls_rank_list *awaited;
    uint64_t waited_ns;
    uint64_t *told_ns; /* nanoseconds waited at the latest notice in the log; kept by the caller, initially 0 */
    const char *more;  /* ends the sentence */
    bool knows_latest; /* true if the latest call of the first awaited rank is known */
    ls_operation latest;
    uint64_t latest_sequence; /* 0 if that rank has made no call */
} ls_waiting;

/* Logs the wait after 10 s, and then every minute. A waiting rank calls this function regularly. */
void ls_comm_tell_waiting(const ls_waiting *waiting);

/* Returns the count that ranks must agree on, or 0 if counts may differ between ranks. */
size_t ls_call_agreed(const ls_call *call);

/* Writes all properties that ranks must agree on: "allreduce of 10 f32, sum". Returns `text`. */
const char *ls_call_detail(const ls_call *call, char *text, size_t capacity);

#endif
