/*
 * Messages between two ranks of shm. Every ordered pair has a pipe: a ring of packets in shared memory that one rank
 * writes and the other reads. A message that fits one packet goes at once, a larger one as a stream of
 * packets; a message above LS_SHM_STREAM_MOST, or of a sender that leaves the call before the pipe has room for all of
 * it, is announced and then read from the sender's memory, if that is allowed (ls_shm's peer_reads). A rank in any call
 * on the communicator takes packets in and keeps the messages nobody waits for yet (comm/match.h), so a full pipe
 * empties as soon as its reader calls anything.
 *
 * The reader of an announced message confirms outside the pipes, at a position that the sender has named: a
 * confirmation must not wait for room, because its rank may not call anything on this communicator for a long time.
 */
#ifndef LS_COMM_BACKEND_SHM_POINT_H
#define LS_COMM_BACKEND_SHM_POINT_H

#include <stdatomic.h>

#include "base/wait.h"
#include "comm/backend/shm/sizes.h"
#include "comm/match.h"

typedef struct ls_shm ls_shm;

typedef enum ls_shm_packet_kind {
    LS_SHM_FIRST = 1, /* begins a message, all of it where it fits */
    LS_SHM_MORE,      /* continues the previous packet */
    LS_SHM_REMOTE     /* announces a message to be read at `address` */
} ls_shm_packet_kind;

/* What the sender of an announced message finds in the place for the answer. */
enum { LS_SHM_NO_ANSWER = 0, LS_SHM_TAKEN, LS_SHM_REFUSED };

/* One packet; room for more payload may follow it. */
typedef struct ls_shm_packet {
    _Alignas(128) _Atomic uint64_t turn; /* says whose it is: see point.c */
    uint32_t kind;
    int32_t tag;
    uint32_t dtype;
    uint32_t bytes; /* of payload */
    uint64_t count;
    uint64_t total; /* bytes of the message */
    unsigned char payload[LS_SHM_PACKET_PAYLOAD];
} ls_shm_packet;

/* What travels instead of the content of a remote message. */
typedef struct ls_shm_notice {
    uint64_t address;
    uint64_t ticket; /* the place for the answer, among the sender's */
} ls_shm_notice;

/* A send that is not finished. */
typedef struct ls_shm_sending {
    struct ls_shm_sending *next;
    ls_call call;
    ls_shm_packet_kind kind; /* of its next packet */
    unsigned ticket;         /* of an announced one */
    size_t sent;             /* bytes */
    bool queued;             /* in its lane: not all of it, or of the announcement, is in the pipe */
} ls_shm_sending;

/* A send or a receive of the user that has not finished. */
typedef struct ls_shm_request {
    struct ls_shm_request *next;
    bool sends;
    ls_awake waited;   /* for its end */
    uint64_t told_ns;  /* nanoseconds waited at the latest notice in the log */
    unsigned yields;   /* in each look, see ls_shm_yields: chosen in the first */
    bool yielded_long; /* counted */
    ls_shm_sending *sending;
    ls_match_receipt *receipt;
} ls_shm_request;

/* This rank's side of the two pipes that join it with another. */
typedef struct ls_shm_lane {
    uint64_t sent; /* packets */
    uint64_t got;
    ls_shm_sending *first; /* waiting for room in the pipe */
    ls_shm_sending *last;
    ls_match_target target; /* of the message that is arriving */
    size_t total;           /* its bytes */
    size_t arrived;         /* the messages that have arrived */
} ls_shm_lane;

typedef struct ls_shm_point {
    unsigned char *pipes; /* in shared memory */
    size_t depth;         /* packets of a pipe */
    size_t stride;        /* bytes from one packet to the next */
    ls_shm_lane *lanes;   /* one per rank */
    uint64_t tickets;     /* those in use, a bit each */
    ls_shm_sending *spare;
    ls_match match;
    ls_shm_request *requests;
    ls_shm_request *spare_requests;
    uint64_t check_ns; /* when to look next whether the others live */
} ls_shm_point;

ls_status ls_shm_point_open(ls_shm *shm);
void ls_shm_point_close(ls_shm *shm);

/* Takes in what has arrived and sends what there is room for; `*moved` says whether there was anything. */
ls_status ls_shm_point_poll(ls_shm *shm, bool *moved);

/* Takes in all that rank `from` has sent. */
ls_status ls_shm_point_drain(ls_shm *shm, int from, bool *moved);

bool ls_shm_point_has_finished(const ls_shm *shm, const ls_shm_request *asked);

ls_status ls_shm_post_message(void *state, const ls_call *call, void **request);
ls_status ls_shm_test_message(void *state, void *request, bool wait, bool *finished);

/* ---- point_look.c --------------------------------------------------------------------------------------------------
 */

/* Fails if there is a reason to end `call`: the communicator was revoked, a rank died, the partner has left, or `asked`
 * (NULL: there is no request yet) has waited longer than the timeout. */
ls_status ls_shm_point_look(ls_shm *shm, const ls_call *call, ls_shm_request *asked);

/* Tells other ranks for which message this rank waits without success. Without a call: for none. */
void ls_shm_point_note_awaited(ls_shm *shm, const ls_call *call);

#endif
