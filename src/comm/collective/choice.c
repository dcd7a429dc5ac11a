/*
 * How a reduction is made: what takes least time in the model of LogGP on a network of 2 us and 12 GB/s with processors
 * that take 0.3 us for a message. Only the ratios of these count, so times are in bytes that a link moves meanwhile.
 * With P ranks, n bytes and R rounds (log2 P of a butterfly, else twice as many, up a tree and down):
 *
 *     way      steps one after the other                    messages beside these        bytes
 *     whole    R                                                                         R n
 *     halves   2 log2 P + 1, or R + 2 log2 P + few          between blocks of ranks      2 n
 *     shares   R + 2                                        2 (P - 1)                    2 n
 *
 * What travels before it is reduced to the end are accumulators, which may be wider than elements.
 */
#include <math.h>

#include "comm/collective/inside.h"
#include "comm/reduce.h"
#include "comm/reduce_kernels.h"

#define STEP    32768.0 /* bytes in 2.6 us: a message from one rank to another */
#define MESSAGE 4096.0  /* and in 0.3 us: one more message of the same rank */

/* What is to be reduced. */
typedef struct amount {
    bool scatters; /* each rank wants a part, so that nothing follows the reduction */
    double rounds;
    double accumulated; /* bytes */
    double bytes;
} amount;

static double cost_shares(const ls_engine *engine, const amount *of) {
    const double others = engine->size - 1;
    const double phase = STEP + others * MESSAGE + of->bytes * others / engine->size;
    return of->rounds * STEP + phase * (of->scatters ? 1 : 2);
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
    const double together = engine->butterfly ? levels - 1 : 0; /* with rounds */
    const double up = of->rounds - together + levels + blocks;
    if (of->scatters) {
        return (up + (blocks > 0)) * STEP + meeting * MESSAGE + of->accumulated;
    }
    if (engine->call.operation == LS_OP_REDUCE) {
        return (up + 1) * STEP + (meeting + (1 << levels)) * MESSAGE + of->accumulated + of->bytes;
    }
    return (up + levels + blocks) * STEP + 2 * meeting * MESSAGE + of->accumulated + of->bytes;
}

ls_way ls_choose_way(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    const ls_reduce_kernel *kernel = ls_reduce_find(call->dtype, call->reduction);
    const size_t count = ls_reduced_count(engine);
    const amount of = {.scatters = ls_reduction_scatters(engine),
                       .rounds = engine->butterfly ? engine->levels : 2 * engine->levels,
                       .accumulated = (double)count * (double)kernel->accumulator,
                       .bytes = (double)count * (double)kernel->width};
    if (engine->wanted != LS_WAY_WHOLE) {
        return engine->wanted;
    }
    const bool fits = of.accumulated <= LS_ENGINE_CARRIED;
    if (fits && of.rounds * of.accumulated <= STEP) {
        return LS_WAY_WHOLE; /* as the others take a step more at least */
    }
    const double whole = of.rounds * (STEP + of.accumulated);
    const double halves = cost_halves(engine, &of);
    const double shares = engine->size <= LS_REDUCE_MAX_RANKS ? cost_shares(engine, &of) : HUGE_VAL;
    return fits && whole <= halves && whole <= shares ? LS_WAY_WHOLE : halves < shares ? LS_WAY_HALVES : LS_WAY_SHARES;
}
