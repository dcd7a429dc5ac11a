/*
 * Calls that only move data, and what all calls have in common: each rank tells each other one what it calls and, with
 * that, what it sends if that is little; where all call the same, larger pieces follow. Calls where the user gives
 * counts on both sides have a step between, in which all ranks learn whether they fit. Nothing is written before.
 */
#include <string.h>

#include "base/status.h"
#include "comm/backend/gloo/gloo.h"
#include "comm/pieces.h"

#define COPIED_BYTES 4096 /* more costs more than to receive the next packet elsewhere */

/* ---- beginning and ending ------------------------------------------------------------------------------------------
 */

ls_status ls_gloo_begin(ls_gloo *gloo, const ls_call *call, ls_gloo_stage *stage) {
    LS_TRY(ls_gloo_check_open(gloo, call));
    gloo->call = *call;
    gloo->stage = stage;
    gloo->calling = true;
    gloo->looked_ns = 0;
    gloo->idle_ns = 0;
    gloo->start_ns = gloo->awake_ns;
    gloo->told_ns = gloo->awake_ns;
    for (int peer = 0; peer < gloo->size; peer++) {
        ls_gloo_peer *other = &gloo->peers[peer];
        bool moved = false;
        if (peer != gloo->rank) { /* a leave notice is read before anything is sent where nobody is any more */
            LS_TRY(ls_gloo_pull(gloo, peer, &moved));
        }
        other->judged = false;
        other->lacks[LS_GLOO_PACKETS] = peer != gloo->rank && !other->called;
        gloo->open += other->lacks[LS_GLOO_PACKETS];
    }
    return LS_OK;
}

ls_status ls_gloo_tell(ls_gloo *gloo, int peer, const void *data, size_t count) {
    const size_t bytes = count * gloo->call.width;
    const size_t carried = bytes <= LS_GLOO_ROOM ? bytes : 0;
    ls_gloo_packet *packet = peer == gloo->rank ? gloo->peers[peer].call : gloo->outgoing;
    packet->kind = LS_GLOO_CALL;
    packet->call = ls_call_header_of(&gloo->call);
    packet->call.count = count;
    packet->call.bytes = bytes;
    if (peer == gloo->rank) {
        return LS_OK;
    }
    if (carried != 0) {
        memcpy(packet->data, data, carried);
    }
    return ls_gloo_send_packet(gloo, peer, packet, carried, &gloo->open);
}

ls_status ls_gloo_take_call(ls_gloo *gloo, int peer) {
    ls_gloo_peer *other = &gloo->peers[peer];
    other->called = true;
    if (other->packet->bytes <= COPIED_BYTES) {
        memcpy((void *)other->call, other->packet, LS_GLOO_HEADER + other->packet->bytes);
    } else {
        ls_gloo_packet *spare = other->call;
        other->call = other->packet;
        other->packet = spare;
        LS_TRY(ls_gloo_aim(gloo, peer, LS_GLOO_PACKETS, spare, sizeof *spare));
    }
    if (gloo->calling && other->lacks[LS_GLOO_PACKETS]) {
        other->lacks[LS_GLOO_PACKETS] = false;
        gloo->open--;
    }
    return LS_OK;
}

/* The call has ended in step: what the others call next may come in. */
static ls_status end_call(ls_gloo *gloo) {
    gloo->calling = false;
    for (int peer = 0; peer < gloo->size; peer++) {
        ls_gloo_peer *other = &gloo->peers[peer];
        other->called = false;
        for (int slot = LS_GLOO_PIECES; slot <= LS_GLOO_SUMS; slot++) {
            if (other->wanted[slot] != 0 && slot != LS_GLOO_PARTS) {
                LS_TRY(ls_gloo_aim(gloo, peer, (ls_gloo_slot)slot, NULL, 0)); /* the memory is the user's again */
            }
        }
        other->came[LS_GLOO_PARTS] = 0;
        if (other->held) {
            other->held = false;
            LS_TRY(ls_gloo_take_call(gloo, peer));
        }
    }
    return LS_OK;
}

