/* The TCP transport: input. Every field of a header is checked before it is used. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/tcp/link.h"

enum { READS = 16 }; /* number of reads from one rank before the next rank's turn */

#define TELL_NS UINT64_C(100000000) /* interval of progress reports to the owner of the memory that is read */

/* ---- receives ---------------------------------------------------------------------------------------------------- */

static void finish(ls_tcp *tcp, ls_transfer *receive, int rank, size_t bytes) {
    receive->peer = rank;
    receive->bytes = bytes;
    receive->ended = true;
    tcp->moved = true;
}

/* Copies a complete kept message into its receive. */
static void deliver(ls_tcp *tcp, ls_transfer *receive, ls_early *early) {
    if (early->bytes > 0) {
        memcpy(receive->data, early->data, early->bytes);
    }
    finish(tcp, receive, early->from, early->bytes);
    ls_arrivals_drop(&tcp->arrivals, early);
}

static ls_status check_room(const ls_transfer *receive, int rank, size_t bytes, bool remote) {
    if (bytes > receive->bytes) {
        return ls_fail(LS_ERR_PEER, "rank %d sent a message of %zu bytes, but its receive has room for only %zu", rank,
                       bytes, receive->bytes);
    }
    if (remote && receive->peer < 0) {
        return ls_fail(LS_ERR_PEER, "rank %d sent a message of %zu bytes, but a rank may send at most %d", rank, bytes,
                       LS_TRANSPORT_LEAST_EAGER);
    }
    return LS_OK;
}

/* Records that an eager message has its receive, and regularly reports this to the sender. */
static ls_status note_claimed(ls_tcp *tcp, int rank, size_t bytes) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (bytes <= LS_TRANSPORT_LEAST_EAGER) {
        return LS_OK;
    }
    peer->claimed += bytes;
    if (peer->claimed - peer->told < LS_TCP_UNCLAIMED / 4) {
        return LS_OK;
    }
    peer->told = peer->claimed;
    return ls_tcp_put(tcp, rank, &(ls_tcp_header){.kind = LS_TCP_CLAIMED, .number = peer->claimed}, NULL, 0);
}

/* Permits the rank to send an announced message. */
static ls_status clear(ls_tcp *tcp, int rank, ls_transfer *receive, size_t bytes, uint64_t number) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    receive->bytes = bytes;
    receive->moved = 0;
    receive->number = number;
    receive->next = peer->awaited;
    peer->awaited = receive;
    return ls_tcp_put(tcp, rank, &(ls_tcp_header){.kind = LS_TCP_CLEAR, .number = number}, NULL, 0);
}

static ls_status clear_early(ls_tcp *tcp, ls_transfer *receive, ls_early *early) {
    const ls_early announced = *early;
    ls_arrivals_drop(&tcp->arrivals, early);
    return clear(tcp, announced.from, receive, announced.bytes, announced.number);
}

/* Assigns an offered message to its receive. Reading begins at the next poll, because the caller may first have to
 * send data that the other rank waits for. */
static void begin_reading(ls_tcp *tcp, ls_transfer *receive, ls_early *early) {
    receive->bytes = early->bytes;
    receive->moved = 0;
    early->receive = receive;
    early->told_ns = tcp->awake.ns;
    tcp->reads = true;
}

ls_status ls_tcp_post(ls_tcp *tcp, ls_transfer *receive) {
    ls_early *early = ls_arrivals_post(&tcp->arrivals, receive);
    if (early == NULL) {
        return LS_OK;
    }
    const ls_status status = check_room(receive, early->from, early->bytes, early->remote);
    if (status != LS_OK) {
        tcp->endpoint.blamed = 1 + early->from;
        return status;
    }
    if (early->remote && early->address != 0) {
        begin_reading(tcp, receive, early);
        return LS_OK;
    }
    if (early->remote) {
        return clear_early(tcp, receive, early);
    }
    const int from = early->from;
    const size_t bytes = early->bytes;
    if (early->whole) {
        deliver(tcp, receive, early);
    } else {
        early->receive = receive;
    }
    return note_claimed(tcp, from, bytes);
}

/* ---- messages read from the sender's memory ---------------------------------------------------------------------- */

/* Records that a piece of an offered message was read. Reports the progress to the sender when the whole message has
 * been read, and also at intervals of TELL_NS, so that the sender does not time out. */
