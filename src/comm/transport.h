/*
 * The interface between the engine (engine/) and a network. A transport sends messages between the ranks of one
 * communicator. The engine does everything else, from the agreement to the sums. transport/tcp uses sockets,
 * transport/mpi uses messages of an MPI library, and transport/simulated models a network.
 *
 * An endpoint is one rank's access to the transport. Messages between two ranks use channels: small numbers that
 * separate kinds of messages. Messages on a channel arrive in the order in which they were sent.
 *
 * Rules for every function:
 *  - Locking: the caller locks. Only one thread at a time uses an endpoint.
 *  - Blocking: only `progress` waits, at most for the given time.
 *  - Errors: a function that returns a status sets the error message, without the name of a call. The exit of a peer is
 *    not an error: transfers with the peer do not end, and `peer` reports LS_PEER_GONE.
 *  - Ownership: the engine owns transfers and their memory. Both must stay in place until the transfer has ended, was
 *    withdrawn, or `close` has released it.
 */
#ifndef LS_COMM_TRANSPORT_H
#define LS_COMM_TRANSPORT_H

#include "comm/backend.h"
#include "comm/transport/place.h"

/* The maximum size in bytes of a message that can be received from any rank (peer -1), and of a control message.
 * Slightly less than the eager limit of every MPI library. */
#define LS_TRANSPORT_LEAST_EAGER 3840

/* A receive with more room than this, in bytes, must be matched by a message of exactly its size, because a network
 * may divide the message. */
#define LS_TRANSPORT_LEAST_EXACT (1 << 30)

/* A message in progress, or a native collective of the network. */
typedef struct ls_transfer {
    int peer; /* the other rank. In a receive, -1 stands for any rank and is replaced by the sender; -1 in a collective
               */
    int channel;   /* from 0 to LS_TRANSPORT_CHANNELS - 1 */
    void *data;    /* a send only reads the memory */
    size_t bytes;  /* in a receive: size of the buffer, replaced by the size of the message */
    bool of_user;  /* data may be in the program's buffer instead of a buffer of the endpoint's owner */
    bool ended;    /* set by the transport */
    bool receives; /* set by the transport to mark a receive */
    size_t moved;  /* used by the transport, like the fields below */
    uint64_t number;
    struct ls_transfer *next;
} ls_transfer;

enum { LS_TRANSPORT_CHANNELS = 16 };

typedef enum ls_peer_state {
    LS_PEER_UNKNOWN = 0, /* neither rank has connected to the other yet */
    LS_PEER_REACHED,
    LS_PEER_GONE /* the peer's process has exited or has closed its endpoint, and sends no more messages */
} ls_peer_state;

typedef struct ls_endpoint ls_endpoint;

/* Frees the memory that the owner of an endpoint passed in transfers. */
typedef void ls_endpoint_release(void *owner);

/* Selects the calls that use a native collective of the network by default. LOCKSTEP_ALGORITHM overrides it. */
typedef enum ls_own_collectives {
    LS_OWN_NEVER = 0,
    LS_OWN_BEYOND, /* if MPI's collectives are faster for the operation, ranks and bytes: see algorithms/cost.c */
    LS_OWN_LARGE   /* if the data is not inline */
} ls_own_collectives;

