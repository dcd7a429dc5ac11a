/*
 * Direct reductions: each rank receives its part from the buffers of all other ranks, reduces the parts in the order of
 * the tree, and sends the result to the ranks that need it. Thus each rank sends (P-1)/P of a buffer, twice in an
 * all-reduce.
 */
#include "base/share.h"
#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

size_t ls_reduced_count(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    return call->operation == LS_OP_REDUCE_SCATTER    ? call->count * (size_t)engine->size
           : call->operation == LS_OP_REDUCE_SCATTERV ? call->total
                                                      : call->count;
}

ls_piece ls_reduced_by(const ls_engine *engine, int rank) {
    const ls_call *call = &engine->call;
    if (ls_reduction_scatters(engine)) {
        return ls_piece_part(call->send_counts, call->send_displacements, call->count, rank);
    }
    const ls_share share = ls_share_of((int64_t)call->count, engine->size, rank);
    return (ls_piece){(size_t)share.count, (size_t)share.start};
}

static size_t share_bytes(const ls_engine *engine, int rank) {
    return ls_reduced_by(engine, rank).count * engine->call.width;
}

static ls_stretch part_sent(const ls_engine *engine, int to) {
    const size_t width = engine->call.width;
    const ls_piece piece = ls_reduced_by(engine, to);
    return (ls_stretch){piece.count != 0 ? (unsigned char *)(uintptr_t)engine->call.send + piece.at * width : NULL,
                        to != engine->rank ? piece.count * width : 0};
}

static ls_stretch part_received(const ls_engine *engine, int from) {
    const size_t bytes = share_bytes(engine, engine->rank);
    return (ls_stretch){engine->scratch + (size_t)from * bytes, from != engine->rank ? bytes : 0};
}

/* Returns the memory for this rank's part of the result. */
static unsigned char *result_of(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    if (call->operation == LS_OP_REDUCE && engine->rank != call->root) {
        return engine->scratch + (size_t)engine->rank * share_bytes(engine, engine->rank);
    }
    const bool whole = ls_reduces_to_all(call->operation) || call->operation == LS_OP_REDUCE;
    return (unsigned char *)call->receive + (whole ? ls_reduced_by(engine, engine->rank).at * call->width : 0);
}

static bool is_wanted_by(const ls_engine *engine, int rank) {
    return ls_reduces_to_all(engine->call.operation) || rank == engine->call.root;
}

static ls_stretch result_sent(const ls_engine *engine, int to) {
    return (ls_stretch){result_of(engine),
                        to != engine->rank && is_wanted_by(engine, to) ? share_bytes(engine, engine->rank) : 0};
}

static ls_stretch result_received(const ls_engine *engine, int from) {
    const ls_piece piece = ls_reduced_by(engine, from);
    const bool wanted = from != engine->rank && piece.count != 0 && is_wanted_by(engine, engine->rank);
    return wanted ? (ls_stretch){(unsigned char *)engine->call.receive + piece.at * engine->call.width,
                                 piece.count * engine->call.width}
                  : (ls_stretch){NULL, 0};
}

static ls_status end(ls_engine *engine, bool *finished) {
    (void)engine;
    *finished = true;
    return LS_OK;
}

static ls_status reduce(ls_engine *engine, bool *finished) {
    static const ls_traffic results = {.sent = result_sent, .received = result_received};
    const ls_call *call = &engine->call;
    const ls_piece own = ls_reduced_by(engine, engine->rank);
    for (int rank = 0; rank < engine->size; rank++) {
        engine->sources[rank] = part_received(engine, rank).data;
    }
    engine->sources[engine->rank] = part_sent(engine, engine->rank).data;
    void *result = own.count != 0 ? result_of(engine) : NULL;
    if (own.count != 0 && !engine->dry) {
        ls_reduce_buffers(&(ls_reduce_task){.dtype = call->dtype,
                                            .reduction = call->reduction,
                                            .ranks = engine->size,
                                            .sources = engine->sources,
                                            .copies = 1,
                                            .destinations = &result,
                                            .count = own.count});
    }
    return ls_reduces_to_all(call->operation) || call->operation == LS_OP_REDUCE
               ? ls_direct_begin(engine, &results, end)
               : end(engine, finished);
}

ls_status ls_direct_reduce(ls_engine *engine, bool *finished) {
    static const ls_traffic parts = {.sent = part_sent, .received = part_received};
    (void)finished;
    LS_TRY(ls_engine_scratch(engine, share_bytes(engine, engine->rank) * (size_t)engine->size));
    return ls_direct_begin(engine, &parts, reduce);
}