static ls_status end_reading(ls_tcp *tcp, ls_early *early) {
    const ls_early read = *early;
    const bool all = read.receive->moved == read.bytes;
    const ls_tcp_header taken = {.kind = LS_TCP_TAKEN, .bytes = read.receive->moved, .number = read.number};
    const bool tells = all || tcp->awake.ns - read.told_ns >= TELL_NS;
    if (all) {
        finish(tcp, read.receive, read.from, read.bytes);
        ls_arrivals_drop(&tcp->arrivals, early);
    } else {
        early->told_ns = tells ? tcp->awake.ns : read.told_ns;
        ls_arrivals_put_last(&tcp->arrivals, early);
    }
    return tells ? ls_tcp_put(tcp, read.from, &taken, NULL, 0) : LS_OK;
}

/* Handles a failed read. If the kernel does not allow the read, or if the rank has exited or has withdrawn its
 * offers, this rank no longer reads that rank's memory. A wrong address (EFAULT, ENOMEM) affects only this message. */
static void end_memory(ls_tcp *tcp, int rank) {
    const int error = errno;
    if (error == EFAULT || error == ENOMEM) {
        return;
    }
    tcp->peers[rank].memory.process = 0;
    if (!tcp->told_of_socket) {
        ls_log_write(LS_LOG_INFO,
                     "the memory of rank %d cannot be read (%s): large messages are received through the socket", rank,
                     error != 0 ? strerror(error) : "the rank has released it");
    }
    tcp->told_of_socket = true;
}

static ls_status read_piece(ls_tcp *tcp, ls_early *early, size_t bytes) {
    ls_transfer *receive = early->receive;
    ls_peer_memory *memory = &tcp->peers[early->from].memory;
    if (memory->process == 0) {
        return clear_early(tcp, receive, early);
    }
    if (!ls_peer_memory_read(memory, (unsigned char *)receive->data + receive->moved, early->address + receive->moved,
                             bytes)) {
        end_memory(tcp, early->from);
        return clear_early(tcp, receive, early);
    }
    receive->moved += bytes;
    return end_reading(tcp, early);
}

