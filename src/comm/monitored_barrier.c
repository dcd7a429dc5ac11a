/* ls_comm_monitored_barrier: makes the calls that the protocol (monitor.h) requires, and waits. */
#include <math.h>

#include "base/option.h"
#include "base/trace.h"
#include "comm/meter.h"
#include "comm/progress.h"
#include "comm/record.h"
#include "comm/threads.h"
#include "comm/waiting.h"
#include "comm/work.h"

/* The longest wait for ranks that have not yet learned the result of the barrier. */
#define SETTLE_NS UINT64_C(2000000000)

static ls_status post(void *context, const ls_call *call, void **request) {
    return ls_comm_post(context, call, request);
}

static ls_status test(void *context, void *request, bool *finished) {
    return ls_comm_test(context, request, false, finished);
}

/* Advances the barrier and all work of this thread. */
static ls_status move(ls_comm *comm, bool expired) {
    const ls_monitor_network network = {.context = comm, .post = post, .test = test};
    LS_TRY(ls_comm_check(comm));
    LS_TRY(ls_monitor_move(comm->monitor, &network, expired));
    ls_comm_move_all(comm);
    return LS_OK;
}

static void tell_log(const ls_comm *comm, uint64_t waited_ns, uint64_t *told_ns, uint64_t number) {
    const ls_call call = {.operation = LS_OP_MONITORED_BARRIER, .sequence = number};
    if (waited_ns >= ls_comm_tell_after_ns) {
        const ls_rank_list awaited = ls_monitor_awaited(comm->monitor);
        ls_comm_tell_waiting(
            &(ls_waiting){.call = &call, .awaited = &awaited, .waited_ns = waited_ns, .told_ns = told_ns, .more = ""});
    }
}

/* Waits, at most for this time, until the state of the barrier changes or no rank needs anything more from this
 * rank. */
static ls_status wait_for_change(ls_comm *comm, uint64_t limit_ns, uint64_t number) {
    const ls_monitor_state from = ls_monitor_state_of(comm->monitor);
    uint64_t told_ns = 0;
    ls_wait wait = LS_WAIT_FOR_WORK;
    wait.limit_ns = limit_ns;
    LS_TRY(ls_monitor_is_settled(comm->monitor) ? LS_OK : move(comm, false));
    while (ls_monitor_state_of(comm->monitor) == from && !ls_monitor_is_settled(comm->monitor) &&
           ls_wait_pause(&wait)) {
        tell_log(comm, wait.awake.ns, &told_ns, number);
        LS_TRY(move(comm, false));
    }
    return LS_OK;
}

/* Ranks that have entered respond at once, unless their process is stopped. */
static ls_status fail_silent(ls_comm *comm, uint64_t number) {
    const ls_rank_list silent = ls_monitor_awaited(comm->monitor);
    const ls_status status =
        ls_fail(LS_ERR_TIMEOUT, "ls_comm_monitored_barrier #%llu: %s entered, but did not proceed within %g s",
                (unsigned long long)number, silent.text, comm->timeout);
    ls_comm_tell_origins(comm, status);
    return ls_comm_abort_for(comm, status, silent.first);
}

static uint64_t nanoseconds(double seconds) {
    return seconds < 1e9 ? (uint64_t)fmax(seconds * 1e9, 1) : 0; /* 0 means no limit */
}

static ls_status wait_for_all(ls_comm *comm, double seconds, uint64_t number) {
    LS_TRY(wait_for_change(comm, nanoseconds(seconds), number));
    if (ls_monitor_state_of(comm->monitor) == LS_MONITOR_WAITS) {
        LS_TRY(move(comm, true));
    }
    if (ls_monitor_state_of(comm->monitor) == LS_MONITOR_READY) {
        LS_TRY(wait_for_change(comm, nanoseconds(comm->timeout), number));
    }
    return ls_monitor_state_of(comm->monitor) != LS_MONITOR_READY ? wait_for_change(comm, SETTLE_NS, number)
                                                                  : fail_silent(comm, number);
}

static ls_status enter(ls_comm *comm, double seconds) {
    ls_comm_use(comm);
    LS_TRY(ls_comm_check_call(comm, LS_OP_MONITORED_BARRIER));
    ls_comm_metered.calls++;
    if (comm->size == 1) {
        return LS_OK;
    }
    if (comm->monitor == NULL) {
        comm->monitor = ls_monitor_new(comm->rank, comm->size);
    }
    if (comm->monitor == NULL) { /* the other ranks are waiting for this rank */
        return ls_comm_abort(comm, LS_ERR_MEMORY);
    }
    const uint64_t number = ls_monitor_enter(comm->monitor, seconds, (const bool *)&comm->contested);
    const ls_status status = wait_for_all(comm, seconds, number);
    if (status != LS_OK) {
        return comm->failed != LS_OK ? status : ls_comm_abort(comm, status);
    }
    if (ls_monitor_state_of(comm->monitor) == LS_MONITOR_PASSED) {
        return LS_OK;
    }
    const ls_status late = ls_monitor_fail(comm->monitor);
    ls_comm_tell_origins(comm, late);
    return late;
}

ls_status ls_comm_monitored_barrier(ls_comm *comm, double timeout) {
    if (comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_comm_monitored_barrier: the communicator is NULL");
    }
    if (!(timeout >= 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_comm_monitored_barrier: timeout is %g, but must be 0 or more seconds",
                       timeout);
    }
    LS_TRY(ls_comm_begin_call(comm, LS_OP_MONITORED_BARRIER));
    const uint64_t began = ls_trace_now(), metered = ls_comm_meter_begin();
    const ls_status status =
        ls_comm_end_call(comm, LS_OP_MONITORED_BARRIER, enter(comm, ls_option_timeout(timeout, comm->timeout)));
    ls_comm_meter_end(metered);
    ls_trace_add(LS_TRACE_COMM, began, 0, "%s", ls_operation_name(LS_OP_MONITORED_BARRIER));
    return status;
}
