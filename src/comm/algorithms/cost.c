/*
 * The cost of algorithms in the LogGP model, for a network with 2 us latency and 12 GB/s, and processors that take 0.3
 * us per message. Only the ratios matter, so times are expressed as the bytes that a link transfers in the same time.
 * With P ranks, n bytes and a header exchange of R steps, in which inline data passes a link L times (L is log2 P for
 * recursive doubling, and 3 log2 P up a tree and down again), an all-reduce takes:
 *
 * - inline: R steps in sequence and L n bytes
 * - Rabenseifner: 2 log2 P + 1 steps if halving overlaps with the header exchange, otherwise R + 2 log2 P and a few
 *   more; further messages between blocks of ranks; 2 n (P - 1)/P bytes
 * - direct: R + 2 steps, 2 (P - 1) further messages and 2 n (P - 1)/P bytes
 *
 * A reduce-scatter takes half of that, and so on. If ranks share cores, the model does not hold: each message takes a
 * switch between processes, or each step takes a turn of every process. Then the header exchange has 2 (P - 1) messages
 * in total, for the same bytes as the other algorithms, so data up to LS_INLINE_MOST_SHARED is inline (measured:
 * docs/internals/performance.md). Data that is not yet reduced is sent as accumulators, which may be wider than
 * elements.
 */
#include <math.h>

#include "comm/algorithms/table.h"
#include "comm/reduce.h"
#include "comm/reduce_kernels.h"

#define STEP    32768.0 /* bytes that a link transfers in 2.6 us, the time of a single message between two ranks */
#define MESSAGE 4096.0  /* bytes that a link transfers in 0.3 us, the cost of each further message of a rank */
#define ALIGNED 16      /* in elements: segments begin on a cache line if the buffer does */

/* Returns true if there are several machines, and each block of the tree lies within one machine. */
static bool has_machines(const ls_engine *engine) {
    return engine->place.block_ranks > 1 && engine->place.block_ranks < engine->size;
}

bool ls_cost_has_equal_machines(const ls_engine *engine) {
    const ls_place *place = &engine->place;
    return has_machines(engine) && place->largest_machine == place->block_ranks &&
           engine->size % place->block_ranks == 0;
}

/*
 * The ranks of a machine share its link. These functions return the fraction of a vector that the ranks of a machine
 * send to other machines in one phase. With recursive halving, if machines are blocks of W ranks, each rank keeps 1/W
 * of the vector before it exchanges data with other machines. With direct exchange, the fraction grows with the number
 * of ranks.
 */
static double on_link_by_halves(const ls_engine *engine) {
    const double block = engine->place.block_ranks;
    return has_machines(engine) ? engine->place.largest_machine / block * (1 - block / engine->size) : 0;
}

static double on_link_by_shares(const ls_engine *engine) {
    const double ranks = engine->place.largest_machine;
    return has_machines(engine) ? ranks * (engine->size - ranks) / engine->size : 0;
}

/* The amounts of data in a call. */
typedef struct amount {
    double headers;     /* cost of the header exchange */
    double accumulated; /* size of the data in bytes; in a reduction, as accumulators */
    double bytes;
} amount;

static double elements(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    switch (call->operation) {
    case LS_OP_ALLOC:
    case LS_OP_ALLREDUCE:
    case LS_OP_REDUCE:
    case LS_OP_REDUCE_SCATTER:
    case LS_OP_REDUCE_SCATTERV:
        return (double)ls_reduced_count(engine);
    case LS_OP_ALLGATHER:
    case LS_OP_SPLIT:
        return (double)call->count * engine->size;
    case LS_OP_ALLGATHERV:
        return (double)call->total;
    default:
        return (double)call->count;
    }
}

/* Returns the size of the call's accumulators in bytes. */
static double accumulated(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    const size_t width =
        ls_flows[call->operation].moves ? call->width : ls_reduce_find(call->dtype, call->reduction)->accumulator;
    return elements(engine) * (double)width;
}

/* If ranks share cores, the cost model does not hold: then costs are computed as if headers were never exchanged
 * along a tree. */
static bool has_tree(const ls_engine *engine) {
    return engine->shape.tree_levels > 0 && !engine->shape.shares_cores;
}

static double cost_headers(const ls_engine *engine) {
    const int up = has_tree(engine) ? engine->shape.tree_levels : 0;
    const int steps = has_tree(engine) ? 2 * engine->shape.tree_steps : 0;
    const int messages = has_tree(engine) ? 2 * engine->shape.tree_messages : 0;
    return (engine->shape.levels - up + steps) * STEP + (messages - steps) * MESSAGE;
}

