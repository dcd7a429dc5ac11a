/* Sends and receives: a packet says what is sent and holds what is small; larger content follows it. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/gloo/gloo.h"

_Static_assert(LS_GLOO_CARRIED <= LS_GLOO_ROOM, "a message fits a packet");

/* ---- what arrives --------------------------------------------------------------------------------------------------
 */

/* Begins to receive content that did not fit the packet. */
static ls_status begin_content(ls_gloo *gloo, int peer, size_t bytes) {
    ls_gloo_peer *other = &gloo->peers[peer];
    void *into = other->target.into;
    if (into == NULL) {
        other->refused = ls_allocate(bytes);
        into = other->refused;
    }
    if (into == NULL) {
        return ls_gloo_give_up(gloo, ls_fail_memory("ls_comm_recv", bytes), gloo->rank);
    }
    return ls_gloo_aim(gloo, peer, LS_GLOO_CONTENTS, into, bytes);
}

ls_status ls_gloo_take_message(ls_gloo *gloo, int peer) {
    ls_gloo_peer *other = &gloo->peers[peer];
    const ls_gloo_packet *packet = other->packet;
    if (other->wanted[LS_GLOO_CONTENTS] != 0) { /* its target is in use */
        ls_gloo_close_peer(gloo, peer, "it sent a message before the content of the one before it");
        return LS_OK;
    }
    const ls_match_header header = {.from = peer,
                                    .tag = packet->call.tag,
                                    .dtype = (ls_dtype)packet->call.dtype,
                                    .count = (size_t)packet->call.count,
                                    .bytes = (size_t)packet->call.bytes};
    const ls_status status = ls_match_offer(&gloo->match, &header, &other->target);
    if (status != LS_OK) {
        return ls_gloo_give_up(gloo, status, gloo->rank); /* the message is lost */
    }
    if (header.bytes > LS_GLOO_CARRIED) {
        other->slot = LS_GLOO_CONTENTS;
        other->coming = (size_t)packet->at;
        return begin_content(gloo, peer, header.bytes);
    }
    if (other->target.into != NULL && header.bytes != 0) {
        memcpy(other->target.into, packet->data, header.bytes);
    }
    ls_match_complete(&gloo->match, &other->target);
    return LS_OK;
}

ls_status ls_gloo_take_content(ls_gloo *gloo, int peer) {
    ls_gloo_peer *other = &gloo->peers[peer];
    if (other->came[LS_GLOO_CONTENTS] < other->wanted[LS_GLOO_CONTENTS]) {
        return LS_OK;
    }
    ls_match_complete(&gloo->match, &other->target);
    const ls_status status = ls_gloo_aim(gloo, peer, LS_GLOO_CONTENTS, NULL, 0);
    ls_free(other->refused);
    other->refused = NULL;
    return status;
}

/* ---- what is posted ------------------------------------------------------------------------------------------------
 */

static bool has_finished(const ls_gloo_request *asked) {
    return asked->receipt != NULL ? ls_match_arrived(asked->receipt) : asked->open == 0;
}

static void end_request(ls_gloo *gloo, ls_gloo_request *asked) {
    ls_gloo_request **link = &gloo->requests;
    while (*link != asked) {
        link = &(*link)->next;
    }
    *link = asked->next;
    ls_free(asked);
}

