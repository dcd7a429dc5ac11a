/*
 * How data-parallel ranks shard the state of optimizers: ZeRO (Rajbhandari et al., "ZeRO: Memory optimizations toward
 * training trillion parameter models", 2020). Each rank owns a contiguous range of the flat buffers of parameters. It
 * keeps the state of only these elements, and updates only these. The functions are implemented in parallel/shards.c.
 */
#ifndef LS_OPTIM_SHARDING_H
#define LS_OPTIM_SHARDING_H

#include "autograd/op.h"

/*
 * Number of elements, counted from the start of a parameter, whose squares ls_clip_grad_norm adds up in one f64 number.
 * Ranks own whole blocks, so that the norm is bit-identical however the parameters are sharded.
 */
enum { LS_NORM_BLOCK = 4096 };

/* A contiguous range of a parameter's elements. */
typedef struct ls_shard {
    int64_t first;
    int64_t count; /* may be 0; `first` is then undefined */
} ls_shard;

/* The sharding of the parameters of one data-parallel module. Leaves point to it (ls_leaf). */
struct ls_sharding {
    int ranks;
    int rank;
    const void *comm; /* identifies the communicator: equal for shardings over the same communicator */
    /*
     * Decides which elements each rank owns: whole parameters, or arbitrary ranges. Only the first call decides. Fails
     * with LS_ERR_UNSUPPORTED if a method needs whole parameters but an earlier method did not.
     */
    ls_status (*decide)(ls_sharding *sharding, const char *call, bool whole);
    /* Returns the elements of a parameter that this rank owns. The count is negative if the parameter was moved. */
    ls_shard (*part)(const ls_sharding *sharding, const ls_tensor *parameter);
    /* Fails if the ranks may have different gradients, or if an earlier step failed on some ranks. */
    ls_status (*check)(const ls_sharding *sharding, const char *call);
    /*
     * Sends the updated elements of the parameters from their owners to all ranks. `failed` means that this rank's step
     * has failed with the thread's current error; the call then fails on every rank. `method` is a hash of the numbers
     * that must be equal on all ranks, such as the learning rate; if the hashes differ, the call fails on every rank.
     * Collective.
     */
    ls_status (*share_parameters)(ls_sharding *sharding, const char *call, bool failed, uint64_t method);
    /* Does the same for a dense tensor with the parameter's shape. Collective. */
    ls_status (*share_tensor)(ls_sharding *sharding, const ls_tensor *parameter, const ls_tensor *tensor);
    /* Replaces numbers with their sums over the ranks. Collective. */
    ls_status (*add)(ls_sharding *sharding, double *numbers, int64_t count);
    /* Records that the optimizer's state was restored, and clears the record of an earlier failure. */
    void (*restored)(ls_sharding *sharding);
    /* Adds a reference (true), or drops it. */
    void (*hold)(ls_sharding *sharding, bool hold);
};

#endif
