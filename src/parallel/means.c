/*
 * Detects a loss that divides a sum over samples by the sample count of a single rank.
 *
 * ls_backward sums the gradients of such a loss over the ranks. sum(l) / n is therefore correct if n is the count of
 * the global batch. If n is the count of this rank, the gradient is P times too large on P ranks. Three signs of this
 * mistake are visible in the gradient of the loss with respect to the sum: it is the reciprocal of a count of this
 * rank, it differs between ranks, or the weights of this rank's samples add up to one. Rank 0 warns once.
 */
#include <math.h>

#include "base/log.h"
#include "parallel/data_parallel.h"

/* The mistake divides by this rank's count in every pass. A count of the global batch may equal this rank's count in
 * some passes. */
enum { LEAST_REPEATS = 4 };

/* `constant` is the operation that computed a constant from this rank's samples, or NULL if the loss is a sum. */
static void warn(ls_data_parallel_state *state, const char *constant) {
    state->mean_checks = 0;
    if (ls_comm_rank(state->comm) != 0) {
        return;
    }
    if (constant == NULL) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_backward: this loss is a sum over samples, which data parallelism adds up over "
                     "ranks; use ls_mean, or divide by the count of the global batch");
    } else {
        ls_log_write(
            LS_LOG_WARNING,
            "ls_backward: this loss treats the result of %s over this rank's samples as a constant, but one process "
            "would use the result over the global batch; reduce it over the ranks first (ls_allreduce)",
            constant);
    }
}

static bool is_one_over(double factor, double count) {
    return fabs(fabs(factor) * count - 1) < 1e-5;
}

/*
 * Returns whether the factor of a sum is the reciprocal of a count of this rank, and not of a count of the global
 * batch. `sizes` are the element counts of the summed tensors on this rank. A size divided by `share` is the size in a
 * single process.
 */
static bool is_divided_by_own_count(const ls_data_parallel_state *state, double factor, const double *sizes) {
    const double own = (double)state->samples;
    const double share = own / state->all_samples;
    bool by_own = is_one_over(factor, own);
    bool by_all = is_one_over(factor, state->all_samples) || is_one_over(factor, 1) || own == state->all_samples;
    for (int i = 0; i < LS_FOUND_SIZES; i++) {
        by_own |= is_one_over(factor, sizes[i]);
        by_all |= is_one_over(factor, sizes[i] / share);
    }
    return by_own && !by_all;
}

/* Returns whether the constant weights of this rank's samples add up to one, as the weights of all samples should. */
static bool is_normalized(const ls_data_parallel_state *state, const ls_found_sum *sum) {
    const bool alone = state->agreed && (double)state->samples == state->all_samples;
    return is_one_over(sum->total_weight, 1) && !alone;
}

void ls_means_check(ls_data_parallel_state *state, const ls_pass_findings *findings) {
    state->mean_checks--;
    state->factor = 0;
    bool divided = false;
    for (int i = 0; i < findings->sums; i++) {
        const ls_found_sum *sum = &findings->sum[i];
        if (!sum->is_mean && state->agreed) {
            state->factor += sum->factor;
            divided |= is_divided_by_own_count(state, sum->factor, sum->sizes);
        }
        divided |= is_normalized(state, sum);
    }
    state->own_divisions = divided ? state->own_divisions + 1 : 0;
    const bool repeats = state->own_divisions >= LEAST_REPEATS;
    if (repeats || findings->constant != NULL) {
        warn(state, repeats || findings->divides ? NULL : findings->constant);
    }
}

/* If every rank divides by the same number, all factors are equal, so their variance is zero. */
void ls_means_compare(ls_data_parallel_state *state, double ranks, double sum, double sum_of_squares) {
    const double square = sum * sum;
    if (state->mean_checks > 0 && ranks * sum_of_squares - square > 1e-8 * square) {
        warn(state, NULL);
    }
}
