#include "comm/work.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/trace.h"
#include "comm/complete.h"
#include "comm/meter.h"
#include "comm/progress.h"
#include "comm/record.h"
#include "comm/threads.h"

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

_Thread_local ls_comm_meter ls_comm_metered;

static void finish(ls_work *work, ls_status status) {
    atomic_store_explicit(&work->finished, true, memory_order_release);
    work->status = status;
    work->comm->unfinished--;
    if (status != LS_OK) {
        memcpy(work->message, ls_error_message(), sizeof work->message);
    }
}

static void open_insert(ls_comm *comm, ls_work *work) {
    work->next_open = comm->open;
    work->open_link = &comm->open;
    if (comm->open != NULL) {
        comm->open->open_link = &work->next_open;
    }
    comm->open = work;
    comm->unfinished++;
    if (!comm->listed) {
        ls_comm_opened(comm);
    }
}

static void open_remove(ls_work *work) {
    *work->open_link = work->next_open;
    if (work->next_open != NULL) {
        work->next_open->open_link = work->open_link;
    }
    if (work->comm->open == NULL && work->comm->listed) {
        ls_comm_closed(work->comm);
    }
}

/* Advances this communicator and the others until its call has finished or the others have no more work. */
static ls_status finish_among_others(ls_comm *comm, bool *finished) {
    ls_wait wait = LS_WAIT_FOR_WORK;
    do {
        LS_TRY(ls_comm_progress(comm, false, finished));
        if (!*finished) {
            ls_comm_move_others(comm, ls_comm_move_open);
            (void)ls_wait_pause(&wait);
        }
    } while (!*finished && ls_comm_has_others(comm));
    return LS_OK;
}

ls_status ls_comm_finish(ls_comm *comm) {
    bool finished = false;
    if (ls_comm_has_others(comm)) {
        LS_TRY(finish_among_others(comm, &finished));
    }
    return finished ? LS_OK : ls_comm_progress(comm, true, &finished);
}

/* Advances the first work in the queue; with `wait`, until it has finished. Returns true if the work has finished
 * and has left the queue. */
static bool advance(ls_comm *comm, bool wait) {
    ls_work *work = comm->first_queued;
    bool finished = false;
    ls_status status = ls_comm_check(comm);
    if (status == LS_OK && !work->begun) {
        work->begun = true;
        status = ls_comm_begin(comm, &work->call);
    }
    if (status == LS_OK && wait) {
        status = ls_comm_finish(comm);
        finished = true;
    } else if (status == LS_OK) {
        status = ls_comm_progress(comm, false, &finished);
    }
    if (status == LS_OK && !finished) {
        return false;
    }
    finish(work, status);
    comm->first_queued = work->next_queued;
    if (comm->first_queued == NULL) {
        comm->last_queued = NULL;
    }
    return true;
}

/* Creates a work object and adds it to the communicator's list of open work. Returns NULL with an error set if out
 * of memory. */
static ls_work *make(ls_comm *comm, const ls_call *call) {
    ls_work *work = comm->spare;
    if (work != NULL) {
        comm->spare = work->next_open;
    } else {
        work = ls_allocate(sizeof *work);
        if (work == NULL) {
            (void)ls_fail_memory("ls_comm", sizeof *work);
            return NULL;
        }
    }
    *work = (ls_work){.comm = comm, .call = *call};
    open_insert(comm, work);
    return work;
}

ls_status ls_work_queue(ls_comm *comm, const ls_call *call, ls_work **result) {
    ls_work *work = make(comm, call);
    if (work == NULL) {
        return LS_ERR_MEMORY;
    }
    if (comm->last_queued == NULL) {
        comm->first_queued = work;
    } else {
        comm->last_queued->next_queued = work;
    }
    comm->last_queued = work;
    if (comm->first_queued == work) {
        (void)advance(comm, false); /* immediately begins work that does not have to wait */
    }
    *result = work;
    return LS_OK;
}

/* ---- sends and receives ------------------------------------------------------------------------------------------ */

