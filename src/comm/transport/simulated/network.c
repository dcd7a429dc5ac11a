#include "comm/transport/simulated/state.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/status.h"

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ---- memory and random numbers ----------------------------------------------------------------------------------- */

void *ls_sim_allocate(ls_sim_network *network, size_t size) {
    void *memory = ls_allocate_zeroed(1, size);
    network->no_memory = network->no_memory || memory == NULL;
    return memory;
}

uint64_t ls_sim_draw(ls_sim_network *network, uint64_t bound) {
    return bound < 2 ? 0 : ls_random_below(network->options.seed, 0, network->draws++, bound);
}

/* ---- a network --------------------------------------------------------------------------------------------------- */

static void begin_rank(ls_sim_network *network, int number) {
    ls_sim_rank *rank = &network->ranks[number];
    const ls_sim_options *options = &network->options;
    *rank = (ls_sim_rank){
        .endpoint = {.transport = &ls_sim_transport, .rank = number, .size = options->ranks, .eager = options->eager},
        .network = network,
        .machine = (uint64_t)(options->machine_ranks > 0 ? number / options->machine_ranks : 0),
        .deadline_ns = LS_SIM_NEVER,
        .timer_ns = LS_SIM_NEVER,
        .most_packets = LS_SIM_NEVER,
        .dies_ns = LS_SIM_NEVER,
        .sends_until_ns = LS_SIM_NEVER,
    };
    rank->inbox_end = &rank->inbox;
    ls_sim_call(rank, options->most_start_ns == 0 ? 0 : ls_sim_draw(network, options->most_start_ns + 1));
}

ls_sim_network *ls_sim_new(const ls_sim_options *options) {
    const size_t ranks = (size_t)options->ranks;
    ls_sim_network *network = ls_allocate_zeroed(1, sizeof *network);
    if (network != NULL) {
        network->options = *options;
        network->ranks = ls_allocate_zeroed(ranks, sizeof *network->ranks);
        network->links = ls_allocate_zeroed(ranks * ranks, sizeof(ls_sim_link *));
    }
    if (network == NULL || network->ranks == NULL || network->links == NULL) {
        ls_sim_free(network);
        (void)ls_fail_memory("a simulated network", ranks * ranks * sizeof(ls_sim_link *));
        return NULL;
    }
    if (options->eager < LS_TRANSPORT_LEAST_EAGER) {
        network->options.eager = LS_TRANSPORT_LEAST_EAGER;
    }
    network->trace = LS_HASH_START;
    for (int rank = 0; rank < options->ranks; rank++) {
        begin_rank(network, rank);
    }
    const ls_place place = ls_place_find(&network->ranks[0].machine, sizeof *network->ranks, options->ranks);
    for (int rank = 0; rank < options->ranks && options->machine_ranks > 0; rank++) {
        network->ranks[rank].endpoint.place = place;
    }
    return network;
}

void ls_sim_free(ls_sim_network *network) {
    if (network == NULL) {
        return;
    }
    for (ls_sim_event event; ls_sim_queue_take(&network->queue, &event);) {
        ls_free(event.packet);
    }
    ls_free(network->queue.events);
    const size_t ranks = (size_t)network->options.ranks;
    for (size_t i = 0; i < ranks && network->ranks != NULL; i++) {
        ls_sim_rank *rank = &network->ranks[i];
        while (rank->inbox != NULL) {
            ls_sim_packet *packet = rank->inbox;
            rank->inbox = packet->next;
            ls_free(packet);
        }
        ls_arrivals_free(&rank->arrivals);
    }
    for (size_t i = 0; i < ranks * ranks && network->links != NULL; i++) {
        ls_free(network->links[i]);
    }
    ls_free(network->links);
    ls_free(network->ranks);
    ls_free(network);
}

ls_endpoint *ls_sim_endpoint(ls_sim_network *network, int rank) {
    return &network->ranks[rank].endpoint;
}

uint64_t ls_sim_now(const ls_sim_network *network) {
    return network->now_ns;
}

uint64_t ls_sim_time_of(const ls_sim_network *network, int rank) {
    return network->ranks[rank].busy_ns;
}

uint64_t ls_sim_trace(const ls_sim_network *network) {
    return network->trace;
}

bool ls_sim_has_memory(const ls_sim_network *network) {
    return !network->no_memory && !network->queue.no_memory;
}

ls_sim_outside ls_sim_count_outside(const ls_sim_network *network, int rank) {
    return network->ranks[rank].outside;
}

uint64_t ls_sim_events(const ls_sim_network *network) {
    return network->events;
}

bool ls_sim_is_alive(const ls_sim_network *network, int rank) {
    const ls_sim_rank *one = &network->ranks[rank];
    return most(one->busy_ns, network->now_ns) < one->dies_ns;
}