ls_status ls_gloo_agree(ls_gloo *gloo) {
    for (int rank = 0; rank < gloo->size; rank++) {
        gloo->headers[rank] = &gloo->peers[rank].call->call;
    }
    return ls_agreement_check(&gloo->call, gloo->headers, gloo->size);
}

/* ---- data ----------------------------------------------------------------------------------------------------------
 */

void ls_gloo_expect(ls_gloo *gloo, int peer, ls_gloo_slot slot) {
    ls_gloo_peer *other = &gloo->peers[peer];
    other->lacks[slot] = other->came[slot] < other->wanted[slot];
    gloo->open += other->lacks[slot];
}

void ls_gloo_take_data(ls_gloo *gloo, int peer, ls_gloo_slot slot) {
    ls_gloo_peer *other = &gloo->peers[peer];
    if (other->lacks[slot] && other->came[slot] >= other->wanted[slot]) {
        other->lacks[slot] = false;
        gloo->open--;
    }
}

static ls_status end(ls_gloo *gloo, bool *finished) {
    (void)gloo;
    *finished = true;
    return LS_OK;
}

static void copy(unsigned char *to, const unsigned char *from, size_t bytes) {
    if (bytes != 0 && to != from) {
        memcpy(to, from, bytes);
    }
}

/* Copies what came with the calls and what goes from this rank to itself; waits for the rest. */
static void take_pieces(ls_gloo *gloo) {
    const ls_call *call = &gloo->call;
    for (int from = 0; from < gloo->size; from++) {
        const ls_piece piece = ls_piece_received(call, gloo->rank, from);
        const size_t bytes = piece.count * call->width;
        unsigned char *to = bytes != 0 ? (unsigned char *)call->receive + piece.at * call->width : NULL;
        if (from == gloo->rank) {
            const size_t at = ls_piece_sent(call, from, from).at * call->width;
            copy(to, bytes != 0 ? (const unsigned char *)call->send + at : NULL, bytes);
        } else if (bytes <= LS_GLOO_ROOM) {
            copy(to, gloo->peers[from].call->data, bytes);
        } else {
            ls_gloo_expect(gloo, from, LS_GLOO_PIECES);
        }
    }
}

static ls_status give_pieces(ls_gloo *gloo) {
    const ls_call *call = &gloo->call;
    for (int i = 1; i < gloo->size; i++) {
        const int to = (gloo->rank + i) % gloo->size;
        const ls_piece piece = ls_piece_sent(call, gloo->rank, to);
        const size_t bytes = piece.count * call->width;
        if (bytes > LS_GLOO_ROOM) {
            const ls_gloo_run run = {.open = &gloo->open,
                                     .slot = LS_GLOO_PIECES,
                                     .data = (const unsigned char *)call->send + piece.at * call->width,
                                     .bytes = bytes};
            LS_TRY(ls_gloo_send_data(gloo, to, &run, false));
        }
    }
    return LS_OK;
}

static ls_status deliver(ls_gloo *gloo, bool *finished) {
    *finished = false;
    gloo->stage = end;
    take_pieces(gloo);
    return give_pieces(gloo);
}

/* ---- stages --------------------------------------------------------------------------------------------------------
 */

static ls_status deliver_judged(ls_gloo *gloo, bool *finished) {
    for (int rank = 0; rank < gloo->size; rank++) {
        LS_TRY(ls_agreement_accept(&gloo->call, rank, &gloo->peers[rank].verdict));
    }
    return deliver(gloo, finished);
}

void ls_gloo_take_verdict(ls_gloo *gloo, int peer) {
    ls_gloo_peer *other = &gloo->peers[peer];
    other->verdict = other->packet->verdict;
    other->judged = true;
    if (other->lacks[LS_GLOO_PACKETS] && other->called) {
        other->lacks[LS_GLOO_PACKETS] = false;
        gloo->open--;
    }
}

static ls_status exchange_verdicts(ls_gloo *gloo) {
    gloo->stage = deliver_judged;
    for (int peer = 0; peer < gloo->size; peer++) {
        ls_gloo_peer *other = &gloo->peers[peer];
        if (peer != gloo->rank) {
            other->lacks[LS_GLOO_PACKETS] = !other->judged;
            gloo->open += !other->judged;
            gloo->outgoing->kind = LS_GLOO_VERDICT;
            gloo->outgoing->verdict = gloo->peers[gloo->rank].verdict;
            LS_TRY(ls_gloo_send_packet(gloo, peer, gloo->outgoing, 0, &gloo->open));
        }
    }
    return LS_OK;
}

