/*
 * Exchanges: what each rank has for each other one goes straight there. In step s a rank sends to the one s places
 * behind it and receives from the one s places before it, some steps at a time, so that no rank is sent to by all at
 * once. Nothing is said of pieces without data: both sides know.
 */
#include <string.h>

#include "base/share.h"
#include "base/status.h"
#include "comm/collective/inside.h"
#include "comm/pieces.h"

static ls_status next_steps(ls_engine *engine, bool *finished) {
    const int size = engine->size;
    for (int i = 0; i < LS_ENGINE_WINDOW && engine->lane->step < size; i++, engine->lane->step++) {
        const int to = (engine->rank + engine->lane->step) % size;
        const ls_stretch piece = engine->traffic->sent(engine, to);
        LS_TRY(piece.bytes == 0 ? LS_OK : ls_engine_send(engine, to, LS_CHANNEL_DATA, piece.data, piece.bytes));
        const int from = (engine->rank - engine->lane->step + size) % size;
        const ls_stretch place = engine->traffic->received(engine, from);
        LS_TRY(place.bytes == 0 ? LS_OK
                                : ls_engine_receive(engine, from, LS_CHANNEL_DATA, place.data, place.bytes, NULL));
    }
    if (engine->transfer_count != 0 || engine->lane->step < size) {
        return LS_OK;
    }
    engine->lane->stage = engine->exchanged;
    return engine->exchanged(engine, finished);
}

ls_status ls_exchange_begin(ls_engine *engine, const ls_traffic *traffic, ls_engine_stage *exchanged) {
    const ls_stretch from = traffic->sent(engine, engine->rank);
    const ls_stretch to = traffic->received(engine, engine->rank);
    if (from.bytes != 0 && from.data != to.data && !engine->dry) {
        memmove(to.data, from.data, from.bytes);
    }
    engine->traffic = traffic;
    engine->exchanged = exchanged;
    engine->lane->step = 1;
    engine->lane->stage = next_steps;
    return LS_OK;
}

/* ---- calls that only move data ----------------------------------------------------------------------------------- */

static ls_stretch stretch(const void *buffer, size_t at, size_t count, size_t width) {
    return count == 0 ? (ls_stretch){NULL, 0}
                      : (ls_stretch){(unsigned char *)(uintptr_t)buffer + at * width, count * width};
}

static ls_stretch call_sent(const ls_engine *engine, int to) {
    const ls_call *call = &engine->call;
    const ls_piece piece = ls_piece_sent(call, engine->rank, to);
    return stretch(call->send, piece.at, piece.count, call->width);
}

static ls_stretch call_received(const ls_engine *engine, int from) {
    const ls_call *call = &engine->call;
    const ls_piece piece = ls_piece_received(call, engine->rank, from);
    return stretch(call->receive, piece.at, piece.count, call->width);
}

/* A large broadcast: each rank gets a share of it from the root and passes it on to the others. */
static ls_stretch share_of(const ls_engine *engine, int rank) {
    const ls_call *call = &engine->call;
    const ls_share share = ls_share_of((int64_t)call->count, engine->size, rank);
    return stretch(call->receive, (size_t)share.start, (size_t)share.count, call->width);
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

/* The root's own share goes to each from the root. */
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
    return ls_exchange_begin(engine, &passing, end);
}

/*
 * An all-gather where each machine has the same number of ranks, one after the other: each rank gets the blocks of
 * those ranks of other machines that have its own place there, so that a block comes to a machine once. Then the ranks
 * of a machine give each other what they have, machine by machine.
 */

/* The rank that has this one's place on a machine. */
static int counterpart(const ls_engine *engine, int machine) {
    const int ranks = engine->place.block_ranks;
    return machine * ranks + engine->rank % ranks;
}

static bool is_beside(const ls_engine *engine, int rank) {
    return rank / engine->place.block_ranks == engine->rank / engine->place.block_ranks;
}

static ls_stretch block_of(const ls_engine *engine, int rank) {
    const ls_piece piece = ls_piece_received(&engine->call, engine->rank, rank);
    return stretch(engine->call.receive, piece.at, piece.count, engine->call.width);
}

static ls_stretch crossing_to(const ls_engine *engine, int to) {
    const bool goes = to == counterpart(engine, to / engine->place.block_ranks);
    return goes ? call_sent(engine, to) : nothing;
}

static ls_stretch crossing_from(const ls_engine *engine, int from) {
    const bool comes = from == counterpart(engine, from / engine->place.block_ranks);
    return comes ? block_of(engine, from) : nothing;
}

static ls_stretch shared_with(const ls_engine *engine, int to) {
    const bool goes = to != engine->rank && is_beside(engine, to);
    return goes ? block_of(engine, counterpart(engine, engine->machine)) : nothing;
}

static ls_stretch shared_by(const ls_engine *engine, int from) {
    const int ranks = engine->place.block_ranks;
    const bool comes = from != engine->rank && is_beside(engine, from);
    return comes ? block_of(engine, engine->machine * ranks + from % ranks) : nothing;
}

static ls_status share_next(ls_engine *engine, bool *finished) {
    static const ls_traffic sharing = {.sent = shared_with, .received = shared_by};
    if (++engine->machine == engine->size / engine->place.block_ranks) {
        return end(engine, finished);
    }
    return ls_exchange_begin(engine, &sharing, share_next);
}

static ls_status gather_by_machines(ls_engine *engine) {
    static const ls_traffic crossing = {.sent = crossing_to, .received = crossing_from};
    engine->machine = -1;
    return ls_exchange_begin(engine, &crossing, share_next);
}

ls_status ls_exchange_call(ls_engine *engine, bool *finished) {
    static const ls_traffic moves = {.sent = call_sent, .received = call_received};
    static const ls_traffic scattering = {.sent = scattered_to, .received = scattered_from};
    const bool broadcasts = engine->call.operation == LS_OP_BROADCAST;
    if (engine->way == LS_WAY_NETWORK) {
        return ls_network_call(engine, finished);
    }
    if (engine->way == LS_WAY_MACHINES) {
        return gather_by_machines(engine);
    }
    if (engine->way == LS_WAY_HALVES) {
        return broadcasts ? ls_halving_broadcast(engine, finished) : ls_doubling_call(engine, finished);
    }
    return broadcasts && engine->size > 2 ? ls_exchange_begin(engine, &scattering, pass_on)
                                          : ls_exchange_begin(engine, &moves, end);
}
