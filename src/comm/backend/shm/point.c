#include "comm/backend/shm/point.h"

#include <string.h>

#include "base/memory.h"
#include "comm/backend/shm/shm.h"

#define LOOKS_PER_CLOCK 64
#define LOOK_NS         ((uint64_t)20000000) /* how often a rank checks whether the others are alive */

/*
 * The turn of packet number m (from 1), which is at index (m - 1) % depth: 2m after it was written, and 2(m + depth) -
 * 1 after it was read, so that the writer may reuse it. In fresh memory, the turn is 0, and the writer may use the
 * packet.
 */
static uint64_t written(uint64_t number) {
    return 2 * number;
}

static uint64_t writable(const ls_shm_point *point, uint64_t number) {
    return number <= point->depth ? 0 : 2 * number - 1;
}

static ls_shm_packet *packet_at(const ls_shm *shm, int from, int to, uint64_t number) {
    const ls_shm_point *point = &shm->point;
    const size_t pipe = (size_t)from * (size_t)shm->size + (size_t)to;
    const size_t place = pipe * point->depth + (size_t)((number - 1) % point->depth);
    return (ls_shm_packet *)(void *)(point->pipes + place * point->stride);
}

static size_t packet_room(const ls_shm_point *point) {
    return point->stride - offsetof(ls_shm_packet, payload);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Returns the next packet to `to` if this rank may write it; otherwise NULL. */
static ls_shm_packet *next_free(const ls_shm *shm, int to) {
    const uint64_t number = shm->point.lanes[to].sent + 1;
    ls_shm_packet *packet = packet_at(shm, shm->rank, to, number);
    return atomic_load(&packet->turn) == writable(&shm->point, number) ? packet : NULL;
}

static void publish(ls_shm *shm, int to, ls_shm_packet *packet) {
    const uint64_t number = ++shm->point.lanes[to].sent;
    atomic_store(&packet->turn, written(number));
    ls_shm_wake(shm, to);
}

/* Copies small payloads inline, because the cost of a function call matters for them. */
static void copy_payload(void *into, const void *from, size_t bytes) {
    if (bytes < LS_SHM_COPY_BY_INSTRUCTION) {
        memcpy(into, from, bytes);
    } else {
        ls_shm_copy(into, from, bytes, 0);
    }
}

static void write_part(ls_shm *shm, int to, ls_shm_packet *packet, ls_shm_packet_kind kind, const ls_call *call,
                       size_t from) {
    const size_t room = packet_room(&shm->point);
    const size_t total = call->count * call->width;
    const size_t bytes = total - from < room ? total - from : room;
    packet->kind = kind;
    packet->tag = call->tag;
    packet->dtype = call->dtype;
    packet->bytes = (uint32_t)bytes;
    packet->count = call->count;
    packet->total = total;
    if (bytes != 0) {
        copy_payload(packet->payload, (const unsigned char *)call->send + from, bytes);
    }
    publish(shm, to, packet);
}

static void write_notice(ls_shm *shm, int to, ls_shm_packet *packet, const ls_shm_sending *sending) {
    const ls_shm_notice notice = {.address = (uint64_t)(uintptr_t)sending->call.send, .ticket = sending->ticket};
    packet->kind = LS_SHM_REMOTE;
    packet->tag = sending->call.tag;
    packet->dtype = sending->call.dtype;
    packet->bytes = sizeof notice;
    packet->count = sending->call.count;
    packet->total = sending->call.count * sending->call.width;
    memcpy(packet->payload, &notice, sizeof notice);
    publish(shm, to, packet);
}

/* Reserves a free position for an answer. Returns false if all are in use. */
static bool take_ticket(ls_shm *shm, unsigned *ticket) {
    if (~shm->point.tickets == 0) {
        return false;
    }
    *ticket = (unsigned)__builtin_ctzll(~shm->point.tickets);
    shm->point.tickets |= UINT64_C(1) << *ticket;
    atomic_store(&shm->ranks[shm->rank].answers[*ticket], LS_SHM_NO_ANSWER);
    return true;
}

static uint32_t answer_to(const ls_shm *shm, const ls_shm_sending *sending) {
    return atomic_load(&shm->ranks[shm->rank].answers[sending->ticket]);
}

static ls_shm_sending *make_sending(ls_shm *shm, const ls_call *call) {
    ls_shm_sending *sending = shm->point.spare;
    if (sending != NULL) {
        shm->point.spare = sending->next;
    } else {
        sending = ls_allocate(sizeof *sending);
        if (sending == NULL) {
            (void)ls_fail_memory("ls_comm_send", sizeof *sending);
            return NULL;
        }
    }
    *sending = (ls_shm_sending){.call = *call, .kind = LS_SHM_FIRST};
    return sending;
}

static void recycle(ls_shm *shm, ls_shm_sending *sending) {
    if (sending->kind == LS_SHM_REMOTE) {
        shm->point.tickets &= ~(UINT64_C(1) << sending->ticket);
    }
    sending->next = shm->point.spare;
    shm->point.spare = sending;
}

/* Writes as much of the lane's first send as there is room for. Returns true if the send left the lane. */
static bool push_first(ls_shm *shm, int to, ls_shm_lane *lane, bool *moved) {
    ls_shm_sending *sending = lane->first;
    const size_t total = sending->call.count * sending->call.width;
    bool ended = false;
    ls_shm_packet *packet = NULL;
    while (!ended && (packet = next_free(shm, to)) != NULL) {
        *moved = true;
        if (sending->kind != LS_SHM_REMOTE) {
            write_part(shm, to, packet, sending->kind, &sending->call, sending->sent);
            sending->kind = LS_SHM_MORE;
            sending->sent += packet_room(&shm->point);
            ended = sending->sent >= total;
        } else {
            write_notice(shm, to, packet, sending);
            ended = true;
        }
    }
    if (ended) {
        lane->first = sending->next;
        sending->queued = false;
    }
    return ended;
}

static void push(ls_shm *shm, int to, bool *moved) {
    ls_shm_lane *lane = &shm->point.lanes[to];
    while (lane->first != NULL && push_first(shm, to, lane, moved)) {
    }
}

static void enqueue(ls_shm *shm, int to, ls_shm_sending *sending) {
    ls_shm_lane *lane = &shm->point.lanes[to];
    sending->next = NULL;
    sending->queued = true;
    if (lane->first == NULL) {
        lane->first = sending;
    } else {
        lane->last->next = sending;
    }
    lane->last = sending;
    bool moved = false;
    push(shm, to, &moved);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Implements ls_match_fetch: reads an announced message and answers. */
static ls_status fetch(void *context, const ls_match_header *header, const ls_call *call, bool refused) {
    ls_shm *shm = context;
    if (!refused) {
        LS_TRY(ls_shm_peer_read(shm, call, header->from, call->receive, header->address, header->bytes));
    }
    atomic_store(&shm->ranks[header->from].answers[header->ticket], refused ? LS_SHM_REFUSED : LS_SHM_TAKEN);
    ls_shm_wake(shm, header->from);
    return LS_OK;
}

/* Returns true if a packet of this size is possible at this position of a stream. The check is necessary because any
 * rank can corrupt shared memory. */
static bool is_sound(const ls_shm_point *point, const ls_shm_lane *lane, const ls_match_header *header, uint32_t kind,
                     size_t bytes) {
    const bool streams = lane->arrived < lane->total;
    switch (kind) {
    case LS_SHM_FIRST:
        return !streams && bytes <= packet_room(point) && bytes <= header->bytes;
    case LS_SHM_MORE:
        return streams && bytes <= packet_room(point) && bytes <= lane->total - lane->arrived;
    case LS_SHM_REMOTE:
        return !streams && header->ticket < LS_SHM_ANNOUNCED;
    default:
        return false;
    }
}

static ls_status take_part(ls_shm *shm, ls_shm_lane *lane, const ls_shm_packet *packet, size_t bytes) {
    if (lane->target.into != NULL && bytes != 0) {
        copy_payload(lane->target.into + lane->arrived, packet->payload, bytes);
    }
    lane->arrived += bytes;
    if (lane->arrived >= lane->total) {
        ls_match_complete(&shm->point.match, &lane->target);
    }
    return LS_OK;
}

static ls_status take_packet(ls_shm *shm, int from, ls_shm_lane *lane, const ls_shm_packet *packet) {
    const uint32_t kind = packet->kind;
    const size_t bytes = packet->bytes;
    ls_match_header header = {.from = from,
                              .tag = packet->tag,
                              .dtype = (ls_dtype)packet->dtype,
                              .count = packet->count,
                              .bytes = packet->total,
                              .remote = kind == LS_SHM_REMOTE};
    if (header.remote) {
        ls_shm_notice notice;
        memcpy(&notice, packet->payload, sizeof notice);
        header.address = notice.address;
        header.ticket = notice.ticket;
    }
    if (!is_sound(&shm->point, lane, &header, kind, bytes)) {
        return ls_fail(LS_ERR_PEER, "ls_comm_recv: rank %d sent an invalid packet", from);
    }
    if (kind == LS_SHM_MORE) {
        return take_part(shm, lane, packet, bytes);
    }
    if (header.remote) {
        ls_match_target target;
        return ls_match_offer(&shm->point.match, &header, &target);
    }
    lane->total = header.bytes;
    lane->arrived = 0;
    LS_TRY(ls_match_offer(&shm->point.match, &header, &lane->target));
    return take_part(shm, lane, packet, bytes);
}

ls_status ls_shm_point_drain(ls_shm *shm, int from, bool *moved) {
    ls_shm_lane *lane = &shm->point.lanes[from];
    for (;;) {
        const uint64_t number = lane->got + 1;
        ls_shm_packet *packet = packet_at(shm, from, shm->rank, number);
        if (atomic_load(&packet->turn) != written(number)) {
            return LS_OK;
        }
        *moved = true;
        lane->got = number;
        const ls_status status = take_packet(shm, from, lane, packet);
        atomic_store(&packet->turn, 2 * (number + shm->point.depth) - 1);
        ls_shm_wake(shm, from);
        if (status != LS_OK) {
            return ls_shm_abort(shm, status, shm->rank); /* the message is lost */
        }
    }
}

ls_status ls_shm_point_poll(ls_shm *shm, bool *moved) {
    for (int rank = 0; rank < shm->size; rank++) {
        if (rank != shm->rank) {
            LS_TRY(ls_shm_point_drain(shm, rank, moved));
            push(shm, rank, moved);
        }
    }
    return LS_OK;
}

/* ---- sends of a rank that waits in ls_finalize ------------------------------------------------------------------- */

/* After a failure, the program may free the buffers, so queued messages are not sent. */
static bool has_queued_sends(const ls_shm *shm) {
    for (int rank = 0; rank < shm->size && !ls_shm_is_revoked(shm); rank++) {
        if (shm->point.lanes[rank].first != NULL && ls_shm_left(shm, rank) == LS_LEAVE_NONE) {
            return true;
        }
    }
    return false;
}

void ls_shm_point_send_on(ls_shm *shm) {
    atomic_store(&shm->ranks[shm->rank].sends, has_queued_sends(shm) ? LS_SHM_SENDS_QUEUED : LS_SHM_SENDS_READABLE);
}

bool ls_shm_point_advance_sends(void *state) {
    ls_shm *shm = state;
    bool moved = false;
    for (int rank = 0; rank < shm->size && !ls_shm_is_revoked(shm); rank++) {
        push(shm, rank, &moved);
    }
    ls_shm_point_send_on(shm);
    return atomic_load(&shm->ranks[shm->rank].sends) == LS_SHM_SENDS_QUEUED;
}

void ls_shm_point_withdraw_sends(void *state) {
    ls_shm *shm = state;
    atomic_store(&shm->ranks[shm->rank].sends, LS_SHM_SENDS_WITHDRAWN); /* waiting ranks poll it regularly */
}

/* ---- sends and receives ------------------------------------------------------------------------------------------ */

bool ls_shm_point_has_finished(const ls_shm *shm, const ls_shm_request *asked) {
    if (!asked->sends) {
        return ls_match_arrived(asked->receipt);
    }
    const ls_shm_sending *sending = asked->sending;
    return !sending->queued && (sending->kind != LS_SHM_REMOTE || answer_to(shm, sending) != LS_SHM_NO_ANSWER);
}

/* Regularly checks for reasons to fail `call`. */
static ls_status check(ls_shm *shm, const ls_call *call) {
    const uint64_t now = ls_clock_ns();
    if (now < shm->point.check_ns) {
        return LS_OK;
    }
    shm->point.check_ns = now + LOOK_NS;
    return ls_shm_point_look(shm, call, NULL);
}

static ls_status make_request(ls_shm *shm, const ls_shm_request *made, void **result) {
    ls_shm_point *point = &shm->point;
    ls_shm_request *kept = point->spare_requests;
    if (kept != NULL) {
        point->spare_requests = kept->next;
    } else {
        kept = ls_allocate(sizeof *kept);
        if (kept == NULL) {
            return ls_shm_abort(shm, ls_fail_memory("ls_comm_send", sizeof *kept), shm->rank);
        }
    }
    *kept = *made;
    kept->next = point->requests;
    point->requests = kept;
    *result = kept;
    return LS_OK;
}

static void end_request(ls_shm *shm, ls_shm_request *asked) {
    ls_shm_point *point = &shm->point;
    ls_shm_request **link = &point->requests;
    while (*link != asked) {
        link = &(*link)->next;
    }
    *link = asked->next;
    if (asked->sends && !asked->sending->queued) {
        recycle(shm, asked->sending); /* otherwise its lane frees it when the communicator closes */
    }
    asked->next = point->spare_requests;
    point->spare_requests = asked;
}

/* Returns true if a message that needs several packets can be written completely at once. */
static bool has_room(const ls_shm *shm, int to, size_t bytes) {
    const ls_shm_point *point = &shm->point;
    const uint64_t packets = (bytes + packet_room(point) - 1) / packet_room(point);
    const uint64_t last = point->lanes[to].sent + packets; /* packets become free in order */
    return point->lanes[to].first == NULL && packets <= point->depth &&
           atomic_load(&packet_at(shm, shm->rank, to, last)->turn) == writable(point, last);
}

/*
 * Returns true if the message is sent as a stream; otherwise the receiver reads it from this rank's memory. A stream
 * progresses only while its sender is in a call: if the sender computes meanwhile, the receiver has to wait for its
 * next call.
 */
static bool streams(const ls_shm *shm, const ls_call *call, size_t bytes) {
    if (!shm->peer_reads || bytes <= packet_room(&shm->point)) {
        return true; /* a message of one packet is received whether or not a receive waits for it, even after a full
                        pipe */
    }
    if (shm->sizes[LS_OP_SEND].read != LS_SHM_READ_BY_SHAPE) {
        return bytes <= shm->sizes[LS_OP_SEND].read;
    }
    if (!call->waits) {
        return has_room(shm, call->root, bytes);
    }
    if (shm->spin_ns == 0) {
        return bytes <= LS_SHM_STREAM_SHARED_MOST;
    }
    const bool helps = shm->point.stride > LS_SHM_PACKET_MORE_4;
    return bytes <= (helps ? LS_SHM_STREAM_WAITED_MOST : LS_SHM_STREAM_MOST);
}

static ls_status post_send(ls_shm *shm, const ls_call *call, void **result) {
    const size_t bytes = call->count * call->width;
    const int to = call->root;
    if (to == shm->rank) {
        return ls_match_send_self(&shm->point.match, shm->rank, call);
    }
    LS_TRY(check(shm, call));
    if (ls_shm_left(shm, to) != LS_LEAVE_NONE) {
        return ls_shm_fail_left(shm, call, to, "");
    }
    const bool fits = bytes <= packet_room(&shm->point);
    ls_shm_packet *packet = fits && shm->point.lanes[to].first == NULL ? next_free(shm, to) : NULL;
    if (packet != NULL) {
        shm->algorithm_name = "packet";
        write_part(shm, to, packet, LS_SHM_FIRST, call, 0);
        return LS_OK;
    }
    ls_shm_sending *sending = make_sending(shm, call);
    if (sending == NULL) {
        return LS_ERR_MEMORY;
    }
    if (!streams(shm, call, bytes) && take_ticket(shm, &sending->ticket)) {
        sending->kind = LS_SHM_REMOTE;
    }
    shm->algorithm_name = sending->kind == LS_SHM_REMOTE ? "read" : "stream";
    enqueue(shm, to, sending);
    return make_request(shm, &(ls_shm_request){.sends = true, .sending = sending}, result);
}

/* Accepts all data that the other rank of the call has sent. */
static ls_status drain_for(ls_shm *shm, const ls_call *call, bool *moved) {
    if (call->root == LS_ANY_RANK) {
        return ls_shm_point_poll(shm, moved);
    }
    return call->root != shm->rank ? ls_shm_point_drain(shm, call->root, moved) : LS_OK;
}

static ls_status post_receive(ls_shm *shm, const ls_call *call, void **result) {
    ls_match_receipt *receipt = NULL;
    bool moved = false;
    LS_TRY(drain_for(shm, call, &moved));
    LS_TRY(ls_match_receive(&shm->point.match, call, &receipt));
    return receipt == NULL ? LS_OK : make_request(shm, &(ls_shm_request){.receipt = receipt}, result);
}

ls_status ls_shm_post_message(void *state, const ls_call *call, void **result) {
    ls_shm *shm = state;
    *result = NULL;
    LS_TRY(ls_shm_sound(shm));
    ls_shm_note_call(shm, call);
    return ls_call_sends(call) ? post_send(shm, call, result) : post_receive(shm, call, result);
}

static ls_status end_send(const ls_shm *shm, const ls_shm_sending *sending) {
    const ls_call *call = &sending->call;
    if (sending->kind == LS_SHM_REMOTE && answer_to(shm, sending) == LS_SHM_REFUSED) {
        char name[64];
        return ls_fail(LS_ERR_MISMATCH, "%s: rank %d does not expect %zu %s with tag %d",
                       ls_call_describe(LS_OP_SEND, call->sequence, name, sizeof name), call->root, call->count,
                       ls_dtype_name(call->dtype), call->tag);
    }
    return LS_OK;
}

static const ls_call *call_of(const ls_shm_request *asked) {
    return asked->sends ? &asked->sending->call : &asked->receipt->call;
}

/* An ls_shm_condition: the request in `context` has finished. */
static bool request_has_finished(ls_shm *shm, const void *context) {
    return ls_shm_point_has_finished(shm, context);
}

/* If a rank shares this rank's core, and so can send only when this rank yields, returns it; otherwise returns any
 * other rank. */
static int nearest_sender(const ls_shm *shm) {
    int nearest = (shm->rank + 1) % shm->size;
    for (int rank = 0; rank < shm->size; rank++) {
        nearest = rank != shm->rank && ls_shm_core_of(shm, rank) == shm->core ? rank : nearest;
    }
    return nearest;
}

/* Waits by yielding, for ranks that share cores: see LS_SHM_YIELDS. Sets `*moved` if a message has made progress or the
 * request has finished. */
static ls_status yield_and_look(ls_shm *shm, ls_shm_request *asked, bool *moved) {
    const int other = call_of(asked)->root == LS_ANY_RANK ? nearest_sender(shm) : call_of(asked)->root;
    if (asked->waited.polled_ns == 0 && other != shm->rank) {
        asked->yields = ls_shm_yields(shm);
    }
    for (unsigned turn = 0; turn < asked->yields; turn++) {
        ls_shm_tell_core(shm);
        const int looks = ls_shm_core_of(shm, other) > shm->core ? LS_SHM_YIELD_LOOKS : LS_SHM_YIELD_LOOKS / 8;
        for (int i = 0; i < looks; i++) {
            LS_TRY(drain_for(shm, call_of(asked), moved));
            *moved = *moved || ls_shm_point_has_finished(shm, asked);
            if (*moved || ls_shm_core_of(shm, other) == shm->core) {
                break;
            }
            ls_spin_pause();
        }
        if (*moved) {
            shm->long_yields /= 2;
            break;
        }
        const bool soon = ls_shm_yield(shm, &asked->yielded_long);
        LS_TRY(ls_shm_point_poll(shm, moved));
        if (!soon) {
            break;
        }
    }
    return LS_OK;
}

/* Waits a while, and checks for reasons to fail. */
static ls_status wait_some(ls_shm *shm, ls_shm_request *asked) {
    const ls_call *call = call_of(asked);
    bool moved = false;
    if (shm->spin_ns == 0) {
        LS_TRY(yield_and_look(shm, asked, &moved));
        if (moved) {
            return LS_OK;
        }
    }
    const uint64_t start = ls_clock_ns();
    for (uint64_t now = start; now - start <= shm->spin_ns; now = ls_clock_ns()) {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            LS_TRY(drain_for(shm, call, &moved));
            if (moved || ls_shm_point_has_finished(shm, asked)) {
                return LS_OK;
            }
            ls_spin_pause();
        }
        LS_TRY(ls_shm_point_poll(shm, &moved));
    }
    (void)ls_awake_poll(&asked->waited, ls_clock_ns());
    ls_shm_point_note_awaited(
        shm, call->operation == LS_OP_RECV ? call : NULL); /* only a receive from a known rank is noted */
    LS_TRY(ls_shm_point_look(shm, call, asked));
    return ls_shm_point_has_finished(shm, asked) ? LS_OK : ls_shm_sleep(shm, request_has_finished, asked);
}

static ls_status test(ls_shm *shm, ls_shm_request *asked, bool wait, bool *finished) {
    bool moved = false;
    LS_TRY(ls_shm_point_poll(shm, &moved));
    while (wait && !ls_shm_point_has_finished(shm, asked)) {
        LS_TRY(wait_some(shm, asked));
        LS_TRY(ls_shm_point_poll(shm, &moved));
    }
    *finished = ls_shm_point_has_finished(shm, asked);
    if (!*finished) {
        const uint64_t now = ls_clock_ns();
        (void)ls_awake_poll(&asked->waited, now);
        if (now >= shm->point.check_ns) {
            shm->point.check_ns = now + LOOK_NS;
            return ls_shm_point_look(shm, call_of(asked), asked);
        }
        return LS_OK;
    }
    return asked->sends ? end_send(shm, asked->sending) : ls_match_end(&shm->point.match, asked->receipt);
}

ls_status ls_shm_test_message(void *state, void *asked, bool wait, bool *finished) {
    ls_shm *shm = state;
    *finished = false;
    const ls_status status = test(shm, asked, wait, finished);
    if (status != LS_OK || *finished) {
        if (((ls_shm_request *)asked)->waited.polled_ns != 0) { /* the request waited, and may have published this */
            ls_shm_point_note_awaited(shm, NULL);
        }
        end_request(shm, asked);
    }
    return status;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

ls_status ls_shm_point_open(ls_shm *shm) {
    ls_shm_point *point = &shm->point;
    point->lanes = ls_allocate_zeroed((size_t)shm->size, sizeof *point->lanes);
    point->match.fetch = fetch;
    point->match.context = shm;
    return point->lanes != NULL ? LS_OK : ls_fail_memory("ls_comm_open", (size_t)shm->size * sizeof *point->lanes);
}

static void free_list(ls_shm_sending *first) {
    while (first != NULL) {
        ls_shm_sending *next = first->next;
        ls_free(first);
        first = next;
    }
}

void ls_shm_point_close(ls_shm *shm) {
    ls_shm_point *point = &shm->point;
    while (point->requests != NULL) {
        end_request(shm, point->requests);
    }
    for (int rank = 0; point->lanes != NULL && rank < shm->size; rank++) {
        free_list(point->lanes[rank].first);
    }
    while (point->spare_requests != NULL) {
        ls_shm_request *next = point->spare_requests->next;
        ls_free(point->spare_requests);
        point->spare_requests = next;
    }
    free_list(point->spare);
    ls_match_free(&point->match);
    ls_free(point->lanes);
}
