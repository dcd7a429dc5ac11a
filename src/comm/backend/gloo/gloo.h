/*
 * Backend gloo: ranks that meet through a store and talk over TCP, on connections of libgloo. C but for wire.cc, which
 * is Gloo behind a C header. Sums are made by ls_reduce, so every result has the bits of backend shm.
 *
 * gloo.c opens, splits and closes; connect.c connects ranks and lets in only those that prove the key; engine.c moves
 * what is under way and waits; leave.c is how ranks leave and give up; exchange.c is the calls that only move data;
 * allreduce.c is the one that does not; message.c sends and receives.
 *
 * Between two ranks there is one connection, which carries packets. A packet says what it is about and holds what is
 * small; behind one of kind DATA comes an operation with a part of something large, straight into the memory where it
 * belongs. A rank reads no further on a connection than it has a use for: a call that has come too early waits there,
 * with all that follows it. That holds nothing up, for a rank sends a call only when it is done with the one before.
 *
 * Nothing is sent where the system has no room for it, so no write blocks, and a rank always reads while it waits.
 */
#ifndef LS_COMM_BACKEND_GLOO_GLOO_H
#define LS_COMM_BACKEND_GLOO_GLOO_H

#include <poll.h>

#include "comm/agreement.h"
#include "comm/backend/gloo/connect.h"
#include "comm/backend/gloo/wire.h"
#include "comm/match.h"

typedef enum ls_gloo_kind {
    LS_GLOO_CALL = 0, /* what the sender calls, and what is small of its data */
    LS_GLOO_VERDICT,  /* whether counts fit */
    LS_GLOO_MESSAGE,  /* a send, and its data if that is small, or some of it in the next operation */
    LS_GLOO_DATA,     /* the next operation is data */
    LS_GLOO_WAITING,  /* the sender is alive and waits for another rank */
    LS_GLOO_LEFT      /* the sender makes no more calls; its data is the reason */
} ls_gloo_kind;

/* Where operations land. */
typedef enum ls_gloo_slot {
    LS_GLOO_PACKETS = 0,
    LS_GLOO_PIECES,  /* of a call, in the receiver's buffer */
    LS_GLOO_PARTS,   /* for a sum that the receiver makes, in its window */
    LS_GLOO_SUMS,    /* that the sender made, in the receiver's buffer */
    LS_GLOO_CONTENTS /* of a message */
} ls_gloo_slot;

enum {
    LS_GLOO_ROOM = 128 << 10,   /* data of a call up to this size travels in a packet */
    LS_GLOO_CARRIED = 16 << 10, /* and of a message: more costs more to copy twice than to announce (64 KiB: 28 us one
                                   way instead of 34) */
    LS_GLOO_CHUNK = 512 << 10,  /* at most, in one operation */
    LS_GLOO_WINDOW = 1 << 20,   /* of parts, for each rank */
    LS_GLOO_REASON = 384
};

typedef struct ls_gloo_packet {
    uint32_t kind;
    int32_t status; /* LEFT: LS_OK where nothing failed; else the rank that failed first, as far as is known: */
    int32_t culprit;
    uint32_t slot; /* DATA; LEFT: an ls_leave_reason */
    uint64_t at;   /* LEFT because of a failure: the number of the call, or of the next; MESSAGE: bytes of data that the
                      next operation is */
    union {
        ls_call_header call; /* CALL, MESSAGE; of all packets, how many bytes of data there are */
        ls_call_verdict verdict;
    };
    uint64_t bytes; /* of data, here or in the operation that follows */
    unsigned char data[LS_GLOO_ROOM];
} ls_gloo_packet;

#define LS_GLOO_HEADER offsetof(ls_gloo_packet, data)

/* Something to be sent to one rank: a packet, or data, of which each operation is announced by one. */
typedef struct ls_gloo_run {
    struct ls_gloo_run *next;
    size_t *open;           /* of its owner, counts its runs; NULL: nobody waits for it */
    ls_gloo_packet *packet; /* the run's own; NULL: data */
    ls_gloo_slot slot;
    const unsigned char *data;
    size_t bytes;
    size_t ready; /* of these, that exist already */
    size_t sent;
    size_t window; /* 0, or the size of the receiver's aim, in which data goes round */
} ls_gloo_run;

