/*
 * The exchanges of a unit (units.h): gathers its parameters before it runs, and averages its gradients afterwards. With
 * overlap, both take place while other units compute: the parameters of the unit that ran next in the previous pass are
 * prefetched (as in FSDP), and the gradients of a unit are averaged during the next unit's backward pass. These
 * exchanges use a private communicator.
 */
#ifndef LS_PARALLEL_UNIT_EXCHANGE_H
#define LS_PARALLEL_UNIT_EXCHANGE_H

#include "parallel/units.h"

/* Gathers the parameters of a unit, unless this rank has them. Collective. */
ls_status ls_unit_gather(ls_sharded_unit *unit);

/*
 * Discards the parameters that this rank does not own, unless the unit is running or no rank owns parameters yet. Does
 * not communicate.
 */
void ls_unit_reshard(ls_sharded_unit *unit);

/*
 * Notes that a unit has been entered. With overlap, begins to gather the unit that is expected next. Collective. Call
 * this only after an ls_unit_gather that communicated: its communication shows that no rank has failed so far.
 */
ls_status ls_unit_prefetch(ls_sharded_unit *unit, bool backward);

/*
 * Prepares a unit that is entered in the backward pass for its gradients: moves the gradients of earlier passes to
 * `earlier`, and records which parameters have gradients.
 */
ls_status ls_unit_begin_gradients(ls_sharded_unit *unit);

/*
 * Replaces this rank's own gradients with their means, and adds `earlier`. With overlap, and during a pass of the
 * data-parallel module, only begins the exchange: ls_units_end_average ends it. Collective. If the unit's backward pass
 * has failed with `status`, only discards the gradients, and returns `status`.
 */
ls_status ls_unit_end_gradients(ls_sharded_unit *unit, ls_status status);

/* Ends the averaging of the unit whose gradients are in flight. Returns LS_OK if there is none. */
ls_status ls_units_end_average(ls_shards *shards);

/*
 * Ends all exchanges in flight. Prefetched parameters are discarded. With `forget`, also forgets which units follow
 * each other: after a failed step, the ranks may expect different units.
 */
ls_status ls_units_settle(ls_shards *shards, bool forget);

/* Ends all exchanges in flight before the units are freed, without waiting for other ranks. */
void ls_units_cancel(ls_shards *shards);

#endif
