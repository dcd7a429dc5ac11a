/*
 * Backend gloo: backend tcp with libgloo's collectives for large data (comm/backend/module/collectives.h). The engine
 * of backend tcp agrees on each call, sends messages and detects failures. Backend mpi uses MPI's collectives in the
 * same way. library.cc calls libgloo, and is the only C++ file.
 *
 * When the ranks of a communicator meet, each rank sends every other rank a nonce, and the address at which libgloo
 * listens for that rank. After the ranks have connected, and before they send any user data, each rank proves to every
 * other rank over libgloo that it knows the job's key. A thread per communicator executes the collectives one after
 * another. A rank that aborts closes its connections, which also ends the collectives of the other ranks.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/gloo/library.h"
#include "comm/backend/module/collectives.h"
#include "comm/engine/engine.h"
#include "comm/module.h"
#include "comm/pieces.h"
#include "comm/reduce.h"
#include "comm/store.h"
#include "comm/transport/tcp/tcp.h"

_Static_assert((int)LS_GLOO_WHY <= (int)LS_LIBRARY_WHY, "libgloo writes to ls_collectives.why");

/* The data that a rank sends to every other rank before they connect. */
typedef struct gloo_hello {
    uint8_t hello[LS_HELLO_SIZE];
    uint32_t bytes;
    char address[LS_GLOO_ADDRESS];
} gloo_hello;

typedef struct ls_gloo {
    ls_collectives own;
    ls_key key;
    char address[64];
    ls_gloo_context *context;
    int waker; /* wakes the endpoint from a wait */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    bool connected; /* used by the thread only */
    bool wanted;    /* protected by the lock: the thread has work or must exit */
    bool leaves;
    atomic_bool done;
    bool failed; /* valid after `done` is true */
} ls_gloo;

/* ---- calls that Gloo supports ------------------------------------------------------------------------------------ */

static bool is_integer(ls_dtype dtype) {
    return dtype == LS_I64 || dtype == LS_I32 || dtype == LS_U8 || dtype == LS_BOOL;
}

/* Returns true if every order of the reduction yields bit-identical results. */
static bool has_one_result(const ls_call *call, int size) {
    const bool adds = call->reduction == LS_SUM || call->reduction == LS_PROD || call->reduction == LS_AVG;
    return is_integer(call->dtype) || (size == 2 && adds);
}

/*
 * Returns true if Gloo can execute the reduction. An average is a sum that is divided once, so averages of integers are
 * excluded, because the sum may overflow the element type. bf16 and f16 are excluded because Lockstep adds them in f32,
 * but Gloo would round at each rank.
 */
static bool can_reduce(const ls_call *call, int size) {
    const bool floats = call->dtype == LS_F32 || call->dtype == LS_F64;
    const bool pairs = call->reduction == LS_MINLOC || call->reduction == LS_MAXLOC;
    return !pairs && (floats || (is_integer(call->dtype) && call->reduction != LS_AVG)) &&
           (call->any_order || has_one_result(call, size));
}

/* Returns true if no rank's part is empty and all parts are contiguous, as Gloo requires. */
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
    default: /* Gloo has no such collective for an arbitrary number of ranks */
        return false;
    }
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Checks a rank's proof, which was received over libgloo's connection. */
static bool is_proven(ls_gloo *gloo, size_t peer, const gloo_hello *said, const gloo_hello *heard,
                      const uint8_t proof[LS_PROOF_SIZE]) {
    ls_hello hello;
    char name[32];
    snprintf(name, sizeof name, "rank %zu", peer);
    if (ls_hello_decode(heard->hello, false, &hello) != LS_OK || ls_hello_check_build(&hello, name) != LS_OK) {
        snprintf(gloo->own.why, LS_LIBRARY_WHY, "%s", ls_error_message());
        return false;
    }
    memcpy(hello.proof, proof, LS_PROOF_SIZE);
    if (!ls_hello_is_proven(&hello, &gloo->key, "gloo", ls_hello_nonce(said->hello))) {
        snprintf(gloo->own.why, LS_LIBRARY_WHY,
                 "Gloo: the process that connected as rank %zu does not know the job's key", peer);
        return false;
    }
    return true;
}

