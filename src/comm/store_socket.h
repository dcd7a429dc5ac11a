/* TCP sockets with deadlines, for the store's two sides. Every socket is non-blocking and closed on exec. */
#ifndef LS_COMM_STORE_SOCKET_H
#define LS_COMM_STORE_SOCKET_H

#include "base/status.h"
#include "base/wait.h"

#define LS_HOST_CAPACITY 256

/* A host and a port, as in "tcp://HOST:PORT". */
typedef struct ls_address {
    char host[LS_HOST_CAPACITY];
    int port;
} ls_address;

/*
 * Binds and listens; a port of 0 takes any free one. LS_ERR_DENIED when the host is not loopback and `keyed` is false,
 * LS_ERR_IO with the reason when the port is in use or the host is not this machine.
 */
ls_status ls_socket_listen(const ls_address *address, bool keyed, int *listener);

/* Takes over a listening socket that was inherited; LS_ERR_ARGUMENT or LS_ERR_DENIED when it is none or not allowed. */
ls_status ls_socket_adopt(int listener, bool keyed);

struct sockaddr;

/* Whether nobody beyond this machine reaches it. */
bool ls_socket_is_loopback(const struct sockaddr *address);

/* The port a socket is bound to; 0 if there is none. */
int ls_socket_port(int socket);

/*
 * One attempt to connect. `*retry` says whether it is worth another: nobody listens there yet. LS_ERR_DENIED when the
 * host is not loopback and `keyed` is false.
 */
ls_status ls_socket_connect(const ls_address *address, bool keyed, ls_deadline deadline, int *connection, bool *retry);

/* Sends or receives all of it. LS_ERR_PEER when the other side is gone, LS_ERR_TIMEOUT at the deadline. */
ls_status ls_socket_send(int socket, const void *bytes, size_t size, ls_deadline deadline);
ls_status ls_socket_receive(int socket, void *bytes, size_t size, ls_deadline deadline);

#endif
