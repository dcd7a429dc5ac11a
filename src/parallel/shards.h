/*
 * Sharded state of optimizers (ZeRO): which elements of the flat buffers each rank owns. optim/sharding.h is what
 * optimizers see.
 */
#ifndef LS_PARALLEL_SHARDS_H
#define LS_PARALLEL_SHARDS_H

#include <lockstep/comm.h>

#include "nn/module.h"
#include "optim/sharding.h"

/*
 * Shards the state of optimizers that are made for the parameters of `model` from now on, whose gradients `replicas`
 * averages over `comm`. The flat buffers are the model's. Sets *sharding, which ls_shards_close releases.
 */
ls_status ls_shards_open(ls_module *replicas, ls_module *model, ls_comm *comm, const ls_flat *flats, int flat_count,
                         ls_sharding **sharding);

/* Ends the sharding for optimizers made later. An optimizer that exists cannot step any more. NULL is allowed. */
void ls_shards_close(ls_sharding *sharding);

#endif
