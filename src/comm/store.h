/*
 * Stores from the inside: a TCP server in rank 0's process (store_server.c) and the processes that are connected to it
 * (store.c), by its address or by a folder that tells it (store_announcement.c); store_open.c opens them. Besides the
 * public dictionary a store brings the ranks together: ls_store_join and ls_store_leave.
 *
 * Sentences of failures carry no function name here; the public functions put theirs before them (ls_fail_in).
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
    const char *key;       /* NULL: none */
    int listener;          /* tcp, serving: a listening socket to use instead of the URL's port, taken over; -1: none */
    const char *interface; /* file, serving: where to listen, see ls_interface_address; NULL: no wish */
} ls_store_place;

/* A store as each process sees it: one connection to the server, and in rank 0's process the server too. */
struct ls_store {
    double timeout;
    ls_key key;              /* the job's */
    ls_gathering gathering;  /* the folder by which others find the server; only where that is here */
    ls_store_server *server; /* NULL where another process serves */
    int listener;            /* the server's, which closes it when all ranks have left */
    int fd;                  /* -1 once the connection broke */
    int port;
    char place[LS_HOST_CAPACITY + 8]; /* "HOST:PORT" */
    ls_status broken;                 /* why the connection broke */
    char broken_text[LS_ERROR_CAPACITY];
    uint8_t *buffer; /* the message on its way out, then the one coming in */
    size_t capacity;
};

/* As ls_store_open, without the function's name in the message. */
ls_store *ls_store_open_at(const ls_store_place *place);

/*
 * Says that this process is `rank` of `size`, waits until every rank did, and copies their peer infos to `peer_infos`
 * (room for `size`). LS_ERR_TIMEOUT names the ranks that did not come; LS_ERR_PEER one that died meanwhile;
 * LS_ERR_ARGUMENT a rank that came twice and LS_ERR_MISMATCH different world sizes. From then on a rank that ends
 * without ls_store_leave makes every wait of the others fail with LS_ERR_PEER.
 */
ls_status ls_store_join(ls_store *store, int rank, int size, const ls_peer_info *peer_info, ls_peer_info *peer_infos);

/* Waits until every rank left or died; LS_ERR_PEER names those that died. */
ls_status ls_store_leave(ls_store *store);

/* LS_ERR_PEER where a rank that joined is known to have died, or who serves is gone. Waits for nothing else. */
ls_status ls_store_check(ls_store *store);

/* Puts "`call`: " before this thread's last message; returns its status. */
ls_status ls_fail_in(const char *call);

/* LS_ERR_ARGUMENT when the URL is of no kind there is, or is malformed. Opens nothing. */
ls_status ls_store_check_url(const char *url);

/* Reads "tcp://HOST:PORT"; IPv6 hosts in brackets. LS_ERR_ARGUMENT with the reason. */
ls_status ls_address_parse(const char *url, ls_address *address);

/* The socket that leads to rank 0, on rank 0 the one that listens, lent, to ask about; -1 where there is none. */
int ls_store_connection(const ls_store *store); /* until ls_store_leave */

#endif
