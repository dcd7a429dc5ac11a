/* The loss of the global batch, from the losses of the ranks and their divisors (autograd/samples.h). */
#include <math.h>

#include "comm/public_call.h"
#include "parallel/averaging.h"
#include "parallel/cause.h"
#include "parallel/slices.h"

static const char *const call = "ls_data_parallel_loss";

static bool is_recorded(const ls_tensor *loss) {
    return loss->node != NULL && loss->node->tape != NULL;
}

static ls_status check_mean(bool is_mean) {
    return is_mean ? LS_OK
                   : ls_fail(LS_ERR_UNSUPPORTED,
                             "%s: the loss is not one mean over samples: reduce a sum with ls_comm_allreduce, "
                             "and pass each of several means separately, before ls_backward",
                             call);
}

/* Finds the divisor of the loss: its backward pass has stored the divisor, or it is derived from the tape. */
static ls_status find_divisor(const ls_data_parallel_state *state, const ls_tensor *loss, double *divisor) {
    if (is_recorded(loss)) {
        ls_batch_loss made;
        ls_samples_trace(&made, ls_thread()->scope, loss, false);
        *divisor = ls_batch_loss_divisor(&made, state->samples);
    } else if (loss == state->loss) {
        *divisor = state->divisor;
    } else {
        return ls_fail(
            LS_ERR_STATE,
            "%s: the loss was computed under ls_no_grad, or is not the loss of the last ls_backward: its divisor is "
            "not recorded. Compute the loss with gradients, and call %s before or directly after its ls_backward",
            call, call);
    }
    return check_mean(!isnan(*divisor));
}

/* Fails if the loss is NULL because of an error, or although the program computes the loss itself. */
static ls_status check_null(const ls_data_parallel_state *state) {
    if (state->has_no_loss && state->errors == ls_error_count) {
        return LS_OK;
    }
    return ls_scope_explains_null(ls_thread())
               ? ls_error_status()
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: the loss is NULL: pass the loss of the last forward pass. Pass NULL only directly after "
                         "ls_data_parallel_step or ls_data_parallel_skip",
                         call);
}

/* Values that are summed over ranks. */
typedef struct summands {
    double loss; /* loss times divisor */
    double divisor;
    double failed;
} summands;

static ls_status weigh(const ls_data_parallel_state *state, const ls_tensor *loss, summands *own) {
    if (loss == NULL) {
        own->loss = state->last.loss;
        own->divisor = state->last.divisor;
        LS_TRY(check_null(state));
        return check_mean(state->last.irregular == 0);
    }
    if (!ls_tensor_is_here(call, loss)) {
        return ls_error_status();
    }
    if (loss->count != 1) {
        return ls_fail(LS_ERR_SHAPE, "%s: the loss must be one number, not %s", call, LS_SHAPE_TEXT(loss));
    }
    LS_TRY(find_divisor(state, loss, &own->divisor));
    own->loss = own->divisor != 0 ? ls_item(loss) * own->divisor : 0;
    return LS_OK;
}

static ls_status add_up(const ls_data_parallel_state *state, const ls_tensor *loss, summands *all) {
    summands own = {0};
    const ls_status status = weigh(state, loss, &own);
    if (status != LS_OK) {
        own = (summands){.failed = 1};
    }
    LS_TRY(ls_comm_allreduce(state->comm, &own, all, sizeof own / sizeof(double), LS_F64, LS_SUM, NULL));
    return all->failed > 0 ? ls_cause_share(state->comm, call, status != LS_OK) : LS_OK;
}

static ls_status sum_over_slices(const ls_data_parallel_state *state, const ls_tensor *loss, double *mean) {
    const ls_status status =
        loss == NULL
            ? check_null(state)
            : ls_fail(LS_ERR_ARGUMENT,
                      "%s: .shards is set, so pass NULL to get the loss of the last ls_data_parallel_step", call);
    ls_step_loss all;
    LS_TRY(ls_slices_loss(state, status != LS_OK, &all));
    if (all.failed > 0) {
        return ls_cause_share(state->comm, call, status != LS_OK);
    }
    *mean = all.loss / all.divisor;
    return check_mean(all.irregular == 0);
}

static ls_status mean_over_ranks(const ls_module *module, const ls_tensor *loss, double *mean) {
    const ls_data_parallel_state *state = ls_data_parallel_state_of(call, module);
    summands all = {0};
    LS_TRY(ls_made(state));
    if (state->slices != NULL) {
        return sum_over_slices(state, loss, mean);
    }
    if (ls_comm_size(state->comm) == 1 && loss != NULL) {
        *mean = ls_item(loss);
        return LS_OK;
    }
    LS_TRY(add_up(state, loss, &all));
    *mean = all.loss / all.divisor;
    return LS_OK;
}

double ls_data_parallel_loss(ls_module *module, ls_tensor *loss) {
    double mean = (double)NAN;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_DATA_PARALLEL_LOSS);
    const ls_status status = ls_public_end(outer, mean_over_ranks(module, loss, &mean));
    if (status != LS_OK) {
        (void)ls_scope_failed_status();
        return (double)NAN;
    }
    return mean;
}