typedef struct ls_transport {
    const char *name;

    /*
     * Starts sending `transfer`, whose peer, channel, data and bytes are set. A message of up to
     * LS_TRANSPORT_LEAST_EAGER bytes completes without a receive, but may wait until the peer has made room by polling
     * (`progress`). A message of up to the endpoint's `eager` bytes does the same, unless the peer has many earlier
     * messages to receive. A larger message may wait for its receive. The transfer may already have completed on
     * return. Data of a completed transfer arrives even if this rank never polls the endpoint again. Connects to the
     * peer if necessary.
     */
    ls_status (*send)(ls_endpoint *endpoint, ls_transfer *transfer);

    /*
     * Starts receiving the next message on `transfer`'s channel from its peer. Receives from the same peer and channel
     * get messages in order. A receive from any rank (peer -1) gets messages of up to LS_TRANSPORT_LEAST_EAGER bytes.
     * All receives on a channel are either from any rank or from given ranks. If a message does not fit, `progress`
     * fails with LS_ERR_PEER. For a receive from a given rank, connects to that peer, so that this rank detects its
     * exit.
     */
    ls_status (*receive)(ls_endpoint *endpoint, ls_transfer *transfer);

    /*
     * Withdraws a transfer that has not ended, which frees the transfer's memory for other uses. If the network cannot
     * withdraw the transfer, its memory is free only after `close` has released it. Data of a send may still arrive,
     * and a message that was arriving is lost: the caller must close the endpoint next.
     */
    void (*withdraw)(ls_endpoint *endpoint, ls_transfer *transfer);

    /*
     * Advances transfers. If none can advance, waits until one can, for at most `wait_ns` (0 disables waiting). Sets
     * `*moved` to true if a transfer has ended, or if a peer was found to be dead.
     */
    ls_status (*progress)(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved);

    /*
     * Returns true if a native collective can execute this rank's part of the call. For a reduction, all ranks get the
     * same answer. For another call, a rank may get false because its own counts or displacements are too large. Does
     * not block. NULL, like `collective`, if the network has no collectives.
     */
    bool (*can_make)(const ls_endpoint *endpoint, const ls_call *call);

    /*
     * Begins the native collective, after all ranks have agreed on the call and can execute it. `transfer` has no
     * fields set; its peer becomes -1. The transfer ends when the result has arrived and the collective no longer uses
     * the buffers. An endpoint has at most one collective in progress, and the ranks begin their collectives in the
     * order of their calls. Borrows `call` until this function returns, and its buffers until the transfer has ended or
     * was withdrawn. The buffers do not overlap, with two exceptions: a rank's own part in a call that only moves data,
     * and reductions if `in_place` is true. Does not wait. Errors are the same as for `send`.
     *
     * If the call has a stream, which the backend accepts, can_make is not called, the buffers may overlap as in the
     * public call, and the network computes averages.
     */
    ls_status (*collective)(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer);
    bool in_place; /* each rank may choose whether a reduction's result is received into its send buffer */

    /* Returns the state of a rank. */
    ls_peer_state (*peer)(const ls_endpoint *endpoint, int peer);

    /* Returns the time in nanoseconds. The time advances only while this process can run. */
    uint64_t (*now_ns)(const ls_endpoint *endpoint);

    /*
     * Closes the endpoint without waiting for other ranks. Eager sends that have begun are completed within
     * `linger_ns`. Calls `release(owner)`, unless `release` is NULL, when the memory of transfers is no longer used:
     * before this function returns, or later, while the process uses another endpoint of the network. Does not call
     * `release` if the process exits first.
     */
    void (*close)(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release, void *owner);
} ls_transport;

/* The first member of each transport's own struct. */
struct ls_endpoint {
    const ls_transport *transport;
    int rank;
    int size;
    ls_place place;    /* all fields are 0 if unknown */
    size_t eager;      /* largest message of the eager protocol, in bytes; at least LS_TRANSPORT_LEAST_EAGER */
    int gone;          /* number of peers that are known to be gone */
    int blamed;        /* 1 + the rank for which a function failed with LS_ERR_PEER; 0 if none */
    uint64_t messages; /* number of messages sent by this rank; `bytes` is the size of their data. A native collective
                          counts as one message, with the bytes that this rank contributes */
    uint64_t bytes;
    ls_own_collectives own;
    /* All ranks are on one machine with fewer cores than ranks, so the number of messages matters more than the
     * number of steps. Equal on all ranks. */
    bool oversubscribed;
    /* A waiting rank polls instead of sleeping. If ranks share cores, waiting ranks take turns on the cores like
     * working ranks, so a step takes one turn of every rank. Equal on all ranks. */
    bool polls;
    bool yields; /* `progress` sleeps at once, without spinning: another thread does the awaited work */
};

#endif
