/* Endpoints of transport tcp that have NCCL's collectives: see nccl.h. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/nccl/library.h"
#include "comm/backend/nccl/nccl.h"

#define CHANNEL  (LS_TRANSPORT_CHANNELS - 1) /* the engine uses the first ones */
#define GRACE_NS UINT64_C(2000000000)        /* in which the engine may find out why NCCL failed */
#define SPIN_NS  UINT64_C(200000)            /* a call is looked at without rest for so long, */
#define REST_NS  UINT64_C(50000)             /* and then so often */

/* What a rank tells another before they join. */
typedef struct greeting {
    uint64_t machine;
    char bus[LS_NCCL_BUS];
    unsigned char id[LS_NCCL_ID]; /* rank 0's alone is one */
} greeting;

typedef enum stage {
    APART = 0, /* no collective so far */
    MEETING,   /* greetings are under way, and a collective waits for them */
    JOINING,   /* NCCL makes its communicator, and a collective waits for that */
    GIVING,    /* NCCL takes the collective into the stream */
    RUNNING,   /* the stream has not come to its end */
    READY,
    ENDED /* there are no more collectives */
} stage;

typedef struct ls_nccl {
    ls_transport entries; /* of the endpoint, in place of transport tcp's own */
    const ls_transport *tcp;
    ls_endpoint *endpoint;
    uint64_t machine;
    stage stage;
    ls_nccl_group *group;
    greeting *greetings;     /* for each rank, then of each rank */
    ls_transfer *transfers;  /* of those */
    ls_transfer *collective; /* the engine's, under way */
    ls_call call;            /* what it is to do, */
    size_t *counts;          /* with counts and displacements of its own */
    uint64_t began_ns;       /* when the stage began */
    uint64_t failed_ns;      /* when a failure was seen; 0: none was */
    char why[LS_NCCL_WHY];
} ls_nccl;

static ls_nccl *nccl_of(const ls_endpoint *endpoint) {
    return (ls_nccl *)(uintptr_t)endpoint->transport;
}

static void enter(ls_nccl *nccl, stage next) {
    nccl->stage = next;
    nccl->began_ns = nccl->tcp->now_ns(nccl->endpoint);
}

