/*
 * Sends and receives. A message consists of a header, which contains small content inline; larger content follows the
 * header. Content that no receive waits for yet is accepted up to a total of LS_ENGINE_KEPT. Further content is held
 * back at its sender, whose send then waits for the receive. Contents from a rank arrive in the order of its sends, so
 * all contents sent before a wanted content arrive, too.
 */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/inside.h"

enum { INLINE = LS_TRANSPORT_LEAST_EAGER - sizeof(ls_call_header), HELD_LOOKED_AT = 64 };

/* ---- what comes -------------------------------------------------------------------------------------------------- */

static ls_status receive_next(ls_engine *engine) {
    engine->messages.message = (ls_transfer){.peer = -1,
                                             .channel = LS_CHANNEL_MESSAGES,
                                             .data = engine->messages.message_memory,
                                             .bytes = LS_TRANSPORT_LEAST_EAGER,
                                             .receives = true};
    return engine->endpoint->transport->receive(engine->endpoint, &engine->messages.message);
}

/* Starts receiving messages from any rank. */
static ls_status listen_to_all(ls_engine *engine) {
    if (engine->messages.listens) {
        return LS_OK;
    }
    engine->messages.message_memory = ls_allocate(LS_TRANSPORT_LEAST_EAGER);
    if (engine->messages.message_memory == NULL) {
        return ls_fail_memory("ls_comm_recv", LS_TRANSPORT_LEAST_EAGER);
    }
    engine->messages.listens = true;
    return receive_next(engine);
}

/* Starts receiving the content, which follows in a separate message, and removes it from the list of held contents. */
static ls_status begin_content(ls_engine *engine, ls_message_arrival **link) {
    ls_message_arrival *arrival = *link;
    *link = arrival->next;
    arrival->next = engine->messages.arrivals;
    engine->messages.arrivals = arrival;
    LS_TRY(ls_match_place(&engine->messages.match, &arrival->target));
    if (arrival->target.into == NULL) {
        arrival->refused = ls_allocate(arrival->bytes);
        if (arrival->refused == NULL) {
            return ls_fail_memory("ls_comm_recv", arrival->bytes);
        }
    }
    arrival->content.data = arrival->target.into != NULL ? arrival->target.into : arrival->refused;
    return engine->endpoint->transport->receive(engine->endpoint, &arrival->content);
}

/* Returns the latest held content from the rank for which a receive waits; NULL if there is none. */
static const ls_message_arrival *last_wanted(const ls_engine *engine, int from) {
    const ls_message_arrival *last = NULL;
    for (const ls_message_arrival *arrival = engine->messages.held; arrival != NULL; arrival = arrival->next) {
        last = arrival->content.peer == from && ls_match_wants(&arrival->target) ? arrival : last;
    }
    return last;
}

/* Starts receiving the contents from this rank that receives wait for, and all earlier contents from the rank. */
static ls_status begin_wanted(ls_engine *engine, int from) {
    const ls_message_arrival *last = last_wanted(engine, from);
    for (ls_message_arrival **link = &engine->messages.held; last != NULL;) {
        ls_message_arrival *arrival = *link;
        if (arrival->content.peer != from) {
            link = &arrival->next;
            continue;
        }
        LS_TRY(begin_content(engine, link));
        last = arrival == last ? NULL : last;
    }
    return LS_OK;
}

/* Returns true if an earlier content from the same rank is held. */
static bool has_earlier(const ls_engine *engine, const ls_message_arrival *arrival) {
    const ls_message_arrival *other = engine->messages.held;
    while (other->content.peer != arrival->content.peer) {
        other = other->next;
    }
    return other != arrival;
}

/* Starts receiving the first held contents, as far as there is room. */
static ls_status begin_kept(ls_engine *engine) {
    ls_message_arrival **link = &engine->messages.held;
    for (int i = 0; i < HELD_LOOKED_AT && *link != NULL; i++) {
        const bool fits = engine->messages.match.kept + (*link)->bytes <= engine->messages.kept_most;
        if (fits && !has_earlier(engine, *link)) {
            LS_TRY(begin_content(engine, link));
        } else {
            link = &(*link)->next;
        }
    }
    return LS_OK;
}

