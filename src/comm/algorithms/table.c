#include "comm/algorithms/table.h"

#include <math.h>
#include <string.h>

#include "comm/reduce.h"

#define BIT(operation) (UINT32_C(1) << (operation))

enum {
    REDUCES_TO_ALL = BIT(LS_OP_ALLREDUCE) | BIT(LS_OP_ALLOC),
    REDUCES = REDUCES_TO_ALL | BIT(LS_OP_REDUCE) | BIT(LS_OP_REDUCE_SCATTER) | BIT(LS_OP_REDUCE_SCATTERV),
    GATHERS_ALL = BIT(LS_OP_ALLGATHER) | BIT(LS_OP_SPLIT), /* blocks of one size */
    VARIES = BIT(LS_OP_GATHERV) | BIT(LS_OP_ALLTOALLV),    /* no rank knows the counts of the other ranks */
    EVERY = (BIT(LS_OP_SPLIT) << 1) - 1
};

/* ---- when an algorithm can be used ------------------------------------------------------------------------------- */

static bool has_partners(const ls_engine *engine) {
    return engine->size > 1;
}

/* Returns true if headers are exchanged by recursive doubling alone: in each step, every rank of one half of a block
   exchanges with its partner in the other half. */
static bool doubles(const ls_engine *engine) {
    return engine->shape.butterfly && engine->shape.tree_levels == 0;
}

static bool fits_and_doubles(const ls_engine *engine) {
    return doubles(engine) && ls_payload_fits(engine);
}

static bool fits_and_has_tree(const ls_engine *engine) {
    return !doubles(engine) && ls_payload_fits(engine);
}

static bool reduces_directly(const ls_engine *engine) {
    return ls_flows[engine->call.operation].moves || engine->size <= LS_REDUCE_MAX_RANKS;
}

static bool has_machines(const ls_engine *engine) {
    return has_partners(engine) && ls_cost_has_equal_machines(engine);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* If algorithms have the same cost, the first is used. */
static const ls_algorithm table[] = {
    {.id = LS_ALGORITHM_NATIVE,
     .about = "a collective of the MPI library, of libgloo or of NCCL",
     .calls = EVERY,
     .is_usable = ls_native_is_usable,
     .cost = ls_cost_native,
     .run = ls_native_run},
    {.id = LS_ALGORITHM_RECURSIVE_DOUBLING,
     .about = "data inline in the headers, which ranks at distances 1, 2, 4 ... exchange; P is a power of two",
     .calls = EVERY & ~VARIES,
     .is_usable = fits_and_doubles,
     .cost = ls_cost_inline},
    {.id = LS_ALGORITHM_TREE,
     .about = "data inline in the headers, which go up a tree and down again",
     .calls = EVERY & ~VARIES,
     .is_usable = fits_and_has_tree,
     .cost = ls_cost_inline},
    {.id = LS_ALGORITHM_DIRECT,
     .about = "each rank sends to every other rank; reductions as direct reduce-scatter and all-gather",
     .calls = EVERY,
     .is_usable = reduces_directly,
     .cost = ls_cost_direct,
     .run = ls_direct_run},
    {.id = LS_ALGORITHM_RABENSEIFNER,
     .about = "recursive halving, then recursive doubling, over binary blocks of ranks",
     .calls = REDUCES,
     .is_usable = has_partners,
     .cost = ls_cost_rabenseifner,
     .prepare = ls_rabenseifner_prepare,
     .after_level = ls_rabenseifner_level,
     .run = ls_rabenseifner_run},
    {.id = LS_ALGORITHM_VAN_DE_GEIJN,
     .about = "binomial scatter, then all-gather by recursive doubling",
     .calls = BIT(LS_OP_BROADCAST),
     .is_usable = has_partners,
     .cost = ls_cost_van_de_geijn,
     .prepare = ls_rabenseifner_prepare,
     .run = ls_van_de_geijn_run},
    {.id = LS_ALGORITHM_BRUCK,
     .about = "each step doubles the blocks of a rank",
     .calls = GATHERS_ALL,
     .is_usable = has_partners,
     .cost = ls_cost_bruck,
     .run = ls_bruck_run},
    {.id = LS_ALGORITHM_HIERARCHICAL,
     .about = "between machines, each block once, then within each machine",
     .calls = GATHERS_ALL | BIT(LS_OP_ALLGATHERV),
     .is_usable = has_machines,
     .cost = ls_cost_hierarchical,
     .run = ls_hierarchical_run},
};

enum { ROWS = sizeof table / sizeof *table };

static bool has_call(const ls_algorithm *algorithm, ls_operation operation) {
    return (algorithm->calls & BIT(operation)) != 0;
}

ls_algorithm_list ls_engine_algorithms(const char *backend) {
    const bool is_tcp = backend != NULL && strcmp(backend, "tcp") == 0;
    ls_algorithm_list list = {.backend = backend != NULL ? backend : "tcp, mpi, gloo or nccl",
                              .absent = is_tcp ? LS_ALGORITHM_BIT(LS_ALGORITHM_NATIVE) : 0};
    for (int i = 0; i < ROWS; i++) {
        for (int operation = 0; operation < LS_OP_COUNT; operation++) {
            list.calls[operation] |= has_call(&table[i], (ls_operation)operation) ? LS_ALGORITHM_BIT(table[i].id) : 0;
            list.calls[operation] &= ~list.absent;
        }
    }
    return list;
}

static const ls_algorithm *find(ls_algorithm_id id) {
    const ls_algorithm *algorithm = table;
    while (algorithm->id != id) {
        algorithm++;
    }
    return algorithm;
}

const ls_algorithm *ls_algorithm_direct(void) {
    return find(LS_ALGORITHM_DIRECT);
}

void ls_algorithm_force(ls_engine *engine, ls_algorithm_id id) {
    for (int operation = 0; operation < LS_OP_COUNT; operation++) {
        if (has_call(find(id), (ls_operation)operation)) {
            engine->settings[operation].forced = id;
        }
    }
}

static const ls_algorithm *select_cheapest(const ls_engine *engine, uint32_t excluded) {
    const ls_algorithm *best = NULL;
    double least = HUGE_VAL;
    for (const ls_algorithm *each = table; each < table + ROWS && least > 0; each++) {
        if (has_call(each, engine->call.operation) && (excluded & LS_ALGORITHM_BIT(each->id)) == 0 &&
            each->is_usable(engine)) {
            const double cost = each->cost(engine);
            best = cost < least ? each : best;
            least = cost < least ? cost : least;
        }
    }
    return best != NULL ? best : ls_algorithm_direct();
}

const ls_algorithm *ls_algorithm_select(const ls_engine *engine) {
    const ls_algorithm_setting setting = engine->settings[engine->call.operation];
    const bool chooses = setting.forced == LS_ALGORITHM_DEFAULT || engine->call.stream != NULL;
    const ls_algorithm *forced = chooses ? NULL : find(setting.forced);
    return forced != NULL && forced->is_usable(engine) ? forced : select_cheapest(engine, setting.excluded);
}
