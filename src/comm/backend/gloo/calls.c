/*
 * Calls. Each rank tells each other what it calls; where all call the same Gloo moves the data. Calls in which users
 * give counts on both sides have a step between, in which all ranks learn whether they fit. Nothing is written before.
 */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "comm/backend/gloo/gloo.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

/* ---- agreement --------------------------------------------------------------------------------------------------- */

bool ls_gloo_lacks(const ls_gloo *gloo, int peer) {
    const ls_gloo_peer *other = &gloo->peers[peer];
    if (peer == gloo->rank) {
        return false;
    }
    return gloo->stage == LS_GLOO_CALLS ? other->calls < gloo->calls
                                        : gloo->stage == LS_GLOO_VERDICTS && other->verdicts < gloo->verdicts;
}

/* Waits until all others have said what the stage wants; who waits for this thread sees to it that it ends. */
static ls_status await_all(ls_gloo *gloo, ls_gloo_stage stage) {
    gloo->stage = stage;
    for (int peer = 0; peer < gloo->size; peer++) {
        while (ls_gloo_lacks(gloo, peer) && !gloo->ended) {
            pthread_cond_wait(&gloo->changed, &gloo->lock);
        }
    }
    return gloo->ended ? ls_fail(LS_ERR_STATE, "ls_comm: this rank has left the communicator") : LS_OK;
}

static ls_status exchange_verdicts(ls_gloo *gloo, const ls_call_verdict *own) {
    gloo->verdicts++;
    ls_gloo_tell_all(gloo, &(ls_gloo_packet){.kind = LS_GLOO_VERDICT, .verdict = *own}, NULL);
    return await_all(gloo, LS_GLOO_VERDICTS);
}

static ls_status compare_counts(ls_gloo *gloo) {
    const ls_call *call = &gloo->call;
    const ls_call_verdict own = ls_agreement_judge(call, gloo->rank, gloo->headers, gloo->size);
    if (!ls_agreement_varies(call->operation)) { /* all else was compared, so only a broken library finds anything */
        return ls_agreement_accept(call, gloo->rank, &own);
    }
    LS_TRY(exchange_verdicts(gloo, &own));
    const uint64_t turn = (gloo->verdicts + 1) % 2;
    for (int rank = 0; rank < gloo->size; rank++) {
        LS_TRY(ls_agreement_accept(call, rank, rank == gloo->rank ? &own : &gloo->peers[rank].verdict[turn]));
    }
    return LS_OK;
}

