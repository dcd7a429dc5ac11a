#include "base/threads.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

int ls_start_thread(pthread_t *thread, const char *name, void *(*function)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        pthread_setname_np(*thread, name);
    }
    return error;
}

/* OMP_NUM_THREADS contains a number for each level of nested parallel regions: "4" or "4,2". */
ls_threads_setting ls_threads_from_environment(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    if (text == NULL || *text == '\0') {
        return LS_THREADS_UNSET;
    }
    for (;; text++) {
        char *end;
        const long threads = strtol(text, &end, 10);
        if (end == text || threads < 1 || threads > INT_MAX) {
            return LS_THREADS_WRONG;
        }
        text = end + strspn(end, " \t");
        if (*text != ',') {
            return *text == '\0' ? LS_THREADS_SET : LS_THREADS_WRONG;
        }
    }
}

static atomic_int limit = INT_MAX;

static int share_of(int ranks) {
    cpu_set_t cores;
    if (ranks <= 1 || ls_threads_from_environment() == LS_THREADS_SET ||
        sched_getaffinity(0, sizeof cores, &cores) != 0) {
        return INT_MAX;
    }
    return CPU_COUNT(&cores) / ranks > 1 ? CPU_COUNT(&cores) / ranks : 1;
}

void ls_threads_share(int ranks) {
    atomic_store_explicit(&limit, share_of(ranks), memory_order_relaxed);
}

void ls_threads_share_at_most(int ranks) {
    const int share = share_of(ranks);
    int before = atomic_load_explicit(&limit, memory_order_relaxed);
    while (share < before &&
           !atomic_compare_exchange_weak_explicit(&limit, &before, share, memory_order_relaxed, memory_order_relaxed)) {
    }
}

int ls_threads_limit(void) {
    return atomic_load_explicit(&limit, memory_order_relaxed);
}
