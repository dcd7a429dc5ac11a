/* Backend gloo: joining and leaving. gloo.h tells how it works. */
#include "comm/backend/gloo/gloo.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/store.h"

/* ---- meeting: what Gloo's ranks tell each other goes through the job's store ---------------------------------------
 */

/* A store is used by one thread at a time, and several of a rank may split communicators. So nobody waits in there. */
static pthread_mutex_t store_lock = PTHREAD_MUTEX_INITIALIZER;

#define NAP_NS 500000

typedef struct meeting {
    ls_gloo *gloo;
    const ls_join *join;
    bool told;        /* this rank told where it listens */
    int awaited;      /* the rank that Gloo waits for */
    ls_status status; /* of the store's failure */
    char message[LS_ERROR_CAPACITY];
} meeting;

static bool keep_failure(meeting *m, ls_status status) {
    if (status != LS_OK) {
        m->status = status;
        snprintf(m->message, sizeof m->message, "%s", ls_error_message());
    }
    return status == LS_OK;
}

/* The names of a value in the store, and of the number that says that it is there. */
typedef struct names {
    char value[256];
    char there[256];
} names;

static names names_of(const meeting *m, const char *key) {
    names n;
    snprintf(n.value, sizeof n.value, "%sgloo/%s", m->join->prefix, key);
    snprintf(n.there, sizeof n.there, "%sgloo/%s?", m->join->prefix, key);
    return n;
}

/* With the address goes the secret, which only ranks of the job can read. */
static bool tell(void *context, const char *key, const void *value, size_t size) {
    meeting *m = context;
    const names n = names_of(m, key);
    unsigned char *all = ls_allocate(size + LS_NONCE_SIZE);
    ls_status status = all != NULL ? LS_OK : ls_fail_memory("ls_comm_open", size + LS_NONCE_SIZE);
    pthread_mutex_lock(&store_lock);
    if (status == LS_OK && m->join->size > 1) {
        memcpy(all, value, size);
        memcpy(all + size, m->gloo->peers[m->join->rank].secret, LS_NONCE_SIZE);
        status = ls_store_set(m->join->store, n.value, all, size + LS_NONCE_SIZE);
    }
    if (status == LS_OK && m->join->size > 1) {
        status = ls_store_add(m->join->store, n.there, 1, NULL);
    }
    m->told = true;
    const bool done = keep_failure(m, status);
    pthread_mutex_unlock(&store_lock);
    ls_free(all);
    return done;
}

/* Asks once for what a rank told; *size is 0 where it has told nothing yet. */
static ls_status ask(meeting *m, const char *key, void *value, size_t capacity, size_t *size) {
    const names n = names_of(m, key);
    int64_t there = 0;
    *size = 0;
    LS_TRY(ls_store_check(m->join->store));
    LS_TRY(ls_store_add(m->join->store, n.there, 0, &there));
    if (there == 0) {
        return LS_OK;
    }
    LS_TRY(ls_store_get(m->join->store, n.value, value, capacity, size));
    if (*size <= LS_NONCE_SIZE || m->awaited < 0 || m->awaited >= m->join->size) {
        return ls_fail(LS_ERR_MISMATCH, "ls_comm_open: rank %d says of itself what no rank does", m->awaited);
    }
    memcpy(m->gloo->peers[m->awaited].secret, (const unsigned char *)value + *size - LS_NONCE_SIZE, LS_NONCE_SIZE);
    return LS_OK;
}

