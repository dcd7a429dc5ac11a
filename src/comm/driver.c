#include "comm/driver.h"

#include <pthread.h>
#include <string.h>

#include "base/threads.h"
#include "base/wait.h"
#include "comm/progress.h"
#include "comm/record.h"
#include "comm/threads.h"
#include "comm/work.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `drives` and `driver` */
static int drives;                                       /* number of driven communicators */
static pthread_t driver;
static atomic_bool ends;

/* The longest time between two polls. At 10 Gbit/s, a socket receives 0.25 MB in this time. */
enum { LONGEST_NS = 200000 };

static void *drive(void *argument) {
    ls_wait wait = {.longest_ns = LONGEST_NS};
    (void)argument;
    while (!atomic_load_explicit(&ends, memory_order_acquire)) {
        const uint32_t seen = ls_comm_count_opened();
        ls_comm_move_driven(ls_comm_move_open);
        if (atomic_load_explicit(&ls_comm_open_count, memory_order_relaxed) > 0) {
            (void)ls_wait_pause(&wait);
        } else {
            ls_comm_await_opened(seen);
            wait = (ls_wait){.longest_ns = LONGEST_NS};
        }
    }
    return NULL;
}

/* A forked process has no progress thread, and does not use its parent's communicators. */
static void forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    drives = 0;
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, forget); /* fails only if out of memory */
}

ls_status ls_comm_drive(ls_comm *comm) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    if (comm->size == 1 || (comm->backend->any_thread != NULL && !comm->backend->any_thread(comm->state))) {
        return LS_OK;
    }
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&ends, false, memory_order_relaxed);
    const int error = drives == 0 ? ls_start_thread(&driver, "lockstep-driver", drive, NULL) : 0;
    comm->driven = error == 0;
    drives += comm->driven;
    pthread_mutex_unlock(&lock);
    return error == 0 ? LS_OK : ls_fail(LS_ERR_MEMORY, "cannot start the progress thread: %s", strerror(error));
}

void ls_comm_end_drive(ls_comm *comm) {
    if (!comm->driven) {
        return;
    }
    ls_comm_admit_driver(comm); /* the communicator is not in the list, so the thread does not find it */
    comm->driven = false;
    pthread_mutex_lock(&lock);
    if (--drives == 0) {
        atomic_store_explicit(&ends, true, memory_order_release);
        ls_comm_wake_driver();
        pthread_join(driver, NULL);
    }
    pthread_mutex_unlock(&lock);
}
