/* ls_comm_alloc, which uses ordinary memory if the backend has no special memory. */
#include "base/memory.h"

#include <string.h>

#include "comm/progress.h"
#include "comm/record.h"
#include "comm/threads.h"
#include "comm/work.h"

/* Runs an all-reduce whose result is the lowest rank that is out of memory. `mine` is true if this rank has memory. */
static ls_status agree(ls_comm *comm, size_t size, bool mine) {
    const int32_t own = mine ? comm->size : comm->rank;
    int32_t lacking = comm->size;
    const ls_call call = {.operation = LS_OP_ALLOC,
                          .dtype = LS_I32,
                          .reduction = LS_MIN,
                          .count = 1,
                          .width = sizeof own,
                          .send = &own,
                          .receive = &lacking,
                          .sequence = comm->sequence,
                          .total = size};
    LS_TRY(comm->backend->begin[LS_OP_ALLREDUCE](comm->state, &call));
    LS_TRY(ls_comm_finish(comm));
    return lacking == comm->size ? LS_OK
                                 : ls_fail(LS_ERR_MEMORY, "ls_comm_alloc: rank %d cannot allocate %zu bytes of memory",
                                           (int)lacking, size);
}

static ls_status alloc_block(ls_comm *comm, size_t size, void **memory) {
    ls_comm_block *block = size <= SIZE_MAX / 2 ? ls_allocate_aligned(sizeof *block + size, 64) : NULL;
    const ls_status status = agree(comm, size, block != NULL);
    if (status != LS_OK) {
        ls_free(block);
        return status;
    }
    block->next = comm->blocks;
    comm->blocks = block;
    *memory = memset(block + 1, 0, size);
    return LS_OK;
}

static void release_block(ls_comm *comm, const void *memory) {
    for (ls_comm_block **link = &comm->blocks; *link != NULL; link = &(*link)->next) {
        ls_comm_block *found = *link;
        if ((const void *)(found + 1) == memory) {
            *link = found->next;
            ls_free(found);
            return;
        }
    }
}

/* After all ranks have arrived, they need nothing more on other communicators, so the backend may wait for them
 * without advancing other work. */
static ls_status alloc_shared(ls_comm *comm, size_t size, void **memory) {
    LS_TRY(agree(comm, size, true));
    return comm->backend->alloc(comm->state, size, comm->sequence, memory);
}

static ls_status alloc(ls_comm *comm, size_t size, void **memory) {
    ls_comm_use(comm);
    ls_comm_drain(comm);
    LS_TRY(ls_comm_check_call(comm, LS_OP_ALLOC));
    comm->sequence++;
    return ls_comm_note(comm, comm->backend->alloc != NULL ? alloc_shared(comm, size, memory)
                                                           : alloc_block(comm, size, memory));
}

void *ls_comm_alloc(ls_comm *comm, size_t size) {
    if (comm == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_comm_alloc: the communicator is NULL");
    }
    void *memory = NULL;
    if (ls_comm_begin_call(comm, LS_OP_ALLOC) != LS_OK) {
        return NULL;
    }
    return ls_comm_end_call(comm, LS_OP_ALLOC, alloc(comm, size, &memory)) == LS_OK ? memory : NULL;
}

void ls_comm_release(ls_comm *comm, void *memory) {
    if (comm == NULL || memory == NULL || ls_comm_is_inherited(comm)) {
        return;
    }
    ls_comm_use(comm);
    if (comm->backend->release != NULL && comm->state != NULL) {
        comm->backend->release(comm->state, memory);
    } else {
        release_block(comm, memory);
    }
}