/* Polls a posted request once; with `wait`, until it has finished. Also advances the calls in the queue, because the
 * partner may send only after one of them. */
static ls_status look(ls_comm *comm, void *request, bool wait, ls_wait *pauses, bool *finished) {
    LS_TRY(ls_comm_check(comm));
    const bool others = wait && ls_comm_has_others(comm);
    if (comm->first_queued == NULL && !others) {
        return ls_comm_test(comm, request, wait, finished);
    }
    LS_TRY(ls_comm_test(comm, request, false, finished));
    if (!*finished && wait) {
        ls_comm_move_all(comm);
        (void)ls_wait_pause(pauses);
    } else if (!*finished) {
        (void)advance(comm, false);
    }
    return LS_OK;
}

/* Polls posted work; with `wait`, until it has finished. Returns true if the work has finished. */
static bool advance_posted(ls_work *work, bool wait) {
    ls_wait pauses = LS_WAIT_FOR_WORK;
    bool finished = false;
    ls_status status = LS_OK;
    do {
        status = look(work->comm, work->request, wait, &pauses, &finished);
    } while (status == LS_OK && !finished && wait);
    if (status == LS_OK && !finished) {
        return false;
    }
    finish(work, status);
    return true;
}

/* Adds a wait to the trace: the awaited call and, for sends and receives, the other rank. */
static void trace_wait(const ls_call *call, uint64_t began) {
    const char *towards = call->operation == LS_OP_SEND ? " to" : " from";
    if (call->operation == LS_OP_SEND || call->operation == LS_OP_RECV) {
        ls_trace_add(LS_TRACE_COMM, began, (int64_t)(call->count * call->width), "%s%s %d",
                     ls_operation_name(call->operation), towards, call->root);
    } else if (call->operation == LS_OP_RECV_ANY) {
        ls_trace_add(LS_TRACE_COMM, began, (int64_t)(call->count * call->width), "%s",
                     ls_operation_name(call->operation));
    } else {
        ls_trace_add(LS_TRACE_COMM, began, (int64_t)(call->count * call->width), "wait for %s",
                     ls_operation_name(call->operation));
    }
}

static ls_status post_and_wait(ls_comm *comm, const ls_call *call) {
    void *request = NULL;
    ls_wait pauses = LS_WAIT_FOR_WORK;
    const uint64_t began = ls_trace_now();
    LS_TRY(ls_comm_post(comm, call, &request));
    bool finished = request == NULL;
    while (!finished) {
        LS_TRY(look(comm, request, true, &pauses, &finished));
    }
    if (began != 0) {
        trace_wait(call, began);
    }
    return LS_OK;
}

static ls_status post(ls_comm *comm, ls_call *call, ls_work **result) {
    ls_comm_use(comm);
    LS_TRY(ls_comm_check_call(comm, call->operation));
    call->sequence = ++comm->posts;
    ls_comm_metered.calls++;
    ls_comm_metered.bytes += call->count * call->width;
    call->waits = result == NULL;
    call->public_call = (uint8_t)ls_public_present;
    call->contested = (const bool *)&comm->contested;
    if (result == NULL) {
        return post_and_wait(comm, call);
    }
    ls_work *work = make(comm, call);
    if (work == NULL) {
        return LS_ERR_MEMORY;
    }
    work->posted = true;
    const ls_status status = ls_comm_post(comm, call, &work->request);
    if (status != LS_OK || work->request == NULL) {
        finish(work, status);
    }
    *result = work;
    return LS_OK;
}

ls_status ls_work_post(ls_comm *comm, ls_call *call, ls_work **result) {
    LS_TRY(ls_comm_begin_call(comm, call->operation));
    return ls_comm_end_call(comm, call->operation, post(comm, call, result));
}

/* ---- all work ---------------------------------------------------------------------------------------------------- */

static bool move(ls_work *work, bool wait) {
    return work->posted ? advance_posted(work, wait) : advance(work->comm, wait);
}

