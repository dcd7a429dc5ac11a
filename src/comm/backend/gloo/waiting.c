/* How a rank learns that it waits in vain, whom it blames, and how it tells the others why it gives up. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "comm/backend/gloo/gloo.h"

#define LOOK_NS       UINT64_C(20000000)
#define NOTICE_NS     UINT64_C(200000000) /* for others to hear that this rank leaves, or why Gloo failed */
#define LATE_NS       UINT64_C(500000000)
#define STOPPED_NS    UINT64_C(1000000000) /* a longer pause is one of this process */
#define LEAST_TOLD_NS UINT64_C(20000000)   /* of a wait */

enum { MORE_CAPACITY = 224 };

void ls_gloo_sleep(ls_gloo *gloo) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + LOOK_NS;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    (void)pthread_cond_timedwait(&gloo->changed, &gloo->lock, &until);
}

/* ---- leaving ----------------------------------------------------------------------------------------------------- */

static bool has_others_to_hear(const ls_gloo *gloo) {
    for (int peer = 0; peer < gloo->size; peer++) {
        if (peer != gloo->rank && !gloo->peers[peer].closed && !gloo->peers[peer].heard) {
            return true;
        }
    }
    return false;
}

void ls_gloo_leave(ls_gloo *gloo, ls_leave_reason why, ls_status status, int culprit, const char *reason) {
    if (gloo->ended) {
        return;
    }
    gloo->ended = true;
    pthread_cond_broadcast(&gloo->changed);
    ls_gloo_tell_all(gloo,
                     &(ls_gloo_packet){.kind = LS_GLOO_LEFT,
                                       .status = (int32_t)status,
                                       .culprit = culprit,
                                       .leaving = (uint32_t)why,
                                       .bytes = strnlen(reason, LS_GLOO_REASON - 1)},
                     reason);
    for (const uint64_t start = ls_clock_ns(); has_others_to_hear(gloo) && ls_clock_ns() - start < NOTICE_NS;) {
        ls_gloo_sleep(gloo);
    }
}

ls_status ls_gloo_give_up(ls_gloo *gloo, ls_status status, int culprit) {
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    const char *reason = strstr(message, ": ");
    ls_gloo_leave(gloo, LS_LEAVE_FAILED, status, culprit, reason != NULL ? reason + 2 : message);
    pthread_mutex_unlock(&gloo->lock);
    ls_gloo_wire_end(gloo->wire);
    pthread_mutex_lock(&gloo->lock);
    while (gloo->calling || gloo->receiving != 0) {
        pthread_cond_wait(&gloo->changed, &gloo->lock);
    }
    ls_error_restore(status, message);
    return status;
}

/* ---- waiting in vain --------------------------------------------------------------------------------------------- */

/* What waits: the call, or a request. */
typedef struct waiter {
    const ls_gloo_request *request;
    const ls_call *call;
    ls_gloo_wait *wait;
    char name[64];
} waiter;

void ls_gloo_start_waiting(ls_gloo *gloo, ls_gloo_wait *wait) {
    gloo->looked_ns = 0;
    *wait = (ls_gloo_wait){.start_ns = gloo->awake_ns, .told_ns = gloo->awake_ns};
}

static bool is_dead(const ls_gloo_peer *other) {
    return other->closed && !other->left;
}

static bool gave_up(const ls_gloo_peer *other) {
    return other->left && other->status != LS_OK;
}

/* A request waits for its partner, and for nobody where a rank died or gave up. While Gloo moves data it may wait for
 * none of those that are gone, so that has a moment. */
static bool needs(const ls_gloo *gloo, const waiter *w, int peer) {
    const ls_gloo_peer *other = &gloo->peers[peer];
    if (w->request != NULL) {
        return peer == w->call->root || is_dead(other) || gave_up(other);
    }
    const bool late = gloo->stage == LS_GLOO_DATA && is_dead(other) && gloo->awake_ns - other->closed_ns > LATE_NS;
    return peer != gloo->rank && (gloo->broken || late || ls_gloo_lacks(gloo, peer));
}

/* What else is to be said of a receive: which other messages wait. */
static const char *describe_waiting(const ls_gloo *gloo, const waiter *w, char text[MORE_CAPACITY]) {
    text[0] = '\0';
    return w->request == NULL || w->request->receipt == NULL
               ? text
               : ls_match_describe_waiting(&gloo->match, w->call->root, w->call->tag, text, MORE_CAPACITY);
}

static ls_status fail_left(ls_gloo *gloo, const waiter *w, int peer) {
    const ls_gloo_peer *other = &gloo->peers[peer];
    char waiting[MORE_CAPACITY];
    const char *more = describe_waiting(gloo, w, waiting);
    if (other->status == LS_OK) {
        return ls_fail(LS_ERR_PEER, "%s: rank %d %s%s", w->name, peer, ls_leave_describe(other->leaving), more);
    }
    const ls_status status = other->status == LS_ERR_TIMEOUT ? LS_ERR_TIMEOUT : LS_ERR_PEER;
    return other->culprit != peer /* whom the reason names */
               ? ls_fail(status, "%s: %s%s", w->name, other->reason, more)
               : ls_fail(status, "%s: rank %d gave up: %s%s", w->name, peer, other->reason, more);
}

