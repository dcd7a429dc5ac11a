/*
 * The internal interface of stores. The process of rank 0 runs a TCP server (store_server.c), and the processes of all
 * ranks are its clients (store.c). Clients find the server by its address, or through a folder that contains the
 * address (store_announcement.c). store_open.c opens stores. In addition to the public dictionary, a store provides the
 * rendezvous of the ranks: ls_store_join and ls_store_leave.
 *
 * Error messages of these functions do not begin with a function name. The public functions add their names with
 * ls_fail_in.
 */
#ifndef LS_COMM_STORE_H
#define LS_COMM_STORE_H

#include <lockstep/comm.h>

#include "base/wait.h"
#include "comm/store_announcement.h"
#include "comm/store_roster.h"
#include "comm/store_server.h"

#define LS_DEFAULT_TIMEOUT 300.0

/* Where and how to open a store. */
typedef struct ls_store_place {
    const char *url;
    bool serve;
    double timeout;  /* seconds, positive */
    const char *key; /* NULL if there is no key */
    int listener; /* tcp server: a listening socket to use instead of the URL's port; -1 if none. ls_store_open_at takes
                     ownership */
    const char *interface; /* file server: where to listen, see ls_interface_address; NULL for any interface */
} ls_store_place;

/* A process's part of a store: a connection to the server and, in the process of rank 0, the server. */
struct ls_store {
    double timeout;
    ls_key key;              /* of the job */
    ls_gathering gathering;  /* the folder that announces the server; empty unless this process announced it */
    ls_store_server *server; /* NULL if another process runs the server */
    int listener;            /* socket of the server, which closes it when all ranks have left */
    int fd;                  /* connection to the server; -1 after the connection broke */
    int port;
    bool closed;                      /* by ls_store_close */
    char place[LS_HOST_CAPACITY + 8]; /* "HOST:PORT" */
    ls_status broken;                 /* why the connection broke; LS_OK if it works */
    char broken_text[LS_ERROR_CAPACITY];
    uint8_t *buffer; /* the request being sent, then its reply */
    size_t capacity;
};

/* Opens a store like ls_store_open. Error messages do not begin with a function name. */
ls_store *ls_store_open_at(const ls_store_place *place);

/*
 * Registers this process as `rank` of `size`, and waits until every rank has joined. Copies the peer information of
 * all ranks to `peer_infos`, which has room for `size`. After success, if a rank exits without ls_store_leave, every
 * wait of the other ranks fails with LS_ERR_PEER. Fails with
 *  - LS_ERR_TIMEOUT if ranks are missing; the message names them;
 *  - LS_ERR_PEER if a rank died in the meantime;
 *  - LS_ERR_ARGUMENT if two processes join as the same rank;
 *  - LS_ERR_MISMATCH if the ranks have different world sizes or builds of Lockstep.
 */
ls_status ls_store_join(ls_store *store, int rank, int size, const ls_peer_info *peer_info, ls_peer_info *peer_infos);

/* Waits until every rank has left or died. Fails with LS_ERR_PEER if a rank died; the message names the dead ranks. */
ls_status ls_store_leave(ls_store *store);

/* Same as ls_store_leave. Until the other ranks have left, calls `advance` repeatedly while it returns true. */
ls_status ls_store_leave_while(ls_store *store, bool (*advance)(void *argument), void *argument);

/* Asks the server whether the job still works. Fails with LS_ERR_PEER if a rank that joined is known to have died,
 * or if the server has exited. Waits only for the server's reply. */
ls_status ls_store_check(ls_store *store);

/* Prefixes this thread's last error message with "`call`: ", unless it already begins so. Returns the status of the
 * error. */
ls_status ls_fail_in(const char *call);

/* Fails with LS_ERR_ARGUMENT if the URL is malformed, or begins with neither tcp:// nor file://. Does not open
 * anything. */
ls_status ls_store_check_url(const char *url);

/* Parses "tcp://HOST:PORT"; an IPv6 address must be in brackets. Fails with LS_ERR_ARGUMENT if the URL is malformed. */
ls_status ls_address_parse(const char *url, ls_address *address);

/* Returns the socket that is connected to rank 0 or, on rank 0, the listening socket. The store owns the socket, and
 * the caller may only query its address. Returns -1 if the connection broke. Must not be called after
 * ls_store_leave, which closes the listening socket. */
int ls_store_connection(const ls_store *store);

#endif
