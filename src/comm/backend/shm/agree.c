/* The properties of a call that ranks must agree on. Each rank publishes them with the first step of a call, and
 * compares them with the other ranks' headers. */
#include "base/memory.h"
#include "comm/agreement.h"
#include "comm/backend/shm/shm.h"

/* The part of a signature that only messages need: an ls_public_call. */
#define PUBLIC_CALL ((uint64_t)0xff << 24)

static uint64_t sign(const ls_call *call) {
    return (uint64_t)call->operation | (uint64_t)call->dtype << 8 | (uint64_t)call->reduction << 16 |
           (uint64_t)call->public_call << 24 |
           (uint64_t)(uint32_t)(call->layout != 0 ? (int)call->layout : call->root) << 32;
}

/* If ranks agree on all counts together, the hash of the counts takes the place of the root. */
static uint32_t layout_of(const ls_shm_cell *cell) {
    const uint64_t operation = cell->signature & 0xff;
    const bool whole = operation == LS_OP_ALLGATHERV || operation == LS_OP_REDUCE_SCATTERV;
    return whole ? (uint32_t)(cell->signature >> 32) : 0;
}

static ls_call_header unsign(const ls_shm_cell *cell) {
    return (ls_call_header){.operation = (uint32_t)(cell->signature & 0xff),
                            .dtype = (int32_t)(cell->signature >> 8 & 0xff),
                            .reduction = (int32_t)(cell->signature >> 16 & 0xff),
                            .root = (int32_t)(cell->signature >> 32),
                            .layout = layout_of(cell),
                            .public_call = (uint16_t)(cell->signature >> 24 & 0xff),
                            .agreed = cell->count,
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
    ls_shm_note_call(shm, call);
    shm->call = *call;
    shm->done = 0;
    shm->past_caches = false;
    *result = ls_shm_next_cell(shm);
    ls_shm_sign(*result, call);
    return LS_OK;
}

static bool same_call(const ls_shm_cell *a, const ls_shm_cell *b) {
    return ((a->signature ^ b->signature) & ~PUBLIC_CALL) == 0 && a->count == b->count && a->sequence == b->sequence;
}

/* Separate from ls_shm_agree, because every call executes ls_shm_agree. */
static __attribute__((noinline, cold)) ls_status fail_disagree(const ls_shm *shm, const ls_call *call) {
    const size_t size = (size_t)shm->size;
    ls_call_header *headers = ls_allocate(size * (sizeof *headers + sizeof(ls_call_header *)));
    if (headers == NULL) {
        char name[64];
        return ls_fail_memory(ls_call_describe(call->operation, call->sequence, name, sizeof name),
                              size * sizeof *headers);
    }
    const ls_call_header **each = (const ls_call_header **)(void *)(headers + size);
    for (int rank = 0; rank < shm->size; rank++) {
        headers[rank] = unsign(ls_shm_cell_of(shm, rank));
        each[rank] = &headers[rank];
    }
    const ls_status status = ls_agreement_check(call, each, shm->size);
    ls_free(headers);
    return status;
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