static ls_status agree(ls_gloo *gloo) {
    const ls_call *call = &gloo->call;
    const uint64_t turn = gloo->calls++ % 2;
    for (int rank = 0; rank < gloo->size; rank++) {
        ls_gloo_packet packet = {.kind = LS_GLOO_CALL, .call = ls_call_header_of(call)};
        packet.call.count = ls_piece_sent(call, gloo->rank, rank).count;
        packet.call.bytes = packet.call.count * call->width;
        gloo->headers[rank] = &gloo->peers[rank].call[turn];
        if (rank == gloo->rank) {
            gloo->peers[rank].call[turn] = packet.call;
        } else {
            ls_gloo_tell(gloo, rank, &packet, NULL);
        }
    }
    LS_TRY(await_all(gloo, LS_GLOO_CALLS));
    if (ls_agreement_check(call, gloo->headers, gloo->size) != LS_OK) {
        char message[LS_ERROR_CAPACITY];
        snprintf(message, sizeof message, "%s", ls_error_message());
        LS_TRY(exchange_verdicts(gloo, &(ls_call_verdict){.from = -1})); /* one that gave up has seen other calls */
        return ls_fail(LS_ERR_MISMATCH, "%s", message);
    }
    return compare_counts(gloo);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static void reduce(const ls_call *call, int ranks, const void *const *sources, void *result, size_t count) {
    ls_reduce_buffers(&(ls_reduce_task){.dtype = call->dtype,
                                        .reduction = call->reduction,
                                        .ranks = ranks,
                                        .sources = sources,
                                        .copies = 1,
                                        .destinations = &result,
                                        .count = count});
}

static void reduce_two(const void *call, void *result, const void *a, const void *b, size_t count) {
    reduce(call, 2, (const void *const[]){a, b}, result, count);
}

static ls_gloo_kind_of_work work_of(const ls_call *call) {
    if (call->send_counts != NULL || call->receive_counts != NULL) { /* also a call that the frame composes */
        return LS_GLOO_EXCHANGE;
    }
    if (call->operation == LS_OP_BARRIER || call->count == 0) {
        return LS_GLOO_BARRIER;
    }
    switch (call->operation) {
    case LS_OP_BROADCAST:
        return LS_GLOO_BROADCAST;
    case LS_OP_ALLREDUCE:
        return LS_GLOO_ALLREDUCE;
    case LS_OP_REDUCE:
        return LS_GLOO_REDUCE;
    case LS_OP_GATHER:
        return LS_GLOO_GATHER;
    case LS_OP_SCATTER:
        return LS_GLOO_SCATTER;
    case LS_OP_ALLTOALL:
        return LS_GLOO_ALLTOALL;
    default:
        return LS_GLOO_ALLGATHER; /* and a split */
    }
}

/* Without the lock. */
static bool move_data(ls_gloo *gloo, char *why) {
    const ls_call *call = &gloo->call;
    const ls_gloo_work work = {.kind = work_of(call),
                               .tag = (uint32_t)gloo->calls,
                               .root = call->root,
                               .send = call->send,
                               .receive = call->receive,
                               .count = call->count,
                               .width = call->width,
                               .reduce = reduce_two,
                               .argument = call,
                               .sent = gloo->parts,
                               .received = gloo->parts + gloo->size};
    if (gloo->size == 1 && (work.kind == LS_GLOO_ALLREDUCE || work.kind == LS_GLOO_REDUCE)) {
        reduce(call, 1, &call->send, call->receive, call->count); /* of one rank too a logical one is 0 or 1 */
        return true;
    }
    for (int rank = 0; rank < gloo->size; rank++) {
        const ls_piece sent = ls_piece_sent(call, gloo->rank, rank);
        const ls_piece received = ls_piece_received(call, gloo->rank, rank);
        gloo->parts[rank] = (ls_gloo_part){sent.count * call->width, sent.at * call->width};
        gloo->parts[gloo->size + rank] = (ls_gloo_part){received.count * call->width, received.at * call->width};
    }
    return ls_gloo_wire_work(gloo->wire, &work, why);
}

/* A call has ended here when the others have what they need of this rank, also where it says that ranks disagree. */
static ls_status carry_out(ls_gloo *gloo) {
    char why[LS_GLOO_WHY] = "a connection broke";
    const ls_status status = agree(gloo);
    bool done = true;
    if (gloo->ended) {
        return status;
    }
    gloo->stage = LS_GLOO_DATA;
    pthread_mutex_unlock(&gloo->lock);
    done = status != LS_OK || move_data(gloo, why);
    for (int peer = 0; peer < gloo->size && done; peer++) {
        ls_gloo_wire_flush(gloo->wire, peer, 0, 0);
    }
    pthread_mutex_lock(&gloo->lock);
    gloo->broken = !done;
    return done ? status : ls_fail(LS_ERR_IO, "%s", why);
}

void *ls_gloo_carry_out(void *state) {
    ls_gloo *gloo = state;
    pthread_mutex_lock(&gloo->lock);
    while (!gloo->closing) {
        if (gloo->calling) {
            gloo->status = carry_out(gloo);
            snprintf(gloo->message, sizeof gloo->message, "%s", ls_error_message());
            gloo->calling = false;
            pthread_cond_broadcast(&gloo->changed);
        } else {
            pthread_cond_wait(&gloo->changed, &gloo->lock);
        }
    }
    pthread_mutex_unlock(&gloo->lock);
    return NULL;
}

/* ---- the caller's side ------------------------------------------------------------------------------------------- */

ls_status ls_gloo_begin(void *state, const ls_call *call) {
    ls_gloo *gloo = state;
    char name[64];
    ls_status status = LS_OK;
    pthread_mutex_lock(&gloo->lock);
    if (gloo->ended) {
        status = ls_fail(LS_ERR_STATE, "%s: an earlier call has ended this communicator",
                         ls_call_describe(call->operation, call->sequence, name, sizeof name));
    } else {
        gloo->call = *call;
        gloo->calling = true;
        ls_gloo_start_waiting(gloo, &gloo->wait);
        pthread_cond_broadcast(&gloo->changed);
    }
    pthread_mutex_unlock(&gloo->lock);
    return status;
}

ls_status ls_gloo_progress(void *state, bool wait, bool *finished) {
    ls_gloo *gloo = state;
    ls_status status = LS_OK;
    *finished = false;
    pthread_mutex_lock(&gloo->lock);
    do {
        if (!gloo->calling && !gloo->broken) {
            *finished = gloo->status == LS_OK;
            status = gloo->status;
            if (status != LS_OK) {
                ls_error_restore(status, gloo->message);
            }
            break;
        }
        status = ls_gloo_look(gloo, NULL, wait);
    } while (status == LS_OK && wait);
    pthread_mutex_unlock(&gloo->lock);
    return status;
}
