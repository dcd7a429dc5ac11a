/*
 * The inside of a communicator and of its work, for the files of the call layer alone. Each of them calls only files
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

/* One asynchronous call. Those not waited for yet are in the communicator's list `open`; calls that have not finished
 * also in its queue, in their order. */
struct ls_work {
    ls_comm *comm; /* NULL after the communicator was freed */
    ls_call call;
    bool posted;   /* a send or receive: in no queue */
    void *request; /* the backend's, of a posted one that has not finished */
    bool begun;
    bool finished;
    ls_status status;
    bool (*finish_closed)(bool wait); /* of ls_backend, if the call was unfinished when the communicator was freed */
    ls_work *next_queued;
    ls_work *next_open;
    ls_work **open_link; /* what points to this one in the list of open work */
    char message[LS_ERROR_CAPACITY];
};

/* The user of a communicator: none, a call of the program, or the progress thread. */
typedef enum ls_comm_use_state { LS_COMM_IDLE = 0, LS_COMM_CALLED, LS_COMM_DRIVEN } ls_comm_use_state;

/* Arrays of one number per rank. */
enum { LS_SEND_PLACES = 0, LS_RECEIVE_PLACES, LS_FRAME_PARTS };

/* Ordinary memory of ls_comm_alloc, where the backend has no better. */
typedef struct ls_comm_block {
    _Alignas(64) struct ls_comm_block *next;
} ls_comm_block;

struct ls_comm {
    const ls_backend *backend;
    void *state;
    atomic_int references;
    atomic_int busy;       /* an ls_comm_use_state */
    bool driven;           /* driver.c: the progress thread may move its work */
    atomic_bool contested; /* another thread has called meanwhile */
    const char *ended;     /* why this rank has left it; NULL while it has not */
    int forks;             /* ls_comm_forks in the process that opened it */
    int rank;
    int size;
    int local_rank;
    int local_size;
    bool any_order;                /* of reductions, as all ranks have agreed */
    void *stream;                  /* of the calls to come: ls_comm_use_stream */
    uint64_t check;                /* of the calls to come: ls_comm_set_check */
    uint64_t sequence;             /* number of the latest call */
    uint64_t posts;                /* number of the latest send or receive */
    size_t *parts[LS_FRAME_PARTS]; /* of the call in progress */
    unsigned char *scratch;
    size_t scratch_bytes;
    ls_comm_block *blocks;
    ls_store *store; /* borrowed; NULL without a store */
    char *prefix;    /* of its keys in the store */
    double timeout;
    uint64_t machine;
    char address[LS_ADDRESS_CAPACITY]; /* empty: unknown */
    ls_work *first_queued;
    ls_work *last_queued;
    ls_work *open;
    size_t unfinished;         /* of these */
    bool listed;               /* progress.c: in its list of communicators with unfinished work */
    const void *thread;        /* whose call it was that last used this communicator while it was in there */
    struct ls_comm *next_open; /* the next one */
    ls_work *spare;            /* finished and waited for: kept, so that a steady state allocates nothing */
    ls_monitor *monitor;       /* of ls_comm_monitored_barrier; NULL before the first */
    void (*on_free)(void *argument, bool failed);
    void *on_free_argument;
    struct ls_comm *root;   /* leave.c: of a part, the communicator that all this began with; NULL once that is freed */
    struct ls_comm *splits; /* of a root: the communicators that were split from it, directly or not */
    struct ls_comm *next_split; /* of the same root */
    int *origins;               /* of a part: its ranks' numbers in the whole, where they are others; else NULL */
    bool adopted;               /* the whole is the program's own MPI communicator, not the world */
    ls_status failed;           /* LS_OK until a call failed in a way that revokes the communicator */
    char message[LS_ERROR_CAPACITY];
};

/* comm.c: the number of forks between the process that opened its first communicator and this process. */
extern int ls_comm_forks __attribute__((visibility("hidden")));

/* ls_comm_check for a call of this operation, which is named where the rank itself has left the communicator. */
ls_status ls_comm_refuse(const ls_comm *comm, ls_operation operation);
static inline ls_status ls_comm_check_call(const ls_comm *comm, ls_operation operation) {
    return __builtin_expect(ls_comm_check(comm) == LS_OK, 1) ? LS_OK : ls_comm_refuse(comm, operation);
}

