/*
 * The table of the engine's algorithms, and the selection among them. A call begins with the exchange of headers, by
 * which the ranks agree on the call (engine/headers.c). An inline algorithm sends all data along with the headers. The
 * other algorithms run after the agreement.
 */
#ifndef LS_COMM_ALGORITHMS_TABLE_H
#define LS_COMM_ALGORITHMS_TABLE_H

#include "comm/algorithm.h"
#include "comm/engine/inside.h"

struct ls_algorithm {
    ls_algorithm_id id;
    const char *about;
    uint32_t calls; /* bits of the operations */

    /* Returns false if the algorithm cannot execute the engine's call. All ranks that agree on the call get the same
     * answer, except that only the root of a scatterv knows its size. */
    bool (*is_usable)(const ls_engine *engine);

    /* Returns the cost in the network model, as the number of bytes that a link transfers in the same time. The cost
     * is the same on all ranks. If it is 0 or less, no other algorithm is considered. */
    double (*cost)(const ls_engine *engine);

    /* Runs before the exchange of headers. May be NULL. */
    ls_status (*prepare)(ls_engine *engine);

    /* Runs after each level of recursive doubling of the headers, with that level's partner. May be NULL. */
    ls_status (*after_level)(ls_engine *engine);

    /* The stage after the agreement. NULL if the algorithm is inline. */
    ls_engine_stage *run;
};

/* Returns the algorithm for the engine's call: the algorithm that LOCKSTEP_ALGORITHM forces, otherwise the cheapest. */
const ls_algorithm *ls_algorithm_select(const ls_engine *engine);

/* Returns the algorithm that supports every call. */
const ls_algorithm *ls_algorithm_direct(void);

/* Forces the algorithm for all calls that support it. For tests. */
void ls_algorithm_force(ls_engine *engine, ls_algorithm_id id);

/* ---- cost.c ------------------------------------------------------------------------------------------------------ */

bool ls_cost_has_equal_machines(const ls_engine *engine);
double ls_cost_inline(const ls_engine *engine);
double ls_cost_rabenseifner(const ls_engine *engine);
double ls_cost_van_de_geijn(const ls_engine *engine);
double ls_cost_bruck(const ls_engine *engine);
double ls_cost_hierarchical(const ls_engine *engine);
double ls_cost_direct(const ls_engine *engine);
double ls_cost_native(const ls_engine *engine);

/* Returns false if the network's native collective must not be used for the engine's call, because it is forbidden
 * or slower. */
bool ls_native_is_usable(const ls_engine *engine);

/* ---- the algorithms ---------------------------------------------------------------------------------------------- */

ls_status ls_rabenseifner_prepare(ls_engine *engine);
ls_status ls_rabenseifner_level(ls_engine *engine);
ls_engine_stage ls_rabenseifner_run, ls_van_de_geijn_run, ls_bruck_run, ls_hierarchical_run, ls_direct_run,
    ls_native_run;

#endif
