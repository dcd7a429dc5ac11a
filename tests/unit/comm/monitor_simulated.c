/*
 * The protocol of monitored barriers on a simulated network. Ranks enter several barriers in a row, some of them late.
 * A barrier succeeds on all ranks or on none. All ranks that have entered in time list the same late ranks, and no
 * message of one barrier counts for another. When a rank dies, the other ranks' errors name it. A failing seed is
 * printed, and LOCKSTEP_ENGINE_SEED=N runs only this seed; LOCKSTEP_ENGINE_SEEDS=N runs N seeds of each kind.
 *
 * devices: cpu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/engine/inside.h"
#include "comm/monitor.h"
#include "comm/transport/simulated/driver.h"
#include "tests/simulated/calls.h"
#include "tests/simulated/faults.h"
#include "tests/support/seeds.h"
#include "tests/support/unit.h"

enum { MOST_RANKS = 40, BARRIERS = 6 };

#define TIMEOUT_NS UINT64_C(10000000)
#define SETTLE_NS  UINT64_C(20000000)
#define MARGIN_NS  UINT64_C(1000000) /* longer than any message takes */
#define CLOSE_NS   UINT64_C(20000)   /* about as long as a message takes */

typedef struct visit {
    uint64_t entered_ns;
    ls_monitor_state state; /* at the end */
    char text[LS_ERROR_CAPACITY];
} visit;

typedef struct rank_state {
    struct world *world;
    ls_engine *engine;
    ls_monitor *monitor;
    int rank;
    int barrier; /* from 0 */
    bool inside;
    uint64_t next_ns;  /* while outside: the time of the next entry */
    uint64_t ended_ns; /* while inside: the time at which the barrier ended, or 0 before */
    visit visits[BARRIERS];
    sim_result result;
} rank_state;

typedef struct world {
    ls_sim_network *network;
    uint64_t seed;
    uint64_t random;
    int ranks;
    rank_state states[MOST_RANKS];
} world;

/* ---- a rank's turn ----------------------------------------------------------------------------------------------- */

static ls_status post(void *context, const ls_call *call, void **request) {
    return ls_engine_post(context, call, request);
}

static ls_status test(void *context, void *request, bool *finished) {
    return ls_engine_test(context, request, false, finished);
}

/* Most ranks are early; some are late by one or several timeouts. With odd seeds, some enter around the end of the
 * first timeout. */
static uint64_t draw_delay(world *w) {
    const uint64_t kind = call_draw(&w->random, 12);
    if (w->seed % 2 == 1 && kind != 1) {
        return kind == 0 ? TIMEOUT_NS - CLOSE_NS + call_draw(&w->random, 2 * CLOSE_NS)
                         : call_draw(&w->random, CLOSE_NS / 4);
    }
    return call_draw(&w->random, TIMEOUT_NS / 4) + (kind == 0 ? 2 * TIMEOUT_NS : kind == 1 ? 5 * TIMEOUT_NS : 0);
}

static void enter(rank_state *r, uint64_t now) {
    r->inside = true;
    r->ended_ns = 0;
    r->visits[r->barrier].entered_ns = now;
    assert_int_equal(ls_monitor_enter(r->monitor, (double)TIMEOUT_NS * 1e-9, NULL), r->barrier + 1);
}

static void leave(rank_state *r, uint64_t now) {
    visit *v = &r->visits[r->barrier];
    v->state = ls_monitor_state_of(r->monitor);
    if (v->state == LS_MONITOR_FAILED) {
        assert_int_equal(ls_monitor_fail(r->monitor), LS_ERR_TIMEOUT);
        snprintf(v->text, sizeof v->text, "%s", ls_error_message());
    }
    r->inside = false;
    r->barrier++;
    r->next_ns = now + draw_delay(r->world);
}

