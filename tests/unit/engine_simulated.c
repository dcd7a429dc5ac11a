/*
 * The engine of collectives on a simulated network (comm/transport/simulated): every call at many numbers of ranks
 * gives the right bits with no more messages than promised; ranks that disagree are all told; when a rank dies or
 * stops, every other one fails in time with its name. A seed that fails is printed, and LOCKSTEP_ENGINE_SEED=N runs
 * that one alone; LOCKSTEP_ENGINE_SEEDS=N so many seeds with faults, from 1 or that one on, instead of 10,000.
 * LOCKSTEP_TEST_LONG=1: more of all else.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/collective/inside.h"
#include "comm/transport/simulated/driver.h"
#include "tests/simulated/calls.h"
#include "tests/simulated/faults.h"
#include "tests/support/unit.h"

enum { RESULTS = 16, MOST_PLANS = 40 };

#define TIMEOUT_S 2.0
/* Where calls may fail, their order matters, and not their bytes: enough of them for parts and announced messages. */
#define FAULTY_BYTES ((size_t)12000)
#define PATIENCE     UINT64_C(100000000)

typedef struct world {
    ls_sim_network *network;
    int size;
    uint64_t seed;
    const call_plan *plans; /* of the calls; NULL: random ones */
    int calls;              /* of each rank */
    int odd_rank;           /* calls something else at odd_call; -1: none does */
    int odd_call;
    bool faulty;   /* calls may fail */
    ls_way wanted; /* of reductions, broadcasts and all-gathers; LS_WAY_WHOLE: as they are otherwise */
    size_t part;   /* bytes of a part; 0: as otherwise */
    int levels;
    struct rank_state *ranks;
    struct {
        int call; /* 1 + its index */
        unsigned char *data;
    } results[RESULTS]; /* of calls that reduce, on all ranks */
} world;

typedef struct rank_state {
    world *world;
    ls_engine *engine;
    int rank;
    int done; /* calls */
    bool begun;
    bool over; /* a call has failed */
    call_side side;
    void *request[2];
    uint64_t messages; /* sent before the call */
    uint64_t bytes;
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} rank_state;

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static bool is_long(void) {
    return getenv("LOCKSTEP_TEST_LONG") != NULL;
}

static call_plan plan_of(const world *w, int index) {
    const size_t most_bytes = w->faulty ? FAULTY_BYTES : CALL_MOST_BYTES;
    return w->plans != NULL ? w->plans[index]
                            : call_plan_draw(w->seed * 1000003 + (uint64_t)index, w->size, most_bytes, is_long());
}

/* ---- a rank's turn ----------------------------------------------------------------------------------------------- */

static ls_status begin_ring(rank_state *r) {
    const int size = r->world->size;
    ls_call send = r->side.call;
    ls_call receive = r->side.call;
    send.operation = LS_OP_SEND;
    send.root = (r->rank + 1) % size;
    send.tag = receive.tag = 7;
    receive.operation = LS_OP_RECV;
    receive.root = (r->rank + size - 1) % size;
    LS_TRY(ls_engine_post(r->engine, &send, &r->request[0]));
    return ls_engine_post(r->engine, &receive, &r->request[1]);
}

static ls_status begin(rank_state *r) {
    const world *w = r->world;
    call_plan plan = plan_of(w, r->done);
    if (r->rank == w->odd_rank && r->done == w->odd_call) {
        const bool barrier = plan.operation != LS_OP_BARRIER;
        plan = (call_plan){.operation = barrier ? LS_OP_BARRIER : LS_OP_ALLREDUCE,
                           .dtype = LS_F32,
                           .reduction = LS_SUM,
                           .count = barrier ? 0 : 3};
    }
    call_side_begin(&r->side, &plan, w->size, r->rank, (uint64_t)r->done + 1);
    r->begun = true;
    r->messages = ls_engine_endpoint(r->engine)->messages;
    r->bytes = ls_engine_endpoint(r->engine)->bytes;
    return plan.operation == CALL_RING ? begin_ring(r) : ls_engine_begin(r->engine, &r->side.call);
}

