/*
 * parallel: where tensors and communication meet. Synchronised models and data-parallel training; later sharding,
 * pipelines and tensor parallelism.
 */
#ifndef LS_PARALLEL_PARALLEL_H
#define LS_PARALLEL_PARALLEL_H

#include <lockstep/parallel.h>

/* The sum of a number over the ranks of a communicator; see ls_division. Collective. */
ls_status ls_add_over_ranks(void *comm, double *number);

#endif
