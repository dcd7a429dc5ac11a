/* Backend tcp: the engine (comm/engine) over sockets (comm/transport/tcp). The ranks exchange their peer information
 * through the store, in which rank 0 collects it, or through the communicator that is split. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/engine.h"
#include "comm/store.h"
#include "comm/transport/tcp/tcp.h"

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static const char *key_of(const ls_join_context *join, int rank, char key[256]) {
    snprintf(key, 256, "%stcp/%d", join->prefix, rank);
    return key;
}

static ls_status fail_late(const ls_join_context *join, int rank) {
    return ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank %d did not publish its address within %g s", rank,
                   join->timeout);
}

static ls_status fail_strange(int rank) {
    return ls_fail(
        LS_ERR_MISMATCH,
        "ls_comm_open: rank %d runs a version of Lockstep that is incompatible with the version of this rank", rank);
}

/* Fails with the name of the first rank whose peer information is missing, for which rank 0 waits without success;
   names rank 0 if none is missing. */
static ls_status fail_first_late(const ls_join_context *join) {
    for (int rank = 1; rank < join->size; rank++) {
        char key[256];
        const ls_status status = ls_store_wait(join->store, key_of(join, rank, key), 0.25);
        if (status != LS_OK) {
            return status == LS_ERR_TIMEOUT ? fail_late(join, rank) : ls_fail_in("ls_comm_open");
        }
    }
    return fail_late(join, 0);
}

/* Exchanges the peer information of all ranks. Rank 0 collects it and publishes all of it together, so each of the
 * other ranks needs only two store requests. */
static ls_status exchange_peer_infos(const ls_join_context *join, ls_tcp_peer_info *peer_infos) {
    const size_t all = (size_t)join->size * sizeof *peer_infos;
    char key[256];
    char together[256];
    size_t size = 0;
    snprintf(together, sizeof together, "%stcp/all", join->prefix);
    if (join->rank != 0) {
        LS_TRY(ls_store_set(join->store, key_of(join, join->rank, key), &peer_infos[join->rank], sizeof *peer_infos));
        const ls_status status = ls_store_get(join->store, together, peer_infos, all, &size);
        LS_TRY(status == LS_ERR_TIMEOUT ? fail_first_late(join) : status);
        return size == all ? LS_OK : fail_strange(0);
    }
    for (int rank = 1; rank < join->size; rank++) {
        const ls_status status =
            ls_store_get(join->store, key_of(join, rank, key), &peer_infos[rank], sizeof *peer_infos, &size);
        LS_TRY(status == LS_ERR_TIMEOUT ? fail_late(join, rank) : status);
        LS_TRY(size == sizeof *peer_infos ? LS_OK : fail_strange(rank));
    }
    return join->size == 1 ? LS_OK : ls_store_set(join->store, together, peer_infos, all);
}

/* Takes ownership of the listener. */
static ls_status start(const ls_join_context *join, const ls_tcp_peer_info *peer_infos, int listener, void **state) {
    const ls_key none = {.size = 0}; /* a world of one rank has no store */
    ls_endpoint *endpoint = ls_tcp_open(&(ls_tcp_options){.rank = join->rank,
                                                          .size = join->size,
                                                          .listener = listener,
                                                          .peer_infos = peer_infos,
                                                          .key = join->store != NULL ? &join->store->key : &none});
    ls_engine *engine = endpoint != NULL ? ls_engine_new(endpoint, join->timeout) : NULL;
    *state = engine;
    return engine != NULL ? LS_OK : ls_error_status();
}

static ls_status tcp_open(const ls_join_context *join, void **state) {
    const size_t bytes = (size_t)join->size * sizeof(ls_tcp_peer_info);
    ls_tcp_peer_info *peer_infos = ls_allocate_zeroed(1, bytes);
    int listener = -1;
    if (peer_infos == NULL) {
        return ls_fail_memory("ls_comm_open", bytes);
    }
    ls_status status = ls_tcp_listen(join, &peer_infos[join->rank], &listener);
    status = status == LS_OK ? exchange_peer_infos(join, peer_infos) : status;
    if (status == LS_OK) {
        status = start(join, peer_infos, listener, state);
    } else if (listener >= 0) {
        close(listener);
    }
    ls_free(peer_infos);
    return status;
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

/* The data that each rank sends to all other ranks before a split. */
typedef struct offer {
    int32_t status; /* LS_OK, or the reason why the rank cannot join */
    ls_tcp_peer_info peer_info;
} offer;

static ls_status start_group(const ls_join_context *join, const int *ranks, const offer *all, int listener,
                             void **state) {
    ls_tcp_peer_info *peer_infos = ls_allocate((size_t)join->size * sizeof *peer_infos);
    ls_status status =
        peer_infos != NULL ? LS_OK : ls_fail_memory("ls_comm_open", (size_t)join->size * sizeof *peer_infos);
    for (int i = 0; i < join->size && status == LS_OK; i++) {
        peer_infos[i] = all[ranks[i]].peer_info;
        if (all[ranks[i]].status != LS_OK) {
            status = ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d cannot take part", i);
        }
    }
    if (status == LS_OK) {
        status = start(join, peer_infos, listener, state);
    } else {
        close(listener);
    }
    ls_free(peer_infos);
    return status;
}

static ls_status tcp_split(void *state, const ls_join_context *join, const int *ranks, void **result) {
    ls_engine *parent = state;
    const size_t size = (size_t)ls_engine_endpoint(parent)->size;
    offer own = {.status = LS_OK};
    offer *all = ls_allocate_zeroed(size, sizeof *all);
    char message[LS_ERROR_CAPACITY] = "";
    int listener = -1;
    *result = NULL;
    if (all == NULL) {
        ls_engine_abort(parent, ls_fail_memory("ls_comm_split", size * sizeof *all), ls_engine_endpoint(parent)->rank);
        return ls_error_status();
    }
    if (join != NULL) {
        own.status = (int32_t)ls_tcp_listen(join, &own.peer_info, &listener);
        snprintf(message, sizeof message, "%s", ls_error_message());
    }
    ls_status status = ls_engine_exchange(parent, &own, all, sizeof own);
    if (status == LS_OK && own.status != LS_OK) {
        status = (ls_status)own.status;
        ls_error_restore(status, message);
    } else if (status == LS_OK && join != NULL) {
        status = start_group(join, ranks, all, listener, result);
        listener = -1;
    }
    if (listener >= 0) {
        close(listener);
    }
    ls_free(all);
    return status;
}

/* Cancels the transfers that use the caller's buffers, because ranks of this machine may read this rank's memory
 * directly. ls_finalize first lets sends finish, and then calls withdraw_sends. */
static void tcp_leave(void *state, ls_leave_reason reason) {
    ls_engine_leave(state, reason);
    if (reason != LS_LEAVE_FREED && reason != LS_LEAVE_FINALIZED) { /* a freed endpoint closes at once */
        ls_engine_withdraw_contents(state);
    }
}

const ls_backend ls_backend_tcp = {
    .name = "tcp",
    .open = tcp_open,
    .close = ls_engine_close,
    .leave = tcp_leave,
    .withdraw_sends = ls_engine_withdraw_contents,
    .split = tcp_split,
    LS_ENGINE_CALLS,
};
