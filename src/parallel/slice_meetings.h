/*
 * Slices that meet: models with statistics of the global batch, such as batch normalization. All slices of a rank run
 * in turns, each on a fiber (base/fiber.h). A slice that needs a sum over the batch waits for the others. When all
 * slices of the rank wait, the ranks add up their numbers, and the slices continue.
 *
 * Each slice has gradients of its own, because the backward passes of slices are in progress at the same time. What a
 * slice has in memory that all slices use (the state of the thread, for example) is exchanged when another slice
 * continues.
 */
#ifndef LS_PARALLEL_SLICE_MEETINGS_H
#define LS_PARALLEL_SLICE_MEETINGS_H

#include "parallel/slices.h"

typedef struct ls_slice_run ls_slice_run;

/*
 * Runs the function for each slice of this rank that has samples, until all slices of all ranks have ended. `samples`
 * returns the number of samples of a slice. The function gets the slice's number over all ranks. If it fails on a rank,
 * returns its error there and LS_ERR_MISMATCH on the other ranks. `before` is the status of this rank: if it is not
 * LS_OK, no slice runs on any rank. Collective.
 */
typedef ls_status ls_slice_function(void *user, int slice);
ls_status ls_slices_run_together(ls_data_parallel_state *state, ls_status before, ls_slice_function *function,
                                 void *user, int64_t (*samples)(const void *user, int slice));

/* Sums the numbers over all slices. The running slice waits for the others. */
ls_status ls_slice_meet(ls_data_parallel_state *state, double *numbers, int64_t count);

/* Gives the model's leaves and flat buffers the gradients of a slice of this rank, from 0. */
void ls_slice_run_fetch(ls_data_parallel_state *state, int index);

void ls_slice_runs_free(ls_slice_run *runs, int count, int parameter_count);

#endif