/* Sets `*until` to the time of the next turn. */
static ls_status advance(rank_state *r, uint64_t now, uint64_t *until) {
    const ls_monitor_network network = {.context = r->engine, .post = post, .test = test};
    const uint64_t deadline = r->visits[r->barrier].entered_ns + TIMEOUT_NS;
    LS_TRY(ls_monitor_move(r->monitor, &network, now >= deadline));
    const ls_monitor_state state = ls_monitor_state_of(r->monitor);
    const bool ended = state == LS_MONITOR_PASSED || state == LS_MONITOR_FAILED;
    r->ended_ns = ended && r->ended_ns == 0 ? now : r->ended_ns;
    *until = ended ? r->ended_ns + SETTLE_NS : now < deadline ? deadline : now + TIMEOUT_NS;
    if (ls_monitor_is_settled(r->monitor) || (ended && now >= r->ended_ns + SETTLE_NS)) {
        leave(r, now);
        *until = r->next_ns;
    }
    return LS_OK;
}

static bool step(void *state, int rank) {
    rank_state *r = state;
    ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
    (void)rank;
    for (bool moved = true; moved && !r->result.over;) {
        const uint64_t now = endpoint->transport->now_ns(endpoint);
        uint64_t until = r->next_ns;
        if (r->barrier == BARRIERS) {
            return true;
        }
        if (!r->inside && now >= r->next_ns) {
            enter(r, now);
        }
        const ls_status status = r->inside ? advance(r, now, &until) : LS_OK;
        if (status != LS_OK) {
            sim_note_failure(&r->result, status);
            break;
        }
        moved = false;
        assert_int_equal(endpoint->transport->progress(endpoint, until > now ? until - now : 1, &moved), LS_OK);
    }
    return r->result.over || r->barrier == BARRIERS;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

static void open_world(world *w, uint64_t seed) {
    *w = (world){.seed = seed, .random = seed};
    w->ranks = 2 + (int)call_draw(&w->random, seed % 10 == 0 ? MOST_RANKS - 1 : 7);
    w->network = ls_sim_new(&(ls_sim_options){.ranks = w->ranks,
                                              .seed = seed,
                                              .latency_ns = 2000,
                                              .overhead_ns = 300,
                                              .bytes_per_ns = 12,
                                              .eager = 4096,
                                              .most_delay_ns = seed % 3 == 0 ? 20000 : 0,
                                              .most_start_ns = 5000,
                                              .notice_ns = 100000});
    for (int rank = 0; rank < w->ranks; rank++) {
        rank_state *r = &w->states[rank];
        r->world = w;
        r->rank = rank;
        r->next_ns = draw_delay(w);
        r->engine = ls_engine_new(ls_sim_endpoint(w->network, rank), 2.0);
        r->monitor = ls_monitor_new(rank, w->ranks);
        assert_true(r->engine != NULL && r->monitor != NULL);
    }
}

static void close_world(world *w) {
    for (int rank = 0; rank < w->ranks; rank++) {
        ls_engine_close(w->states[rank].engine);
    }
    ls_sim_free(w->network);
    for (int rank = 0; rank < w->ranks; rank++) {
        ls_monitor_free(w->states[rank].monitor);
    }
}

static void run_world(world *w) {
    const ls_sim_outcome outcome = ls_sim_run(w->network, step, w->states, sizeof *w->states, 0);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks: not finished: %s", (unsigned long long)w->seed, w->ranks, outcome.text);
    }
}

/* Returns the time at which the first timeout of the barrier expires. */
static uint64_t deadline_of(const world *w, int barrier) {
    uint64_t first = UINT64_MAX;
    for (int rank = 0; rank < w->ranks; rank++) {
        const uint64_t entered = w->states[rank].visits[barrier].entered_ns;
        first = entered < first ? entered : first;
    }
    return first + TIMEOUT_NS;
}

