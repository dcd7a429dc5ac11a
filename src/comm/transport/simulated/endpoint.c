#include "comm/transport/simulated/state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"

static ls_sim_rank *rank_of(ls_endpoint *endpoint) {
    return (ls_sim_rank *)endpoint;
}

static const ls_sim_rank *const_rank_of(const ls_endpoint *endpoint) {
    return (const ls_sim_rank *)endpoint;
}

/* ---- transfers in progress --------------------------------------------------------------------------------------- */

ls_transfer *ls_sim_list_find(const ls_sim_list *list, uint64_t number) {
    ls_transfer *transfer = list->first;
    while (transfer != NULL && transfer->number != number) {
        transfer = transfer->next;
    }
    return transfer;
}

static void list_add(ls_sim_list *list, ls_transfer *transfer) {
    transfer->next = NULL;
    if (list->first == NULL) {
        list->end = &list->first;
    }
    *list->end = transfer;
    list->end = &transfer->next;
}

/* Returns false if the transfer is not in the list. */
static bool list_remove(ls_sim_list *list, const ls_transfer *transfer) {
    for (ls_transfer **link = &list->first; *link != NULL; link = &(*link)->next) {
        if (*link == transfer) {
            *link = transfer->next;
            list->end = transfer->next == NULL ? link : list->end;
            return true;
        }
    }
    return false;
}

static bool is_among(const ls_transfer *list, const ls_transfer *transfer) {
    while (list != NULL && list != transfer) {
        list = list->next;
    }
    return list != NULL;
}

static void ends(ls_sim_rank *rank, ls_transfer *transfer) {
    transfer->next = NULL;
    transfer->ended = true;
    rank->changed = true;
}

void ls_sim_fails(ls_sim_rank *rank, ls_status status, const char *format, ...) {
    if (rank->failure != LS_OK) {
        return;
    }
    rank->failure = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rank->message, sizeof rank->message, format, arguments);
    va_end(arguments);
}

/* Called first by every function: advances the rank's processor to the network's clock. */
static void wake(ls_sim_rank *rank) {
    const uint64_t now_ns = rank->network->now_ns;
    rank->busy_ns = rank->busy_ns > now_ns ? rank->busy_ns : now_ns;
}

/* With more ranks, the search for a transfer in the lists would take half of the time of a simulation. */
enum { MOST_RANKS_SEARCHED = 100 };

static bool is_in_use(const ls_sim_rank *rank, const ls_transfer *transfer) {
    return is_among(rank->outgoing.first, transfer) || is_among(rank->incoming.first, transfer) ||
           is_among(rank->arrivals.receives, transfer);
}

