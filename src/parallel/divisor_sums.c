#include "parallel/divisor_sums.h"

#include <math.h>
#include <string.h>

#include "parallel/averaging.h"
#include "parallel/meeting.h"
#include "parallel/slices.h"

/*
 * The weight of a rank without a divisor. It is negligible compared with other ranks' weights. If no rank has a
 * divisor, it keeps previously accumulated gradients in the average.
 */
static const double NO_WEIGHT = 0x1p-80;

double ls_divisor_weight(const ls_data_parallel_state *state, double divisor) {
    return divisor != 0 ? divisor / state->usual : NO_WEIGHT;
}

ls_status ls_agree_on_usual(ls_data_parallel_state *state, double divisor) {
    LS_TRY(ls_comm_allreduce(state->comm, &divisor, &divisor, 1, LS_F64, LS_MAX, NULL));
    state->usual = divisor > 0 ? divisor : 1;
    return LS_OK;
}

ls_step_loss ls_step_loss_of(const ls_data_parallel_state *state, const ls_tensor *loss) {
    const bool irregular = isnan(state->divisor);
    const double divisor = irregular ? (double)state->samples : state->divisor;
    return (ls_step_loss){
        .loss = divisor != 0 ? ls_item(loss) * divisor : 0, .divisor = divisor, .irregular = irregular};
}

/* Returns this rank's numbers without the divisors. */
static ls_divisor_sums numbers_of(const ls_data_parallel_state *state, const ls_batch_loss *loss) {
    const double square = state->factor * state->factor;
    ls_divisor_sums own = {.factors = state->factor != 0,
                           .factor = state->factor,
                           .factor_square = state->scales_means ? -square : square};
    if (loss != NULL) {
        own.ranks = 1;
        own.samples = (double)state->samples;
        own.sums = loss->sums;
        own.squares = own.sums * own.sums;
    }
    return own;
}

ls_divisor_sums ls_divisor_sums_of(const ls_data_parallel_state *state, const ls_batch_loss *loss, int first,
                                   bool failed) {
    ls_divisor_sums own = numbers_of(state, loss);
    own.failed = failed;
    if (loss != NULL) {
        ls_batch_loss_divisors(loss, first, LS_DIVISORS, own.divisor, NULL);
    }
    return own;
}

ls_status ls_divisor_sums_check(const ls_divisor_sums *own, const ls_divisor_sums *all) {
    return all->ranks * all->squares == all->sums * all->sums
               ? LS_OK
               : ls_fail(LS_ERR_MISMATCH,
                         "ls_backward: the loss sums or averages the module's output %g times here, but %g times on "
                         "average over the ranks or slices; compute the same loss on all of them",
                         own->sums, all->sums / all->ranks);
}

static double share_of_divisor(double own, double all) {
    return isinf(own) ? 1 : own == 0 ? 0 : own / all;
}

/*
 * Computes the scaling factor of the loss, and, relative to it, the factors of a block of sums: at most LS_DIVISORS
 * sums from index `first` on. Returns the number of these factors. A loss that is one mean multiplied by a tensor that
 * requires a gradient has only a factor of the loss. Stores the factor of the loss only for the first block, or for the
 * block with that mean. Does not use the tape of `loss`.
 */
static int compute_factors(const ls_data_parallel_state *state, const ls_batch_loss *loss, int first,
                           const ls_divisor_sums *own, const ls_divisor_sums *all, double *of_loss, double *of_sums) {
    const int left = loss->sums - first;
    const int count = left < LS_DIVISORS ? left : LS_DIVISORS;
    const double ranks = ls_data_parallel_ranks(state);
    if (first == 0) {
        const bool by_samples = loss->by_samples && all->samples > 0;
        *of_loss = by_samples ? ranks * own->samples / all->samples : ranks / all->ranks;
    }
    if (loss->only >= 0 && loss->multiplied) { /* the factor of the mean needs the scaled gradient, too */
        const int i = loss->only - first;
        if (i >= 0 && i < count && all->divisor[i] != 0) {
            *of_loss = ranks * share_of_divisor(own->divisor[i], all->divisor[i]);
        }
        return 0;
    }
    for (int i = 0; i < count; i++) {
        const bool is_exchanged = loss->only >= 0 && first + i != loss->only; /* the program exchanges the sum itself */
        of_sums[i] = is_exchanged ? 1 : all->ranks * share_of_divisor(own->divisor[i], all->divisor[i]);
    }
    return count;
}

