/* Backend gloo: joining and leaving. gloo.h tells how it works. */
#include "comm/backend/gloo/gloo.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/module.h"

#define SPIN_NS ((uint64_t)100000) /* with a core for every rank: longer than a sleep and a wake-up cost */

/*
 * What a rank says of itself in the store, with one `door` for each rank. Only those who may read the store know what
 * to say at a door, and a door opens once.
 */
typedef struct door {
    ls_gloo_address address;
    unsigned char token[LS_GLOO_TOKEN];
} door;

typedef struct card {
    uint64_t machine;
    cpu_set_t cores;
    door doors[];
} card;

static size_t card_bytes(int size) {
    return sizeof(card) + (size_t)size * sizeof(door);
}

static ls_status fail_gloo(const char *why) {
    return ls_fail(LS_ERR_IO, "ls_comm_open: Gloo: %s", why);
}

/* ---- meeting through the store -------------------------------------------------------------------------------------
 */

static void write_key(const ls_join *join, int rank, char key[256]) {
    snprintf(key, 256, "%sgloo/%d", join->prefix, rank);
}

static ls_status publish(ls_gloo *gloo, const ls_join *join, card *own) {
    char key[256];
    char why[LS_GLOO_WHY];
    memset(own, 0, card_bytes(join->size));
    own->machine = join->machine;
    if (sched_getaffinity(0, sizeof own->cores, &own->cores) != 0) {
        memset(&own->cores, 0xff, sizeof own->cores); /* more cores than a cpu_set_t has: enough for all */
    }
    for (int peer = 0; peer < join->size; peer++) {
        door *made = &own->doors[peer];
        if (peer != join->rank && !ls_gloo_wire_address(gloo->wire, peer, &made->address, why)) {
            return fail_gloo(why);
        }
        if (getrandom(made->token, sizeof made->token, 0) != sizeof made->token) {
            return ls_fail(LS_ERR_IO, "ls_comm_open: the system gives no random numbers");
        }
    }
    write_key(join, join->rank, key);
    return ls_store_set(join->store, key, own, card_bytes(join->size));
}

static ls_status read_card(const ls_join *join, int rank, card *result) {
    char key[256];
    size_t size = 0;
    write_key(join, rank, key);
    LS_TRY(ls_store_wait(join->store, key, join->timeout));
    LS_TRY(ls_store_get(join->store, key, result, card_bytes(join->size), &size));
    if (size != card_bytes(join->size)) {
        return ls_fail(LS_ERR_MISMATCH,
                       "ls_comm_open: rank %d says of itself what this version of Lockstep cannot read", rank);
    }
    return LS_OK;
}

/* ---- connections ---------------------------------------------------------------------------------------------------
 */

/*
 * Proves to the rank behind a door that this one read its card. What follows is one operation as large as any, so that
 * Gloo makes its send buffer large enough for all.
 */
static ls_status greet(ls_gloo *gloo, int peer, const door *theirs, unsigned char *scrap) {
    char why[LS_GLOO_WHY];
    ls_gloo_peer *other = &gloo->peers[peer];
    ls_gloo_packet *packet = gloo->outgoing;
    memset((void *)packet, 0, LS_GLOO_HEADER);
    packet->kind = LS_GLOO_HELLO;
    packet->bytes = sizeof theirs->token;
    memcpy(packet->data, theirs->token, sizeof theirs->token);
    const size_t chunk =
        ls_gloo_wire_widen(gloo->wire, peer) / 6 / 4096 * 4096; /* there is room when a third is free */
    other->chunk = chunk > LS_GLOO_CHUNK ? LS_GLOO_CHUNK : chunk < 4096 ? 4096 : chunk;
    const size_t largest = other->chunk > sizeof *packet ? other->chunk : sizeof *packet;
    if (!ls_gloo_wire_send(gloo->wire, peer, LS_GLOO_PACKETS, packet, LS_GLOO_HEADER + packet->bytes, 0, why) ||
        !ls_gloo_wire_send(gloo->wire, peer, LS_GLOO_PIECES, scrap, largest, 0, why)) {
        return ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d is gone: %s", peer, why);
    }
    (void)ls_gloo_wire_widen(gloo->wire, peer);
    return LS_OK;
}

