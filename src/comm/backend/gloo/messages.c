/* What ranks tell each other, and sends and receives among it: a message goes to its receiver at once, which keeps it
 * until it is wanted (match.h), so that a send waits for no receive. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/gloo/gloo.h"

enum { COPIES_MOST = 32 };

/* ---- what is sent ------------------------------------------------------------------------------------------------ */

void ls_gloo_tell(ls_gloo *gloo, int peer, const ls_gloo_packet *packet, const void *data) {
    ls_gloo_peer *other = &gloo->peers[peer];
    if (!other->closed &&
        !ls_gloo_wire_send(gloo->wire, peer, 0, packet, sizeof *packet, data, (size_t)packet->bytes)) {
        other->closed = true; /* it would wait in vain */
        snprintf(other->reason, sizeof other->reason, "there is no memory for what it is to be told");
    }
}

void ls_gloo_tell_all(ls_gloo *gloo, const ls_gloo_packet *packet, const void *data) {
    for (int peer = 0; peer < gloo->size; peer++) {
        if (peer != gloo->rank) {
            ls_gloo_tell(gloo, peer, packet, data);
        }
    }
}

/* ---- what comes -------------------------------------------------------------------------------------------------- */

/* The data of a message that comes behind its packet, to where it belongs; without the lock meanwhile. Where it does
 * not come, the connection has ended, which is noticed when all that was said before is taken. */
static bool receive_data(ls_gloo *gloo, const ls_gloo_peer *other, const ls_gloo_packet *packet, unsigned char *into) {
    const size_t bytes = (size_t)packet->call.bytes;
    unsigned char *unwanted = into == NULL ? ls_allocate(bytes) : NULL;
    char why[LS_GLOO_WHY];
    gloo->receiving++;
    pthread_mutex_unlock(&gloo->lock);
    const bool came =
        (into != NULL || unwanted != NULL) &&
        ls_gloo_wire_receive(gloo->wire, other->rank, packet->number, into != NULL ? into : unwanted, bytes, why);
    pthread_mutex_lock(&gloo->lock);
    gloo->receiving--;
    ls_free(unwanted);
    if (came) {
        ls_gloo_tell(gloo, other->rank, &(ls_gloo_packet){.kind = LS_GLOO_TAKEN, .number = packet->number}, NULL);
    }
    return came;
}

static bool take_message(ls_gloo *gloo, const ls_gloo_peer *other, const ls_gloo_packet *packet, const void *data,
                         char *why) {
    const ls_match_header header = {.from = other->rank,
                                    .tag = packet->call.tag,
                                    .dtype = (ls_dtype)packet->call.dtype,
                                    .count = (size_t)packet->call.count,
                                    .bytes = (size_t)packet->call.bytes};
    const bool carried = packet->number == 0;
    ls_match_target target = {.into = NULL};
    if (gloo->ended) { /* nobody receives any more */
        return true;
    }
    if (carried && packet->bytes != header.bytes) {
        snprintf(why, LS_GLOO_WHY, "it sent %llu bytes for a message of %zu", (unsigned long long)packet->bytes,
                 header.bytes);
        return false;
    }
    if (ls_match_offer(&gloo->match, &header, &target) != LS_OK) {
        snprintf(why, LS_GLOO_WHY, "%.200s", ls_error_message());
        return false;
    }
    if (!carried && !receive_data(gloo, other, packet, target.into)) {
        return true;
    }
    if (carried && target.into != NULL && header.bytes != 0) {
        memcpy(target.into, data, header.bytes);
    }
    if (!gloo->ended) { /* else a receive has failed meanwhile */
        ls_match_complete(&gloo->match, &target);
    }
    return true;
}

static void take_leave(ls_gloo *gloo, ls_gloo_peer *other, const ls_gloo_packet *packet, const char *data) {
    const int culprit = packet->culprit;
    other->left = true;
    other->leaving = (ls_leave_reason)packet->leaving; /* one that is none is described as LS_LEAVE_FREED is */
    other->status = (ls_status)packet->status;
    other->culprit = culprit >= 0 && culprit < gloo->size ? culprit : other->rank;
    snprintf(other->reason, sizeof other->reason, "%.*s", (int)packet->bytes, data);
    ls_gloo_tell(gloo, other->rank, &(ls_gloo_packet){.kind = LS_GLOO_HEARD}, NULL);
}

