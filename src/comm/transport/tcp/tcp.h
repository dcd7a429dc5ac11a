/*
 * The transport over TCP sockets. Each rank listens on one port, whose address is in its peer information. The owner of
 * the transport exchanges the peer information of the ranks by other means. A rank connects to another rank when it
 * first sends to that rank or waits for it. Each rank sends over its own connection, which begins with a proof that the
 * rank knows the job's key and both ranks' peer information (handshake.c). LOCKSTEP_WIRE protects the frames between
 * machines (comm/channel/wire.h). There are no threads: all work is done in the calls of transport.h. Data that a
 * completed send has passed to the kernel is sent without further calls.
 *
 * tcp.c opens, waits and closes; handshake.c connects; output.c writes frames, and input.c reads them (link.h).
 */
#ifndef LS_COMM_TRANSPORT_TCP_H
#define LS_COMM_TRANSPORT_TCP_H

#include <netinet/in.h>
#include <sched.h>

#include "comm/backend.h"
#include "comm/channel/auth.h"
#include "comm/transport.h"

/* The data about a rank that other ranks need to connect to it. If the job has a key, they also need this key. */
typedef struct ls_tcp_peer_info {
    uint32_t length;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;     /* the address at which the rank listens; `length` is its size in bytes */
    uint32_t wire; /* an ls_wire_mode: the rank's protection of frames to other machines */
    uint64_t machine;
    cpu_set_t cores; /* the cores that the rank may run on */
    uint8_t secret[LS_NONCE_SIZE];
} ls_tcp_peer_info;

typedef struct ls_tcp_options {
    int rank;
    int size;
    int listener;                       /* from ls_tcp_listen; ls_tcp_open takes ownership, even on failure */
    const ls_tcp_peer_info *peer_infos; /* peer information of all ranks; copied */
    const ls_key *key;                  /* the job's key; copied */
} ls_tcp_options;

/*
 * Creates this rank's peer information, and listens at the address in `join`, on a free port. Returns ownership of the
 * socket to the caller, who closes it. Fails with LS_ERR_ARGUMENT if the address is invalid, and with LS_ERR_IO if this
 * machine cannot listen on it.
 */
ls_status ls_tcp_listen(const ls_join_context *join, ls_tcp_peer_info *peer_info, int *listener);

/* Returns an eventfd of the endpoint. If any thread writes 8 bytes that are not all 0 to the eventfd, a wait in
 * `progress` ends. Returns -1 and sets LS_ERR_IO on failure. */
int ls_tcp_waker(ls_endpoint *endpoint);

/* Opens this rank's endpoint, which has no connections yet; its `close` frees it. Returns NULL with an error set on
 * failure: LS_ERR_MISMATCH if a peer's information is invalid, or if its LOCKSTEP_WIRE differs. */
ls_endpoint *ls_tcp_open(const ls_tcp_options *options);

#endif
