#include "train/callbacks/samples.h"

#include <math.h>

#include "base/share.h"
#include "data/loader.h"
#include "data/order.h"

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

ls_draws ls_draws_of(const ls_trial_state *state, uint64_t seed, uint64_t salt, int64_t place) {
    const uint64_t batch = ((uint64_t)state->epoch << 24) + (uint64_t)state->batch;
    return ls_draws_salted(seed, salt, (batch << 20) + (uint64_t)(place + 1));
}

/* ---- places and partners ----------------------------------------------------------------------------------------- */

ls_status ls_first_place(const ls_trial_state *state, const char *call, int64_t *first) {
    const int64_t rank = ls_trial_rank(state), ranks = ls_comm_size(state->comm);
    *first = state->first;
    if (state->count == state->global_count || ranks <= 1 || *first > 0 || rank == 0) {
        return LS_OK;
    }
    /* If the loader belongs to the program, it has not set the position of this rank's share. */
    const ls_share even = ls_share_of(state->global_count, ranks, rank);
    *first = even.start;
    return state->count == even.count
               ? LS_OK
               : ls_fail(LS_ERR_UNSUPPORTED,
                         "%s: this rank has %lld of %lld samples, and the loader does not say which samples: set "
                         ".first of ls_batch to the index of this rank's first sample in the global batch",
                         call, (long long)state->count, (long long)state->global_count);
}

static ls_status make_room(ls_partners *self, const char *call, int64_t count) {
    if (count <= self->room) {
        return LS_OK;
    }
    ls_free(self->order);
    self->order = ls_allocate_zeroed((size_t)count, sizeof *self->order);
    self->room = self->order != NULL ? count : 0;
    return self->order != NULL ? LS_OK : ls_fail_memory(call, (size_t)count * sizeof *self->order);
}

ls_status ls_partners_fetch(ls_partners *self, const char *call, ls_trial_state *state, ls_draws draws,
                            ls_tensor **input, ls_tensor **target) {
    int64_t first;
    LS_TRY(ls_first_place(state, call, &first));
    LS_TRY(make_room(self, call, state->global_count));
    ls_order_identity(self->order, state->global_count);
    ls_order_shuffle(self->order, state->global_count, draws.seed, draws.stream);
    LS_TRY(ls_loader_fetch(state->loader, self->order + first, state->count, &self->input, &self->target));
    const char *device = ls_device_of(state->input);
    *input = ls_tensor_to_device(self->input, device);
    *target = ls_tensor_to_device(self->target, device);
    return *input != NULL && *target != NULL ? LS_OK : ls_error_status();
}

void ls_partners_free(ls_partners *self) {
    ls_tensor_drop(self->input);
    ls_tensor_drop(self->target);
    ls_free(self->order);
}

/* ---- inputs and targets ------------------------------------------------------------------------------------------ */

ls_status ls_check_rows(const ls_trial_state *state, const char *call) {
    return ls_size(state->input, 0) == state->count
               ? LS_OK
               : ls_fail(
                     LS_ERR_SHAPE,
                     "%s: inputs are %s, but the batch has %lld samples; if the trial has ls_manifold_mixup, it must "
                     "come after the other callbacks that change inputs",
                     call, LS_SHAPE_TEXT(state->input), (long long)state->count);
}

ls_status ls_check_inputs(const ls_trial_state *state, const char *call) {
    LS_TRY(ls_check_rows(state, call));
    return ls_dtype_is_floating(ls_dtype_of(state->input))
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: inputs are %s, but must be floating-point (ls_dataset_normalize)", call,
                         ls_dtype_name(ls_dtype_of(state->input)));
}

ls_tensor *ls_target_rows(const char *call, ls_tensor *target, int64_t classes) {
    if (target == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the batch has no targets", call);
    }
    if (ls_dtype_is_floating(ls_dtype_of(target))) {
        return target;
    }
    if (ls_ndim(target) != 1 || classes < 1) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "%s: targets are class numbers %s, of %lld classes: they must be [n], and "
                            "`classes` must be given",
                            call, LS_SHAPE_TEXT(target), (long long)classes);
    }
    const double largest = ls_item(ls_max(target)), least = ls_item(ls_min(target));
    if (isnan(largest) || isnan(least)) { /* the numbers are integers, so NaN means that a call has failed */
        return NULL;
    }
    if (largest >= (double)classes || least < 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: a target is %g, but there are %lld classes", call,
                            least >= 0 ? largest : least, (long long)classes);
    }
    ls_tensor *numbers = ls_tensor_to_device(ls_arange(LS_SHAPE(classes), LS_I64), ls_device_of(target));
    return ls_to(ls_eq(ls_unsqueeze(ls_to(target, LS_I64), 1), numbers), LS_F32);
}

ls_tensor *ls_mix(ls_tensor *x, ls_tensor *y, double share) {
    return ls_add(ls_mul(x, share), ls_mul(y, 1 - share));
}

ls_tensor *ls_mix_targets(const char *call, ls_tensor *target, ls_tensor *other, double share, int64_t classes) {
    ls_tensor *rows = ls_target_rows(call, target, classes);
    if (rows == NULL) {
        return NULL;
    }
    /* Another callback may have converted the targets to rows; `other` still has the form in the data set. */
    const bool made = !ls_dtype_is_floating(ls_dtype_of(other)) && ls_ndim(rows) == 2;
    return ls_mix(rows, ls_target_rows(call, other, made ? ls_size(rows, 1) : classes), share);
}
