/*
 * Which message goes to which receive, for transports that carry messages themselves: receives wait here for their
 * message, and messages that nobody waits for yet are kept here, each in order for every peer and channel. Knows
 * nothing of how messages travel.
 */
#ifndef LS_COMM_TRANSPORT_ARRIVALS_H
#define LS_COMM_TRANSPORT_ARRIVALS_H

#include "comm/transport.h"

/* A message that came, or was announced, before its receive. */
typedef struct ls_early {
    struct ls_early *next;
    int from;
    int channel;
    size_t bytes;
    bool whole;           /* all of `data` is here; set by the transport */
    bool remote;          /* only announced: the content waits at the sender, and `data` has no room */
    uint64_t number;      /* remote: what the sender calls it, */
    uint64_t address;     /* and where it is, for who reads it there; 0: it is sent */
    ls_transfer *receive; /* posted since, waiting until it is whole */
    uint64_t told_ns;     /* the transport's: when the sender heard last how far it is */
    _Alignas(16) unsigned char data[];
} ls_early;

typedef struct ls_arrivals {
    ls_transfer *receives;
    ls_early *early;
} ls_arrivals;

/* A message begins to come: the receive that it belongs to, taken off the list; NULL: there is none yet. */
ls_transfer *ls_arrivals_claim(ls_arrivals *arrivals, int from, int channel);

/* Keeps a message that was not claimed: room for its content, or none where it is remote. NULL: out of memory. */
ls_early *ls_arrivals_keep(ls_arrivals *arrivals, int from, int channel, size_t bytes, bool remote);

/* The message kept first for this receive, whole, remote or not yet whole, and not promised to another; NULL: there is
 * none, and the receive is on the list now. The caller gives it back with drop, or promises it with `receive`. */
ls_early *ls_arrivals_post(ls_arrivals *arrivals, ls_transfer *receive);

/* Others that are promised have their turn before this one, which is promised too. */
void ls_arrivals_put_last(ls_arrivals *arrivals, ls_early *early);

/* Ends a message that was kept. */
void ls_arrivals_drop(ls_arrivals *arrivals, ls_early *early);

/* Takes a receive off the list, or off the message that was promised to it. */
void ls_arrivals_withdraw(ls_arrivals *arrivals, ls_transfer *receive);

/* Frees all that is kept. */
void ls_arrivals_free(ls_arrivals *arrivals);

#endif
