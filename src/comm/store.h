/*
 * The internal interface of stores. The process of rank 0 runs a TCP server (store_server.c), and the processes of all
 * ranks are its clients (store.c). Clients find the server by its address, or through a folder that names the address
 * (store_announcement.c). store_open.c opens stores. Besides the public dictionary, a store provides the meeting of the
 * ranks: ls_store_join and ls_store_leave.
 *
 * Error messages of these functions have no function name. The public functions add their names with ls_fail_in.
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
    double timeout;        /* seconds, positive */
    const char *key;       /* NULL: no key */
    int listener;          /* tcp, serving: a listening socket to use instead of the URL's port; -1: no socket.
                              ls_store_open_at takes ownership */
    const char *interface; /* file, serving: where to listen, see ls_interface_address; NULL: any interface */
} ls_store_place;

/* A store in one process: a connection to the server and, in the process of rank 0, the server. */
struct ls_store {
    double timeout;
    ls_key key;              /* of the job */
    ls_gathering gathering;  /* the folder that announces the server; empty unless this process announced it */
    ls_store_server *server; /* NULL if another process serves */
    int listener;            /* socket of the server, which closes it when all ranks have left */
    int fd;                  /* connection to the server; -1 after the connection broke */
    int port;
    char place[LS_HOST_CAPACITY + 8]; /* "HOST:PORT" */
    ls_status broken;                 /* why the connection broke; LS_OK: it works */
    char broken_text[LS_ERROR_CAPACITY];
    uint8_t *buffer; /* the request that is sent, then its reply */
    size_t capacity;
};

/* Opens a store, as ls_store_open does. Error messages have no function name. */
ls_store *ls_store_open_at(const ls_store_place *place);

/*
 * Registers this process as `rank` of `size`, and waits until every rank has joined. Copies the peer infos of all ranks
 * to `peer_infos`, which has room for `size`. Fails with
 *  - LS_ERR_TIMEOUT if ranks are missing; the message names them;
 *  - LS_ERR_PEER if a rank died meanwhile;
 *  - LS_ERR_ARGUMENT if two processes join as the same rank;
 *  - LS_ERR_MISMATCH if the ranks have different world sizes or builds of Lockstep.
 * After success, if a rank ends without ls_store_leave, every wait of the other ranks fails with LS_ERR_PEER.
 */
ls_status ls_store_join(ls_store *store, int rank, int size, const ls_peer_info *peer_info, ls_peer_info *peer_infos);

/* Waits until every rank has left or died. Fails with LS_ERR_PEER if a rank died; the message names the dead ranks. */
ls_status ls_store_leave(ls_store *store);

/* Asks the server whether the job still works. Fails with LS_ERR_PEER if a rank that joined is known to have died, or
 * if the server has ended. Waits only for the server's reply. */
ls_status ls_store_check(ls_store *store);

/* Puts "`call`: " before this thread's last error message, unless the message begins with it. Returns the status of the
 * error. */
ls_status ls_fail_in(const char *call);

/* Fails with LS_ERR_ARGUMENT if the URL is malformed, or begins with neither tcp:// nor file://. Opens nothing. */
ls_status ls_store_check_url(const char *url);

/* Reads "tcp://HOST:PORT"; an IPv6 address is in brackets. Fails with LS_ERR_ARGUMENT if the URL is malformed. */
ls_status ls_address_parse(const char *url, ls_address *address);

/* Returns the socket that is connected to rank 0; on rank 0, the listening socket. The caller may only query its
 * address. The store owns the socket. Returns -1 if the connection broke. Not allowed after ls_store_leave, which
 * closes the listening socket. */
int ls_store_connection(const ls_store *store);

#endif