static ls_status go_on(rank_state *r, bool *finished) {
    if (r->side.plan.operation != CALL_RING) {
        return ls_engine_progress(r->engine, false, finished);
    }
    *finished = true;
    for (int i = 0; i < 2; i++) {
        bool ended = r->request[i] == NULL;
        if (!ended) {
            const ls_status status = ls_engine_test(r->engine, r->request[i], false, &ended);
            r->request[i] = ended || status != LS_OK ? NULL : r->request[i];
            LS_TRY(status);
        }
        *finished = *finished && ended;
    }
    return LS_OK;
}

/* What the call reduces to, made once for all ranks. */
static const unsigned char *reduced(const rank_state *r) {
    world *w = r->world;
    const int slot = r->done % RESULTS;
    if (call_reduces(&r->side.plan) && w->results[slot].call != r->done + 1) {
        free(w->results[slot].data);
        w->results[slot].data = call_reduce(&r->side.plan, w->size);
        w->results[slot].call = r->done + 1;
    }
    return w->results[slot].data;
}

static void LS_PRINTF(2, 3) wrong(const rank_state *r, const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    fail_msg("seed %llu: %d ranks, call %d (%s of %zu, root %d): rank %d %s", (unsigned long long)r->world->seed,
             r->world->size, r->done, ls_operation_name(r->side.call.operation), r->side.plan.count, r->side.plan.root,
             r->rank, what);
}

/* A small call takes no more messages than promised, and a large reduction no more bytes. */
static void count_messages(const rank_state *r) {
    const call_plan *plan = &r->side.plan;
    const size_t bytes = call_width(plan) * plan->count * (size_t)r->world->size;
    const bool direct = plan->operation == CALL_RING || plan->operation == LS_OP_ALLTOALLV ||
                        plan->operation == LS_OP_GATHERV || plan->operation == LS_OP_ALLTOALL;
    const uint64_t messages = ls_engine_endpoint(r->engine)->messages - r->messages;
    const uint64_t sent = ls_engine_endpoint(r->engine)->bytes - r->bytes;
    const uint64_t rounds = (uint64_t)(2 * r->world->levels);
    if (r->world->faulty || r->world->wanted != LS_WAY_WHOLE) {
        return;
    }
    if (!direct && bytes <= 1024 && messages > rounds) {
        wrong(r, "sent %llu messages", (unsigned long long)messages);
    }
    const double buffer = (double)(call_width(plan) * plan->count);
    const double most = 2.1 * buffer + (double)(rounds * (sizeof(ls_envelope) + sizeof(ls_group)));
    const bool spread = buffer >= 65536 && !r->engine->shares_cores; /* else all pass the root */
    if (plan->operation == LS_OP_ALLREDUCE && plan->dtype == LS_F32 && spread && (double)sent > most) {
        wrong(r, "sent %llu bytes", (unsigned long long)sent);
    }
}

static void note_failure(rank_state *r, ls_status status) {
    r->status = status;
    snprintf(r->message, sizeof r->message, "%s", ls_error_message());
    const bool odd = r->done == r->world->odd_call && r->world->odd_rank >= 0 && status == LS_ERR_MISMATCH;
    if (!odd && !r->world->faulty) {
        fail_msg("seed %llu: rank %d of %d, call %d: %s", (unsigned long long)r->world->seed, r->rank, r->world->size,
                 r->done, r->message);
    }
    r->over = !odd;
    call_side_end(&r->side); /* the engine uses the memory no more: it has ended */
    r->begun = false;
    r->done++;
}

