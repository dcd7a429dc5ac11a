/*
 * How a call is made that moves much: what takes least time in the model of LogGP on a network of 2 us and 12 GB/s with
 * processors that take 0.3 us for a message. Only the ratios of these count, so times are in bytes that a link moves
 * meanwhile. With P ranks, n bytes and rounds of R steps, in which data passes a link L times (both log2 P of a
 * butterfly; log2 P and 3 log2 P up a tree and down):
 *
 *     all-reduce   steps one after the other                messages beside these        bytes
 *     whole        R                                                                     L n
 *     halves       2 log2 P + 1, or R + 2 log2 P + few      between blocks of ranks      2 n (P - 1)/P
 *     shares       R + 2                                    2 (P - 1)                    2 n (P - 1)/P
 *
 * A reduce-scatter is half of that, and so on. Where ranks share cores the model does not hold: each message takes a
 * switch between processes, or each step a turn of all of them, and the rounds have 2 (P - 1) in all, for the bytes
 * that halves and shares move, too, so data travels in them up to LS_ENGINE_CARRIED_SHARED (measured:
 * docs/internals/performance.md). What travels before it is reduced to the end are accumulators, which may be wider
 * than elements.
 */
#include <math.h>

#include "comm/collective/inside.h"
#include "comm/reduce.h"
#include "comm/reduce_kernels.h"

#define STEP    32768.0 /* bytes in 2.6 us: a message from one rank to another */
#define MESSAGE 4096.0  /* and in 0.3 us: one more message of the same rank */
#define ALIGNED 16      /* elements: parts begin with a cache line where the buffer does */

/* Whether there are several machines, and blocks of the tree that are on one. */
static bool has_machines(const ls_engine *engine) {
    return engine->place.block_ranks > 1 && engine->place.block_ranks < engine->size;
}

static bool has_equal_machines(const ls_engine *engine) {
    const ls_place *place = &engine->place;
    return has_machines(engine) && place->largest_machine == place->block_ranks &&
           engine->size % place->block_ranks == 0;
}

/*
 * The ranks of a machine share its link. What part of a vector they send to other machines in one phase: where machines
 * are blocks of W ranks, each keeps 1/W of the vector before it asks others; by shares it grows with the number of
 * ranks.
 */
static double on_link_by_halves(const ls_engine *engine) {
    const double block = engine->place.block_ranks;
    return has_machines(engine) ? engine->place.largest_machine / block * (1 - block / engine->size) : 0;
}

static double on_link_by_shares(const ls_engine *engine) {
    const double ranks = engine->place.largest_machine;
    return has_machines(engine) ? ranks * (engine->size - ranks) / engine->size : 0;
}

/* The data of a call. */
typedef struct amount {
    double rounds;      /* what they take without it */
    double accumulated; /* bytes of it, as accumulators where it is reduced */
    double bytes;
} amount;

static double cost_shares(const ls_engine *engine, const amount *of) {
    const double others = engine->size - 1;
    /* Where ranks are not in pairs, some links have two messages at a time and others none (simulated). */
    const double unevenly = engine->butterfly ? 1 : 1.4;
    const double moved = fmax(unevenly * others / engine->size, on_link_by_shares(engine));
    const double phase = STEP + others * MESSAGE + moved * of->bytes;
    const bool one = ls_flows[engine->call.operation].assembles || ls_reduction_scatters(engine);
    return of->rounds + phase * (one ? 1 : 2);
}

/* An all-gather by shares crosses once for each rank of a machine; here, once. */
static double cost_machines(const ls_engine *engine, const amount *of) {
    const int machines = engine->size / engine->place.block_ranks;
    return of->rounds + (1 + machines) * STEP + (engine->size - 1) * MESSAGE + of->bytes;
}

/*
 * Of a vector, by the rank that moves most of it one after the other: a half, a quarter, ... in its block of ranks, and
 * then all sums of the block behind, which that has when it has those of the one behind it.
 */
