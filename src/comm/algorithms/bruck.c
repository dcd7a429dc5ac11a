/*
 * All-gather by Bruck's algorithm (J. Bruck and others, "Efficient algorithms for all-to-all communications in
 * multiport message-passing systems", 1997). A rank that has the blocks of h ranks, the last of which is its own, sends
 * them to the rank h after it, and receives h blocks from the rank h before it. This takes ceil(log2 P) steps for any
 * P. All blocks are received into their final position; blocks that wrap around from the last rank to the first take
 * two messages.
 */
#include <string.h>

#include "base/status.h"
#include "comm/algorithms/table.h"

typedef ls_status move(ls_engine *engine, int peer, unsigned char *data, size_t bytes);

static ls_status give(ls_engine *engine, int peer, unsigned char *data, size_t bytes) {
    return ls_engine_send(engine, peer, LS_CHANNEL_DATA, data, bytes);
}

static ls_status take(ls_engine *engine, int peer, unsigned char *data, size_t bytes) {
    return ls_engine_receive(engine, peer, LS_CHANNEL_DATA, data, bytes, NULL);
}

/* Sends or receives the blocks of the `count` consecutive ranks that end with rank `last`. */
static ls_status move_blocks(ls_engine *engine, move *moves, int peer, int last, int count) {
    const size_t block = engine->call.count * engine->call.width;
    unsigned char *blocks = engine->call.receive;
    const int first = last - count + 1;
    if (first < 0) {
        LS_TRY(moves(engine, peer, blocks + (size_t)(first + engine->size) * block, (size_t)-first * block));
    }
    const int from = first < 0 ? 0 : first;
    return moves(engine, peer, blocks + (size_t)from * block, (size_t)(last - from + 1) * block);
}

static ls_status next_step(ls_engine *engine, bool *finished) {
    const int size = engine->size;
    const int have = engine->segment->step;
    const int more = have < size - have ? have : size - have;
    if (more == 0) {
        *finished = true;
        return LS_OK;
    }
    const int before = (engine->rank - have + size) % size;
    engine->segment->step += more;
    engine->segment->stage = next_step;
    LS_TRY(move_blocks(engine, take, before, before, more));
    return move_blocks(engine, give, (engine->rank + have) % size, engine->rank, more);
}

ls_status ls_bruck_run(ls_engine *engine, bool *finished) {
    const ls_call *call = &engine->call;
    const size_t block = call->count * call->width;
    unsigned char *own = (unsigned char *)call->receive + (size_t)engine->rank * block;
    if (own != call->send && !engine->dry) {
        memmove(own, call->send, block);
    }
    engine->segment->step = 1;
    return next_step(engine, finished);
}
