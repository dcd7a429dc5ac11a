#include "tests/simulated/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/random.h"

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ---- memory and chance ------------------------------------------------------------------------------------------ */

static void *there(void *memory) {
    if (memory == NULL) {
        fputs("tests/simulated: out of memory\n", stderr);
        abort();
    }
    return memory;
}

void *sim_allocate(size_t count, size_t size) {
    return there(calloc(count, size));
}

void *sim_reallocate(void *memory, size_t size) {
    return there(realloc(memory, size));
}

uint64_t sim_draw(sim_network *network, uint64_t bound) {
    return bound < 2 ? 0 : ls_random_below(network->options.seed, 0, network->draws++, bound);
}

/* ---- a network --------------------------------------------------------------------------------------------------- */

static void begin_rank(sim_network *network, int number) {
    sim_rank *rank = &network->ranks[number];
    const sim_options *options = &network->options;
    *rank = (sim_rank){
        .endpoint = {.transport = &sim_transport, .rank = number, .size = options->ranks, .eager = options->eager},
        .network = network,
        .deadline_ns = SIM_NEVER,
        .timer_ns = SIM_NEVER,
        .most_packets = SIM_NEVER,
        .dies_ns = SIM_NEVER,
        .sends_until_ns = SIM_NEVER,
    };
    rank->inbox_end = &rank->inbox;
    sim_call(rank, options->most_start_ns == 0 ? 0 : sim_draw(network, options->most_start_ns + 1));
}

sim_network *sim_new(const sim_options *options) {
    sim_network *network = sim_allocate(1, sizeof *network);
    network->options = *options;
    if (options->eager < LS_TRANSPORT_LEAST_EAGER) {
        network->options.eager = LS_TRANSPORT_LEAST_EAGER;
    }
    network->trace = LS_HASH_START;
    const size_t ranks = (size_t)options->ranks;
    network->ranks = sim_allocate(ranks, sizeof *network->ranks);
    network->links = sim_allocate(ranks * ranks, sizeof(sim_link *));
    for (int rank = 0; rank < options->ranks; rank++) {
        begin_rank(network, rank);
    }
    return network;
}

void sim_free(sim_network *network) {
    if (network == NULL) {
        return;
    }
    for (sim_event event; sim_queue_take(&network->queue, &event);) {
        free(event.packet);
    }
    free(network->queue.events);
    const size_t ranks = (size_t)network->options.ranks;
    for (size_t i = 0; i < ranks; i++) {
        sim_rank *rank = &network->ranks[i];
        while (rank->inbox != NULL) {
            sim_packet *packet = rank->inbox;
            rank->inbox = packet->next;
            free(packet);
        }
        ls_arrivals_free(&rank->arrivals);
    }
    for (size_t i = 0; i < ranks * ranks; i++) {
        free(network->links[i]);
    }
    free(network->links);
    free(network->ranks);
    free(network);
}

ls_endpoint *sim_endpoint(sim_network *network, int rank) {
    return &network->ranks[rank].endpoint;
}

uint64_t sim_now(const sim_network *network) {
    return network->now_ns;
}

uint64_t sim_time_of(const sim_network *network, int rank) {
    return network->ranks[rank].busy_ns;
}

uint64_t sim_trace(const sim_network *network) {
    return network->trace;
}

uint64_t sim_events(const sim_network *network) {
    return network->events;
}

bool sim_is_alive(const sim_network *network, int rank) {
    const sim_rank *one = &network->ranks[rank];
    return most(one->busy_ns, network->now_ns) < one->dies_ns;
}

bool sim_runs(const sim_rank *rank) {
    return !rank->closed && sim_is_alive(rank->network, rank->endpoint.rank);
}

