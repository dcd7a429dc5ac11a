/*
 * Matches messages to receives, for transports that move message data themselves. Receives wait here for their
 * messages, and messages that have no receive yet are kept here. Both keep their order for each peer and channel. Does
 * not send or receive anything itself.
 */
#ifndef LS_COMM_TRANSPORT_ARRIVALS_H
#define LS_COMM_TRANSPORT_ARRIVALS_H

#include "comm/transport.h"

/* A message that arrived or was announced before its receive. */
typedef struct ls_early {
    struct ls_early *next;
    int from;
    int channel;
    size_t bytes;
    bool whole;       /* `data` is complete; set by the transport */
    bool remote;      /* only announced: the content is still at the sender, and `data` has no memory for it */
    uint64_t number;  /* remote: the sender's number of the message */
    uint64_t address; /* remote: the address of the content in the sender's memory; 0 if the sender sends the content */
    ls_transfer *receive; /* the receive that gets this message when it is complete; NULL if there is none yet */
    uint64_t told_ns;     /* set by the transport: time when this rank last reported its progress to the sender */
    _Alignas(16) unsigned char data[];
} ls_early;

typedef struct ls_arrivals {
    ls_transfer *receives;
    ls_early *early;
} ls_arrivals;

/* Returns the receive for a message that begins to arrive, and removes it from the list. Returns NULL if the message
 * has no receive yet. */
ls_transfer *ls_arrivals_claim(ls_arrivals *arrivals, int from, int channel);

/* Keeps a message that has no receive yet, with memory for its content unless `remote` is true. Returns NULL if out
 * of memory. */
ls_early *ls_arrivals_keep(ls_arrivals *arrivals, int from, int channel, size_t bytes, bool remote);

/*
 * Returns the earliest kept message for `receive` that is not assigned to another receive. The message may be remote or
 * incomplete. If there is no such message, adds the receive to the list and returns NULL. The caller frees the message
 * with ls_arrivals_drop, or assigns it to the receive through `early->receive`.
 */
ls_early *ls_arrivals_post(ls_arrivals *arrivals, ls_transfer *receive);

/* Moves an assigned message to the end of the list, so that the transport continues with the other assigned messages
 * first. */
void ls_arrivals_put_last(ls_arrivals *arrivals, ls_early *early);

/* Removes and frees a kept message. */
void ls_arrivals_drop(ls_arrivals *arrivals, ls_early *early);

/* Removes a receive from the list, or from the message that is assigned to it. */
void ls_arrivals_withdraw(ls_arrivals *arrivals, ls_transfer *receive);

/* Frees all kept messages, and forgets all receives. */
void ls_arrivals_free(ls_arrivals *arrivals);

#endif
