/* TCP sockets with deadlines, for the store's client and server. Every socket is non-blocking and closed on exec. */
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
 * Binds and listens; port 0 selects any free port. Fails with LS_ERR_DENIED if the host is not loopback and `keyed` is
 * false, and with LS_ERR_IO, and the reason, if the port is in use or the host is not this machine.
 */
ls_status ls_socket_listen(const ls_address *address, bool keyed, int *listener);

/* Takes ownership of an inherited listening socket. Fails with LS_ERR_ARGUMENT if it is not a listening socket, and
 * with LS_ERR_DENIED if it is not allowed. */
ls_status ls_socket_adopt(int listener, bool keyed);

struct sockaddr;

/* Returns true if the address cannot be reached from other machines. */
bool ls_socket_is_loopback(const struct sockaddr *address);

/* Returns the port of a socket, or 0 if the socket has no port. */
int ls_socket_port(int socket);

/*
 * Makes one attempt to connect. Sets `*retry` to true if another attempt may succeed, because no process listens there
 * yet. Fails with LS_ERR_DENIED if the host is not loopback and `keyed` is false.
 */
ls_status ls_socket_connect(const ls_address *address, bool keyed, ls_deadline deadline, int *connection, bool *retry);

/* Send or receive all bytes. Fail with LS_ERR_PEER if the peer has closed the connection, and with LS_ERR_TIMEOUT at
 * the deadline. */
ls_status ls_socket_send(int socket, const void *bytes, size_t size, ls_deadline deadline);
ls_status ls_socket_receive(int socket, void *bytes, size_t size, ls_deadline deadline);

#endif
