/*
 * Calls so small that each rank's data fits into its cell. All operations work alike, in one step: each rank publishes
 * its call and its data, compares the other ranks' calls with its own, and reads what it needs from their cells. Such a
 * call touches only one or two cache lines per rank, so it costs the transfer of these lines and the instructions on
 * its path; ls_shm_quick keeps this path short.
 */
#include <string.h>

#include "comm/backend/shm/shm.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

typedef enum way {
    WAY_LARGE = 0, /* never in cells, because ranks contribute different amounts */
    WAY_MOVE,      /* the other ranks' data is copied unchanged */
    WAY_REDUCE     /* or reduced */
} way;

static const unsigned char ways[LS_OP_COUNT] = {
    [LS_OP_BARRIER] = WAY_MOVE,     [LS_OP_BROADCAST] = WAY_MOVE,
    [LS_OP_GATHER] = WAY_MOVE,      [LS_OP_ALLGATHER] = WAY_MOVE,
    [LS_OP_SCATTER] = WAY_MOVE,     [LS_OP_ALLTOALL] = WAY_MOVE,
    [LS_OP_SPLIT] = WAY_MOVE,       [LS_OP_REDUCE] = WAY_REDUCE,
    [LS_OP_ALLREDUCE] = WAY_REDUCE, [LS_OP_REDUCE_SCATTER] = WAY_REDUCE,
    [LS_OP_ALLOC] = WAY_REDUCE,
};

/* Returns true if the data sent to each rank differs. */
static bool cuts(const ls_call *call) {
    return ls_flows[call->operation].cuts;
}

bool ls_shm_fits_cells(const ls_shm *shm, const ls_call *call) {
    const size_t parts = cuts(call) ? (size_t)shm->size : 1;
    return ways[call->operation] != WAY_LARGE && call->count * call->width * parts <= shm->sizes[call->operation].cells;
}

static void put(const ls_shm *shm, const ls_call *call, ls_shm_cell *cell) {
    const size_t bytes = call->count * call->width * (cuts(call) ? (size_t)shm->size : 1);
    if (bytes != 0 && (!ls_flows[call->operation].from_root || shm->rank == call->root)) {
        memcpy(cell->payload, call->send, bytes);
    }
}

static void take_pieces(const ls_shm *shm, const ls_call *call) {
    const ls_flow *flow = &ls_flows[call->operation];
    const size_t bytes = call->count * call->width;
    const size_t part = flow->cuts ? bytes * (size_t)shm->rank : 0;
    const size_t stride = flow->assembles ? bytes : 0;
    const int first = flow->from_root ? call->root : 0;
    const int end = flow->from_root ? call->root + 1 : shm->size;
    for (int from = first; from < end; from++) {
        if (from != shm->rank || !flow->keeps_self) {
            memcpy((unsigned char *)call->receive + stride * (size_t)from, ls_shm_cell_of(shm, from)->payload + part,
                   bytes);
        }
    }
}

static void take_sum(const ls_shm *shm, const ls_call *call) {
    const size_t part = cuts(call) ? call->count * call->width * (size_t)shm->rank : 0;
    for (int rank = 0; rank < shm->size; rank++) {
        shm->sources[rank] = ls_shm_cell_of(shm, rank)->payload + part;
    }
    ls_reduce_buffers(&(ls_reduce_task){.dtype = call->dtype,
                                        .reduction = call->reduction,
                                        .ranks = shm->size,
                                        .sources = shm->sources,
                                        .copies = 1,
                                        .destinations = (void *const *)&call->receive,
                                        .count = call->count});
}

/* Runs after all ranks have posted the same call. */
static void take(const ls_shm *shm, const ls_call *call) {
    if (call->count == 0 || (ls_flows[call->operation].to_root && shm->rank != call->root)) {
        return;
    }
    if (ways[call->operation] == WAY_REDUCE) {
        take_sum(shm, call);
    } else {
        take_pieces(shm, call);
    }
}

static ls_status end(ls_shm *shm, bool *finished) {
    *finished = true;
    LS_TRY(ls_shm_agree(shm, &shm->call));
    take(shm, &shm->call);
    return LS_OK;
}

ls_status ls_shm_begin_cells(void *state, const ls_call *call) {
    ls_shm *shm = state;
    ls_shm_cell *cell = NULL;
    LS_TRY(ls_shm_declare(shm, call, &cell));
    shm->algorithm_name = "cells";
    put(shm, call, cell);
    shm->stage = end;
    ls_shm_post(shm);
    return LS_OK;
}

/* Called if the other ranks do not arrive soon. */
static ls_status wait_long(ls_shm *shm, const ls_call *call) {
    shm->call = *call;
    return ls_shm_wait(shm);
}

bool ls_shm_quick(void *state, const ls_call *call, ls_status *status) {
    ls_shm *shm = state;
    if (call->operation == LS_OP_SPLIT || !ls_shm_fits_cells(shm, call)) { /* a split continues under its own name */
        return false;
    }
    *status = ls_shm_sound(shm);
    if (*status != LS_OK) {
        return true;
    }
    ls_shm_cell *cell = ls_shm_next_cell(shm);
    shm->algorithm_name = "cells";
    ls_shm_note_call(shm, call);
    ls_shm_sign(cell, call);
    put(shm, call, cell);
    ls_shm_post(shm);
    if (ways[call->operation] == WAY_MOVE) {
        ls_spin_back_off(1); /* without a reduction, ranks return before the other ranks' cache lines can arrive */
    }
    if (!ls_shm_meet(shm)) {
        *status = wait_long(shm, call);
    }
    if (*status == LS_OK) {
        *status = ls_shm_agree(shm, call);
    }
    if (*status == LS_OK) {
        take(shm, call);
    }
    return true;
}