/* What this rank has of another one. */
typedef struct ls_gloo_peer {
    bool closed; /* nothing comes or goes any more */
    ls_leave_reason leaving;
    bool left; /* it said that it makes no more calls: */
    ls_status status;
    int culprit;
    uint64_t last;               /* the number of the call in which that was */
    char reason[LS_GLOO_REASON]; /* of either */

    ls_gloo_packet *packet; /* the latest */
    bool held;              /* which is of use only later */
    size_t coming;          /* bytes of data before the next one: */
    ls_gloo_slot slot;
    bool stalled; /* which have no place yet */

    ls_gloo_packet *call; /* its call */
    bool called;          /* is here */
    ls_call_verdict verdict;
    bool judged;
    unsigned char *window;
    size_t came[LS_GLOO_CONTENTS + 1]; /* bytes of this call, or message, by slot */
    size_t wanted[LS_GLOO_CONTENTS + 1];
    bool lacks[LS_GLOO_CONTENTS + 1]; /* the call waits for those; PACKETS: for a call or verdict */

    ls_match_target target; /* of the message whose content is arriving */
    void *refused;          /* where content goes that nobody wants */

    ls_gloo_run *runs;
    size_t chunk;      /* of operations that this rank sends */
    uint64_t heard_ns; /* by the clock `awake_ns`, when something moved */
    uint64_t alive_ns; /* or it said that it waits */
} ls_gloo_peer;

/* A send or receive that was posted. */
typedef struct ls_gloo_request {
    struct ls_gloo_request *next;
    ls_call call;
    size_t open;               /* a send's runs */
    ls_match_receipt *receipt; /* a receive's */
    uint64_t start_ns;
    uint64_t told_ns;
    uint64_t logged_ns;
} ls_gloo_request;

typedef struct ls_gloo ls_gloo;

/* What comes when the call waits for nothing any more. */
typedef ls_status ls_gloo_stage(ls_gloo *gloo, bool *finished);

struct ls_gloo {
    ls_gloo_wire *wire;
    int rank;
    int size;
    ls_gloo_card *cards; /* of each rank */
    double timeout;
    uint64_t spin_ns; /* to look before sleeping */
    ls_gloo_peer *peers;
    struct pollfd *sockets;
    ls_gloo_packet *outgoing;
    ls_gloo_run *spare;
    bool ended;  /* the others were told that this rank left */
    int culprit; /* then: whose fault it is */

    uint64_t awake_ns;  /* what went by in calls, without the time that this process was stopped */
    uint64_t looked_ns; /* the machine's clock at the last look, 0 where nothing was waited for */
    uint64_t idle_ns;   /* and at the first in vain */

    ls_call call;
    bool calling;
    ls_gloo_stage *stage;
    size_t open; /* what the call waits for: packets, data and runs */
    uint64_t start_ns;
    uint64_t told_ns;   /* when the others were, that this rank waits */
    uint64_t logged_ns; /* how long it had waited when the log was told */

    const void **sources; /* allreduce: of each rank, what is added up */
    const ls_call_header **headers;
    size_t own;     /* allreduce: bytes of this rank's part */
    size_t reduced; /* of these, added up */
    bool adding;

    ls_match match;
    ls_gloo_request *requests;
};

/* ---- engine.c ------------------------------------------------------------------------------------------------------
 */

/* Sends a packet with `bytes` of data, or queues a copy; `*open` (may be NULL) counts it until it is sent. */
ls_status ls_gloo_send_packet(ls_gloo *gloo, int peer, ls_gloo_packet *packet, size_t bytes, size_t *open);

/* Sends a packet and, right behind it, as much of the data as is sent at once, which `packet->at` says. Returns that;
 * 0: there is no room for it now, and nothing was sent. */
size_t ls_gloo_send_ahead(ls_gloo *gloo, int peer, ls_gloo_packet *packet, ls_gloo_slot slot, const void *data,
                          size_t bytes);

/* Sends a packet before all that is queued. False: there is no room for it, or the connection broke. */
bool ls_gloo_send_last(ls_gloo *gloo, int peer, ls_gloo_packet *packet, size_t bytes);

/* Queues data. With `first` it comes before all else as soon as it is ready, and none of it is yet. */
ls_status ls_gloo_send_data(ls_gloo *gloo, int peer, const ls_gloo_run *run, bool first);

