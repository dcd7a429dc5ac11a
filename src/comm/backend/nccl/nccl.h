/*
 * Backend nccl: backend tcp, whose engine agrees on each call, sends messages, notices failures and moves what is in
 * memory of the host, with NCCL for collectives whose buffers are in memory of GPUs (ls_call.stream): they are
 * collectives of the network (comm/transport.h), as MPI's own are of backend mpi.
 *
 * nccl.c opens communicators; endpoint.c adds the collectives to an endpoint of transport tcp; library.c calls libnccl
 * and CUDA.
 *
 * The first such call of a communicator has its ranks join one of NCCL's: each tells each, over the connection that
 * transport tcp has with it, which GPU it is on, and rank 0 also NCCL's unique id. NCCL's communicator does not block:
 * the engine looks, as it does for any call, whether a rank is gone or silent, while this asks whether NCCL has ended
 * or failed. A rank that gives up aborts it.
 */
#ifndef LS_COMM_BACKEND_NCCL_NCCL_H
#define LS_COMM_BACKEND_NCCL_NCCL_H

#include "comm/transport.h"

/* Gives an endpoint of transport tcp, not used yet, NCCL's collectives. `machine` is equal on ranks of one machine.
 * LS_ERR_MEMORY. */
ls_status ls_nccl_attach(ls_endpoint *endpoint, uint64_t machine);

/* Whether NCCL makes such collectives: `takes` of ls_backend. */
bool ls_nccl_takes(bool reduces, ls_dtype dtype, ls_reduction reduction);

#endif
