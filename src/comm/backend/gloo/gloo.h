/*
 * Backend gloo: backend tcp, whose engine agrees on each call, sends messages and notices failures, with libgloo's own
 * collectives for what is large: they are the collectives of the network (comm/transport.h), as MPI's own are of
 * backend mpi.
 *
 * gloo.c opens communicators; endpoint.c adds the collectives to an endpoint of transport tcp; library.cc is libgloo,
 * and the only C++.
 *
 * The first such collective of a communicator connects its ranks: each tells each, over the connection that transport
 * tcp has with it, where libgloo listens for it, and a nonce; once connected, each proves to each over libgloo that it
 * knows the job's key, before anything of the user's is sent. A thread of the communicator carries collectives out one
 * after the other, and the engine looks whether they have ended. A rank that gives up closes its connections, so that
 * the others' collectives end too; what had failed is for the engine to find out, which libgloo's failure leaves a
 * while for it.
 */
#ifndef LS_COMM_BACKEND_GLOO_GLOO_H
#define LS_COMM_BACKEND_GLOO_GLOO_H

#include "comm/auth.h"
#include "comm/transport.h"

/* Gives an endpoint of transport tcp, not used yet, libgloo's collectives. `address` is where to listen, as ls_join has
 * it; both are copied. LS_ERR_MEMORY, LS_ERR_IO. */
ls_status ls_gloo_attach(ls_endpoint *endpoint, const char *address, const ls_key *key, ls_own_collectives own);

#endif