static bool step(void *state, int rank) {
    rank_state *r = state;
    (void)rank;
    for (bool moved = true; moved && !r->over && r->done < r->world->calls;) {
        bool finished = false;
        ls_status status = r->begun ? LS_OK : begin(r);
        status = status == LS_OK ? go_on(r, &finished) : status;
        if (status != LS_OK) {
            note_failure(r, status);
            continue;
        }
        if (finished) {
            if (!call_side_is_right(&r->side, reduced(r))) {
                wrong(r, "has what is wrong");
            }
            count_messages(r);
            call_side_end(&r->side);
            r->begun = false;
            r->done++;
            continue;
        }
        ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
        moved = false;
        assert_int_equal(endpoint->transport->progress(endpoint, PATIENCE, &moved), LS_OK);
    }
    return r->over || r->done == r->world->calls;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

static void open_world(world *w, const ls_sim_options *options) {
    w->network = ls_sim_new(options);
    w->size = options->ranks;
    w->ranks = calloc((size_t)w->size, sizeof *w->ranks);
    while (1 << w->levels < w->size) {
        w->levels++;
    }
    for (int rank = 0; rank < w->size; rank++) {
        w->ranks[rank] = (rank_state){.world = w, .rank = rank};
        ls_sim_endpoint(w->network, rank)->oversubscribed = options->machine_ranks == 0 && w->seed % 5 == 2;
        w->ranks[rank].engine = ls_engine_new(ls_sim_endpoint(w->network, rank), TIMEOUT_S);
        assert_non_null(w->ranks[rank].engine);
        w->ranks[rank].engine->wanted = w->wanted;
        w->ranks[rank].engine->part_wanted = w->part;
    }
}

static void close_world(world *w) {
    for (int rank = 0; rank < w->size; rank++) {
        ls_engine_close(w->ranks[rank].engine);
        call_side_end(&w->ranks[rank].side);
    }
    ls_sim_free(w->network);
    for (int i = 0; i < RESULTS; i++) {
        free(w->results[i].data);
    }
    free(w->ranks);
}

static ls_sim_outcome run_world(world *w) {
    return ls_sim_run(w->network, step, w->ranks, sizeof *w->ranks, 0);
}

static ls_sim_options options_of(int ranks, uint64_t seed) {
    return (ls_sim_options){.ranks = ranks,
                            .seed = seed,
                            .latency_ns = 2000,
                            .overhead_ns = 300,
                            .bytes_per_ns = 12,
                            .eager = seed % 2 == 0 ? 4096 : 65536,
                            .most_delay_ns = seed % 3 == 0 ? 20000 : 0,
                            .most_start_ns = 5000,
                            .notice_ns = 100000};
}

static void check_calls(world *w, int ranks) {
    const ls_sim_options options = options_of(ranks, w->seed);
    open_world(w, &options);
    const ls_sim_outcome outcome = run_world(w);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks: not finished: %s", (unsigned long long)w->seed, ranks, outcome.text);
    }
    for (int rank = 0; rank < ranks && w->odd_rank >= 0 && ranks > 1; rank++) {
        assert_int_equal(w->ranks[rank].status, LS_ERR_MISMATCH);
        assert_non_null(strstr(w->ranks[rank].message, "ranks called different things"));
    }
    close_world(w);
}

static void check_world(int ranks, uint64_t seed, int calls, int odd_call) {
    world w = {.size = ranks,
               .seed = seed,
               .calls = calls,
               .odd_rank = odd_call >= 0 ? (int)(seed % (uint64_t)ranks) : -1,
               .odd_call = odd_call,
               .wanted = odd_call >= 0 && seed % 2 == 0 ? LS_WAY_HALVES : LS_WAY_WHOLE};
    while (odd_call >= 0 && plan_of(&w, w.odd_call).operation == CALL_RING) {
        w.odd_call = ++w.calls - 1; /* sends and receives are not compared */
    }
    check_calls(&w, ranks);
}

static void right_bits(void **state) {
    (void)state;
    const bool all = is_long();
    for (int ranks = 1; ranks <= 64; ranks++) {
        check_world(ranks, (uint64_t)ranks * 17, (ranks <= 16 ? 20 : 5) * (all ? 3 : 1), -1);
    }
    static const int many[] = {100, 256, 1000, 1024};
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        check_world(many[i], (uint64_t)many[i], all ? 14 : 10, -1);
    }
}

