/* Backend gloo: joining and leaving. gloo.h tells how it works. */
#include "comm/backend/gloo/gloo.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/gloo/connect.h"
#include "comm/module.h"

#define SPIN_NS ((uint64_t)100000) /* with a core for every rank: longer than a sleep and a wake-up cost */

static ls_status fail_gloo(const char *why) {
    return ls_fail(LS_ERR_IO, "ls_comm_open: Gloo: %s", why);
}

/* ---- connections ---------------------------------------------------------------------------------------------------
 */

/* Makes what this rank says of itself; listens. */
static ls_status write_card(const ls_join *join, ls_gloo_card *own, int *listener) {
    memset(own, 0, sizeof *own);
    own->machine = join->machine;
    if (sched_getaffinity(0, sizeof own->cores, &own->cores) != 0) {
        memset(&own->cores, 0xff, sizeof own->cores); /* more cores than a cpu_set_t has: enough for all */
    }
    LS_TRY(ls_auth_nonce(own->secret));
    return ls_gloo_listen(join, own, listener);
}

/* Whether there is a core for every rank of this machine, as far as its cards say. */
static bool has_core_for_each(const ls_join *join, const ls_gloo_card *cards) {
    int ranks = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int rank = 0; rank < join->size; rank++) {
        if (cards[rank].machine == join->machine) {
            CPU_OR(&cores, &cores, &cards[rank].cores);
            ranks++;
        }
    }
    return CPU_COUNT(&cores) >= ranks;
}

static ls_status adopt(ls_gloo *gloo, int peer, int socket) {
    char why[LS_GLOO_WHY];
    ls_gloo_peer *other = &gloo->peers[peer];
    const size_t chunk = ls_gloo_wire_widen(socket) / 6 / 4096 * 4096; /* there is room when a third is free */
    other->chunk = chunk > LS_GLOO_CHUNK ? LS_GLOO_CHUNK : chunk < 4096 ? 4096 : chunk;
    const size_t largest = other->chunk > sizeof *other->packet ? other->chunk : sizeof *other->packet;
    if (!ls_gloo_wire_adopt(gloo->wire, peer, socket, largest, why)) {
        return fail_gloo(why);
    }
    other->closed = false;
    return ls_gloo_aim(gloo, peer, LS_GLOO_PACKETS, other->packet, sizeof *other->packet);
}

/* Takes over the sockets that there are, and makes what they belong to. */
static ls_status adopt_all(ls_gloo *gloo, const ls_join *join, const int *sockets) {
    char why[LS_GLOO_WHY];
    gloo->wire = ls_gloo_wire_make(ls_gloo_host(join), join->rank, join->size, join->timeout, why);
    ls_status status = gloo->wire != NULL ? LS_OK : fail_gloo(why);
    for (int peer = 0; peer < gloo->size; peer++) {
        if (sockets[peer] >= 0 && status == LS_OK) {
            status = adopt(gloo, peer, sockets[peer]);
        } else if (sockets[peer] >= 0) {
            close(sockets[peer]);
        }
    }
    return status;
}

/*
 * Connects with all others, whose cards are known. Where that fails, those who are connected already are told why, for
 * they may be waiting for nobody else any more.
 */
static ls_status meet(ls_gloo *gloo, const ls_join *join, const int *watched, int listener) {
    char message[LS_ERROR_CAPACITY];
    int *sockets = ls_allocate((size_t)join->size * sizeof *sockets);
    if (sockets == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)join->size * sizeof *sockets);
    }
    ls_gloo_mesh mesh = {
        .join = join, .cards = gloo->cards, .watched = watched, .listener = listener, .sockets = sockets};
    for (int peer = 0; peer < gloo->size; peer++) {
        gloo->peers[peer].closed = peer != gloo->rank; /* until it is connected */
    }
    const ls_status met = ls_gloo_meet(&mesh);
    snprintf(message, sizeof message, "%s", ls_error_message());
    const ls_status adopted = adopt_all(gloo, join, sockets);
    ls_free(sockets);
    if (met != LS_OK) {
        ls_error_restore(met, message);
        return gloo->wire != NULL ? ls_gloo_give_up(gloo, met, mesh.culprit) : met;
    }
    gloo->spin_ns = has_core_for_each(join, gloo->cards) ? SPIN_NS : 0;
    return adopted;
}

