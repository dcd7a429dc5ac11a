/*
 * Adds a library's collectives to endpoints of the TCP transport: the part common to backends gloo and nccl. The engine
 * uses them as network collectives (comm/transport.h).
 *
 * At the first collective of a communicator, each rank sends every other rank a greeting with the data that the library
 * needs, over the TCP transport. From then on, the library works independently of the engine. The engine polls to see
 * whether a collective has finished, and whether a rank has exited or is silent. If the library fails, the cause may be
 * the exit of a rank, which the engine knows of or will soon detect. Therefore the library's failure is reported only
 * after a delay.
 */
#ifndef LS_COMM_BACKEND_MODULE_COLLECTIVES_H
#define LS_COMM_BACKEND_MODULE_COLLECTIVES_H

#include "comm/transport.h"

enum { LS_LIBRARY_WHY = 384 }; /* maximum size in bytes of the reason for a library failure */

typedef enum ls_library_state { LS_LIBRARY_BUSY = 0, LS_LIBRARY_DONE, LS_LIBRARY_FAILED } ls_library_state;

/* The collectives of an endpoint. The library's own struct must begin with this struct. */
typedef struct ls_collectives {
    ls_transport entries; /* functions of the endpoint, which replace the TCP transport's functions */
    const ls_transport *tcp;
    ls_endpoint *endpoint;
    const struct ls_collective_library *library;
    ls_call call;      /* the call in progress, with its own copies of counts and displacements */
    uint64_t began_ns; /* time at which the library began to execute the call */
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

/* The functions of a library. A function that fails writes the reason to `own->why` or sets an error. */
typedef struct ls_collective_library {
    const char *name;     /* name of the backend */
    size_t greeting_size; /* size in bytes of the greeting that a rank sends to another rank */
    size_t size;          /* size in bytes of the library's struct, which begins with ls_collectives */
    ls_status failure;    /* the status of ls_collectives_fail */
    bool wakes; /* the library writes to ls_tcp_waker when a collective has finished; otherwise, the endpoint polls */

    bool (*can_make)(const ls_endpoint *endpoint, const ls_call *call); /* entry of ls_transport */
    ls_status (*prepare)(ls_collectives *own);                          /* called at the first collective */
    ls_status (*greet)(ls_collectives *own, int peer, void *greeting);  /* writes the greeting to `peer` */

    /* Begins own->call, after all ranks have exchanged greetings. Does not wait. */
    ls_status (*begin)(ls_collectives *own);

    /* Returns the state of the call. Is not called again after a failure. */
    ls_library_state (*look)(ls_collectives *own);

    /*
     * Shuts down the library's part of the endpoint. With `abort`, cancels calls in progress, first here and then on
     * other ranks. Otherwise, pending data is sent within `linger_ns`. Afterwards, the library uses no memory of any
     * call. May be called more than once.
     */
    void (*end)(ls_collectives *own, bool abort, uint64_t linger_ns);
} ls_collective_library;

/* Adds a library's collectives to an endpoint of the TCP transport that has not been used yet. `used` selects the
 * calls that use the library by default. The endpoint's `close` also shuts down the library's part. Returns NULL and
 * sets LS_ERR_MEMORY if out of memory. */
ls_collectives *ls_collectives_add(ls_endpoint *endpoint, const ls_collective_library *library,
                                   ls_own_collectives used);

/* Return the greeting sent to `peer`, and the greeting received from `peer`. */
void *ls_collectives_said(const ls_collectives *own, int peer);
void *ls_collectives_heard(const ls_collectives *own, int peer);

/* Sets the error for a library failure, with the reason in own->why. Returns the library's status. */
ls_status ls_collectives_fail(const ls_collectives *own);

#endif