ls_status ls_tcp_read_offered(ls_tcp *tcp, bool *busy) {
    for (size_t done = 0; tcp->reads && done < LS_TCP_LOOK;) {
        ls_early *early = tcp->arrivals.early;
        while (early != NULL && (early->address == 0 || early->receive == NULL)) {
            early = early->next;
        }
        tcp->reads = early != NULL;
        if (early != NULL) {
            const size_t left = early->bytes - early->receive->moved;
            const size_t bytes = left < LS_TCP_READ ? left : LS_TCP_READ;
            *busy = true;
            done += bytes;
            LS_TRY(read_piece(tcp, early, bytes));
        }
    }
    return LS_OK;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static void end_piece(ls_tcp *tcp, int rank, const ls_tcp_body *piece) {
    ls_transfer *receive = piece->receive;
    receive->moved += piece->bytes;
    if (receive->moved < receive->bytes) {
        return;
    }
    ls_transfer **link = &tcp->peers[rank].awaited;
    while (*link != receive) {
        link = &(*link)->next;
    }
    *link = receive->next;
    if (receive->data == NULL) { /* the transfer is the placeholder of a withdrawn receive */
        ls_free(receive);
    } else {
        finish(tcp, receive, rank, receive->bytes);
    }
}

/* Handles the end of the data described by the last header. */
static void end_body(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    const ls_tcp_body body = peer->body;
    peer->body = (ls_tcp_body){0};
    if (body.piece) {
        end_piece(tcp, rank, &body);
    } else if (body.receive != NULL) {
        finish(tcp, body.receive, rank, body.bytes);
    } else if (body.early != NULL) {
        body.early->whole = true;
        if (body.early->receive != NULL) {
            deliver(tcp, body.early->receive, body.early);
        }
    }
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */

static ls_status fail_header(int rank, const ls_tcp_header *h) {
    return ls_fail(LS_ERR_PEER,
                   "rank %d sent an invalid header: kind %" PRIx32 ", channel %" PRIu32 ", %" PRIu64
                   " bytes, number %" PRIu64,
                   rank, h->kind, h->channel, h->bytes, h->number);
}

static ls_status take_message(ls_tcp *tcp, int rank, const ls_tcp_header *h) {
    ls_tcp_body *body = &tcp->peers[rank].body;
    if (h->channel >= LS_TRANSPORT_CHANNELS || h->bytes > LS_TCP_EAGER || h->number != 0) {
        return fail_header(rank, h);
    }
    *body = (ls_tcp_body){.left = (size_t)h->bytes, .bytes = (size_t)h->bytes};
    body->receive = ls_arrivals_claim(&tcp->arrivals, rank, (int)h->channel);
    if (body->receive != NULL) {
        LS_TRY(check_room(body->receive, rank, body->bytes, false));
        body->at = body->receive->data;
        LS_TRY(note_claimed(tcp, rank, body->bytes));
    } else {
        body->early = ls_arrivals_keep(&tcp->arrivals, rank, (int)h->channel, body->bytes, false);
        if (body->early == NULL) {
            return ls_fail_memory("a message", body->bytes);
        }
        body->at = body->early->data;
    }
    if (body->left == 0) {
        end_body(tcp, rank);
    }
    return LS_OK;
}

static ls_status take_announcement(ls_tcp *tcp, int rank, const ls_tcp_header *h) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    const bool offer = h->kind == LS_TCP_OFFER;
    if (h->channel >= LS_TRANSPORT_CHANNELS || h->bytes <= LS_TRANSPORT_LEAST_EAGER ||
        (offer ? !peer->near || h->number == 0 : h->number != peer->heard_of + 1)) {
        return fail_header(rank, h);
    }
    peer->heard_of++;
    ls_transfer *receive = ls_arrivals_claim(&tcp->arrivals, rank, (int)h->channel);
    if (receive != NULL) {
        LS_TRY(check_room(receive, rank, (size_t)h->bytes, true));
    }
    if (receive != NULL && !offer) {
        return clear(tcp, rank, receive, (size_t)h->bytes, peer->heard_of);
    }
    ls_early *early = ls_arrivals_keep(&tcp->arrivals, rank, (int)h->channel, (size_t)h->bytes, true);
    if (early == NULL) {
        return ls_fail_memory("the announcement of a message", sizeof *early);
    }
    early->number = peer->heard_of;
    early->address = offer ? h->number : 0;
    if (receive != NULL) {
        begin_reading(tcp, receive, early);
    }
    return LS_OK;
}

static ls_status take_content(ls_tcp *tcp, int rank, const ls_tcp_header *h) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    ls_transfer *receive = peer->awaited;
    while (receive != NULL && receive->number != h->number) {
        receive = receive->next;
    }
    if (receive == NULL || h->channel != 0 || h->bytes == 0 || h->bytes > LS_TCP_PIECE ||
        h->bytes > receive->bytes - receive->moved) {
        return fail_header(rank, h);
    }
    peer->body = (ls_tcp_body){.at = receive->data != NULL ? (unsigned char *)receive->data + receive->moved : NULL,
                               .left = (size_t)h->bytes,
                               .bytes = (size_t)h->bytes,
                               .piece = true,
                               .receive = receive};
    return LS_OK;
}

