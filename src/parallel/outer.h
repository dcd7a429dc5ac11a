/* Outer optimizers (local SGD, DiLoCo): declarations for trials. */
#ifndef LS_PARALLEL_OUTER_H
#define LS_PARALLEL_OUTER_H

#include <lockstep/parallel.h>

/* Returns whether the ranks have taken training steps since the last outer step. */
bool ls_outer_has_local_steps(const ls_outer *outer);

/* Fails with LS_ERR_STATE if the outer optimizer was freed. */
ls_status ls_outer_check_here(const char *call, const ls_outer *outer);

/* Return the borrowed model and communicator. */
const ls_module *ls_outer_model(const ls_outer *outer);
ls_comm *ls_outer_comm(const ls_outer *outer);

/* Fails with LS_ERR_MISMATCH if the ranks' parameters differ. Collective. Call it only directly after an outer step. */
ls_status ls_outer_check(const ls_outer *outer);

/*
 * Restarts from the current parameters and buffers, which must be equal on all ranks: the program may have changed them
 * since the last outer step. Keeps the momentum.
 */
ls_status ls_outer_restart(ls_outer *outer);

/* Writes the options into `text`. */
void ls_outer_describe(const ls_outer *outer, char *text, size_t size);

#endif
