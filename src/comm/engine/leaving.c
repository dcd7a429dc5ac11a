/* The end of a job on a network on which a leaving rank notifies all ranks: each rank waits until all others have
 * left, so that the network may shut down. */
#include <stdio.h>

#include "base/status.h"
#include "comm/engine/inside.h"

/* Lists the ranks that have not left. Fails with LS_ERR_PEER if a rank has aborted, or has left without calling
 * ls_finalize. */
static ls_status list_staying(const ls_engine *engine, ls_rank_list *staying) {
    *staying = (ls_rank_list){.count = 0};
    if (engine->revoked.kind != 0) {
        return engine->teller < 0 || engine->revoked.failed_rank == engine->teller
                   ? ls_fail(LS_ERR_PEER, "%s", engine->revoked.text)
                   : ls_fail(LS_ERR_PEER, "rank %d gave up: %s", engine->teller, engine->revoked.text);
    }
    for (int rank = 0; rank < engine->size; rank++) {
        const ls_leave_reason reason = (ls_leave_reason)(engine->departed[rank] - 1);
        if (rank == engine->rank || (engine->departed[rank] != 0 && reason == LS_LEAVE_FINALIZED)) {
            continue;
        }
        if (engine->departed[rank] != 0) {
            return ls_fail(LS_ERR_PEER, "rank %d %s", rank,
                           reason == LS_LEAVE_FREED ? "left without calling ls_finalize" : ls_leave_describe(reason));
        }
        ls_rank_list_add(staying, rank);
    }
    return LS_OK;
}

static ls_status await_leaving(ls_engine *engine) {
    const ls_transport *transport = engine->endpoint->transport;
    const uint64_t since_ns = ls_engine_now(engine);
    uint64_t told_ns = 0;
    bool moved = false;
    for (uint64_t wait_ns = 0;; wait_ns = moved ? 0 : LS_ENGINE_LOOK_NS) {
        ls_rank_list staying;
        LS_TRY(transport->progress(engine->endpoint, wait_ns, &moved));
        LS_TRY(ls_failure_hear(engine));
        LS_TRY(list_staying(engine, &staying));
        const uint64_t waited_ns = ls_engine_now(engine) - since_ns;
        if (staying.count == 0) {
            return LS_OK;
        }
        if (waited_ns > engine->timeout_ns) {
            return ls_fail(LS_ERR_TIMEOUT, "%s did not call ls_finalize within %g s", staying.text,
                           (double)engine->timeout_ns * 1e-9);
        }
        ls_comm_tell_waiting(&(ls_waiting){.awaited = &staying,
                                           .waited_ns = waited_ns,
                                           .told_ns = &told_ns,
                                           .more = "",
                                           .knows_latest = engine->call.sequence != 0,
                                           .latest = engine->call.operation,
                                           .latest_sequence = engine->call.sequence});
    }
}

ls_status ls_engine_finalize_barrier(void *state) {
    ls_engine *engine = state;
    const ls_status status = await_leaving(engine);
    engine->failed = engine->failed || status != LS_OK;
    return status;
}