static ls_status take_header(ls_tcp *tcp, int rank, const ls_tcp_header *h) {
    switch (h->kind) {
    case LS_TCP_MESSAGE:
        return take_message(tcp, rank, h);
    case LS_TCP_ANNOUNCE:
    case LS_TCP_OFFER:
        return take_announcement(tcp, rank, h);
    case LS_TCP_CONTENT:
        return take_content(tcp, rank, h);
    case LS_TCP_CLEAR:
        if (h->channel == 0 && h->bytes == 0 && ls_tcp_cleared(tcp, rank, h->number)) {
            return LS_OK;
        }
        return fail_header(rank, h);
    case LS_TCP_CLAIMED:
        if (h->channel == 0 && h->bytes == 0 && ls_tcp_claimed(tcp, rank, h->number)) {
            return LS_OK;
        }
        return fail_header(rank, h);
    case LS_TCP_TAKEN:
        if (h->channel == 0 && ls_tcp_taken(tcp, rank, h->number, h->bytes)) {
            return LS_OK;
        }
        return fail_header(rank, h);
    default:
        return fail_header(rank, h);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void advance(ls_tcp *tcp, int rank, size_t bytes) {
    ls_tcp_body *body = &tcp->peers[rank].body;
    body->at = body->at != NULL ? body->at + bytes : NULL;
    body->left -= bytes;
    if (body->left == 0) {
        end_body(tcp, rank);
    }
}

/* Handles the frames in the buffer. Keeps an incomplete header. */
static ls_status take_buffer(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    size_t at = 0;
    for (;;) {
        const size_t have = peer->filled - at;
        if (peer->body.left > 0 && have > 0) {
            const size_t take = have < peer->body.left ? have : peer->body.left;
            if (peer->body.at != NULL) {
                memcpy(peer->body.at, peer->buffer + at, take);
            }
            at += take;
            advance(tcp, rank, take);
        } else if (peer->body.left == 0 && have >= sizeof(ls_tcp_header)) {
            ls_tcp_header header;
            memcpy(&header, peer->buffer + at, sizeof header);
            at += sizeof header;
            LS_TRY(take_header(tcp, rank, &header));
        } else {
            memmove(peer->buffer, peer->buffer + at, have);
            peer->filled = have;
            return LS_OK;
        }
    }
}

/* Receives into `parts`, and sets `*got` to the number of bytes. If `*got` is 0, nothing has arrived; then `*empty`
 * is false if the caller should read again now. If the peer has closed the connection, records the exit of the peer. */
static ls_status receive_parts(ls_tcp *tcp, int rank, struct iovec *parts, size_t count, size_t *got, bool *empty) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    const ssize_t step = recvmsg(tcp->peers[rank].incoming, &message, MSG_DONTWAIT);
    *got = step > 0 ? (size_t)step : 0;
    if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        *empty = errno != EINTR;
        return LS_OK;
    }
    tcp->peers[rank].ending_ns = step > 0 ? 0 : tcp->peers[rank].ending_ns;
    *empty = step <= 0;
    return step > 0 ? LS_OK : ls_tcp_lose(tcp, rank);
}

/* Handles the frame of the first record if the record is complete. Sets `*size` to the size of the record, or to 0
 * if it is incomplete. */
static ls_status take_record(ls_tcp *tcp, int rank, const unsigned char *bytes, size_t have, size_t *size) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    *size = 0;
    if (have < LS_WIRE_LENGTH_SIZE) {
        return LS_OK;
    }
    const size_t frame_size = ls_wire_frame_size(bytes);
    const bool is_size = frame_size >= sizeof(ls_tcp_header) && frame_size <= LS_TCP_RECORD - LS_WIRE_OVERHEAD;
    if (is_size && have < frame_size + LS_WIRE_OVERHEAD) {
        return LS_OK;
    }
    if (!is_size || !ls_wire_open(&peer->input_records->wire, bytes, frame_size, peer->buffer)) {
        return ls_fail(LS_ERR_PEER,
                       "a message from rank %d was changed in transit, or repeated: its authentication fails "
                       "(LOCKSTEP_WIRE=%s)",
                       rank, ls_wire_names[tcp->wire]);
    }
    *size = frame_size + LS_WIRE_OVERHEAD;
    peer->filled = frame_size;
    LS_TRY(take_buffer(tcp, rank));
    return peer->filled == 0 && peer->body.left == 0
               ? LS_OK
               : ls_fail(LS_ERR_PEER, "rank %d sent a record that is not one frame", rank);
}

/* Does the same as read_once on a protected connection. */
static ls_status read_records(ls_tcp *tcp, int rank, bool *empty) {
    ls_tcp_records *records = tcp->peers[rank].input_records;
    struct iovec part = {.iov_base = records->bytes + records->filled, .iov_len = LS_TCP_RECORD - records->filled};
    const size_t asked = part.iov_len;
    size_t got = 0, at = 0, size = 0;
    LS_TRY(receive_parts(tcp, rank, &part, 1, &got, empty));
    if (got == 0) {
        return LS_OK;
    }
    *empty = got < asked;
    records->filled += got;
    do {
        LS_TRY(take_record(tcp, rank, records->bytes + at, records->filled - at, &size));
        at += size;
    } while (size > 0);
    records->filled -= at;
    memmove(records->bytes, records->bytes + at, records->filled);
    return LS_OK;
}