/* `ready` bytes of what is queued for slot SUMS exist. */
void ls_gloo_ready(ls_gloo *gloo, size_t ready);

/* Data of `slot` from `peer` goes to `memory`; `bytes` of it are wanted. */
ls_status ls_gloo_aim(ls_gloo *gloo, int peer, ls_gloo_slot slot, void *memory, size_t bytes);

/* Takes in what the rank has sent. */
ls_status ls_gloo_pull(ls_gloo *gloo, int peer, bool *moved);

/* Nothing comes from the rank or goes there any more; `why` is what is said of it where it is needed. */
void ls_gloo_close_peer(ls_gloo *gloo, int peer, const char *why);

/* Looks at all connections once; with `wait` and where there is nothing to do, sleeps for some milliseconds. */
ls_status ls_gloo_look(ls_gloo *gloo, bool wait, bool *moved);

/* Whether anything of the owner of `open` waits to be sent to the rank. */
bool ls_gloo_sends(const ls_gloo *gloo, int peer, const size_t *open);

void ls_gloo_free_runs(ls_gloo *gloo);

/* ---- leave.c -------------------------------------------------------------------------------------------------------
 */

/* Something that waits for ranks. */
typedef struct ls_gloo_wait {
    const ls_call *call;
    bool (*needs)(const ls_gloo *gloo, const struct ls_gloo_wait *wait, int peer);
    const ls_gloo_request *request; /* NULL: the call */
    uint64_t start_ns;
    uint64_t *told_ns;
    uint64_t *logged_ns;
} ls_gloo_wait;

/* Fails where a rank that is needed is gone, has left, or was silent for too long. */
ls_status ls_gloo_check(ls_gloo *gloo, const ls_gloo_wait *wait);

/* Fails where another rank gave up this call, or one before. */
ls_status ls_gloo_check_given_up(ls_gloo *gloo, const ls_gloo_wait *wait);

/* Ends the state for the reason in the error message, which is of `status`; tells the others. Returns the status. */
ls_status ls_gloo_give_up(ls_gloo *gloo, ls_status status, int culprit);

/* Tells the others, once, that this rank makes no more calls. */
void ls_gloo_leave(ls_gloo *gloo, ls_leave_reason why, ls_status status, int culprit, const char *reason);

/* LS_ERR_STATE where the state has ended. */
ls_status ls_gloo_check_open(const ls_gloo *gloo, const ls_call *call);

/* ---- exchange.c ----------------------------------------------------------------------------------------------------
 */

ls_backend_begin ls_gloo_exchange;
ls_status ls_gloo_progress(void *state, bool wait, bool *finished);

/* Begins a call: prepares to compare it. Then each rank is sent it, and the stage comes when all have called. */
ls_status ls_gloo_begin(ls_gloo *gloo, const ls_call *call, ls_gloo_stage *stage);
ls_status ls_gloo_tell(ls_gloo *gloo, int peer, const void *data, size_t count);
ls_status ls_gloo_agree(ls_gloo *gloo);

/* The call waits for what was wanted of `slot` and is not here. */
void ls_gloo_expect(ls_gloo *gloo, int peer, ls_gloo_slot slot);

/* A packet or data of the call has come. */
ls_status ls_gloo_take_call(ls_gloo *gloo, int peer);
void ls_gloo_take_verdict(ls_gloo *gloo, int peer);
void ls_gloo_take_data(ls_gloo *gloo, int peer, ls_gloo_slot slot);

/* ---- allreduce.c ---------------------------------------------------------------------------------------------------
 */

ls_backend_begin ls_gloo_allreduce;

/* Adds up what has come of all ranks. */
ls_status ls_gloo_add(ls_gloo *gloo);

/* ---- message.c -----------------------------------------------------------------------------------------------------
 */

ls_status ls_gloo_post(void *state, const ls_call *call, void **request);
ls_status ls_gloo_test(void *state, void *request, bool wait, bool *finished);

/* A message or some of its content has come. */
ls_status ls_gloo_take_message(ls_gloo *gloo, int peer);
ls_status ls_gloo_take_content(ls_gloo *gloo, int peer);

void ls_gloo_free_messages(ls_gloo *gloo);

#endif
