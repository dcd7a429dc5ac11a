/*
 * The transport over TCP sockets. A rank listens at one port, which its peer info tells; peer infos go from rank to
 * rank by whatever means their owner has. A rank connects to another when it first sends to it or waits for it, and
 * what it sends goes over its own connection, which begins with a proof that it knows the job's key and both peer infos
 * (handshake.c). LOCKSTEP_WIRE protects what follows between machines (comm/wire.h). There are no threads: all is done
 * in the calls of transport.h, and what a send that has ended gave to the system goes on without them.
 *
 * tcp.c opens, waits and closes; handshake.c connects; output.c writes and input.c reads frames (link.h).
 */
#ifndef LS_COMM_TRANSPORT_TCP_H
#define LS_COMM_TRANSPORT_TCP_H

#include <netinet/in.h>
#include <sched.h>

#include "comm/auth.h"
#include "comm/backend.h"
#include "comm/transport.h"

/* What a rank says of itself to those who may connect to it. Who reads it needs the job's key still, where there is
 * one. */
typedef struct ls_tcp_peer_info {
    uint32_t length;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;     /* of so many bytes, where it listens */
    uint32_t wire; /* an ls_wire_mode: how it protects frames between machines */
    uint64_t machine;
    cpu_set_t cores; /* it may run on */
    uint8_t secret[LS_NONCE_SIZE];
} ls_tcp_peer_info;

typedef struct ls_tcp_options {
    int rank;
    int size;
    int listener;                       /* of ls_tcp_listen; taken over, also on failure */
    const ls_tcp_peer_info *peer_infos; /* of all ranks; copied */
    const ls_key *key;                  /* the job's; copied */
} ls_tcp_options;

/* Makes this rank's peer info and listens at the join's address, on a free port. The socket is the caller's.
 * LS_ERR_ARGUMENT: the address is none; LS_ERR_IO: it is not this machine's. */
ls_status ls_tcp_listen(const ls_join_context *join, ls_tcp_peer_info *peer_info, int *listener);

/* A descriptor, the endpoint's, that ends a wait in `progress` once 8 bytes that are not all 0 are written to it, by
 * any thread: an eventfd. -1 and LS_ERR_IO. */
int ls_tcp_waker(ls_endpoint *endpoint);

/* This rank's end of the transport, not connected to anybody yet; its `close` ends it. NULL on failure.
 * LS_ERR_MISMATCH: a peer info is none. */
ls_endpoint *ls_tcp_open(const ls_tcp_options *options);

#endif