static bool is_over_ranks(const ls_node *node, const void *comm) {
    return ls_node_agreement(node)->comm == comm;
}

void ls_divisor_sums_weigh(ls_data_parallel_state *state, ls_batch_loss *loss, int first, const ls_divisor_sums *own,
                           const ls_divisor_sums *all) {
    double of_sums[LS_DIVISORS];
    const int count = compute_factors(state, loss, first, own, all, &loss->weight, of_sums);
    if (count > 0) {
        ls_batch_loss_weigh(loss, first, count, of_sums, is_over_ranks, state->comm);
    }
}

static void seek(const ls_data_parallel_state *state, bool on) {
    for (int i = 0; i < state->parameter_count; i++) {
        ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL) {
            leaf->sought = on;
        }
    }
}

/*
 * A loss that depends on neither the parameters nor the output of a module only happens to be on the same tape. Its
 * gradients are not averaged, and must not be scaled.
 */
static void weigh_unrelated(const ls_data_parallel_state *state, ls_batch_loss *loss) {
    loss->unrelated = false;
    if (loss->by_samples) {
        seek(state, true);
        loss->unrelated = !ls_batch_loss_reaches(loss);
        seek(state, false);
        loss->weight = loss->unrelated ? 1 : loss->weight;
    }
}

/* Adds up the ranks' numbers. Fails on all ranks if a rank has failed, or if the losses differ. */
static ls_status add_up(ls_data_parallel_state *state, const ls_divisor_sums *own, ls_divisor_sums *all) {
    LS_TRY(ls_comm_allreduce(state->comm, own, all, sizeof *own / sizeof(double), LS_F64, LS_SUM, NULL));
    if (all->failed > 0) {
        return ls_averaging_share_cause(state, own->failed > 0);
    }
    const ls_status checked = ls_divisor_sums_check(own, all);
    state->told |= checked != LS_OK; /* all ranks fail here: no rank may notify the others again */
    LS_TRY(checked);
    ls_means_compare(state, all->factors, all->factor, fabs(all->factor_square), all->factor_square < 0);
    state->all_samples = all->samples;
    return LS_OK;
}

static ls_status agreed(ls_data_parallel_state *state) {
    state->agreed = true;
    state->factor = 0;
    return LS_OK;
}

ls_status ls_agree_on_factors(ls_data_parallel_state *state, ls_batch_loss *loss, bool failed) {
    double sums = 0;
    int first = 0;
    do {
        const ls_divisor_sums own = ls_divisor_sums_of(state, loss, first, failed);
        ls_divisor_sums all;
        LS_TRY(add_up(state, &own, &all));
        if (loss != NULL && !loss->weighed) {
            ls_divisor_sums_weigh(state, loss, first, &own, &all);
            if (first == 0) {
                weigh_unrelated(state, loss);
            }
        }
        sums = all.ranks > 0 ? all.sums / all.ranks : 0;
        first += LS_DIVISORS;
    } while (first < sums);
    if (loss != NULL) {
        loss->weighed = !loss->unrelated; /* the loss may depend on the module of the next watch */
    }
    return agreed(state);
}

ls_status ls_agree_again(ls_data_parallel_state *state, const ls_batch_loss *loss, const double *divisors,
                         double *of_loss, double *of_sums) {
    ls_divisor_sums own = numbers_of(state, loss), all;
    memcpy(own.divisor, divisors, sizeof own.divisor);
    LS_TRY(add_up(state, &own, &all));
    (void)compute_factors(state, loss, 0, &own, &all, of_loss, of_sums);
    return agreed(state);
}
