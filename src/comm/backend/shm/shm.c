#include "comm/backend/shm/shm.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/reduce.h"

#define TIMEOUT_MOST 1e9 /* seconds: more are no timeout, and would not fit a count of nanoseconds */

/* Rank 0 makes the shared memory, says that it lives and hands it to the others. */
static ls_status open_first(ls_shm *shm, const ls_join *join) {
    shm->mapped = ls_shm_layout(shm, NULL);
    LS_TRY(ls_shm_file_create("ls_comm_open", shm->mapped, &shm->file));
    unsigned char *base = NULL;
    LS_TRY(ls_shm_file_map("ls_comm_open", shm->file, 0, shm->mapped, &base));
    (void)ls_shm_layout(shm, base);
    LS_TRY(ls_shm_vouch(shm));
    ls_shm_introduce(shm);
    return shm->size == 1 ? LS_OK : ls_shm_share_serve(join, shm->file, shm->mapped);
}

static ls_status map_received(ls_shm *shm, size_t bytes) {
    const size_t expected = ls_shm_layout(shm, NULL);
    if (bytes != expected) {
        return ls_fail(LS_ERR_FORMAT,
                       "ls_comm_open: rank 0 shares %zu bytes where this rank expects %zu: are they of the "
                       "same version of Lockstep?",
                       bytes, expected);
    }
    unsigned char *base = NULL;
    LS_TRY(ls_shm_file_map("ls_comm_open", shm->file, 0, bytes, &base));
    shm->mapped = bytes;
    (void)ls_shm_layout(shm, base);
    LS_TRY(ls_shm_vouch(shm));
    ls_shm_introduce(shm);
    return LS_OK;
}

static ls_status open_other(ls_shm *shm, const ls_join *join) {
    int connection = -1;
    size_t bytes = 0;
    LS_TRY(ls_shm_share_receive(join, &connection, &shm->file, &bytes));
    return ls_shm_share_confirm(join, connection, map_received(shm, bytes));
}

static void forget(ls_shm *shm) {
    for (int i = 0; i < shm->region_count; i++) {
        ls_shm_region_free(shm, &shm->regions[i]);
    }
    if (shm->file >= 0) {
        if (shm->control != NULL) {
            munmap(shm->control, shm->mapped);
        }
        close(shm->file);
    }
    ls_free(shm->regions);
    ls_free(shm->sources);
    ls_free(shm->destinations);
    ls_free(shm);
}

static ls_status open_somehow(ls_shm *shm, const ls_join *join) {
    if (join->shared != NULL) {
        (void)ls_shm_layout(shm, join->shared);
        ls_shm_introduce(shm);
        shm->call.operation = LS_OP_BARRIER; /* the first step: every thread has introduced itself */
        ls_shm_post(shm);
        return ls_shm_wait(shm);
    }
    return join->rank == 0 ? open_first(shm, join) : open_other(shm, join);
}

static ls_status check_join(const ls_join *join) {
    if (join->local_size != join->size) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_comm_open: backend shm is for ranks of one machine, but %d of %d are here", join->local_size,
                       join->size);
    }
    if (join->size > LS_REDUCE_MAX_RANKS) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_comm_open: backend shm carries %d ranks at most, not %d",
                       LS_REDUCE_MAX_RANKS, join->size);
    }
    return LS_OK;
}

static ls_status shm_open_state(const ls_join *join, void **state) {
    LS_TRY(check_join(join));
    ls_shm *shm = ls_allocate_zeroed(1, sizeof *shm);
    if (shm == NULL) {
        return ls_fail_memory("ls_comm_open", sizeof *shm);
    }
    shm->rank = join->rank;
    shm->size = join->size;
    shm->file = -1;
    shm->timeout_ns = (uint64_t)((join->timeout < TIMEOUT_MOST ? join->timeout : TIMEOUT_MOST) * 1e9);
    shm->sources = ls_allocate_zeroed((size_t)join->size, sizeof *shm->sources);
    shm->destinations = ls_allocate_zeroed((size_t)join->size + 1, sizeof *shm->destinations);
    ls_status status = LS_OK;
    if (shm->sources == NULL || shm->destinations == NULL) {
        status = ls_fail_memory("ls_comm_open", (size_t)join->size * sizeof *shm->sources);
    } else {
        status = open_somehow(shm, join);
    }
    if (status != LS_OK) {
        forget(shm);
        return status;
    }
    ls_shm_choose_patience(shm);
    shm->file_end = shm->mapped;
    *state = shm;
    return LS_OK;
}

static void shm_close_state(void *state) {
    ls_shm_leave(state);
    forget(state);
}

const ls_backend ls_backend_shm = {
    .name = "shm",
    .open = shm_open_state,
    .close = shm_close_state,
    .barrier = ls_shm_barrier,
    .broadcast = ls_shm_broadcast,
    .allreduce = ls_shm_allreduce,
    .progress = ls_shm_progress,
    .alloc = ls_shm_alloc,
    .release = ls_shm_release,
};