static bool note_taken(const ls_gloo *gloo, const ls_gloo_peer *other, uint64_t number) {
    ls_gloo_request *asked = gloo->requests;
    while (asked != NULL && (asked->number != number || asked->call.root != other->rank || asked->loan == NULL)) {
        asked = asked->next;
    }
    if (asked != NULL) {
        asked->taken = true;
    }
    return asked != NULL || gloo->ended;
}

/* Whether the peer holds the job's key: it has read both secrets in the store, and makes of them what this rank does.
 */
static bool check_proof(const ls_gloo *gloo, ls_gloo_peer *other, const ls_gloo_packet *packet, const void *proof) {
    char role[32];
    snprintf(role, sizeof role, "rank %d", other->rank);
    other->proven = packet->kind == LS_GLOO_PROOF && packet->bytes == LS_PROOF_SIZE &&
                    ls_auth_check(&gloo->key, role, other->secret, gloo->peers[gloo->rank].secret, proof);
    other->denied = !other->proven;
    return other->proven;
}

/* Takes what the peer said; false: it cannot have said that. */
static bool take(ls_gloo *gloo, ls_gloo_peer *other, const ls_gloo_packet *packet, const void *data, char *why) {
    const bool calls = packet->kind == LS_GLOO_CALL;
    snprintf(why, LS_GLOO_WHY, "it sent what was not expected");
    if (!other->proven) {
        return check_proof(gloo, other, packet, data);
    }
    if (packet->bytes > LS_GLOO_CARRIED) {
        return false;
    }
    if ((calls || packet->kind == LS_GLOO_MESSAGE) && !ls_call_header_is_sound(&packet->call, gloo->size, why)) {
        return false;
    }
    other->alive_ns = gloo->awake_ns;
    switch (packet->kind) {
    case LS_GLOO_CALL:
        other->call[other->calls++ % 2] = packet->call;
        return other->calls <= gloo->calls + 1;
    case LS_GLOO_VERDICT:
        other->verdict[other->verdicts++ % 2] = packet->verdict;
        return other->verdicts <= gloo->verdicts + 1;
    case LS_GLOO_MESSAGE:
        return take_message(gloo, other, packet, data, why);
    case LS_GLOO_TAKEN:
        return note_taken(gloo, other, packet->number);
    case LS_GLOO_LEFT:
        take_leave(gloo, other, packet, data);
        return true;
    case LS_GLOO_HEARD:
        other->heard = true;
        return true;
    default:
        return packet->kind == LS_GLOO_WAITING;
    }
}

void *ls_gloo_listen(void *peer) {
    ls_gloo_peer *other = peer;
    ls_gloo *gloo = other->gloo;
    char why[LS_GLOO_WHY] = "";
    ls_gloo_inbox *inbox = ls_gloo_wire_inbox(gloo->wire, other->rank, sizeof(ls_gloo_packet) + LS_GLOO_CARRIED, why);
    for (bool open = true; open;) {
        const ls_gloo_packet *packet = inbox != NULL ? ls_gloo_inbox_next(inbox, why) : NULL;
        pthread_mutex_lock(&gloo->lock);
        open = packet != NULL && take(gloo, other, packet, packet + 1, why);
        if (!open) {
            other->closed = true;
            other->closed_ns = gloo->awake_ns;
        }
        if (!open && !other->left) {
            snprintf(other->reason, sizeof other->reason, "%s", why);
        }
        pthread_cond_broadcast(&gloo->changed);
        pthread_mutex_unlock(&gloo->lock);
    }
    ls_gloo_wire_close(gloo->wire, other->rank);
    ls_gloo_inbox_free(inbox);
    return NULL;
}

/* ---- sends and receives ------------------------------------------------------------------------------------------ */

static void end_request(ls_gloo *gloo, ls_gloo_request *asked) {
    ls_gloo_request **link = &gloo->requests;
    while (*link != asked) {
        link = &(*link)->next;
    }
    *link = asked->next;
    ls_gloo_wire_return(asked->loan);
    ls_free(asked);
}

static bool has_finished(const ls_gloo_request *asked) {
    return asked->receipt != NULL ? ls_match_arrived(asked->receipt) : asked->taken;
}