static ls_status begin_send(ls_gloo *gloo, ls_gloo_request *asked) {
    const ls_call *call = &asked->call;
    const size_t bytes = call->count * call->width;
    const size_t carried = bytes <= LS_GLOO_CARRIED ? bytes : 0;
    gloo->outgoing->kind = LS_GLOO_MESSAGE;
    gloo->outgoing->call = (ls_call_header){
        .operation = LS_OP_SEND, .dtype = (int32_t)call->dtype, .tag = call->tag, .count = call->count, .bytes = bytes};
    if (carried != 0) {
        memcpy(gloo->outgoing->data, call->send, carried);
    }
    ls_gloo_run run = {.open = &asked->open, .slot = LS_GLOO_CONTENTS, .data = call->send, .bytes = bytes};
    if (carried != bytes) {
        run.sent = ls_gloo_send_ahead(gloo, call->root, gloo->outgoing, run.slot, run.data, bytes);
    }
    if (run.sent == 0) {
        gloo->outgoing->at = 0;
        LS_TRY(ls_gloo_send_packet(gloo, call->root, gloo->outgoing, carried, &asked->open));
    }
    return carried == bytes || run.sent == bytes ? LS_OK : ls_gloo_send_data(gloo, call->root, &run, false);
}

/* Whether what was posted waits for the rank. A rank that died, or gave up because one did, ends it whoever it is. */
static bool needs(const ls_gloo *gloo, const ls_gloo_wait *wait, int peer) {
    const ls_gloo_peer *other = &gloo->peers[peer];
    return peer == wait->call->root || (other->closed && !other->left) || (other->left && other->status != LS_OK);
}

static ls_status look(ls_gloo *gloo, ls_gloo_request *asked, bool wait) {
    bool moved = false;
    const ls_gloo_wait what = {.call = &asked->call,
                               .needs = needs,
                               .request = asked,
                               .start_ns = asked->start_ns,
                               .told_ns = &asked->told_ns,
                               .logged_ns = &asked->logged_ns};
    LS_TRY(ls_gloo_look(gloo, wait, &moved));
    return has_finished(asked) ? LS_OK : ls_gloo_check(gloo, &what);
}

ls_status ls_gloo_post(void *state, const ls_call *call, void **request) {
    ls_gloo *gloo = state;
    *request = NULL;
    LS_TRY(ls_gloo_check_open(gloo, call));
    if (call->operation == LS_OP_SEND && call->root == gloo->rank) {
        return ls_match_send_self(&gloo->match, gloo->rank, call);
    }
    ls_gloo_request *asked = ls_allocate(sizeof *asked);
    if (asked == NULL) {
        return ls_gloo_give_up(gloo, ls_fail_memory("ls_comm_send", sizeof *asked), gloo->rank);
    }
    *asked =
        (ls_gloo_request){.next = gloo->requests, .call = *call, .start_ns = gloo->awake_ns, .told_ns = gloo->awake_ns};
    gloo->requests = asked;
    ls_status status = LS_OK;
    if (call->operation == LS_OP_SEND) {
        status = begin_send(gloo, asked);
    } else {
        status = ls_match_receive(&gloo->match, call, &asked->receipt);
    }
    const bool sent = asked->receipt == NULL && asked->open == 0;
    if (status == LS_OK && !sent) {
        gloo->looked_ns = 0;
        status = look(gloo, asked, false);
    }
    if (status != LS_OK || (asked->receipt == NULL && asked->open == 0)) {
        end_request(gloo, asked);
        return status;
    }
    *request = asked;
    return LS_OK;
}

ls_status ls_gloo_test(void *state, void *request, bool wait, bool *finished) {
    ls_gloo *gloo = state;
    ls_gloo_request *asked = request;
    ls_status status = LS_OK;
    do {
        status = look(gloo, asked, wait && !has_finished(asked)); /* it may have been here already */
    } while (status == LS_OK && wait && !has_finished(asked));
    *finished = status == LS_OK && has_finished(asked);
    if (*finished && asked->receipt != NULL) {
        status = ls_match_end(&gloo->match, asked->receipt);
    }
    if (status != LS_OK || *finished) {
        end_request(gloo, asked);
    }
    return status;
}

void ls_gloo_free_messages(ls_gloo *gloo) {
    while (gloo->requests != NULL) {
        end_request(gloo, gloo->requests);
    }
    for (int peer = 0; peer < gloo->size; peer++) {
        ls_free(gloo->peers[peer].refused);
    }
    ls_match_free(&gloo->match);
}