static bool make_proof(const ls_gloo *gloo, const gloo_hello *said, const gloo_hello *heard,
                       uint8_t proof[LS_PROOF_SIZE]) {
    ls_hello hello;
    const bool made = ls_hello_decode(said->hello, false, &hello) == LS_OK;
    ls_hello_prove(&hello, &gloo->key, "gloo", ls_hello_nonce(heard->hello));
    memcpy(proof, hello.proof, LS_PROOF_SIZE);
    return made;
}

/* Proves to every other rank that this rank knows the job's key, and checks the proofs of the other ranks. The
 * proofs are sent over libgloo's connections, because an attacker may have intercepted them. */
static bool prove(ls_gloo *gloo) {
    const size_t size = (size_t)gloo->own.endpoint->size;
    const size_t rank = (size_t)gloo->own.endpoint->rank;
    const gloo_hello *said = ls_collectives_said(&gloo->own, 0);
    const gloo_hello *heard = ls_collectives_heard(&gloo->own, 0);
    uint8_t *proofs = ls_allocate_zeroed(2 * size, LS_PROOF_SIZE);
    bool right = proofs != NULL;
    for (size_t peer = 0; right && peer < size; peer++) {
        right = peer == rank || make_proof(gloo, &said[peer], &heard[peer], proofs + peer * LS_PROOF_SIZE);
    }
    right = right && ls_gloo_make(gloo->context,
                                  &(ls_call){.operation = LS_OP_ALLTOALL,
                                             .send = proofs,
                                             .receive = proofs + size * LS_PROOF_SIZE,
                                             .count = LS_PROOF_SIZE,
                                             .width = 1},
                                  gloo->own.why);
    for (size_t peer = 0; right && peer < size; peer++) {
        right =
            peer == rank || is_proven(gloo, peer, &said[peer], &heard[peer], proofs + (size + peer) * LS_PROOF_SIZE);
    }
    ls_free(proofs);
    return right;
}

static bool connect_all(ls_gloo *gloo) {
    const gloo_hello *heard = ls_collectives_heard(&gloo->own, 0);
    for (int peer = 0; peer < gloo->own.endpoint->size; peer++) {
        if (peer != gloo->own.endpoint->rank &&
            !ls_gloo_connect(gloo->context, peer, heard[peer].address, heard[peer].bytes, gloo->own.why)) {
            return false;
        }
    }
    return prove(gloo);
}

void ls_gloo_reduce(const ls_call *call, void *result, const void *a, const void *b, size_t count) {
    ls_reduce_buffers(&(ls_reduce_task){.dtype = call->dtype,
                                        .reduction = call->reduction == LS_AVG ? LS_SUM : call->reduction,
                                        .ranks = 2,
                                        .sources = (const void *const[]){a, b},
                                        .copies = 1,
                                        .destinations = (void *const[]){result},
                                        .count = count});
}

static bool make(ls_gloo *gloo) {
    ls_call call = gloo->own.call;
    if (call.operation == LS_OP_ALLGATHER || call.operation == LS_OP_ALLGATHERV) {
        const int rank = gloo->own.endpoint->rank;
        const ls_piece to = ls_piece_received(&call, rank, rank);
        memmove((unsigned char *)call.receive + to.at * call.width, call.send, to.count * call.width);
        call.send = NULL; /* libgloo rejects an input that is already at its destination */
    }
    return ls_gloo_make(gloo->context, &call, gloo->own.why);
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
        gloo->failed = !gloo->connected || !make(gloo);
        atomic_store(&gloo->done, true);
        (void)!write(gloo->waker, &(uint64_t){1}, sizeof(uint64_t)); /* fails only if the event counter is full */
        pthread_mutex_lock(&gloo->lock);
    }
    pthread_mutex_unlock(&gloo->lock);
    return NULL;
}

/* Makes the thread execute a collective or, if `leaves` is true, exit. */
static void ask(ls_gloo *gloo, bool leaves) {
    pthread_mutex_lock(&gloo->lock);
    gloo->wanted = true;
    gloo->leaves = leaves;
    pthread_cond_signal(&gloo->asked);
    pthread_mutex_unlock(&gloo->lock);
}

/* Starts the thread with all signals blocked, so that the program's own threads handle them. */
static ls_status start_thread(ls_gloo *gloo) {
    sigset_t all;
    sigset_t before;
    pthread_mutex_init(&gloo->lock, NULL);
    pthread_cond_init(&gloo->asked, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&gloo->thread, NULL, work, gloo);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    gloo->has_thread = error == 0;
    return error == 0 ? LS_OK : ls_fail(LS_ERR_MEMORY, "cannot start a thread for Gloo: %s", strerror(error));
}

