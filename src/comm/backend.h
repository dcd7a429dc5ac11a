/*
 * The interface of backends. Each folder under backend/ has one ls_backend: shared memory, sockets, a world of one
 * rank, and MPI, Gloo and NCCL as plug-ins (module.h). The caller of a backend is the call layer (comm.c, work.c),
 * which checks arguments, numbers the calls, keeps them in order and remembers failures. A backend only moves data.
 *
 * Rules for every entry:
 *  - Locking: the caller. One thread at a time uses a state. Different threads may use different states.
 *  - Order: a call begins after the previous call has finished, so a state has at most one call.
 *  - Errors: a failing entry sets the error message, which begins with the name and number of the call as
 *    ls_call_describe writes them. After LS_ERR_MISMATCH the state is usable. After any other failure of a call, the
 *    caller calls only close.
 *  - Blocking: no entry waits longer for a silent rank than the timeout of the join.
 *
 * Every backend has open, close, all entries of `begin`, post, test and progress. ls_comm_alloc begins with an
 * all-reduce: begin[LS_OP_ALLREDUCE] gets a call with the operation LS_OP_ALLOC.
 *
 * A new call needs an ls_operation, its row in pieces.c, an entry, and the public function.
 */
#ifndef LS_COMM_BACKEND_H
#define LS_COMM_BACKEND_H

#include <lockstep/comm.h>

/* How a rank joins a communicator. ls_comm_open borrows everything until it returns. */
typedef struct ls_join_context {
    int rank;
    int size;
    int local_rank; /* among the ranks of this machine */
    int local_size;
    ls_store *store;     /* open, shared by all ranks; NULL only if size is 1 or `shared` is set */
    const char *prefix;  /* prefix of every key that this communicator sets; unique in the store */
    double timeout;      /* seconds to wait for a silent rank, positive */
    void *shared;        /* memory of the threads of ls_run_threads; NULL for processes */
    uint64_t machine;    /* equal on the ranks of one machine */
    const char *address; /* numeric address of this machine, for data; NULL if the ranks meet without a store */
} ls_join_context;

/* Collectives come first, and LS_OP_SEND follows them: see ls_operation_is_collective. */
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
    LS_OP_SPLIT, /* an all-gather of colors and keys */
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
 * A checked call (check.c). Fields that an operation does not have are 0. Counts and displacements are in elements of
 * `width` bytes. `count` is the count of the public call; for allgatherv and reduce_scatterv, this rank's own count.
 * alltoallv has all four arrays and no count. Other calls that end in v have the arrays of the side with varying
 * counts. If the own part is sent to the address that receives it, the backend moves nothing.
 */
typedef struct ls_call {
    ls_operation operation;
    ls_dtype dtype;
    ls_reduction reduction;
    int root;          /* send, recv: the other rank; recv_any: LS_ANY_RANK */
    int tag;           /* send, recv, recv_any */
    int *source;       /* recv_any: gets the sender; may be NULL */
    size_t count;      /* elements; pairs for minloc and maxloc */
    size_t width;      /* bytes of an element */
    const void *send;  /* the backend borrows the buffers until the call has finished */
    void *receive;     /* equal to send if the call is in place */
    uint64_t sequence; /* number of this call on this communicator, from 1; sends and receives have their own numbers */
    const size_t *send_counts;
    const size_t *send_displacements;
    const size_t *receive_counts;
    const size_t *receive_displacements;
    bool waits;            /* send, recv: the caller waits for the end */
    bool untimed;          /* send, recv: the caller limits the wait itself, and logs it */
    bool any_order;        /* reductions: values may be combined in any order */
    void *stream;          /* stream of the device whose memory the buffers are in; NULL: they are in host memory */
    size_t total;          /* the same on all ranks. allgatherv, reduce_scatterv: sum of the counts; alloc: bytes */
    uint32_t layout;       /* allgatherv, reduce_scatterv: a hash of counts */
    uint32_t algorithm;    /* set by the backend: ls_algorithm_number of the rank's setting for this operation */
    const bool *contested; /* atomic: set once another thread has called on the communicator; NULL: not known */
} ls_call;

/* ls_call.root of a receive from any rank. */
#define LS_ANY_RANK (-1)

/* The tag of the library's own messages. Tags of users are not negative. */
#define LS_TAG_INTERNAL INT32_MIN