static ls_status check(const ls_sim_rank *rank, const ls_transfer *transfer, bool any) {
    const ls_endpoint *endpoint = &rank->endpoint;
    const int peer = transfer->peer;
    if (!(any && peer == -1) && (peer < 0 || peer >= endpoint->size || peer == endpoint->rank)) {
        return ls_fail(LS_ERR_INTERNAL, "rank %d of %d has no peer %d", endpoint->rank, endpoint->size, peer);
    }
    if (transfer->channel < 0 || transfer->channel >= LS_TRANSPORT_CHANNELS) {
        return ls_fail(LS_ERR_INTERNAL, "there is no channel %d", transfer->channel);
    }
    if (endpoint->size <= MOST_RANKS_SEARCHED && is_in_use(rank, transfer)) {
        return ls_fail(LS_ERR_INTERNAL, "rank %d reuses a transfer with rank %d on channel %d before it has completed",
                       endpoint->rank, peer, transfer->channel);
    }
    return LS_OK;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static void post(ls_sim_network *network, ls_sim_packet *packet, uint64_t at_ns) {
    ls_sim_queue_add(&network->queue,
                     (ls_sim_event){.at_ns = at_ns, .kind = LS_SIM_PACKET, .rank = packet->to, .packet = packet});
}

/* Returns a packet's time of arrival. Messages on a channel keep their order. Requests for content, and content, may
 * overtake other packets. */
static uint64_t arrival(ls_sim_network *network, const ls_sim_packet *packet) {
    ls_sim_link *link = ls_sim_link_of(network, packet->from, packet->to);
    uint64_t at_ns =
        packet->left_ns + network->options.latency_ns + ls_sim_draw(network, network->options.most_delay_ns + 1);
    if (packet->kind == LS_SIM_WHOLE || packet->kind == LS_SIM_ANNOUNCE) {
        uint64_t *last_ns = &link->last_ns[packet->channel];
        at_ns = at_ns > *last_ns ? at_ns : *last_ns;
        *last_ns = at_ns;
    }
    link->latest_ns = at_ns > link->latest_ns ? at_ns : link->latest_ns;
    return at_ns;
}

/* Sends a packet with `carried` bytes of data. If `transfer` is not NULL, the transfer ends when the packet
 * has left. */
static void transmit(ls_sim_rank *rank, const ls_sim_packet *head, const void *data, size_t carried,
                     ls_transfer *transfer) {
    ls_sim_network *network = rank->network;
    const ls_sim_options *options = &network->options;
    rank->busy_ns += options->overhead_ns;
    if (!ls_sim_runs(rank)) {
        return;
    }
    const bool hollow = options->most_content != 0 && carried > options->most_content;
    const size_t copied = hollow ? 0 : carried;
    ls_sim_packet *packet = ls_sim_allocate(network, sizeof *packet + copied);
    if (packet == NULL) {
        return;
    }
    *packet = *head;
    packet->from = rank->endpoint.rank;
    packet->hollow = hollow;
    if (copied > 0) {
        memcpy(packet->data, data, copied);
    }
    packet->left_ns = rank->busy_ns;
    const uint64_t takes_ns = ls_sim_link_ns(network, packet);
    if (takes_ns > 0) {
        rank->link_ns = (rank->link_ns > rank->busy_ns ? rank->link_ns : rank->busy_ns) + takes_ns;
        packet->left_ns = rank->link_ns;
    }
    if (transfer != NULL && packet->left_ns <= rank->busy_ns) {
        list_remove(&rank->outgoing, transfer);
        ends(rank, transfer);
    } else if (transfer != NULL) { /* added before the packet, whose content is compared when this event occurs */
        ls_sim_packet *left = ls_sim_allocate(network, sizeof *left);
        if (left == NULL) {
            ls_free(packet);
            return;
        }
        *left = *packet;
        left->kind = LS_SIM_LEFT;
        left->to = packet->from;
        left->packet = packet;
        post(network, left, packet->left_ns);
    }
    const uint64_t at_ns = arrival(network, packet);
    post(network, packet, options->both_links ? at_ns - takes_ns : at_ns);
    ls_sim_count_packet(rank);
}

/* Announces a message, or sends its data. */
static void transmit_message(ls_sim_rank *rank, ls_sim_packet_kind kind, ls_transfer *transfer) {
    const ls_sim_packet head = {.kind = kind,
                                .to = transfer->peer,
                                .channel = transfer->channel,
                                .number = transfer->number,
                                .bytes = transfer->bytes};
    if (kind == LS_SIM_ANNOUNCE) {
        transmit(rank, &head, NULL, 0, NULL);
    } else {
        transmit(rank, &head, transfer->data, transfer->bytes, transfer);
    }
}

static ls_status begin_send(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_sim_rank *rank = rank_of(endpoint);
    ls_sim_network *network = rank->network;
    LS_TRY(check(rank, transfer, false));
    transfer->ended = false;
    transfer->receives = false;
    transfer->moved = 0;
    transfer->number = ++network->messages;
    wake(rank);
    if (!ls_sim_runs(rank)) {
        return LS_OK;
    }
    list_add(&rank->outgoing, transfer);
    if (ls_sim_link_of(network, endpoint->rank, transfer->peer)->gone) {
        return LS_OK;
    }
    ls_sim_reach(network, endpoint->rank, transfer->peer);
    endpoint->messages++;
    endpoint->bytes += transfer->bytes;
    if (network->ranks[transfer->peer].machine != rank->machine) {
        rank->outside.messages++;
        rank->outside.sent += transfer->bytes;
        network->ranks[transfer->peer].outside.received += transfer->bytes;
    }
    transmit_message(rank, transfer->bytes <= endpoint->eager ? LS_SIM_WHOLE : LS_SIM_ANNOUNCE, transfer);
    return LS_OK;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

/* Returns true if the message fits the receive. Otherwise, the next `progress` fails. */
static bool fits(ls_sim_rank *rank, const ls_transfer *receive, int from, size_t bytes) {
    if (bytes > receive->bytes) {
        rank->endpoint.blamed = 1 + from;
        ls_sim_fails(rank, LS_ERR_PEER, "rank %d sent %zu bytes on channel %d, where rank %d expected %zu at most",
                     from, bytes, receive->channel, rank->endpoint.rank, receive->bytes);
        return false;
    }
    if (receive->peer < 0 && bytes > LS_TRANSPORT_LEAST_EAGER) {
        ls_sim_fails(rank, LS_ERR_INTERNAL, "rank %d sent %zu bytes on channel %d, which receives from any rank", from,
                     bytes, receive->channel);
        return false;
    }
    return true;
}

/* Completes a receive. `data` is NULL if the packet has no content. */
static void take(ls_sim_rank *rank, ls_transfer *receive, int from, const void *data, size_t bytes) {
    if (bytes > 0 && data != NULL) {
        memcpy(receive->data, data, bytes);
    }
    receive->peer = from;
    receive->bytes = bytes;
    ends(rank, receive);
}

/* Requests the content of an announced message. */
static void ask(ls_sim_rank *rank, ls_transfer *receive, int from, uint64_t number) {
    receive->number = number;
    list_add(&rank->incoming, receive);
    const ls_sim_packet head = {.kind = LS_SIM_CLEAR, .to = from, .channel = receive->channel, .number = number};
    transmit(rank, &head, NULL, 0, NULL);
}

static ls_status begin_receive(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_sim_rank *rank = rank_of(endpoint);
    LS_TRY(check(rank, transfer, true));
    const int channel = transfer->channel;
    if (transfer->peer < 0 ? rank->named[channel] : rank->any[channel]) {
        return ls_fail(LS_ERR_INTERNAL,
                       "channel %d of rank %d has both a receive from any rank and a receive from a given rank",
                       channel, endpoint->rank);
    }
    (transfer->peer < 0 ? rank->any : rank->named)[channel] = true;
    transfer->ended = false;
    transfer->receives = true;
    transfer->moved = 0;
    wake(rank);
    if (!ls_sim_runs(rank)) {
        return LS_OK;
    }
    if (transfer->peer >= 0) {
        ls_sim_reach(rank->network, endpoint->rank, transfer->peer);
    }
    ls_early *early = ls_arrivals_post(&rank->arrivals, transfer);
    if (early == NULL) {
        return LS_OK;
    }
    if (!fits(rank, transfer, early->from, early->bytes)) {
        return LS_OK; /* the next `progress` returns the error */
    }
    if (early->remote) {
        ask(rank, transfer, early->from, early->number);
    } else {
        take(rank, transfer, early->from, early->data, early->bytes);
    }
    ls_arrivals_drop(&rank->arrivals, early);
    return LS_OK;
}

static ls_status take_message(ls_sim_rank *rank, const ls_sim_packet *packet) {
    const bool remote = packet->kind == LS_SIM_ANNOUNCE;
    ls_transfer *receive = ls_arrivals_claim(&rank->arrivals, packet->from, packet->channel);
    if (receive == NULL) {
        ls_early *early = ls_arrivals_keep(&rank->arrivals, packet->from, packet->channel, packet->bytes, remote);
        if (early == NULL) {
            return ls_fail_memory("a message of the simulated network", packet->bytes);
        }
        early->number = packet->number;
        early->whole = !remote;
        if (!remote && !packet->hollow && packet->bytes > 0) {
            memcpy(early->data, packet->data, packet->bytes);
        }
    } else if (fits(rank, receive, packet->from, packet->bytes)) {
        if (remote) {
            ask(rank, receive, packet->from, packet->number);
        } else {
            take(rank, receive, packet->from, packet->hollow ? NULL : packet->data, packet->bytes);
        }
    }
    return LS_OK;
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static ls_status take_in(ls_sim_rank *rank, const ls_sim_packet *packet) {
    ls_transfer *transfer = NULL;
    switch (packet->kind) {
    case LS_SIM_WHOLE:
    case LS_SIM_ANNOUNCE:
        return take_message(rank, packet);
    case LS_SIM_CLEAR:
        transfer = ls_sim_list_find(&rank->outgoing, packet->number);
        if (transfer != NULL) {
            transmit_message(rank, LS_SIM_CONTENT, transfer);
        }
        break;
    case LS_SIM_CONTENT:
        transfer = ls_sim_list_find(&rank->incoming, packet->number);
        if (transfer != NULL) {
            list_remove(&rank->incoming, transfer);
            take(rank, transfer, packet->from, packet->hollow ? NULL : packet->data, packet->bytes);
        }
        break;
    case LS_SIM_LEFT:
        transfer = ls_sim_list_find(&rank->outgoing, packet->number);
        if (transfer != NULL) {
            list_remove(&rank->outgoing, transfer);
            ends(rank, transfer);
        }
        break;
    case LS_SIM_GONE: {
        ls_sim_link *link = ls_sim_link_of(rank->network, rank->endpoint.rank, packet->from);
        rank->endpoint.gone += !link->gone;
        link->gone = true;
    }
        rank->changed = true;
        break;
    }
    return LS_OK;
}

static ls_status progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    ls_sim_rank *rank = rank_of(endpoint);
    wake(rank);
    ls_status status = LS_OK;
    while (status == LS_OK && rank->inbox != NULL && ls_sim_runs(rank)) {
        ls_sim_packet *packet = rank->inbox;
        rank->inbox = packet->next;
        rank->inbox_end = rank->inbox == NULL ? &rank->inbox : rank->inbox_end;
        const bool counts = packet->kind != LS_SIM_LEFT && packet->kind != LS_SIM_GONE;
        rank->busy_ns += counts ? rank->network->options.overhead_ns : 0;
        if (ls_sim_runs(rank)) {
            status = take_in(rank, packet);
        }
        if (counts) {
            ls_sim_count_packet(rank);
        }
        ls_free(packet);
    }
    *moved = rank->changed;
    rank->changed = false;
    if (wait_ns > 0) {
        ls_sim_wait(rank->network, endpoint->rank, wait_ns);
    }
    if (status == LS_OK && rank->failure != LS_OK) {
        status = ls_fail(rank->failure, "%s", rank->message);
        rank->failure = LS_OK;
    }
    return status;
}

static ls_peer_state peer(const ls_endpoint *endpoint, int number) {
    const ls_sim_network *network = const_rank_of(endpoint)->network;
    const ls_sim_link *link = network->links[(size_t)endpoint->rank * (size_t)endpoint->size + (size_t)number];
    return link == NULL ? LS_PEER_UNKNOWN : link->gone ? LS_PEER_GONE : LS_PEER_REACHED;
}

static uint64_t now_ns(const ls_endpoint *endpoint) {
    const ls_sim_rank *rank = const_rank_of(endpoint);
    const uint64_t at_ns = rank->network->now_ns;
    return ls_sim_own_ns(rank, at_ns > rank->busy_ns ? at_ns : rank->busy_ns);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_sim_rank *rank = rank_of(endpoint);
    if (!list_remove(&rank->outgoing, transfer) && !list_remove(&rank->incoming, transfer)) {
        ls_arrivals_withdraw(&rank->arrivals, transfer);
    }
}

static void close_endpoint(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release, void *owner) {
    ls_sim_rank *rank = rank_of(endpoint);
    if (!rank->closed) {
        wake(rank);
        if (ls_sim_runs(rank)) {
            rank->sends_until_ns = ls_sim_later(rank->busy_ns, linger_ns);
            ls_sim_closes(rank, rank->busy_ns);
        }
        rank->closed = true;
        rank->outgoing = (ls_sim_list){0};
        rank->incoming = (ls_sim_list){0};
        ls_arrivals_free(&rank->arrivals);
    }
    if (release != NULL) {
        release(owner);
    }
}

const ls_transport ls_sim_transport = {
    .name = "simulated",
    .send = begin_send,
    .receive = begin_receive,
    .withdraw = withdraw,
    .progress = progress,
    .peer = peer,
    .now_ns = now_ns,
    .close = close_endpoint,
};

/* ---- what a rank is waiting for ---------------------------------------------------------------------------------- */

typedef struct ls_sim_text {
    char *text;
    size_t room;
    size_t used;
} ls_sim_text;

static void LS_PRINTF(2, 3) append(ls_sim_text *text, const char *format, ...) {
    if (text->used + 1 >= text->room) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    const int wrote = vsnprintf(text->text + text->used, text->room - text->used, format, arguments);
    va_end(arguments);
    text->used += wrote > 0 ? (size_t)wrote : 0;
}

static void append_all(ls_sim_text *text, const ls_transfer *transfers, const char *does) {
    for (const ls_transfer *transfer = transfers; transfer != NULL; transfer = transfer->next) {
        append(text, ", %s ", does);
        if (transfer->peer < 0) {
            append(text, "any rank");
        } else {
            append(text, "rank %d", transfer->peer);
        }
        append(text, " on channel %d (%zu bytes)", transfer->channel, transfer->bytes);
    }
}

void ls_sim_describe(const ls_sim_network *network, int rank, char *text, size_t room) {
    const ls_sim_rank *one = &network->ranks[rank];
    ls_sim_text all = {.text = text, .room = room};
    append(&all, "rank %d at %" PRIu64 " ns", rank, one->busy_ns);
    append_all(&all, one->arrivals.receives, "receives from");
    append_all(&all, one->incoming.first, "receives the content from");
    append_all(&all, one->outgoing.first, "sends to");
}
