/* How ranks leave, how one that gives up tells the others why, and how a rank learns that it waits in vain. */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include <linux/sockios.h>

#include "base/status.h"
#include "comm/backend/gloo/gloo.h"

#define LEAVE_NOTICE_NS UINT64_C(200000000) /* to wait for room, and until all is sent */
#define AGAIN_NS        100000

#define LEAST_TOLD_NS UINT64_C(20000000) /* of a wait */

enum { MORE_CAPACITY = 224 };

/*
 * What was said last must be on its way before this side closes: a connection that is closed while something lies
 * unread in it is reset, and what was not sent yet, for want of room on the other side, is lost.
 */
static void wait_until_sent(const ls_gloo *gloo, uint64_t start) {
    for (int peer = 0; peer < gloo->size; peer++) {
        int waiting = 0;
        while (peer != gloo->rank && !gloo->peers[peer].closed && ls_clock_ns() - start < LEAVE_NOTICE_NS &&
               ioctl(ls_gloo_wire_socket(gloo->wire, peer), SIOCOUTQNSD, &waiting) == 0 && waiting != 0) {
            nanosleep(&(struct timespec){.tv_nsec = AGAIN_NS}, NULL);
        }
    }
}

void ls_gloo_leave(ls_gloo *gloo, ls_leave_reason why, ls_status status, int culprit, const char *reason) {
    const uint64_t start = ls_clock_ns();
    const size_t bytes = strnlen(reason, LS_GLOO_REASON - 1);
    ls_gloo_packet *packet = gloo->outgoing;
    if (gloo->ended) {
        return;
    }
    gloo->ended = true;
    gloo->culprit = culprit;
    packet->status = (int32_t)status;
    packet->culprit = culprit;
    packet->at = gloo->call.sequence + (gloo->calling ? 0 : 1);
    packet->kind = LS_GLOO_LEFT;
    packet->slot = (uint32_t)why;
    memcpy(packet->data, reason, bytes);
    for (int peer = 0; peer < gloo->size; peer++) {
        while (peer != gloo->rank && !gloo->peers[peer].closed && !ls_gloo_send_last(gloo, peer, packet, bytes) &&
               ls_clock_ns() - start < LEAVE_NOTICE_NS) {
            struct pollfd room = {.fd = ls_gloo_wire_socket(gloo->wire, peer), .events = POLLOUT};
            if (poll(&room, 1, 20) > 0 && room.revents != POLLOUT) {
                break; /* nobody is there any more */
            }
        }
    }
    if (status != LS_OK) {
        wait_until_sent(gloo, start);
    }
}

ls_status ls_gloo_give_up(ls_gloo *gloo, ls_status status, int culprit) {
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    const char *reason = strstr(message, ": ");
    ls_gloo_leave(gloo, LS_LEAVE_FAILED, status, culprit, reason != NULL ? reason + 2 : message);
    ls_error_restore(status, message);
    return status;
}

ls_status ls_gloo_check_open(const ls_gloo *gloo, const ls_call *call) {
    char name[64];
    if (gloo->ended) {
        return ls_fail(LS_ERR_STATE, "%s: an earlier call has ended this communicator",
                       ls_call_describe(call->operation, call->sequence, name, sizeof name));
    }
    return LS_OK;
}

/* ---- waiting in vain -----------------------------------------------------------------------------------------------
 */

static const char *name_call(const ls_gloo_wait *wait, char name[64]) {
    return ls_call_describe(wait->call->operation, wait->call->sequence, name, 64);
}

/* What was posted may wait for this very rank. */
static bool is_needed(const ls_gloo *gloo, const ls_gloo_wait *wait, int peer) {
    return (peer != gloo->rank || wait->request != NULL) && wait->needs(gloo, wait, peer);
}

/* What else is to be said of a receive: which other messages wait. */
static const char *describe_waiting(const ls_gloo *gloo, const ls_gloo_wait *wait, char text[MORE_CAPACITY]) {
    text[0] = '\0';
    return wait->request == NULL || wait->request->receipt == NULL
               ? text
               : ls_match_describe_waiting(&gloo->match, wait->call->root, wait->call->tag, text, MORE_CAPACITY);
}

static ls_status check_gone(ls_gloo *gloo, const ls_gloo_wait *wait, int peer) {
    char name[64];
    const ls_gloo_peer *other = &gloo->peers[peer];
    if (other->closed && !other->left) {
        return ls_gloo_give_up(gloo,
                               ls_fail(LS_ERR_PEER, "%s: rank %d is gone: %s", name_call(wait, name), peer,
                                       other->reason[0] != '\0' ? other->reason : "its connection broke"),
                               peer);
    }
    return LS_OK;
}

static ls_status check_left(ls_gloo *gloo, const ls_gloo_wait *wait, int peer) {
    char name[64];
    const ls_gloo_peer *other = &gloo->peers[peer];
    if (!other->left) {
        return LS_OK;
    }
    char waiting[MORE_CAPACITY];
    const char *more = describe_waiting(gloo, wait, waiting);
    name_call(wait, name);
    if (other->status == LS_OK) {
        return ls_gloo_give_up(
            gloo, ls_fail(LS_ERR_PEER, "%s: rank %d %s%s", name, peer, ls_leave_describe(other->leaving), more), peer);
    }
    const ls_status status = other->status == LS_ERR_TIMEOUT ? LS_ERR_TIMEOUT : LS_ERR_PEER;
    if (other->culprit != peer) { /* which the reason names */
        return ls_gloo_give_up(gloo, ls_fail(status, "%s: %s%s", name, other->reason, more), other->culprit);
    }
    return ls_gloo_give_up(gloo, ls_fail(status, "%s: rank %d gave up: %s%s", name, peer, other->reason, more),
                           other->culprit);
}

