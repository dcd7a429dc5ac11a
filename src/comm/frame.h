/*
 * Internals of a communicator and its work, for use only by the files of the call layer. Each file calls only files
 * that are above it in this table:
 *
 * | file | contents |
 * |---|---|
 * | comm.c | the record, its references and its failure |
 * | threads.c, progress.c, complete.c | which thread may call; the list of communicators with work; begins a call |
 * | work.c | the scheduler: queue, messages, waiting |
 * | check.c | checks the arguments of the public calls by the table of operations |
 * | calls.c, memory.c, leave.c | the public calls; the end of a communicator |
 * | agree.c, split.c, any_order.c, same_text.c | calls that exchange a record of every rank |
 * | monitored_barrier.c | ls_comm_monitored_barrier, by the protocol of monitor.h |
 */
#ifndef LS_COMM_FRAME_H
#define LS_COMM_FRAME_H

#include <stdatomic.h>

#include "base/status.h"
#include "base/wait.h"
#include "comm/abort.h"
#include "comm/comm.h"
#include "comm/interface.h"
#include "comm/monitor.h"
#include "comm/poll.h"

/* One asynchronous call. Calls that have not been waited for yet are in the communicator's list `open`; calls that
 * have not finished are also in its queue, in order. */
struct ls_work {
    ls_comm *comm; /* NULL once the communicator has been freed */
    ls_call call;
    bool posted;   /* a send or receive, which is in no queue */
    void *request; /* the backend's request of a posted call that has not finished */
    bool begun;
    atomic_bool finished; /* a thread may read it before it takes the work over from another thread */
    ls_status status;
    bool (*finish_closed)(bool wait); /* set if the call was unfinished when the communicator was freed */
    ls_work *next_queued;
    ls_work *next_open;
    ls_work **open_link; /* the pointer that points to this work in the list of open work */
    char message[LS_ERROR_CAPACITY];
};

/* The current user of a communicator: none, a call by the program, or the progress thread. */
typedef enum ls_comm_use_state { LS_COMM_IDLE = 0, LS_COMM_CALLED, LS_COMM_DRIVEN } ls_comm_use_state;

/* Arrays with one number per rank. */
enum { LS_SEND_PLACES = 0, LS_RECEIVE_PLACES, LS_FRAME_PARTS };

/* Ordinary memory for ls_comm_alloc, used if the backend has no special memory. */
typedef struct ls_comm_block {
    _Alignas(64) struct ls_comm_block *next;
} ls_comm_block;

struct ls_comm {
    const ls_backend *backend;
    void *state;
    atomic_int references;
    atomic_int busy;       /* an ls_comm_use_state */
    bool driven;           /* for driver.c: the progress thread may advance its work */
    atomic_bool contested; /* another thread has called on this communicator during a call */
    const char *ended;     /* why this rank has left the communicator; NULL if it has not left */
    int forks;             /* value of ls_comm_forks in the process that opened it */
    int rank;
    int size;
    int local_rank;
    int local_size;
    bool any_order;                /* for reductions, as agreed by all ranks */
    void *stream;                  /* for subsequent calls: see ls_comm_use_stream */
    uint64_t check;                /* for subsequent calls: see ls_comm_set_check */
    uint64_t sequence;             /* number of the latest call */
    uint64_t posts;                /* number of the latest send or receive */
    size_t *parts[LS_FRAME_PARTS]; /* for the call in progress */
    unsigned char *scratch;
    size_t scratch_bytes;
    ls_comm_block *blocks;
    ls_store *store; /* borrowed; NULL without a store */
    char *prefix;    /* prefix of its keys in the store */
    double timeout;
    uint64_t machine;
    char address[LS_ADDRESS_CAPACITY]; /* empty: unknown */
    ls_work *first_queued;
    ls_work *last_queued;
    ls_work *open;
    size_t unfinished;         /* of these */
    bool listed;               /* for progress.c: it is in the list of communicators with unfinished work */
    const void *thread;        /* the thread that last called a function on the communicator while it was listed */
    struct ls_comm *next_open; /* the next one */
    ls_work *spare;            /* finished work that was waited for, kept so that a steady state allocates nothing */
    ls_monitor *monitor;       /* for ls_comm_monitored_barrier; NULL before the first one */
    void (*on_free)(void *argument, bool failed);
    void *on_free_argument;
    struct ls_comm *root;   /* for leave.c: on a split communicator, the communicator that all splits began with; NULL
                               once that has been freed */
    struct ls_comm *splits; /* on a root: the communicators that were split from it, directly or indirectly */
    struct ls_comm *next_split; /* of the same root */
    int *origins;     /* on a split communicator: its ranks' numbers in the whole; NULL if they are the same */
    bool adopted;     /* the whole is the program's own MPI communicator instead of the world */
    ls_status failed; /* LS_OK until a failed call has revoked the communicator */
    char message[LS_ERROR_CAPACITY];
};