static ls_status hold_content(ls_engine *engine, const ls_match_header *header, const ls_match_target *target) {
    ls_message_arrival **link = &engine->messages.held;
    ls_message_arrival *arrival = ls_allocate_zeroed(1, sizeof *arrival);
    if (arrival == NULL) {
        return ls_fail_memory("ls_comm_recv", sizeof *arrival);
    }
    arrival->target = *target;
    arrival->bytes = header->bytes;
    arrival->content = (ls_transfer){.peer = header->from,
                                     .channel = LS_CHANNEL_CONTENTS,
                                     .bytes = header->bytes,
                                     .of_user = true,
                                     .receives = true};
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = arrival;
    LS_TRY(ls_match_wants(target) ? begin_wanted(engine, header->from) : LS_OK);
    return begin_kept(engine);
}

static ls_status take_message(ls_engine *engine) {
    const int from = engine->messages.message.peer;
    ls_call_header said;
    ls_failure_blame(engine, from); /* if the checks below fail, the sender is to blame */
    engine->messages.taken[from]++;
    if (engine->messages.message.bytes < sizeof said) {
        return ls_fail(LS_ERR_PEER, "ls_comm_recv: rank %d sent a message without a header", from);
    }
    memcpy(&said, engine->messages.message_memory, sizeof said);
    if (said.operation == LS_MESSAGE_LEFT) {
        engine->messages.left[from] = (unsigned char)(1 + (said.reduction & 7));
        ls_failure_blame(engine, -1);
        return LS_OK;
    }
    if (said.operation != LS_OP_SEND) {
        return ls_fail(LS_ERR_PEER, "ls_comm_recv: rank %d sent a message that does not belong to a send", from);
    }
    const size_t data = engine->messages.message.bytes - sizeof said;
    const bool follows = said.bytes > INLINE && data == 0;
    const ls_match_header header = {.from = from,
                                    .tag = said.tag,
                                    .dtype = (ls_dtype)said.dtype,
                                    .count = said.count,
                                    .bytes = said.bytes,
                                    .held = follows};
    ls_match_target target;
    if (data != header.bytes && !follows) {
        return ls_fail(LS_ERR_PEER, "ls_comm_recv: rank %d sent %zu bytes instead of %zu", from, data, header.bytes);
    }
    LS_TRY(ls_match_offer(&engine->messages.match, &header, &target));
    ls_failure_blame(engine, -1);
    if (follows) {
        return hold_content(engine, &header, &target);
    }
    if (target.into != NULL && data != 0) {
        memcpy(target.into, engine->messages.message_memory + sizeof said, data);
    }
    ls_match_complete(&engine->messages.match, &target);
    return LS_OK;
}

static ls_status end_arrivals(ls_engine *engine, bool *moved) {
    for (ls_message_arrival **link = &engine->messages.arrivals; *link != NULL;) {
        ls_message_arrival *arrival = *link;
        if (!arrival->content.ended) {
            link = &arrival->next;
            continue;
        }
        if (arrival->content.bytes != arrival->bytes) {
            ls_failure_blame(engine, arrival->content.peer);
            return ls_fail(LS_ERR_PEER, "ls_comm_recv: rank %d sent %zu bytes instead of %zu", arrival->content.peer,
                           arrival->content.bytes, arrival->bytes);
        }
        ls_match_complete(&engine->messages.match, &arrival->target);
        *link = arrival->next;
        ls_free(arrival->refused);
        ls_free(arrival);
        *moved = true;
    }
    return LS_OK;
}

ls_status ls_messages_move(ls_engine *engine, bool *moved) {
    while (engine->messages.listens && engine->messages.message.ended) {
        *moved = true;
        LS_TRY(take_message(engine));
        LS_TRY(receive_next(engine));
    }
    LS_TRY(end_arrivals(engine, moved));
    return engine->messages.held != NULL ? begin_kept(engine) : LS_OK;
}

/* ---- posted messages --------------------------------------------------------------------------------------------- */

/* Returns the number of messages received from all ranks. */
static uint64_t count_taken(const ls_engine *engine) {
    uint64_t sum = 0;
    for (int rank = 0; rank < engine->size; rank++) {
        sum += engine->messages.taken[rank];
    }
    return sum;
}

