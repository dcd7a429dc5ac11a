/* Decides whether a send or receive fails, and describes a waiting send or receive. */
#include <stdio.h>

#include "base/status.h"
#include "comm/backend/shm/shm.h"
#include "comm/waiting.h"

#define MORE_CAPACITY 224

void ls_shm_point_note_awaited(ls_shm *shm, const ls_call *call) {
    const uint64_t awaited = call == NULL ? 0 : ((uint64_t)call->root + 1) << 32 | (uint32_t)call->tag;
    atomic_store_explicit(&shm->ranks[shm->rank].awaited, awaited, memory_order_relaxed);
}

/* Returns a further explanation of a call that waits for its partner: which other messages are waiting. */
static const char *describe_waiting(const ls_shm *shm, const ls_call *call, char text[MORE_CAPACITY]) {
    if (!ls_call_sends(call)) {
        return ls_match_describe_waiting(&shm->point.match, call->root, call->tag, text, MORE_CAPACITY);
    }
    const uint64_t awaited = atomic_load_explicit(&shm->ranks[call->root].awaited, memory_order_relaxed);
    text[0] = '\0';
    if (awaited != 0) {
        snprintf(text, MORE_CAPACITY, "; it waits for a message from rank %d with tag %d", (int)(awaited >> 32) - 1,
                 (int)(uint32_t)awaited);
    }
    return text;
}

/* Same as describe_waiting, for a partner that is alive. If the partner's latest call is a send, too, adds a remedy. */
static const char *describe_silence(const ls_shm *shm, const ls_call *call, char text[MORE_CAPACITY]) {
    describe_waiting(shm, call, text);
    if (text[0] == '\0' && ls_call_sends(call) && call->waits) {
        const uint64_t latest = atomic_load_explicit(&shm->ranks[call->root].latest, memory_order_relaxed);
        snprintf(text, MORE_CAPACITY, "%s", (latest & 255) == LS_OP_SEND ? "; " LS_SENDS_FIRST : "");
    }
    return text;
}

/* Fails after the timeout. Notifies the other ranks, which may be in other calls, that this rank gave up. */
static ls_status fail_silent(ls_shm *shm, const ls_call *call) {
    const double seconds = (double)shm->timeout_ns * 1e-9;
    if (!ls_call_sends(call)) {
        (void)ls_match_fail_silent(&shm->point.match, call, seconds);
    } else {
        char name[64];
        char waiting[MORE_CAPACITY];
        ls_call_describe(call->operation, call->sequence, name, sizeof name);
        (void)ls_fail(LS_ERR_TIMEOUT, "%s: rank %d did not receive the message with tag %d within %g s%s", name,
                      call->root, call->tag, seconds, describe_silence(shm, call, waiting));
    }
    return ls_shm_give_up(shm, LS_ERR_TIMEOUT, call->root);
}

static bool may_send(const ls_shm *shm, int rank) {
    return rank != shm->rank && (ls_shm_left(shm, rank) == LS_LEAVE_NONE || ls_shm_sends_on(shm, rank));
}

/* A receive from any rank fails if no other rank can still send messages. */
static ls_status check_senders(ls_shm *shm, const ls_call *call, const ls_shm_request *asked) {
    char more[MORE_CAPACITY + 64], waiting[MORE_CAPACITY];
    bool moved = false;
    for (int rank = 0; rank < shm->size; rank++) {
        if (may_send(shm, rank)) {
            return LS_OK;
        }
    }
    if (shm->size == 1) { /* the rank waits for its own message */
        return LS_OK;
    }
    LS_TRY(ls_shm_point_poll(shm, &moved)); /* messages that ranks sent before they left must still be received */
    if (moved || (asked != NULL && ls_shm_point_has_finished(shm, asked))) {
        return LS_OK;
    }
    snprintf(more, sizeof more, "%s%s", shm->size > 2 ? ", and all other ranks have left, too" : "",
             describe_waiting(shm, call, waiting));
    return ls_shm_fail_left(shm, call, shm->rank == 0 ? 1 : 0, more);
}

/* Logs, at intervals, the ranks that the call waits for. Fails when the timeout has passed. */
static ls_status check_time(ls_shm *shm, const ls_call *call, ls_shm_request *asked) {
    char waiting[MORE_CAPACITY];
    ls_rank_list partners = {.count = 0};
    for (int rank = 0; rank < shm->size; rank++) {
        if (rank == call->root || (call->root == LS_ANY_RANK && may_send(shm, rank))) {
            ls_rank_list_add(&partners, rank);
        }
    }
    if (partners.count != 0) {
        ls_shm_tell_waiting(shm, call, &partners, asked->waited.ns, &asked->told_ns,
                            describe_silence(shm, call, waiting));
    }
    return asked->waited.ns > shm->timeout_ns ? fail_silent(shm, call) : LS_OK;
}

ls_status ls_shm_point_look(ls_shm *shm, const ls_call *call, ls_shm_request *asked) {
    char waiting[MORE_CAPACITY];
    LS_TRY(ls_shm_sound(shm));
    LS_TRY(ls_call_check_threads(call));
    for (int rank = 0; rank < shm->size; rank++) {
        const bool left = ls_shm_left(shm, rank) != LS_LEAVE_NONE;
        const bool sends_on = left && rank == call->root && !ls_call_sends(call) && ls_shm_sends_on(shm, rank);
        if (left && rank == call->root && !sends_on) {
            bool moved = false; /* data that the rank sent and received before it left must still count */
            LS_TRY(ls_shm_point_drain(shm, rank, &moved));
            return moved || (asked != NULL && ls_shm_point_has_finished(shm, asked))
                       ? LS_OK
                       : ls_shm_fail_left(shm, call, rank, describe_waiting(shm, call, waiting));
        }
        if (!left && rank != shm->rank && !ls_shm_alive(shm, rank) && ls_shm_left(shm, rank) == LS_LEAVE_NONE) {
            return ls_shm_fail_left(shm, call, rank, rank == call->root ? describe_waiting(shm, call, waiting) : "");
        }
    }
    LS_TRY(call->root == LS_ANY_RANK ? check_senders(shm, call, asked) : LS_OK);
    return asked != NULL && !call->untimed ? check_time(shm, call, asked) : LS_OK;
}