void ls_comm_move_open(ls_comm *comm) {
    if (comm->first_queued != NULL) {
        (void)advance(comm, false);
        return; /* the poll of the queue has also advanced all posted messages */
    }
    for (ls_work *work = comm->open; work != NULL; work = work->next_open) {
        if (work->posted && !work->finished) {
            (void)advance_posted(work, false);
            return;
        }
    }
}

void ls_comm_move_all(ls_comm *comm) {
    if (comm->first_queued != NULL) {
        (void)advance(comm, false);
    }
    if (ls_comm_has_others(comm)) {
        ls_comm_move_others(comm, ls_comm_move_open);
    }
}

/* The shortest interval between two polls of ls_comm_poll. */
enum { POLL_NS = 20000 };

void ls_comm_poll_slowly(void) {
    static _Thread_local uint64_t latest;
    const uint64_t now = ls_clock_ns();
    if (now - latest >= POLL_NS) {
        latest = now;
        ls_comm_move_others(NULL, ls_comm_move_open);
    }
}

void ls_comm_drain(ls_comm *comm) {
    while (comm->first_queued != NULL) {
        (void)advance(comm, true);
    }
}

/*
 * Begins ls_work_wait or ls_work_done. MPI may refuse calls from this thread, but finished work does not use MPI. With
 * a progress thread, MPI allows all threads, and this thread reads `finished` only during the call.
 */
static ls_status begin_call(const ls_work *work) {
    const ls_operation operation = work->call.operation;
    return work->comm->driven || work->finished ? ls_comm_enter(work->comm, operation)
                                                : ls_comm_begin_call(work->comm, operation);
}

static ls_status check_open(const char *call, const ls_work *work) {
    const bool spare = work->open_link == NULL && work->comm != NULL;
    return spare ? ls_fail(LS_ERR_STATE, "%s: this work was already waited for", call) : LS_OK;
}

/* Returns the status of finished work, and frees the work. */
static ls_status take_status(ls_work *work) {
    ls_comm *comm = work->comm;
    const ls_status status = work->status;
    if (status != LS_OK) {
        ls_error_restore(status, work->message);
    }
    if (comm == NULL) {
        ls_free(work);
        return status;
    }
    open_remove(work);
    work->open_link = NULL;
    work->next_open = comm->spare;
    comm->spare = work;
    return ls_comm_end_call(comm, work->call.operation, status);
}

/* Waits for work of a freed communicator. */
static ls_status wait_for_closed(ls_work *work) {
    if (work->finish_closed != NULL) {
        (void)work->finish_closed(true);
    }
    return take_status(work);
}

/* Advances the work without waiting. */
static void move_work(ls_work *work) {
    ls_comm_use(work->comm);
    while (!work->finished) {
        if (!move(work, false)) {
            if (ls_comm_has_others(work->comm)) {
                ls_comm_move_others(work->comm, ls_comm_move_open);
            }
            return;
        }
    }
}

/* Advances the work until it has finished, or until the deadline (NULL for no deadline). */
static void advance_until(ls_work *work, const ls_deadline *deadline) {
    ls_wait pauses = LS_WAIT_FOR_WORK;
    if (deadline == NULL) {
        while (!work->finished) {
            (void)move(work, true);
        }
        return;
    }
    for (move_work(work); !work->finished && !ls_deadline_passed(*deadline); move_work(work)) {
        (void)ls_wait_pause(&pauses);
    }
}

/* Waits for work whose communicator has not been freed, and measures the wait. Returns true if the work has finished.
 */
static bool finish_work(ls_work *work, const ls_deadline *deadline) {
    ls_comm_use(work->comm);
    const uint64_t began = work->finished ? 0 : ls_trace_now(), metered = ls_comm_meter_begin();
    advance_until(work, deadline);
    ls_comm_meter_end(metered);
    if (began != 0) {
        trace_wait(&work->call, began);
    }
    return work->finished;
}

