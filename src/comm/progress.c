#include "comm/progress.h"

#include <pthread.h>

#include "base/wait.h"
#include "comm/record.h"

/*
 * There is one list for all threads, with a lock, because a communicator may pass to another thread while it has open
 * work. A thread that advances another communicator holds the lock, so the communicator's new user waits for it.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ls_comm *first;

_Atomic int ls_comm_open_count;

/* Identifies a thread by the address of a thread-local variable. */
static const void *this_thread(void) {
    static _Thread_local char place;
    return &place;
}

/* Runs in a newly forked child: the communicators and their open work belong to the parent. */
static void forget_all(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    first = NULL;
    atomic_store_explicit(&ls_comm_open_count, 0, memory_order_relaxed);
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, forget_all); /* fails only if out of memory */
}

/* ---- the progress thread ----------------------------------------------------------------------------------------- */

static _Atomic uint32_t opened; /* futex: changes when a driven communicator is added, or when the thread must exit */

void ls_comm_wake_driver(void) {
    atomic_fetch_add_explicit(&opened, 1, memory_order_release);
    ls_futex_wake(&(ls_futex){.word = &opened}, LS_FUTEX_ALL);
}

uint32_t ls_comm_count_opened(void) {
    return atomic_load_explicit(&opened, memory_order_acquire);
}

void ls_comm_await_opened(uint32_t count) {
    ls_futex_sleep(&(ls_futex){.word = &opened}, count, LS_FUTEX_ALL, 1000000000);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

void ls_comm_opened(ls_comm *comm) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    comm->listed = true;
    comm->thread = this_thread();
    comm->next_open = first;
    first = comm;
    atomic_fetch_add_explicit(&ls_comm_open_count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    if (comm->driven) {
        ls_comm_wake_driver();
    }
}

/* With the lock. */
static void take_off(ls_comm **link) {
    (*link)->listed = false;
    *link = (*link)->next_open;
    atomic_fetch_sub_explicit(&ls_comm_open_count, 1, memory_order_relaxed);
}

static bool take_for_driver(ls_comm *comm) {
    int idle = LS_COMM_IDLE;
    return comm->driven && atomic_compare_exchange_strong_explicit(&comm->busy, &idle, LS_COMM_DRIVEN,
                                                                   memory_order_acquire, memory_order_relaxed);
}

void ls_comm_move_driven(void (*move)(ls_comm *comm)) {
    pthread_mutex_lock(&lock);
    for (ls_comm **link = &first; *link != NULL;) {
        ls_comm *comm = *link;
        bool remains = true;
        if (take_for_driver(comm)) {
            remains = comm->unfinished > 0;
            if (remains) {
                move(comm);
            } else {
                take_off(link);
            }
            atomic_store_explicit(&comm->busy, LS_COMM_IDLE, memory_order_release);
        }
        link = remains ? &comm->next_open : link;
    }
    pthread_mutex_unlock(&lock);
}

void ls_comm_closed(ls_comm *comm) {
    pthread_mutex_lock(&lock);
    ls_comm **link = &first;
    while (*link != NULL && *link != comm) {
        link = &(*link)->next_open;
    }
    if (*link != NULL) { /* otherwise this process was forked in the meantime */
        take_off(link);
    }
    pthread_mutex_unlock(&lock);
}

/* Searches the list, starting at `link`, for this thread's first communicator that has unfinished work and is not
 * `comm`. Returns NULL if there is none. Removes this thread's communicators without unfinished work from the list.
 * Must be called with the lock held. */
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

void ls_comm_move_others(const ls_comm *comm, void (*move)(ls_comm *other)) {
    const uint32_t errors = ls_error_count;
    ls_saved_error cause;
    ls_error_save(&cause);
    pthread_mutex_lock(&lock);
    for (ls_comm **link = find_other(&first, comm); link != NULL; link = find_other(&(*link)->next_open, comm)) {
        move(*link);
    }
    pthread_mutex_unlock(&lock);
    ls_error_undo(&cause, errors); /* the failed work keeps its error; the call that waits here has not failed */
}
