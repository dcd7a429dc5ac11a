/*
 * Stores from the inside. A store is of one of two kinds, each an ls_store_kind: a TCP server in rank 0's process
 * (store_tcp.c, store_server.c) or a folder (store_directory.c). Besides the public dictionary a store brings the
 * ranks together: ls_store_join and ls_store_leave.
 *
 * Sentences of failures carry no function name here; the public functions put theirs before them (ls_fail_in).
 */
#ifndef LS_COMM_STORE_H
#define LS_COMM_STORE_H

#include <lockstep/comm.h>

#include "comm/store_deadline.h"
#include "comm/store_roster.h"
#include "comm/store_socket.h"

#define LS_DEFAULT_TIMEOUT 300.0

/* Where and how to open a store. */
typedef struct ls_store_place {
    const char *url;
    bool serve;
    double timeout;  /* seconds, positive */
    const char *key; /* NULL: none */
    int listener;    /* tcp, serving: a listening socket to use instead of the URL's port, taken over; -1: none */
} ls_store_place;

typedef struct ls_store_kind {
    const char *scheme; /* "tcp://" */
    ls_status (*check_url)(const char *url);
    ls_store *(*open)(const ls_store_place *place);
    void (*close)(ls_store *store);
    int (*port)(const ls_store *store);
    int (*connection)(const ls_store *store); /* see ls_store_connection; NULL: there is none */
    ls_status (*set)(ls_store *store, ls_bytes key, ls_bytes value);
    /* Waits until the key exists; with `value` not NULL copies it there as ls_store_get says. */
    ls_status (*get)(ls_store *store, ls_bytes key, void *value, size_t capacity, size_t *size, double timeout);
    ls_status (*add)(ls_store *store, ls_bytes key, int64_t amount, int64_t *result);
    ls_status (*compare_set)(ls_store *store, ls_bytes key, ls_bytes expected, ls_bytes desired, bool *swapped);
    ls_status (*join)(ls_store *store, int rank, int size, const ls_card *card, ls_card *cards);
    ls_status (*leave)(ls_store *store);
    ls_status (*check)(ls_store *store);
} ls_store_kind;

/* Each kind's own struct begins with this. */
struct ls_store {
    const ls_store_kind *kind;
    double timeout;
    ls_key key; /* the job's */
};

extern const ls_store_kind ls_store_tcp;
extern const ls_store_kind ls_store_directory;

/* As ls_store_open, without the function's name in the message. */
ls_store *ls_store_open_at(const ls_store_place *place);

/*
 * Says that this process is `rank` of `size`, waits until every rank did, and copies their cards to `cards` (room for
 * `size`). LS_ERR_TIMEOUT names the ranks that did not come; LS_ERR_PEER one that died meanwhile; LS_ERR_ARGUMENT a
 * rank that came twice and LS_ERR_MISMATCH different world sizes. From then on a rank that ends without
 * ls_store_leave makes every wait of the others fail with LS_ERR_PEER.
 */
ls_status ls_store_join(ls_store *store, int rank, int size, const ls_card *card, ls_card *cards);

/* Waits until every rank left or died; LS_ERR_PEER names those that died. */
ls_status ls_store_leave(ls_store *store);

/* LS_ERR_PEER where a rank that joined is known to have died, or who serves is gone. Waits for nothing else. */
ls_status ls_store_check(ls_store *store);

/*
 * The key of a connection of two who both hold the store's key and have both read `first` and `second` in it: bound to
 * those and to `purpose`.
 */
void ls_store_derive_key(const ls_store *store, const char *purpose, const uint8_t first[LS_NONCE_SIZE],
                         const uint8_t second[LS_NONCE_SIZE], ls_key *key);

/* Puts "`call`: " before this thread's last message; returns its status. */
ls_status ls_fail_in(const char *call);

/* LS_ERR_ARGUMENT when the URL is of no kind there is, or is malformed. Opens nothing. */
ls_status ls_store_check_url(const char *url);

/* Reads "tcp://HOST:PORT"; IPv6 hosts in brackets. LS_ERR_ARGUMENT with the reason. */
ls_status ls_address_parse(const char *url, ls_address *address);

/* The socket that leads to rank 0, on rank 0 the one that listens, lent, to ask about; -1 where there is none. */
int ls_store_connection(const ls_store *store);

/* A pause between two looks at something that nobody announces: short at first, longer once `since` is long ago. */
void ls_store_nap(ls_deadline since, ls_deadline deadline);

#endif
