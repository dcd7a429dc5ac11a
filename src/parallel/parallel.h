/*
 * parallel: where tensors and communication meet. Synchronised models and data-parallel training; later sharding,
 * pipelines and tensor parallelism.
 */
#ifndef LS_PARALLEL_PARALLEL_H
#define LS_PARALLEL_PARALLEL_H

#include <lockstep/parallel.h>

/* Zeroes the gradients of the flattened model that no backward pass has written since they were forgotten. */
void ls_clear_missing_gradients(ls_module *model);

#endif
