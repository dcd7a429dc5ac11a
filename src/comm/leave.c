/*
 * A rank that calls ls_finalize, or exits without it, makes no more calls on the world and its split communicators. It
 * notifies all ranks of these communicators, so that no rank waits for it.
 */
#include "comm/leave.h"

#include <pthread.h>
#include <stdio.h>

#include "comm/driver.h"
#include "comm/progress.h"
#include "comm/record.h"
#include "comm/threads.h"
#include "comm/work.h"

/* Several threads of a rank may split and free communicators that have the same parent. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ls_comm_add_split(ls_comm *comm, ls_comm *part) {
    pthread_mutex_lock(&lock);
    ls_comm *root = comm->root != NULL ? comm->root : comm;
    part->root = root;
    part->next_split = root->splits;
    root->splits = part;
    pthread_mutex_unlock(&lock);
}

/* Called when `comm` is about to be freed. */
static void forget_splits(ls_comm *comm) {
    pthread_mutex_lock(&lock);
    if (comm->root != NULL) {
        ls_comm **link = &comm->root->splits;
        while (*link != comm) {
            link = &(*link)->next_split;
        }
        *link = comm->next_split;
        comm->root = NULL;
    }
    while (comm->splits != NULL) { /* they live on */
        ls_comm *part = comm->splits;
        comm->splits = part->next_split;
        part->root = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static void leave(ls_comm *comm, ls_leave_reason reason) {
    if (comm->state != NULL && comm->backend->leave != NULL) {
        ls_comm_exclude_driver(comm);
        comm->backend->leave(comm->state, reason);
        ls_comm_admit_driver(comm);
    }
}

/* Makes later calls of this rank fail. */
static void refuse_calls(ls_comm *comm, ls_leave_reason reason) {
    if (comm->failed == LS_OK) {
        comm->failed = LS_ERR_STATE;
        snprintf(comm->message, sizeof comm->message, "this communicator has ended: this rank %s",
                 ls_leave_describe(reason));
    }
}

/* The caller holds the lock. */
static void warn_unfinished(const ls_comm *comm) {
    ls_work_warn_unfinished(comm, "ls_finalize");
    for (const ls_comm *part = comm->splits; part != NULL; part = part->next_split) {
        if (!part->internal && !ls_comm_is_busy(part)) { /* a busy communicator is in use by another thread */
            ls_work_warn_unfinished(part, "ls_finalize");
        }
    }
}

void ls_comm_leave(ls_comm *comm, ls_leave_reason reason) {
    pthread_mutex_lock(&lock);
    if (reason == LS_LEAVE_FINALIZED) {
        warn_unfinished(comm);
    }
    for (ls_comm *part = comm->splits; part != NULL; part = part->next_split) {
        leave(part, reason);
        refuse_calls(part, reason);
    }
    leave(comm, reason);
    if (reason == LS_LEAVE_MPI_ENDED) { /* ls_finalize still makes calls on the world */
        refuse_calls(comm, reason);
    }
    pthread_mutex_unlock(&lock);
}

/* Returns false if another thread is in a call on the communicator. */
static bool take_idle(ls_comm *comm) {
    return comm->driven ? ls_comm_take(comm) : !ls_comm_is_busy(comm);
}

static bool advance_sends(ls_comm *comm) {
    if (comm->state == NULL || comm->backend->advance_sends == NULL || !take_idle(comm)) {
        return false;
    }
    const bool unfinished = comm->backend->advance_sends(comm->state);
    ls_comm_admit_driver(comm);
    return unfinished;
}

bool ls_comm_advance_sends(ls_comm *comm) {
    const uint32_t errors = ls_error_count;
    ls_saved_error cause;
    ls_error_save(&cause);
    pthread_mutex_lock(&lock);
    bool unfinished = advance_sends(comm);
    for (ls_comm *part = comm->splits; part != NULL; part = part->next_split) {
        unfinished = advance_sends(part) || unfinished;
    }
    pthread_mutex_unlock(&lock);
    ls_error_undo(&cause, errors); /* a failed send is not a failure of ls_finalize */
    return unfinished;
}

static void withdraw_sends(ls_comm *comm) {
    if (comm->state != NULL && comm->backend->withdraw_sends != NULL && take_idle(comm)) {
        comm->backend->withdraw_sends(comm->state);
        ls_comm_admit_driver(comm);
    }
}

void ls_comm_withdraw_sends(ls_comm *comm) {
    pthread_mutex_lock(&lock);
    for (ls_comm *part = comm->splits; part != NULL; part = part->next_split) {
        withdraw_sends(part);
    }
    withdraw_sends(comm);
    pthread_mutex_unlock(&lock);
}

ls_status ls_comm_meet_leaving(ls_comm *comm) {
    LS_TRY(ls_comm_check(comm));
    return comm->backend->finalize_barrier != NULL ? comm->backend->finalize_barrier(comm->state) : LS_OK;
}

/* ---- one communicator -------------------------------------------------------------------------------------------- */

/* Frees the state, or only leaves the communicator if a reference may still use its memory. */
static void leave_state(ls_comm *comm) {
    const bool held = atomic_load_explicit(&comm->references, memory_order_acquire) > 1;
    if (comm->state != NULL && comm->backend->alloc != NULL && held) {
        comm->backend->leave(comm->state, LS_LEAVE_FREED);
    } else if (comm->state != NULL) { /* a failed split has no state */
        comm->backend->close(comm->state);
        comm->state = NULL;
    }
}

void ls_comm_end(ls_comm *comm, const char *why) {
    if (comm == NULL || ls_comm_is_inherited(comm) || comm->ended != NULL) { /* a forked child frees nothing */
        return;
    }
    ls_comm_exclude_driver(comm);
    ls_comm_use(comm);
    ls_work_abandon(comm);
    ls_comm_end_drive(comm);
    forget_splits(comm);
    leave_state(comm);
    void (*on_free)(void *, bool) = comm->on_free;
    const bool failed = comm->failed != LS_OK;
    comm->ended = why;
    comm->failed = LS_ERR_STATE;
    snprintf(comm->message, sizeof comm->message, "%s", why);
    if (on_free != NULL) {
        on_free(comm->on_free_argument, failed);
    }
    ls_comm_drop(comm);
}

void ls_comm_free(ls_comm *comm) {
    ls_comm_end(comm, "the communicator was freed (ls_comm_free)");
}