/* ---- threads.c: which thread may call ----------------------------------------------------------------------------
 *
 * Every call that moves data begins and ends with these two. One thread at a time uses a communicator. Two threads that
 * call at once get LS_ERR_STATE. When the call of the first thread ends, that error also becomes the failure of the
 * communicator: neither the ranks that wait for the refused call nor this rank shall blame another rank. Plain loads
 * and stores are enough, because such calls overlap for long.
 */
ls_status ls_comm_refuse_thread(ls_comm *comm, ls_operation operation);
ls_status ls_comm_name_refusal(ls_operation operation); /* puts the call's name before this thread's error */
ls_status ls_comm_fail_contested(ls_comm *comm, ls_operation operation);

/*
 * For driven communicators. ls_comm_take takes one for a call, after the progress thread. It returns false if another
 * thread is in a call, or if the process was forked while the progress thread used the communicator.
 * ls_comm_exclude_driver waits until the progress thread does not use the communicator, and excludes this thread until
 * ls_comm_admit_driver.
 */
bool ls_comm_take(ls_comm *comm);
void ls_comm_exclude_driver(ls_comm *comm);
void ls_comm_admit_driver(ls_comm *comm);

static inline bool ls_comm_is_busy(const ls_comm *comm) {
    return __builtin_expect(atomic_load_explicit(&comm->busy, memory_order_relaxed) == LS_COMM_CALLED, 0);
}

/* Begins a call that the backend's library cannot refuse: one that does not use the library, or the rest of one. */
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

/* Returns the status of the call, which was `status` so far. */
static inline ls_status ls_comm_end_call(ls_comm *comm, ls_operation operation, ls_status status) {
    if (__builtin_expect(atomic_load_explicit(&comm->contested, memory_order_relaxed), 0)) {
        status = ls_comm_fail_contested(comm, operation);
    }
    atomic_store_explicit(&comm->busy, LS_COMM_IDLE, memory_order_release);
    return status;
}

/* Adds to this thread's error, of `status`, which ranks of the world a part's ranks are. */
void ls_comm_tell_origins(const ls_comm *comm, ls_status status);

/* Remembers a failure that revokes the communicator, and adds to what a part says of its ranks who they are in the
 * whole; returns the status. */
ls_status ls_comm_note_failure(ls_comm *comm, ls_status status);
static inline ls_status ls_comm_note(ls_comm *comm, ls_status status) {
    return __builtin_expect(status == LS_OK, 1) ? LS_OK : ls_comm_note_failure(comm, status);
}

/* comm.c: ls_comm_abort, which blames `failed_rank` of this communicator instead of this rank. */
ls_status ls_comm_abort_for(ls_comm *comm, ls_status status, int failed_rank);

/* calls.c: numbers the call and carries it out now or, when `work` is wanted, in its turn. */
ls_status ls_comm_call(ls_comm *comm, ls_call *call, ls_work **work);

/*
 * check.c: checks the arguments of a collective of the public interface, and sets the width, the count and other fields
 * that follow from the arguments. The public function has set only the fields that are its own arguments. SPLIT has no
 * arguments of the user's, so its caller has set all fields.
 */
ls_status ls_call_check(const ls_comm *comm, ls_call *call);

/* The same for a send or receive of `buffer`. */
ls_status ls_message_check(const ls_comm *comm, ls_call *call, const void *buffer);

/*
 * agree.c: exchanges a record of every rank and returns the result of `conclude(comm, records, argument)`, which may
 * overwrite the records, in the order of the ranks. The call describes the own record: an operation that gathers on all
 * ranks, dtype, count, width and `send`. Messages about memory begin with `name`. If there is no memory for the
 * records, this aborts the communicator, because the other ranks wait for the record of this rank.
 */
typedef ls_status ls_agree_conclude(ls_comm *comm, void *records, void *argument);
ls_status ls_comm_agree(ls_comm *comm, const char *name, ls_call *call, ls_agree_conclude *conclude, void *argument);

/* complete.c: begins `call` on the backend, and first adds what the call leaves out, which stays until the next call.
 * Notes failures that revoke the communicator. */
ls_status ls_comm_begin(ls_comm *comm, const ls_call *call);

