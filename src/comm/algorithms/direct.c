/* Algorithm "direct": in calls that only move data, each rank sends its data directly to the destination rank. */
#include <string.h>

#include "base/share.h"
#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/pieces.h"

/* ---- calls that only move data ----------------------------------------------------------------------------------- */

static ls_stretch call_sent(const ls_engine *engine, int to) {
    const ls_call *call = &engine->call;
    const ls_piece piece = ls_piece_sent(call, engine->rank, to);
    return ls_stretch_of(call->send, piece.at, piece.count, call->width);
}

static ls_stretch call_received(const ls_engine *engine, int from) {
    const ls_call *call = &engine->call;
    const ls_piece piece = ls_piece_received(call, engine->rank, from);
    return ls_stretch_of(call->receive, piece.at, piece.count, call->width);
}

/* A large broadcast: the root sends each rank a share of the data, and each rank passes its share on to the other
 * ranks. */
static ls_stretch share_of(const ls_engine *engine, int rank) {
    const ls_call *call = &engine->call;
    const ls_share share = ls_share_of((int64_t)call->count, engine->size, rank);
    return ls_stretch_of(call->receive, (size_t)share.start, (size_t)share.count, call->width);
}

static const ls_stretch nothing = {NULL, 0};

static ls_stretch scattered_to(const ls_engine *engine, int to) {
    const int root = engine->call.root;
    return engine->rank == root && to != root ? share_of(engine, to) : nothing;
}

static ls_stretch scattered_from(const ls_engine *engine, int from) {
    const int root = engine->call.root;
    return from == root && engine->rank != root ? share_of(engine, engine->rank) : nothing;
}

/* The root sends its own share to every other rank. */
static ls_stretch passed_to(const ls_engine *engine, int to) {
    return to != engine->call.root && to != engine->rank ? share_of(engine, engine->rank) : nothing;
}

static ls_stretch passed_from(const ls_engine *engine, int from) {
    return engine->rank != engine->call.root && from != engine->rank ? share_of(engine, from) : nothing;
}

static ls_status end(ls_engine *engine, bool *finished) {
    (void)engine;
    *finished = true;
    return LS_OK;
}

static ls_status pass_on(ls_engine *engine, bool *finished) {
    static const ls_traffic passing = {.sent = passed_to, .received = passed_from};
    (void)finished;
    return ls_direct_begin(engine, &passing, end);
}

ls_status ls_direct_run(ls_engine *engine, bool *finished) {
    static const ls_traffic moves = {.sent = call_sent, .received = call_received};
    static const ls_traffic scattering = {.sent = scattered_to, .received = scattered_from};
    if (!ls_flows[engine->call.operation].moves) {
        return ls_direct_reduce(engine, finished);
    }
    return engine->call.operation == LS_OP_BROADCAST && engine->size > 2 ? ls_direct_begin(engine, &scattering, pass_on)
                                                                         : ls_direct_begin(engine, &moves, end);
}
