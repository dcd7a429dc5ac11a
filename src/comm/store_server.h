/*
 * The TCP store's server: a thread of the process that serves the store (rank 0), which owns the listening socket, the
 * table and the roster, and waits in poll(). It answers only clients that have proved knowledge of the key.
 *
 * A plain poll loop and not libuv: closing is immediate, memory goes through the library's allocator, and nothing of
 * the process (signals, thread pools) is touched.
 */
#ifndef LS_COMM_STORE_SERVER_H
#define LS_COMM_STORE_SERVER_H

#include "comm/channel/auth.h"

typedef struct ls_store_server ls_store_server;

/*
 * Starts serving on `listener`, which it takes in any case. *own becomes a connection for the process itself, the
 * caller's. NULL and an error when it cannot.
 */
ls_store_server *ls_store_server_start(int listener, const ls_key *key, int *own);

/* Sends what is still to be sent (for a second at most), closes every connection and ends the thread. NULL is allowed.
 */
void ls_store_server_stop(ls_store_server *server);

#endif