/* Revokes the communicator with this thread's error, LS_ERR_STATE, which ends its unfinished work. Waits until `work`
 * has finished, and sets its status to `status`. */
static void cancel(ls_work *work, ls_status status) {
    (void)ls_comm_abort(work->comm, LS_ERR_STATE);
    advance_until(work, NULL);
    work->status = status;
}

/* Waits for the work and frees it. If the work has not finished by the deadline (NULL for no deadline), cancels it
 * with status `late` and the reason `why`. Work of a freed communicator ignores the deadline. */
static ls_status wait_until(ls_work *work, const char *call, const ls_deadline *deadline, ls_status late,
                            const char *why) {
    if (work == NULL) {
        return LS_OK;
    }
    LS_TRY(check_open(call, work));
    if (work->comm == NULL) {
        return wait_for_closed(work);
    }
    LS_TRY(begin_call(work));
    if (!finish_work(work, deadline)) {
        char name[64];
        ls_call_describe(work->call.operation, work->call.sequence, name, sizeof name);
        (void)ls_fail(LS_ERR_STATE, "%s %s", name, why);
        cancel(work, late);
    }
    return take_status(work);
}

ls_status ls_work_wait(ls_work *work) {
    return wait_until(work, "ls_work_wait", NULL, LS_OK, "");
}

ls_status ls_work_wait_for(ls_work *work, double seconds) {
    if (!(seconds >= 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_work_wait_for: timeout is %g s, but must not be negative", seconds);
    }
    char why[64];
    const ls_deadline deadline = ls_deadline_after(seconds);
    snprintf(why, sizeof why, "has not finished within %g s, and was cancelled", seconds);
    return wait_until(work, "ls_work_wait_for", &deadline, LS_ERR_TIMEOUT, why);
}

ls_status ls_work_cancel(ls_work *work) {
    const ls_deadline now = ls_deadline_after(0);
    return wait_until(work, "ls_work_cancel", &now, LS_ERR_STATE, "was cancelled by ls_work_cancel");
}

bool ls_work_done(ls_work *work) {
    if (work == NULL) {
        return true;
    }
    if (work->comm == NULL) { /* all work of a freed communicator has finished */
        return work->finish_closed == NULL || work->finish_closed(false);
    }
    if (begin_call(work) != LS_OK) { /* ls_work_wait would return this error at once */
        return true;
    }
    move_work(work);
    (void)ls_comm_end_call(work->comm, work->call.operation, LS_OK);
    return work->finished;
}

/* The list `open` begins with the latest work. */
void ls_work_warn_unfinished(const ls_comm *comm, const char *call) {
    const ls_work *first = NULL;
    size_t count = 0;
    for (const ls_work *work = comm->open; work != NULL; work = work->next_open) {
        if (!work->finished && work->call.operation != LS_OP_SEND) {
            first = work;
            count++;
        }
    }
    if (first != NULL && comm->failed == LS_OK) {
        char name[64];
        char more[64] = "";
        ls_call_describe(first->call.operation, first->call.sequence, name, sizeof name);
        if (count > 1) {
            snprintf(more, sizeof more, " (and %zu more)", count - 1);
        }
        ls_log_write(LS_LOG_WARNING, "%s: %s%s has not finished, and its result is lost; call ls_work_wait first", call,
                     name, more);
    }
}

void ls_work_abandon(ls_comm *comm) {
    while (comm->open != NULL) {
        ls_work *work = comm->open;
        if (!work->finished) {
            char name[64];
            ls_call_describe(work->call.operation, work->call.sequence, name, sizeof name);
            finish(work, ls_fail(LS_ERR_STATE, "%s: the communicator was freed before the call had finished", name));
            work->finish_closed = work->begun || work->posted ? comm->backend->finish_closed : NULL;
        }
        open_remove(work);
        work->comm = NULL;
    }
    comm->first_queued = comm->last_queued = NULL;
    while (comm->spare != NULL) {
        ls_work *work = comm->spare;
        comm->spare = work->next_open;
        ls_free(work);
    }
}
