/*
 * How a rank leaves or aborts, and notifies the other ranks: see failure.c. At the end of a job on a network on which a
 * leaving rank notifies all ranks, each rank waits until all other ranks have left, so that the network may shut down.
 */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "comm/engine/inside.h"

/* ---- leaving and aborting ---------------------------------------------------------------------------------------- */

static void withdraw_all(ls_engine *engine) {
    ls_transfers_withdraw(engine);
    ls_messages_withdraw(engine);
}

/* Revokes the communicator with this thread's error, and notifies the other ranks. */
static void revoke(ls_engine *engine, ls_status status, int failed_rank) {
    const char *reason = strstr(ls_error_message(), ": ");
    reason = reason != NULL ? reason + 2 : ls_error_message();
    engine->failure.ended = true;
    if (engine->failure.revoked.kind != 0) {
        return;
    }
    engine->failure.revoked = (ls_notice){.kind = LS_NOTICE_REVOKED,
                                          .status = status == LS_ERR_TIMEOUT ? LS_ERR_TIMEOUT : LS_ERR_PEER,
                                          .failed_rank = failed_rank,
                                          .deserted = engine->failure.deserted,
                                          .sequence = engine->call.sequence + (ls_engine_is_calling(engine) ? 0 : 1)};
    const bool own = failed_rank < 0 || failed_rank == engine->rank || status == LS_ERR_MEMORY;
    if (own) {
        engine->failure.revoked.failed_rank = engine->rank;
    }
    if (own || engine->failure.message_timed_out) { /* only this rank has made the call */
        snprintf(engine->failure.revoked.text, sizeof engine->failure.revoked.text, "rank %d gave up: %.300s",
                 engine->rank, reason);
    } else {
        snprintf(engine->failure.revoked.text, sizeof engine->failure.revoked.text, "%.380s", reason);
    }
    ls_failure_notify_revoked(engine);
}

ls_status ls_failure_abort(ls_engine *engine, ls_status status, int failed_rank) {
    ls_saved_error cause;
    ls_error_save(&cause);
    cause.status = status;
    if (engine->failure.ended) {
        return status;
    }
    engine->failure.failed = true;
    revoke(engine, status, failed_rank);
    withdraw_all(engine);
    (void)ls_error_put_back(&cause);
    return status;
}

void ls_engine_abort(void *state, ls_status status, int failed_rank) {
    (void)ls_failure_abort(state, status, failed_rank);
}

int ls_engine_failed_rank(const void *state) {
    const ls_engine *engine = state;
    const int failed_rank = engine->failure.revoked.kind != 0 ? engine->failure.revoked.failed_rank : -1;
    const bool finalized = failed_rank >= 0 && (engine->failure.departed[failed_rank] == 1 + LS_LEAVE_FINALIZED ||
                                                ls_messages_left(engine, failed_rank) == 1 + LS_LEAVE_FINALIZED);
    return finalized ? engine->rank : failed_rank;
}

void ls_failure_leave(ls_engine *engine, ls_leave_reason reason) {
    const ls_envelope envelope = {.groups = 0, .reason = (uint32_t)reason};
    int partners[LS_ENGINE_PARTNERS];
    if (engine->failure.ended) {
        return;
    }
    if (ls_engine_is_calling(engine)) { /* the other ranks are still in this call */
        char name[64];
        (void)ls_fail(LS_ERR_PEER, "%s: rank %d left during this call", ls_engine_call_name(engine, name),
                      engine->rank);
        engine->failure.deserted = true;
        revoke(engine, LS_ERR_PEER, engine->rank);
        if (reason != LS_LEAVE_FREED) { /* otherwise the endpoint closes at once */
            withdraw_all(engine);
        }
        return;
    }
    engine->failure.ended = true;
    const int count = ls_headers_partners(engine, partners);
    for (int i = 0; i < count; i++) {
        ls_engine_notify(engine, partners[i], LS_CHANNEL_HEADERS, &envelope, sizeof envelope);
    }
    const ls_notice notice = {.kind = LS_NOTICE_LEFT, .status = (int32_t)reason};
    for (int rank = 0; rank < engine->size; rank++) {
        if (ls_failure_tells(engine, rank)) {
            ls_messages_say_left(engine, rank, reason);
            ls_engine_notify(engine, rank, LS_CHANNEL_NOTICES, &notice, sizeof notice);
        }
    }
}

void ls_engine_leave(void *state, ls_leave_reason reason) {
    ls_failure_leave(state, reason);
}

ls_engine_end ls_engine_ended(const ls_engine *engine) {
    return !engine->failure.failed ? LS_ENGINE_WORKS : engine->failure.deserted ? LS_ENGINE_DESERTED : LS_ENGINE_FAILED;
}

/* ---- sends of a rank that has left ------------------------------------------------------------------------------- */

bool ls_engine_advance_sends(void *state) {
    ls_engine *engine = state;
    bool moved = false;
    return ls_messages_are_unsent(engine) &&
           engine->endpoint->transport->progress(engine->endpoint, 0, &moved) == LS_OK &&
           ls_failure_hear(engine) == LS_OK && ls_messages_are_unsent(engine);
}

/* ---- the end of a job -------------------------------------------------------------------------------------------- */

/* Lists the ranks that have not left. Fails with LS_ERR_PEER if a rank has aborted, or has left without calling
 * ls_finalize. */
static ls_status list_staying(const ls_engine *engine, ls_rank_list *staying) {
    *staying = (ls_rank_list){.count = 0};
    if (engine->failure.revoked.kind != 0) {
        return engine->failure.teller < 0 || engine->failure.revoked.failed_rank == engine->failure.teller ||
                       strstr(engine->failure.revoked.text, " gave up: ") != NULL
                   ? ls_fail(LS_ERR_PEER, "%s", engine->failure.revoked.text)
                   : ls_fail(LS_ERR_PEER, "rank %d gave up: %s", engine->failure.teller, engine->failure.revoked.text);
    }
    for (int rank = 0; rank < engine->size; rank++) {
        const ls_leave_reason reason = (ls_leave_reason)(engine->failure.departed[rank] - 1);
        if (rank == engine->rank || (engine->failure.departed[rank] != 0 && reason == LS_LEAVE_FINALIZED)) {
            continue;
        }
        if (engine->failure.departed[rank] != 0) {
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
    engine->failure.failed = engine->failure.failed || status != LS_OK;
    return status;
}
