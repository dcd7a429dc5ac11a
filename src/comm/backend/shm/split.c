/* Communicators of some of the ranks. Each has its own memory, which is passed on through the communicator that is
 * split. */
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/backend/shm/shm.h"

/* The data that every rank sends in one step of the parent; the address or ticket matters only from the new rank 0. */
typedef struct word {
    int32_t status;
    uint64_t address;              /* between threads */
    ls_shm_connect_request ticket; /* between processes */
} word;

_Static_assert(sizeof(word) <= LS_SHM_PAYLOAD, "a word travels in a cell");

static ls_status reserve_for_threads(const ls_shm *parent, ls_shm *shm, word *own) {
    const size_t bytes = ls_shm_layout(shm, NULL);
    void *memory = ls_shm_lend(parent, shm->size, bytes);
    if (memory == NULL) {
        return ls_fail_memory("ls_comm_open", bytes);
    }
    own->address = (uint64_t)(uintptr_t)memory;
    return LS_OK;
}

/* Prepares the memory on the new rank 0, before the other ranks learn of it. */
static ls_status prepare(const ls_shm *parent, ls_shm *shm, word *own, int *listener) {
    if (parent->file < 0) {
        return reserve_for_threads(parent, shm, own);
    }
    LS_TRY(ls_shm_create(shm));
    return ls_shm_share_listen(shm->size, &own->ticket, listener);
}

/* Sends this rank's word to all ranks of the parent, and receives the word of the new rank 0. Fails if any rank
 * cannot continue. */
static ls_status tell(ls_shm *parent, const word *own, int members, const int *ranks, word *first) {
    memcpy(ls_shm_next_cell(parent)->payload, own, sizeof *own);
    ls_shm_post(parent);
    LS_TRY(ls_shm_wait(parent));
    for (int i = members - 1; i >= 0; i--) {
        memcpy(first, ls_shm_cell_of(parent, ranks[i])->payload, sizeof *first);
        if (first->status != LS_OK && own->status == LS_OK) {
            return ls_fail((ls_status)first->status,
                           "rank %d of the new communicator could not create its part of the communicator", i);
        }
    }
    return LS_OK;
}

/* Between threads: the shared memory is at `address`, and this rank becomes one of its holders. */
static void hold(const ls_shm *parent, ls_shm *shm, uint64_t address) {
    shm->world = ls_shm_hold_world(parent->world);
    (void)ls_shm_layout(shm, (unsigned char *)(uintptr_t)address);
}

static ls_status meet(const ls_shm *parent, ls_shm *shm, const ls_join_context *join, const int *ranks,
                      const word *first, int listener) {
    if (parent->file < 0) {
        hold(parent, shm, first->address);
        ls_shm_introduce(shm);
    } else if (join->rank != 0) {
        LS_TRY(ls_shm_attach(shm, join, &first->ticket));
    } else if (join->size != 1) {
        LS_TRY(ls_shm_share_serve(join, &first->ticket, listener, shm, parent, ranks));
    }
    return ls_shm_settle_in(shm);
}

/* Completes the split after this rank's preparation, whose outcome is in `own`. On failure, frees what this rank has
 * prepared. */
static ls_status finish(ls_shm *parent, ls_shm *shm, const ls_join_context *join, const int *ranks, word *own,
                        int listener) {
    word first = {0};
    char message[LS_ERROR_CAPACITY];
    memcpy(message, ls_error_message(), sizeof message);
    ls_status status = tell(parent, own, join == NULL ? 0 : join->size, ranks, &first);
    if (status == LS_OK && own->status != LS_OK) {
        ls_error_restore((ls_status)own->status, message);
        status = (ls_status)own->status;
    }
    const bool goes_on = status == LS_OK && join != NULL;
    if (goes_on) {
        status = meet(parent, shm, join, ranks, &first, listener);
    } else if (own->address != 0 && atomic_load(&parent->control->revoked) != LS_SHM_SOUND) {
        /* Even after a failure, some ranks may have seen the step and be about to use this memory, which must stay
         * valid until they have left it. */
        hold(parent, shm, own->address);
    } else if (own->address != 0) {
        ls_shm_let_go((void *)(uintptr_t)own->address, shm->size);
    }
    if (shm != NULL && status != LS_OK) {
        if (shm->ranks != NULL) {
            ls_shm_leave(shm, LS_LEAVE_FREED);
        }
        ls_shm_forget(shm);
    }
    return status;
}

ls_status ls_shm_split(void *state, const ls_join_context *join, const int *ranks, void **result) {
    ls_shm *parent = state;
    ls_shm *shm = NULL;
    word own = {0};
    int listener = -1;
    LS_TRY(ls_shm_sound(parent));
    parent->call.contested = NULL; /* ranks that have already joined would wait for a rank that stops here */
    ls_status status = LS_OK;
    if (join != NULL) {
        status = ls_shm_make(join, &shm);
        if (status == LS_OK) {
            shm->part = true;
        }
        if (status == LS_OK && join->rank == 0) {
            status = prepare(parent, shm, &own, &listener);
        }
    }
    own.status = (int32_t)status;
    status = finish(parent, shm, join, ranks, &own, listener);
    if (listener >= 0) {
        close(listener);
    }
    if (status == LS_OK) {
        *result = shm;
    }
    return status;
}
