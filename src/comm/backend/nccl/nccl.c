/*
 * Backend nccl: backend tcp with NCCL for collectives whose buffers are in GPU memory (ls_call.stream): see
 * comm/backend/module/collectives.h. The engine of backend tcp agrees on each call, sends messages, detects failures
 * and moves data in host memory. library.c calls libnccl and CUDA.
 *
 * When the ranks of a communicator meet, each rank tells every other rank which GPU it uses, and rank 0 also sends
 * NCCL's unique id. The NCCL communicator is nonblocking: the backend polls to see whether a call has finished or
 * failed. A rank that aborts also aborts its NCCL communicator.
 */
#include <string.h>

#include "base/status.h"
#include "comm/backend/module/collectives.h"
#include "comm/backend/nccl/library.h"
#include "comm/engine/engine.h"
#include "comm/module.h"

/* The data that a rank sends to every other rank before they join. */
typedef struct nccl_hello {
    uint64_t machine;
    char bus[LS_NCCL_BUS];
    unsigned char id[LS_NCCL_ID]; /* valid only from rank 0 */
} nccl_hello;

typedef enum stage {
    JOINING = 0, /* NCCL creates its communicator */
    GIVING,      /* NCCL is enqueuing the collective in the stream */
    RUNNING      /* the stream has not reached the end of the collective */
} stage;

typedef struct ls_nccl {
    ls_collectives own;
    uint64_t machine;
    ls_nccl_group *group; /* NULL before the first collective */
    stage stage;
} ls_nccl;

/* Returns true for buffers in GPU memory. NCCL does not execute calls on host memory. */
static bool nccl_can_make(const ls_endpoint *endpoint, const ls_call *call) {
    (void)endpoint;
    return call->stream != NULL;
}

/* Prepares this rank's hello: its machine and its GPU and, on rank 0, NCCL's unique id. */
static ls_status nccl_prepare(ls_collectives *own) {
    const int rank = own->endpoint->rank;
    nccl_hello *self = ls_collectives_heard(own, rank);
    self->machine = ((ls_nccl *)own)->machine;
    return ls_nccl_name_gpu(self->bus, own->why) && (rank != 0 || ls_nccl_make_id(self->id, own->why))
               ? LS_OK
               : ls_collectives_fail(own);
}

static ls_status nccl_greet(ls_collectives *own, int peer, void *said) {
    (void)peer;
    memcpy(said, ls_collectives_heard(own, own->endpoint->rank), sizeof(nccl_hello));
    return LS_OK;
}

/* Fails if two ranks use the same GPU, which NCCL rejects. All ranks report the same two ranks. */
static ls_status check_gpus(const ls_collectives *own) {
    const int size = own->endpoint->size;
    const nccl_hello *of = ls_collectives_heard(own, 0);
    for (int rank = 1; rank < size; rank++) {
        for (int other = 0; other < rank; other++) {
            if (of[rank].machine == of[other].machine && strncmp(of[rank].bus, of[other].bus, LS_NCCL_BUS) == 0) {
                return ls_fail(LS_ERR_UNSUPPORTED,
                               "ranks %d and %d use the same GPU (%.*s), which NCCL does not allow: give each rank its "
                               "own GPU, or use backend shm",
                               other, rank, LS_NCCL_BUS, of[rank].bus);
            }
        }
    }
    return LS_OK;
}

static bool join(ls_nccl *nccl) {
    const nccl_hello *first = ls_collectives_heard(&nccl->own, 0);
    nccl->stage = JOINING;
    nccl->group = ls_nccl_join(first->id, nccl->own.endpoint->rank, nccl->own.endpoint->size, nccl->own.why);
    return nccl->group != NULL;
}

static bool give(ls_nccl *nccl) {
    nccl->stage = GIVING;
    return ls_nccl_give(nccl->group, &nccl->own.call, nccl->own.why);
}