static double moved_by_halves(int ranks) {
    double moved = 0;
    int behind = 0;
    for (int width = 1; width <= ranks; width *= 2) {
        if ((ranks & width) != 0) {
            moved = fmax(moved, 1 - 1.0 / width) + (behind != 0 ? 1.0 / behind : 0);
            behind = width;
        }
    }
    return moved;
}

/* Where ranks share cores the model does not hold: as if there were no trees. */
static bool has_tree(const ls_engine *engine) {
    return engine->tree_levels > 0 && !engine->shares_cores;
}

static double cost_rounds(const ls_engine *engine) {
    const int up = has_tree(engine) ? engine->tree_levels : 0;
    const int steps = has_tree(engine) ? 2 * engine->tree_steps : 0;
    const int messages = has_tree(engine) ? 2 * engine->tree_messages : 0;
    return (engine->levels - up + steps) * STEP + (messages - steps) * MESSAGE;
}

/* How often data of the rounds passes a link, one after the other. */
static double passes_of_rounds(const ls_engine *engine) {
    return has_tree(engine) ? engine->levels - engine->tree_levels + 2 * engine->tree_messages : engine->levels;
}

static double cost_halves(const ls_engine *engine, const amount *of) {
    const int levels = engine->butterfly ? engine->levels : engine->levels - 1;
    double blocks = 0; /* of ranks, behind the first one */
    double meeting = 0;
    for (int width = 1 << levels, before = width; width > 0; width /= 2) {
        if ((engine->size & width) != 0 && width != before) {
            blocks++;
            meeting += before / width;
            before = width;
        }
    }
    const double others = 1 - 1.0 / engine->size;
    const double moved = fmax(moved_by_halves(engine->size), on_link_by_halves(engine));
    /* Levels of halving that go on at the same time as rounds. */
    const double overlapped = engine->butterfly && !has_tree(engine) ? levels - 1 : 0;
    const double up = levels - overlapped + blocks;
    const double down = levels + blocks;
    switch (engine->call.operation) {
    case LS_OP_ALLGATHER:
    case LS_OP_SPLIT: /* two messages in a step */
        return of->rounds + engine->levels * STEP + engine->levels * MESSAGE +
               fmax(others, on_link_by_shares(engine)) * of->bytes;
    case LS_OP_BROADCAST:
        return of->rounds + (levels + down) * STEP + meeting * MESSAGE + (1 + moved) * of->bytes;
    case LS_OP_REDUCE_SCATTER:
    case LS_OP_REDUCE_SCATTERV:
        return of->rounds + (up + (blocks > 0)) * STEP + meeting * MESSAGE + moved * of->accumulated;
    case LS_OP_REDUCE:
        return of->rounds + (up + 1) * STEP + (meeting + (1 << levels)) * MESSAGE + moved * of->accumulated +
               others * of->bytes;
    default:
        return of->rounds + (up + down) * STEP + 2 * meeting * MESSAGE + moved * (of->accumulated + of->bytes);
    }
}

/* ---- the network's own collectives ------------------------------------------------------------------------------- */

/* From how many ranks and bytes on they are faster than what the engine makes of messages: measured, see
 * docs/internals/performance.md. */
typedef struct network_row {
    int ranks;    /* 0: never */
    double bytes; /* of the whole vector, of all ranks */
} network_row;

static const network_row network_rows[LS_OP_COUNT] = {
    [LS_OP_BROADCAST] = {4, LS_ENGINE_CARRIED + 1},
    [LS_OP_REDUCE_SCATTER] = {4, LS_ENGINE_CARRIED + 1},
    [LS_OP_REDUCE_SCATTERV] = {4, LS_ENGINE_CARRIED + 1},
    [LS_OP_ALLGATHER] = {16, 1 << 19},
    [LS_OP_ALLGATHERV] = {16, 1 << 19},
};

/* Bytes of the call's data, as all ranks know them; 0: each knows its own only. */
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

