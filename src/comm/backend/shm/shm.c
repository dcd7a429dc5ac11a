#include "comm/backend/shm/shm.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/reduce.h"

#define TIMEOUT_MOST 1e9 /* in seconds; above this, there is no timeout (nanoseconds would overflow) */

ls_status ls_shm_create(ls_shm *shm) {
    shm->mapped = ls_shm_layout(shm, NULL);
    LS_TRY(ls_shm_file_create("ls_comm_open", shm->mapped, &shm->file));
    unsigned char *base = NULL;
    LS_TRY(ls_shm_file_map("ls_comm_open", shm->file, 0, shm->mapped, &base));
    (void)ls_shm_layout(shm, base);
    LS_TRY(ls_shm_vouch(shm));
    ls_shm_introduce(shm);
    return LS_OK;
}

/* Rank 0 passes the memory that it created to the other ranks, which learn from the store where to connect. */
static ls_status open_first(ls_shm *shm, const ls_join_context *join) {
    LS_TRY(ls_shm_create(shm));
    if (shm->size == 1) {
        return LS_OK;
    }
    ls_shm_connect_request ticket;
    int listener = -1;
    LS_TRY(ls_shm_share_listen(join->size, &ticket, &listener));
    ls_status status = ls_shm_share_announce(join, &ticket);
    if (status == LS_OK) {
        status = ls_shm_share_serve(join, &ticket, listener, shm, NULL, NULL);
    }
    close(listener);
    return status;
}

static ls_status map_received(ls_shm *shm, size_t bytes) {
    const size_t expected = ls_shm_layout(shm, NULL);
    if (bytes != expected) {
        return ls_fail(LS_ERR_FORMAT,
                       "ls_comm_open: rank 0 shares %zu bytes, but this rank expects %zu: do both run the same version "
                       "of Lockstep?",
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

ls_status ls_shm_attach(ls_shm *shm, const ls_join_context *join, const ls_shm_connect_request *ticket) {
    int connection = -1;
    size_t bytes = 0;
    LS_TRY(ls_shm_share_receive(join, ticket, &connection, &shm->file, &bytes));
    return ls_shm_share_confirm(join, connection, map_received(shm, bytes));
}

static ls_status open_other(ls_shm *shm, const ls_join_context *join) {
    ls_shm_connect_request ticket;
    LS_TRY(ls_shm_share_find(join, &ticket));
    return ls_shm_attach(shm, join, &ticket);
}

void ls_shm_forget(ls_shm *shm) {
    for (int i = 0; i < shm->region_count; i++) {
        ls_shm_region_free(shm, &shm->regions[i]);
    }
    if (shm->file >= 0 && shm->control != NULL) {
        ls_shm_close_file(shm);
        munmap(shm->control, shm->mapped);
    } else if (shm->file >= 0) {
        close(shm->file);
    } else if (shm->control != shm->world) {
        ls_shm_let_go(shm->control, 1);
    }
    ls_shm_drop_world(shm->world);
    ls_shm_point_close(shm);
    ls_free(shm->regions);
    ls_free(shm->sources);
    ls_free(shm->destinations);
    ls_free(shm);
}

static ls_status check_sizes(const ls_shm *shm) {
    for (int rank = 1; rank < shm->size; rank++) {
        if (shm->ranks[rank].sizes != shm->ranks[0].sizes) {
            return ls_fail(LS_ERR_MISMATCH,
                           "ls_comm_open: ranks 0 and %d have different " LS_ALGORITHM_VARIABLE
                           " in their environment: set it alike for all ranks, or for none",
                           rank);
        }
    }
    return LS_OK;
}

ls_status ls_shm_settle_in(ls_shm *shm) {
    shm->ranks[shm->rank].peer_reads = ls_shm_peer_read_probe(shm);
    shm->ranks[shm->rank].sizes = ls_hash(LS_HASH_START, shm->sizes, sizeof shm->sizes);
    shm->call.operation = LS_OP_BARRIER;
    ls_shm_post(shm);
    LS_TRY(ls_shm_wait(shm));
    LS_TRY(check_sizes(shm));
    ls_shm_choose_spin(shm);
    shm->file_end = shm->mapped;
    return LS_OK;
}

static ls_status open_somehow(ls_shm *shm, const ls_join_context *join) {
    if (join->shared != NULL) {
        (void)ls_shm_layout(shm, join->shared);
        shm->world = ls_shm_hold_world(shm->control);
        ls_shm_introduce(shm);
    } else if (join->rank == 0) {
        LS_TRY(open_first(shm, join));
    } else {
        LS_TRY(open_other(shm, join));
    }
    return ls_shm_settle_in(shm);
}

static ls_status check_join(const ls_join_context *join) {
    if (join->local_size != join->size) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_comm_open: backend shm needs all ranks on the same machine, but only %d of %d are here",
                       join->local_size, join->size);
    }
    if (join->size > LS_REDUCE_MAX_RANKS) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_comm_open: backend shm supports at most %d ranks, not %d",
                       LS_REDUCE_MAX_RANKS, join->size);
    }
    return LS_OK;
}

