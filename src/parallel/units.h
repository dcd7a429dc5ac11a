/*
 * Units of sharded parameters and gradients (stages 2 and 3 of ZeRO): recomputed modules, whose forward functions are
 * the only code that uses their parameters. A rank has all parameters of a unit only while the unit runs, in the
 * forward and in the backward pass (stage 3), and keeps only the mean gradients of its own elements (stages 2 and 3).
 */
#ifndef LS_PARALLEL_UNITS_H
#define LS_PARALLEL_UNITS_H

#include "parallel/shards.h"

typedef struct ls_sharded_unit {
    ls_unit base; /* first member */
    ls_shards *shards;
    ls_module *module;
    ls_range *ranges; /* of the parameters that only this module has */
    int range_count;
    ls_tensor **parameters; /* borrowed */
    int parameter_count;
    int64_t gradient_bytes; /* counted gradients on this rank */
    int runs;               /* runs that have entered it, and not left */
    bool absent;            /* the parameters have the mark LS_ABSENT */
    char *earlier;  /* gradients of earlier passes of this rank's own elements, while the backward pass runs; or NULL */
    uint8_t *marks; /* of the parameters, which the ranks agree on in the backward pass */
} ls_sharded_unit;

/*
 * Makes the units of a model: its modules with ls_recompute, or the layers of an ls_sequential without such modules,
 * for which it calls ls_recompute. Sets the ranges of `shards`. Stage 1 has no units.
 */
ls_status ls_units_open(ls_shards *shards);
void ls_units_close(ls_shards *shards);

/* Gives this rank all parameters until called with false. Collective with true. `shards` may be NULL. */
ls_status ls_units_gather(ls_shards *shards, bool on);

/*
 * Gives this rank the parameters of the unit that has `parameter`, and no other unit's; NULL: of no unit. Without this
 * call, a unit has them after ls_units_gather only. Collective. `shards` may be NULL.
 */
ls_status ls_units_gather_one(ls_shards *shards, const ls_tensor *parameter);

#endif
