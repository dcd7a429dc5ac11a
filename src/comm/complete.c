/* Begins a call on the backend, after adding what the call leaves out: the displacements of contiguous parts, and a
 * copy of the data that an in-place alltoall sends. */
#include "comm/complete.h"

#include <string.h>

#include "base/memory.h"
#include "comm/record.h"

/* Provides memory of the communicator. Out of memory, revokes the communicator, because the other ranks have begun
 * the call or are about to. */
static ls_status scratch(ls_comm *comm, const ls_call *call, size_t bytes, unsigned char **memory) {
    if (bytes > comm->scratch_bytes) {
        unsigned char *grown = ls_allocate_aligned(bytes, 64);
        if (grown == NULL) {
            char name[64];
            ls_call_describe(call->operation, call->sequence, name, sizeof name);
            return ls_comm_abort(comm, ls_fail_memory(name, bytes));
        }
        ls_free(comm->scratch);
        comm->scratch = grown;
        comm->scratch_bytes = bytes;
    }
    *memory = comm->scratch;
    return LS_OK;
}

static const size_t *complete(const size_t *counts, const size_t *displacements, size_t *places, int size) {
    if (counts == NULL || displacements != NULL) {
        return displacements;
    }
    size_t at = 0;
    for (int rank = 0; rank < size; rank++) {
        places[rank] = at;
        at += counts[rank];
    }
    return places;
}

static ls_status copy_sent(ls_comm *comm, ls_call *call) {
    const size_t bytes = call->count * call->width * (size_t)comm->size;
    unsigned char *memory = NULL;
    LS_TRY(scratch(comm, call, bytes, &memory));
    memcpy(memory, call->send, bytes);
    call->send = memory;
    return LS_OK;
}

static ls_status complete_call(ls_comm *comm, ls_call *call) {
    call->send_displacements =
        complete(call->send_counts, call->send_displacements, comm->parts[LS_SEND_PLACES], comm->size);
    call->receive_displacements =
        complete(call->receive_counts, call->receive_displacements, comm->parts[LS_RECEIVE_PLACES], comm->size);
    const bool in_place = call->operation == LS_OP_ALLTOALL && call->send == call->receive && call->count != 0;
    return in_place ? copy_sent(comm, call) : LS_OK;
}

ls_status ls_comm_begin(ls_comm *comm, const ls_call *call) {
    const bool whole = call->send_counts == NULL && call->receive_counts == NULL && call->operation != LS_OP_ALLTOALL;
    if (whole) {
        return ls_comm_note(comm, comm->backend->begin[call->operation](comm->state, call));
    }
    ls_call completed = *call;
    LS_TRY(ls_comm_note(comm, complete_call(comm, &completed)));
    return ls_comm_note(comm, comm->backend->begin[call->operation](comm->state, &completed));
}
