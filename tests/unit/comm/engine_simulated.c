/*
 * The engine of collectives on a simulated network (comm/transport/simulated): every call with many numbers of ranks
 * gives the exact result with at most the promised number of messages. If ranks disagree, all get an error. A failing
 * seed is printed. LOCKSTEP_TEST_LONG=1 runs more of everything. engine_faults.c tests ranks that die.
 *
 * devices: cpu
 * timeout: 900
 * cost: 60
 */
#include <stdlib.h>
#include <string.h>

#include "tests/simulated/engine_world.h"
#include "tests/support/unit.h"

enum { MOST_PLANS = 40, MANY = IS_SANITIZED ? 300 : 2000 };

static void check_calls(world *w, int ranks) {
    const ls_sim_options options = world_options(ranks, w->seed);
    world_open(w, &options);
    const ls_sim_outcome outcome = world_run(w);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks: not finished: %s", (unsigned long long)w->seed, ranks, outcome.text);
    }
    for (int rank = 0; rank < ranks && w->odd_rank >= 0 && ranks > 1; rank++) {
        assert_int_equal(w->ranks[rank].status, LS_ERR_MISMATCH);
        assert_non_null(strstr(w->ranks[rank].message, "the ranks made different calls"));
    }
    world_close(w);
}

static void check_world(int ranks, uint64_t seed, int calls, int odd_call) {
    world w = {.size = ranks,
               .seed = seed,
               .calls = calls,
               .odd_rank = odd_call >= 0 ? (int)(seed % (uint64_t)ranks) : -1,
               .odd_call = odd_call,
               .halving = odd_call >= 0 && seed % 2 == 0};
    while (odd_call >= 0 && world_plan(&w, w.odd_call).operation == CALL_RING) {
        w.odd_call = ++w.calls - 1; /* sends and receives are not compared */
    }
    check_calls(&w, ranks);
}

TEST(right_bits) {
    const bool all = world_is_long();
    for (int ranks = 1; ranks <= 64; ranks++) {
        check_world(ranks, (uint64_t)ranks * 17, (ranks <= 16 ? 20 : 5) * (all ? 3 : 1), -1);
    }
    static const int many[] = {100, 256, 1000, 1024};
    for (size_t i = 0; i < sizeof many / sizeof *many && many[i] < MANY; i++) {
        check_world(many[i], (uint64_t)many[i], all ? 14 : 10, -1);
    }
    check_world(330, 333, all ? 14 : 10, -1);           /* with shared cores, three steps down the tree, */
    check_world(1030, 1033, IS_SANITIZED ? 2 : 10, -1); /* and three up */
}

/* ---- sizes at which a reduction changes its algorithm ------------------------------------------------------------ */

/* Returns the algorithm on a network without native collectives. */
static ls_algorithm_id algorithm_over(ls_endpoint *endpoint, int ranks, ls_place place, const call_plan *plan,
                                      size_t count) {
    static ls_engine model; /* never opened: it only selects the algorithm */
    model = (ls_engine){.endpoint = endpoint, .size = ranks, .place = place};
    ls_headers_find_shape(&model);
    model.call = (ls_call){.operation = (ls_operation)plan->operation,
                           .dtype = plan->dtype,
                           .reduction = plan->reduction,
                           .width = ls_dtype_size(plan->dtype),
                           .count = count,
                           .total = count * (size_t)ranks};
    return ls_algorithm_select(&model)->id;
}

static ls_algorithm_id algorithm_at(int ranks, ls_place place, const call_plan *plan, size_t count) {
    return algorithm_over(&(ls_endpoint){.eager = 0}, ranks, place, plan, count);
}

/* Returns the algorithm for ranks that share the cores of one machine. */
static ls_algorithm_id algorithm_sharing(int ranks, const call_plan *plan, size_t count) {
    return algorithm_over(&(ls_endpoint){.oversubscribed = true}, ranks, (ls_place){0}, plan, count);
}

static ls_algorithm_id algorithm_of(int ranks, const call_plan *plan, size_t count) {
    return algorithm_at(ranks, (ls_place){0}, plan, count);
}