/* The cards go through the store. */
static ls_status exchange_cards(ls_gloo *gloo, const ls_join *join) {
    char key[256];
    snprintf(key, sizeof key, "%sgloo/%d", join->prefix, join->rank);
    LS_TRY(ls_store_set(join->store, key, &gloo->cards[join->rank], sizeof *gloo->cards));
    for (int peer = 0; peer < join->size; peer++) {
        size_t size = 0;
        snprintf(key, sizeof key, "%sgloo/%d", join->prefix, peer);
        if (peer != join->rank) {
            const ls_status got = ls_store_get(join->store, key, &gloo->cards[peer], sizeof *gloo->cards, &size);
            if (got == LS_ERR_TIMEOUT) {
                return ls_fail(got, "ls_comm_open: rank %d did not say where it listens within %g s", peer,
                               join->timeout);
            }
            LS_TRY(got);
            if (size != sizeof *gloo->cards || gloo->cards[peer].length > sizeof gloo->cards[peer].address) {
                return ls_fail(LS_ERR_MISMATCH,
                               "ls_comm_open: rank %d says of itself what this version of Lockstep cannot read", peer);
            }
        }
    }
    return LS_OK;
}

static ls_status join_others(ls_gloo *gloo, const ls_join *join) {
    int listener = -1;
    ls_status status = write_card(join, &gloo->cards[join->rank], &listener);
    if (status == LS_OK) {
        status = exchange_cards(gloo, join);
    }
    if (status == LS_OK) {
        status = meet(gloo, join, NULL, listener);
    }
    if (listener >= 0) {
        close(listener);
    }
    return status;
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
    ls_free(gloo->cards);
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
    if (gloo->outgoing != NULL) { /* each packet fills in what it needs of its header, and sends all of that */
        memset((void *)gloo->outgoing, 0, LS_GLOO_HEADER);
    }
    gloo->sources = ls_allocate_zeroed(size, sizeof *gloo->sources);
    gloo->headers = ls_allocate_zeroed(size, sizeof *gloo->headers);
    gloo->cards = ls_allocate_zeroed(size, sizeof *gloo->cards);
    bool made = gloo->peers != NULL && gloo->sockets != NULL && gloo->outgoing != NULL && gloo->sources != NULL &&
                gloo->headers != NULL && gloo->cards != NULL;
    for (int peer = 0; peer < join->size && made; peer++) {
        gloo->peers[peer].packet = ls_allocate_aligned(sizeof(ls_gloo_packet), 64);
        gloo->peers[peer].call = ls_allocate_aligned(sizeof(ls_gloo_packet), 64);
        made = gloo->peers[peer].packet != NULL && gloo->peers[peer].call != NULL;
        if (made) {
            gloo->peers[peer].call->call = (ls_call_header){.sequence = 0}; /* there was none yet */
        }
    }
    if (!made) {
        discard(gloo);
        return NULL;
    }
    return gloo;
}

/* Ends a state that is not whole; keeps the reason. */
static ls_status discard_failed(ls_gloo *gloo, ls_status status) {
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    ls_gloo_free_runs(gloo);
    discard(gloo);
    ls_error_restore(status, message);
    return status;
}

static ls_status fail_no_memory(const ls_join *join) {
    return ls_fail_memory("ls_comm_open", (size_t)join->size * 2 * sizeof(ls_gloo_packet));
}

static ls_status gloo_open(const ls_join *join, void **state) {
    ls_gloo *gloo = make(join);
    if (gloo == NULL) {
        return fail_no_memory(join);
    }
    const ls_status status = join->size > 1 ? join_others(gloo, join) : LS_OK;
    if (status != LS_OK) {
        return discard_failed(gloo, status);
    }
    *state = gloo;
    return LS_OK;
}