static void fail_at(const world *w, int barrier, int rank, const char *what) {
    const visit *v = &w->states[rank].visits[barrier];
    fail_msg(
        "seed %llu, %d ranks, barrier %d: rank %d, which entered at %llu ns (deadline %llu ns) and said \"%s\": %s",
        (unsigned long long)w->seed, w->ranks, barrier + 1, rank, (unsigned long long)v->entered_ns,
        (unsigned long long)deadline_of(w, barrier), v->text, what);
}

static bool begins_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* Returns whether the barrier failed. */
static bool check_barrier(const world *w, int barrier) {
    const uint64_t deadline = deadline_of(w, barrier);
    const ls_monitor_state state = w->states[0].visits[barrier].state;
    ls_rank_list late = {.count = 0};
    bool close = false;
    char lists[LS_ERROR_CAPACITY], too_late[LS_ERROR_CAPACITY];
    for (int rank = 0; rank < w->ranks; rank++) {
        const uint64_t entered = w->states[rank].visits[barrier].entered_ns;
        close = close || (entered + MARGIN_NS > deadline && entered < deadline + MARGIN_NS);
        if (entered >= deadline) {
            ls_rank_list_add(&late, rank);
        }
    }
    snprintf(lists, sizeof lists, "ls_comm_monitored_barrier #%d: %s did not enter within 0.01 s", barrier + 1,
             late.text);
    snprintf(too_late, sizeof too_late, "ls_comm_monitored_barrier #%d: this rank entered too late: ", barrier + 1);
    for (int rank = 0; rank < w->ranks; rank++) {
        const visit *v = &w->states[rank].visits[barrier];
        if (v->state != state) {
            fail_at(w, barrier, rank, "not the result of rank 0");
        }
        if (!close && v->state != (late.count != 0 ? LS_MONITOR_FAILED : LS_MONITOR_PASSED)) {
            fail_at(w, barrier, rank, "not the result of the times");
        }
        if (!close && late.count != 0 && !begins_with(v->text, v->entered_ns < deadline ? lists : too_late)) {
            fail_at(w, barrier, rank, "another message");
        }
    }
    return state == LS_MONITOR_FAILED;
}

typedef struct tally {
    int passed;
    int failed;
} tally;

static void check_times(uint64_t seed, void *context) {
    tally *all = context;
    static world w;
    open_world(&w, seed);
    run_world(&w);
    for (int rank = 0; rank < w.ranks; rank++) {
        const sim_result *result = &w.states[rank].result;
        if (result->over) {
            fail_msg("seed %llu: rank %d of %d: %s", (unsigned long long)seed, rank, w.ranks, result->text);
        }
    }
    for (int barrier = 0; barrier < BARRIERS; barrier++) {
        const bool fails = check_barrier(&w, barrier);
        all->failed += fails;
        all->passed += !fails;
    }
    close_world(&w);
}

static void check_death(uint64_t seed, void *noticed) {
    static world w;
    open_world(&w, seed);
    const int victim = sim_kill_one(w.network, seed, 40);
    run_world(&w);
    for (int rank = 0; rank < w.ranks; rank++) {
        const sim_result *result = &w.states[rank].result;
        if (rank != victim && result->over) {
            sim_expect_blame(result, seed, rank, victim);
            (*(int *)noticed)++;
            if (!begins_with(result->text, "ls_comm_monitored_barrier #")) {
                fail_msg("seed %llu: rank %d does not name its call: %s", (unsigned long long)seed, rank, result->text);
            }
        }
    }
    close_world(&w);
}

TEST(late_ranks) {
    tally all = {0};
    const bool many = seeds_run(500, check_times, &all);
    print_message("%d barriers passed, %d failed\n", all.passed, all.failed);
    assert_true(!many || (all.passed > 50 && all.failed > 50));
}

TEST(deaths) {
    int noticed = 0; /* by any rank */
    assert_true(!seeds_run(500, check_death, &noticed) || noticed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_ranks),
        cmocka_unit_test(deaths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