static ls_status fail(const ls_nccl *nccl) {
    return ls_fail(LS_ERR_DEVICE, "%s", nccl->why);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static ls_status greet(ls_nccl *nccl, const greeting *own, int peer) {
    ls_endpoint *endpoint = nccl->endpoint;
    const size_t size = (size_t)endpoint->size;
    ls_transfer *sent = &nccl->transfers[peer];
    ls_transfer *received = &nccl->transfers[size + (size_t)peer];
    nccl->greetings[peer] = *own;
    *sent = (ls_transfer){.peer = peer, .channel = CHANNEL, .data = &nccl->greetings[peer], .bytes = sizeof *own};
    *received = *sent;
    received->data = &nccl->greetings[size + (size_t)peer];
    LS_TRY(nccl->tcp->receive(endpoint, received));
    return nccl->tcp->send(endpoint, sent);
}

/* The first collective: where this rank is, and who the ranks will be to NCCL. */
static ls_status begin_meeting(ls_nccl *nccl) {
    const int size = nccl->endpoint->size;
    const int rank = nccl->endpoint->rank;
    greeting own = {.machine = nccl->machine};
    nccl->greetings = ls_allocate_zeroed(2 * (size_t)size, sizeof *nccl->greetings);
    nccl->transfers = ls_allocate_zeroed(2 * (size_t)size, sizeof *nccl->transfers);
    nccl->counts = ls_allocate_zeroed(4 * (size_t)size, sizeof *nccl->counts);
    if (nccl->greetings == NULL || nccl->transfers == NULL || nccl->counts == NULL) {
        return ls_fail_memory("NCCL", 2 * (size_t)size * (sizeof *nccl->greetings + sizeof *nccl->transfers));
    }
    if (!ls_nccl_name_gpu(own.bus, nccl->why) || (rank == 0 && !ls_nccl_make_id(own.id, nccl->why))) {
        return fail(nccl);
    }
    nccl->greetings[size + rank] = own;
    for (int peer = 0; peer < size; peer++) {
        LS_TRY(peer != rank ? greet(nccl, &own, peer) : LS_OK);
    }
    enter(nccl, MEETING);
    return LS_OK;
}

static ls_status check_greetings(const ls_nccl *nccl, bool *all) {
    const int size = nccl->endpoint->size;
    *all = true;
    for (int i = 0; i < 2 * size; i++) {
        const ls_transfer *transfer = &nccl->transfers[i];
        if (i % size == nccl->endpoint->rank) {
            continue;
        }
        *all = *all && transfer->ended;
        if (i >= size && transfer->ended &&
            (transfer->bytes != sizeof(greeting) || memchr(nccl->greetings[i].bus, '\0', LS_NCCL_BUS) == NULL)) {
            nccl->endpoint->blamed = 1 + i - size;
            return ls_fail(LS_ERR_PEER, "rank %d says which GPU it is on as this version cannot read it", i - size);
        }
    }
    return LS_OK;
}

/* NCCL takes two ranks on one GPU for a mistake, and so says each rank here, of the same two. */
static ls_status check_gpus(const ls_nccl *nccl) {
    const int size = nccl->endpoint->size;
    const greeting *of = nccl->greetings + size;
    for (int rank = 1; rank < size; rank++) {
        for (int other = 0; other < rank; other++) {
            if (of[rank].machine == of[other].machine && strcmp(of[rank].bus, of[other].bus) == 0) {
                return ls_fail(LS_ERR_UNSUPPORTED,
                               "ranks %d and %d use one GPU (%s), which NCCL refuses: give each rank a GPU of its own, "
                               "or use backend shm",
                               other, rank, of[rank].bus);
            }
        }
    }
    return LS_OK;
}

static ls_status join(ls_nccl *nccl) {
    const int size = nccl->endpoint->size;
    LS_TRY(check_gpus(nccl));
    nccl->group = ls_nccl_join(nccl->greetings[size].id, nccl->endpoint->rank, size, nccl->why);
    if (nccl->group == NULL) {
        return fail(nccl);
    }
    enter(nccl, JOINING);
    return LS_OK;
}

/* Whatever is under way ends, on this rank and then on the others. After this no memory of a call is used. */
static void end_collectives(ls_nccl *nccl, bool abort, uint64_t linger_ns) {
    if (nccl->group != NULL) {
        ls_nccl_free(nccl->group, abort || nccl->stage != READY, linger_ns);
        nccl->group = NULL;
    }
    nccl->stage = ENDED;
    nccl->collective = NULL;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Of calls in memory of the host none. */
static bool nccl_can_make(const ls_endpoint *endpoint, const ls_call *call) {
    (void)endpoint;
    return call->stream != NULL;
}

static ls_status give(ls_nccl *nccl) {
    enter(nccl, GIVING);
    return ls_nccl_give(nccl->group, &nccl->call, nccl->why) ? LS_OK : fail(nccl);
}

/* The call is lent, and its counts are. */
static void keep_call(ls_nccl *nccl, const ls_call *call) {
    const size_t size = (size_t)nccl->endpoint->size;
    const size_t **const lists[] = {&nccl->call.send_counts, &nccl->call.send_displacements, &nccl->call.receive_counts,
                                    &nccl->call.receive_displacements};
    nccl->call = *call;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (*lists[i] != NULL) {
            memcpy(nccl->counts + i * size, *lists[i], size * sizeof *nccl->counts);
            *lists[i] = nccl->counts + i * size;
        }
    }
}

static ls_status nccl_collective(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer) {
    ls_nccl *nccl = nccl_of(endpoint);
    *transfer = (ls_transfer){.peer = -1};
    LS_TRY(nccl->stage == APART ? begin_meeting(nccl) : LS_OK);
    keep_call(nccl, call);
    nccl->collective = transfer;
    endpoint->yields = true;
    return nccl->stage == READY ? give(nccl) : LS_OK;
}

/* NCCL has failed: the engine may know why, of a rank that is gone, or hear of it soon. */
static ls_status failed(ls_nccl *nccl) {
    const uint64_t now = nccl->tcp->now_ns(nccl->endpoint);
    nccl->failed_ns = nccl->failed_ns == 0 ? now : nccl->failed_ns;
    return now - nccl->failed_ns < GRACE_NS ? LS_OK : fail(nccl);
}

static ls_status look_at_giving(ls_nccl *nccl) {
    const ls_nccl_state state = ls_nccl_look(nccl->group, nccl->why);
    if (state != LS_NCCL_DONE) {
        return state == LS_NCCL_FAILED ? failed(nccl) : LS_OK;
    }
    if (nccl->stage == JOINING) {
        return give(nccl);
    }
    if (!ls_nccl_mark(nccl->group, nccl->call.stream, nccl->why)) {
        return fail(nccl);
    }
    enter(nccl, RUNNING);
    return LS_OK;
}

static ls_status look_at_running(ls_nccl *nccl, bool *moved) {
    const ls_nccl_state ran = ls_nccl_ran(nccl->group, nccl->why);
    if (ran == LS_NCCL_FAILED || ls_nccl_look(nccl->group, nccl->why) == LS_NCCL_FAILED) {
        return failed(nccl);
    }
    if (ran == LS_NCCL_DONE) {
        enter(nccl, READY);
        nccl->endpoint->yields = false;
        nccl->collective->ended = true;
        nccl->collective = NULL;
        *moved = true;
    }
    return LS_OK;
}

/* Goes on with what NCCL, or other ranks, have done. */
static ls_status go_on(ls_nccl *nccl, bool *moved) {
    bool greeted = false;
    if (nccl->failed_ns != 0 && nccl->collective != NULL) {
        return failed(nccl);
    }
    if (nccl->stage == MEETING) {
        LS_TRY(check_greetings(nccl, &greeted));
        LS_TRY(greeted ? join(nccl) : LS_OK);
    }
    if (nccl->stage == JOINING || nccl->stage == GIVING) {
        LS_TRY(look_at_giving(nccl));
    }
    return nccl->stage == RUNNING ? look_at_running(nccl, moved) : LS_OK;
}

static ls_status nccl_progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    ls_nccl *nccl = nccl_of(endpoint);
    bool ended = false;
    LS_TRY(go_on(nccl, &ended));
    if (nccl->collective != NULL && nccl->stage != MEETING) { /* nothing wakes this rank when NCCL is done */
        const uint64_t waited = nccl->tcp->now_ns(endpoint) - nccl->began_ns;
        wait_ns = waited < SPIN_NS ? 0 : wait_ns < REST_NS ? wait_ns : REST_NS;
    }
    LS_TRY(nccl->tcp->progress(endpoint, ended ? 0 : wait_ns, moved));
    LS_TRY(ended ? LS_OK : go_on(nccl, &ended));
    *moved = *moved || ended;
    return LS_OK;
}