/* In comm.c: the number of forks between the process that opened its first communicator and this process. */
extern int ls_comm_forks __attribute__((visibility("hidden")));

/* Fails like ls_comm_check, for a call to this operation. If this rank has left the communicator, the message names
 * the operation. */
ls_status ls_comm_refuse(const ls_comm *comm, ls_operation operation);
static inline ls_status ls_comm_check_call(const ls_comm *comm, ls_operation operation) {
    return __builtin_expect(ls_comm_check(comm) == LS_OK, 1) ? LS_OK : ls_comm_refuse(comm, operation);
}

/* ---- threads.c: which thread may call ----------------------------------------------------------------------------
 *
 * Every call that moves data begins and ends with the following functions. Only one thread at a time uses a
 * communicator. If two threads call at once, the second gets LS_ERR_STATE. When the call of the first thread ends,
 * this error also becomes the failure of the communicator: neither this rank nor the ranks that wait for the refused
 * call may blame another rank. Plain loads and stores are sufficient, because such calls overlap for a long time. */
ls_status ls_comm_refuse_thread(ls_comm *comm, ls_operation operation);
ls_status ls_comm_name_refusal(ls_operation operation); /* prefixes this thread's error with the call's name */
ls_status ls_comm_fail_contested(ls_comm *comm, ls_operation operation);

/*
 * For driven communicators. ls_comm_take reserves a communicator for a call, waiting for the progress thread. It
 * returns false if another thread is in a call, or if the process was forked while the progress thread used the
 * communicator. ls_comm_exclude_driver waits until the progress thread does not use the communicator, and excludes that
 * thread until ls_comm_admit_driver.
 */
bool ls_comm_take(ls_comm *comm);
void ls_comm_exclude_driver(ls_comm *comm);
void ls_comm_admit_driver(ls_comm *comm);

static inline bool ls_comm_is_busy(const ls_comm *comm) {
    return __builtin_expect(atomic_load_explicit(&comm->busy, memory_order_relaxed) == LS_COMM_CALLED, 0);
}

/* Begins a call that the backend's library cannot reject: a call that does not use the library, or the remainder of
 * a call. */
static inline ls_status ls_comm_enter(ls_comm *comm, ls_operation operation) {
    if (ls_comm_is_busy(comm) || (__builtin_expect(comm->driven, 0) && !ls_comm_take(comm))) {
        return ls_comm_refuse_thread(comm, operation);
    }
    atomic_store_explicit(&comm->busy, LS_COMM_CALLED, memory_order_relaxed);
    return LS_OK;
}

static inline ls_status ls_comm_begin_call(ls_comm *comm, ls_operation operation) {
    if (comm->backend->check != NULL && !ls_comm_is_busy(comm) && ls_comm_check_allowed(comm) != LS_OK) {
        return ls_comm_name_refusal(operation);
    }
    return ls_comm_enter(comm, operation);
}

/* Ends a call with the status `status`. Returns its final status. */
static inline ls_status ls_comm_end_call(ls_comm *comm, ls_operation operation, ls_status status) {
    if (__builtin_expect(atomic_load_explicit(&comm->contested, memory_order_relaxed), 0)) {
        status = ls_comm_fail_contested(comm, operation);
    }
    atomic_store_explicit(&comm->busy, LS_COMM_IDLE, memory_order_release);
    return status;
}

/* Adds to this thread's error, whose status is `status`, the world ranks of the split communicator's ranks. */
void ls_comm_tell_origins(const ls_comm *comm, ls_status status);

/* Stores a failure that revokes the communicator. On a split communicator, adds the ranks' numbers in the whole to
 * the message. Returns the status. */
ls_status ls_comm_note_failure(ls_comm *comm, ls_status status);
static inline ls_status ls_comm_note(ls_comm *comm, ls_status status) {
    return __builtin_expect(status == LS_OK, 1) ? LS_OK : ls_comm_note_failure(comm, status);
}

/* In comm.c: ls_comm_abort, with `failed_rank` of this communicator as the cause instead of this rank. */
ls_status ls_comm_abort_for(ls_comm *comm, ls_status status, int failed_rank);

/* In calls.c: numbers the call and executes it, either now or, if `work` is not NULL, when its turn comes. */
ls_status ls_comm_call(ls_comm *comm, ls_call *call, ls_work **work);

/*
 * In check.c: checks the arguments of a collective of the public interface, and sets the width, the count and other
 * fields that follow from the arguments. The public function has set only the fields that are its own arguments. SPLIT
 * has no user arguments, so its caller has set all fields.
 */
ls_status ls_call_check(const ls_comm *comm, ls_call *call);

/* Does the same for a send or receive of `buffer`. */
ls_status ls_message_check(const ls_comm *comm, ls_call *call, const void *buffer);

/*
 * In agree.c: exchanges one record per rank and returns the result of `conclude(comm, records, argument)`, which may
 * overwrite the records, stored in rank order. `call` describes this rank's record: an operation that gathers on all
 * ranks, dtype, count, width and `send`. Messages about memory begin with `name`. If out of memory for the records,
 * aborts the communicator, because the other ranks wait for this rank's record.
 */