uint64_t ls_messages_progress(const ls_engine *engine, int peer) {
    if (peer == LS_ANY_RANK) {
        return count_taken(engine);
    }
    uint64_t sum = engine->messages.taken[peer];
    for (const ls_message_request *asked = engine->messages.requests; asked != NULL; asked = asked->next) {
        if (asked->began && asked->call.root == peer) {
            sum += asked->envelope.moved + asked->envelope.ended + asked->content.moved + asked->content.ended;
        }
    }
    for (const ls_message_arrival *arrival = engine->messages.arrivals; arrival != NULL; arrival = arrival->next) {
        sum += arrival->content.peer == peer ? arrival->content.moved : 0;
    }
    return sum;
}

void ls_messages_name_sender(ls_message_request *asked) {
    if (asked->receipt != NULL) {
        asked->call.root = asked->receipt->call.root;
    }
}

bool ls_messages_has_ended(const ls_message_request *asked) {
    return asked->receipt != NULL ? ls_match_arrived(asked->receipt) : asked->envelope.ended && asked->content.ended;
}

static ls_message_request *make_request(ls_engine *engine, const ls_call *call) {
    ls_message_request *asked = engine->messages.spare;
    if (asked != NULL) {
        engine->messages.spare = asked->next;
    } else {
        asked = ls_allocate(sizeof *asked);
    }
    if (asked == NULL) {
        return NULL;
    }
    asked->call = *call;
    asked->receipt = NULL;
    asked->since_ns = ls_engine_now(engine);
    asked->told_ns = 0;
    asked->seen = ls_messages_progress(engine, call->root);
    asked->began = false;
    asked->next = engine->messages.requests;
    engine->messages.requests = asked;
    return asked;
}

static ls_status begin_send(ls_engine *engine, ls_message_request *asked) {
    const ls_call *call = &asked->call;
    const size_t bytes = call->count * call->width;
    const size_t data = bytes <= INLINE ? bytes : 0;
    const ls_call_header header = {.operation = LS_OP_SEND,
                                   .dtype = (int32_t)call->dtype,
                                   .root = engine->rank,
                                   .tag = call->tag,
                                   .count = call->count,
                                   .bytes = bytes};
    memcpy(asked->packet, &header, sizeof header);
    if (data != 0) {
        memcpy(asked->packet + sizeof header, call->send, data);
    }
    asked->envelope = (ls_transfer){
        .peer = call->root, .channel = LS_CHANNEL_MESSAGES, .data = asked->packet, .bytes = sizeof header + data};
    asked->content = (ls_transfer){.peer = call->root,
                                   .channel = LS_CHANNEL_CONTENTS,
                                   .data = (void *)(uintptr_t)call->send,
                                   .bytes = bytes,
                                   .ended = data == bytes,
                                   .of_user = true};
    asked->began = true;
    ls_endpoint *endpoint = engine->endpoint;
    const ls_status status = endpoint->transport->send(endpoint, &asked->envelope);
    return ls_engine_name_failure(
        call, status != LS_OK || asked->content.ended ? status : endpoint->transport->send(endpoint, &asked->content));
}

static void end_request(ls_engine *engine, ls_message_request *asked) {
    ls_message_request **link = &engine->messages.requests;
    while (*link != asked) {
        link = &(*link)->next;
    }
    *link = asked->next;
    asked->next = engine->messages.spare;
    engine->messages.spare = asked;
}

ls_status ls_messages_end(ls_engine *engine, ls_message_request *asked, ls_status status) {
    if (status == LS_OK && asked->receipt != NULL) {
        status = ls_match_end(&engine->messages.match, asked->receipt);
    }
    end_request(engine, asked);
    return status;
}

