#include "parallel/divisor_sums.h"

#include <math.h>

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

ls_divisor_sums ls_divisor_sums_of(const ls_data_parallel_state *state, const ls_batch_loss *loss, int first,
                                   bool failed) {
    ls_divisor_sums own = {.failed = failed,
                           .factors = state->factor != 0,
                           .factor = state->factor,
                           .factor_square = state->factor * state->factor};
    if (loss != NULL) {
        own.ranks = 1;
        own.samples = (double)state->samples;
        own.sums = loss->sums;
        own.squares = own.sums * own.sums;
        ls_batch_loss_divisors(loss, first, LS_DIVISORS, own.divisor);
    }
    return own;
}

double ls_divisor_sums_sums(const ls_divisor_sums *all) {
    return all->ranks > 0 ? all->sums / all->ranks : 0;
}

ls_status ls_divisor_sums_check(const ls_divisor_sums *own, const ls_divisor_sums *all) {
    return all->ranks * all->squares == all->sums * all->sums
               ? LS_OK
               : ls_fail(LS_ERR_MISMATCH,
                         "ls_backward: the loss sums or averages the module's output %g times here, but %g times on "
                         "average over the ranks or slices; compute the same loss on all of them",
                         own->sums, all->sums / all->ranks);
}

/* Returns this rank's share of the total divisor of a sum. */
static double share_of_divisor(double own, double all) {
    return isinf(own) ? 1 : own == 0 ? 0 : own / all;
}

static bool is_over_ranks(const ls_node *node, const void *comm) {
    return ls_node_agreement(node)->comm == comm;
}

void ls_divisor_sums_weigh(ls_data_parallel_state *state, ls_batch_loss *loss, int first, const ls_divisor_sums *own,
                           const ls_divisor_sums *all) {
    const int left = loss->sums - first;
    const int count = left < LS_DIVISORS ? left : LS_DIVISORS;
    const double ranks = ls_data_parallel_ranks(state);
    if (first == 0) {
        const bool by_samples = loss->by_samples && all->samples > 0;
        loss->weight = by_samples ? ranks * own->samples / all->samples : ranks / all->ranks;
    }
    if (loss->only >= 0 && loss->multiplied) { /* the factor of the mean needs the scaled gradient, too */
        const int i = loss->only - first;
        if (i >= 0 && i < count && all->divisor[i] != 0) {
            loss->weight = ranks * share_of_divisor(own->divisor[i], all->divisor[i]);
        }
        return;
    }
    double weight[LS_DIVISORS];
    for (int i = 0; i < count; i++) {
        const bool is_exchanged = loss->only >= 0 && first + i != loss->only; /* the program exchanges the sum itself */
        weight[i] = is_exchanged ? 1 : all->ranks * share_of_divisor(own->divisor[i], all->divisor[i]);
    }
    if (count > 0) {
        ls_batch_loss_weigh(loss, first, count, weight, is_over_ranks, state->comm);
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

ls_status ls_agree_on_factors(ls_data_parallel_state *state, ls_batch_loss *loss, bool failed) {
    double sums = 0;
    int first = 0;
    do {
        const ls_divisor_sums own = ls_divisor_sums_of(state, loss, first, failed);
        ls_divisor_sums all;
        LS_TRY(ls_comm_allreduce(state->comm, &own, &all, sizeof own / sizeof(double), LS_F64, LS_SUM, NULL));
        if (all.failed > 0) {
            return ls_averaging_share_cause(state, failed);
        }
        const ls_status checked = ls_divisor_sums_check(&own, &all);
        state->told |= checked != LS_OK; /* all ranks fail here: no rank may notify the others again */
        LS_TRY(checked);
        if (loss != NULL && !loss->weighed) {
            ls_divisor_sums_weigh(state, loss, first, &own, &all);
            if (first == 0) {
                weigh_unrelated(state, loss);
            }
        }
        ls_means_compare(state, all.factors, all.factor, all.factor_square);
        sums = ls_divisor_sums_sums(&all);
        state->all_samples = all.samples;
        first += LS_DIVISORS;
    } while (first < sums);
    if (loss != NULL) {
        loss->weighed = !loss->unrelated; /* the loss may depend on the module of the next watch */
    }
    state->agreed = true;
    state->factor = 0;
    return LS_OK;
}