/* Moves the call that was begun. */
ls_status ls_comm_progress(ls_comm *comm, bool wait, bool *finished);

/* work.c: waits for its end. */
ls_status ls_comm_finish(ls_comm *comm);

/* The same for a send or receive. */
ls_status ls_comm_post(ls_comm *comm, const ls_call *call, void **request);
ls_status ls_comm_test(ls_comm *comm, void *request, bool wait, bool *finished);

/* A communicator without a state yet, of join's ranks; ls_comm_free ends it. NULL: out of memory. */
ls_comm *ls_comm_make(const ls_backend *backend, const ls_join_context *join);

/* Carries out all queued work. Failures stay with the work. */
void ls_comm_drain(ls_comm *comm);

/* Carries out a send or receive: now, or as work. */
ls_status ls_work_post(ls_comm *comm, ls_call *call, ls_work **work);

/* Queues `call` and gives its work. */
ls_status ls_work_queue(ls_comm *comm, const ls_call *call, ls_work **work);

/* Ends the communicator's side of all work when it is freed. */
void ls_work_abandon(ls_comm *comm);

/* waiting.c: nanoseconds after which a call that waits first tells the log; tests shorten it. */
extern uint64_t ls_comm_tell_after_ns __attribute__((visibility("hidden")));

/* ---- leave.c: ranks that make no more calls on any communicator ----------------------------------------------------
 */

/* `part` was made of `comm`. */
void ls_comm_add_split(ls_comm *comm, ls_comm *part);

/* ---- progress.c: the communicators with unfinished work ---------------------------------------------------------
 *
 * A rank may wait on one communicator for another rank that itself waits for this rank on another communicator. So a
 * rank that waits also advances the work of the other communicators that its thread uses. When all work of a
 * communicator has finished, its thread removes the communicator from the list at its next poll, whether or not the
 * program has waited for that work.
 */

/* Work begins on a communicator that is not in the list; one that is has no work left at all. */
void ls_comm_opened(ls_comm *comm);
void ls_comm_closed(ls_comm *comm);

/* This thread uses the communicator now: to be said before it is touched. */
void ls_comm_use_slowly(ls_comm *comm);
static inline void ls_comm_use(ls_comm *comm) {
    if (comm->open != NULL) {
        ls_comm_use_slowly(comm);
    }
}

/* Whether this thread has unfinished work on another communicator. */
bool ls_comm_has_others_slowly(const ls_comm *comm);
static inline bool ls_comm_has_others(const ls_comm *comm) {
    const int open = atomic_load_explicit(&ls_comm_open_count, memory_order_relaxed);
    return __builtin_expect(open != comm->listed, 0) && ls_comm_has_others_slowly(comm);
}

/* Calls `move` for each of these communicators. */
void ls_comm_move_others(const ls_comm *comm, void (*move)(ls_comm *other));

/* Calls `move` for each driven communicator with unfinished work that no thread uses. For the progress thread. */
void ls_comm_move_driven(void (*move)(ls_comm *comm));

/*
 * Counts how often a driven communicator was added to the list, or ls_comm_wake_driver was called. ls_comm_await_opened
 * sleeps while the count is `count`, for a second at most.
 */
uint32_t ls_comm_count_opened(void);
void ls_comm_await_opened(uint32_t count);
void ls_comm_wake_driver(void);

/* work.c: advances the open work of the communicator once, without waiting: its queue, or a posted request. */
void ls_comm_move_open(ls_comm *comm);

/* work.c: advances, for a call that waits, the queue of this communicator and the other communicators of this thread.
 */
void ls_comm_move_all(ls_comm *comm);

/* ---- driver.c: the progress thread --------------------------------------------------------------------------------
 *
 * With ls_init_options.progress_thread, one thread of the process moves the started work of its communicators while
 * the program computes. A communicator is used either by a call or by this thread: see ls_comm_use_state.
 */

/* Ends the drive of a communicator that is about to be freed and is not in the list. The last one ends the thread. */
void ls_comm_end_drive(ls_comm *comm);

/* Starts a wait for several communicators: no backend can sleep until one of them has an event. */
#define LS_WAIT_FOR_WORK ((ls_wait){.yields = 1000, .longest_ns = 50000})

#endif