uint64_t ls_sim_link_ns(const ls_sim_network *network, const ls_sim_packet *packet) {
    const bool carries = packet->kind == LS_SIM_WHOLE || packet->kind == LS_SIM_CONTENT;
    const double rate = network->options.bytes_per_ns;
    return carries && rate > 0 ? (uint64_t)((double)packet->bytes / rate) : 0;
}

bool ls_sim_runs(const ls_sim_rank *rank) {
    return !rank->closed && ls_sim_is_alive(rank->network, rank->endpoint.rank);
}

ls_sim_link *ls_sim_link_of(ls_sim_network *network, int rank, int peer) {
    ls_sim_link **link = &network->links[(size_t)rank * (size_t)network->options.ranks + (size_t)peer];
    if (*link == NULL) {
        *link = ls_sim_allocate(network, sizeof **link);
        if (*link == NULL) {
            network->spare = (ls_sim_link){.cut_ns = LS_SIM_NEVER, .lost_ns = LS_SIM_NEVER};
            return &network->spare;
        }
        (*link)->cut_ns = LS_SIM_NEVER;
        (*link)->lost_ns = LS_SIM_NEVER;
    }
    return *link;
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* Notifies `rank` of the exit of `peer`, if `peer` has exited or the connection is lost. The notification arrives
 * after the last packet from `peer`. */
static void notice(ls_sim_network *network, int rank, int peer) {
    ls_sim_link *link = ls_sim_link_of(network, rank, peer);
    if (link->told || (!network->ranks[peer].gone && link->lost_ns > network->now_ns)) {
        return;
    }
    link->told = true;
    const ls_sim_link *back = ls_sim_link_of(network, peer, rank);
    const uint64_t at_ns =
        network->now_ns + network->options.notice_ns + ls_sim_draw(network, network->options.most_delay_ns + 1);
    ls_sim_packet *packet = ls_sim_allocate(network, sizeof *packet);
    if (packet == NULL) {
        return;
    }
    *packet = (ls_sim_packet){.kind = LS_SIM_GONE, .from = peer, .to = rank};
    ls_sim_queue_add(&network->queue, (ls_sim_event){.at_ns = most(at_ns, least(back->latest_ns, back->cut_ns)),
                                                     .kind = LS_SIM_PACKET,
                                                     .rank = rank,
                                                     .packet = packet});
}

void ls_sim_reach(ls_sim_network *network, int rank, int peer) {
    ls_sim_link *link = ls_sim_link_of(network, rank, peer);
    if (!link->reached) {
        link->reached = true;
        notice(network, rank, peer);
    }
}

/* Loses some of the packets that a dead rank has in flight. Packets arrive only until a random time, which may be
 * after all of them have arrived. */
static void lose_some(ls_sim_network *network, ls_sim_link *link) {
    const uint64_t longest_ns = network->options.latency_ns + network->options.most_delay_ns;
    link->cut_ns = least(link->cut_ns, network->now_ns + ls_sim_draw(network, 2 * longest_ns + 1));
}

static void end_rank(ls_sim_network *network, int rank) {
    const int ranks = network->options.ranks;
    network->ranks[rank].gone = true;
    for (int peer = 0; peer < ranks; peer++) {
        ls_sim_link *link = network->links[(size_t)rank * (size_t)ranks + (size_t)peer];
        if (link != NULL && !network->ranks[rank].closed) {
            lose_some(network, link);
        }
        const ls_sim_link *back = network->links[(size_t)peer * (size_t)ranks + (size_t)rank];
        if (back != NULL && back->reached) {
            notice(network, peer, rank);
        }
    }
}

void ls_sim_end_at(ls_sim_network *network, int rank, uint64_t at_ns, bool silent) {
    ls_sim_rank *one = &network->ranks[rank];
    at_ns = most(at_ns, network->now_ns);
    one->dies_ns = least(one->dies_ns, at_ns);
    if (!silent) {
        ls_sim_queue_add(&network->queue, (ls_sim_event){.at_ns = at_ns, .kind = LS_SIM_END, .rank = rank});
    }
}

void ls_sim_count_packet(ls_sim_rank *rank) {
    if (++rank->packets == rank->most_packets) {
        ls_sim_end_at(rank->network, rank->endpoint.rank, rank->busy_ns, rank->most_silent);
    }
}

void ls_sim_closes(ls_sim_rank *rank, uint64_t at_ns) {
    ls_sim_queue_add(&rank->network->queue,
                     (ls_sim_event){.at_ns = at_ns, .kind = LS_SIM_END, .rank = rank->endpoint.rank});
}

static void lose_link(ls_sim_network *network, int rank, int peer) {
    if (ls_sim_link_of(network, rank, peer)->reached) {
        notice(network, rank, peer);
    }
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static bool within(ls_sim_span span, uint64_t at_ns) {
    return span.from_ns <= at_ns && at_ns < span.until_ns;
}

uint64_t ls_sim_own_ns(const ls_sim_rank *rank, uint64_t at_ns) {
    const ls_sim_span pause = rank->pause;
    return at_ns <= pause.from_ns ? at_ns : at_ns - (least(at_ns, pause.until_ns) - pause.from_ns);
}

/* Returns the network time at which the rank's clock shows `own_ns`. */
static uint64_t shows_at(const ls_sim_rank *rank, uint64_t own_ns) {
    const ls_sim_span pause = rank->pause;
    return own_ns <= pause.from_ns ? own_ns : ls_sim_later(own_ns, pause.until_ns - pause.from_ns);
}

void ls_sim_call(ls_sim_rank *rank, uint64_t at_ns) {
    if (rank->called) {
        return;
    }
    rank->called = true;
    at_ns = most(at_ns, rank->busy_ns);
    ls_sim_queue_add(&rank->network->queue,
                     (ls_sim_event){.at_ns = at_ns + (within(rank->slow, at_ns) ? rank->late_ns : 0),
                                    .kind = LS_SIM_TURN,
                                    .rank = rank->endpoint.rank});
}

/* Queues a timer for the end of the rank's wait. */
static void set_timer(ls_sim_rank *rank) {
    const uint64_t at_ns = shows_at(rank, rank->deadline_ns);
    if (at_ns < rank->timer_ns) { /* otherwise the earlier timer will set a new one */
        rank->timer_ns = at_ns;
        ls_sim_queue_add(&rank->network->queue,
                         (ls_sim_event){.at_ns = at_ns, .kind = LS_SIM_TIMER, .rank = rank->endpoint.rank});
    }
}

void ls_sim_wait(ls_sim_network *network, int rank, uint64_t wait_ns) {
    ls_sim_rank *one = &network->ranks[rank];
    if (ls_sim_runs(one)) {
        one->deadline_ns = ls_sim_later(ls_sim_own_ns(one, most(one->busy_ns, network->now_ns)), wait_ns);
        set_timer(one);
    }
}

static void timer(ls_sim_rank *rank, uint64_t at_ns) {
    if (at_ns != rank->timer_ns) {
        return;
    }
    rank->timer_ns = LS_SIM_NEVER;
    if (rank->deadline_ns == LS_SIM_NEVER) {
        return;
    }
    if (ls_sim_own_ns(rank, at_ns) >= rank->deadline_ns) {
        ls_sim_call(rank, at_ns);
    } else {
        set_timer(rank);
    }
}

/* Returns true if the rank has its turn now. If the rank is paused, postpones the turn to the end of the pause. */
static bool turn(ls_sim_rank *rank, uint64_t at_ns) {
    if (!ls_sim_runs(rank)) {
        return false;
    }
    if (within(rank->pause, at_ns)) {
        ls_sim_queue_add(
            &rank->network->queue,
            (ls_sim_event){.at_ns = rank->pause.until_ns, .kind = LS_SIM_TURN, .rank = rank->endpoint.rank});
        return false;
    }
    rank->called = false;
    rank->deadline_ns = LS_SIM_NEVER;
    rank->busy_ns = most(rank->busy_ns, at_ns);
    return true;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* Fails if the program has modified the memory of a send before its content has left. */
static void check_memory(ls_sim_rank *rank, const ls_sim_packet *packet) {
    const ls_transfer *transfer = ls_sim_list_find(&rank->outgoing, packet->number);
    const ls_sim_packet *sent = packet->packet;
    if (transfer != NULL && sent->bytes > 0 && !sent->hollow && memcmp(transfer->data, sent->data, sent->bytes) != 0) {
        ls_sim_fails(rank, LS_ERR_INTERNAL,
                     "the %zu bytes that rank %d sends to rank %d on channel %d were written to before they had left",
                     sent->bytes, sent->from, sent->to, sent->channel);
    }
}

/*
 * With options.both_links, call this when the first byte of the packet has reached the receiver's link. Postpones the
 * packet until the link has received all of it. A packet comes after the earlier packets of the link; the first packet
 * of a message also comes after the earlier messages of its channel. Returns true if the packet was postponed.
 */
static bool waits_for_link(ls_sim_network *network, ls_sim_packet *packet) {
    const bool starts = packet->kind == LS_SIM_WHOLE || packet->kind == LS_SIM_ANNOUNCE;
    if (!network->options.both_links || packet->waited || !(starts || packet->kind == LS_SIM_CONTENT)) {
        return false;
    }
    ls_sim_rank *to = &network->ranks[packet->to];
    uint64_t *whole_ns = &ls_sim_link_of(network, packet->from, packet->to)->whole_ns[packet->channel];
    const uint64_t takes_ns = ls_sim_link_ns(network, packet);
    uint64_t at_ns = network->now_ns;
    if (takes_ns > 0) {
        at_ns = to->taken_ns = most(at_ns, to->taken_ns) + takes_ns;
    }
    at_ns = starts ? most(at_ns, *whole_ns) : at_ns;
    *whole_ns = starts ? at_ns : *whole_ns;
    packet->waited = true;
    ls_sim_queue_add(&network->queue,
                     (ls_sim_event){.at_ns = at_ns, .kind = LS_SIM_PACKET, .rank = packet->to, .packet = packet});
    return true;
}

/* Adds the packet to its receiver's inbox. Returns false if the packet is lost. */
static bool arrive(ls_sim_network *network, ls_sim_packet *packet) {
    ls_sim_rank *to = &network->ranks[packet->to];
    if (!ls_sim_runs(to)) {
        return false;
    }
    if (packet->kind == LS_SIM_LEFT) {
        check_memory(to, packet);
    } else if (packet->kind != LS_SIM_GONE) {
        const ls_sim_rank *from = &network->ranks[packet->from];
        if (ls_sim_link_of(network, packet->from, packet->to)->cut_ns <= network->now_ns ||
            packet->left_ns > from->sends_until_ns) {
            return false;
        }
        ls_sim_reach(network, packet->to, packet->from);
    }
    packet->next = NULL;
    *to->inbox_end = packet;
    to->inbox_end = &packet->next;
    ls_sim_call(to, network->now_ns);
    return true;
}

static void record(ls_sim_network *network, const ls_sim_event *event) {
    static const char *const kinds[] = {"packet", "turn", "timer", "end", "cut"};
    static const char *const packets[] = {"whole", "announce", "clear", "content", "left", "gone"};
    network->events++;
    const ls_sim_packet *packet = event->packet;
    uint64_t words[8] = {event->at_ns, (uint64_t)event->kind, (uint64_t)event->rank, (uint64_t)event->peer};
    if (packet != NULL) {
        words[4] = (uint64_t)packet->kind;
        words[5] = (uint64_t)packet->from;
        words[6] = (uint64_t)packet->channel;
        words[7] = packet->bytes;
    }
    network->trace = ls_hash(network->trace, words, sizeof words);
    FILE *log = network->options.log;
    if (log == NULL) {
        return;
    }
    fprintf(log, "%12" PRIu64 " rank %4d %s", event->at_ns, event->rank, kinds[event->kind]);
    if (packet != NULL) {
        fprintf(log, " %s from %d channel %d bytes %zu message %" PRIu64, packets[packet->kind], packet->from,
                packet->channel, packet->bytes, packet->number);
    } else if (event->kind == LS_SIM_CUT) {
        fprintf(log, " from %d", event->peer);
    }
    fputc('\n', log);
}

/* Handles the event, and frees or passes on its packet. Returns true if the event's rank has its turn. */
static bool handle(ls_sim_network *network, const ls_sim_event *event) {
    ls_sim_rank *rank = &network->ranks[event->rank];
    record(network, event);
    switch (event->kind) {
    case LS_SIM_PACKET:
        if (!waits_for_link(network, event->packet) && !arrive(network, event->packet)) {
            ls_free(event->packet);
        }
        break;
    case LS_SIM_TURN:
        return turn(rank, event->at_ns);
    case LS_SIM_TIMER:
        timer(rank, event->at_ns);
        break;
    case LS_SIM_END:
        end_rank(network, event->rank);
        break;
    case LS_SIM_CUT:
        lose_link(network, event->rank, event->peer);
        lose_link(network, event->peer, event->rank);
        break;
    }
    return false;
}

/* Returns the network that has the earliest event, the first on a tie; NULL if no event is left. */
static ls_sim_network *find_earliest(ls_sim_network *const *networks, int count) {
    ls_sim_network *first = NULL;
    for (int i = 0; i < count; i++) {
        const ls_sim_queue *queue = &networks[i]->queue;
        const bool has_event = ls_sim_has_memory(networks[i]) && queue->count > 0;
        if (has_event && (first == NULL || queue->events[0].at_ns < first->queue.events[0].at_ns)) {
            first = networks[i];
        }
    }
    return first;
}

int ls_sim_next_of(ls_sim_network *const *networks, int count) {
    ls_sim_event event;
    for (ls_sim_network *first; (first = find_earliest(networks, count)) != NULL;) {
        (void)ls_sim_queue_take(&first->queue, &event);
        for (int i = 0; i < count; i++) {
            networks[i]->now_ns = event.at_ns;
        }
        if (handle(first, &event)) {
            return event.rank;
        }
    }
    return -1;
}

int ls_sim_next(ls_sim_network *network) {
    return ls_sim_next_of(&network, 1);
}