/* ---- where a reduction goes another way -------------------------------------------------------------------------- */

/* On a network that makes no calls by itself. */
static ls_way way_over(ls_endpoint *endpoint, int ranks, ls_place place, const call_plan *plan, size_t count) {
    static ls_engine model; /* never opened: it only chooses */
    model = (ls_engine){.endpoint = endpoint, .size = ranks, .place = place};
    ls_rounds_find_shape(&model);
    model.call = (ls_call){.operation = (ls_operation)plan->operation,
                           .dtype = plan->dtype,
                           .reduction = plan->reduction,
                           .width = ls_dtype_size(plan->dtype),
                           .count = count,
                           .total = count * (size_t)ranks};
    return ls_choose_way(&model);
}

static ls_way way_at(int ranks, ls_place place, const call_plan *plan, size_t count) {
    return way_over(&(ls_endpoint){.eager = 0}, ranks, place, plan, count);
}

/* Of ranks that share the cores of one machine. */
static ls_way way_sharing(int ranks, const call_plan *plan, size_t count) {
    return way_over(&(ls_endpoint){.oversubscribed = true}, ranks, (ls_place){0}, plan, count);
}

static ls_way way_of(int ranks, const call_plan *plan, size_t count) {
    return way_at(ranks, (ls_place){0}, plan, count);
}

/* Adds the plan with counts on both sides of each place where its way changes, and one of `most` elements. */
static int add_plans(call_plan *plans, int ranks, call_plan plan, size_t most) {
    int count = 0;
    for (size_t low = 1; low < most;) {
        size_t high = 2 * low < most ? 2 * low : most;
        const size_t next = high;
        const ls_way way = way_of(ranks, &plan, low);
        if (way_of(ranks, &plan, high) != way) {
            while (high - low > 1) {
                const size_t middle = (low + high) / 2;
                *(way_of(ranks, &plan, middle) == way ? &low : &high) = middle;
            }
            plan.count = low;
            plans[count++] = plan;
            plan.count = high;
            plans[count++] = plan;
        }
        low = next;
    }
    plan.count = most;
    plans[count++] = plan;
    return count;
}

