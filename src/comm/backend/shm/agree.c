/* What ranks must agree on: each publishes it with the first step of a call, and compares. */
#include <stdio.h>
#include <string.h>

#include "comm/backend/shm/shm.h"

static uint64_t sign(const ls_call *call) {
    return (uint64_t)call->operation | (uint64_t)call->dtype << 8 | (uint64_t)call->reduction << 16 |
           (uint64_t)(uint32_t)(call->layout != 0 ? (int)call->layout : call->root) << 32;
}

/* Where counts are agreed on as a whole, their hash takes the place of the root. */
static uint32_t layout_of(const ls_shm_cell *cell) {
    const uint64_t operation = cell->signature & 0xff;
    const bool whole = operation == LS_OP_ALLGATHERV || operation == LS_OP_REDUCE_SCATTERV;
    return whole ? (uint32_t)(cell->signature >> 32) : 0;
}

static void unsign(const ls_shm_cell *cell, ls_call *call) {
    *call = (ls_call){.operation = (ls_operation)(cell->signature & 0xff),
                      .dtype = (ls_dtype)(cell->signature >> 8 & 0xff),
                      .reduction = (ls_reduction)(cell->signature >> 16 & 0xff),
                      .root = (int)(cell->signature >> 32),
                      .layout = layout_of(cell),
                      .count = cell->count,
                      .total = cell->count,
                      .sequence = cell->sequence};
}

void ls_shm_sign(ls_shm_cell *cell, const ls_call *call) {
    cell->signature = sign(call);
    cell->count = ls_call_agreed(call);
    cell->sequence = (uint32_t)call->sequence;
    cell->region = 0;
}

ls_status ls_shm_declare(ls_shm *shm, const ls_call *call, ls_shm_cell **result) {
    LS_TRY(ls_shm_sound(shm));
    shm->call = *call;
    shm->done = 0;
    *result = ls_shm_next_cell(shm);
    ls_shm_sign(*result, call);
    return LS_OK;
}

static bool same_call(const ls_shm_cell *a, const ls_shm_cell *b) {
    return a->signature == b->signature && a->count == b->count && a->sequence == b->sequence;
}

/* "rank 0 called barrier (#3); ranks 1, 2 called ..." into `text`. */
static void tell_calls(const ls_shm *shm, char *text, size_t capacity) {
    size_t length = 0;
    for (int rank = 0; rank < shm->size && length < capacity - 1; rank++) {
        const ls_shm_cell *cell = ls_shm_cell_of(shm, rank);
        int first = 0;
        while (!same_call(ls_shm_cell_of(shm, first), cell)) {
            first++;
        }
        if (first != rank) {
            continue; /* told with the first that called the same */
        }
        char ranks[256] = "";
        size_t used = 0;
        int callers = 0;
        for (int other = rank; other < shm->size && used < sizeof ranks - 24; other++) {
            if (same_call(ls_shm_cell_of(shm, other), cell)) {
                used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%d", callers == 0 ? "" : ", ", other);
                callers++;
            }
        }
        ls_call call;
        char detail[192];
        unsign(cell, &call);
        length += (size_t)snprintf(text + length, capacity - length, "%srank%s %s called %s (#%llu)",
                                   length == 0 ? "" : "; ", callers == 1 ? "" : "s", ranks,
                                   ls_call_detail(&call, detail, sizeof detail), (unsigned long long)call.sequence);
    }
}

static ls_status fail_disagree(const ls_shm *shm, const ls_call *call) {
    char calls[768];
    char name[64];
    tell_calls(shm, calls, sizeof calls);
    ls_call_describe(call->operation, call->sequence, name, sizeof name);
    return ls_fail(LS_ERR_MISMATCH, "%s: ranks called different things: %s", name, calls);
}

ls_status ls_shm_agree(const ls_shm *shm, const ls_call *call) {
    const ls_shm_cell *own = ls_shm_cell_of(shm, shm->rank);
    for (int rank = 0; rank < shm->size; rank++) {
        if (!same_call(ls_shm_cell_of(shm, rank), own)) {
            return fail_disagree(shm, call);
        }
    }
    return LS_OK;
}
