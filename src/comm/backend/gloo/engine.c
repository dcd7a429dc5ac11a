/* What is under way: runs that go out, packets and data that come in, and waiting. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/gloo/gloo.h"

#define STOPPED_NS UINT64_C(100000000) /* between two looks of a process that runs is less */
#define SLEEP_MS   20

enum { ONE_LOOK = 16 }; /* operations of one rank before the next has its turn */

void ls_gloo_close_peer(ls_gloo *gloo, int peer, const char *why) {
    ls_gloo_peer *other = &gloo->peers[peer];
    other->closed = true;
    if (!other->left) {
        snprintf(other->reason, sizeof other->reason, "%s", why);
    }
}

static void note_life(ls_gloo *gloo, ls_gloo_peer *other) {
    other->heard_ns = gloo->awake_ns;
    other->alive_ns = gloo->awake_ns;
}

/* ---- what goes out -------------------------------------------------------------------------------------------------
 */

static ls_gloo_run *make_run(ls_gloo *gloo) {
    ls_gloo_run *run = gloo->spare;
    if (run != NULL) {
        gloo->spare = run->next;
    } else {
        run = ls_allocate(sizeof *run);
    }
    return run;
}

static void end_run(ls_gloo *gloo, ls_gloo_run *run) {
    if (run->open != NULL) {
        --*run->open;
    }
    ls_free(run->packet);
    run->next = gloo->spare;
    gloo->spare = run;
}

/*
 * Whether an operation can be sent without blocking: the system says yes when a third of its buffer is free. It says no
 * where the connection broke, or the rank has closed it and will be read on: Gloo would close its side then, and what
 * the rank said last would be lost.
 */
static bool has_room(const ls_gloo *gloo, int peer) {
    const ls_gloo_peer *other = &gloo->peers[peer];
    const short end = other->held || other->stalled ? 0 : POLLRDHUP;
    struct pollfd socket = {.fd = ls_gloo_wire_socket(gloo->wire, peer), .events = (short)(POLLOUT | end)};
    return poll(&socket, 1, 0) == 1 && socket.revents == POLLOUT;
}

/* One packet, if there is room for it. */
static bool send_now(ls_gloo *gloo, int peer, const ls_gloo_packet *packet, size_t bytes) {
    char why[LS_GLOO_WHY];
    if (gloo->peers[peer].closed || !has_room(gloo, peer)) {
        return false;
    }
    if (!ls_gloo_wire_send(gloo->wire, peer, LS_GLOO_PACKETS, packet, LS_GLOO_HEADER + bytes, 0, why)) {
        ls_gloo_close_peer(gloo, peer, why);
        return false;
    }
    return true;
}