static void check_ways(int ranks) {
    call_plan plans[MOST_PLANS];
    const size_t most = ranks <= 64 ? 150000 : ranks < 1000 ? 70000 : 40000; /* bytes of a rank's buffer */
    const size_t size = (size_t)ranks;
    static const struct {
        ls_operation operation;
        ls_dtype dtype;
    } kinds[] = {{LS_OP_ALLREDUCE, LS_F32},       {LS_OP_REDUCE, LS_F32},     {LS_OP_REDUCE_SCATTER, LS_F32},
                 {LS_OP_REDUCE_SCATTERV, LS_F32}, {LS_OP_ALLREDUCE, LS_BF16}, {LS_OP_REDUCE_SCATTER, LS_BF16},
                 {LS_OP_BROADCAST, LS_F32},       {LS_OP_ALLGATHER, LS_F32}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    int count = 0;
    for (int i = 0; i < KINDS; i++) {
        const bool whole = kinds[i].operation == LS_OP_ALLREDUCE || kinds[i].operation == LS_OP_REDUCE ||
                           kinds[i].operation == LS_OP_BROADCAST;
        const call_plan plan = {.operation = kinds[i].operation,
                                .dtype = kinds[i].dtype,
                                .reduction = LS_SUM,
                                .seed = size,
                                .root = ranks * 2 / 3};
        if (i == 0 || is_long() || i == 1 + ranks % (KINDS - 1)) {
            count += add_plans(plans + count, ranks, plan, most / ls_dtype_size(plan.dtype) / (whole ? 1 : size));
        }
    }
    assert_true(count <= MOST_PLANS);
    check_calls(&(world){.seed = size, .plans = plans, .calls = count, .odd_rank = -1}, ranks);
}

/* Random calls, of no elements and of few too, all by halves. */
static void check_halves(int ranks, int calls) {
    call_plan plans[MOST_PLANS];
    int count = 0;
    for (uint64_t seed = 0; count < calls; seed++) {
        const call_plan plan = call_plan_draw(seed * 1000 + (uint64_t)ranks, ranks, CALL_MOST_BYTES, true);
        if (call_reduces(&plan) || plan.operation == LS_OP_BROADCAST || plan.operation == LS_OP_ALLGATHER) {
            plans[count++] = plan;
        }
    }
    check_calls(
        &(world){.seed = (uint64_t)ranks * 7, .plans = plans, .calls = count, .odd_rank = -1, .wanted = LS_WAY_HALVES},
        ranks);
}

static void ways(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 64; ranks++) {
        check_ways(ranks);
        check_halves(ranks + 1, ranks <= 16 || is_long() ? 12 : 4); /* one alone has nothing to halve */
    }
    static const int many[] = {97, 100, 256, 1000, 1024};
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        check_ways(many[i]);
        check_halves(many[i], 2);
    }
    const call_plan sum = {.operation = LS_OP_ALLREDUCE, .dtype = LS_F32, .reduction = LS_SUM};
    assert_int_equal(way_of(64, &sum, 100), LS_WAY_WHOLE); /* or the list above is of something else */
    assert_int_equal(way_of(64, &sum, 30000), LS_WAY_HALVES);
    assert_int_equal(way_of(48, &sum, 30000), LS_WAY_HALVES);
    assert_int_equal(way_of(4, &sum, 30000), LS_WAY_SHARES);
    assert_int_equal(way_sharing(16, &sum, 65536), LS_WAY_WHOLE);
    assert_int_equal(way_sharing(16, &sum, 65537), LS_WAY_HALVES);
    assert_int_equal(way_sharing(4, &sum, 65536), way_of(4, &sum, 65536)); /* too few for a tree */
    static const call_plan varying = {.operation = LS_OP_ALLGATHERV, .dtype = LS_F32};
    static const ls_place eights = {8, 8}, pairs = {2, 2};
    assert_int_equal(way_at(16, eights, &varying, 100), LS_WAY_WHOLE);
    assert_int_equal(way_at(16, eights, &varying, 100000), LS_WAY_MACHINES);
    assert_int_equal(way_at(1024, pairs, &varying, 100), LS_WAY_SHARES); /* 512 machines one after the other */
    assert_int_equal(way_at(1024, pairs, &varying, 100000), LS_WAY_MACHINES);
    assert_int_equal(way_of(1024, &varying, 100000), LS_WAY_SHARES);
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* ---- several ranks on each of several machines ------------------------------------------------------------------- */

typedef struct site {
    int ranks;
    int machine_ranks;
} site;

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* What the links of machines have carried in a world that has ended: of each number the largest. */
static ls_sim_outside most_carried(const world *w, int machine_ranks) {
    ls_sim_outside most = {0};
    for (int first = 0; first < w->size; first += machine_ranks) {
        ls_sim_outside all = {0};
        for (int rank = first; rank < first + machine_ranks && rank < w->size; rank++) {
            const ls_sim_outside own = ls_sim_count_outside(w->network, rank);
            all.messages += own.messages;
            all.sent += own.sent;
            all.received += own.received;
        }
        most.messages = larger(most.messages, all.messages);
        most.sent = larger(most.sent, all.sent);
        most.received = larger(most.received, all.received);
    }
    return most;
}

static ls_sim_outside run_on_machines(const site *at, world w) {
    ls_sim_options options = options_of(at->ranks, w.seed);
    options.machine_ranks = at->machine_ranks;
    open_world(&w, &options);
    const ls_sim_outcome outcome = run_world(&w);
    if (!outcome.finished) {
        fail_msg("%d ranks, %d on a machine: not finished: %s", at->ranks, at->machine_ranks, outcome.text);
    }
    const ls_sim_outside most = most_carried(&w, at->machine_ranks);
    close_world(&w);
    return most;
}

