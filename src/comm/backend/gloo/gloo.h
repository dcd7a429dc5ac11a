/*
 * Backend gloo: libgloo's collectives, for those who ask for them. C but for wire.cc, which is Gloo behind a C header.
 *
 * gloo.c opens and closes; calls.c makes the ranks agree on a call and has Gloo carry it out; messages.c is what ranks
 * tell each other, sends and receives among it; waiting.c is how a rank learns that it waits in vain.
 *
 * Threads: one carries out calls, in which Gloo blocks, and one for each other rank takes in what that rank says, so
 * that it is heard whatever this rank does, and a connection that breaks is noticed with the rank's number. The
 * caller's own thread only waits: on `changed`, under `lock`, which protects all but the fields that say otherwise.
 * Nobody waits for Gloo with the lock.
 */
#ifndef LS_COMM_BACKEND_GLOO_GLOO_H
#define LS_COMM_BACKEND_GLOO_GLOO_H

#include <pthread.h>

#include "comm/agreement.h"
#include "comm/auth.h"
#include "comm/backend/gloo/wire.h"
#include "comm/match.h"

typedef enum ls_gloo_kind {
    LS_GLOO_PROOF = 0, /* that the sender holds the job's key: its data; the first of all */
    LS_GLOO_CALL,      /* what the sender calls */
    LS_GLOO_VERDICT,   /* whether counts fit */
    LS_GLOO_MESSAGE,   /* a send, and its data if that is small; else that comes under the packet's number */
    LS_GLOO_TAKEN,     /* that data has come */
    LS_GLOO_WAITING,   /* the sender is alive and waits */
    LS_GLOO_LEFT,      /* the sender makes no more calls; its data is the reason */
    LS_GLOO_HEARD      /* that the receiver left */
} ls_gloo_kind;

enum { LS_GLOO_CARRIED = 4 << 10, LS_GLOO_REASON = 384 };

typedef struct ls_gloo_packet {
    uint32_t kind;
    int32_t status; /* LEFT: LS_OK where nothing failed; else the rank that failed first, as far as is known: */
    int32_t culprit;
    uint32_t leaving; /* LEFT: an ls_leave_reason */
    uint64_t number;  /* MESSAGE, TAKEN: of large data; else 0 */
    uint64_t bytes;   /* of data, here */
    union {
        ls_call_header call; /* CALL, MESSAGE */
        ls_call_verdict verdict;
    };
} ls_gloo_packet;

typedef struct ls_gloo ls_gloo;

/* What this rank knows of another one. */
typedef struct ls_gloo_peer {
    ls_gloo *gloo;
    int rank;
    pthread_t thread; /* takes in what it says */
    bool has_thread;
    uint8_t secret[LS_NONCE_SIZE]; /* of its own, which it told the store */
    bool proven;
    bool denied;        /* it proved nothing */
    bool closed;        /* nothing comes any more, */
    uint64_t closed_ns; /* since then, by the clock `awake_ns` */
    bool left;          /* it said that it makes no more calls: */
    ls_leave_reason leaving;
    ls_status status;
    int culprit;
    char reason[LS_GLOO_REASON]; /* of either */
    bool heard;                  /* that this rank left */
    uint64_t alive_ns;           /* by the clock `awake_ns`, when it last said anything */
    uint64_t calls;              /* that it made: the latest two, since it may be one ahead */
    ls_call_header call[2];
    uint64_t verdicts;
    ls_call_verdict verdict[2];
} ls_gloo_peer;

/* Something that waits for ranks. */
typedef struct ls_gloo_wait {
    uint64_t start_ns;
    uint64_t told_ns;   /* when the others were, that this rank waits */
    uint64_t logged_ns; /* how long it had waited when the log was told */
} ls_gloo_wait;

/* A send or receive that was posted. */
typedef struct ls_gloo_request {
    struct ls_gloo_request *next;
    ls_call call;
    ls_match_receipt *receipt; /* a receive's */
    ls_gloo_loan *loan;        /* a send's, */
    uint64_t number;           /* which has this one */
    bool taken;
    ls_gloo_wait wait;
} ls_gloo_request;

/* What the call waits for. */
typedef enum ls_gloo_stage { LS_GLOO_CALLS = 0, LS_GLOO_VERDICTS, LS_GLOO_DATA } ls_gloo_stage;

struct ls_gloo {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ls_gloo_wire *wire;
    ls_key key; /* of the proofs: of the job and this communicator */
    int rank;
    int size;
    double timeout;
    ls_gloo_peer *peers;
    bool ended;   /* this rank makes no more calls, which the others were told */
    bool closing; /* the threads are to end */

    ls_call call;
    uint64_t calls; /* that were begun, and how many of them compared counts */
    uint64_t verdicts;
    pthread_t thread; /* carries it out, */
    bool has_thread;
    bool calling; /* which has not ended yet */
    bool broken;  /* Gloo failed, see `message` */
    ls_gloo_stage stage;
    ls_status status; /* of the call that ended */
    char message[LS_ERROR_CAPACITY];
    const ls_call_header **headers; /* of each rank */
    ls_gloo_part *parts;            /* to each and from each */
    ls_gloo_wait wait;

    ls_match match;
    ls_gloo_request *requests;
    uint64_t sends;
    int receiving; /* threads that have a message's data written where it belongs */

    uint64_t awake_ns;  /* what went by in calls, without the time that this process was stopped */
    uint64_t looked_ns; /* the machine's clock at the last look, 0 where nothing was waited for */
};

/* ---- calls.c ----------------------------------------------------------------------------------------------------- */

ls_backend_begin ls_gloo_begin;
ls_status ls_gloo_progress(void *state, bool wait, bool *finished);

/* The thread that carries out calls. */
void *ls_gloo_carry_out(void *state);

/* Whether the stage waits for what the peer has to say. */
bool ls_gloo_lacks(const ls_gloo *gloo, int peer);

/* ---- messages.c -------------------------------------------------------------------------------------------------- */

/* Sends the packet and `packet->bytes` of data to all others, or to one. */
void ls_gloo_tell_all(ls_gloo *gloo, const ls_gloo_packet *packet, const void *data);
void ls_gloo_tell(ls_gloo *gloo, int peer, const ls_gloo_packet *packet, const void *data);

/* The thread that takes in what a peer says. */
void *ls_gloo_listen(void *peer);

ls_status ls_gloo_post(void *state, const ls_call *call, void **request);
ls_status ls_gloo_test(void *state, void *request, bool wait, bool *finished);
void ls_gloo_free_messages(ls_gloo *gloo);

/* ---- waiting.c: with the lock ------------------------------------------------------------------------------------ */

/* Waits for a change, a moment. */
void ls_gloo_sleep(ls_gloo *gloo);

/* What waits begins to. */
void ls_gloo_start_waiting(ls_gloo *gloo, ls_gloo_wait *wait);

/* Fails where the call, or `request`, waits in vain or for too long; with `sleeps` waits a moment for a change. */
ls_status ls_gloo_look(ls_gloo *gloo, ls_gloo_request *request, bool sleeps);

/* Tells the others, once, that this rank makes no more calls; waits a moment for them to hear it. */
void ls_gloo_leave(ls_gloo *gloo, ls_leave_reason why, ls_status status, int culprit, const char *reason);

/* Ends the state for the reason in the error message, which is of `status`: after this Gloo touches no buffer of a call
 * or request. Returns the status. */
ls_status ls_gloo_give_up(ls_gloo *gloo, ls_status status, int culprit);

#endif
