/*
 * Messages between two ranks of shm. Every ordered pair of ranks has a pipe: a ring of packets in shared memory that
 * one rank writes and the other reads. A message that fits into one packet is sent at once, and a larger message as a
 * stream of packets. If reads from the sender's memory are allowed (ls_shm's peer_reads), some messages are only
 * announced, and then read from there: messages larger than LS_SHM_STREAM_MOST, and messages whose sender leaves the
 * call before the pipe has room for the whole message.
 *
 * A rank in any call on the communicator accepts incoming packets, and keeps messages that no receive waits for yet
 * (comm/match.h). So a full pipe drains as soon as its reader makes any call.
 *
 * The reader of an announced message confirms outside the pipes, at a position named by the sender. A confirmation must
 * not wait for room, because its rank may make no call on this communicator for a long time.
 */
#ifndef LS_COMM_BACKEND_SHM_POINT_H
#define LS_COMM_BACKEND_SHM_POINT_H

#include <stdatomic.h>

#include "base/wait.h"
#include "comm/backend/shm/sizes.h"
#include "comm/match.h"

typedef struct ls_shm ls_shm;

typedef enum ls_shm_packet_kind {
    LS_SHM_FIRST = 1, /* begins a message, and contains all of it if it fits */
    LS_SHM_MORE,      /* continues the previous packet */
    LS_SHM_REMOTE     /* announces a message that the receiver reads at `address` */
} ls_shm_packet_kind;

/* Values at the position where the sender of an announced message awaits the answer. */
enum { LS_SHM_NO_ANSWER = 0, LS_SHM_TAKEN, LS_SHM_REFUSED };

/* A packet, which may be followed by more payload. */
typedef struct ls_shm_packet {
    _Alignas(128) _Atomic uint64_t turn; /* whether the writer or the reader may use the packet: see point.c */
    uint32_t kind;
    int32_t tag;
    uint32_t dtype;
    uint32_t bytes; /* of payload */
    uint64_t count;
    uint64_t total; /* bytes of the message */
    unsigned char payload[LS_SHM_PACKET_PAYLOAD];
} ls_shm_packet;

/* The payload of a packet that announces a message. */
typedef struct ls_shm_notice {
    uint64_t address;
    uint64_t ticket; /* index of the answer among the sender's `answers` */
} ls_shm_notice;

/* A send that has not finished. */
typedef struct ls_shm_sending {
    struct ls_shm_sending *next;
    ls_call call;
    ls_shm_packet_kind kind; /* kind of the next packet */
    unsigned ticket;         /* ticket of an announced message */
    size_t sent;             /* bytes */
    bool queued;             /* in the lane: part of the message, or its announcement, is not yet in the pipe */
} ls_shm_sending;

/* A user's send or receive that has not finished. */
typedef struct ls_shm_request {
    struct ls_shm_request *next;
    bool sends;
    ls_awake waited;   /* for its end */
    uint64_t told_ns;  /* time waited at the latest notice in the log, in nanoseconds */
    unsigned yields;   /* yields per poll, chosen at the first poll: see ls_shm_yields */
    bool yielded_long; /* counted */
    ls_shm_sending *sending;
    ls_match_receipt *receipt;
} ls_shm_request;

/* This rank's state of the two pipes between it and one other rank. */
typedef struct ls_shm_lane {
    uint64_t sent; /* packets */
    uint64_t got;
    ls_shm_sending *first; /* first send that waits for room in the pipe */
    ls_shm_sending *last;
    ls_match_target target; /* target of the message that is arriving */
    size_t total;           /* size of the message in bytes */
    size_t arrived;         /* number of bytes that have arrived */
} ls_shm_lane;

typedef struct ls_shm_point {
    unsigned char *pipes; /* in shared memory */
    size_t depth;         /* packets of a pipe */
    size_t stride;        /* bytes from one packet to the next */
    ls_shm_lane *lanes;   /* one per rank */
    uint64_t tickets;     /* bit mask of the answer positions in use */
    ls_shm_sending *spare;
    ls_match match;
    ls_shm_request *requests;
    ls_shm_request *spare_requests;
    uint64_t check_ns; /* time of the next check whether the other ranks are alive */
} ls_shm_point;

ls_status ls_shm_point_open(ls_shm *shm);
void ls_shm_point_close(ls_shm *shm);

/* Receives what has arrived and sends what there is room for. Sets `*moved` to true if there was anything. */
ls_status ls_shm_point_poll(ls_shm *shm, bool *moved);

/* Receives everything that rank `from` has sent. */
ls_status ls_shm_point_drain(ls_shm *shm, int from, bool *moved);

/* Publishes whether this rank still has queued sends in ls_finalize. Other ranks wait for queued sends. */
void ls_shm_point_send_on(ls_shm *shm);

/* Implement functions of ls_backend. */
bool ls_shm_point_advance_sends(void *state);
void ls_shm_point_withdraw_sends(void *state);

bool ls_shm_point_has_finished(const ls_shm *shm, const ls_shm_request *asked);

ls_status ls_shm_post_message(void *state, const ls_call *call, void **request);
ls_status ls_shm_test_message(void *state, void *request, bool wait, bool *finished);

/* ---- point_look.c ------------------------------------------------------------------------------------------------ */

/* Fails if there is a reason to end `call`: the communicator was revoked, a rank died, the partner has left, or
 * `asked` has waited longer than the timeout. `asked` is NULL if there is no request yet. */
ls_status ls_shm_point_look(ls_shm *shm, const ls_call *call, ls_shm_request *asked);

/* Publishes which message this rank waits for without success. A NULL call means that it waits for none. */
void ls_shm_point_note_awaited(ls_shm *shm, const ls_call *call);

#endif