sim_link *sim_link_of(sim_network *network, int rank, int peer) {
    sim_link **link = &network->links[(size_t)rank * (size_t)network->options.ranks + (size_t)peer];
    if (*link == NULL) {
        *link = sim_allocate(1, sizeof **link);
        (*link)->cut_ns = SIM_NEVER;
        (*link)->lost_ns = SIM_NEVER;
    }
    return *link;
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* `rank` will know that `peer` is gone, if it is: after the last packet that arrives from it. */
static void notice(sim_network *network, int rank, int peer) {
    sim_link *link = sim_link_of(network, rank, peer);
    if (link->told || (!network->ranks[peer].gone && link->lost_ns > network->now_ns)) {
        return;
    }
    link->told = true;
    const sim_link *back = sim_link_of(network, peer, rank);
    const uint64_t at_ns =
        network->now_ns + network->options.notice_ns + sim_draw(network, network->options.most_delay_ns + 1);
    sim_packet *packet = sim_allocate(1, sizeof *packet);
    *packet = (sim_packet){.kind = SIM_GONE, .from = peer, .to = rank};
    sim_queue_add(&network->queue, (sim_event){.at_ns = most(at_ns, least(back->latest_ns, back->cut_ns)),
                                               .kind = SIM_PACKET,
                                               .rank = rank,
                                               .packet = packet});
}

void sim_reach(sim_network *network, int rank, int peer) {
    sim_link *link = sim_link_of(network, rank, peer);
    if (!link->reached) {
        link->reached = true;
        notice(network, rank, peer);
    }
}

/* What a dead rank had under way arrives up to a random moment: soon, or when all of it has arrived. */
static void lose_some(sim_network *network, sim_link *link) {
    const uint64_t longest_ns = network->options.latency_ns + network->options.most_delay_ns;
    link->cut_ns = least(link->cut_ns, network->now_ns + sim_draw(network, 2 * longest_ns + 1));
}

static void end_rank(sim_network *network, int rank) {
    const int ranks = network->options.ranks;
    network->ranks[rank].gone = true;
    for (int peer = 0; peer < ranks; peer++) {
        sim_link *link = network->links[(size_t)rank * (size_t)ranks + (size_t)peer];
        if (link != NULL && !network->ranks[rank].closed) {
            lose_some(network, link);
        }
        const sim_link *back = network->links[(size_t)peer * (size_t)ranks + (size_t)rank];
        if (back != NULL && back->reached) {
            notice(network, peer, rank);
        }
    }
}

static void end_at(sim_network *network, int rank, uint64_t at_ns, bool silent) {
    sim_rank *one = &network->ranks[rank];
    at_ns = most(at_ns, network->now_ns);
    one->dies_ns = least(one->dies_ns, at_ns);
    if (!silent) {
        sim_queue_add(&network->queue, (sim_event){.at_ns = at_ns, .kind = SIM_END, .rank = rank});
    }
}

static void end_after(sim_network *network, int rank, uint64_t packets, bool silent) {
    sim_rank *one = &network->ranks[rank];
    one->most_packets = packets;
    one->most_silent = silent;
    if (one->packets >= packets) {
        end_at(network, rank, 0, silent);
    }
}

void sim_kill(sim_network *network, int rank, uint64_t at_ns) {
    end_at(network, rank, at_ns, false);
}

void sim_stop(sim_network *network, int rank, uint64_t at_ns) {
    end_at(network, rank, at_ns, true);
}

void sim_kill_after(sim_network *network, int rank, uint64_t packets) {
    end_after(network, rank, packets, false);
}

void sim_stop_after(sim_network *network, int rank, uint64_t packets) {
    end_after(network, rank, packets, true);
}

void sim_count_packet(sim_rank *rank) {
    if (++rank->packets == rank->most_packets) {
        end_at(rank->network, rank->endpoint.rank, rank->busy_ns, rank->most_silent);
    }
}

void sim_closes(sim_rank *rank, uint64_t at_ns) {
    sim_queue_add(&rank->network->queue, (sim_event){.at_ns = at_ns, .kind = SIM_END, .rank = rank->endpoint.rank});
}

void sim_cut(sim_network *network, int a, int b, uint64_t at_ns, bool noticed) {
    at_ns = most(at_ns, network->now_ns);
    sim_link *const ends[] = {sim_link_of(network, a, b), sim_link_of(network, b, a)};
    for (int i = 0; i < 2; i++) {
        ends[i]->cut_ns = least(ends[i]->cut_ns, at_ns);
        if (noticed) {
            ends[i]->lost_ns = least(ends[i]->lost_ns, at_ns);
        }
    }
    sim_queue_add(&network->queue, (sim_event){.at_ns = at_ns, .kind = SIM_CUT, .rank = a, .peer = b});
}

static void lose_link(sim_network *network, int rank, int peer) {
    if (sim_link_of(network, rank, peer)->reached) {
        notice(network, rank, peer);
    }
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static bool within(sim_span span, uint64_t at_ns) {
    return span.from_ns <= at_ns && at_ns < span.until_ns;
}

uint64_t sim_own_ns(const sim_rank *rank, uint64_t at_ns) {
    const sim_span pause = rank->pause;
    return at_ns <= pause.from_ns ? at_ns : at_ns - (least(at_ns, pause.until_ns) - pause.from_ns);
}

/* At what time that clock shows this. */
static uint64_t shows_at(const sim_rank *rank, uint64_t own_ns) {
    const sim_span pause = rank->pause;
    return own_ns <= pause.from_ns ? own_ns : sim_later(own_ns, pause.until_ns - pause.from_ns);
}

void sim_pause(sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns) {
    network->ranks[rank].pause = (sim_span){.from_ns = most(from_ns, network->now_ns), .until_ns = until_ns};
}

void sim_slow(sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns, uint64_t late_ns) {
    network->ranks[rank].slow = (sim_span){.from_ns = from_ns, .until_ns = until_ns};
    network->ranks[rank].late_ns = late_ns;
}

void sim_call(sim_rank *rank, uint64_t at_ns) {
    if (rank->called) {
        return;
    }
    rank->called = true;
    at_ns = most(at_ns, rank->busy_ns);
    sim_queue_add(&rank->network->queue, (sim_event){.at_ns = at_ns + (within(rank->slow, at_ns) ? rank->late_ns : 0),
                                                     .kind = SIM_TURN,
                                                     .rank = rank->endpoint.rank});
}

/* Sees to a turn when the rank's wait is over. */
static void set_timer(sim_rank *rank) {
    const uint64_t at_ns = shows_at(rank, rank->deadline_ns);
    if (at_ns < rank->timer_ns) { /* otherwise that of the earlier time sets it again */
        rank->timer_ns = at_ns;
        sim_queue_add(&rank->network->queue,
                      (sim_event){.at_ns = at_ns, .kind = SIM_TIMER, .rank = rank->endpoint.rank});
    }
}

void sim_wait(sim_network *network, int rank, uint64_t wait_ns) {
    sim_rank *one = &network->ranks[rank];
    if (sim_runs(one)) {
        one->deadline_ns = sim_later(sim_own_ns(one, most(one->busy_ns, network->now_ns)), wait_ns);
        set_timer(one);
    }
}

static void timer(sim_rank *rank, uint64_t at_ns) {
    if (at_ns != rank->timer_ns) {
        return;
    }
    rank->timer_ns = SIM_NEVER;
    if (rank->deadline_ns == SIM_NEVER) {
        return;
    }
    if (sim_own_ns(rank, at_ns) >= rank->deadline_ns) {
        sim_call(rank, at_ns);
    } else {
        set_timer(rank);
    }
}

/* Whether the rank has its turn now. */
static bool turn(sim_rank *rank, uint64_t at_ns) {
    if (!sim_runs(rank)) {
        return false;
    }
    if (within(rank->pause, at_ns)) {
        sim_queue_add(&rank->network->queue,
                      (sim_event){.at_ns = rank->pause.until_ns, .kind = SIM_TURN, .rank = rank->endpoint.rank});
        return false;
    }
    rank->called = false;
    rank->deadline_ns = SIM_NEVER;
    rank->busy_ns = most(rank->busy_ns, at_ns);
    return true;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* A send's content has left: nobody may have written to it yet. */
static void check_memory(sim_rank *rank, const sim_packet *packet) {
    const ls_transfer *transfer = sim_list_find(&rank->outgoing, packet->number);
    const sim_packet *sent = packet->packet;
    if (transfer != NULL && sent->bytes > 0 && memcmp(transfer->data, sent->data, sent->bytes) != 0) {
        sim_fails(rank, LS_ERR_INTERNAL,
                  "the %zu bytes that rank %d sends to rank %d on channel %d were written to before they had left",
                  sent->bytes, sent->from, sent->to, sent->channel);
    }
}

/* Whether it comes to its receiver's inbox. */
static bool arrive(sim_network *network, sim_packet *packet) {
    sim_rank *to = &network->ranks[packet->to];
    if (!sim_runs(to)) {
        return false;
    }
    if (packet->kind == SIM_LEFT) {
        check_memory(to, packet);
    } else if (packet->kind != SIM_GONE) {
        const sim_rank *from = &network->ranks[packet->from];
        if (sim_link_of(network, packet->from, packet->to)->cut_ns <= network->now_ns ||
            packet->left_ns > from->sends_until_ns) {
            return false;
        }
        sim_reach(network, packet->to, packet->from);
    }
    packet->next = NULL;
    *to->inbox_end = packet;
    to->inbox_end = &packet->next;
    sim_call(to, network->now_ns);
    return true;
}

static void record(sim_network *network, const sim_event *event) {
    static const char *const kinds[] = {"packet", "turn", "timer", "end", "cut"};
    static const char *const packets[] = {"whole", "announce", "clear", "content", "left", "gone"};
    network->events++;
    const sim_packet *packet = event->packet;
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
    } else if (event->kind == SIM_CUT) {
        fprintf(log, " from %d", event->peer);
    }
    fputc('\n', log);
}

int sim_next(sim_network *network) {
    for (sim_event event; sim_queue_take(&network->queue, &event);) {
        sim_rank *rank = &network->ranks[event.rank];
        network->now_ns = event.at_ns;
        record(network, &event);
        switch (event.kind) {
        case SIM_PACKET:
            if (!arrive(network, event.packet)) {
                free(event.packet);
            }
            break;
        case SIM_TURN:
            if (turn(rank, event.at_ns)) {
                return event.rank;
            }
            break;
        case SIM_TIMER:
            timer(rank, event.at_ns);
            break;
        case SIM_END:
            end_rank(network, event.rank);
            break;
        case SIM_CUT:
            lose_link(network, event.rank, event.peer);
            lose_link(network, event.peer, event.rank);
            break;
        }
    }
    return -1;
}