/* ---- splitting -----------------------------------------------------------------------------------------------------
 */

/* Tells all ranks of the parent this rank's card and learns theirs. */
static ls_status tell_cards(ls_gloo *parent, const ls_gloo_card *own) {
    bool finished = false;
    const ls_call call = {.operation = LS_OP_SPLIT,
                          .dtype = LS_U8,
                          .count = sizeof *own,
                          .width = 1,
                          .send = own,
                          .receive = parent->cards,
                          .sequence = parent->call.sequence};
    ls_status status = ls_gloo_exchange(parent, &call);
    while (status == LS_OK && !finished) {
        status = ls_gloo_progress(parent, true, &finished);
    }
    return status;
}

/* Connects the ranks of the group; the connections of the parent tell who dies. */
static ls_status meet_group(const ls_gloo *parent, ls_gloo *gloo, const ls_join *join, const int *ranks, int listener) {
    int *watched = ls_allocate((size_t)join->size * sizeof *watched);
    if (watched == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)join->size * sizeof *watched);
    }
    ls_status status = LS_OK;
    for (int i = 0; i < join->size; i++) {
        gloo->cards[i] = parent->cards[ranks[i]];
        watched[i] = i != join->rank ? ls_gloo_wire_socket(parent->wire, ranks[i]) : -1;
        if (gloo->cards[i].status != LS_OK && status == LS_OK) {
            status = ls_fail((ls_status)gloo->cards[i].status, "ls_comm_open: rank %d cannot take part", i);
        }
    }
    if (status == LS_OK && join->size > 1) {
        status = meet(gloo, join, watched, listener);
    }
    ls_free(watched);
    return status;
}

static ls_status gloo_split(void *state, const ls_join *join, const int *ranks, void **result) {
    ls_gloo *parent = state;
    ls_gloo *gloo = join != NULL ? make(join) : NULL;
    ls_gloo_card own = {.status = LS_OK};
    char message[LS_ERROR_CAPACITY] = "";
    int listener = -1;
    if (join != NULL) {
        own.status = (int32_t)(gloo != NULL ? write_card(join, &own, &listener) : fail_no_memory(join));
        snprintf(message, sizeof message, "%s", ls_error_message());
    }
    ls_status status = tell_cards(parent, &own);
    if (status == LS_OK && own.status != LS_OK) {
        status = (ls_status)own.status;
        ls_error_restore(status, message);
    } else if (status == LS_OK && join != NULL) {
        status = meet_group(parent, gloo, join, ranks, listener);
    }
    if (listener >= 0) {
        close(listener);
    }
    if (status != LS_OK && gloo != NULL) {
        return discard_failed(gloo, status);
    }
    *result = gloo;
    return status;
}

static void gloo_close(void *state) {
    ls_gloo *gloo = state;
    ls_gloo_leave(gloo, LS_LEAVE_FREED, LS_OK, gloo->rank, "");
    ls_gloo_free_runs(gloo);
    ls_gloo_free_messages(gloo);
    discard(gloo);
}

static void gloo_leave(void *state, ls_leave_reason reason) {
    ls_gloo *gloo = state;
    ls_gloo_leave(gloo, reason, LS_OK, gloo->rank, "");
}

static void gloo_give_up(void *state, ls_status status) {
    ls_gloo *gloo = state;
    (void)ls_gloo_give_up(gloo, status, gloo->rank);
}

static int gloo_culprit(const void *state) {
    const ls_gloo *gloo = state;
    const int culprit = gloo->ended ? gloo->culprit : -1;
    const ls_gloo_peer *peer = &gloo->peers[culprit >= 0 ? culprit : gloo->rank];
    return peer->left && peer->leaving == LS_LEAVE_FINALIZED ? gloo->rank : culprit;
}

const ls_backend ls_module_backend = {
    .name = "gloo",
    .open = gloo_open,
    .close = gloo_close,
    .leave = gloo_leave,
    .give_up = gloo_give_up,
    .culprit = gloo_culprit,
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
    .split = gloo_split,
    .post = ls_gloo_post,
    .test = ls_gloo_test,
};