/* Returns the number of consecutive passes of inline data over a link. */
static double passes_of_headers(const ls_engine *engine) {
    return has_tree(engine) ? engine->shape.levels - engine->shape.tree_levels + 2 * engine->shape.tree_messages
                            : engine->shape.levels;
}

static amount amount_of(const ls_engine *engine) {
    return (amount){.headers = cost_headers(engine),
                    .accumulated = accumulated(engine),
                    .bytes = elements(engine) * (double)engine->call.width};
}

double ls_cost_direct(const ls_engine *engine) {
    const amount data = amount_of(engine);
    const double others = engine->size - 1;
    /* If the ranks do not form pairs, some links carry two messages at a time and others carry none (simulated). */
    const double unevenly = engine->shape.butterfly ? 1 : 1.4;
    const double moved = fmax(unevenly * others / engine->size, on_link_by_shares(engine));
    const double phase = STEP + others * MESSAGE + moved * data.bytes;
    const bool one = ls_flows[engine->call.operation].assembles || ls_reduction_scatters(engine);
    return data.headers + phase * (one ? 1 : 2);
}

/* A direct all-gather sends a block to another machine once per rank of that machine; this algorithm sends it once. */
double ls_cost_hierarchical(const ls_engine *engine) {
    const amount data = amount_of(engine);
    const int machines = engine->size / engine->place.block_ranks;
    return data.headers + (1 + machines) * STEP + (engine->size - 1) * MESSAGE + data.bytes;
}

/*
 * Returns the fraction of a vector that the busiest rank transfers sequentially: a half, a quarter, ... in its block,
 * and then all sums of the next block, which first receives the sums of the block after it.
 */
static double moved_by_halves(int ranks) {
    double moved = 0;
    int next = 0; /* size of the previous, smaller block */
    for (int width = 1; width <= ranks; width *= 2) {
        if ((ranks & width) != 0) {
            moved = fmax(moved, 1 - 1.0 / width) + (next != 0 ? 1.0 / next : 0);
            next = width;
        }
    }
    return moved;
}

/* The blocks of ranks in recursive halving: powers of two, the largest first. */
typedef struct block_costs {
    int levels;     /* log2 of the size of the first block */
    double blocks;  /* after the first one */
    double meeting; /* messages between blocks */
    double moved;   /* fraction of the vector that a rank transfers sequentially */
    double up;      /* steps to the sums, */
    double down;    /* and back */
} block_costs;

static block_costs find_blocks(const ls_engine *engine) {
    block_costs b = {.levels = engine->shape.butterfly ? engine->shape.levels : engine->shape.levels - 1};
    for (int width = 1 << b.levels, before = width; width > 0; width /= 2) {
        if ((engine->size & width) != 0 && width != before) {
            b.blocks++;
            b.meeting += before / width;
            before = width;
        }
    }
    b.moved = fmax(moved_by_halves(engine->size), on_link_by_halves(engine));
    /* Number of levels of halving that overlap with the header exchange. */
    const double overlapped = engine->shape.butterfly && !has_tree(engine) ? b.levels - 1 : 0;
    b.up = b.levels - overlapped + b.blocks;
    b.down = b.levels + b.blocks;
    return b;
}

double ls_cost_bruck(const ls_engine *engine) {
    const amount data = amount_of(engine);
    const double others = 1 - 1.0 / engine->size;
    return data.headers + engine->shape.levels * STEP + engine->shape.levels * MESSAGE + /* two messages per step */
           fmax(others, on_link_by_shares(engine)) * data.bytes;
}

double ls_cost_van_de_geijn(const ls_engine *engine) {
    const amount data = amount_of(engine);
    const block_costs b = find_blocks(engine);
    return data.headers + (b.levels + b.down) * STEP + b.meeting * MESSAGE + (1 + b.moved) * data.bytes;
}

double ls_cost_rabenseifner(const ls_engine *engine) {
    const amount data = amount_of(engine);
    const block_costs b = find_blocks(engine);
    switch (engine->call.operation) {
    case LS_OP_REDUCE_SCATTER:
    case LS_OP_REDUCE_SCATTERV:
        return data.headers + (b.up + (b.blocks > 0)) * STEP + b.meeting * MESSAGE + b.moved * data.accumulated;
    case LS_OP_REDUCE:
        return data.headers + (b.up + 1) * STEP + (b.meeting + (1 << b.levels)) * MESSAGE + b.moved * data.accumulated +
               (1 - 1.0 / engine->size) * data.bytes;
    default:
        return data.headers + (b.up + b.down) * STEP + 2 * b.meeting * MESSAGE +
               b.moved * (data.accumulated + data.bytes);
    }
}

