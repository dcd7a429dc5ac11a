/*
 * Server side of connection setup: accepting connections and the greeting (store_message.h). Used by the store's server
 * and by the launcher on machine 0.
 *
 * The number of connections without a valid proof is limited. A machine that opens many connections cannot lock out
 * other machines: at the limit, the server closes the oldest connection from the address with the most connections. If
 * the new connection is from the same address, the oldest connection is first allowed a minimum time for its proof
 * (least_seconds). Until then, the server closes the new connection, and its client tries again.
 */
#ifndef LS_COMM_STORE_ADMISSION_H
#define LS_COMM_STORE_ADMISSION_H

#include "base/log.h"
#include "comm/store_connection.h"

enum { LS_UNPROVEN_MOST = 512, LS_ACCEPT_AT_ONCE = 64 };

typedef struct ls_admission {
    const ls_key *key; /* borrowed */
    const char *who;   /* the kind of client, for messages: "process" */
    int most; /* maximum number of connections without a valid proof: at most half of the process's descriptor limit */
    int refused;       /* number of connections refused so far because of their key */
    ls_log_limit told; /* rate limit of the log lines about refused connections */
} ls_admission;

/* Borrows `key` and `who`. */
void ls_admission_open(ls_admission *self, const ls_key *key, const char *who);

/*
 * Accepts one connection that waits at the listener, and sends it the hello. `all` are the existing connections. To
 * make room, closes at most one of them that is not `greeted` (its fd becomes -1). Returns 0, or an errno value if no
 * connection was accepted: EAGAIN if none is waiting. Returns ownership of `*connection` to the caller, who frees it
 * with ls_connection_free. `*connection` is NULL if nothing was accepted, or if the new connection was closed at once.
 */
int ls_admission_accept(ls_admission *self, int listener, ls_connection *const *all, size_t count,
                        ls_connection **connection);

/*
 * Reads the hello of a connection that is not `greeted`. Returns LS_OK if the connection is now `greeted`, or if its
 * hello is incomplete. Otherwise closes the connection: returns LS_ERR_PEER if the client has disconnected, and
 * LS_ERR_MISMATCH if the client knows the key but runs a different build of Lockstep. For other failures, the message
 * names the client and the reason for the refusal.
 */
ls_status ls_admission_hear(ls_admission *self, ls_connection *connection);

#endif
