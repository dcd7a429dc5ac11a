#include "tests/simulated/driver.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tests/simulated/state.h"

/* How many of the ranks that are not done are described. */
enum { DESCRIBED = 4 };

static int count_unfinished(const sim_network *network, const bool *done) {
    int count = 0;
    for (int rank = 0; rank < network->options.ranks; rank++) {
        count += !done[rank] && sim_is_alive(network, rank);
    }
    return count;
}

static void describe(const sim_network *network, const bool *done, bool late, sim_outcome *outcome) {
    const int wrote = snprintf(outcome->text, sizeof outcome->text, "%d of %d ranks are not done %s%" PRIu64 " ns",
                               outcome->unfinished, network->options.ranks,
                               late ? "by the limit: at " : "and nothing can happen any more, at ", sim_now(network));
    size_t used = (size_t)wrote;
    for (int rank = 0, described = 0; rank < network->options.ranks && described < DESCRIBED; rank++) {
        if (!done[rank] && sim_is_alive(network, rank)) {
            char text[200];
            sim_describe(network, rank, text, sizeof text);
            used += (size_t)snprintf(outcome->text + used, sizeof outcome->text - used, "; %s", text);
            described++;
        }
    }
}

sim_outcome sim_run(sim_network *network, sim_step *step, void *states, size_t size, uint64_t limit_ns) {
    sim_outcome outcome = {0};
    bool *done = sim_allocate((size_t)network->options.ranks, sizeof *done);
    bool late = false;
    outcome.unfinished = count_unfinished(network, done);
    while (outcome.unfinished > 0) {
        const int rank = sim_next(network);
        late = rank >= 0 && limit_ns > 0 && sim_now(network) > limit_ns;
        if (rank < 0 || late) {
            outcome.unfinished = count_unfinished(network, done);
            break;
        }
        if (done[rank]) {
            continue;
        }
        done[rank] = step((char *)states + (size_t)rank * size, rank);
        if (sim_time_of(network, rank) > outcome.ended_ns) {
            outcome.ended_ns = sim_time_of(network, rank);
        }
        if (done[rank]) {
            outcome.unfinished = count_unfinished(network, done);
        }
    }
    outcome.finished = outcome.unfinished == 0;
    if (!outcome.finished) {
        describe(network, done, late, &outcome);
    }
    free(done);
    return outcome;
}