static void nccl_withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_nccl *nccl = nccl_of(endpoint);
    if (transfer == nccl->collective) {
        end_collectives(nccl, true, 0);
    } else {
        nccl->tcp->withdraw(endpoint, transfer);
    }
}

static bool nccl_close(ls_endpoint *endpoint, uint64_t linger_ns) {
    ls_nccl *nccl = nccl_of(endpoint);
    end_collectives(nccl, false, linger_ns);
    const bool unused = nccl->tcp->close(endpoint, linger_ns);
    if (unused) {
        ls_free(nccl->greetings);
        ls_free(nccl->transfers);
        ls_free(nccl->counts);
        ls_free(nccl);
    }
    return unused;
}

ls_status ls_nccl_attach(ls_endpoint *endpoint, uint64_t machine) {
    ls_nccl *nccl = ls_allocate_zeroed(1, sizeof *nccl);
    if (nccl == NULL) {
        return ls_fail_memory("ls_comm_open", sizeof *nccl);
    }
    nccl->tcp = endpoint->transport;
    nccl->endpoint = endpoint;
    nccl->machine = machine;
    nccl->entries = *endpoint->transport;
    nccl->entries.name = "nccl";
    nccl->entries.can_make = nccl_can_make;
    nccl->entries.collective = nccl_collective;
    nccl->entries.in_place = true;
    nccl->entries.progress = nccl_progress;
    nccl->entries.withdraw = nccl_withdraw;
    nccl->entries.close = nccl_close;
    endpoint->transport = &nccl->entries;
    endpoint->own = LS_OWN_NEVER; /* but for calls with a stream */
    return LS_OK;
}
