/*
 * The boundary between the engine (collective/) and a network. A transport carries messages between the ranks of one
 * communicator; everything else, from agreement to the sums, is the engine's. transport/tcp is sockets, transport/mpi
 * messages of an MPI library, and the network of transport/simulated is a model.
 *
 * An endpoint is one rank's end of it. Messages between two ranks travel on channels, small numbers that keep kinds of
 * messages apart; on one channel they arrive in the order in which they were sent.
 *
 * Rules for every entry:
 *  - Who locks: nobody. One thread at a time uses an endpoint.
 *  - What blocks: only `progress`, at most as long as it is told.
 *  - What may fail: an entry that returns a status has set the error message, without a call's name before it. A peer
 *    that is gone is no failure of an entry: transfers with it do not end, and `peer` tells.
 *  - Who owns: transfers and their memory are the engine's and stay where they are until the transfer has ended, was
 *    withdrawn, or the endpoint was closed.
 */
#ifndef LS_COMM_TRANSPORT_H
#define LS_COMM_TRANSPORT_H

#include <lockstep/comm.h>

#include "comm/transport/place.h"

/* The largest message that comes from any rank (peer -1), and that control messages may have: a little less than what
 * every MPI library sends without asking the receiver. */
#define LS_TRANSPORT_LEAST_EAGER 3840

/* A message under way. */
typedef struct ls_transfer {
    int peer;      /* to or from; of a receive -1: from any rank, then who sent it */
    int channel;   /* from 0 to LS_TRANSPORT_CHANNELS - 1 */
    void *data;    /* not written to by a send */
    size_t bytes;  /* of a receive: the room there is, then what came */
    bool ended;    /* set by the transport */
    bool receives; /* the same */
    size_t moved;  /* the transport's, as all that follows */
    uint64_t number;
    struct ls_transfer *next;
} ls_transfer;

enum { LS_TRANSPORT_CHANNELS = 16 };

typedef enum ls_peer_state {
    LS_PEER_UNKNOWN = 0, /* it was not reached yet, nor has it reached this rank */
    LS_PEER_REACHED,
    LS_PEER_GONE /* its process has ended, or closed its endpoint: nothing more comes of it */
} ls_peer_state;

typedef struct ls_endpoint ls_endpoint;

typedef struct ls_transport {
    const char *name;

    /*
     * Begins to send `transfer`, which has peer, channel, data and bytes set. Up to the endpoint's `eager` bytes it
     * needs no receive to end, though it may wait until the peer has made room by looking (`progress`); a larger one
     * may wait for its receive. It may have ended already on return. What has ended arrives without this rank looking
     * at the endpoint again. Connects to the peer where that is needed.
     */
    ls_status (*send)(ls_endpoint *endpoint, ls_transfer *transfer);

    /*
     * Begins to receive the next message of `transfer`'s channel from its peer. Receives of one peer and channel are
     * served in their order. From any rank (peer -1) only messages up to LS_TRANSPORT_LEAST_EAGER bytes are received,
     * and a channel has receives from any rank or from named ones, not both. A message for which the receive has no
     * room is LS_ERR_PEER, from `progress`. Connects to a named peer, so that its end is noticed.
     */
    ls_status (*receive)(ls_endpoint *endpoint, ls_transfer *transfer);

    /* Takes back a transfer that has not ended: its memory is free then, or, where the network cannot take it back,
     * once `close` says so. What a send has begun may still arrive, and a message that was on its way into a receive is
     * lost; so only the end of the endpoint comes after this. */
    void (*withdraw)(ls_endpoint *endpoint, ls_transfer *transfer);

    /*
     * Moves what can be moved; where that is nothing, waits until something can, at most `wait_ns` (0: not at all).
     * `*moved` becomes true when any transfer has ended, or a peer is newly known to be gone.
     */
    ls_status (*progress)(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved);

    /* What is known of a rank. */
    ls_peer_state (*peer)(const ls_endpoint *endpoint, int peer);

    /* The time, which goes on only while this process can run. */
    uint64_t (*now_ns)(const ls_endpoint *endpoint);

    /* Ends the endpoint without waiting for others. What eager sends have begun still goes, where that takes no more
     * than `linger_ns`. Whether nothing uses the memory of transfers any more; otherwise it stays where it is until the
     * process ends. */
    bool (*close)(ls_endpoint *endpoint, uint64_t linger_ns);
} ls_transport;

/* Each transport's own struct begins with this. */
struct ls_endpoint {
    const ls_transport *transport;
    int rank;
    int size;
    ls_place place;    /* all 0 where it is not known */
    size_t eager;      /* bytes of the largest message that needs no receive; at least LS_TRANSPORT_LEAST_EAGER */
    int gone;          /* peers that are known to be */
    int blamed;        /* 1 + the rank for which an entry was LS_ERR_PEER; 0: none is to blame */
    uint64_t messages; /* sent by this rank so far, and their bytes: what users count. */
    uint64_t bytes;
};

#endif
