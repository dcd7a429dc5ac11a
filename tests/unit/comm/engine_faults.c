/*
 * The engine of collectives on a simulated network: when a rank dies or stops, every other rank fails in time with an
 * error that names it. A failing seed is printed, and LOCKSTEP_ENGINE_SEED=N runs only this seed.
 * LOCKSTEP_ENGINE_SEEDS=N runs N seeds, beginning with 1 or with that seed, instead of 10,000.
 *
 * devices: cpu
 * timeout: 900
 * cost: 60
 */
#include <stdio.h>
#include <string.h>

#include "tests/simulated/engine_world.h"
#include "tests/simulated/faults.h"
#include "tests/support/seeds.h"
#include "tests/support/unit.h"

/* One rank dies or stops at some moment: all other ranks fail with an error that names it, or have made all calls. */
static void check_fault(uint64_t seed, void *noticed) {
    uint64_t random = seed;
    const int ranks = 2 + (int)call_draw(&random, 40);
    const int victim = (int)call_draw(&random, (uint64_t)ranks);
    const bool dies = call_draw(&random, 2) == 0;
    ls_sim_options options = world_options(ranks, seed);
    options.machine_ranks = world_shares_cores(seed) ? 0 : (int)(seed % 7);
    options.eager = seed % 2 == 0 ? LS_TRANSPORT_LEAST_EAGER : 8192;
    world w = {.seed = seed, .calls = 12, .odd_rank = -1, .faulty = true, .part = 300, .halving = seed % 3 == 0};
    world_open(&w, &options);
    const uint64_t at = call_draw(&random, 300);
    if (dies) {
        sim_kill_after(w.network, victim, at);
    } else {
        sim_stop_after(w.network, victim, at);
    }
    const ls_sim_outcome outcome = world_run(&w);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks, rank %d %s after %llu packets: not finished: %s", (unsigned long long)seed,
                 ranks, victim, dies ? "dies" : "stops", (unsigned long long)at, outcome.text);
    }
    char name[32];
    snprintf(name, sizeof name, "rank %d ", victim);
    for (int rank = 0; rank < ranks; rank++) {
        const rank_state *r = &w.ranks[rank];
        if (rank == victim || !r->over) {
            continue;
        }
        const ls_status wanted = dies ? LS_ERR_PEER : LS_ERR_TIMEOUT;
        if (r->status != wanted || strstr(r->message, name) == NULL) {
            fail_msg("seed %llu, %d ranks, rank %d %s after %llu packets, but rank %d says: %s",
                     (unsigned long long)seed, ranks, victim, dies ? "dies" : "stops", (unsigned long long)at, rank,
                     r->message);
        }
        (*(int *)noticed)++;
    }
    world_close(&w);
}

TEST(faults) {
    int noticed = 0; /* by any rank */
    if (seeds_run(10000, check_fault, &noticed)) {
        check_fault(13449, &noticed); /* two ranks that wait for each other, and both wait for the stopped rank */
        assert_true(noticed > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
