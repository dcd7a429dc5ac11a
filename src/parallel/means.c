/*
 * Detects losses that scale a sum or mean over samples by a number of a single rank, and losses with constants from the
 * samples of a single rank.
 *
 * ls_backward sums the gradients of sum(l) / n over the ranks. This loss is therefore correct if n is the count of the
 * global batch. If n is the count of this rank, the gradient is P times too large on P ranks. Three signs of this
 * mistake are visible in the gradient of the loss with respect to the sum: it is the reciprocal of a count of this
 * rank, it differs between ranks, or the weights of this rank's samples add up to one. The gradient with respect to a
 * mean must also be equal on all ranks. Rank 0 warns once.
 */
#include <math.h>

#include "base/log.h"
#include "parallel/data_parallel.h"

/* The mistake divides by this rank's count in every pass. A count of the global batch may equal this rank's count in
 * some passes. */
enum { LEAST_REPEATS = 4 };

/*
 * The largest variance of equal factors, relative to their squared mean, for sums and for means. Factors of means may
 * be rounded to bf16, and the ranks exchange them as f32.
 */
static const double SUMS_DIFFER = 1e-8, MEANS_DIFFER = 1e-5;

/* The square of a larger factor, or of NaN, cannot be exchanged as f32. */
static const double LARGEST_FACTOR = 1e15;

/* Ends the checks. Returns whether this rank logs the warning. */
static bool begin_warning(ls_data_parallel_state *state) {
    state->mean_checks = 0;
    return ls_comm_rank(state->comm) == 0;
}

/* Warns about the factor of a sum, or of a mean. */
static void warn_of_factor(ls_data_parallel_state *state, bool is_mean) {
    if (!begin_warning(state)) {
        return;
    }
    ls_log_write(LS_LOG_WARNING, "%s",
                 is_mean
                     ? "ls_backward: this loss scales a mean over samples by a number of this rank, but one process "
                       "would compute this number from the global batch; reduce it over the ranks first "
                       "(ls_allreduce)"
                     : "ls_backward: this loss is a sum over samples, which data parallelism adds up over "
                       "ranks; use ls_mean, or divide by the count of the global batch");
}

/* Warns about a constant that `operation` computed from this rank's samples. */
static void warn_of_constant(ls_data_parallel_state *state, const char *operation) {
    if (begin_warning(state)) {
        ls_log_write(
            LS_LOG_WARNING,
            "ls_backward: this loss treats the result of %s over this rank's samples as a constant, but one process "
            "would use the result over the global batch; reduce it over the ranks first (ls_allreduce)",
            operation);
    }
}

/* Warns that `operation` combines samples with a constant of other samples. */
static void warn_of_pairs(ls_data_parallel_state *state, const char *operation) {
    if (begin_warning(state)) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_backward: %s combines each sample with a constant that contains only this rank's samples, but "
                     "one process would use all samples of the global batch; gather the constant first (ls_allgather)",
                     operation);
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

/*
 * Stores the sum of the factors of the loss, for ls_means_compare. If the loss has sums and means, compares only the
 * factors of the sums. If the program exchanges a mean itself, for example with ls_allgather, the mean's factors on the
 * ranks may differ.
 */
static void add_factors(ls_data_parallel_state *state, const ls_pass_findings *findings) {
    bool comparable = state->samples > 0 && (state->scales_means ? !findings->exchanges : state->agreed);
    double factor = 0;
    for (int i = 0; i < findings->sums; i++) {
        const ls_found_sum *sum = &findings->sum[i];
        factor += sum->is_mean == state->scales_means ? sum->factor : 0;
        comparable &= !sum->is_ambiguous || state->samples > 1;
    }
    state->factor = comparable && fabs(factor) < LARGEST_FACTOR ? factor : 0;
}

void ls_means_check(ls_data_parallel_state *state, const ls_pass_findings *findings) {
    state->mean_checks--;
    state->scales_means = findings->sums > 0;
    bool divides_sum = false, divides_mean = false;
    for (int i = 0; i < findings->sums; i++) {
        const ls_found_sum *sum = &findings->sum[i];
        const bool normalized = is_normalized(state, sum);
        state->scales_means &= sum->is_mean;
        divides_mean |= sum->is_mean && normalized;
        divides_sum |=
            !sum->is_mean && (normalized || (state->agreed && is_divided_by_own_count(state, sum->factor, sum->sizes)));
    }
    add_factors(state, findings);
    state->own_divisions = divides_sum || divides_mean ? state->own_divisions + 1 : 0;
    if (state->own_divisions >= LEAST_REPEATS) {
        warn_of_factor(state, !divides_sum);
    } else if (findings->constant != NULL && findings->divides && !state->scales_means) {
        warn_of_factor(state, false);
    } else if (findings->constant != NULL) {
        warn_of_constant(state, findings->constant);
    } else if (findings->pairs != NULL) {
        warn_of_pairs(state, findings->pairs);
    }
}

/* If every rank scales by the same number, all factors are equal, so their variance is zero. */
void ls_means_compare(ls_data_parallel_state *state, double ranks, double sum, double sum_of_squares, bool of_means) {
    const double square = sum * sum, least = of_means ? MEANS_DIFFER : SUMS_DIFFER;
    if (state->mean_checks > 0 && ranks * sum_of_squares - square > least * square) {
        warn_of_factor(state, of_means);
    }
}