static ls_status nccl_begin(ls_collectives *own) {
    ls_nccl *nccl = (ls_nccl *)own;
    LS_TRY(nccl->group == NULL ? check_gpus(own) : LS_OK);
    return (nccl->group == NULL ? join(nccl) : give(nccl)) ? LS_OK : ls_collectives_fail(own);
}

static ls_library_state nccl_look(ls_collectives *own) {
    ls_nccl *nccl = (ls_nccl *)own;
    const ls_library_state state = ls_nccl_look(nccl->group, own->why);
    bool did = true;
    if (nccl->stage == RUNNING) {
        return state == LS_LIBRARY_FAILED ? state : ls_nccl_ran(nccl->group, own->why);
    }
    if (state == LS_LIBRARY_DONE && nccl->stage == JOINING) {
        did = give(nccl);
    } else if (state == LS_LIBRARY_DONE) {
        nccl->stage = RUNNING;
        own->began_ns = own->tcp->now_ns(own->endpoint); /* restart spinning: the collective may be short */
        did = ls_nccl_mark(nccl->group, own->call.stream, own->why);
    }
    return state == LS_LIBRARY_FAILED || !did ? LS_LIBRARY_FAILED : LS_LIBRARY_BUSY;
}

static void nccl_end(ls_collectives *own, bool abort, uint64_t linger_ns) {
    ls_nccl *nccl = (ls_nccl *)own;
    if (nccl->group != NULL) {
        ls_nccl_free(nccl->group, abort, linger_ns);
        nccl->group = NULL;
    }
}

static const ls_collective_library library = {
    .name = "nccl",
    .greeting_size = sizeof(nccl_hello),
    .size = sizeof(ls_nccl),
    .failure = LS_ERR_DEVICE,
    .can_make = nccl_can_make,
    .prepare = nccl_prepare,
    .greet = nccl_greet,
    .begin = nccl_begin,
    .look = nccl_look,
    .end = nccl_end,
};

/* Adds NCCL to a newly opened communicator of backend tcp. Closes the communicator on failure. */
static ls_status attach(const ls_join_context *join, void **state) {
    /* LS_OWN_NEVER applies to calls without a stream. */
    ls_nccl *nccl = (ls_nccl *)ls_collectives_add(ls_engine_endpoint(*state), &library, LS_OWN_NEVER);
    if (nccl == NULL) {
        return ls_module_settle(ls_error_status(), state);
    }
    nccl->machine = join->machine;
    return LS_OK;
}

/* Opens a communicator. Fails if this process has no GPU, so that the error does not occur only at the first call
 * that needs a GPU. */
static ls_status nccl_open(const ls_join_context *join, void **state) {
    char why[LS_LIBRARY_WHY];
    if (!ls_nccl_find_gpus(why)) {
        return ls_fail(LS_ERR_DEVICE, "ls_comm_open: backend nccl: %s", why);
    }
    LS_TRY(ls_module_tcp()->open(join, state));
    return attach(join, state);
}

static ls_status nccl_split(void *state, const ls_join_context *join, const int *ranks, void **result) {
    LS_TRY(ls_module_tcp()->split(state, join, ranks, result));
    return *result != NULL ? attach(join, result) : LS_OK;
}

static bool nccl_takes(const void *state, bool reduces, ls_dtype dtype, ls_reduction reduction) {
    (void)state;
    return ls_nccl_takes(reduces, dtype, reduction);
}

/* The current CUDA device is a per-thread setting. */
static bool nccl_any_thread(const void *state) {
    (void)state;
    return false;
}

const ls_backend ls_module_backend = {
    .name = "nccl",
    .sends_by_library = true,
    .any_thread = nccl_any_thread,
    .open = nccl_open,
    .close = ls_engine_close,
    .leave = ls_module_leave_tcp,
    .withdraw_sends = ls_engine_withdraw_contents,
    .split = nccl_split,
    .accepts_device_memory = nccl_takes,
    LS_ENGINE_CALLS,
};
