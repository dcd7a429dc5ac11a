/*
 * Direct exchange: each rank sends its data directly to every other rank. In step s, a rank sends to the rank s after
 * it and receives from the rank s before it. A limited number of steps is in flight at a time, so that no rank receives
 * from all ranks at once (the "spread-out" order: Thakur, Rabenseifner and Gropp, "Optimization of collective
 * communication operations in MPICH", 2005). Both sides know which pieces are empty, and exchange no messages for them.
 */
#include <string.h>

#include "base/status.h"
#include "comm/engine/inside.h"

static ls_status next_steps(ls_engine *engine, bool *finished) {
    const int size = engine->size;
    for (int i = 0; i < LS_ENGINE_WINDOW && engine->segment->step < size; i++, engine->segment->step++) {
        const int to = (engine->rank + engine->segment->step) % size;
        const ls_stretch piece = engine->spread_out.traffic->sent(engine, to);
        LS_TRY(piece.bytes == 0 ? LS_OK : ls_engine_send(engine, to, LS_CHANNEL_DATA, piece.data, piece.bytes));
        const int from = (engine->rank - engine->segment->step + size) % size;
        const ls_stretch place = engine->spread_out.traffic->received(engine, from);
        LS_TRY(place.bytes == 0 ? LS_OK
                                : ls_engine_receive(engine, from, LS_CHANNEL_DATA, place.data, place.bytes, NULL));
    }
    if (ls_transfers_exist(engine) || engine->segment->step < size) {
        return LS_OK;
    }
    engine->segment->stage = engine->spread_out.exchanged;
    return engine->spread_out.exchanged(engine, finished);
}

ls_status ls_direct_begin(ls_engine *engine, const ls_traffic *traffic, ls_engine_stage *exchanged) {
    const ls_stretch from = traffic->sent(engine, engine->rank);
    const ls_stretch to = traffic->received(engine, engine->rank);
    if (from.bytes != 0 && from.data != to.data && !engine->dry) {
        memmove(to.data, from.data, from.bytes);
    }
    engine->spread_out.traffic = traffic;
    engine->spread_out.exchanged = exchanged;
    engine->segment->step = 1;
    engine->segment->stage = next_steps;
    return LS_OK;
}