/* One call: a machine's link carries its largest buffer at most so many times in a direction, and a little beside. */
static void check_link(const site *at, const call_plan *plan, size_t part, double out, double in) {
    const world w = {.seed = plan->seed + part, .plans = plan, .calls = 1, .odd_rank = -1, .part = part};
    const ls_sim_outside most = run_on_machines(at, w);
    const bool whole = plan->operation == LS_OP_ALLREDUCE || plan->operation == LS_OP_BROADCAST;
    const double buffer = (double)(plan->count * call_width(plan) * (whole ? 1 : (size_t)at->ranks));
    const double sent = (double)most.sent / buffer;
    const double received = (double)most.received / buffer;
    if (sent > 1.01 * out || received > 1.01 * in) {
        fail_msg("%d ranks, %d on a machine, %s from %d, parts of %zu: its link carries %g of %g out, %g of %g in",
                 at->ranks, at->machine_ranks, ls_operation_name((ls_operation)plan->operation), plan->root, part, sent,
                 out, received, in);
    }
}

/* What docs/COMMUNICATION.md says. */
static void check_links(const site *at, size_t part) {
    const int machine_count = (at->ranks + at->machine_ranks - 1) / at->machine_ranks;
    const bool in_pairs = (at->ranks & (at->ranks - 1)) == 0;
    const double away = 1 - 1.0 / machine_count;
    const double both = in_pairs ? 2 * away : 2;
    const size_t share = (size_t)(160000 / at->ranks);
    const call_plan sum = {.operation = LS_OP_ALLREDUCE, .dtype = LS_F32, .reduction = LS_SUM, .count = 40000};
    call_plan plan = sum;
    check_link(at, &plan, part, both, both);
    plan.reduction = LS_AVG;
    check_link(at, &plan, part, both, both);
    plan = sum;
    plan.operation = LS_OP_REDUCE_SCATTER;
    plan.count = share;
    check_link(at, &plan, part, in_pairs ? away : 1, in_pairs ? away : 4.0 / 3);
    plan = sum;
    plan.operation = LS_OP_BROADCAST;
    for (plan.root = 0; plan.root < at->ranks; plan.root += 1 + at->ranks / 4) {
        const double times = in_pairs || plan.root == 0 ? both : 4;
        check_link(at, &plan, part, times, times);
    }
    if (at->ranks % at->machine_ranks == 0) {
        plan = (call_plan){.operation = LS_OP_ALLGATHER, .dtype = LS_F32, .count = share};
        check_link(at, &plan, part, away, away);
        plan.operation = LS_OP_ALLGATHERV;
        check_link(at, &plan, part, away, away);
    }
}

/* One rank of each machine speaks for it. */
static void check_messages(const site *at) {
    static const call_plan small[] = {{.operation = LS_OP_ALLREDUCE, .dtype = LS_F32, .reduction = LS_SUM, .count = 3},
                                      {.operation = LS_OP_BARRIER, .dtype = LS_U8}};
    int levels = 0;
    while (at->machine_ranks << levels < at->ranks) {
        levels++;
    }
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        const ls_sim_outside most = run_on_machines(at, (world){.plans = &small[i], .calls = 1, .odd_rank = -1});
        if (most.messages > (uint64_t)(2 * levels)) {
            fail_msg("%d ranks, %d on a machine: it sends %llu messages", at->ranks, at->machine_ranks,
                     (unsigned long long)most.messages);
        }
    }
}

/* What a machine's link carries does not grow with the number of its ranks; the bits are the same in parts, however
 * machines lie, and when a rank of those dies. */
