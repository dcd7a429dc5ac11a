/*
 * How data-parallel ranks share the state of optimizers: ZeRO (Rajbhandari et al., "ZeRO: Memory optimizations toward
 * training trillion parameter models", 2020). Each rank owns adjacent elements of the flat buffers of parameters, keeps
 * the state of these elements only, and steps only them. The functions are parallel's (parallel/shards.c).
 */
#ifndef LS_OPTIM_SHARDING_H
#define LS_OPTIM_SHARDING_H

#include "autograd/op.h"

/*
 * Elements whose squares ls_clip_grad_norm adds up in one f64 number, from the start of a parameter. Ranks own whole
 * blocks, so that the norm has the same bits however the parameters are sharded.
 */
enum { LS_NORM_BLOCK = 4096 };

/* Adjacent elements of a parameter. */
typedef struct ls_shard {
    int64_t first;
    int64_t count; /* may be 0; then `first` has no meaning */
} ls_shard;

/* The sharding of the parameters of one data-parallel module. Leaves point to it (ls_leaf). */
struct ls_sharding {
    int ranks;
    int rank;
    const void *comm; /* the same for shardings over the same communicator */
    /*
     * Decides which elements each rank owns: whole parameters, or any elements. The first call decides. Fails with
     * LS_ERR_UNSUPPORTED if a method needs whole parameters, and an earlier method did not.
     */
    ls_status (*decide)(ls_sharding *sharding, const char *call, bool whole);
    /* Returns the elements of a parameter that this rank owns; a negative count if the parameter was moved. */
    ls_shard (*part)(const ls_sharding *sharding, const ls_tensor *parameter);
    /* Fails if the ranks may have different gradients, or if an earlier step has failed on some ranks. */
    ls_status (*check)(const ls_sharding *sharding, const char *call);
    /*
     * Gives every rank the elements of the parameters that their owners have stepped. `failed`: this rank's step has
     * failed, with the present error; then fails on every rank. `method` is a hash of the numbers that all ranks must
     * step with, such as the learning rate; if ranks have others, fails on every rank. Collective.
     */
    ls_status (*share_parameters)(ls_sharding *sharding, const char *call, bool failed, uint64_t method);
    /* Does the same for a dense tensor of the parameter's shape. Collective. */
    ls_status (*share_tensor)(ls_sharding *sharding, const ls_tensor *parameter, const ls_tensor *tensor);
    /* Replaces numbers by their sums over the ranks. Collective. */
    ls_status (*add)(ls_sharding *sharding, double *numbers, int64_t count);
    /* The optimizer's state was restored: an earlier failure is forgotten. */
    void (*restored)(ls_sharding *sharding);
    /* Adds a reference (true), or drops it. */
    void (*hold)(ls_sharding *sharding, bool hold);
};

#endif
