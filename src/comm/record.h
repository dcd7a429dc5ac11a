/*
 * The record of a communicator, for use only by the files of the call layer. Each file calls only files that are above
 * it in this table:
 *
 * | file | contents |
 * |---|---|
 * | record.c | the record, its references and its failure |
 * | threads.c, progress.c, complete.c | which thread may call; the list of communicators with work; begins a call |
 * | work.c | the scheduler: queue, messages, waiting |
 * | driver.c | the progress thread |
 * | check.c | checks the arguments of the public calls by the table of operations |
 * | calls.c, memory.c, leave.c | the public calls; the end of a communicator |
 * | agree.c, split.c, any_order.c, same_text.c | calls that exchange a record of every rank |
 * | monitored_barrier.c | ls_comm_monitored_barrier, by the protocol of monitor.h |
 */
#ifndef LS_COMM_RECORD_H
#define LS_COMM_RECORD_H

#include <stdatomic.h>

#include "base/status.h"
#include "comm/abort.h"
#include "comm/comm.h"
#include "comm/interface.h"
#include "comm/monitor.h"

/* The current user of a communicator: none, a call by the program, or the progress thread. */
typedef enum ls_comm_use_state { LS_COMM_IDLE = 0, LS_COMM_CALLED, LS_COMM_DRIVEN } ls_comm_use_state;

/* Arrays with one number per rank. */
enum { LS_SEND_PLACES = 0, LS_RECEIVE_PLACES, LS_PLACE_ARRAYS };

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
    bool any_order;                 /* for reductions, as agreed by all ranks */
    void *stream;                   /* for subsequent calls: see ls_comm_use_stream */
    uint64_t check;                 /* for subsequent calls: see ls_comm_set_check */
    uint64_t sequence;              /* number of the latest call */
    uint64_t posts;                 /* number of the latest send or receive */
    size_t *parts[LS_PLACE_ARRAYS]; /* for the call in progress */
    unsigned char *scratch;
    size_t scratch_bytes;
    ls_comm_block *blocks;
    ls_store *store; /* borrowed; NULL without a store */
    char *prefix;    /* prefix of the communicator's keys in the store */
    double timeout;
    uint64_t machine;
    char address[LS_ADDRESS_CAPACITY]; /* empty: unknown */
    ls_work *first_queued;
    ls_work *last_queued;
    ls_work *open;
    size_t unfinished;  /* number of unfinished calls among the works above */
    bool listed;        /* for progress.c: the communicator is in the list of communicators with unfinished work */
    const void *thread; /* the thread that last called a function on the communicator while it was listed */
    struct ls_comm *next_open; /* next communicator in this list */
    ls_work *spare;            /* finished work that was waited for, kept so that a steady state allocates nothing */
    ls_monitor *monitor;       /* for ls_comm_monitored_barrier; NULL before its first call */
    void (*on_free)(void *argument, bool failed);
    void *on_free_argument;
    struct ls_comm *root;   /* for leave.c: on a split communicator, the communicator that all splits began with; NULL
                               once the root has been freed */
    struct ls_comm *splits; /* on a root: the communicators that were split from it, directly or indirectly */
    struct ls_comm *next_split; /* next communicator that was split from the same root */
    int *origins;     /* on a split communicator: the ranks' numbers in the whole; NULL if they are the same */
    bool adopted;     /* the whole is the program's own MPI communicator instead of the world */
    bool internal;    /* the program has no works of the communicator: see ls_comm_set_internal */
    ls_status failed; /* LS_OK until a failed call has revoked the communicator */
    char message[LS_ERROR_CAPACITY];
};

/* The number of forks since the first communicator was opened, counted along the ancestors of this process. */
extern int ls_comm_forks __attribute__((visibility("hidden")));

/* Fails like ls_comm_check, for a call to this operation. If this rank has left the communicator, the message names
 * the operation. */
ls_status ls_comm_refuse(const ls_comm *comm, ls_operation operation);
static inline ls_status ls_comm_check_call(const ls_comm *comm, ls_operation operation) {
    return __builtin_expect(ls_comm_check(comm) == LS_OK, 1) ? LS_OK : ls_comm_refuse(comm, operation);
}

/* Adds to this thread's error, whose status is `status`, the world ranks of the split communicator's ranks. */
void ls_comm_tell_origins(const ls_comm *comm, ls_status status);

/* Stores a failure that revokes the communicator. On a split communicator, adds the ranks' numbers in the whole to
 * the message. Returns the status. */
ls_status ls_comm_note_failure(ls_comm *comm, ls_status status);
static inline ls_status ls_comm_note(ls_comm *comm, ls_status status) {
    return __builtin_expect(status == LS_OK, 1) ? LS_OK : ls_comm_note_failure(comm, status);
}

/* Works like ls_comm_abort, with `failed_rank` of this communicator as the cause instead of this rank. */
ls_status ls_comm_abort_for(ls_comm *comm, ls_status status, int failed_rank);

/* Advances the call in progress. */
ls_status ls_comm_progress(ls_comm *comm, bool wait, bool *finished);

/* Do the same for a send or receive. */
ls_status ls_comm_post(ls_comm *comm, const ls_call *call, void **request);
ls_status ls_comm_test(ls_comm *comm, void *request, bool wait, bool *finished);

/* Creates a communicator of the ranks in `join`, without a state; ls_comm_free frees it. Returns NULL if out of
 * memory. */
ls_comm *ls_comm_make(const ls_backend *backend, const ls_join_context *join);

#endif