static bool learn(void *context, const char *key, void *value, size_t capacity, size_t *size) {
    meeting *m = context;
    const uint64_t start = ls_clock_ns();
    for (;;) {
        pthread_mutex_lock(&store_lock);
        const char *number = strpbrk(key, "0123456789");
        m->awaited = number != NULL ? atoi(number) : -1;
        ls_status status = ask(m, key, value, capacity, size);
        if (status == LS_OK && *size == 0 && (double)(ls_clock_ns() - start) > m->join->timeout * 1e9) {
            status = ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank %d did not say where it listens within %g s",
                             m->awaited, m->join->timeout);
        }
        const bool done = keep_failure(m, status);
        pthread_mutex_unlock(&store_lock);
        if (!done || *size != 0) {
            *size -= done ? LS_NONCE_SIZE : 0;
            return done;
        }
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

/* Whether the store knows that a rank died. */
static bool is_vain(void *context) {
    meeting *m = context;
    bool vain = false;
    if (m->join->size > 1 && pthread_mutex_trylock(&store_lock) == 0) {
        vain = m->told && !keep_failure(m, ls_store_check(m->join->store));
        pthread_mutex_unlock(&store_lock);
    }
    return vain;
}

static ls_status fail_meeting(const meeting *m, const char *why) {
    const ls_join *join = m->join;
    if (m->status != LS_OK) {
        return strncmp(m->message, "ls_", 3) == 0 ? ls_fail(m->status, "%s", m->message)
                                                  : ls_fail(m->status, "ls_comm_open: %s", m->message);
    }
    if (m->awaited == join->rank) {
        return ls_fail(LS_ERR_IO, "ls_comm_open: Gloo: %s", why);
    }
    return strstr(why, "imeout") != NULL
               ? ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank %d did not connect within %g s", m->awaited, join->timeout)
               : ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d is gone: %s", m->awaited, why);
}

static ls_status meet(ls_gloo *gloo, const ls_join *join) {
    static const uint8_t none[LS_NONCE_SIZE];
    meeting m = {.gloo = gloo, .join = join, .awaited = join->rank};
    char purpose[320];
    char why[LS_GLOO_WHY] = "";
    snprintf(purpose, sizeof purpose, "gloo %s", join->prefix);
    if (join->size > 1) {
        LS_TRY(ls_auth_nonce(gloo->peers[join->rank].secret));
        ls_store_derive_key(join->store, purpose, none, none, &gloo->key);
    }
    gloo->wire = ls_gloo_wire_open(
        &(ls_gloo_meeting){.host = join->address != NULL && join->address[0] != '\0' ? join->address : "127.0.0.1",
                           .rank = join->rank,
                           .size = join->size,
                           .timeout = join->timeout,
                           .set = tell,
                           .get = learn,
                           .context = &m,
                           .is_vain = is_vain},
        why);
    return gloo->wire != NULL ? LS_OK : fail_meeting(&m, why);
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* Ends the threads, then all else, in whatever condition it is; keeps the error message. */
static void discard(ls_gloo *gloo) {
    char message[LS_ERROR_CAPACITY];
    const ls_status status = ls_error_status();
    snprintf(message, sizeof message, "%s", ls_error_message());
    pthread_mutex_lock(&gloo->lock);
    gloo->closing = gloo->ended = true;
    pthread_cond_broadcast(&gloo->changed);
    pthread_mutex_unlock(&gloo->lock);
    if (gloo->wire != NULL) {
        ls_gloo_wire_end(gloo->wire);
    }
    if (gloo->has_thread) {
        pthread_join(gloo->thread, NULL);
    }
    for (int peer = 0; gloo->peers != NULL && peer < gloo->size; peer++) {
        if (gloo->peers[peer].has_thread) {
            pthread_join(gloo->peers[peer].thread, NULL);
        }
    }
    ls_gloo_free_messages(gloo);
    ls_gloo_wire_free(gloo->wire);
    ls_key_forget(&gloo->key);
    pthread_cond_destroy(&gloo->changed);
    pthread_mutex_destroy(&gloo->lock);
    ls_free(gloo->peers);
    ls_free(gloo->headers);
    ls_free(gloo->parts);
    ls_free(gloo);
    ls_error_restore(status, message);
}

static ls_gloo *make(const ls_join *join) {
    const size_t size = (size_t)join->size;
    pthread_condattr_t monotonic;
    ls_gloo *gloo = ls_allocate_zeroed(1, sizeof *gloo);
    if (gloo == NULL) {
        return NULL;
    }
    pthread_mutex_init(&gloo->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&gloo->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    gloo->rank = join->rank;
    gloo->size = join->size;
    gloo->timeout = join->timeout;
    gloo->peers = ls_allocate_zeroed(size, sizeof *gloo->peers);
    gloo->headers = ls_allocate_zeroed(size, sizeof *gloo->headers);
    gloo->parts = ls_allocate_zeroed(2 * size, sizeof *gloo->parts);
    if (gloo->peers == NULL || gloo->headers == NULL || gloo->parts == NULL) {
        discard(gloo);
        return NULL;
    }
    for (int peer = 0; peer < gloo->size; peer++) {
        gloo->peers[peer].gloo = gloo;
        gloo->peers[peer].rank = peer;
    }
    return gloo;
}

/* Begins the threads, without signals: those are the program's. */
static ls_status begin_threads(ls_gloo *gloo) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    gloo->has_thread = pthread_create(&gloo->thread, NULL, ls_gloo_carry_out, gloo) == 0;
    bool begun = gloo->has_thread;
    for (int peer = 0; peer < gloo->size && begun; peer++) {
        ls_gloo_peer *other = &gloo->peers[peer];
        if (peer != gloo->rank) {
            begun = other->has_thread = pthread_create(&other->thread, NULL, ls_gloo_listen, other) == 0;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return begun ? LS_OK : ls_fail(LS_ERR_MEMORY, "ls_comm_open: no thread can be made");
}

/* Gloo connects with whoever comes: now each proves to each that it holds the job's key. */
static ls_status prove(ls_gloo *gloo) {
    char role[32];
    uint8_t proof[LS_PROOF_SIZE];
    const uint64_t start = ls_clock_ns();
    ls_status status = LS_OK;
    snprintf(role, sizeof role, "rank %d", gloo->rank);
    pthread_mutex_lock(&gloo->lock);
    for (int peer = 0; peer < gloo->size; peer++) {
        if (peer != gloo->rank) {
            ls_auth_prove(&gloo->key, role, gloo->peers[gloo->rank].secret, gloo->peers[peer].secret, proof);
            ls_gloo_tell(gloo, peer, &(ls_gloo_packet){.kind = LS_GLOO_PROOF, .bytes = sizeof proof}, proof);
        }
    }
    for (int peer = 0; peer < gloo->size && status == LS_OK; peer++) {
        const ls_gloo_peer *other = &gloo->peers[peer];
        while (peer != gloo->rank && !other->proven && status == LS_OK) {
            if (other->denied) {
                status = ls_fail(LS_ERR_DENIED,
                                 "ls_comm_open: what is connected in place of rank %d is not of this job", peer);
            } else if (other->closed) {
                status = ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d is gone: %s", peer, other->reason);
            } else if ((double)(ls_clock_ns() - start) > gloo->timeout * 1e9) {
                status =
                    ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank %d did not prove that it is of this job within %g s",
                            peer, gloo->timeout);
            } else {
                ls_gloo_sleep(gloo);
            }
        }
    }
    pthread_mutex_unlock(&gloo->lock);
    for (int peer = 0; peer < gloo->size && status == LS_OK; peer++) { /* also of a rank that ends at once */
        ls_gloo_wire_flush(gloo->wire, peer, 0, gloo->timeout);
    }
    return status;
}

static ls_status gloo_open(const ls_join *join, void **state) {
    ls_gloo *gloo = make(join);
    if (gloo == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)join->size * sizeof *gloo->peers);
    }
    ls_status status = meet(gloo, join);
    if (status == LS_OK) {
        status = begin_threads(gloo);
    }
    if (status == LS_OK) {
        status = prove(gloo);
    }
    if (status != LS_OK) {
        discard(gloo);
        return status;
    }
    *state = gloo;
    return LS_OK;
}

static void gloo_leave(void *state, ls_leave_reason reason) {
    ls_gloo *gloo = state;
    pthread_mutex_lock(&gloo->lock);
    ls_gloo_leave(gloo, reason, LS_OK, gloo->rank, "");
    pthread_mutex_unlock(&gloo->lock);
}

static void gloo_close(void *state) {
    gloo_leave(state, LS_LEAVE_FREED);
    discard(state);
}

static void gloo_give_up(void *state, ls_status status) {
    ls_gloo *gloo = state;
    pthread_mutex_lock(&gloo->lock);
    (void)ls_gloo_give_up(gloo, status, gloo->rank);
    pthread_mutex_unlock(&gloo->lock);
}

/* Gloo would round 16-bit sums at each rank, and knows no means: those are composed of exchanges. */
static bool gloo_reduces(ls_dtype dtype, ls_reduction reduction) {
    return dtype != LS_F16 && dtype != LS_BF16 && reduction != LS_AVG;
}

const ls_backend ls_module_backend = {
    .name = "gloo",
    .open = gloo_open,
    .close = gloo_close,
    .leave = gloo_leave,
    .give_up = gloo_give_up,
    .begin = {[LS_OP_BARRIER] = ls_gloo_begin,
              [LS_OP_BROADCAST] = ls_gloo_begin,
              [LS_OP_ALLREDUCE] = ls_gloo_begin,
              [LS_OP_REDUCE] = ls_gloo_begin,
              [LS_OP_GATHER] = ls_gloo_begin,
              [LS_OP_ALLGATHER] = ls_gloo_begin,
              [LS_OP_SCATTER] = ls_gloo_begin,
              [LS_OP_ALLTOALL] = ls_gloo_begin,
              [LS_OP_ALLTOALLV] = ls_gloo_begin,
              [LS_OP_SPLIT] = ls_gloo_begin},
    .reduces = gloo_reduces,
    .progress = ls_gloo_progress,
    .post = ls_gloo_post,
    .test = ls_gloo_test,
};
