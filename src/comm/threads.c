#include "comm/threads.h"

#include <string.h>

#include "base/wait.h"
#include "comm/record.h"

#define TWO_THREADS                                                                                                    \
    "two threads use this communicator at once: use it from one thread at a time, or give each thread its own "        \
    "communicator (ls_comm_split)"

static ls_status fail(ls_operation operation) {
    return ls_fail(LS_ERR_STATE, "ls_comm_%s: " TWO_THREADS, ls_operation_name(operation));
}

ls_status ls_call_check_threads(const ls_call *call) {
    const bool contested =
        call != NULL && call->contested != NULL && __atomic_load_n(call->contested, __ATOMIC_RELAXED);
    char name[64];
    return contested ? ls_fail(LS_ERR_STATE, "%s: " TWO_THREADS,
                               ls_call_describe(call->operation, call->sequence, name, sizeof name))
                     : LS_OK;
}

ls_status ls_comm_refuse_thread(ls_comm *comm, ls_operation operation) {
    if (ls_comm_is_inherited(comm)) { /* the process was forked while a thread was in a call */
        return ls_comm_check(comm);
    }
    atomic_store_explicit(&comm->contested, true, memory_order_relaxed);
    return fail(operation);
}

ls_status ls_comm_check_allowed(const ls_comm *comm) {
    const bool asks = comm->backend->check != NULL && comm->state != NULL && !ls_comm_is_inherited(comm);
    return asks ? comm->backend->check(comm->state) : LS_OK;
}

_Thread_local ls_public_call ls_public_present;

ls_status ls_comm_name_public_call(ls_status status) {
    const char *message = ls_error_message();
    return strncmp(message, "ls_comm_", strlen("ls_comm_")) == 0
               ? ls_fail(status, "%s: %s", ls_public_name(ls_public_present), message)
               : status;
}

ls_status ls_comm_name_refusal(ls_operation operation) {
    return ls_fail(ls_error_status(), "ls_comm_%s: %s", ls_operation_name(operation), ls_error_message());
}

ls_status ls_comm_fail_contested(ls_comm *comm, ls_operation operation) {
    atomic_store_explicit(&comm->contested, false, memory_order_relaxed);
    return ls_comm_abort(comm, fail(operation));
}

/* ---- communicators that the progress thread may use -------------------------------------------------------------- */

bool ls_comm_take(ls_comm *comm) {
    int state = LS_COMM_IDLE;
    while (!atomic_compare_exchange_weak_explicit(&comm->busy, &state, LS_COMM_CALLED, memory_order_acquire,
                                                  memory_order_relaxed)) {
        if (state == LS_COMM_CALLED || ls_comm_is_inherited(comm)) { /* forked while the progress thread used it */
            return false;
        }
        ls_spin_pause();
        state = LS_COMM_IDLE;
    }
    return true;
}

void ls_comm_exclude_driver(ls_comm *comm) {
    if (comm->driven) {
        (void)ls_comm_take(comm);
    }
}

void ls_comm_admit_driver(ls_comm *comm) {
    if (comm->driven) {
        atomic_store_explicit(&comm->busy, LS_COMM_IDLE, memory_order_release);
    }
}