static ls_status read_calls(ls_gloo *gloo, bool *finished) {
    LS_TRY(ls_gloo_agree(gloo));
    const ls_call_verdict verdict = ls_agreement_judge(&gloo->call, gloo->rank, gloo->headers, gloo->size);
    gloo->peers[gloo->rank].verdict = verdict;
    if (ls_agreement_varies(gloo->call.operation)) {
        return exchange_verdicts(gloo);
    }
    if (verdict.from >= 0) { /* all else was compared, so only a broken library does this */
        (void)ls_agreement_accept(&gloo->call, gloo->rank, &verdict);
        return ls_gloo_give_up(gloo, ls_fail(LS_ERR_INTERNAL, "%s", ls_error_message()), gloo->rank);
    }
    return deliver(gloo, finished);
}

ls_status ls_gloo_exchange(void *state, const ls_call *call) {
    ls_gloo *gloo = state;
    LS_TRY(ls_gloo_begin(gloo, call, read_calls));
    for (int from = 0; from < gloo->size; from++) {
        const ls_piece piece = ls_piece_received(call, gloo->rank, from);
        const size_t bytes = piece.count * call->width;
        if (from != gloo->rank && bytes > LS_GLOO_ROOM) {
            unsigned char *to = (unsigned char *)call->receive + piece.at * call->width;
            LS_TRY(ls_gloo_aim(gloo, from, LS_GLOO_PIECES, to, bytes));
        }
    }
    for (int i = 0; i < gloo->size; i++) {
        const int to = (gloo->rank + i) % gloo->size;
        const ls_piece piece = ls_piece_sent(call, gloo->rank, to);
        const unsigned char *data =
            piece.count != 0 ? (const unsigned char *)call->send + piece.at * call->width : NULL;
        LS_TRY(ls_gloo_tell(gloo, to, data, piece.count));
    }
    return LS_OK;
}

/* ---- progress ------------------------------------------------------------------------------------------------------
 */

/* Whether the call waits for the rank. */
static bool needs(const ls_gloo *gloo, const ls_gloo_wait *wait, int peer) {
    const ls_gloo_peer *other = &gloo->peers[peer];
    (void)wait;
    return other->lacks[LS_GLOO_PACKETS] || other->lacks[LS_GLOO_PIECES] || other->lacks[LS_GLOO_SUMS] ||
           (gloo->adding && other->came[LS_GLOO_PARTS] < gloo->own) || ls_gloo_sends(gloo, peer, &gloo->open);
}

/* Goes through the stages for which all is there. */
static ls_status advance(ls_gloo *gloo, const ls_gloo_wait *wait, bool *finished) {
    ls_status status = gloo->open == 0 ? ls_gloo_check_given_up(gloo, wait) : LS_OK;
    while (gloo->open == 0 && status == LS_OK && !*finished) {
        status = gloo->stage(gloo, finished);
    }
    if (*finished || status == LS_ERR_MISMATCH) {
        const ls_status ended = end_call(gloo);
        return status == LS_OK ? ended : status;
    }
    return status;
}

ls_status ls_gloo_progress(void *state, bool wait, bool *finished) {
    ls_gloo *gloo = state;
    const ls_gloo_wait what = {.call = &gloo->call,
                               .needs = needs,
                               .start_ns = gloo->start_ns,
                               .told_ns = &gloo->told_ns,
                               .logged_ns = &gloo->logged_ns};
    *finished = false;
    for (;;) {
        bool moved = false;
        LS_TRY(advance(gloo, &what, finished));
        if (*finished) {
            return LS_OK;
        }
        LS_TRY(ls_gloo_look(gloo, wait, &moved));
        LS_TRY(advance(gloo, &what, finished));
        if (*finished) {
            return LS_OK;
        }
        LS_TRY(ls_gloo_check(gloo, &what));
        if (!wait) {
            return LS_OK;
        }
    }
}