/* Hears the same from the rank. */
static ls_status hear(ls_gloo *gloo, int peer, const door *own) {
    char why[LS_GLOO_WHY];
    ls_gloo_peer *other = &gloo->peers[peer];
    if (!ls_gloo_wire_take(gloo->wire, peer, LS_GLOO_PACKETS, why) ||
        !ls_gloo_wire_take(gloo->wire, peer, LS_GLOO_PIECES, why)) {
        return ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d is gone: %s", peer, why);
    }
    unsigned char differs = 0; /* in constant time */
    for (size_t i = 0; i < sizeof own->token; i++) {
        differs |= (unsigned char)(own->token[i] ^ other->packet->data[i]);
    }
    if (other->packet->kind != LS_GLOO_HELLO || differs != 0) {
        return ls_fail(LS_ERR_DENIED, "ls_comm_open: somebody who is not of this job connected in place of rank %d",
                       peer);
    }
    return ls_gloo_aim(gloo, peer, LS_GLOO_PIECES, NULL, 0);
}

static ls_status connect_one(ls_gloo *gloo, int peer, const card *theirs, unsigned char *scrap) {
    char why[LS_GLOO_WHY];
    ls_gloo_peer *other = &gloo->peers[peer];
    LS_TRY(ls_gloo_aim(gloo, peer, LS_GLOO_PACKETS, other->packet, sizeof *other->packet));
    LS_TRY(ls_gloo_aim(gloo, peer, LS_GLOO_PIECES, scrap, LS_GLOO_CHUNK));
    if (!ls_gloo_wire_connect(gloo->wire, peer, &theirs->doors[gloo->rank].address, why)) {
        return ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d cannot be reached: %s", peer, why);
    }
    return greet(gloo, peer, &theirs->doors[gloo->rank], scrap);
}

/* Whether there is a core for every rank of this machine, as far as its cards say. */
static void count_cores(cpu_set_t *cores, int *ranks, const card *of, uint64_t machine) {
    if (of->machine == machine) {
        CPU_OR(cores, cores, &of->cores);
        ++*ranks;
    }
}

static ls_status connect_all(ls_gloo *gloo, const ls_join *join, card *own, card *theirs, unsigned char *scrap) {
    int ranks = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    LS_TRY(publish(gloo, join, own));
    count_cores(&cores, &ranks, own, join->machine);
    for (int peer = 0; peer < join->size; peer++) {
        if (peer != join->rank) {
            LS_TRY(read_card(join, peer, theirs));
            count_cores(&cores, &ranks, theirs, join->machine);
            LS_TRY(connect_one(gloo, peer, theirs, scrap));
        }
    }
    for (int peer = 0; peer < join->size; peer++) {
        if (peer != join->rank) {
            LS_TRY(hear(gloo, peer, &own->doors[peer]));
        }
    }
    gloo->spin_ns = CPU_COUNT(&cores) >= ranks ? SPIN_NS : 0;
    return LS_OK;
}

/* ---- states --------------------------------------------------------------------------------------------------------
 */

static void discard(ls_gloo *gloo) {
    if (gloo->wire != NULL) {
        ls_gloo_wire_free(gloo->wire);
    }
    for (int peer = 0; gloo->peers != NULL && peer < gloo->size; peer++) {
        ls_free(gloo->peers[peer].packet);
        ls_free(gloo->peers[peer].call);
        ls_free(gloo->peers[peer].window);
    }
    ls_free(gloo->peers);
    ls_free(gloo->sockets);
    ls_free(gloo->outgoing);
    ls_free(gloo->sources);
    ls_free(gloo->headers);
    ls_free(gloo);
}

