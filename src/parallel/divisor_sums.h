/*
 * The divisors of losses, and the scaling factors derived from them; averaging.c explains the formulas. If a loss is
 * not one mean over samples, the ranks agree on its scaling factors before the backward pass.
 */
#ifndef LS_PARALLEL_DIVISOR_SUMS_H
#define LS_PARALLEL_DIVISOR_SUMS_H

#include "parallel/data_parallel.h"

/* Returns the weight of the gradients of a loss with this divisor. The weight is negligible if the divisor is 0. */
double ls_divisor_weight(const ls_data_parallel_state *state, double divisor);

/* Agrees on the divisor that has weight 1: the largest divisor of all ranks, or 1 if no rank has a divisor.
 * Collective. */
ls_status ls_agree_on_usual(ls_data_parallel_state *state, double divisor);

/* Returns the loss of the pass that has just ended, on this rank or in a slice. */
ls_step_loss ls_step_loss_of(const ls_data_parallel_state *state, const ls_tensor *loss);

/* Numbers that are summed over all ranks. The divisors are exchanged a few at a time. */
enum { LS_DIVISORS = 8 };
typedef struct ls_divisor_sums {
    double ranks; /* number of ranks that run the pass */
    double sums;  /* number of sums in the loss, on each of these ranks */
    double squares;
    double samples;
    double failed;  /* number of ranks on which the pass failed */
    double factors; /* number of ranks that have a factor: see state->factor */
    double factor;
    double factor_square; /* negative for factors of means (state->scales_means) */
    double divisor[LS_DIVISORS];
} ls_divisor_sums;

/*
 * Returns this rank's numbers, with the divisors from index `first`. `loss` is NULL on a rank that does not run the
 * pass, or on which the pass has failed.
 */
ls_divisor_sums ls_divisor_sums_of(const ls_data_parallel_state *state, const ls_batch_loss *loss, int first,
                                   bool failed);

/* Fails with LS_ERR_MISMATCH if the number of sums in the loss differs between ranks. */
ls_status ls_divisor_sums_check(const ls_divisor_sums *own, const ls_divisor_sums *all);

/*
 * Sets the scaling factors of the loss and of its sums from index `first`. A loss that is one mean multiplied by a
 * tensor that requires a gradient is scaled as a whole.
 */
void ls_divisor_sums_weigh(ls_data_parallel_state *state, ls_batch_loss *loss, int first, const ls_divisor_sums *own,
                           const ls_divisor_sums *all);

/* Agrees on the scaling factors of a pass, and sets them. `loss` is as in ls_divisor_sums_of. Collective. */
ls_status ls_agree_on_factors(ls_data_parallel_state *state, ls_batch_loss *loss, bool failed);

/*
 * The same agreement for a replay of a pass. Uses only the counts in `loss`, not its tape. `divisors` are the
 * LS_DIVISORS divisors of its sums. Stores the scaling factors of the loss and of its sums. Collective.
 */
ls_status ls_agree_again(ls_data_parallel_state *state, const ls_batch_loss *loss, const double *divisors,
                         double *of_loss, double *of_sums);

#endif