bool ls_choose_network(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    const network_row *row = &network_rows[call->operation];
    const ls_own_collectives own = engine->endpoint->own;
    if (call->stream != NULL) { /* nobody else reaches the buffers */
        return true;
    }
    if (own == LS_OWN_NEVER || engine->size == 1) {
        return false;
    }
    if (own == LS_OWN_LARGE && bytes_known(call, engine->size) <= LS_ENGINE_CARRIED) {
        return false;
    }
    if (own == LS_OWN_BEYOND && /* the engine spares the links of machines, MPI's nonblocking ones do not */
        (has_machines(engine) || row->ranks == 0 || engine->size < row->ranks ||
         bytes_known(call, engine->size) < row->bytes)) {
        return false;
    }
    /* Of others than these all ranks get the same answer. */
    const ls_endpoint *endpoint = engine->endpoint;
    const bool differs = ls_agreement_varies(call->operation) || call->operation == LS_OP_ALLGATHERV;
    return differs || endpoint->transport->can_make(endpoint, call);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static ls_way choose(const ls_engine *engine, const amount *of) {
    const ls_operation operation = engine->call.operation;
    const bool reduces = !ls_flows[operation].moves;
    const bool varies = operation == LS_OP_ALLGATHERV; /* blocks of several ranks are not one piece of memory */
    const bool fits = of->accumulated <= (double)engine->carried_most;
    if (engine->wanted != LS_WAY_WHOLE && !(varies && engine->wanted == LS_WAY_HALVES)) {
        return engine->wanted;
    }
    if (engine->size == 1) {
        return LS_WAY_SHARES; /* its own */
    }
    const double carried = passes_of_rounds(engine) * of->accumulated;
    if (fits && (!reduces || carried <= STEP || engine->shares_cores)) {
        return LS_WAY_WHOLE; /* as the others take a step more at least, or many messages */
    }
    const double whole = fits ? of->rounds + carried : HUGE_VAL;
    const double halves = varies ? HUGE_VAL : cost_halves(engine, of);
    const double shares = reduces && engine->size > LS_REDUCE_MAX_RANKS ? HUGE_VAL : cost_shares(engine, of);
    const bool gathers = operation == LS_OP_ALLGATHER || varies || operation == LS_OP_SPLIT;
    const double by_machines = gathers && has_equal_machines(engine) ? cost_machines(engine, of) : HUGE_VAL;
    if (by_machines < halves && by_machines < shares) {
        return LS_WAY_MACHINES;
    }
    return whole <= halves && whole <= shares ? LS_WAY_WHOLE : halves < shares ? LS_WAY_HALVES : LS_WAY_SHARES;
}

ls_way ls_choose_way(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    if (ls_choose_network(engine)) {
        return LS_WAY_NETWORK;
    }
    amount of = {.rounds = cost_rounds(engine)};
    double count = (double)call->count;
    double accumulator = (double)call->width;
    switch (call->operation) {
    case LS_OP_ALLOC:
    case LS_OP_ALLREDUCE:
    case LS_OP_REDUCE:
    case LS_OP_REDUCE_SCATTER:
    case LS_OP_REDUCE_SCATTERV:
        count = (double)ls_reduced_count(engine);
        accumulator = (double)ls_reduce_find(call->dtype, call->reduction)->accumulator;
        break;
    case LS_OP_BROADCAST:
        break;
    case LS_OP_ALLGATHER:
    case LS_OP_SPLIT:
        count *= engine->size;
        break;
    case LS_OP_ALLGATHERV:
        count = (double)call->total;
        break;
    default:
        return LS_WAY_SHARES;
    }
    of.accumulated = count * accumulator;
    of.bytes = count * (double)call->width;
    return choose(engine, &of);
}

/* So many bytes that what its messages take beside, in lanes one beside the other, is a quarter of that. */
size_t ls_choose_part(const ls_engine *engine) {
    const size_t count = engine->call.count;
    const double beside = 2.0 * engine->levels * (STEP / LS_ENGINE_LANES + MESSAGE);
    const double bytes = engine->part_wanted != 0 ? (double)engine->part_wanted : 4 * beside;
    const double parts = (double)count * (double)engine->call.width / bytes;
    if (!has_machines(engine) || parts < 2) {
        return count;
    }
    return (size_t)((double)count / floor(parts) / ALIGNED + 1) * ALIGNED;
}