typedef ls_status ls_agree_conclude(ls_comm *comm, void *records, void *argument);
ls_status ls_comm_agree(ls_comm *comm, const char *name, ls_call *call, ls_agree_conclude *conclude, void *argument);

/* In complete.c: begins `call` on the backend, after adding what the call leaves out; the added arrays stay valid
 * until the next call. Records failures that revoke the communicator. */
ls_status ls_comm_begin(ls_comm *comm, const ls_call *call);

/* Advances the call in progress. */
ls_status ls_comm_progress(ls_comm *comm, bool wait, bool *finished);

/* In work.c: waits until the call in progress has finished. */
ls_status ls_comm_finish(ls_comm *comm);

/* Do the same for a send or receive. */
ls_status ls_comm_post(ls_comm *comm, const ls_call *call, void **request);
ls_status ls_comm_test(ls_comm *comm, void *request, bool wait, bool *finished);

/* Creates a communicator of the ranks in `join`, without a state; ls_comm_free frees it. Returns NULL if out of
 * memory. */
ls_comm *ls_comm_make(const ls_backend *backend, const ls_join_context *join);

/* Executes all queued work. Failures are stored in the work. */
void ls_comm_drain(ls_comm *comm);

/* Executes a send or receive, either now or as work. */
ls_status ls_work_post(ls_comm *comm, ls_call *call, ls_work **work);

/* Queues `call` and sets `*work`. */
ls_status ls_work_queue(ls_comm *comm, const ls_call *call, ls_work **work);

/* Detaches all work from the communicator when the communicator is freed. */
void ls_work_abandon(ls_comm *comm);

/* In waiting.c: the time in nanoseconds after which a waiting call first logs its wait; tests shorten it. */
extern uint64_t ls_comm_tell_after_ns __attribute__((visibility("hidden")));

/* ---- leave.c: ranks that make no more calls on any communicator -------------------------------------------------- */

/* Records that `part` was split from `comm`. */
void ls_comm_add_split(ls_comm *comm, ls_comm *part);

/* ---- progress.c: the communicators with unfinished work ---------------------------------------------------------
 *
 * A rank may wait on one communicator for another rank that itself waits for this rank on another communicator. So a
 * rank that waits also advances the work of the other communicators that its thread uses. When all work of a
 * communicator has finished, its thread removes the communicator from the list at its next poll, whether or not the
 * program has waited for that work.
 */

/* Called when work begins on a communicator that is not in the list, or when a listed communicator has no work left. */
void ls_comm_opened(ls_comm *comm);
void ls_comm_closed(ls_comm *comm);

/* Declares that this thread uses the communicator from now on; called before the communicator is accessed. */
void ls_comm_use_slowly(ls_comm *comm);
static inline void ls_comm_use(ls_comm *comm) {
    if (comm->open != NULL) {
        ls_comm_use_slowly(comm);
    }
}

/* Returns true if this thread has unfinished work on another communicator. */
bool ls_comm_has_others_slowly(const ls_comm *comm);
static inline bool ls_comm_has_others(const ls_comm *comm) {
    const int open = atomic_load_explicit(&ls_comm_open_count, memory_order_relaxed);
    return __builtin_expect(open != comm->listed, 0) && ls_comm_has_others_slowly(comm);
}

/* Calls `move` for each such communicator. */
void ls_comm_move_others(const ls_comm *comm, void (*move)(ls_comm *other));

/* Calls `move` for each driven communicator with unfinished work that no thread uses. For the progress thread. */
void ls_comm_move_driven(void (*move)(ls_comm *comm));

/*
 * Returns how often a driven communicator was added to the list or ls_comm_wake_driver was called. ls_comm_await_opened
 * sleeps as long as this count equals `count`, for at most a second.
 */
uint32_t ls_comm_count_opened(void);
void ls_comm_await_opened(uint32_t count);
void ls_comm_wake_driver(void);

/* In work.c: advances the open work of the communicator once, without waiting: its queue, or a posted request. */
void ls_comm_move_open(ls_comm *comm);

/* In work.c: for a waiting call, advances the queue of this communicator and the other communicators of this thread. */
void ls_comm_move_all(ls_comm *comm);

/* ---- driver.c: the progress thread --------------------------------------------------------------------------------
 *
 * With ls_init_options.progress_thread, one thread of the process advances the started work of its communicators
 * while the program computes. A communicator is used either by a call or by this thread: see ls_comm_use_state. */

/* Ends the drive of a communicator that is about to be freed and is not in the list. The last one stops the thread. */
void ls_comm_end_drive(ls_comm *comm);

/* Starts a wait for several communicators. No backend can sleep until any one of several communicators has an event. */
#define LS_WAIT_FOR_WORK ((ls_wait){.yields = 1000, .longest_ns = 50000})

#endif
