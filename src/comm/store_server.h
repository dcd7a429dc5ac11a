/*
 * The TCP store's server: a thread in the process that serves the store (rank 0). It owns the listening socket, the
 * table and the roster, and waits in poll(). It answers only clients that have proved knowledge of the key.
 *
 * It uses a plain poll loop instead of libuv: closing is immediate, memory is allocated by the library's allocator, and
 * the process's signals and thread pools are not affected.
 */
#ifndef LS_COMM_STORE_SERVER_H
#define LS_COMM_STORE_SERVER_H

#include "comm/channel/auth.h"

typedef struct ls_store_server ls_store_server;

/*
 * Starts serving on `listener`, and takes ownership of it even on failure. Sets `*own` to a connection for the process
 * itself, owned by the caller. On failure, sets an error and returns NULL.
 */
ls_store_server *ls_store_server_start(int listener, const ls_key *key, int *own);

/* Sends pending data (for at most a second), closes all connections and stops the thread. NULL is allowed. */
void ls_store_server_stop(ls_store_server *server);

#endif
