/*
 * Calls that the network executes with native collectives, over a simulated network (comm/transport/simulated) that has
 * such collectives. A rank that waits in such a call does not know which rank it waits for, so after the timeout it
 * queries all ranks. Ranks die, stop and pause, links break, several at once: all waiting ranks fail in time and name a
 * responsible rank. If all ranks answer, a slow collective continues. A failing seed is printed, and
 * LOCKSTEP_ENGINE_SEED=N runs only this seed; LOCKSTEP_ENGINE_SEEDS=N runs N seeds.
 *
 * devices: cpu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/transport/simulated/driver.h"
#include "comm/transport/simulated/state.h"
#include "tests/simulated/calls.h"
#include "tests/simulated/faults.h"
#include "tests/support/reference.h"
#include "tests/support/seeds.h"
#include "tests/support/unit.h"

enum { CALLS = 6, LEVELS = 7, MOST_RANKS = 100, MOST_FAULTS = 4, CHANNEL = LS_TRANSPORT_CHANNELS - 1 };

#define TIMEOUT_S   2.0
#define PATIENCE_NS UINT64_C(100000000)
#define SECOND_NS   UINT64_C(1000000000)

/* A rank's part of a native collective: tokens to and from ranks at distances that are powers of two. */
typedef struct own_part {
    ls_transfer *transfer; /* NULL if not begun, ended or canceled */
    uint64_t begun_ns;
    int round;
    bool posted;
    int sent[LEVELS];
    int came;
    ls_transfer out[LEVELS];
    ls_transfer in;
} own_part;

typedef struct rank_state {
    struct world *world;
    ls_engine *engine;
    int rank;
    int done; /* calls */
    bool begun;
    bool over;
    ls_status status;
    int failed_rank;
    char message[LS_ERROR_CAPACITY];
    call_side side;
    own_part parts[CALLS];
    int part; /* 1 + the index of its current part; 0 if there is none yet */
} rank_state;

typedef struct world {
    ls_sim_network *network;
    uint64_t seed;
    int size;
    int levels;
    uint64_t slow_ns; /* minimum duration of a collective */
    bool never;       /* or it never ends */
    bool faulty;
    int made; /* calls that the network executed, on all ranks */
    unsigned char *results[CALLS];
    rank_state *ranks;
} world;

static world *current; /* owns the endpoints of the transport below */

/* ---- a network with its own collectives -------------------------------------------------------------------------- */

/* Some ranks cannot execute some calls; answers may differ between ranks. */
static bool own_can_make(const ls_endpoint *endpoint, const ls_call *call) {
    const bool differs = ls_agreement_varies(call->operation) || call->operation == LS_OP_ALLGATHERV;
    if (!ls_flows[call->operation].moves && call->reduction == LS_AVG) {
        return false;
    }
    return !differs || reference_mix(current->seed * 31 + call->sequence * 7 + (uint64_t)endpoint->rank) %
                               (uint64_t)(2 * endpoint->size) !=
                           0;
}

static ls_status own_collective(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer) {
    rank_state *r = &current->ranks[endpoint->rank];
    own_part *part = &r->parts[r->part++];
    (void)call;
    assert_true(r->part == 1 || part[-1].transfer == NULL);
    *transfer = (ls_transfer){.peer = -1};
    *part = (own_part){.transfer = transfer, .begun_ns = ls_sim_transport.now_ns(endpoint)};
    current->made++;
    return LS_OK;
}

/* Copies the result from the reference, because these tests check waiting, not results. */
static void own_end(rank_state *r, own_part *part, bool *moved) {
    call_side_expect(&r->side, current->results[r->done], r->side.call.receive);
    part->transfer->ended = true;
    part->transfer = NULL;
    *moved = true;
}

