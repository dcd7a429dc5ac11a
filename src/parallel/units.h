/*
 * Units of sharded parameters and gradients (stages 2 and 3 of ZeRO): recomputed modules. Only their forward functions
 * use their parameters. In stage 3, a rank has all parameters of a unit only while the unit runs, in the forward or the
 * backward pass. In stages 2 and 3, it keeps only the mean gradients of its own elements.
 */
#ifndef LS_PARALLEL_UNITS_H
#define LS_PARALLEL_UNITS_H

#include "parallel/shards.h"

typedef struct ls_sharded_unit {
    ls_unit base; /* first member */
    ls_shards *shards;
    ls_module *module;
    ls_range *ranges; /* ranges of the parameters that only this module has */
    int range_count;
    ls_tensor **parameters; /* borrowed */
    int parameter_count;
    int64_t gradient_bytes; /* bytes of gradients on this rank, as counted in the account */
    int runs;               /* number of runs that have entered and not yet left the unit */
    bool absent;            /* the parameters are marked LS_ABSENT */
    struct ls_sharded_unit
        *next[2];   /* the unit that was entered next in the latest forward and backward pass; or NULL */
    char *earlier;  /* while the backward pass runs, the gradients of earlier passes for this rank's own elements; or
                       NULL */
    uint8_t *marks; /* marks of the parameters, on which the ranks agree in the backward pass */
} ls_sharded_unit;

/*
 * Creates the units of a model: its modules with ls_recompute or, if there are none, the layers of an ls_sequential, on
 * which it calls ls_recompute. Sets the ranges of `shards`. Stage 1 has no units. With `overlaps`, exchanges overlap
 * with computation; the call is then collective.
 */
ls_status ls_units_open(ls_shards *shards, bool overlaps);
void ls_units_close(ls_shards *shards);

/* Gathers all parameters on this rank, and keeps them until called with false. Collective if `on` is true. `shards`
 * may be NULL. */
ls_status ls_units_gather(ls_shards *shards, bool on);

/*
 * Gathers on this rank the parameters of only the unit that contains `parameter`; NULL selects no unit. Without this
 * call, a unit has its parameters only after ls_units_gather. Collective. `shards` may be NULL.
 */
ls_status ls_units_gather_one(ls_shards *shards, const ls_tensor *parameter);

#endif
