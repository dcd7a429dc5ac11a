/*
 * Who comes in where somebody serves (the store, node 0 of several launchers): the server's side of accepting and of
 * the greeting (store_message.h).
 *
 * Connections that have proved nothing yet are bounded, and whoever opens many keeps nobody else out: where all places
 * are taken, the oldest connection from the address that holds the most makes room. Within one address nobody is closed
 * before there was time to prove anything; further ones from there are then closed, and try again by themselves.
 */
#ifndef LS_COMM_STORE_ADMISSION_H
#define LS_COMM_STORE_ADMISSION_H

#include "base/log.h"
#include "comm/store_connection.h"

enum { LS_UNPROVEN_MOST = 512, LS_ACCEPT_AT_ONCE = 64 };

typedef struct ls_admission {
    const ls_key *key; /* lent */
    const char *who;   /* comes here, for sentences: "process" */
    int most;          /* connections that have proved nothing; half of the descriptors that the process may have */
    int refused;       /* because of their key, so far */
    ls_log_limit told; /* bounds what is told of those turned away */
} ls_admission;

void ls_admission_open(ls_admission *self, const ls_key *key, const char *who);

/*
 * Accepts one connection that waits at the listener and sends it the hello. `all` are those there are, of which one
 * that is not `greeted` may be closed (fd -1) for it. Returns 0 or, where none was accepted, an errno value, which is
 * EAGAIN where none waits. *connection is the caller's; NULL: it was closed at once.
 */
int ls_admission_accept(ls_admission *self, int listener, ls_connection *const *all, size_t count,
                        ls_connection **connection);

/*
 * Reads what a connection says that has proved nothing. LS_OK: it is `greeted` now, or has not said all. Else it is
 * closed: LS_ERR_PEER where it went away, otherwise it was turned away and the message says who and why.
 */
ls_status ls_admission_hear(ls_admission *self, ls_connection *connection);

#endif