static ls_status own_go_on(rank_state *r, ls_endpoint *endpoint, own_part *part, bool *moved) {
    const uint64_t took_ns = ls_sim_transport.now_ns(endpoint) - part->begun_ns;
    while (part->transfer != NULL && took_ns >= current->slow_ns && !current->never) {
        const int k = part->round;
        const int away = 1 << k;
        if (k == current->levels) {
            own_end(r, part, moved);
            return LS_OK;
        }
        if (!part->posted) {
            part->posted = true;
            part->sent[k] = r->part * LEVELS + k;
            part->out[k] = (ls_transfer){.peer = (r->rank + away) % current->size,
                                         .channel = CHANNEL,
                                         .data = &part->sent[k],
                                         .bytes = sizeof part->sent[k]};
            part->in = (ls_transfer){.peer = (r->rank - away % current->size + current->size) % current->size,
                                     .channel = CHANNEL,
                                     .data = &part->came,
                                     .bytes = sizeof part->came};
            LS_TRY(ls_sim_transport.send(endpoint, &part->out[k]));
            LS_TRY(ls_sim_transport.receive(endpoint, &part->in));
        }
        if (!part->in.ended) {
            return LS_OK;
        }
        assert_int_equal(part->came, part->sent[k]);
        part->posted = false;
        part->round++;
    }
    return LS_OK;
}

static ls_status own_progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    rank_state *r = &current->ranks[endpoint->rank];
    LS_TRY(ls_sim_transport.progress(endpoint, wait_ns, moved));
    return r->part > 0 ? own_go_on(r, endpoint, &r->parts[r->part - 1], moved) : LS_OK;
}

static void own_withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    rank_state *r = &current->ranks[endpoint->rank];
    own_part *part = r->part > 0 ? &r->parts[r->part - 1] : NULL;
    if (part == NULL || part->transfer != transfer) {
        ls_sim_transport.withdraw(endpoint, transfer);
        return;
    }
    if (part->posted && !part->in.ended) {
        ls_sim_transport.withdraw(endpoint, &part->in);
    }
    part->transfer = NULL;
}

static const ls_transport *own_transport(void) {
    static ls_transport transport;
    transport = ls_sim_transport;
    transport.can_make = own_can_make;
    transport.collective = own_collective;
    transport.progress = own_progress;
    transport.withdraw = own_withdraw;
    return &transport;
}

/* ---- a rank's turn ----------------------------------------------------------------------------------------------- */

static call_plan plan_of(const world *w, int index) {
    call_plan plan;
    uint64_t seed = w->seed * 1000003 + (uint64_t)index;
    do {
        plan = call_plan_draw(seed, w->size, CALL_MOST_BYTES, false);
        seed += 500;
    } while (plan.operation == CALL_RING || plan.operation == LS_OP_ALLTOALL || plan.operation == LS_OP_ALLTOALLV);
    return plan;
}

static ls_status begin(rank_state *r) {
    world *w = r->world;
    const call_plan plan = plan_of(w, r->done);
    call_side_begin(&r->side, &plan, w->size, r->rank, (uint64_t)r->done + 1);
    r->side.call.any_order = call_reduces(&plan);
    r->begun = true;
    if (call_reduces(&plan) && w->results[r->done] == NULL) {
        w->results[r->done] = call_reduce(&plan, w->size);
    }
    return ls_engine_begin(r->engine, &r->side.call);
}

static void end(rank_state *r) {
    call_side_end(&r->side);
    r->begun = false;
    r->done++;
    if (r->done == CALLS) { /* as at the end of a program: the rank leaves, then its process exits */
        ls_engine_close(r->engine);
        r->engine = NULL;
    }
}