/* Fails where a rank that is needed died, left or gave up: in this order, as some give up because of others. */
static ls_status check_ends(ls_gloo *gloo, const waiter *w) {
    for (int i = 0; i < 3 * gloo->size; i++) {
        const int peer = i % gloo->size;
        const ls_gloo_peer *other = &gloo->peers[peer];
        if (!needs(gloo, w, peer)) {
            continue;
        }
        if (i < gloo->size && is_dead(other)) {
            return ls_gloo_give_up(gloo, ls_fail(LS_ERR_PEER, "%s: rank %d is gone: %s", w->name, peer, other->reason),
                                   peer);
        }
        if (i >= gloo->size && other->left && gave_up(other) == (i >= 2 * gloo->size)) {
            return ls_gloo_give_up(gloo, fail_left(gloo, w, peer), gave_up(other) ? other->culprit : peer);
        }
    }
    return LS_OK;
}

/* Gloo failed: a connection broke, whose rank its own thread is about to say. */
static ls_status check_broken(ls_gloo *gloo, const waiter *w) {
    bool known = false;
    for (const uint64_t start = ls_clock_ns(); !known && ls_clock_ns() - start < NOTICE_NS;) {
        for (int peer = 0; peer < gloo->size; peer++) {
            known = known || is_dead(&gloo->peers[peer]) || gave_up(&gloo->peers[peer]);
        }
        if (!known) {
            ls_gloo_sleep(gloo);
        }
    }
    LS_TRY(check_ends(gloo, w));
    return ls_gloo_give_up(gloo, ls_fail(LS_ERR_IO, "%s: Gloo: %s", w->name, gloo->message), gloo->rank);
}

/* ---- silence ----------------------------------------------------------------------------------------------------- */

static uint64_t latest(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static ls_status fail_silent(const ls_gloo *gloo, const waiter *w, int blamed) {
    if (w->request == NULL) {
        return ls_fail(LS_ERR_TIMEOUT, "%s: rank %d %s within %g s", w->name, blamed,
                       gloo->stage == LS_GLOO_CALLS ? "did not make this call" : "did not go on with this call",
                       gloo->timeout);
    }
    return w->request->receipt != NULL
               ? ls_match_fail_silent(&gloo->match, w->call, gloo->timeout)
               : ls_fail(LS_ERR_TIMEOUT, "%s: rank %d did not receive the message with tag %d within %g s", w->name,
                         blamed, w->call->tag, gloo->timeout);
}

/* Of those that may be waited for, where the time is over, the one that was heard of least is to blame. While Gloo
 * moves data, which may take long, it is over when a rank has said nothing for so long. */
static ls_status check_silence(ls_gloo *gloo, const waiter *w) {
    const bool moving = w->request == NULL && gloo->stage == LS_GLOO_DATA;
    const double longest = gloo->timeout * 1e9;
    uint64_t since = w->wait->start_ns;
    int blamed = -1;
    for (int peer = 0; peer < gloo->size; peer++) {
        const bool asked = moving ? peer != gloo->rank : needs(gloo, w, peer);
        if (asked && (blamed < 0 || gloo->peers[peer].alive_ns < gloo->peers[blamed].alive_ns)) {
            blamed = peer;
        }
    }
    if (moving && blamed >= 0) {
        since = latest(since, gloo->peers[blamed].alive_ns);
    }
    if (blamed >= 0 && (double)(gloo->awake_ns - since) > longest) {
        return ls_gloo_give_up(gloo, fail_silent(gloo, w, blamed), blamed);
    }
    if ((double)(gloo->awake_ns - w->wait->told_ns) > longest / 4) { /* this rank is not the silent one */
        w->wait->told_ns = gloo->awake_ns;
        ls_gloo_tell_all(gloo, &(ls_gloo_packet){.kind = LS_GLOO_WAITING}, NULL);
    }
    return LS_OK;
}

/* Tells the log whom this rank waits for. */
static void tell_log(const ls_gloo *gloo, const waiter *w) {
    const uint64_t waited_ns = gloo->awake_ns - w->wait->start_ns;
    ls_rank_list awaited = {.count = 0};
    char waiting[MORE_CAPACITY];
    for (int peer = 0; peer < gloo->size && waited_ns >= LEAST_TOLD_NS; peer++) {
        if (needs(gloo, w, peer)) {
            ls_rank_list_add(&awaited, peer);
        }
    }
    if (awaited.count != 0) {
        const ls_gloo_peer *first = &gloo->peers[awaited.first];
        const ls_call_header *last = &first->call[(first->calls + 1) % 2];
        ls_comm_tell_waiting(&(ls_waiting){.call = w->call,
                                           .awaited = &awaited,
                                           .waited_ns = waited_ns,
                                           .told_ns = &w->wait->logged_ns,
                                           .more = describe_waiting(gloo, w, waiting),
                                           .knows_latest = first->calls != 0,
                                           .latest = (ls_operation)last->operation,
                                           .latest_sequence = last->sequence});
    }
}

ls_status ls_gloo_look(ls_gloo *gloo, ls_gloo_request *request, bool sleeps) {
    const uint64_t now = ls_clock_ns();
    const uint64_t passed = gloo->looked_ns != 0 ? now - gloo->looked_ns : 0;
    waiter w = {.request = request,
                .call = request != NULL ? &request->call : &gloo->call,
                .wait = request != NULL ? &request->wait : &gloo->wait};
    ls_call_describe(w.call->operation, w.call->sequence, w.name, sizeof w.name);
    gloo->awake_ns += passed < STOPPED_NS ? passed : STOPPED_NS;
    gloo->looked_ns = now;
    if (request == NULL && gloo->broken) {
        return check_broken(gloo, &w);
    }
    LS_TRY(check_ends(gloo, &w));
    tell_log(gloo, &w);
    LS_TRY(check_silence(gloo, &w));
    if (sleeps) {
        ls_gloo_sleep(gloo);
    }
    return LS_OK;
}