/*
 * An inline call costs nothing beyond its headers if every other algorithm needs at least one more step. Most calls are
 * small, so this case is checked first.
 */
double ls_cost_inline(const ls_engine *engine) {
    if (ls_flows[engine->call.operation].moves || engine->shape.shares_cores) {
        return 0;
    }
    const double inlined = passes_of_headers(engine) * accumulated(engine);
    return inlined <= STEP ? 0 : cost_headers(engine) + inlined;
}

/* A native collective is chosen whenever it is usable; a call on device memory has no other algorithm. */
double ls_cost_native(const ls_engine *engine) {
    return engine->call.stream != NULL ? -HUGE_VAL : -1;
}

/* ---- native collectives ------------------------------------------------------------------------------------------ */

/* The minimum number of ranks and bytes from which native collectives are faster than the engine's algorithms.
 * Measured: see docs/internals/performance.md. */
typedef struct network_row {
    int ranks;    /* 0: never */
    double bytes; /* size of the whole vector, over all ranks */
} network_row;

static const network_row network_rows[LS_OP_COUNT] = {
    [LS_OP_BROADCAST] = {4, LS_INLINE_MOST + 1},
    [LS_OP_REDUCE_SCATTER] = {4, LS_INLINE_MOST + 1},
    [LS_OP_REDUCE_SCATTERV] = {4, LS_INLINE_MOST + 1},
    [LS_OP_ALLGATHER] = {16, 1 << 19},
    [LS_OP_ALLGATHERV] = {16, 1 << 19},
};

/* Returns the size of the call's data in bytes if all ranks know it, or 0 if each rank knows only its own counts. */
static double bytes_known(const ls_call *call, int size) {
    switch (call->operation) {
    case LS_OP_GATHERV:
    case LS_OP_SCATTERV:
    case LS_OP_ALLTOALLV:
        return 0;
    case LS_OP_ALLGATHERV:
    case LS_OP_REDUCE_SCATTERV:
        return (double)call->total * (double)call->width;
    case LS_OP_ALLOC:
    case LS_OP_ALLREDUCE:
    case LS_OP_REDUCE:
    case LS_OP_BROADCAST:
        return (double)call->count * (double)call->width;
    default:
        return (double)call->count * (double)call->width * size;
    }
}

bool ls_native_is_usable(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    const network_row *row = &network_rows[call->operation];
    const ls_endpoint *endpoint = engine->endpoint;
    const ls_own_collectives own = endpoint->own;
    const bool forced = engine->settings[call->operation].forced == LS_ALGORITHM_NATIVE;
    if (call->stream != NULL) { /* the engine cannot access the buffers */
        return true;
    }
    if ((own == LS_OWN_NEVER && !forced) || engine->size == 1 || endpoint->transport->can_make == NULL) {
        return false;
    }
    if (!forced && own == LS_OWN_LARGE && bytes_known(call, engine->size) <= LS_INLINE_MOST) {
        return false;
    }
    if (!forced && own == LS_OWN_BEYOND && /* the engine minimizes inter-machine traffic; MPI's collectives do not */
        (has_machines(engine) || row->ranks == 0 || engine->size < row->ranks ||
         bytes_known(call, engine->size) < row->bytes)) {
        return false;
    }
    /* For other operations, can_make returns the same value on all ranks. */
    const bool differs = ls_agreement_varies(call->operation) || call->operation == LS_OP_ALLGATHERV;
    return differs || endpoint->transport->can_make(endpoint, call);
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Chooses the segment size: four times the number of bytes that a link could transfer in the time that a segment's
 * messages cost, with all segments in flight. */
size_t ls_segment_count(const ls_engine *engine) {
    const size_t count = engine->call.count;
    const double beside = 2.0 * engine->shape.levels * (STEP / LS_ENGINE_SEGMENTS + MESSAGE);
    const double bytes = engine->part_wanted != 0 ? (double)engine->part_wanted : 4 * beside;
    const double parts = (double)count * (double)engine->call.width / bytes;
    if (!has_machines(engine) || parts < 2) {
        return count;
    }
    return (size_t)((double)count / floor(parts) / ALIGNED + 1) * ALIGNED;
}