/* Returns true if the call is a send, and not a receive. For calls that ls_backend.post gets. */
static inline bool ls_call_sends(const ls_call *call) {
    return call->operation == LS_OP_SEND || (call->operation == LS_OP_MONITORED_BARRIER && call->send != NULL);
}

/*
 * threads.c: for waits: fails with LS_ERR_STATE if another thread has called on the communicator during the call. The
 * other ranks may wait for the refused call, so this call must not wait for them.
 */
ls_status ls_call_check_threads(const ls_call *call);

/* Why a rank makes no more calls on a communicator. */
typedef enum ls_leave_reason {
    LS_LEAVE_NONE = 0,
    LS_LEAVE_FREED,     /* it freed the communicator */
    LS_LEAVE_FINALIZED, /* it called ls_finalize */
    LS_LEAVE_EXITED,    /* its process exits without ls_finalize */
    LS_LEAVE_FAILED     /* it aborted after a failure */
} ls_leave_reason;

/* Begins a call, which the backend copies if necessary. Does not wait. After LS_OK, the caller calls progress until it
 * reports the end. */
typedef ls_status ls_backend_begin(void *state, const ls_call *call);

typedef struct ls_backend {
    const char *name;
    bool sends_by_library; /* a library sends data between machines, which LOCKSTEP_WIRE cannot protect */

    /* Joins the other ranks, and returns a state. Leaves nothing on failure. Blocks, at most for the timeout. */
    ls_status (*open)(const ls_join_context *join, void **state);

    /* Frees the state, in any condition, without waiting. The other ranks learn that this rank has left. */
    void (*close)(void *state);

    /*
     * Returns true if the backend's library has finished with the program's buffers of calls that close has left
     * unfinished, on any communicator. With `wait`, waits for that, at most for the timeout. NULL: `close` finishes
     * with them.
     */
    bool (*finish_closed)(bool wait);

    /*
     * Tells the other ranks that this rank makes no more calls, and the reason. Data that it has sent still arrives.
     * Ranks that wait for more data fail with LS_ERR_PEER at once. Afterwards, only close and release are called;
     * memory of alloc lives until then. NULL for a world of one rank.
     */
    void (*leave)(void *state, ls_leave_reason reason);

    /*
     * After leave: waits, at most for the timeout, until all other ranks have called ls_finalize. Fails with
     * LS_ERR_PEER if a rank left for another reason. For ranks that met without a store; NULL if such ranks never use
     * this backend.
     */
    ls_status (*finalize_barrier)(void *state);

    /*
     * Revokes the communicator after a failure that the backend has not found itself: this thread's error, with
     * `status`. The other ranks fail at once: with LS_ERR_PEER if `failed_rank` is this rank, otherwise with the same
     * error. NULL for a world of one rank.
     */
    void (*abort)(void *state, ls_status status, int failed_rank);

    /*
     * Returns the rank whose end caused the failure of the communicator; -1 if unknown. Returns this rank if no rank
     * ended: this rank failed, or another rank called ls_finalize. NULL for a world of one rank.
     */
    int (*failed_rank)(const void *state);

    /*
     * Runs before every call. Fails with LS_ERR_STATE if the backend's library does not allow this thread to make a
     * call now; the communicator stays usable. Any thread may call this entry. NULL: every call is allowed.
     */
    ls_status (*check)(const void *state);

    /* Returns true if any thread may advance the state while no other thread uses it. NULL: any thread may. */
    bool (*any_thread)(const void *state);

    ls_backend_begin *begin[LS_OP_COUNT];

    /*
     * Returns true if collectives accept buffers in device memory, with its stream in ls_call: reductions with this
     * dtype and reduction, or calls that only move data. The same on all ranks. Barriers and messages never accept
     * them. NULL: no call does.
     */
    bool (*accepts_device_memory)(const void *state, bool reduces, ls_dtype dtype, ls_reduction reduction);

    /*
     * Executes a whole call, blocking, faster than `begin` and `progress`. Sets `*status` as these would. Returns false
     * if it does not support the call; then it has done nothing. NULL: there is no fast path.
     */
    bool (*try_fast_path)(void *state, const ls_call *call, ls_status *status);

    /* Returns the name of the algorithm of the latest call or send. NULL: there is only one. */
    const char *(*algorithm_name)(const void *state);

    /* Returns the number of messages that this rank has sent, and their bytes. NULL: they are not counted. */
    void (*traffic)(const void *state, uint64_t *messages, uint64_t *bytes);

    /* Advances the call that has begun; with `wait`, until its end. Sets `*finished` to true at the end. This entry and
     * test also advance all posted messages. */
    ls_status (*progress)(void *state, bool wait, bool *finished);

    /*
     * Begins a send or receive, independent of other calls; any number may be in progress. Sets `*request` to NULL if
     * it has already finished. Otherwise the caller calls test until it reports the end or fails, which frees the
     * request. close frees the remaining requests. A receive of another count or dtype than was sent fails with
     * LS_ERR_MISMATCH. A receive from any rank fails if all other ranks have left.
     */
    ls_status (*post)(void *state, const ls_call *call, void **request);
    ls_status (*test)(void *state, void *request, bool wait, bool *finished);

    /*
     * Opens a communicator of some ranks of this one. Borrows `join`, as open does. ranks[i] is the number here of the
     * new rank i. All ranks call it together while no call is in progress; `join` is NULL on ranks that do not join. If
     * only the new group fails, this state stays usable. NULL: the caller uses open, and the ranks meet through the
     * store.
     */
    ls_status (*split)(void *state, const ls_join_context *join, const int *ranks, void **result);

    /*
     * Opens a state over the program's own communicator: `handle` points to an MPI_Comm, or to an MPI_Fint if `fortran`
     * is true. `join` has the timeout and the machine; this entry adds rank and size. All ranks of the communicator
     * call it. Blocks, at most for the timeout in each of its steps. NULL if the backend has no such communicators.
     */
    ls_status (*adopt)(const void *handle, bool fortran, ls_join_context *join, void **state);

    /*
     * Allocates memory for ls_comm_alloc: a call like others (all ranks, in order, with number `sequence`), blocking.
     * The state owns the memory, at the latest until close. release is local. NULL: ordinary memory.
     */
    ls_status (*alloc)(void *state, size_t size, uint64_t sequence, void **memory);
    void (*release)(void *state, void *memory);
} ls_backend;

