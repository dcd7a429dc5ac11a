/*
 * PowerSGD (Vogels, Karimireddy and Jaggi, arXiv 1905.13727): averages gradients that are matrices as products of two
 * thin matrices. The gradient of a rank plus its error feedback is M [rows, columns]. With the matrix Q [columns, rank]
 * from the last pass, the ranks average P = M Q and orthogonalize its columns. Then they average Q = M^T P. The result
 * is P Q^T on every rank. The difference between M and P Q^T is the rank's next error feedback.
 *
 * PowerSGD is not an ls_wire_format: it needs the shapes of the parameters, and two all-reduces.
 */
#ifndef LS_PARALLEL_POWERSGD_H
#define LS_PARALLEL_POWERSGD_H

#include "parallel/averaging.h"

/*
 * Prepares state->powersgd for matrices of rank `rank` (not a rank of the communicator). The gradients must be f32 on
 * the CPU, and the reducer must be open. Gradients that would not be smaller as two matrices are sent unchanged.
 * Collective.
 */
ls_status ls_powersgd_open(ls_data_parallel_state *state, int rank);
void ls_powersgd_close(ls_powersgd *powersgd);

/*
 * Replaces the gradients with the mean over the ranks of `factor` times the gradient. The ranks have averaged the tail,
 * which shows which parameters have a new gradient on any rank. Other gradients stay unchanged. Collective.
 *
 * If a compressed gradient contains Inf or NaN on any rank, each element of its mean is NaN. The mean of a gradient
 * that is sent unchanged is Inf or NaN only in the elements that are Inf or NaN on some rank. In both cases, no error
 * feedback changes, because ls_grad_scaler skips the step.
 */
ls_status ls_powersgd_average(ls_data_parallel_state *state, double factor);

/* Clears the error feedback, and restarts with the initial matrices Q. */
void ls_powersgd_restart(ls_powersgd *powersgd);

/* Returns a borrowed pointer to this rank's error feedback, followed by the matrices Q. Sets `*count` to the total
 * number of elements. */
float *ls_powersgd_numbers(const ls_powersgd *powersgd, int64_t *count);

#endif
