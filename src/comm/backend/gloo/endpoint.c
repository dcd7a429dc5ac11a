/* Endpoints of transport tcp that have libgloo's collectives: see gloo.h. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/gloo/gloo.h"
#include "comm/backend/gloo/library.h"
#include "comm/pieces.h"
#include "comm/reduce.h"
#include "comm/transport/tcp/tcp.h"

#define CHANNEL  (LS_TRANSPORT_CHANNELS - 1) /* the engine uses the first ones */
#define GRACE_NS UINT64_C(2000000000)        /* in which the engine may find out why a collective failed */

/* What a rank tells another before they connect. */
typedef struct greeting {
    uint8_t nonce[LS_NONCE_SIZE];
    uint32_t bytes;
    char address[LS_GLOO_ADDRESS];
} greeting;

typedef enum stage {
    APART = 0, /* no collective so far */
    MEETING,   /* greetings are under way, and a collective waits for them */
    WORKING,   /* the thread is at it */
    READY,
    ENDED /* there are no more collectives */
} stage;

typedef struct ls_gloo {
    ls_transport entries; /* of the endpoint, in place of transport tcp's own */
    const ls_transport *tcp;
    ls_endpoint *endpoint;
    ls_key key;
    char address[64];
    stage stage;
    ls_gloo_context *context;
    greeting *greetings;     /* for each rank, then of each rank */
    ls_transfer *transfers;  /* of those */
    ls_transfer *collective; /* the engine's, under way */
    size_t *counts;          /* its own, where it has some */
    ls_gloo_collective work;
    ls_call call;       /* for reductions */
    uint64_t failed_ns; /* when that was seen; 0: it was not */
    int waker;          /* ends a wait of the endpoint */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    bool connected; /* the thread's */
    bool wanted;    /* under the lock: the thread has work, or is to end */
    bool leaves;
    atomic_bool done;
    bool failed; /* valid once done */
    char why[LS_GLOO_WHY];
} ls_gloo;

static ls_gloo *gloo_of(const ls_endpoint *endpoint) {
    return (ls_gloo *)(uintptr_t)endpoint->transport;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Each proves to each that it knows the job's key: over libgloo's connections, which anybody on the way may have made.
 */
static bool prove(ls_gloo *gloo) {
    const size_t size = (size_t)gloo->endpoint->size;
    const size_t rank = (size_t)gloo->endpoint->rank;
    const greeting *said = gloo->greetings;
    const greeting *heard = said + size;
    uint8_t *proofs = ls_allocate_zeroed(2 * size, LS_PROOF_SIZE);
    bool right = proofs != NULL;
    for (size_t peer = 0; right && peer < size; peer++) {
        if (peer != rank) {
            ls_auth_prove(&gloo->key, "gloo", said[peer].nonce, heard[peer].nonce, proofs + peer * LS_PROOF_SIZE);
        }
    }
    right = right && ls_gloo_make(gloo->context,
                                  &(ls_gloo_collective){.kind = LS_GLOO_ALLTOALL,
                                                        .send = proofs,
                                                        .receive = proofs + size * LS_PROOF_SIZE,
                                                        .count = LS_PROOF_SIZE,
                                                        .width = 1},
                                  gloo->why);
    for (size_t peer = 0; right && peer < size; peer++) {
        if (peer != rank && !ls_auth_check(&gloo->key, "gloo", heard[peer].nonce, said[peer].nonce,
                                           proofs + (size + peer) * LS_PROOF_SIZE)) {
            snprintf(gloo->why, sizeof gloo->why, "who connected as rank %zu does not know the job's key", peer);
            right = false;
        }
    }
    ls_free(proofs);
    return right;
}

static bool connect_all(ls_gloo *gloo) {
    const greeting *heard = gloo->greetings + gloo->endpoint->size;
    for (int peer = 0; peer < gloo->endpoint->size; peer++) {
        if (peer != gloo->endpoint->rank &&
            !ls_gloo_connect(gloo->context, peer, heard[peer].address, heard[peer].bytes, gloo->why)) {
            return false;
        }
    }
    return prove(gloo);
}

static void *work(void *argument) {
    ls_gloo *gloo = argument;
    pthread_mutex_lock(&gloo->lock);
    for (;;) {
        while (!gloo->wanted) {
            pthread_cond_wait(&gloo->asked, &gloo->lock);
        }
        gloo->wanted = false;
        if (gloo->leaves) {
            break;
        }
        pthread_mutex_unlock(&gloo->lock);
        gloo->connected = gloo->connected || connect_all(gloo);
        gloo->failed = !gloo->connected || !ls_gloo_make(gloo->context, &gloo->work, gloo->why);
        atomic_store(&gloo->done, true);
        (void)!write(gloo->waker, &(uint64_t){1}, sizeof(uint64_t)); /* fails only where it is full of these */
        pthread_mutex_lock(&gloo->lock);
    }
    pthread_mutex_unlock(&gloo->lock);
    return NULL;
}

/* Tells the thread that there is work, or that it is to end. */
static void ask(ls_gloo *gloo, bool leaves) {
    pthread_mutex_lock(&gloo->lock);
    gloo->wanted = true;
    gloo->leaves = leaves;
    pthread_cond_signal(&gloo->asked);
    pthread_mutex_unlock(&gloo->lock);
}

/* With no signals: those are for the program's own threads. */
static ls_status start_thread(ls_gloo *gloo) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&gloo->thread, NULL, work, gloo);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    gloo->has_thread = error == 0;
    return error == 0 ? LS_OK : ls_fail(LS_ERR_MEMORY, "a thread for Gloo: %s", strerror(error));
}

