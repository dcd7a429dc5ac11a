#include "tests/simulated/faults.h"

#include <stdio.h>
#include <string.h>

#include "comm/transport/simulated/state.h"
#include "tests/simulated/calls.h"
#include "tests/support/unit.h"

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void end_after(ls_sim_network *network, int rank, uint64_t packets, bool silent) {
    ls_sim_rank *one = &network->ranks[rank];
    one->most_packets = packets;
    one->most_silent = silent;
    if (one->packets >= packets) {
        ls_sim_end_at(network, rank, 0, silent);
    }
}

void sim_kill(ls_sim_network *network, int rank, uint64_t at_ns) {
    ls_sim_end_at(network, rank, at_ns, false);
}

void sim_stop(ls_sim_network *network, int rank, uint64_t at_ns) {
    ls_sim_end_at(network, rank, at_ns, true);
}

void sim_kill_after(ls_sim_network *network, int rank, uint64_t packets) {
    end_after(network, rank, packets, false);
}

void sim_stop_after(ls_sim_network *network, int rank, uint64_t packets) {
    end_after(network, rank, packets, true);
}

void sim_cut(ls_sim_network *network, int a, int b, uint64_t at_ns, bool noticed) {
    at_ns = most(at_ns, network->now_ns);
    ls_sim_link *const ends[] = {ls_sim_link_of(network, a, b), ls_sim_link_of(network, b, a)};
    for (int i = 0; i < 2; i++) {
        ends[i]->cut_ns = least(ends[i]->cut_ns, at_ns);
        if (noticed) {
            ends[i]->lost_ns = least(ends[i]->lost_ns, at_ns);
        }
    }
    ls_sim_queue_add(&network->queue, (ls_sim_event){.at_ns = at_ns, .kind = LS_SIM_CUT, .rank = a, .peer = b});
}

void sim_pause(ls_sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns) {
    network->ranks[rank].pause = (ls_sim_span){.from_ns = most(from_ns, network->now_ns), .until_ns = until_ns};
}

void sim_slow(ls_sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns, uint64_t late_ns) {
    network->ranks[rank].slow = (ls_sim_span){.from_ns = from_ns, .until_ns = until_ns};
    network->ranks[rank].late_ns = late_ns;
}

int sim_kill_one(ls_sim_network *network, uint64_t seed, uint64_t most_packets) {
    uint64_t random = ~seed;
    const int victim = (int)call_draw(&random, (uint64_t)network->options.ranks);
    sim_kill_after(network, victim, call_draw(&random, most_packets));
    return victim;
}

void sim_note_failure(sim_result *result, ls_status status) {
    result->over = true;
    result->status = status;
    snprintf(result->text, sizeof result->text, "%s", ls_error_message());
}

void sim_expect_blame(const sim_result *result, uint64_t seed, int rank, int victim) {
    char name[32];
    snprintf(name, sizeof name, "rank %d ", victim);
    if (result->status != LS_ERR_PEER || strstr(result->text, name) == NULL) {
        fail_msg("seed %llu: rank %d dies, but rank %d says: %s", (unsigned long long)seed, victim, rank, result->text);
    }
}
