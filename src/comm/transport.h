/*
 * The boundary between the engine (engine/) and a network. A transport carries messages between the ranks of one
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
 *    withdrawn, or `close` has released them.
 */
#ifndef LS_COMM_TRANSPORT_H
#define LS_COMM_TRANSPORT_H

#include "comm/backend.h"
#include "comm/transport/place.h"

/* The largest message that comes from any rank (peer -1), and that control messages may have: a little less than what
 * every MPI library sends without asking the receiver. */
#define LS_TRANSPORT_LEAST_EAGER 3840

/* A message under way. */
typedef struct ls_transfer {
    int peer;      /* to or from; of a receive -1: from any rank, then who sent it; of a collective -1 */
    int channel;   /* from 0 to LS_TRANSPORT_CHANNELS - 1 */
    void *data;    /* not written to by a send */
    size_t bytes;  /* of a receive: the room there is, then what came */
    bool of_user;  /* data may be the program's own buffer, not memory of the endpoint's owner */
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

/* Frees what the owner of an endpoint gave to transfers. */
typedef void ls_endpoint_release(void *owner);

/* When a call uses a collective of the network by default. LOCKSTEP_ALGORITHM overrides it. */
typedef enum ls_own_collectives {
    LS_OWN_NEVER = 0,
    LS_OWN_BEYOND, /* if MPI's are faster: depends on the call, the ranks and the bytes (algorithms/cost.c) */
    LS_OWN_LARGE   /* if the data is not inline */
} ls_own_collectives;

typedef struct ls_transport {
    const char *name;

    /*
     * Begins to send `transfer`, which has peer, channel, data and bytes set. Up to LS_TRANSPORT_LEAST_EAGER bytes it
     * needs no receive to end, though it may wait until the peer has made room by looking (`progress`). Up to the
     * endpoint's `eager` bytes neither, unless the peer is far behind with receives for what was sent before. A larger
     * one may wait for its receive. It may have ended already on return. What has ended arrives without this rank
     * looking at the endpoint again. Connects to the peer where that is needed.
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

    /*
     * Whether the network can make this rank's part of the call by a collective of its own. Of reductions all ranks get
     * the same answer; of others one may get another, where counts or displacements of its own are too large. Does not
     * block, and cannot fail. NULL, together with `collective`: the network has none.
     */
    bool (*can_make)(const ls_endpoint *endpoint, const ls_call *call);

    /*
     * Begins that collective, once all ranks have agreed on the call, and that all can. `transfer` has nothing set; it
     * ends when the call's buffers are the caller's again and the result is there, as `progress` sees, and its peer is
     * -1: it waits for no rank in particular. An endpoint has one under way at a time, and the ranks begin theirs in
     * the same order: that of their calls. `call` is lent for the time of this entry, its buffers until the transfer
     * has ended or was withdrawn; what is received may not overlap what is sent, but for the own part of a call that
     * only moves data, and reductions where `in_place` says so. Does not wait. What may fail: as `send`.
     *
     * Where the call has a stream, whose backend `takes` it, can_make is not asked; the buffers overlap in all ways
     * that the public call allows, and the average is the network's, too.
     */
    ls_status (*collective)(ls_endpoint *endpoint, const ls_call *call, ls_transfer *transfer);
    bool in_place; /* each rank may or may not receive a reduction in the very place that it sends from */

    /* What is known of a rank. */
    ls_peer_state (*peer)(const ls_endpoint *endpoint, int peer);

    /* The time, which goes on only while this process can run. */
    uint64_t (*now_ns)(const ls_endpoint *endpoint);

    /*
     * Ends the endpoint without waiting for others. What eager sends have begun still goes, where that takes no more
     * than `linger_ns`. Calls `release(owner)`, unless `release` is NULL, once nothing uses the memory of transfers any
     * more: before this returns, or later, while the process uses another endpoint of the network. Never calls it if
     * the process ends first.
     */
    void (*close)(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release, void *owner);
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
    uint64_t messages; /* sent by this rank so far, and their bytes: what users count. A collective of the network's own
                          is one message of the bytes that this rank gives */
    uint64_t bytes;
    ls_own_collectives own;
    /* All ranks are on one machine, with fewer cores: fewer messages are worth more than fewer steps. All know the
     * same. */
    bool oversubscribed;
    /* A rank that waits looks again and again instead of sleeping. Where ranks share cores, those that wait take turns
     * on them too, so a step takes a turn of all ranks. All know the same. */
    bool polls;
    bool yields; /* `progress` sleeps at once instead of spinning: another thread works on what it waits for */
};

#endif
