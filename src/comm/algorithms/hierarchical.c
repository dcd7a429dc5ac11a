/*
 * Hierarchical all-gather, used if each machine has the same number of consecutive ranks. Each rank first gets the
 * blocks of its counterparts on the other machines, so that each block is sent to a machine only once. Then the ranks
 * of a machine exchange these blocks, one machine's blocks after another.
 */
#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/pieces.h"

static const ls_stretch nothing = {NULL, 0};

/* Returns the rank with the same index on another machine. */
static int counterpart(const ls_engine *engine, int machine) {
    const int ranks = engine->place.block_ranks;
    return machine * ranks + engine->rank % ranks;
}

static bool is_on_this_machine(const ls_engine *engine, int rank) {
    return rank / engine->place.block_ranks == engine->rank / engine->place.block_ranks;
}

static ls_stretch block_of(const ls_engine *engine, int rank) {
    const ls_piece piece = ls_piece_received(&engine->call, engine->rank, rank);
    return ls_stretch_of(engine->call.receive, piece.at, piece.count, engine->call.width);
}

static ls_stretch crossing_to(const ls_engine *engine, int to) {
    const bool goes = to == counterpart(engine, to / engine->place.block_ranks);
    const ls_piece piece = ls_piece_sent(&engine->call, engine->rank, to);
    return goes ? ls_stretch_of(engine->call.send, piece.at, piece.count, engine->call.width) : nothing;
}

static ls_stretch crossing_from(const ls_engine *engine, int from) {
    const bool comes = from == counterpart(engine, from / engine->place.block_ranks);
    return comes ? block_of(engine, from) : nothing;
}

static ls_stretch shared_with(const ls_engine *engine, int to) {
    const bool goes = to != engine->rank && is_on_this_machine(engine, to);
    return goes ? block_of(engine, counterpart(engine, engine->machine)) : nothing;
}

static ls_stretch shared_by(const ls_engine *engine, int from) {
    const int ranks = engine->place.block_ranks;
    const bool comes = from != engine->rank && is_on_this_machine(engine, from);
    return comes ? block_of(engine, engine->machine * ranks + from % ranks) : nothing;
}

static ls_status share_next(ls_engine *engine, bool *finished) {
    static const ls_traffic sharing = {.sent = shared_with, .received = shared_by};
    if (++engine->machine == engine->size / engine->place.block_ranks) {
        *finished = true;
        return LS_OK;
    }
    return ls_direct_begin(engine, &sharing, share_next);
}

ls_status ls_hierarchical_run(ls_engine *engine, bool *finished) {
    static const ls_traffic crossing = {.sent = crossing_to, .received = crossing_from};
    (void)finished;
    engine->machine = -1;
    return ls_direct_begin(engine, &crossing, share_next);
}