ls_status ls_gloo_check_given_up(ls_gloo *gloo, const ls_gloo_wait *wait) {
    for (int peer = 0; peer < gloo->size; peer++) {
        const ls_gloo_peer *other = &gloo->peers[peer];
        if (other->left && other->status != LS_OK && other->last <= wait->call->sequence) {
            return check_left(gloo, wait, peer);
        }
    }
    return LS_OK;
}

static uint64_t latest(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Says that this rank is not the silent one. */
static ls_status tell_waiting(ls_gloo *gloo, const ls_gloo_wait *wait) {
    *wait->told_ns = gloo->awake_ns;
    for (int peer = 0; peer < gloo->size; peer++) {
        if (peer != gloo->rank && !gloo->peers[peer].closed) {
            gloo->outgoing->kind = LS_GLOO_WAITING;
            LS_TRY(ls_gloo_send_packet(gloo, peer, gloo->outgoing, 0, NULL));
        }
    }
    return LS_OK;
}

/* When the rank last gave a sign. What it says now is not read where this rank does not read on. */
static uint64_t sign_of_life(const ls_gloo *gloo, const ls_gloo_peer *other) {
    return other->held || other->stalled ? gloo->awake_ns : other->alive_ns;
}

static ls_status fail_silent(const ls_gloo *gloo, const ls_gloo_wait *wait, int blamed) {
    char name[64];
    name_call(wait, name);
    if (wait->request == NULL) {
        return ls_fail(LS_ERR_TIMEOUT, "%s: rank %d %s within %g s", name, blamed,
                       gloo->peers[blamed].called ? "did not go on with this call" : "did not make this call",
                       gloo->timeout);
    }
    return wait->request->receipt != NULL
               ? ls_match_fail_silent(&gloo->match, wait->call, gloo->timeout)
               : ls_fail(LS_ERR_TIMEOUT, "%s: rank %d did not receive the message with tag %d within %g s", name,
                         blamed, wait->call->tag, gloo->timeout);
}

/* Of those that are needed, where one is silent for too long, the one that was heard of least is to blame. */
static ls_status check_silence(ls_gloo *gloo, const ls_gloo_wait *wait) {
    const double longest = gloo->timeout * 1e9;
    int blamed = -1;
    bool over = false;
    bool near = false;
    for (int peer = 0; peer < gloo->size; peer++) {
        const ls_gloo_peer *other = &gloo->peers[peer];
        if (!is_needed(gloo, wait, peer)) {
            continue;
        }
        const double silence = (double)(gloo->awake_ns - latest(other->heard_ns, wait->start_ns));
        over = over || silence > longest;
        near = near || silence > longest / 4;
        if (blamed < 0 || sign_of_life(gloo, other) < sign_of_life(gloo, &gloo->peers[blamed])) {
            blamed = peer;
        }
    }
    if (!over) {
        const bool due = near && (double)(gloo->awake_ns - *wait->told_ns) > longest / 4;
        return due ? tell_waiting(gloo, wait) : LS_OK;
    }
    return ls_gloo_give_up(gloo, fail_silent(gloo, wait, blamed), blamed);
}

/* Tells the log whom this rank waits for. */
static void tell_log(const ls_gloo *gloo, const ls_gloo_wait *wait) {
    const uint64_t waited_ns = gloo->awake_ns - wait->start_ns;
    if (waited_ns < LEAST_TOLD_NS) { /* this is asked at every look */
        return;
    }
    ls_rank_list awaited = {.count = 0};
    char waiting[MORE_CAPACITY];
    for (int peer = 0; peer < gloo->size; peer++) {
        if (is_needed(gloo, wait, peer)) {
            ls_rank_list_add(&awaited, peer);
        }
    }
    if (awaited.count != 0) {
        const ls_call_header *latest = &gloo->peers[awaited.first].call->call;
        ls_comm_tell_waiting(&(ls_waiting){.call = wait->call,
                                           .awaited = &awaited,
                                           .waited_ns = waited_ns,
                                           .told_ns = wait->logged_ns,
                                           .more = describe_waiting(gloo, wait, waiting),
                                           .knows_latest = latest->sequence != 0,
                                           .latest = (ls_operation)latest->operation,
                                           .latest_sequence = latest->sequence});
    }
}

ls_status ls_gloo_check(ls_gloo *gloo, const ls_gloo_wait *wait) {
    for (int peer = 0; peer < gloo->size; peer++) {
        if (is_needed(gloo, wait, peer)) {
            LS_TRY(check_gone(gloo, wait, peer));
        }
    }
    for (int i = 0; i < 2 * gloo->size; i++) { /* first who simply left: others may have given up because of it */
        const int peer = i % gloo->size;
        if ((gloo->peers[peer].status == LS_OK) == (i < gloo->size) && is_needed(gloo, wait, peer)) {
            LS_TRY(check_left(gloo, wait, peer));
        }
    }
    tell_log(gloo, wait);
    return check_silence(gloo, wait);
}
