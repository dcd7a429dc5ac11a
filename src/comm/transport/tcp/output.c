/* The TCP transport: output. */
#include <errno.h>
#include <linux/sockios.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/tcp/link.h"

enum { ONE_FLUSH = 2 << 20 }; /* maximum number of bytes written to one rank before the next rank's turn */

static bool is_writing(const ls_tcp_peer *peer) {
    return peer->frame.header_left + peer->frame.left > 0;
}

/* ---- one frame --------------------------------------------------------------------------------------------------- */

/* Writes as much of the frame as the socket has room for. Returns true if the whole frame has been written. */
static bool write_frame(ls_tcp_peer *peer) {
    ls_tcp_frame *frame = &peer->frame;
    while (is_writing(peer)) {
        struct iovec parts[] = {
            {.iov_base = (char *)&frame->header + sizeof frame->header - frame->header_left,
             .iov_len = frame->header_left},
            {.iov_base = (void *)(uintptr_t)frame->data, .iov_len = frame->left},
        };
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        const ssize_t step = sendmsg(peer->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (step < 0 && errno == EINTR) {
            continue;
        }
        if (step < 0) {
            peer->mute = errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS;
            return false;
        }
        const size_t wrote = (size_t)step;
        const size_t head = wrote < frame->header_left ? wrote : frame->header_left;
        frame->header_left -= head;
        frame->data = frame->left > 0 ? frame->data + (wrote - head) : NULL;
        frame->left -= wrote - head;
    }
    return true;
}

/* Converts the frame to a record if the connection is protected. */
static void protect_frame(ls_tcp_peer *peer) {
    ls_tcp_frame *frame = &peer->frame;
    ls_tcp_records *records = peer->output_records;
    if (records != NULL) {
        frame->left = ls_wire_seal(&records->wire, &frame->header, sizeof frame->header, frame->data, frame->left,
                                   records->bytes);
        frame->data = records->bytes;
        frame->header_left = 0;
        frame->is_record = true;
    }
}

static void end_frame(ls_tcp *tcp, ls_tcp_peer *peer) {
    ls_transfer *send = peer->frame.content;
    if (send != NULL) {
        send->moved += (size_t)peer->frame.header.bytes;
    }
    if (send != NULL && send->moved == send->bytes) {
        peer->cleared = send->next;
        send->ended = true;
        tcp->moved = true;
    }
    ls_free(peer->frame.memory);
    peer->frame = (ls_tcp_frame){0};
}

/* Returns true if the next piece may be passed to the kernel. If epoll does not apply the limit on unsent bytes, it
 * would report room again at once, and refusing the piece would make this rank spin. */
static bool takes_piece(const ls_tcp_peer *peer) {
    int unsent = 0;
    return !peer->limits_unsent || ioctl(peer->socket, SIOCOUTQNSD, &unsent) != 0 || unsent < LS_TCP_UNSENT;
}

/* Prepares the next frame: a queued frame or, if the queue is empty, the next piece. Returns false if there is no
 * frame. */
static bool next_frame(ls_tcp_peer *peer) {
    ls_tcp_item *item = peer->queue;
    ls_transfer *send = item == NULL && peer->cleared != NULL && takes_piece(peer) ? peer->cleared : NULL;
    if (item != NULL) {
        peer->queue = item->next;
        peer->frame = (ls_tcp_frame){.header = item->header,
                                     .header_left = sizeof item->header,
                                     .data = item->data,
                                     .left = item->bytes,
                                     .memory = item};
    } else if (send != NULL) {
        const size_t left = send->bytes - send->moved;
        const size_t most = peer->near ? LS_TCP_PIECE : LS_TCP_FAR_PIECE;
        const size_t bytes = left < most ? left : most;
        peer->frame = (ls_tcp_frame){.header = {.kind = LS_TCP_CONTENT, .bytes = bytes, .number = send->number},
                                     .header_left = sizeof(ls_tcp_header),
                                     .data = (const unsigned char *)send->data + send->moved,
                                     .left = bytes,
                                     .content = send};
    }
    if (item == NULL && send == NULL) {
        return false;
    }
    protect_frame(peer);
    return true;
}

/* Copies the unwritten data of the frame, so that the frame no longer borrows it. */
static ls_status keep_frame(ls_tcp_peer *peer) {
    ls_tcp_frame *frame = &peer->frame;
    if (frame->left == 0 || frame->is_record) {
        return LS_OK;
    }
    frame->memory = ls_allocate(frame->left);
    if (frame->memory == NULL) { /* the frame cannot be completed, so no other frame can follow it */
        const size_t bytes = frame->left;
        peer->mute = true;
        ls_tcp_drop_output(peer);
        return ls_fail_memory("a message", bytes);
    }
    memcpy(frame->memory, frame->data, frame->left);
    frame->data = frame->memory;
    return LS_OK;
}

/* ---- all frames -------------------------------------------------------------------------------------------------- */

static void ask_room(ls_tcp *tcp, int rank, bool asks) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (peer->asks_room != asks) {
        struct epoll_event event = {.events = EPOLLIN | (asks ? EPOLLOUT : 0), .data.u64 = (uint64_t)rank};
        peer->asks_room = epoll_ctl(tcp->epoll, EPOLL_CTL_MOD, peer->socket, &event) == 0 ? asks : !asks;
    }
}