/* ---- functions of ls_collective_library -------------------------------------------------------------------------- */

static ls_status gloo_prepare(ls_collectives *own) {
    ls_gloo *gloo = (ls_gloo *)own;
    gloo->waker = ls_tcp_waker(own->endpoint);
    LS_TRY(gloo->waker >= 0 ? LS_OK : ls_error_status());
    gloo->context = ls_gloo_new(gloo->address, own->endpoint->rank, own->endpoint->size, own->why);
    return gloo->context != NULL ? start_thread(gloo) : ls_collectives_fail(own);
}

static ls_status gloo_greet(ls_collectives *own, int peer, void *said) {
    gloo_hello *to = said;
    ls_hello hello;
    LS_TRY(ls_hello_make(&hello, ((ls_gloo *)own)->key.given));
    ls_hello_encode(&hello, false, to->hello);
    to->bytes = (uint32_t)ls_gloo_address(((ls_gloo *)own)->context, peer, to->address);
    return to->bytes != 0 ? LS_OK : ls_fail(LS_ERR_INTERNAL, "Gloo's address has more than %d bytes", LS_GLOO_ADDRESS);
}

static ls_status gloo_begin(ls_collectives *own) {
    ls_gloo *gloo = (ls_gloo *)own;
    atomic_store(&gloo->done, false);
    ask(gloo, false);
    return LS_OK;
}

static ls_library_state gloo_look(ls_collectives *own) {
    ls_gloo *gloo = (ls_gloo *)own;
    return !atomic_load(&gloo->done) ? LS_LIBRARY_BUSY : gloo->failed ? LS_LIBRARY_FAILED : LS_LIBRARY_DONE;
}

/* Cancels all waits in libgloo, so that the thread exits. */
static void gloo_end(ls_collectives *own, bool abort, uint64_t linger_ns) {
    (void)abort, (void)linger_ns;
    ls_gloo *gloo = (ls_gloo *)own;
    if (gloo->context != NULL) {
        ls_gloo_end(gloo->context);
    }
    if (gloo->has_thread) {
        ask(gloo, true);
        pthread_join(gloo->thread, NULL);
        pthread_mutex_destroy(&gloo->lock);
        pthread_cond_destroy(&gloo->asked);
        gloo->has_thread = false;
    }
    if (gloo->context != NULL) {
        ls_gloo_free(gloo->context);
        gloo->context = NULL;
    }
    ls_key_forget(&gloo->key);
}

static const ls_collective_library library = {
    .name = "gloo",
    .greeting_size = sizeof(gloo_hello),
    .size = sizeof(ls_gloo),
    .failure = LS_ERR_IO,
    .wakes = true,
    .can_make = gloo_can_make,
    .prepare = gloo_prepare,
    .greet = gloo_greet,
    .begin = gloo_begin,
    .look = gloo_look,
    .end = gloo_end,
};

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static ls_status attach(const ls_join_context *join, ls_engine *engine) {
    const bool named = join->address != NULL && join->address[0] != '\0';
    ls_gloo *gloo = (ls_gloo *)ls_collectives_add(ls_engine_endpoint(engine), &library, LS_OWN_LARGE);
    if (gloo == NULL) {
        return ls_error_status();
    }
    if (join->store != NULL) {
        gloo->key = join->store->key;
    }
    snprintf(gloo->address, sizeof gloo->address, "%s", named ? join->address : "127.0.0.1");
    return LS_OK;
}

static ls_status gloo_open(const ls_join_context *join, void **state) {
    LS_TRY(ls_module_tcp()->open(join, state));
    return ls_module_settle(attach(join, *state), state);
}

/* Adds Gloo to the new communicator without making a call on it: a rank may leave the new communicator at once, and
 * would then be missing from such a call. */
static ls_status gloo_split(void *state, const ls_join_context *join, const int *ranks, void **result) {
    LS_TRY(ls_module_tcp()->split(state, join, ranks, result));
    return *result != NULL ? ls_module_settle(attach(join, *result), result) : LS_OK;
}

const ls_backend ls_module_backend = {
    .name = "gloo",
    .sends_by_library = true,
    .open = gloo_open,
    .close = ls_engine_close,
    .leave = ls_module_leave_tcp,
    .withdraw_sends = ls_engine_withdraw_contents,
    .split = gloo_split,
    LS_ENGINE_CALLS,
};