/* Whatever waits in libgloo ends, on this rank and then on the others. After this no memory of a call is used. */
static void end_collectives(ls_gloo *gloo) {
    gloo->stage = ENDED;
    gloo->collective = NULL;
    if (gloo->context != NULL) {
        ls_gloo_end(gloo->context);
    }
    if (gloo->has_thread) {
        ask(gloo, true);
        pthread_join(gloo->thread, NULL);
        gloo->has_thread = false;
    }
    if (gloo->context != NULL) {
        ls_gloo_free(gloo->context);
        gloo->context = NULL;
    }
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static ls_status greet(ls_gloo *gloo, int peer) {
    ls_endpoint *endpoint = gloo->endpoint;
    const size_t size = (size_t)endpoint->size;
    greeting *own = &gloo->greetings[peer];
    LS_TRY(ls_auth_nonce(own->nonce));
    own->bytes = (uint32_t)ls_gloo_address(gloo->context, peer, own->address);
    if (own->bytes == 0) {
        return ls_fail(LS_ERR_INTERNAL, "Gloo's address has more than %d bytes", LS_GLOO_ADDRESS);
    }
    ls_transfer *sent = &gloo->transfers[peer];
    ls_transfer *received = &gloo->transfers[size + (size_t)peer];
    *sent = (ls_transfer){.peer = peer, .channel = CHANNEL, .data = own, .bytes = sizeof *own};
    *received = *sent;
    received->data = &gloo->greetings[size + (size_t)peer];
    LS_TRY(gloo->tcp->receive(endpoint, received));
    return gloo->tcp->send(endpoint, sent);
}

/* The first collective: a context, and what others must know of it. */
static ls_status begin_meeting(ls_gloo *gloo) {
    const int size = gloo->endpoint->size;
    gloo->greetings = ls_allocate_zeroed(2 * (size_t)size, sizeof *gloo->greetings);
    gloo->transfers = ls_allocate_zeroed(2 * (size_t)size, sizeof *gloo->transfers);
    gloo->counts = ls_allocate_zeroed(2 * (size_t)size, sizeof *gloo->counts);
    if (gloo->greetings == NULL || gloo->transfers == NULL || gloo->counts == NULL) {
        return ls_fail_memory("Gloo", 2 * (size_t)size * sizeof *gloo->greetings);
    }
    gloo->context = ls_gloo_new(gloo->address, gloo->endpoint->rank, size, gloo->why);
    if (gloo->context == NULL) {
        return ls_fail(LS_ERR_IO, "Gloo: %s", gloo->why);
    }
    LS_TRY(start_thread(gloo));
    for (int peer = 0; peer < size; peer++) {
        LS_TRY(peer != gloo->endpoint->rank ? greet(gloo, peer) : LS_OK);
    }
    gloo->stage = MEETING;
    return LS_OK;
}

static ls_status check_greetings(const ls_gloo *gloo, bool *all) {
    const int size = gloo->endpoint->size;
    *all = true;
    for (int i = 0; i < 2 * size; i++) {
        const ls_transfer *transfer = &gloo->transfers[i];
        if (i % size == gloo->endpoint->rank) {
            continue;
        }
        *all = *all && transfer->ended;
        if (i >= size && transfer->ended &&
            (transfer->bytes != sizeof(greeting) || gloo->greetings[i].bytes > LS_GLOO_ADDRESS)) {
            gloo->endpoint->blamed = 1 + i - size;
            return ls_fail(LS_ERR_PEER, "rank %d says where Gloo listens as this version cannot read it", i - size);
        }
    }
    return LS_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool is_integer(ls_dtype dtype) {
    return dtype == LS_I64 || dtype == LS_I32 || dtype == LS_U8 || dtype == LS_BOOL;
}

/* Whether any order gives the same bits. */
static bool has_one_result(const ls_call *call, int size) {
    const bool adds = call->reduction == LS_SUM || call->reduction == LS_PROD || call->reduction == LS_AVG;
    return is_integer(call->dtype) || (size == 2 && adds);
}

/* Averages are divided once, as elements; halves are added up in f32, and here they would be rounded at each rank. */
static bool can_reduce(const ls_call *call, int size) {
    const bool floats = call->dtype == LS_F32 || call->dtype == LS_F64;
    const bool pairs = call->reduction == LS_MINLOC || call->reduction == LS_MAXLOC;
    return !pairs && (floats || (is_integer(call->dtype) && call->reduction != LS_AVG)) &&
           (call->any_order || has_one_result(call, size));
}

/* Whether each rank has something, and all of it lies in one piece, as Gloo wants it. */
static bool is_packed(const size_t *counts, const size_t *displacements, int size) {
    size_t at = 0;
    for (int rank = 0; rank < size; rank++) {
        if (counts[rank] == 0 || (displacements != NULL && displacements[rank] != at)) {
            return false;
        }
        at += counts[rank];
    }
    return true;
}

static bool gloo_can_make(const ls_endpoint *endpoint, const ls_call *call) {
    switch (call->operation) {
    case LS_OP_ALLREDUCE:
    case LS_OP_REDUCE:
        return call->count != 0 && can_reduce(call, endpoint->size);
    case LS_OP_BROADCAST:
    case LS_OP_GATHER:
    case LS_OP_ALLGATHER:
    case LS_OP_SCATTER:
    case LS_OP_ALLTOALL:
        return call->count != 0;
    case LS_OP_ALLGATHERV:
        return is_packed(call->receive_counts, call->receive_displacements, endpoint->size);
    case LS_OP_ALLTOALLV:
        return is_packed(call->send_counts, call->send_displacements, endpoint->size) &&
               is_packed(call->receive_counts, call->receive_displacements, endpoint->size);
    default: /* Gloo has none for any number of ranks */
        return false;
    }
}

static ls_gloo_kind kind_of(ls_operation operation) {
    switch (operation) {
    case LS_OP_ALLREDUCE:
        return LS_GLOO_ALLREDUCE;
    case LS_OP_REDUCE:
        return LS_GLOO_REDUCE;
    case LS_OP_GATHER:
        return LS_GLOO_GATHER;
    case LS_OP_ALLGATHER:
        return LS_GLOO_ALLGATHER;
    case LS_OP_ALLGATHERV:
        return LS_GLOO_ALLGATHERV;
    case LS_OP_SCATTER:
        return LS_GLOO_SCATTER;
    case LS_OP_ALLTOALL:
        return LS_GLOO_ALLTOALL;
    case LS_OP_ALLTOALLV:
        return LS_GLOO_ALLTOALLV;
    default:
        return LS_GLOO_BROADCAST;
    }
}

static void reduce(const void *argument, void *result, const void *a, const void *b, size_t count) {
    const ls_call *call = argument;
    ls_reduce_buffers(&(ls_reduce_task){.dtype = call->dtype,
                                        .reduction = call->reduction == LS_AVG ? LS_SUM : call->reduction,
                                        .ranks = 2,
                                        .sources = (const void *const[]){a, b},
                                        .copies = 1,
                                        .destinations = (void *const[]){result},
                                        .count = count});
}

/* This rank's own part of an all-gather, which may be in its place already, goes there. */
static void keep_own(const ls_gloo *gloo, const ls_call *call) {
    const int rank = gloo->endpoint->rank;
    const ls_piece to = ls_piece_received(call, rank, rank);
    memmove((unsigned char *)call->receive + to.at * call->width, call->send, to.count * call->width);
}

/* What the thread needs of the call, which is lent. */
static void keep_call(ls_gloo *gloo, const ls_call *call) {
    const size_t size = (size_t)gloo->endpoint->size;
    const bool gathers = call->operation == LS_OP_ALLGATHER || call->operation == LS_OP_ALLGATHERV;
    if (call->send_counts != NULL) {
        memcpy(gloo->counts, call->send_counts, size * sizeof *gloo->counts);
    }
    if (call->receive_counts != NULL) {
        memcpy(gloo->counts + size, call->receive_counts, size * sizeof *gloo->counts);
    }
    if (gathers) {
        keep_own(gloo, call);
    }
    gloo->call = *call;
    gloo->work = (ls_gloo_collective){.kind = kind_of(call->operation),
                                      .root = call->root,
                                      .send = gathers ? NULL : call->send,
                                      .receive = call->receive,
                                      .count = call->count,
                                      .width = call->width,
                                      .send_counts = gloo->counts,
                                      .receive_counts = gloo->counts + size,
                                      .reduce = reduce,
                                      .argument = &gloo->call};
}

static void begin_work(ls_gloo *gloo) {
    gloo->stage = WORKING;
    gloo->endpoint->yields = true;
    atomic_store(&gloo->done, false);
    ask(gloo, false);
}

static ls_status gloo_collective(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer) {
    ls_gloo *gloo = gloo_of(endpoint);
    *transfer = (ls_transfer){.peer = -1};
    LS_TRY(gloo->stage == APART ? begin_meeting(gloo) : LS_OK);
    keep_call(gloo, call);
    gloo->collective = transfer;
    if (gloo->stage == READY) {
        begin_work(gloo);
    }
    return LS_OK;
}

/* ---- the endpoint ------------------------------------------------------------------------------------------------ */

/* Goes on with what the thread, or other ranks, have done. */
static ls_status go_on(ls_gloo *gloo, bool *moved) {
    bool greeted = false;
    if (gloo->stage == MEETING) {
        LS_TRY(check_greetings(gloo, &greeted));
        if (greeted) {
            begin_work(gloo);
        }
    }
    if (gloo->stage != WORKING || !atomic_load(&gloo->done)) {
        return LS_OK;
    }
    if (!gloo->failed) {
        gloo->stage = READY;
        gloo->endpoint->yields = false;
        gloo->collective->ended = true;
        gloo->collective = NULL;
        *moved = true;
        return LS_OK;
    }
    const uint64_t now = gloo->tcp->now_ns(gloo->endpoint);
    gloo->failed_ns = gloo->failed_ns == 0 ? now : gloo->failed_ns;
    return now - gloo->failed_ns < GRACE_NS ? LS_OK : ls_fail(LS_ERR_IO, "Gloo: %s", gloo->why);
}

static ls_status gloo_progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    ls_gloo *gloo = gloo_of(endpoint);
    bool ended = false;
    LS_TRY(go_on(gloo, &ended));
    LS_TRY(gloo->tcp->progress(endpoint, ended ? 0 : wait_ns, moved));
    LS_TRY(ended ? LS_OK : go_on(gloo, &ended));
    *moved = *moved || ended;
    return LS_OK;
}

static void gloo_withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_gloo *gloo = gloo_of(endpoint);
    if (transfer == gloo->collective) {
        end_collectives(gloo);
    } else {
        gloo->tcp->withdraw(endpoint, transfer);
    }
}

