/*
 * How two processes of one job come to talk over TCP: hellos and proofs (store_message.h), from either side. The
 * store's clients and server use it, and so do the launchers of a job that runs on several machines.
 */
#ifndef LS_COMM_STORE_GREETING_H
#define LS_COMM_STORE_GREETING_H

#include "comm/store_message.h"
#include "comm/store_socket.h"

/* Whom to connect to. */
typedef struct ls_greeting_target {
    ls_address address;
    const char *server; /* for sentences: who serves, "rank 0" */
    const char *thing;  /* and what: "the store" */
    double limit;       /* for sentences: the seconds of the whole search; 0: the timeout */
    /* Whether nobody is to be expected there any more, asked before each further attempt to connect; NULL: never. */
    bool (*is_void)(const void *context);
    const void *context;
} ls_greeting_target;

/*
 * Connects as soon as a server listens there, within `timeout` seconds. Both sides prove that they know the key. Fails
 * with LS_ERR_DENIED if one does not, with LS_ERR_MISMATCH if the server runs another build, and with LS_ERR_STATE if
 * the target has become void. Returns ownership of `*connection` to the caller.
 */
ls_status ls_greeting_connect(const ls_greeting_target *target, const ls_key *key, double timeout, int *connection);

/* Why a process that was given a key, or none, cannot be of a job that has one, or none; NULL: it can. */
const char *ls_greeting_compare_keys(bool given, bool keyed);

/* For who serves: why whoever said this hello is not let in; NULL: it is. `nonce` is the own one. */
const char *ls_greeting_refusal(const ls_key *key, const uint8_t nonce[LS_NONCE_SIZE], const ls_hello *hello);

#endif