ls_status ls_shm_make(const ls_join_context *join, ls_shm **result) {
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
    ls_status status = ls_shm_sizes_choose(shm->size, shm->sizes);
    if (status == LS_OK && (shm->sources == NULL || shm->destinations == NULL)) {
        status = ls_fail_memory("ls_comm_open", (size_t)join->size * sizeof *shm->sources);
    } else if (status == LS_OK) {
        status = ls_shm_point_open(shm);
    }
    if (status != LS_OK) {
        ls_shm_forget(shm);
        return status;
    }
    *result = shm;
    return LS_OK;
}

static ls_status shm_open_state(const ls_join_context *join, void **state) {
    ls_shm *shm = NULL;
    LS_TRY(ls_shm_make(join, &shm));
    const ls_status status = open_somehow(shm, join);
    if (status != LS_OK) {
        ls_shm_forget(shm);
        return status;
    }
    *state = shm;
    return LS_OK;
}

static void shm_leave(void *state, ls_leave_reason reason) {
    if (reason == LS_LEAVE_FINALIZED) {
        ls_shm_point_send_on(state);
    }
    ls_shm_leave(state, reason);
    if (reason != LS_LEAVE_FINALIZED) { /* the caller may free the buffers, whether or not the state still exists */
        ls_shm_peer_read_settle(state);
    }
}

static void shm_close_state(void *state) {
    shm_leave(state, LS_LEAVE_FREED);
    ls_shm_forget(state);
}

static const char *shm_algorithm_name(const void *state) {
    return ((const ls_shm *)state)->algorithm_name;
}

static int shm_failed_rank(const void *state) {
    const ls_shm *shm = state;
    return ls_shm_is_revoked(shm) ? shm->control->failed_rank : -1;
}

const ls_backend ls_backend_shm = {
    .name = "shm",
    .open = shm_open_state,
    .close = shm_close_state,
    .advance_sends = ls_shm_point_advance_sends,
    .withdraw_sends = ls_shm_point_withdraw_sends,
    .leave = shm_leave,
    .abort = ls_shm_resign,
    .failed_rank = shm_failed_rank,
    .begin = {[LS_OP_BARRIER] = ls_shm_begin_cells,
              [LS_OP_BROADCAST] = ls_shm_broadcast,
              [LS_OP_ALLREDUCE] = ls_shm_reduce,
              [LS_OP_REDUCE] = ls_shm_reduce,
              [LS_OP_REDUCE_SCATTER] = ls_shm_reduce_scatter,
              [LS_OP_REDUCE_SCATTERV] = ls_shm_reduce_scatter,
              [LS_OP_GATHER] = ls_shm_exchange,
              [LS_OP_GATHERV] = ls_shm_exchange,
              [LS_OP_ALLGATHER] = ls_shm_exchange,
              [LS_OP_ALLGATHERV] = ls_shm_exchange,
              [LS_OP_SCATTER] = ls_shm_exchange,
              [LS_OP_SCATTERV] = ls_shm_exchange,
              [LS_OP_ALLTOALL] = ls_shm_exchange,
              [LS_OP_ALLTOALLV] = ls_shm_exchange,
              [LS_OP_SPLIT] = ls_shm_exchange},
    .try_fast_path = ls_shm_quick,
    .algorithm_name = shm_algorithm_name,
    .progress = ls_shm_progress,
    .post = ls_shm_post_message,
    .test = ls_shm_test_message,
    .split = ls_shm_split,
    .alloc = ls_shm_alloc,
    .release = ls_shm_release,
};
