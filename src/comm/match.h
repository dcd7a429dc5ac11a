/*
 * Which message goes to which receive: for backends that carry messages themselves. A rank's receives wait here until
 * their message comes, messages that nobody waits for yet are kept here until somebody does, each in order for every
 * pair of sender and tag. Knows nothing of how messages travel.
 */
#ifndef LS_COMM_MATCH_H
#define LS_COMM_MATCH_H

#include "comm/backend.h"

/* What is known of a message before its content. */
typedef struct ls_match_header {
    int from;
    int tag;
    ls_dtype dtype;
    size_t count;
    size_t bytes;
    bool held;        /* its content comes later: ls_match_place */
    bool remote;      /* the content still lies with the sender, see `fetch` */
    uint64_t address; /* remote: what the sender said of it */
    uint64_t ticket;
} ls_match_header;

typedef struct ls_match_receipt ls_match_receipt;
typedef struct ls_match_message ls_match_message;

/* A receive under way. */
struct ls_match_receipt {
    ls_match_receipt *next;
    ls_call call;
    bool claimed; /* its message is here or arriving */
    bool arrived;
    bool refused; /* the message was another than was wanted */
    ls_match_header header;
};

/* A message that came before its receive; the content follows. */
struct ls_match_message {
    _Alignas(16) ls_match_message *next;
    ls_match_header header;
    ls_match_receipt *receipt; /* who wants it, once it is complete */
    bool complete;
    unsigned char *content; /* NULL: there is none here */
};

/* Brings the content of a remote message to the buffer of `call`, which receives it, or lets the sender know that it is
 * refused. */
typedef ls_status ls_match_fetch(void *context, const ls_match_header *header, const ls_call *call, bool refused);

typedef struct ls_match {
    ls_match_receipt *receipts;
    ls_match_receipt *spare;
    ls_match_message *messages;
    size_t kept;           /* bytes of their content, of those that were held */
    ls_match_fetch *fetch; /* needed only where messages are remote */
    void *context;
} ls_match;

/* Where an arriving message goes. */
typedef struct ls_match_target {
    unsigned char *into; /* NULL: the content is not wanted */
    ls_match_receipt *receipt;
    ls_match_message *message;
} ls_match_target;

/* A message comes. LS_ERR_PEER, naming the sender, where its header is none (agreement.h). Remote ones are fetched at
 * once where a receive waits for them; then there is nothing more to do. */
ls_status ls_match_offer(ls_match *match, const ls_match_header *header, ls_match_target *target);

/* Whether a receive has taken the message that was offered. */
bool ls_match_wants(const ls_match_target *target);

/* The content of a message that was held begins to arrive: where it goes now, to its receive or to memory of its own.
 */
ls_status ls_match_place(ls_match *match, ls_match_target *target);

/* Whether a receive waits for just such a message, and would be the next to take it. */
bool ls_match_awaits(const ls_match *match, const ls_match_header *header);

/* The message does not come after all, nor has any of it; its receive waits again. */
void ls_match_retract(ls_match_target *target);

/* Its content is complete. */
void ls_match_complete(ls_match *match, ls_match_target *target);

/* Begins a receive; `*receipt` is NULL when it has finished already. */
ls_status ls_match_receive(ls_match *match, const ls_call *call, ls_match_receipt **receipt);

static inline bool ls_match_arrived(const ls_match_receipt *receipt) {
    return receipt->arrived;
}

/* Gives back a receipt that arrived; LS_ERR_MISMATCH when the message was another than was wanted. */
ls_status ls_match_end(ls_match *match, ls_match_receipt *receipt);

/* Gives back a receipt whose message has not begun to arrive. */
void ls_match_cancel(ls_match *match, ls_match_receipt *receipt);

/* A message of `rank` to itself. */
ls_status ls_match_send_self(ls_match *match, int rank, const ls_call *call);

/* Writes what is said of messages from `from` that wait for other receives than of `tag`: "; messages with tags 4, 7
 * from it wait here, none with tag 5", or nothing. Returns `text`. */
const char *ls_match_describe_waiting(const ls_match *match, int from, int tag, char *text, size_t capacity);

/* What is said where the receive `call` gets nothing: LS_ERR_TIMEOUT after so many seconds. */
ls_status ls_match_fail_silent(const ls_match *match, const ls_call *call, double seconds);

/* Ends all that is left. */
void ls_match_free(ls_match *match);

#endif
