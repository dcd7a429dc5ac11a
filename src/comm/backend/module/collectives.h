/*
 * Endpoints of transport tcp that have the collectives of a library: what backends gloo and nccl share. To the engine
 * they are collectives of the network (comm/transport.h).
 *
 * The first collective of a communicator has its ranks meet: each tells each, over the connection that transport tcp
 * has with it, what the library must know of it. From then on the library works beside the engine, which looks whether
 * a collective has ended, and whether a rank is gone or silent. Where the library fails, the engine may know why, of a
 * rank that is gone, or hear of it soon: so the failure is told a while later.
 */
#ifndef LS_COMM_BACKEND_MODULE_COLLECTIVES_H
#define LS_COMM_BACKEND_MODULE_COLLECTIVES_H

#include "comm/transport.h"

enum { LS_LIBRARY_WHY = 384 }; /* bytes of the sentence that tells why a library failed */

typedef enum ls_library_state { LS_LIBRARY_BUSY = 0, LS_LIBRARY_DONE, LS_LIBRARY_FAILED } ls_library_state;

/* An endpoint's collectives. What a library keeps of them begins with this. */
typedef struct ls_collectives {
    ls_transport entries; /* of the endpoint, in place of transport tcp's own */
    const ls_transport *tcp;
    ls_endpoint *endpoint;
    const struct ls_collective_library *library;
    ls_call call;      /* what is to be made, with counts and displacements of its own */
    uint64_t began_ns; /* since when the library works on that */
    char why[LS_LIBRARY_WHY];
    int stage; /* from here on collectives.c's own, as it says there */
    unsigned char *greetings;
    ls_transfer *transfers;
    ls_transfer *transfer;
    size_t *counts;
    uint64_t failed_ns;
    ls_endpoint_release *release; /* the arguments of `close` */
    void *owner;
} ls_collectives;

/* A library. Where an entry fails, `own->why` says why, or there is an error. */
typedef struct ls_collective_library {
    const char *name;     /* the backend's */
    size_t greeting_size; /* bytes of what a rank tells another */
    size_t size;          /* bytes of what begins with ls_collectives */
    ls_status failure;    /* that of ls_collectives_fail */
    bool wakes;           /* ls_tcp_waker is written to when a collective has ended; else it has to be looked for */

    bool (*can_make)(const ls_endpoint *endpoint, const ls_call *call); /* that of ls_transport */
    ls_status (*prepare)(ls_collectives *own);                          /* at the first collective */
    ls_status (*greet)(ls_collectives *own, int peer, void *greeting);  /* writes what a rank is told */

    /* Begins own->call, once all have met. Does not wait. */
    ls_status (*begin)(ls_collectives *own);

    /* How far that is. It is not asked again after a failure. */
    ls_library_state (*look)(ls_collectives *own);

    /* Ends all that there is, with `abort` also what is under way, here and then on other ranks. After this no memory
     * of a call is used. Else what has to go still goes, within `linger_ns`. It may be called more than once. */
    void (*end)(ls_collectives *own, bool abort, uint64_t linger_ns);
} ls_collective_library;

/* Gives an endpoint of transport tcp, not used yet, a library's collectives, to be used for such calls. They end with
 * the endpoint. NULL: LS_ERR_MEMORY. */
ls_collectives *ls_collectives_add(ls_endpoint *endpoint, const ls_collective_library *library,
                                   ls_own_collectives used);

/* What `peer` is told, and has told. */
void *ls_collectives_said(const ls_collectives *own, int peer);
void *ls_collectives_heard(const ls_collectives *own, int peer);

/* The error of a library that failed. */
ls_status ls_collectives_fail(const ls_collectives *own);

#endif