extern const ls_backend ls_backend_self; /* a world of one */
extern const ls_backend ls_backend_shm;  /* ranks of one machine */
extern const ls_backend ls_backend_tcp;  /* ranks anywhere */

/* Differs between builds whose ranks cannot share memory. */
extern const uint64_t ls_shm_layout_number;

/* Returns the backend with this name; opens it if it is a plug-in (module.h). Returns NULL and sets an error on
 * failure. */
const ls_backend *ls_backend_find(const char *name);

/* Returns backend mpi for an MPI library, "openmpi" or "mpich". */
const ls_backend *ls_backend_find_mpi(const char *library);

/* Returns the public name without ls_comm_: "barrier", "broadcast", ... */
const char *ls_operation_name(ls_operation operation);

/* Writes the name of a call for messages: "ls_comm_allreduce #17". Returns `text`. */
const char *ls_call_describe(ls_operation operation, uint64_t sequence, char *text, size_t capacity);

/* Returns the words of messages about a rank that left: "called ls_finalize". */
const char *ls_leave_describe(ls_leave_reason reason);

/* Ranks in a message: "rank 1", "ranks 0, 2, 3", with dots at the end if there are too many. */
typedef struct ls_rank_list {
    char text[400];
    size_t length;
    int count;
    int first; /* the first that was added */
} ls_rank_list;

void ls_rank_list_add(ls_rank_list *list, int rank);

/* A call that waits for other ranks. */
typedef struct ls_waiting {
    const ls_call *call; /* NULL: ls_finalize */
    const ls_rank_list *awaited;
    uint64_t waited_ns;
    uint64_t *told_ns; /* nanoseconds waited at the latest notice in the log; the caller keeps the number, 0 at first */
    const char *more;  /* ends the sentence */
    bool knows_latest; /* the latest call of the first awaited rank is known: */
    ls_operation latest;
    uint64_t latest_sequence; /* 0: it has made no call */
} ls_waiting;

/* Logs the wait after 10 s, and then every minute. A waiting rank calls it now and then. */
void ls_comm_tell_waiting(const ls_waiting *waiting);

/* Returns the count that ranks must agree on; 0 if each rank may have its own. */
size_t ls_call_agreed(const ls_call *call);

/* Writes everything that ranks must agree on: "allreduce of 10 f32, sum". Returns `text`. */
const char *ls_call_detail(const ls_call *call, char *text, size_t capacity);

#endif