static bool step(void *state, int rank) {
    rank_state *r = state;
    (void)rank;
    for (bool moved = true; moved && !r->over && r->engine != NULL;) {
        bool finished = false;
        ls_status status = r->begun ? LS_OK : begin(r);
        status = status == LS_OK ? ls_engine_progress(r->engine, false, &finished) : status;
        if (status != LS_OK) {
            r->over = true;
            r->status = status;
            r->failed_rank = ls_engine_failed_rank(r->engine);
            snprintf(r->message, sizeof r->message, "%s", ls_error_message());
            if (!r->world->faulty) {
                fail_msg("seed %llu: rank %d of %d: %s", (unsigned long long)r->world->seed, rank, r->world->size,
                         r->message);
            }
            break;
        }
        if (finished) {
            if (!call_side_is_right(&r->side, r->world->results[r->done])) {
                fail_msg("seed %llu: rank %d has what is wrong", (unsigned long long)r->world->seed, rank);
            }
            end(r);
            continue;
        }
        ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
        moved = false;
        assert_int_equal(endpoint->transport->progress(endpoint, PATIENCE_NS, &moved), LS_OK);
    }
    return r->over || r->engine == NULL;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

static void open_world(world *w) {
    w->network = ls_sim_new(&(ls_sim_options){.ranks = w->size,
                                              .seed = w->seed,
                                              .latency_ns = 2000,
                                              .overhead_ns = 300,
                                              .bytes_per_ns = 12,
                                              .most_delay_ns = w->seed % 2 == 0 ? 20000 : 0,
                                              .most_start_ns = 5000,
                                              .notice_ns = 100000});
    w->ranks = calloc((size_t)w->size, sizeof *w->ranks);
    while (1 << w->levels < w->size) {
        w->levels++;
    }
    for (int rank = 0; rank < w->size; rank++) {
        ls_endpoint *endpoint = ls_sim_endpoint(w->network, rank);
        endpoint->transport = own_transport();
        w->ranks[rank] = (rank_state){.world = w, .rank = rank, .engine = ls_engine_new(endpoint, TIMEOUT_S)};
        assert_non_null(w->ranks[rank].engine);
        ls_algorithm_force(w->ranks[rank].engine, LS_ALGORITHM_NATIVE);
    }
    current = w;
}

static void close_world(world *w) {
    for (int rank = 0; rank < w->size; rank++) {
        if (w->ranks[rank].engine != NULL) {
            ls_engine_close(w->ranks[rank].engine);
        }
        call_side_end(&w->ranks[rank].side);
    }
    ls_sim_free(w->network);
    for (int call = 0; call < CALLS; call++) {
        free(w->results[call]);
    }
    free(w->ranks);
    current = NULL;
}

static ls_sim_outcome run_world(world *w) {
    const ls_sim_outcome outcome = ls_sim_run(w->network, step, w->ranks, sizeof *w->ranks, 0);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks: not finished: %s", (unsigned long long)w->seed, w->size, outcome.text);
    }
    return outcome;
}

static const int sizes[] = {5, 16, 100};

/* ---- without faults ---------------------------------------------------------------------------------------------- */

