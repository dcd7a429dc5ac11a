/*
 * Matches messages to receives, for backends that move message data themselves. A rank's receives wait here for their
 * messages, and messages that have no receive yet are kept here. Both keep their order for each pair of sender and tag.
 * Does not send or receive anything itself.
 *
 * A receive from any rank (LS_ANY_RANK) becomes a receive from a message's sender when it claims that message. If
 * messages from several senders are kept, it takes a message from the next sender after the latest such sender, in
 * cyclic order, so that no sender waits forever.
 */
#ifndef LS_COMM_MATCH_H
#define LS_COMM_MATCH_H

#include "comm/backend.h"

/* The header of a message, which arrives before its content. */
typedef struct ls_match_header {
    int from;
    int tag;
    ls_dtype dtype;
    size_t count;
    size_t bytes;
    bool held;        /* the content arrives later, see ls_match_place */
    bool remote;      /* the content is still at the sender, see ls_match_fetch */
    uint64_t address; /* remote: the sender's values for ls_match_fetch */
    uint64_t ticket;
} ls_match_header;

typedef struct ls_match_receipt ls_match_receipt;
typedef struct ls_match_message ls_match_message;

/* A receive in progress. */
struct ls_match_receipt {
    ls_match_receipt *next;
    ls_call call; /* `root` becomes the sender when the receive claims a message */
    bool claimed; /* the message for this receive has arrived or is arriving */
    bool arrived;
    bool refused; /* the message's count or dtype differs from the receive's */
    ls_match_header header;
};

/* A message that arrived before its receive. Its content follows this struct, unless the message is held or remote. */
struct ls_match_message {
    _Alignas(16) ls_match_message *next;
    ls_match_header header;
    ls_match_receipt *receipt; /* the receive that gets the message when it is complete; NULL if there is none yet */
    bool complete;
    int latest_sender;      /* for receives from any rank: sender of the latest message with this tag; initially, of the
                               latest message with any tag */
    unsigned char *content; /* NULL if this rank has no memory for the content */
};

/* Copies the content of a remote message from the sender to the buffer of the receive `call`. If `refused` is true,
 * only notifies the sender that the message is refused. */
typedef ls_status ls_match_fetch(void *context, const ls_match_header *header, const ls_call *call, bool refused);

typedef struct ls_match {
    ls_match_receipt *receipts;
    ls_match_receipt *spare;
    ls_match_message *messages;
    int latest_sender; /* sender of the latest message to a receive from any rank */
    size_t kept;       /* total content, in bytes, of the held messages in `messages` for which memory is allocated */
    ls_match_fetch *fetch; /* required only if there are remote messages */
    void *context;
} ls_match;

/* The destination of an arriving message. */
typedef struct ls_match_target {
    unsigned char *into; /* NULL if the content is discarded, or held and ls_match_place has not run */
    ls_match_receipt *receipt;
    ls_match_message *message;
} ls_match_target;

/*
 * Finds the destination of a message whose header has arrived. Fails with LS_ERR_PEER, naming the sender, if the header
 * is invalid (agreement.h). If a receive waits for a remote message, fetches the message at once; the caller then need
 * not process it further.
 */
ls_status ls_match_offer(ls_match *match, const ls_match_header *header, ls_match_target *target);

/* Returns true if a receive has claimed the message of this target. */
bool ls_match_wants(const ls_match_target *target);

/* Finds the destination of a held message whose content is about to arrive: the buffer of its receive, or newly
 * allocated memory. */
ls_status ls_match_place(ls_match *match, ls_match_target *target);

/* Records that the content of a message is complete. */
void ls_match_complete(ls_match *match, ls_match_target *target);

/* Begins a receive. Sets `*receipt` to NULL if the receive has already finished. */
ls_status ls_match_receive(ls_match *match, const ls_call *call, ls_match_receipt **receipt);

static inline bool ls_match_arrived(const ls_match_receipt *receipt) {
    return receipt->arrived;
}

/* Frees a receipt whose message has arrived. Fails with LS_ERR_MISMATCH if the message's count or dtype differs from
 * the receive's. */
ls_status ls_match_end(ls_match *match, ls_match_receipt *receipt);

/* Frees a receipt whose message has not begun to arrive. */
void ls_match_cancel(ls_match *match, ls_match_receipt *receipt);

/* Sends a message from `rank` to itself. */
ls_status ls_match_send_self(ls_match *match, int rank, const ls_call *call);

/*
 * For an error message about a receive with `tag`: writes the tags of messages from rank `from`, which may be
 * LS_ANY_RANK, that no receive has claimed: "; messages with tags 4, 7 from it wait here, none with tag 5". Writes an
 * empty string if there are no such messages. Returns `text`.
 */
const char *ls_match_describe_waiting(const ls_match *match, int from, int tag, char *text, size_t capacity);

/* Sets the error LS_ERR_TIMEOUT for the receive `call`, for which no message arrived within `seconds`. Returns
 * LS_ERR_TIMEOUT. */
ls_status ls_match_fail_silent(const ls_match *match, const ls_call *call, double seconds);

/* Frees all messages and receipts. */
void ls_match_free(ls_match *match);

#endif
