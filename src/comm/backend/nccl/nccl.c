/*
 * Backend nccl: backend tcp, whose engine agrees on each call, sends messages, notices failures and moves what is in
 * memory of the host, with NCCL for collectives whose buffers are in memory of GPUs (ls_call.stream):
 * comm/backend/module/collectives.h. library.c calls libnccl and CUDA.
 *
 * When the ranks of a communicator meet, each tells each which GPU it is on, and rank 0 also NCCL's unique id. NCCL's
 * communicator does not block: whether it has ended or failed is asked. A rank that gives up aborts it.
 */
#include <string.h>

#include "base/status.h"
#include "comm/backend/module/collectives.h"
#include "comm/backend/nccl/library.h"
#include "comm/engine/engine.h"
#include "comm/module.h"

/* What a rank tells another before they join. */
typedef struct nccl_hello {
    uint64_t machine;
    char bus[LS_NCCL_BUS];
    unsigned char id[LS_NCCL_ID]; /* rank 0's alone is one */
} nccl_hello;

typedef enum stage {
    JOINING = 0, /* NCCL makes its communicator */
    GIVING,      /* it takes the collective into the stream */
    RUNNING      /* the stream has not come to its end */
} stage;

typedef struct ls_nccl {
    ls_collectives own;
    uint64_t machine;
    ls_nccl_group *group; /* from the first collective on */
    stage stage;
} ls_nccl;

/* Of calls in memory of the host none. */
static bool nccl_can_make(const ls_endpoint *endpoint, const ls_call *call) {
    (void)endpoint;
    return call->stream != NULL;
}

/* Where this rank is, and, of rank 0, who the ranks will be to NCCL. */
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

/* NCCL takes two ranks on one GPU for a mistake, and so says each rank here, of the same two. */
static ls_status check_gpus(const ls_collectives *own) {
    const int size = own->endpoint->size;
    const nccl_hello *of = ls_collectives_heard(own, 0);
    for (int rank = 1; rank < size; rank++) {
        for (int other = 0; other < rank; other++) {
            if (of[rank].machine == of[other].machine && strncmp(of[rank].bus, of[other].bus, LS_NCCL_BUS) == 0) {
                return ls_fail(
                    LS_ERR_UNSUPPORTED,
                    "ranks %d and %d use one GPU (%.*s), which NCCL refuses: give each rank a GPU of its own, "
                    "or use backend shm",
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
        own->began_ns = own->tcp->now_ns(own->endpoint); /* it may be short */
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

/* Adds NCCL to a communicator of backend tcp that was just opened. Ends it on failure. */
static ls_status attach(const ls_join_context *join, void **state) {
    ls_nccl *nccl =
        (ls_nccl *)ls_collectives_add(ls_engine_endpoint(*state), &library, LS_OWN_NEVER); /* without a stream */
    if (nccl == NULL) {
        return ls_module_settle(ls_error_status(), state);
    }
    nccl->machine = join->machine;
    return LS_OK;
}

/* Without a GPU here the error is that of opening, not of the first call that wants one. */
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

const ls_backend ls_module_backend = {
    .name = "nccl",
    .sends_by_library = true,
    .open = nccl_open,
    .close = ls_engine_close,
    .leave = ls_module_leave_tcp,
    .split = nccl_split,
    .accepts_device_memory = nccl_takes,
    LS_ENGINE_CALLS,
};