/* The first run of which something is ready. */
static ls_gloo_run **next_run(ls_gloo_peer *other) {
    ls_gloo_run **link = &other->runs;
    while (*link != NULL && (*link)->packet == NULL && (*link)->sent >= (*link)->ready) {
        link = &(*link)->next;
    }
    return *link != NULL ? link : NULL;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* An operation of data, no more than goes in one piece into the receiver's aim, and the packet that announces it. */
static bool send_chunk(ls_gloo *gloo, int peer, ls_gloo_run *run) {
    char why[LS_GLOO_WHY];
    ls_gloo_packet *packet = gloo->outgoing;
    const size_t at = run->window != 0 ? run->sent % run->window : run->sent;
    size_t chunk = least(run->ready - run->sent, gloo->peers[peer].chunk);
    chunk = run->window != 0 ? least(chunk, run->window - at) : chunk;
    packet->kind = LS_GLOO_DATA;
    packet->slot = (uint32_t)run->slot;
    packet->bytes = chunk;
    if (!send_now(gloo, peer, packet, 0)) {
        return false;
    }
    /* There is room for it too, and it must follow. */
    if (!ls_gloo_wire_send(gloo->wire, peer, (int)run->slot, run->data + run->sent, chunk, at, why)) {
        ls_gloo_close_peer(gloo, peer, why);
        return false;
    }
    run->sent += chunk;
    return true;
}

size_t ls_gloo_send_ahead(ls_gloo *gloo, int peer, ls_gloo_packet *packet, ls_gloo_slot slot, const void *data,
                          size_t bytes) {
    char why[LS_GLOO_WHY];
    const size_t chunk = least(bytes, gloo->peers[peer].chunk);
    packet->bytes = 0;
    packet->at = chunk;
    if (gloo->peers[peer].runs != NULL || !send_now(gloo, peer, packet, 0)) {
        return 0;
    }
    if (!ls_gloo_wire_send(gloo->wire, peer, (int)slot, data, chunk, 0, why)) {
        ls_gloo_close_peer(gloo, peer, why);
    }
    return chunk;
}

/* Sends what there is room for. */
static void push(ls_gloo *gloo, int peer, bool *moved) {
    ls_gloo_peer *other = &gloo->peers[peer];
    for (int i = 0; i < ONE_LOOK; i++) {
        ls_gloo_run **turn = next_run(other);
        if (turn == NULL) {
            return;
        }
        ls_gloo_run *run = *turn;
        if (run->packet != NULL ? !send_now(gloo, peer, run->packet, run->bytes) : !send_chunk(gloo, peer, run)) {
            return;
        }
        *moved = true;
        if (run->open != NULL) { /* what goes out unasked says nothing about the rank */
            note_life(gloo, other);
        }
        if (run->packet != NULL || run->sent == run->bytes) {
            *turn = run->next;
            end_run(gloo, run);
        }
    }
}

static void append(ls_gloo_peer *other, ls_gloo_run *run) {
    ls_gloo_run **link = &other->runs;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    run->next = NULL;
    *link = run;
}

ls_status ls_gloo_send_packet(ls_gloo *gloo, int peer, ls_gloo_packet *packet, size_t bytes, size_t *open) {
    ls_gloo_peer *other = &gloo->peers[peer];
    packet->bytes = bytes;
    if (other->runs == NULL && send_now(gloo, peer, packet, bytes)) {
        return LS_OK;
    }
    ls_gloo_run *run = make_run(gloo);
    ls_gloo_packet *copy = ls_allocate(LS_GLOO_HEADER + bytes);
    if (run == NULL || copy == NULL) {
        ls_free(run);
        ls_free(copy);
        return ls_gloo_give_up(gloo, ls_fail_memory("ls_comm", LS_GLOO_HEADER + bytes), gloo->rank);
    }
    memcpy((void *)copy, packet, LS_GLOO_HEADER + bytes);
    *run = (ls_gloo_run){.open = open, .packet = copy, .bytes = bytes};
    if (open != NULL) {
        ++*open;
    }
    append(other, run);
    return LS_OK;
}

ls_status ls_gloo_send_data(ls_gloo *gloo, int peer, const ls_gloo_run *given, bool first) {
    ls_gloo_peer *other = &gloo->peers[peer];
    ls_gloo_run *run = make_run(gloo);
    if (run == NULL) {
        return ls_gloo_give_up(gloo, ls_fail_memory("ls_comm", sizeof *run), gloo->rank);
    }
    *run = *given;
    ++*run->open;
    if (first) {
        run->next = other->runs;
        other->runs = run;
    } else {
        run->ready = run->bytes;
        append(other, run);
    }
    return LS_OK;
}

void ls_gloo_ready(ls_gloo *gloo, size_t ready) {
    for (int peer = 0; peer < gloo->size; peer++) {
        ls_gloo_run *run = gloo->peers[peer].runs;
        while (run != NULL && (run->packet != NULL || run->slot != LS_GLOO_SUMS)) {
            run = run->next;
        }
        if (run != NULL) {
            run->ready = ready;
        }
    }
}

bool ls_gloo_sends(const ls_gloo *gloo, int peer, const size_t *open) {
    const ls_gloo_run *run = gloo->peers[peer].runs;
    while (run != NULL && run->open != open) {
        run = run->next;
    }
    return run != NULL;
}

bool ls_gloo_send_last(ls_gloo *gloo, int peer, ls_gloo_packet *packet, size_t bytes) {
    packet->bytes = bytes;
    return send_now(gloo, peer, packet, bytes);
}

void ls_gloo_free_runs(ls_gloo *gloo) {
    for (int peer = 0; peer < gloo->size; peer++) {
        while (gloo->peers[peer].runs != NULL) {
            ls_gloo_run *run = gloo->peers[peer].runs;
            gloo->peers[peer].runs = run->next;
            run->open = NULL;
            end_run(gloo, run);
        }
    }
    while (gloo->spare != NULL) {
        ls_gloo_run *next = gloo->spare->next;
        ls_free(gloo->spare);
        gloo->spare = next;
    }
}

/* ---- what comes in -------------------------------------------------------------------------------------------------
 */

ls_status ls_gloo_aim(ls_gloo *gloo, int peer, ls_gloo_slot slot, void *memory, size_t bytes) {
    char why[LS_GLOO_WHY];
    gloo->peers[peer].came[slot] = 0;
    gloo->peers[peer].wanted[slot] = bytes;
    if (!ls_gloo_wire_aim(gloo->wire, peer, (int)slot, memory, bytes, why)) {
        return ls_gloo_give_up(gloo, ls_fail(LS_ERR_IO, "ls_comm: Gloo: %s", why), gloo->rank);
    }
    return LS_OK;
}

static void take_leave_notice(ls_gloo *gloo, int peer) {
    ls_gloo_peer *other = &gloo->peers[peer];
    const ls_gloo_packet *packet = other->packet;
    const size_t bytes = least(packet->bytes, sizeof other->reason - 1);
    other->left = true;
    other->leaving = (ls_leave_reason)packet->slot; /* one that is none is described as LS_LEAVE_FREED is */
    other->status = (ls_status)packet->status;
    other->last = packet->at;
    other->culprit = packet->culprit >= 0 && packet->culprit < gloo->size ? packet->culprit : peer;
    memcpy(other->reason, packet->data, bytes);
    other->reason[bytes] = '\0';
}

/* Data that a packet has with it. */
static size_t carried_by(const ls_gloo_packet *packet) {
    switch (packet->kind) {
    case LS_GLOO_CALL:
        return packet->call.bytes <= LS_GLOO_ROOM ? packet->call.bytes : 0;
    case LS_GLOO_MESSAGE:
        return packet->call.bytes <= LS_GLOO_CARRIED ? packet->call.bytes : 0;
    case LS_GLOO_DATA:
        return 0;
    default:
        return packet->bytes;
    }
}

/* Whether a packet that came with so many bytes of data is one; where it is not, its connection is of no use. */
static bool is_sound(ls_gloo *gloo, int peer, size_t data) {
    const ls_gloo_packet *packet = gloo->peers[peer].packet;
    char why[LS_HEADER_WHY];
    char text[LS_HEADER_WHY + 64] = "it sent what was not expected";
    const bool has_header = packet->kind == LS_GLOO_CALL || packet->kind == LS_GLOO_MESSAGE;
    const bool sound = !has_header || ls_call_header_is_sound(&packet->call, gloo->size, why);
    if (!sound) {
        snprintf(text, sizeof text, "it sent a header that is not one: %s", why);
    } else if (data == carried_by(packet) && (data == packet->bytes || packet->kind == LS_GLOO_DATA)) {
        return true;
    }
    ls_gloo_close_peer(gloo, peer, text);
    return false;
}

static ls_status take_packet(ls_gloo *gloo, int peer, size_t data) {
    ls_gloo_peer *other = &gloo->peers[peer];
    const ls_gloo_packet *packet = other->packet;
    if (!is_sound(gloo, peer, data)) {
        return LS_OK;
    }
    if (packet->kind == LS_GLOO_WAITING) {
        other->alive_ns = gloo->awake_ns;
        return LS_OK;
    }
    note_life(gloo, other);
    switch (packet->kind) {
    case LS_GLOO_CALL:
        other->held = other->called;
        return other->held ? LS_OK : ls_gloo_take_call(gloo, peer);
    case LS_GLOO_VERDICT:
        ls_gloo_take_verdict(gloo, peer);
        return LS_OK;
    case LS_GLOO_MESSAGE:
        return ls_gloo_take_message(gloo, peer);
    case LS_GLOO_DATA:
        if (packet->slot > LS_GLOO_PACKETS && packet->slot <= LS_GLOO_CONTENTS && packet->bytes <= LS_GLOO_CHUNK) {
            other->slot = (ls_gloo_slot)packet->slot;
            other->coming = packet->bytes;
            return LS_OK;
        }
        break;
    case LS_GLOO_LEFT:
        take_leave_notice(gloo, peer);
        return LS_OK;
    default:
        break;
    }
    ls_gloo_close_peer(gloo, peer, "it sent what was not expected");
    return LS_OK;
}

static ls_status take_data(ls_gloo *gloo, int peer) {
    ls_gloo_peer *other = &gloo->peers[peer];
    note_life(gloo, other);
    other->came[other->slot] += other->coming;
    other->coming = 0;
    if (other->slot == LS_GLOO_CONTENTS) {
        return ls_gloo_take_content(gloo, peer);
    }
    if (other->slot == LS_GLOO_PARTS) {
        return ls_gloo_add(gloo);
    }
    ls_gloo_take_data(gloo, peer, other->slot);
    return LS_OK;
}

/* Whether there is a place for what comes next from the rank. */
static bool has_place(const ls_gloo *gloo, const ls_gloo_peer *other) {
    return other->coming == 0 || other->slot != LS_GLOO_PARTS ||
           other->came[LS_GLOO_PARTS] + other->coming <= gloo->reduced + LS_GLOO_WINDOW;
}

/* What the rank sends next. */
static ls_gloo_operation expected_of(const ls_gloo_peer *other) {
    const size_t came = other->came[other->slot];
    const size_t at = other->slot == LS_GLOO_PARTS ? came % LS_GLOO_WINDOW : came;
    if (other->coming == 0) {
        return (ls_gloo_operation){.slot = LS_GLOO_PACKETS, .least = LS_GLOO_HEADER, .most = sizeof(ls_gloo_packet)};
    }
    return (ls_gloo_operation){.slot = (int)other->slot,
                               .at = at,
                               .least = other->coming,
                               .most = least(other->coming, other->wanted[other->slot] - at)};
}

ls_status ls_gloo_pull(ls_gloo *gloo, int peer, bool *moved) {
    ls_gloo_peer *other = &gloo->peers[peer];
    for (int i = 0; i < ONE_LOOK && !other->closed && !other->held; i++) {
        char why[LS_GLOO_WHY];
        other->stalled = !has_place(gloo, other);
        if (other->stalled) {
            return LS_OK;
        }
        const int there = ls_gloo_wire_peek(gloo->wire, peer, why);
        if (there == 0) {
            return LS_OK;
        }
        *moved = true;
        size_t bytes = 0;
        const ls_gloo_operation expected = expected_of(other);
        if (there < 0 || !ls_gloo_wire_take(gloo->wire, peer, &expected, &bytes, why)) {
            ls_gloo_close_peer(gloo, peer, why);
            return LS_OK;
        }
        LS_TRY(other->coming != 0 ? take_data(gloo, peer) : take_packet(gloo, peer, bytes - LS_GLOO_HEADER));
    }
    return LS_OK;
}

/* ---- waiting -------------------------------------------------------------------------------------------------------
 */

static void sleep_a_little(ls_gloo *gloo) {
    for (int peer = 0; peer < gloo->size; peer++) {
        ls_gloo_peer *other = &gloo->peers[peer];
        const bool reads = peer != gloo->rank && !other->closed && !other->held && !other->stalled;
        const bool writes = !other->closed && other->runs != NULL && next_run(other) != NULL;
        gloo->sockets[peer].events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
        /* A connection that nobody reads must not wake anybody by being broken. */
        gloo->sockets[peer].fd = reads || writes ? ls_gloo_wire_socket(gloo->wire, peer) : -1;
    }
    (void)poll(gloo->sockets, (nfds_t)gloo->size, SLEEP_MS);
}

static void tell_time(ls_gloo *gloo, uint64_t now) {
    const uint64_t since = gloo->looked_ns != 0 ? now - gloo->looked_ns : 0;
    gloo->awake_ns += since < STOPPED_NS ? since : STOPPED_NS;
    gloo->looked_ns = now;
}

ls_status ls_gloo_look(ls_gloo *gloo, bool wait, bool *moved) {
    const uint64_t now = ls_clock_ns();
    *moved = false;
    tell_time(gloo, now);
    for (int i = 1; i < gloo->size; i++) {
        const int peer = (gloo->rank + i) % gloo->size;
        LS_TRY(ls_gloo_pull(gloo, peer, moved));
        if (gloo->peers[peer].runs != NULL) {
            push(gloo, peer, moved);
        }
    }
    if (*moved) {
        gloo->idle_ns = 0;
    } else if (gloo->idle_ns == 0) {
        gloo->idle_ns = now;
    } else if (wait && now - gloo->idle_ns >= gloo->spin_ns) {
        sleep_a_little(gloo);
    }
    return LS_OK;
}
