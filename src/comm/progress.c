/* The communicators with unfinished work, each of the thread that uses it: see frame.h. */
#include <pthread.h>
#include <stdio.h>

#include "base/log.h"
#include "comm/frame.h"

#define TELL_AGAIN_NS UINT64_C(60000000000)

/*
 * One list for all threads, and a lock, since a communicator may change hands while work is open on it. Whoever moves
 * another communicator holds the lock, so its new user waits for that.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ls_comm *first;
_Atomic int ls_comm_open_count;
int ls_comm_forks;

/* A thread is known by the address of its own. */
static const void *this_thread(void) {
    static _Thread_local char place;
    return &place;
}

/* In a process that was just forked: communicators, and what is open on them, belong to the one it was forked from. */
static void forget_all(void) {
    ls_comm_forks++;
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    first = NULL;
    atomic_store_explicit(&ls_comm_open_count, 0, memory_order_relaxed);
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, forget_all); /* it fails only for want of memory */
}

void ls_comm_watch_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
}

void ls_comm_opened(ls_comm *comm) {
    pthread_mutex_lock(&lock);
    comm->listed = true;
    comm->thread = this_thread();
    comm->next_open = first;
    first = comm;
    atomic_fetch_add_explicit(&ls_comm_open_count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

/* With the lock. */
static void take_off(ls_comm **link) {
    (*link)->listed = false;
    *link = (*link)->next_open;
    atomic_fetch_sub_explicit(&ls_comm_open_count, 1, memory_order_relaxed);
}

void ls_comm_closed(ls_comm *comm) {
    pthread_mutex_lock(&lock);
    ls_comm **link = &first;
    while (*link != NULL && *link != comm) {
        link = &(*link)->next_open;
    }
    if (*link != NULL) { /* else this process was forked since */
        take_off(link);
    }
    pthread_mutex_unlock(&lock);
}

/* This thread's first communicator from `link` on that is not `comm` and has unfinished work; takes those off the list
 * that have none. NULL: there is no such. With the lock. */
static ls_comm **find_other(ls_comm **link, const ls_comm *comm) {
    while (*link != NULL && ((*link)->thread != this_thread() || *link == comm || (*link)->unfinished == 0)) {
        if ((*link)->thread == this_thread() && (*link)->unfinished == 0) {
            take_off(link);
        } else {
            link = &(*link)->next_open;
        }
    }
    return *link != NULL ? link : NULL;
}

void ls_comm_use_slowly(ls_comm *comm) {
    if (comm->thread != this_thread()) {
        pthread_mutex_lock(&lock);
        comm->thread = this_thread();
        pthread_mutex_unlock(&lock);
    }
}

bool ls_comm_has_others_slowly(const ls_comm *comm) {
    pthread_mutex_lock(&lock);
    const bool found = find_other(&first, comm) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

void ls_comm_move_others(const ls_comm *comm) {
    const uint32_t errors = ls_error_count;
    ls_saved_error cause;
    ls_error_save(&cause);
    pthread_mutex_lock(&lock);
    for (ls_comm **link = find_other(&first, comm); link != NULL; link = find_other(&(*link)->next_open, comm)) {
        ls_work_move(*link);
    }
    pthread_mutex_unlock(&lock);
    if (ls_error_count != errors) { /* the work that failed keeps it; the call that waits here has not failed */
        (void)ls_error_put_back(&cause);
        ls_error_count = errors;
    }
}

uint64_t ls_comm_tell_after_ns = UINT64_C(10000000000);

/* What is said of the first rank that is awaited. */
static void tell_latest(const ls_waiting *waiting, char *text, size_t capacity) {
    const ls_call *call = waiting->call;
    char name[64];
    char who[48] = ", which";
    char whose[48] = ", whose";
    text[0] = '\0';
    if (!waiting->knows_latest) {
        return;
    }
    if (waiting->awaited->count > 1) {
        snprintf(who, sizeof who, "; rank %d", waiting->awaited->first);
        snprintf(whose, sizeof whose, "; rank %d's", waiting->awaited->first);
    }
    if (waiting->latest_sequence == 0) {
        snprintf(text, capacity, "%s has made no call yet", who);
    } else if (call != NULL && waiting->latest == call->operation && waiting->latest_sequence == call->sequence &&
               call->operation != LS_OP_SEND && call->operation != LS_OP_RECV) {
        snprintf(text, capacity, "%s has begun this call and does not go on", who);
    } else {
        ls_call_describe(waiting->latest, waiting->latest_sequence, name, sizeof name);
        snprintf(text, capacity, "%s last call was %s", whose, name);
    }
}

void ls_comm_tell_waiting(const ls_waiting *waiting) {
    if (waiting->waited_ns < *waiting->told_ns) { /* another wait than the one that was told of */
        *waiting->told_ns = 0;
    }
    const uint64_t due = *waiting->told_ns == 0 ? ls_comm_tell_after_ns : *waiting->told_ns + TELL_AGAIN_NS;
    if (waiting->waited_ns < due) {
        return;
    }
    char name[64] = "ls_finalize";
    char latest[128];
    *waiting->told_ns = waiting->waited_ns;
    tell_latest(waiting, latest, sizeof latest);
    if (waiting->call != NULL) {
        ls_call_describe(waiting->call->operation, waiting->call->sequence, name, sizeof name);
    }
    const double seconds = (double)waiting->waited_ns * 1e-9;
    ls_log_write(LS_LOG_WARNING, "%s has waited %.*f s for %s%s%s", name, seconds < 1 ? 2 : 0, seconds,
                 waiting->awaited->text, latest, waiting->more);
}

/* Moves this communicator and the others until its call has finished or the others have no more work. */
static ls_status finish_among_others(ls_comm *comm, bool *finished) {
    ls_wait wait = LS_WAIT_FOR_WORK;
    do {
        LS_TRY(ls_comm_progress(comm, false, finished));
        if (!*finished) {
            ls_comm_move_others(comm);
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