static void free_gloo(ls_gloo *gloo) {
    pthread_mutex_destroy(&gloo->lock);
    pthread_cond_destroy(&gloo->asked);
    ls_key_forget(&gloo->key);
    ls_free(gloo->greetings);
    ls_free(gloo->transfers);
    ls_free(gloo->counts);
    ls_free(gloo);
}

static bool gloo_close(ls_endpoint *endpoint, uint64_t linger_ns) {
    ls_gloo *gloo = gloo_of(endpoint);
    end_collectives(gloo);
    const bool unused = gloo->tcp->close(endpoint, linger_ns);
    if (unused) {
        free_gloo(gloo);
    }
    return unused;
}

ls_status ls_gloo_attach(ls_endpoint *endpoint, const char *address, const ls_key *key, ls_own_collectives own) {
    ls_gloo *gloo = ls_allocate_zeroed(1, sizeof *gloo);
    if (gloo == NULL) {
        return ls_fail_memory("ls_comm_open", sizeof *gloo);
    }
    gloo->waker = ls_tcp_waker(endpoint);
    if (gloo->waker < 0) {
        ls_free(gloo);
        return ls_error_status();
    }
    gloo->tcp = endpoint->transport;
    gloo->endpoint = endpoint;
    gloo->key = *key;
    snprintf(gloo->address, sizeof gloo->address, "%s", address);
    pthread_mutex_init(&gloo->lock, NULL);
    pthread_cond_init(&gloo->asked, NULL);
    gloo->entries = *endpoint->transport;
    gloo->entries.name = "gloo";
    gloo->entries.can_make = gloo_can_make;
    gloo->entries.collective = gloo_collective;
    gloo->entries.in_place = true;
    gloo->entries.progress = gloo_progress;
    gloo->entries.withdraw = gloo_withdraw;
    gloo->entries.close = gloo_close;
    endpoint->transport = &gloo->entries;
    endpoint->own = own;
    return LS_OK;
}
