/*
 * PowerSGD (Vogels, Karimireddy and Jaggi, arXiv 1905.13727): averages gradients that are matrices as products of two
 * thin matrices. The gradient of a rank plus its error feedback is M [rows, columns]. With a matrix Q of `rank` columns
 * from the last pass, the ranks average P = M Q and orthogonalize its columns. Then they average Q = M^T P. The result
 * is P Q^T on every rank. The difference to M is the rank's next error feedback.
 *
 * PowerSGD is not an ls_wire_format: it needs the shapes of the parameters, and two all-reduces.
 */
#ifndef LS_PARALLEL_POWERSGD_H
#define LS_PARALLEL_POWERSGD_H

#include "parallel/averaging.h"

/*
 * Prepares state->powersgd, with matrices of this rank (not a rank of the communicator). The gradients are f32 on the
 * CPU, and the reducer is open. Gradients that are not smaller as two matrices are sent unchanged. A collective call.
 */
ls_status ls_powersgd_open(ls_data_parallel_state *state, int rank);
void ls_powersgd_close(ls_powersgd *powersgd);

/*
 * Replaces the gradients by the mean over the ranks of `factor` times the gradient. The ranks have averaged the tail,
 * which says which parameters have a new gradient on any rank: other gradients stay as they are. A collective call.
 *
 * If a compressed gradient has Inf or NaN on any rank, each element of its mean is NaN. A gradient that is sent
 * unchanged has Inf or NaN in the elements that have it on a rank. In both cases, no error feedback changes, because
 * ls_grad_scaler skips the step.
 */
ls_status ls_powersgd_average(ls_data_parallel_state *state, double factor);

/* Forgets the error feedback and starts again from the first matrices Q. */
void ls_powersgd_restart(ls_powersgd *powersgd);

/* Returns this rank's error feedback, followed by the matrices Q: `*count` borrowed numbers. */
float *ls_powersgd_numbers(const ls_powersgd *powersgd, int64_t *count);

#endif
