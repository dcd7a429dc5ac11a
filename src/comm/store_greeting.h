/*
 * How two processes of a job connect over TCP: hellos and proofs (store_message.h), for both sides. Used by the store's
 * clients and server, and by the launchers of a job that runs on several machines.
 */
#ifndef LS_COMM_STORE_GREETING_H
#define LS_COMM_STORE_GREETING_H

#include "comm/store_message.h"
#include "comm/store_socket.h"

/* Whom to connect to. */
typedef struct ls_greeting_target {
    ls_address address;
    const char *server; /* for messages: name of the server, "rank 0" */
    const char *thing;  /* for messages: name of the service, such as "the store" */
    double limit;       /* for messages: duration of the whole search in seconds; 0 selects the timeout */
    /* Called before each further attempt to connect: returns true if no server is to be expected at this address any
     * more. May be NULL. */
    bool (*is_void)(const void *context);
    /* Called every LS_REPORT_SECONDS while there is no connection, with the reason. NULL selects one warning in the
     * log. */
    void (*report)(const void *context, const char *why);
    const void *context;
} ls_greeting_target;

/*
 * Connects as soon as a server listens at the target, within `timeout` seconds. Both sides prove that they know the
 * key. Fails with LS_ERR_DENIED if one of them does not, with LS_ERR_MISMATCH if the server runs a different build, and
 * with LS_ERR_STATE if the target has become void. Returns ownership of `*connection` to the caller.
 */
ls_status ls_greeting_connect(const ls_greeting_target *target, const ls_key *key, double timeout, int *connection);

/* Returns why a process cannot belong to a job if only one of them has a key, or NULL if both or neither have one.
 * `given`: the process was given a key; `keyed`: the job has one. */
const char *ls_greeting_compare_keys(bool given, bool keyed);

/* On the server: returns why the sender of this hello is refused, or NULL if it is accepted. `nonce` is the server's
 * own nonce. */
const char *ls_greeting_refusal(const ls_key *key, const uint8_t nonce[LS_NONCE_SIZE], const ls_hello *hello);

#endif
