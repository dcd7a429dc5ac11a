/*
 * Adds the collectives of a library to endpoints of the TCP transport: the common part of backends gloo and nccl. The
 * engine uses them as collectives of the network (comm/transport.h).
 *
 * At the first collective of a communicator, its ranks meet: each rank sends the data that the library needs, the
 * greeting, to each other rank over the TCP transport. From then on, the library works independently of the engine,
 * which polls whether a collective has ended, and whether a rank has ended or is silent. If the library fails, the
 * reason may be a rank that has ended, which the engine knows or will soon notice. So the library's failure is reported
 * only after a delay.
 */
#ifndef LS_COMM_BACKEND_MODULE_COLLECTIVES_H
#define LS_COMM_BACKEND_MODULE_COLLECTIVES_H

#include "comm/transport.h"

enum { LS_LIBRARY_WHY = 384 }; /* size in bytes of the reason why a library failed */

typedef enum ls_library_state { LS_LIBRARY_BUSY = 0, LS_LIBRARY_DONE, LS_LIBRARY_FAILED } ls_library_state;

/* The collectives of an endpoint. The library's own struct begins with this one. */
typedef struct ls_collectives {
    ls_transport entries; /* entries of the endpoint; replace the entries of the TCP transport */
    const ls_transport *tcp;
    ls_endpoint *endpoint;
    const struct ls_collective_library *library;
    ls_call call;      /* the call in progress, with its own copies of counts and displacements */
    uint64_t began_ns; /* time at which the library began the call */
    char why[LS_LIBRARY_WHY];
    int stage; /* one of the stages in collectives.c; this field and the fields below belong to collectives.c */
    unsigned char *greetings;
    ls_transfer *transfers;
    ls_transfer *transfer;
    size_t *counts;
    uint64_t failed_ns;
    ls_endpoint_release *release; /* the arguments of `close` */
    void *owner;
} ls_collectives;

/* A library. An entry that fails writes the reason to `own->why`, or sets an error. */
typedef struct ls_collective_library {
    const char *name;     /* name of the backend */
    size_t greeting_size; /* bytes of the greeting that a rank sends to another rank */
    size_t size;          /* bytes of the library's struct, which begins with ls_collectives */
    ls_status failure;    /* the status of ls_collectives_fail */
    bool wakes; /* the library writes to ls_tcp_waker when a collective has ended; otherwise, the endpoint polls */

    bool (*can_make)(const ls_endpoint *endpoint, const ls_call *call); /* entry of ls_transport */
    ls_status (*prepare)(ls_collectives *own);                          /* called at the first collective */
    ls_status (*greet)(ls_collectives *own, int peer, void *greeting);  /* writes the greeting to `peer` */

    /* Begins own->call, after all ranks have met. Does not wait. */
    ls_status (*begin)(ls_collectives *own);

    /* Returns the state of the call. Not called again after a failure. */
    ls_library_state (*look)(ls_collectives *own);

    /*
     * Ends the library's part of the endpoint. With `abort`, calls in progress end too, here and then on other ranks.
     * Otherwise, data that still has to be sent is sent within `linger_ns`. Afterwards, the library uses no memory of a
     * call. May be called more than once.
     */
    void (*end)(ls_collectives *own, bool abort, uint64_t linger_ns);
} ls_collective_library;

/* Adds a library's collectives to an endpoint of the TCP transport that was not used yet. `used` selects the calls that
 * use them by default. The endpoint's `close` ends them. Returns NULL and sets LS_ERR_MEMORY if memory is exhausted. */
ls_collectives *ls_collectives_add(ls_endpoint *endpoint, const ls_collective_library *library,
                                   ls_own_collectives used);

/* Return the greeting to `peer`, and the greeting from `peer`. */
void *ls_collectives_said(const ls_collectives *own, int peer);
void *ls_collectives_heard(const ls_collectives *own, int peer);

/* Sets the error of a library that failed, from own->why. Returns its status. */
ls_status ls_collectives_fail(const ls_collectives *own);

#endif
