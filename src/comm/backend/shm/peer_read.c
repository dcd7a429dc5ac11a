/* Reads directly from the memory of other ranks: a copy between threads, comm/peer_memory.h between processes. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "comm/backend/shm/shm.h"
#include "comm/peer_memory.h"

#define DYING_NS UINT64_C(200000000) /* maximum time that the exit of a process may take */
#define MAGIC    UINT64_C(0x6c6f636b73746570)

static bool read_memory(const ls_shm *shm, int rank, void *into, uint64_t address, size_t bytes) {
    const uint64_t mark = MAGIC + (uint64_t)rank;
    return ls_peer_memory_read(&(ls_peer_memory){.process = shm->ranks[rank].process,
                                                 .mark_at = shm->ranks[rank].magic,
                                                 .mark = &mark,
                                                 .mark_size = sizeof mark},
                               into, address, bytes);
}

bool ls_shm_peer_read_probe(ls_shm *shm) {
    int operation = 0;
    while (operation < LS_OP_COUNT && shm->sizes[operation].read == LS_SHM_NEVER) {
        operation++;
    }
    if (operation == LS_OP_COUNT) {
        return false;
    }
    if (shm->file < 0) {
        return true;
    }
    const int next = (shm->rank + 1) % shm->size;
    uint64_t nothing = 0;
    return shm->ranks[next].process_space == shm->ranks[shm->rank].process_space &&
           read_memory(shm, next, &nothing, 0, 0);
}

void ls_shm_peer_read_offer(ls_shm *shm) {
    shm->magic = MAGIC + (uint64_t)shm->rank;
    shm->ranks[shm->rank].magic = (uint64_t)(uintptr_t)&shm->magic;
}

/* Fails because of `what`, which happened to the rank, or because its memory cannot be read if `what` is NULL. */
static ls_status fail_read(ls_shm *shm, const ls_call *call, int rank, const char *what) {
    char name[64];
    ls_call_describe(call->operation, call->sequence, name, sizeof name);
    const int process = (int)shm->ranks[rank].process;
    if (what == NULL) {
        return ls_shm_abort(shm,
                            ls_fail(LS_ERR_IO, "%s: the memory of rank %d (process %d) cannot be read: %s", name, rank,
                                    process, strerror(errno)),
                            rank);
    }
    return ls_shm_abort(shm, ls_fail(LS_ERR_PEER, "%s: rank %d (process %d) %s", name, rank, process, what), rank);
}

/* Checks data that was read. If the rank failed or left before it got the answer, the data may have been
 * overwritten. If the rank died, its process number may have been reused, and the data may come from a different
 * process. */
static ls_status check_read(ls_shm *shm, const ls_call *call, int rank) {
    LS_TRY(ls_shm_sound(shm));
    if (ls_shm_left(shm, rank) == LS_LEAVE_FINALIZED && ls_shm_has_left(shm, rank)) {
        return ls_shm_fail_left(shm, call, rank, ", which has failed: its message can no longer be read");
    }
    if (ls_shm_has_left(shm, rank)) {
        return fail_read(shm, call, rank, "left in the middle of this call");
    }
    return ls_shm_alive(shm, rank) ? LS_OK : fail_read(shm, call, rank, "died");
}

/*
 * If ranks are threads, a failing rank may free its buffers at once. Therefore, a reader announces that it is reading
 * before it checks for failures, and a failing rank announces its failure before it waits for the readers
 * (ls_shm_peer_read_settle).
 */
static bool copy_between_threads(ls_shm *shm, int rank, void *into, uint64_t address, size_t bytes) {
    _Atomic uint32_t *reading = &shm->ranks[shm->rank].reading;
    atomic_store(reading, 1);
    const bool well = !ls_shm_is_revoked(shm) && !ls_shm_has_left(shm, rank);
    if (well) {
        ls_shm_copy(into, (const void *)(uintptr_t)address, bytes, bytes);
    }
    atomic_store(reading, 0);
    return well;
}

void ls_shm_peer_read_settle(const ls_shm *shm) {
    for (int rank = 0; shm->file < 0 && rank < shm->size; rank++) {
        while (rank != shm->rank && atomic_load(&shm->ranks[rank].reading) != 0) {
            ls_spin_pause();
        }
    }
}

/* An exiting process frees its memory before its lock. */
static bool is_dying(const ls_shm *shm, int rank) {
    const int failure = errno;
    ls_wait wait = {.limit_ns = DYING_NS};
    bool dying = !ls_shm_alive(shm, rank);
    while (!dying && ls_wait_pause(&wait)) {
        dying = !ls_shm_alive(shm, rank);
    }
    errno = failure;
    return dying;
}

ls_status ls_shm_peer_read(ls_shm *shm, const ls_call *call, int rank, void *into, uint64_t address, size_t bytes) {
    if (shm->file < 0) {
        return copy_between_threads(shm, rank, into, address, bytes) ? LS_OK : check_read(shm, call, rank);
    }
    if (!read_memory(shm, rank, into, address, bytes)) { /* the rank may have left and freed its buffers */
        const int failure = errno;
        LS_TRY(check_read(shm, call, rank));
        errno = failure != 0 ? failure : ESRCH;
        return fail_read(shm, call, rank, is_dying(shm, rank) ? "died" : NULL);
    }
    return check_read(shm, call, rank);
}