/* Slow collectives continue while all ranks answer, up to a limit. */
TEST(slow_collectives_go_on) {
    for (int i = 0; i < 3; i++) {
        for (uint64_t tenths = 0; tenths <= 70;
             tenths += 35) { /* in tenths of a second; three times the timeout is allowed */
            world w = {.seed = 40 + tenths, .size = sizes[i], .slow_ns = tenths * (SECOND_NS / 10)};
            open_world(&w);
            run_world(&w);
            assert_true(w.made > 0);
            close_world(&w);
        }
        world w = {.seed = 40, .size = sizes[i], .never = true, .faulty = true};
        open_world(&w);
        run_world(&w);
        bool said = false;
        for (int rank = 0; rank < w.size; rank++) {
            assert_int_equal(w.ranks[rank].status, LS_ERR_TIMEOUT);
            said = said ||
                   strstr(w.ranks[rank].message, "did not finish within 8 s, although all ranks take part") != NULL;
        }
        assert_true(said);
        close_world(&w);
    }
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

typedef struct blame {
    bool ranks[MOST_RANKS]; /* ranks that may be named */
    bool gone;              /* some faults are detected */
    bool silent;            /* some are not */
    bool lost; /* undetected loss of a link between two ranks that both continue: ranks that wait, or have left, may be
                  named */
    char text[256];
} blame;

/* Returns a rank that has no fault yet. */
static int draw_victim(const world *w, blame *to, uint64_t *random) {
    int victim;
    do {
        victim = (int)call_draw(random, (uint64_t)w->size);
    } while (to->ranks[victim]);
    to->ranks[victim] = true;
    return victim;
}

static void add_fault(world *w, blame *to, uint64_t *random) {
    static const char *const kinds[] = {"dies", "stops", "loses a link", "loses a link silently"};
    const uint64_t packets = call_draw(random, (uint64_t)(CALLS * 4 * w->levels));
    const uint64_t at_ns = call_draw(random, 400000);
    const int kind = (int)call_draw(random, 5);
    if (kind == 4) { /* a pause, after which the rank still answers */
        const int paused = (int)call_draw(random, (uint64_t)w->size);
        if (w->network->ranks[paused].pause.until_ns == 0) {
            sim_pause(w->network, paused, at_ns, at_ns + call_draw(random, SECOND_NS / 2));
        }
        return;
    }
    const int victim = draw_victim(w, to, random);
    const int other = kind >= 2 ? draw_victim(w, to, random) : victim;
    const size_t used = strlen(to->text);
    snprintf(to->text + used, sizeof to->text - used, " %d %s (%d),", victim, kinds[kind], other);
    to->gone = to->gone || kind % 2 == 0;
    to->silent = to->silent || kind % 2 != 0;
    to->lost = to->lost || kind == 3;
    switch (kind) {
    case 0:
        sim_kill_after(w->network, victim, packets);
        break;
    case 1:
        sim_stop_after(w->network, victim, packets);
        break;
    default:
        sim_cut(w->network, victim, other, at_ns, kind == 2);
        break;
    }
}

typedef struct tally {
    int worlds;
    int failed;          /* number of failed ranks */
    int asked_all;       /* number of failed ranks whose errors name ranks that did not answer */
    uint64_t longest_ns; /* time until all ranks had ended */
} tally;

static void check_faults(uint64_t seed, void *context) {
    tally *all = context;
    uint64_t random = seed;
    blame to = {.gone = false};
    world w = {.seed = seed, .size = sizes[seed % 3], .faulty = true};
    open_world(&w);
    w.slow_ns = call_draw(&random, 3) == 0 ? 50000 : 0;
    const int faults = 1 + (int)call_draw(&random, w.size > 5 ? MOST_FAULTS : 2);
    for (int i = 0; i < faults; i++) {
        add_fault(&w, &to, &random);
    }
    const ls_sim_outcome outcome = run_world(&w);
    all->worlds++;
    all->longest_ns = outcome.ended_ns > all->longest_ns ? outcome.ended_ns : all->longest_ns;
    for (int rank = 0; rank < w.size; rank++) {
        const rank_state *r = &w.ranks[rank];
        if (!r->over || !ls_sim_is_alive(w.network, rank)) {
            continue;
        }
        const bool known = r->status == LS_ERR_PEER ? to.gone : r->status == LS_ERR_TIMEOUT && to.silent;
        if (r->failed_rank < 0 || !((known && to.ranks[r->failed_rank]) || to.lost)) {
            fail_msg("seed %llu, %d ranks:%s but rank %d blames %d: %s", (unsigned long long)seed, w.size, to.text,
                     rank, r->failed_rank, r->message);
        }
        all->failed++;
        all->asked_all += strstr(r->message, " did not proceed with this call within ") != NULL;
    }
    close_world(&w);
}

TEST(who_is_to_blame_is_named) {
    tally all = {0};
    const bool many = seeds_run(600, check_faults, &all);
    /* After the timeout, a rank queries a second rank, which may need its own timeout for a query. */
    assert_true(all.longest_ns < 2 * (uint64_t)(TIMEOUT_S * 1e9) + 3 * SECOND_NS);
    /* With sanitizers, fewer seeds run, and the first seeds have fewer such ranks. */
    assert_true(!many || (all.failed > all.worlds && all.asked_all > all.worlds / 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_collectives_go_on),
        cmocka_unit_test(who_is_to_blame_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
