/*
 * Which thread may call on a communicator.
 *
 * Every call that moves data begins and ends with the following functions. Only one thread at a time uses a
 * communicator. If two threads call at once, the second gets LS_ERR_STATE. When the call of the first thread ends,
 * this error also becomes the failure of the communicator: neither this rank nor the ranks that wait for the refused
 * call may blame another rank. Plain loads and stores are sufficient, because such calls overlap for a long time.
 */
#ifndef LS_COMM_THREADS_H
#define LS_COMM_THREADS_H

#include "comm/public_call.h"
#include "comm/record.h"

ls_status ls_comm_refuse_thread(ls_comm *comm, ls_operation operation);
ls_status ls_comm_name_refusal(ls_operation operation); /* prefixes this thread's error with the call's name */
ls_status ls_comm_fail_contested(ls_comm *comm, ls_operation operation);
ls_status ls_comm_name_public_call(ls_status status); /* prefixes this thread's error with the public function */

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
    if (__builtin_expect(status != LS_OK, 0) && ls_public_present != LS_PUBLIC_NONE) {
        status = ls_comm_name_public_call(status);
    }
    atomic_store_explicit(&comm->busy, LS_COMM_IDLE, memory_order_release);
    return status;
}

#endif
