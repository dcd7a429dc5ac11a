/*
 * Sharded state (ZeRO): which elements of the flat buffers each rank owns, and the exchange of elements between their
 * owners and the other ranks. optim/sharding.h is what optimizers see.
 */
#ifndef LS_PARALLEL_SHARDS_H
#define LS_PARALLEL_SHARDS_H

#include <lockstep/comm.h>

#include <stdatomic.h>

#include "nn/module.h"
#include "optim/sharding.h"
#include "tensor/account.h"

/* Adjacent elements of a flat buffer. */
typedef struct ls_range {
    int flat;
    int64_t offset;
    int64_t count;
} ls_range;

typedef struct ls_shards ls_shards;
struct ls_shards {
    ls_sharding base; /* first member */
    atomic_int references;
    int stage;
    ls_module *replicas; /* borrowed; NULL after ls_shards_close */
    ls_module *model;    /* borrowed, like it */
    ls_comm *comm;
    ls_flat flats[LS_FLAT_LIMIT]; /* holds the memory */
    int flat_count;
    int64_t *ends[LS_FLAT_LIMIT];     /* the first element after each rank's elements */
    ls_account *account;              /* held; counts the elements on this rank; NULL: the storages are counted */
    int64_t present[LS_MEMORY_KINDS]; /* counted bytes */
    size_t *counts;                   /* of one exchange, one per rank; then as many displacements */
    ls_range *ranges; /* of all parameters: of units (units.h), then, from unit_range_count on, the rest */
    int range_count;
    int unit_range_count;
    struct ls_sharded_unit *units; /* units.c */
    int unit_count;
    void (*on_decided)(ls_shards *shards);       /* called when ranks own their elements; NULL: nothing to do */
    bool (*averages)(const ls_module *replicas); /* returns false while the ranks may have different gradients */
    uint64_t versions;                           /* of the parameters of the units, when they were gathered; units.c */
    bool gathered; /* this rank has all parameters of the units until ls_units_gather(false) */
    bool decided;
    bool whole;  /* each rank owns whole parameters */
    bool failed; /* an exchange or a step failed on some rank: the ranks may have different parameters */
};

/* Returns the function that reserves memory for the flat buffers of a stage; NULL selects ordinary memory. */
ls_flat_memory *ls_shards_memory(int stage);

/*
 * Shards the state of optimizers that are made for the parameters of `model` from now on, whose gradients `replicas`
 * averages over `comm`. The flat buffers are the model's, in ls_shards_memory. The caller sets the ranges and the
 * functions, and calls ls_shards_close. Returns NULL with an error on failure.
 */
ls_shards *ls_shards_open(ls_module *replicas, ls_module *model, ls_comm *comm, int stage, const ls_flat *flats,
                          int flat_count);

/* Ends the sharding for optimizers made later. An optimizer that exists cannot step any more. NULL is allowed. */
void ls_shards_close(ls_shards *shards);

/* Divides the elements among the ranks, unless an optimizer has. */
ls_status ls_shards_decide(ls_shards *shards, const char *call);

/* Fails after a failed exchange, or after ls_comm_free. */
ls_status ls_shards_check(const ls_shards *shards, const char *call);

/* Sets the range of a parameter, without the gap after it. Returns false if the parameter was moved to other memory. */
bool ls_shards_find(const ls_shards *shards, const ls_tensor *parameter, ls_range *range);

/* Returns the address of the parameters or gradients of a range. */
void *ls_shards_elements(const ls_shards *shards, const ls_range *range, bool gradients);

/* Returns the elements of a range that this rank owns. */
ls_range ls_shards_own(const ls_shards *shards, const ls_range *range);

/* Gives every rank the parameters of a range. Collective. */
ls_status ls_shards_share(ls_shards *shards, const ls_range *range);

/*
 * Replaces this rank's own gradients of a range by the mean over ranks. The range's other elements are undefined
 * afterwards. Collective.
 */
ls_status ls_shards_reduce(ls_shards *shards, const ls_range *range);

/* Gives back the memory of the elements of a range that this rank does not own, of parameters or gradients. */
void ls_shards_discard(const ls_shards *shards, const ls_range *range, bool gradients);

/* Counts more bytes of parameters or gradients on this rank, or fewer (negative), from stage 2 on. */
void ls_shards_count(ls_shards *shards, ls_memory_kind kind, int64_t bytes);

#endif