/* Completes eager sends if everything has been written. Otherwise, makes epoll report when the socket has room. */
static void settle(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (peer->mute) {
        ls_tcp_drop_output(peer);
    }
    if (!is_writing(peer) && peer->queue == NULL) {
        for (; peer->unsent != NULL; peer->unsent = peer->unsent->next) {
            peer->unsent->ended = true;
            tcp->moved = true;
        }
    }
    ask_room(tcp, rank, is_writing(peer) || peer->queue != NULL || peer->cleared != NULL);
}

void ls_tcp_flush(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    for (size_t wrote = 0; wrote < ONE_FLUSH && (is_writing(peer) || next_frame(peer));) {
        wrote += peer->frame.header_left + peer->frame.left;
        if (!write_frame(peer)) {
            break;
        }
        end_frame(tcp, peer);
    }
    settle(tcp, rank);
}

static ls_status enqueue(ls_tcp_peer *peer, const ls_tcp_header *header, const void *data, size_t bytes) {
    ls_tcp_item *item = ls_allocate(sizeof *item + bytes);
    if (item == NULL) {
        return ls_fail_memory("a message", sizeof *item + bytes);
    }
    *item = (ls_tcp_item){.header = *header, .bytes = bytes};
    if (bytes > 0) {
        memcpy(item->data, data, bytes);
    }
    if (peer->queue == NULL) {
        peer->queue = item;
    } else {
        peer->queue_end->next = item;
    }
    peer->queue_end = item;
    return LS_OK;
}

ls_status ls_tcp_put(ls_tcp *tcp, int rank, const ls_tcp_header *header, const void *data, size_t bytes) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (peer->stage >= LS_TCP_ENDING || peer->mute) {
        return LS_OK;
    }
    if (peer->stage != LS_TCP_READY || is_writing(peer) || peer->queue != NULL) {
        return enqueue(peer, header, data, bytes);
    }
    peer->frame = (ls_tcp_frame){.header = *header, .header_left = sizeof *header, .data = data, .left = bytes};
    protect_frame(peer);
    const bool whole = write_frame(peer);
    const ls_status status = whole || peer->mute ? LS_OK : keep_frame(peer);
    if (whole) {
        end_frame(tcp, peer);
    }
    settle(tcp, rank);
    return status;
}

void ls_tcp_drop_output(ls_tcp_peer *peer) {
    while (peer->queue != NULL) {
        ls_tcp_item *item = peer->queue;
        peer->queue = item->next;
        ls_free(item);
    }
    ls_free(peer->frame.memory);
    peer->frame = (ls_tcp_frame){0};
    peer->unsent = NULL;
    peer->announced = peer->near ? peer->announced : NULL; /* the peer may have read the message and reported this */
    peer->cleared = NULL;
}

/* ---- large messages ---------------------------------------------------------------------------------------------- */

static void append(ls_transfer **link, ls_transfer *transfer) {
    while (*link != NULL) {
        link = &(*link)->next;
    }
    transfer->next = NULL;
    *link = transfer;
}