static ls_status begin_send(ls_gloo *gloo, ls_gloo_request *asked) {
    const ls_call *call = &asked->call;
    ls_gloo_packet packet = {.kind = LS_GLOO_MESSAGE, .call = ls_call_header_of(call)};
    packet.call.root = gloo->rank;
    packet.call.tag = call->tag;
    packet.call.count = call->count;
    packet.call.bytes = call->count * call->width;
    if (packet.call.bytes <= LS_GLOO_CARRIED) {
        packet.bytes = packet.call.bytes;
        asked->taken = true;
    } else {
        packet.number = asked->number = ++gloo->sends;
        asked->loan = ls_gloo_wire_lend(gloo->wire, call->root, asked->number, call->send, (size_t)packet.call.bytes);
        if (asked->loan == NULL) {
            return ls_fail_memory("ls_comm_send", sizeof packet);
        }
    }
    ls_gloo_tell(gloo, call->root, &packet, call->send);
    return LS_OK;
}

static ls_status post(ls_gloo *gloo, const ls_call *call, void **request) {
    if (call->operation == LS_OP_SEND && call->root == gloo->rank) {
        return ls_match_send_self(&gloo->match, gloo->rank, call);
    }
    ls_gloo_request *asked = ls_allocate_zeroed(1, sizeof *asked);
    if (asked == NULL) {
        return ls_gloo_give_up(gloo, ls_fail_memory("ls_comm_send", sizeof *asked), gloo->rank);
    }
    asked->call = *call;
    asked->next = gloo->requests;
    gloo->requests = asked;
    ls_gloo_start_waiting(gloo, &asked->wait);
    ls_status status =
        call->operation == LS_OP_SEND ? begin_send(gloo, asked) : ls_match_receive(&gloo->match, call, &asked->receipt);
    const bool pending = status == LS_OK && (call->operation == LS_OP_SEND || asked->receipt != NULL);
    if (pending) { /* to a rank that is gone nothing is sent any more */
        status = ls_gloo_look(gloo, asked, false);
    }
    if (!pending || status != LS_OK || asked->taken) {
        end_request(gloo, asked);
    } else {
        *request = asked;
    }
    return status;
}

ls_status ls_gloo_post(void *state, const ls_call *call, void **request) {
    ls_gloo *gloo = state;
    char name[64];
    const uint64_t start = ls_clock_ns();
    ls_status status = LS_OK;
    *request = NULL;
    ls_call_describe(call->operation, call->sequence, name, sizeof name);
    if (call->operation == LS_OP_SEND) { /* copies on their way are not to pile up */
        ls_gloo_wire_flush(gloo->wire, call->root, COPIES_MOST, gloo->timeout);
    }
    pthread_mutex_lock(&gloo->lock);
    if (gloo->ended) {
        status = ls_fail(LS_ERR_STATE, "%s: an earlier call has ended this communicator", name);
    } else if ((double)(ls_clock_ns() - start) > gloo->timeout * 1e9) {
        status = ls_fail(LS_ERR_TIMEOUT, "%s: rank %d took nothing of what was sent to it within %g s", name,
                         call->root, gloo->timeout);
        status = ls_gloo_give_up(gloo, status, call->root);
    } else {
        status = post(gloo, call, request);
    }
    pthread_mutex_unlock(&gloo->lock);
    return status;
}

ls_status ls_gloo_test(void *state, void *request, bool wait, bool *finished) {
    ls_gloo *gloo = state;
    ls_gloo_request *asked = request;
    ls_status status = LS_OK;
    pthread_mutex_lock(&gloo->lock);
    do {
        *finished = has_finished(asked);
        status = *finished ? LS_OK : ls_gloo_look(gloo, asked, wait);
    } while (status == LS_OK && wait && !*finished);
    if (*finished && asked->receipt != NULL) {
        status = ls_match_end(&gloo->match, asked->receipt);
    }
    if (status != LS_OK || *finished) {
        end_request(gloo, asked);
    }
    pthread_mutex_unlock(&gloo->lock);
    return status;
}

void ls_gloo_free_messages(ls_gloo *gloo) {
    while (gloo->requests != NULL) {
        end_request(gloo, gloo->requests);
    }
    ls_match_free(&gloo->match);
}
