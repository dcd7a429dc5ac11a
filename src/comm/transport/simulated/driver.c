#include "comm/transport/simulated/driver.h"

#include <inttypes.h>

#include "base/memory.h"
#include "comm/transport/simulated/state.h"

/* The maximum number of unfinished ranks that the text describes. */
enum { DESCRIBED = 4 };

static int count_unfinished(const ls_sim_network *network, const bool *done) {
    int count = 0;
    for (int rank = 0; rank < network->options.ranks; rank++) {
        count += !done[rank] && ls_sim_is_alive(network, rank);
    }
    return count;
}

static void describe(const ls_sim_network *network, const bool *done, bool late, ls_sim_outcome *outcome) {
    const int wrote =
        snprintf(outcome->text, sizeof outcome->text, "%d of %d ranks are not done %s%" PRIu64 " ns",
                 outcome->unfinished, network->options.ranks,
                 late ? "by the limit: at " : "and nothing can happen any more, at ", ls_sim_now(network));
    size_t used = (size_t)wrote;
    if (!ls_sim_has_memory(network)) {
        snprintf(outcome->text, sizeof outcome->text, "there is no memory left");
        return;
    }
    for (int rank = 0, described = 0; rank < network->options.ranks && described < DESCRIBED; rank++) {
        if (!done[rank] && ls_sim_is_alive(network, rank)) {
            char text[200];
            ls_sim_describe(network, rank, text, sizeof text);
            used += (size_t)snprintf(outcome->text + used, sizeof outcome->text - used, "; %s", text);
            described++;
        }
    }
}

ls_sim_outcome ls_sim_run(ls_sim_network *network, ls_sim_step *step, void *states, size_t size, uint64_t limit_ns) {
    ls_sim_outcome outcome = {0};
    bool *done = ls_sim_allocate(network, (size_t)network->options.ranks * sizeof *done);
    bool late = false;
    if (done == NULL) {
        snprintf(outcome.text, sizeof outcome.text, "there is no memory left");
        return outcome;
    }
    outcome.unfinished = count_unfinished(network, done);
    while (outcome.unfinished > 0) {
        const int rank = ls_sim_next(network);
        late = rank >= 0 && limit_ns > 0 && ls_sim_now(network) > limit_ns;
        if (rank < 0 || late) {
            outcome.unfinished = count_unfinished(network, done);
            break;
        }
        if (done[rank]) {
            continue;
        }
        done[rank] = step((char *)states + (size_t)rank * size, rank);
        if (ls_sim_time_of(network, rank) > outcome.ended_ns) {
            outcome.ended_ns = ls_sim_time_of(network, rank);
        }
        if (done[rank]) {
            outcome.unfinished = count_unfinished(network, done);
        }
    }
    outcome.finished = outcome.unfinished == 0;
    if (!outcome.finished) {
        describe(network, done, late, &outcome);
    }
    ls_free(done);
    return outcome;
}