/* Adds the plan with the counts just below and above each switch between algorithms, and with `most` elements. */
static int add_plans(call_plan *plans, int ranks, call_plan plan, size_t most) {
    int count = 0;
    for (size_t low = 1; low < most;) {
        size_t high = 2 * low < most ? 2 * low : most;
        const size_t next = high;
        const ls_algorithm_id id = algorithm_of(ranks, &plan, low);
        if (algorithm_of(ranks, &plan, high) != id) {
            while (high - low > 1) {
                const size_t middle = (low + high) / 2;
                *(algorithm_of(ranks, &plan, middle) == id ? &low : &high) = middle;
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

static void check_algorithms(int ranks) {
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
        const call_plan plan = {.operation = (int)kinds[i].operation,
                                .dtype = kinds[i].dtype,
                                .reduction = LS_SUM,
                                .seed = size,
                                .root = ranks * 2 / 3};
        if (i == 0 || world_is_long() || i == 1 + ranks % (KINDS - 1)) {
            count += add_plans(plans + count, ranks, plan, most / ls_dtype_size(plan.dtype) / (whole ? 1 : size));
        }
    }
    assert_true(count <= MOST_PLANS);
    check_calls(&(world){.seed = size, .plans = plans, .calls = count, .odd_rank = -1}, ranks);
}

/* Makes random calls, some with none or few elements, all with recursive halving. */
static void check_halves(int ranks, int calls) {
    call_plan plans[MOST_PLANS];
    int count = 0;
    for (uint64_t seed = 0; count < calls; seed++) {
        const call_plan plan = call_plan_draw(seed * 1000 + (uint64_t)ranks, ranks, CALL_MOST_BYTES, true);
        if (call_reduces(&plan) || plan.operation == LS_OP_BROADCAST || plan.operation == LS_OP_ALLGATHER) {
            plans[count++] = plan;
        }
    }
    check_calls(&(world){.seed = (uint64_t)ranks * 7, .plans = plans, .calls = count, .odd_rank = -1, .halving = true},
                ranks);
}

TEST(algorithms) {
    for (int ranks = 1; ranks <= 64; ranks++) {
        check_algorithms(ranks);
        check_halves(ranks + 1, ranks <= 16 || world_is_long() ? 12 : 4); /* a single rank has nothing to halve */
    }
    static const int many[] = {97, 100, 256, 1000, 1024};
    for (size_t i = 0; i < sizeof many / sizeof *many && many[i] < MANY; i++) {
        check_algorithms(many[i]);
        check_halves(many[i], 2);
    }
    const call_plan sum = {.operation = LS_OP_ALLREDUCE, .dtype = LS_F32, .reduction = LS_SUM};
    assert_int_equal(algorithm_of(64, &sum, 100),
                     LS_ALGORITHM_RECURSIVE_DOUBLING); /* otherwise the list above tests the wrong algorithm */
    assert_int_equal(algorithm_of(64, &sum, 30000), LS_ALGORITHM_RABENSEIFNER);
    assert_int_equal(algorithm_of(48, &sum, 30000), LS_ALGORITHM_RABENSEIFNER);
    assert_int_equal(algorithm_of(4, &sum, 30000), LS_ALGORITHM_DIRECT);
    assert_int_equal(algorithm_sharing(16, &sum, 65536), LS_ALGORITHM_TREE);
    assert_int_equal(algorithm_sharing(16, &sum, 65537), LS_ALGORITHM_RABENSEIFNER);
    assert_int_equal(algorithm_sharing(4, &sum, 65536), algorithm_of(4, &sum, 65536)); /* too few for a tree */
    static const call_plan varying = {.operation = LS_OP_ALLGATHERV, .dtype = LS_F32};
    static const ls_place eights = {8, 8}, pairs = {2, 2};
    assert_int_equal(algorithm_at(16, eights, &varying, 100), LS_ALGORITHM_TREE);
    assert_int_equal(algorithm_at(16, eights, &varying, 100000), LS_ALGORITHM_HIERARCHICAL);
    assert_int_equal(algorithm_at(1024, pairs, &varying, 100), LS_ALGORITHM_DIRECT); /* 512 machines in sequence */
    assert_int_equal(algorithm_at(1024, pairs, &varying, 100000), LS_ALGORITHM_HIERARCHICAL);
    assert_int_equal(algorithm_of(1024, &varying, 100000), LS_ALGORITHM_DIRECT);
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

/* Returns the maximum of each counter of the machines' links, in a finished world. */
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
    ls_sim_options options = world_options(at->ranks, w.seed);
    options.machine_ranks = at->machine_ranks;
    world_open(&w, &options);
    const ls_sim_outcome outcome = world_run(&w);
    if (!outcome.finished) {
        fail_msg("%d ranks, %d on a machine: not finished: %s", at->ranks, at->machine_ranks, outcome.text);
    }
    const ls_sim_outside most = most_carried(&w, at->machine_ranks);
    world_close(&w);
    return most;
}

/*
 * Makes one call, and checks that each machine's link carries, in each direction, at most this number of times the size
 * of the largest buffer, plus a small amount.
 */
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

/* The values in docs/reference/communication.md. */
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

/* Checks that one rank of each machine communicates with the other machines. */
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

/*
 * The load of a machine's link does not grow with its number of ranks. Results are bit-identical when sent in parts,
 * for any distribution of ranks over machines, and if one of these ranks dies.
 */
TEST(machines) {
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

TEST(places) {
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

/* ---- every algorithm, forced ------------------------------------------------------------------------------------- */

/* Makes random calls of all kinds and sizes. Each call that supports the algorithm uses it if possible. */
static int check_forced(ls_algorithm_id id, int ranks, int calls) {
    static const int machine_ranks[] = {1, 2, 3, 8};
    int used = 0;
    int on_machine = 1; /* the largest number of ranks per machine that divides the ranks equally */
    for (size_t i = 0; i < sizeof machine_ranks / sizeof *machine_ranks; i++) {
        on_machine = ranks % machine_ranks[i] == 0 && ranks > machine_ranks[i] ? machine_ranks[i] : on_machine;
    }
    world w = {.seed = (uint64_t)ranks * 5 + 1, .calls = calls, .odd_rank = -1, .forced = id, .used = &used};
    ls_sim_options options = world_options(ranks, w.seed);
    options.machine_ranks = id == LS_ALGORITHM_HIERARCHICAL || id == LS_ALGORITHM_TREE ? on_machine : 0;
    world_open(&w, &options);
    const ls_sim_outcome outcome = world_run(&w);
    if (!outcome.finished) {
        fail_msg("%s, %d ranks: not finished: %s", ls_algorithm_name(id), ranks, outcome.text);
    }
    world_close(&w);
    return used;
}

TEST(every_algorithm) {
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 1000}; /* 1000 takes long */
    const size_t count = sizeof sizes / sizeof *sizes - (world_is_long() ? 0 : 1);
    const ls_algorithm_list list = ls_engine_algorithms(NULL);
    for (int id = LS_ALGORITHM_DEFAULT + 1; id < LS_ALGORITHM_NATIVE; id++) { /* native: unit/engine_network */
        uint32_t calls = 0;
        int used = 0;
        for (int operation = 0; operation < LS_OP_COUNT; operation++) {
            calls |= list.calls[operation];
        }
        assert_true((calls & LS_ALGORITHM_BIT(id)) != 0);
        for (size_t i = 0; i < count; i++) {
            used += check_forced((ls_algorithm_id)id, sizes[i], sizes[i] < 1000 ? (world_is_long() ? 200 : 30) : 6);
        }
        if (used == 0) {
            fail_msg("no call used algorithm %s", ls_algorithm_name((ls_algorithm_id)id));
        }
    }
}

TEST(disagreement) {
    for (int ranks = 2; ranks <= (world_is_long() ? 64 : 20); ranks++) {
        check_world(ranks, (uint64_t)ranks * 31, 6, 2);
    }
    check_world(200, 1000, 3, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_bits), cmocka_unit_test(algorithms),      cmocka_unit_test(machines),
        cmocka_unit_test(places),     cmocka_unit_test(every_algorithm), cmocka_unit_test(disagreement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