/* Reads once from the connection. Sets `*empty` to true if no data is left. */
static ls_status read_once(ls_tcp *tcp, int rank, bool *empty) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    const ls_tcp_body *body = &peer->body;
    /* After a piece that is not the last one, reads only the next header: the data after it can then also be read
     * directly to its destination. */
    const bool more = body->piece && body->at != NULL && body->receive->moved + body->bytes < body->receive->bytes;
    struct iovec parts[] = {
        {.iov_base = body->at, .iov_len = body->at != NULL ? body->left : 0},
        {.iov_base = peer->buffer + peer->filled,
         .iov_len = more ? sizeof(ls_tcp_header) : LS_TCP_BUFFER - peer->filled},
    };
    const size_t placed = parts[0].iov_len;
    const size_t asked = placed + parts[1].iov_len;
    size_t got = 0;
    LS_TRY(receive_parts(tcp, rank, parts, 2, &got, empty));
    if (got == 0) {
        return LS_OK;
    }
    *empty = got < asked;
    peer->filled += got > placed ? got - placed : 0;
    if (placed > 0) {
        advance(tcp, rank, got < placed ? got : placed);
    }
    return take_buffer(tcp, rank);
}

ls_status ls_tcp_read(ls_tcp *tcp, int rank) {
    bool empty = false;
    for (int i = 0; i < READS && !empty; i++) {
        const bool has_records = tcp->peers[rank].input_records != NULL;
        const ls_status status = (has_records ? read_records : read_once)(tcp, rank, &empty);
        if (status != LS_OK) {
            ls_saved_error cause;
            ls_error_save(&cause);
            tcp->endpoint.blamed = status == LS_ERR_PEER ? 1 + rank : 0;
            (void)ls_tcp_lose(tcp, rank); /* the position of the next header is unknown */
            (void)ls_error_put_back(&cause);
            return status;
        }
    }
    return LS_OK;
}

/* ---- endings ----------------------------------------------------------------------------------------------------- */

/* Replaces a withdrawn receive with a placeholder, which discards the rest of its message. */
static void stand_in(ls_tcp *tcp, ls_transfer **link, ls_tcp_peer *peer) {
    ls_transfer *receive = *link;
    ls_transfer *other = ls_allocate(sizeof *other);
    if (other == NULL) { /* without a placeholder, valid content would count as an invalid frame */
        (void)ls_tcp_lose(tcp, receive->peer);
        return;
    }
    *other = *receive;
    other->data = NULL;
    *link = other;
    if (peer->body.receive == receive) {
        peer->body.receive = other;
        peer->body.at = NULL;
    }
}

void ls_tcp_withdraw_receive(ls_tcp *tcp, ls_transfer *receive) {
    ls_arrivals_withdraw(&tcp->arrivals, receive);
    for (int rank = 0; rank < tcp->endpoint.size; rank++) {
        ls_tcp_peer *peer = &tcp->peers[rank];
        if (!peer->body.piece && peer->body.receive == receive) {
            peer->body.receive = NULL;
            peer->body.at = NULL;
        }
        for (ls_transfer **link = &peer->awaited; *link != NULL; link = &(*link)->next) {
            if (*link == receive) {
                stand_in(tcp, link, peer);
                return;
            }
        }
    }
}

/* Returns an incomplete message from the rank, or NULL. The rank sends no more data, so the message stays
 * incomplete. */
static ls_early *find_torn(const ls_tcp *tcp, int rank) {
    ls_early *early = tcp->arrivals.early;
    while (early != NULL && (early->from != rank || early->whole)) {
        early = early->next;
    }
    return early;
}

ls_status ls_tcp_drop_input(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    ls_status status = LS_OK;
    ls_transfer *receive = peer->body.piece ? NULL : peer->body.receive;
    peer->body = (ls_tcp_body){0};
    for (ls_transfer *next; peer->awaited != NULL; peer->awaited = next) {
        next = peer->awaited->next;
        if (peer->awaited->data == NULL) {
            ls_free(peer->awaited);
        }
    }
    ls_free(peer->buffer);
    peer->buffer = NULL;
    peer->filled = 0;
    for (ls_early *early = find_torn(tcp, rank); early != NULL; early = find_torn(tcp, rank)) {
        receive = early->receive != NULL ? early->receive : receive;
        ls_arrivals_drop(&tcp->arrivals, early);
    }
    if (receive != NULL && receive->peer < 0) {
        status = ls_tcp_post(tcp, receive);
    }
    return status;
}