static ls_status post(ls_engine *engine, ls_message_request *asked, bool *ended) {
    bool moved = false;
    const bool sends = ls_call_sends(&asked->call);
    LS_TRY(listen_to_all(engine));
    LS_TRY(sends ? begin_send(engine, asked) : LS_OK);
    if (!sends) {
        LS_TRY(ls_match_receive(&engine->messages.match, &asked->call, &asked->receipt));
        *ended = asked->receipt == NULL;
        ls_messages_name_sender(asked);
        const bool begins = engine->messages.held != NULL && !*ended && asked->call.root != LS_ANY_RANK;
        LS_TRY(begins ? begin_wanted(engine, asked->call.root) : LS_OK);
        LS_TRY(engine->messages.held != NULL && *ended ? begin_kept(engine) : LS_OK);
    }
    if (*ended) {
        return LS_OK;
    }
    *ended = ls_messages_has_ended(asked);
    if (!*ended) {
        LS_TRY(
            ls_engine_name_failure(&asked->call, engine->endpoint->transport->progress(engine->endpoint, 0, &moved)));
        LS_TRY(ls_messages_move(engine, &moved));
        *ended = ls_messages_has_ended(asked);
    }
    return LS_OK;
}

ls_status ls_messages_send_self(ls_engine *engine, const ls_call *call) {
    return ls_match_send_self(&engine->messages.match, engine->rank, call);
}

ls_status ls_messages_post(ls_engine *engine, const ls_call *call, ls_message_request **asked, bool *ended) {
    *asked = make_request(engine, call);
    if (*asked == NULL) {
        ls_failure_blame(engine, engine->rank);
        return ls_fail_memory("ls_comm_send", sizeof **asked);
    }
    return post(engine, *asked, ended);
}

/* ---- opening, withdrawing, closing ------------------------------------------------------------------------------- */

bool ls_messages_open(ls_engine *engine) {
    const size_t size = (size_t)engine->size;
    engine->messages.kept_most = LS_ENGINE_KEPT;
    engine->messages.taken = ls_allocate_zeroed(size, sizeof *engine->messages.taken);
    engine->messages.left = ls_allocate_zeroed(size, 1);
    return engine->messages.taken != NULL && engine->messages.left != NULL;
}

void ls_messages_limit(ls_engine *engine, size_t bytes) {
    engine->messages.kept_most = bytes;
}

static void withdraw(ls_engine *engine, ls_transfer *transfer) {
    if (!transfer->ended) {
        engine->endpoint->transport->withdraw(engine->endpoint, transfer);
        transfer->ended = true;
    }
}

void ls_engine_withdraw_contents(void *state) {
    ls_engine *engine = state;
    for (ls_message_request *asked = engine->messages.requests; asked != NULL; asked = asked->next) {
        if (asked->receipt == NULL && asked->began) {
            withdraw(engine, &asked->content);
        }
    }
    for (ls_message_arrival *arrival = engine->messages.arrivals; arrival != NULL; arrival = arrival->next) {
        withdraw(engine, &arrival->content);
    }
}

void ls_messages_withdraw(ls_engine *engine) {
    for (ls_message_request *asked = engine->messages.requests; asked != NULL; asked = asked->next) {
        if (asked->receipt == NULL && asked->began) {
            withdraw(engine, &asked->envelope);
        }
    }
    ls_engine_withdraw_contents(engine);
}

bool ls_messages_are_unsent(const ls_engine *engine) {
    for (const ls_message_request *asked = engine->messages.requests; asked != NULL; asked = asked->next) {
        if (asked->receipt == NULL && asked->began && !ls_messages_has_ended(asked) &&
            engine->endpoint->transport->peer(engine->endpoint, asked->call.root) != LS_PEER_GONE) {
            return true;
        }
    }
    return false;
}

static void free_arrivals(ls_message_arrival *list) {
    while (list != NULL) {
        ls_message_arrival *next = list->next;
        ls_free(list->refused);
        ls_free(list);
        list = next;
    }
}

static void free_requests(ls_message_request *list) {
    while (list != NULL) {
        ls_message_request *next = list->next;
        ls_free(list);
        list = next;
    }
}

void ls_messages_free(ls_engine *engine) {
    free_requests(engine->messages.requests);
    free_requests(engine->messages.spare);
    free_arrivals(engine->messages.arrivals);
    free_arrivals(engine->messages.held);
    ls_free(engine->messages.message_memory);
    ls_free(engine->messages.taken);
    ls_free(engine->messages.left);
    ls_match_free(&engine->messages.match);
}