static ls_gloo *make(const ls_join *join) {
    const size_t size = (size_t)join->size;
    ls_gloo *gloo = ls_allocate_zeroed(1, sizeof *gloo);
    if (gloo == NULL) {
        return NULL;
    }
    gloo->rank = join->rank;
    gloo->size = join->size;
    gloo->timeout = join->timeout;
    gloo->peers = ls_allocate_zeroed(size, sizeof *gloo->peers);
    gloo->sockets = ls_allocate_zeroed(size, sizeof *gloo->sockets);
    gloo->outgoing = ls_allocate_aligned(sizeof *gloo->outgoing, 64);
    gloo->sources = ls_allocate_zeroed(size, sizeof *gloo->sources);
    gloo->headers = ls_allocate_zeroed(size, sizeof *gloo->headers);
    bool made = gloo->peers != NULL && gloo->sockets != NULL && gloo->outgoing != NULL && gloo->sources != NULL &&
                gloo->headers != NULL;
    for (int peer = 0; peer < join->size && made; peer++) {
        gloo->peers[peer].packet = ls_allocate_aligned(sizeof(ls_gloo_packet), 64);
        gloo->peers[peer].call = ls_allocate_aligned(sizeof(ls_gloo_packet), 64);
        made = gloo->peers[peer].packet != NULL && gloo->peers[peer].call != NULL;
    }
    if (!made) {
        discard(gloo);
        return NULL;
    }
    return gloo;
}

static ls_status join_others(ls_gloo *gloo, const ls_join *join) {
    char why[LS_GLOO_WHY];
    const char *host = join->address != NULL ? join->address : "127.0.0.1";
    gloo->wire = ls_gloo_wire_make(host, join->rank, join->size, join->timeout, why);
    if (gloo->wire == NULL) {
        return fail_gloo(why);
    }
    card *own = ls_allocate(card_bytes(join->size));
    card *theirs = ls_allocate(card_bytes(join->size));
    unsigned char *scrap = ls_allocate_zeroed(1, LS_GLOO_CHUNK);
    ls_status status = own != NULL && theirs != NULL && scrap != NULL
                           ? connect_all(gloo, join, own, theirs, scrap)
                           : ls_fail_memory("ls_comm_open", 2 * card_bytes(join->size) + LS_GLOO_CHUNK);
    ls_free(own);
    ls_free(theirs);
    ls_free(scrap);
    return status;
}

static ls_status gloo_open(const ls_join *join, void **state) {
    ls_gloo *gloo = make(join);
    if (gloo == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)join->size * 2 * sizeof(ls_gloo_packet));
    }
    const ls_status status = join->size > 1 ? join_others(gloo, join) : LS_OK;
    if (status != LS_OK) {
        char message[LS_ERROR_CAPACITY];
        snprintf(message, sizeof message, "%s", ls_error_message());
        discard(gloo);
        ls_error_restore(status, message);
        return status;
    }
    *state = gloo;
    return LS_OK;
}

static void gloo_close(void *state) {
    ls_gloo *gloo = state;
    ls_gloo_leave(gloo, LS_OK, gloo->rank, "");
    ls_gloo_free_runs(gloo);
    ls_gloo_free_messages(gloo);
    discard(gloo);
}

static const ls_backend backend = {
    .name = "gloo",
    .open = gloo_open,
    .close = gloo_close,
    .begin = {[LS_OP_BARRIER] = ls_gloo_exchange,
              [LS_OP_BROADCAST] = ls_gloo_exchange,
              [LS_OP_ALLREDUCE] = ls_gloo_allreduce,
              [LS_OP_GATHER] = ls_gloo_exchange,
              [LS_OP_GATHERV] = ls_gloo_exchange,
              [LS_OP_ALLGATHER] = ls_gloo_exchange,
              [LS_OP_ALLGATHERV] = ls_gloo_exchange,
              [LS_OP_SCATTER] = ls_gloo_exchange,
              [LS_OP_SCATTERV] = ls_gloo_exchange,
              [LS_OP_ALLTOALL] = ls_gloo_exchange,
              [LS_OP_ALLTOALLV] = ls_gloo_exchange,
              [LS_OP_SPLIT] = ls_gloo_exchange},
    .progress = ls_gloo_progress,
    .post = ls_gloo_post,
    .test = ls_gloo_test,
};

LS_API const ls_backend *ls_backend_module(int abi_version, const ls_core *core);

const ls_backend *ls_backend_module(int abi_version, const ls_core *core) {
    if (abi_version != LS_BACKEND_ABI) {
        return NULL;
    }
    ls_core_set(core);
    return &backend;
}