static void machines(void **state) {
    (void)state;
    static const site blocks[] = {{8, 4}, {8, 2}, {16, 8}, {32, 8}, {12, 4}, {24, 8}, {56, 8}, {14, 4}, {128, 16}};
    static const site others[] = {{6, 3}, {10, 5}, {9, 3}, {13, 6}, {7, 4}, {4, 2}, {64, 16}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        check_messages(&blocks[i]);
        for (size_t part = 0; part <= 20000; part += 10000) {
            check_links(&blocks[i], part);
        }
    }
    for (size_t i = 0; i < (sizeof blocks + sizeof others) / sizeof(site); i++) {
        const size_t known = sizeof blocks / sizeof *blocks;
        const site *at = i < known ? &blocks[i] : &others[i - known];
        run_on_machines(at, (world){.seed = 100 + i, .calls = 20, .odd_rank = -1, .part = 500 + 700 * i});
    }
}

static void places(void **state) {
    (void)state;
    static const struct {
        uint64_t machines[10];
        int size;
        ls_place place;
    } known[] = {
        {{0}, 1, {1, 1}},
        {{5, 5, 5}, 3, {4, 3}},
        {{0, 0, 0, 0, 1, 1, 1, 1}, 8, {4, 4}},
        {{7, 7, 1, 1, 7, 7, 1, 1}, 8, {2, 4}},
        {{0, 1, 0, 1, 0, 1, 0, 1}, 8, {1, 1}},
        {{0, 0, 0, 1, 1, 1}, 6, {1, 1}},
        {{0, 0, 0, 0, 1, 1}, 6, {4, 4}},
        {{0, 0, 1, 1, 1, 1}, 6, {2, 4}},
        {{0, 0, 0, 0, 1, 1, 1, 1, 2}, 9, {4, 4}},
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 10, {16, 10}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const ls_place place = ls_place_find(known[i].machines, sizeof(uint64_t), known[i].size);
        assert_int_equal(place.block_ranks, known[i].place.block_ranks);
        assert_int_equal(place.largest_machine, known[i].place.largest_machine);
    }
}

static void disagreement(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= (is_long() ? 64 : 20); ranks++) {
        check_world(ranks, (uint64_t)ranks * 31, 6, 2);
    }
    check_world(200, 1000, 3, 1);
}

/* One rank dies, or stops, at some moment: all others end with its name, or have made all calls. */
static void check_fault(uint64_t seed) {
    uint64_t random = seed;
    const int ranks = 2 + (int)call_draw(&random, 40);
    const int victim = (int)call_draw(&random, (uint64_t)ranks);
    const bool dies = call_draw(&random, 2) == 0;
    ls_sim_options options = options_of(ranks, seed);
    options.machine_ranks = seed % 5 == 2 ? 0 : (int)(seed % 7); /* those share cores: see open_world */
    options.eager = seed % 2 == 0 ? LS_TRANSPORT_LEAST_EAGER : 8192;
    world w = {.seed = seed,
               .calls = 12,
               .odd_rank = -1,
               .faulty = true,
               .part = 300,
               .wanted = seed % 3 == 0 ? LS_WAY_HALVES : LS_WAY_WHOLE};
    open_world(&w, &options);
    const uint64_t at = call_draw(&random, 300);
    if (dies) {
        sim_kill_after(w.network, victim, at);
    } else {
        sim_stop_after(w.network, victim, at);
    }
    const ls_sim_outcome outcome = run_world(&w);
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
    }
    close_world(&w);
}

static void faults(void **state) {
    (void)state;
    const uint64_t first = number("LOCKSTEP_ENGINE_SEED", 0);
    const uint64_t count = number("LOCKSTEP_ENGINE_SEEDS", first != 0 ? 1 : 10000);
    for (uint64_t i = 0; i < count; i++) {
        check_fault((first != 0 ? first : 1) + i);
    }
    if (first == 0) {
        check_fault(13449); /* two ranks that wait for each other, and both for the one that is stopped */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_bits), cmocka_unit_test(ways),         cmocka_unit_test(machines),
        cmocka_unit_test(places),     cmocka_unit_test(disagreement), cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