void ls_tcp_note_unsent(ls_tcp *tcp, ls_transfer *send) {
    ls_tcp_peer *peer = &tcp->peers[send->peer];
    if (peer->stage >= LS_TCP_ENDING || peer->mute) {
        return;
    }
    send->ended = peer->stage == LS_TCP_READY && !is_writing(peer) && peer->queue == NULL;
    if (!send->ended) {
        append(&peer->unsent, send);
    }
}

ls_status ls_tcp_announce(ls_tcp *tcp, ls_transfer *send) {
    ls_tcp_peer *peer = &tcp->peers[send->peer];
    if (peer->stage >= LS_TCP_ENDING || peer->mute) {
        return LS_OK;
    }
    send->number = ++peer->numbered;
    append(&peer->announced, send);
    ls_tcp_header header = {
        .kind = LS_TCP_ANNOUNCE, .channel = (uint32_t)send->channel, .bytes = send->bytes, .number = send->number};
    if (peer->near) {
        header.kind = LS_TCP_OFFER;
        header.number = (uint64_t)(uintptr_t)send->data;
    }
    return ls_tcp_put(tcp, send->peer, &header, NULL, 0);
}

static ls_transfer **find_announced(ls_tcp_peer *peer, uint64_t number) {
    ls_transfer **link = &peer->announced;
    while (*link != NULL && (*link)->number != number) {
        link = &(*link)->next;
    }
    return link;
}

static bool was_withdrawn(const ls_tcp_peer *peer, uint64_t number) {
    return (number > 0 && number <= peer->numbered && peer->withdrawn > 0) || peer->mute;
}

bool ls_tcp_cleared(ls_tcp *tcp, int rank, uint64_t number) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    ls_transfer **link = find_announced(peer, number);
    ls_transfer *send = *link;
    if (send == NULL) {
        const bool known = was_withdrawn(peer, number);
        peer->withdrawn -= known && peer->withdrawn > 0; /* a message is cleared only once */
        return known;
    }
    *link = send->next;
    if (peer->mute) {
        return true;
    }
    send->moved = 0;
    append(&peer->cleared, send);
    ls_tcp_flush(tcp, rank);
    return true;
}

bool ls_tcp_taken(ls_tcp *tcp, int rank, uint64_t number, uint64_t bytes) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    ls_transfer **link = find_announced(peer, number);
    ls_transfer *send = *link;
    if (send == NULL) {
        return was_withdrawn(peer, number);
    }
    if (!peer->near || bytes <= send->moved || bytes > send->bytes) {
        return false;
    }
    send->moved = (size_t)bytes;
    if (send->moved == send->bytes) {
        *link = send->next;
        send->ended = true;
        tcp->moved = true;
    }
    return true;
}

bool ls_tcp_claimed(ls_tcp *tcp, int rank, uint64_t bytes) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (bytes <= peer->claimed_there || bytes > peer->sent) {
        return false;
    }
    peer->claimed_there = bytes;
    return true;
}

void ls_tcp_take_mark(ls_tcp *tcp) {
    explicit_bzero(tcp->mark, sizeof tcp->mark);
    atomic_thread_fence(memory_order_seq_cst); /* before this rank writes to the offered memory again */
}

void ls_tcp_withdraw_send(ls_tcp *tcp, ls_transfer *send) {
    ls_tcp_peer *peer = &tcp->peers[send->peer];
    if (peer->near) {
        ls_tcp_take_mark(tcp);
    }
    if (peer->frame.content == send) { /* the piece is still completed, so that later frames can be read */
        peer->frame.content = NULL;
        (void)keep_frame(peer);
    }
    for (ls_transfer **link = &peer->unsent; *link != NULL; link = &(*link)->next) {
        if (*link == send) { /* the queue contains a copy of the data */
            *link = send->next;
            return;
        }
    }
    for (ls_transfer **link = &peer->announced; *link != NULL; link = &(*link)->next) {
        if (*link == send) {
            *link = send->next;
            peer->withdrawn++;
            return;
        }
    }
    for (ls_transfer **link = &peer->cleared; *link != NULL; link = &(*link)->next) {
        if (*link == send) {
            *link = send->next;
            return;
        }
    }
}
