/*
 * Slices that synchronize within a step, for models with statistics of the global batch, such as batch normalization.
 * The slices of a rank take turns, each on its own fiber (base/fiber.h). A slice that needs a sum over the batch waits
 * for the other slices. When all slices of a rank wait, the ranks add up their numbers, and the slices continue.
 *
 * Each slice has its own gradients, because several backward passes are in progress at the same time. The contents of
 * memory that all slices use (the state of the thread, for example) are swapped when another slice continues.
 */
#ifndef LS_PARALLEL_SLICE_MEETINGS_H
#define LS_PARALLEL_SLICE_MEETINGS_H

#include "parallel/slices.h"

typedef struct ls_slice_run ls_slice_run;

/*
 * Runs the function for each slice of this rank that has samples, until all slices of all ranks have ended. `samples`
 * returns the number of samples in a slice. The function gets the slice's index among the slices of all ranks. If it
 * fails on a rank, returns its error there, and LS_ERR_MISMATCH on the other ranks. `before` is the status of this
 * rank; if it is not LS_OK, no slice runs on any rank. Collective.
 */
typedef ls_status ls_slice_function(void *user, int slice);
ls_status ls_slices_run_together(ls_data_parallel_state *state, ls_status before, ls_slice_function *function,
                                 void *user, int64_t (*samples)(const void *user, int slice));

/* Sums the numbers over all slices. The running slice waits for the other slices. */
ls_status ls_slice_meet(ls_data_parallel_state *state, double *numbers, int64_t count);

/* Copies the gradients of a slice of this rank, counted from 0, to the model's leaves and flat buffers. */
void ls_slice_run_fetch(ls_data_parallel_state *state, int index);

void ls_slice_runs_free(ls_slice_run *runs, int count, int parameter_count);

#endif
