/*
 * parallel: where tensors and communication meet. Synchronised models and data-parallel training; later sharding,
 * pipelines and tensor parallelism.
 */
#ifndef LS_PARALLEL_PARALLEL_H
#define LS_PARALLEL_PARALLEL_H

#include <lockstep/parallel.h>

#endif
