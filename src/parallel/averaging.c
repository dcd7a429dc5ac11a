/*
 * Averages the gradients of a data-parallel module over the ranks, so that they become those of one process with the
 * global batch.
 *
 * Usually the loss is one mean over samples (samples.h). Its divisor d_r is this rank's part of the divisor in one
 * process: samples, elements, or the weights of the targets that count. The gradient of one process is
 * sum(d_r g_r) / sum(d_r). Each rank scales its own gradient by w_r = d_r / d, where d is one number on which all ranks
 * agree: the largest divisor of the first pass. w_r is mostly 1, and then there is nothing to do. The numbers after the
 * gradients, the tail, begin with w_r. The average over ranks of w_r g_r, divided by the average of w_r, is the
 * gradient of one process. Terms of the loss that depend on parameters alone are equal on all ranks, and stay so.
 *
 * The tail also has the number of samples, a mark per parameter, which is 1 if this rank has a gradient of it, and a
 * mark per buffer, which is 1 if this rank has changed it (averaged_buffers.c). All ranks thus learn which parameters
 * any rank has used, and which buffers are no longer equal.
 *
 * Otherwise the ranks agree before the backward pass on the sums D of the divisors. These cases are: sums; several sums
 * or means; communication inside of the model; gradients accumulated under no_sync. With P ranks, a loss that is one
 * mean is scaled by P d_r / D. Any other loss is scaled by P / R, where R is the number of ranks that have samples: its
 * terms of parameters alone then count once. In such a loss the gradient of each mean is scaled by R d_r / D, and that
 * of each sum by R. The plain average over ranks is then the gradient of one process.
 *
 * If gradients are exchanged as 16-bit floats (reduce_dtype), the tail is sent first, by itself, in f32. The average of
 * the w_r is then known before the gradients are rounded, and each rank scales its own by w_r over this average.
 *
 * A pass may give no parameter of the model a gradient on any rank, because ls_detach has cut the model off or the loss
 * does not depend on it. Then the gradients stay as they are, and the module watches the next pass. The ranks learn
 * this from the tail, or under no_sync from a small call. If the tail is sent with the gradients, a rank whose model
 * got no gradient keeps a copy of its older gradients until then.
 *
 * The program, which is the same on all ranks, decides whether the ranks agree before a pass. But a rank without
 * samples does not run the program. So the ranks first average once with a tail that only marks this case. They agree
 * before every later pass.
 */
#include <math.h>
#include <stdio.h>

#include "autograd/tape.h"
#include "comm/hold.h"
#include "parallel/buffers.h"
#include "parallel/cause.h"
#include "parallel/data_parallel.h"

/* Behind the gradients of the finest dtype; then the marks. */
enum { WEIGHT, SAMPLES, AGREE, GIVEN, FAILED, MARKS };

/* What a rank brings that has nothing to be weighed by: too little to count beside others, and what was gathered in
 * the gradients before comes through when no rank has anything. */
static const double NO_WEIGHT = 0x1p-80;

static int tail_flat(const ls_data_parallel_state *state) {
    return state->flat_count - 1;
}

int64_t ls_data_parallel_tail(const ls_data_parallel_state *state, int flat) {
    return flat == tail_flat(state) ? MARKS + state->parameter_count + state->buffer_count : 0;
}

/* What parameter `index` of the model, whose list is there, carries; NULL when it wants no gradient. */
static ls_leaf *leaf_of(const ls_data_parallel_state *state, int index) {
    return state->model->parameters.items[index].tensor->leaf;
}

/* The tail, on the host: at the end of where the gradients of its dtype are averaged. */
static void *tail_memory(const ls_data_parallel_state *state) {
    const int flat = tail_flat(state);
    const ls_storage *common = state->common[flat];
    const size_t bytes = (size_t)ls_data_parallel_tail(state, flat) * ls_dtype_size(state->flats[flat].dtype);
    return (char *)common->memory + common->bytes - bytes;
}

/* Number `index` of the tail, which is f64 if `wide`, else f32. */
static void write_number(void *tail, bool wide, int64_t index, double value) {
    if (wide) {
        ((double *)tail)[index] = value;
    } else {
        ((float *)tail)[index] = (float)value;
    }
}

static double read_number(const void *tail, bool wide, int64_t index) {
    return wide ? ((const double *)tail)[index] : (double)((const float *)tail)[index];
}

static bool is_tail_wide(const ls_data_parallel_state *state) {
    return state->flats[tail_flat(state)].dtype == LS_F64;
}

/* A span of a flat buffer, or of one with as many elements of another dtype, as a tensor on the stack. */
static ls_tensor view_span(ls_storage *storage, ls_dtype dtype, int64_t offset, int64_t count) {
    ls_tensor view = ls_flat_view(storage, dtype, count);
    view.data = (char *)view.data + (size_t)offset * ls_dtype_size(dtype);
    return view;
}

static ls_status scale_gradients(const ls_data_parallel_state *state, double factor) {
    for (int i = 0; i < state->flat_count; i++) {
        const ls_flat *flat = &state->flats[i];
        const ls_device *device = flat->gradients->device;
        for (int k = 0; k < state->spans_of[i].count; k++) {
            const ls_gradient_span *span = &state->spans_of[i].items[k];
            const ls_tensor view = view_span(flat->gradients, flat->dtype, span->offset, span->count);
            LS_TRY(device->kernels->scale(ls_device_stream(device), flat->dtype, view.count, factor, view.data));
        }
    }
    return LS_OK;
}

/* What the ranks tell each other behind the gradients; afterwards the mean over ranks. */
typedef struct tail {
    double weight;
    double samples;
    double agree;  /* positive: the ranks go on to agree on weights, and come back */
    double given;  /* 1: this pass gave the model a gradient; SKIPPED: this rank has skipped it */
    double failed; /* positive: the pass has failed on this rank */
} tail;

/* A rank that skips a pass does not know whether the pass gives the model a gradient. All ranks together add up to less
 * than one half. */
static const double SKIPPED = 0x1p-20;

/* Whether the pass gave the model a gradient on any rank, or all ranks have skipped it: there is an average then. */
static bool is_given(const ls_data_parallel_state *state, const tail *mean) {
    const double ranks = ls_comm_size(state->comm);
    return mean->given * ranks > 0.5 || mean->given * ranks > (ranks - 0.5) * SKIPPED;
}

void ls_data_parallel_forget_gradients(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count && i < state->model->parameters.count; i++) {
        ls_leaf *leaf = leaf_of(state, i);
        if (leaf != NULL && leaf->has_gradient) {
            leaf->has_gradient = false;
            ls_leaf_changed(leaf, "ls_data_parallel");
        }
    }
}

/* Ends a call in which some rank has said that the pass failed there. */
static ls_status share_cause(ls_data_parallel_state *state, bool failed) {
    state->told = true;
    ls_data_parallel_forget_gradients(state);
    return ls_cause_share(state->comm, "ls_backward", failed);
}

/* Whether the present pass has given the model a gradient on this rank. */
static bool was_given(const ls_data_parallel_state *state) {
    const uint64_t pass = ls_thread_present->pass;
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = leaf_of(state, i);
        if (leaf != NULL && leaf->given == pass) {
            return true;
        }
    }
    return false;
}

/* Zeroes what a parameter without a gradient would contribute. */
static ls_status zero_missing(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = leaf_of(state, i);
        if (leaf != NULL && !leaf->has_gradient && ls_gradient_travels(state, leaf)) {
            LS_TRY(ls_kernels_of(leaf->gradient)->fill(ls_stream_of(leaf->gradient), leaf->gradient, 0));
        }
    }
    return LS_OK;
}

/*
 * The mark of a parameter whose gradient does not travel here: more than all other marks together, so that the mean
 * over ranks is it where all have it frozen, from 2 on where some do, and at most 1 where none does.
 */
static double frozen_mark(const ls_data_parallel_state *state) {
    return 2.0 * ls_comm_size(state->comm);
}

static double mark_of(const ls_data_parallel_state *state, const ls_leaf *leaf) {
    if (leaf == NULL) {
        return 0;
    }
    return !ls_gradient_travels(state, leaf) ? frozen_mark(state) : leaf->has_gradient ? 1 : 0;
}

static void write_tail(const ls_data_parallel_state *state, const tail *own) {
    void *to = tail_memory(state);
    const bool wide = is_tail_wide(state);
    write_number(to, wide, WEIGHT, own->weight);
    write_number(to, wide, SAMPLES, own->samples);
    write_number(to, wide, AGREE, own->agree);
    write_number(to, wide, GIVEN, own->given);
    write_number(to, wide, FAILED, own->failed);
    for (int i = 0; i < state->parameter_count; i++) {
        write_number(to, wide, MARKS + i, mark_of(state, leaf_of(state, i)));
    }
    for (int i = 0; i < state->buffer_count; i++) {
        write_number(to, wide, MARKS + state->parameter_count + i, ls_buffer_has_changed(state, i) ? 1 : 0);
    }
}

/* Whether a mark, the mean over ranks, is that of a parameter that is frozen on some ranks only. */
static bool is_frozen_in_part(const ls_data_parallel_state *state, double mark) {
    return mark > 1.5 && mark < frozen_mark(state) - 0.75;
}

/* All ranks see the same marks. */
static ls_status refuse_frozen(const ls_data_parallel_state *state, int index, double mark) {
    return ls_fail(LS_ERR_MISMATCH,
                   "ls_data_parallel: the parameter \"%s\" is frozen (ls_set_requires_grad) on %d of %d ranks: "
                   "freeze it on all ranks or on none",
                   state->model->parameters.items[index].name, (int)(mark / 2 + 0.01), ls_comm_size(state->comm));
}

static tail read_tail(const ls_data_parallel_state *state) {
    const void *from = tail_memory(state);
    const bool wide = is_tail_wide(state);
    return (tail){.weight = read_number(from, wide, WEIGHT),
                  .samples = read_number(from, wide, SAMPLES),
                  .agree = read_number(from, wide, AGREE),
                  .given = read_number(from, wide, GIVEN),
                  .failed = read_number(from, wide, FAILED)};
}

/* Learns which parameters have a gradient, and which buffers have changed, on any rank. */
static ls_status read_marks(const ls_data_parallel_state *state) {
    const void *from = tail_memory(state);
    const bool wide = is_tail_wide(state);
    for (int i = 0; i < state->parameter_count; i++) {
        const double mark = read_number(from, wide, MARKS + i);
        if (is_frozen_in_part(state, mark)) {
            return refuse_frozen(state, i, mark);
        }
        ls_leaf *leaf = leaf_of(state, i);
        if (leaf != NULL && ls_gradient_travels(state, leaf)) {
            leaf->has_gradient = mark > 0;
            ls_leaf_changed(leaf, "ls_data_parallel");
        }
    }
    for (int i = 0; i < state->buffer_count; i++) {
        state->buffers[i].changed = read_number(from, wide, MARKS + state->parameter_count + i) > 0;
    }
    return LS_OK;
}

/* Whether the gradient of every parameter lies where it is averaged. */
static bool gradients_are_home(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = leaf_of(state, i);
        bool home = leaf == NULL;
        for (int k = 0; !home && leaf->gradient != NULL && k < state->flat_count; k++) {
            home = leaf->gradient->storage->whole == state->shared[k];
        }
        if (!home) {
            return false;
        }
    }
    return true;
}

/* A model that was laid out anew, as part of a larger one or in parts, has its gradients brought back. */
static ls_status reclaim_gradients(ls_data_parallel_state *state) {
    const ls_device *device = NULL;
    LS_TRY(ls_module_device(state->model, "ls_data_parallel", &device));
    for (int i = 0; i < state->flat_count; i++) {
        if (state->shared[i]->device != device) {
            return ls_fail(LS_ERR_STATE,
                           "ls_data_parallel: the model has moved to %s: ls_to_device before ls_data_parallel",
                           device->name);
        }
        LS_TRY(ls_module_move_gradients(state->model, state->flats[i].dtype, state->shared[i]));
    }
    return LS_OK;
}

/* The gradients that travel to their halves, side by side, or back. */
static ls_status cast_halves(const ls_data_parallel_state *state, bool back) {
    const ls_flat *flat = &state->flats[0];
    const ls_device *device = flat->gradients->device;
    int64_t packed = 0;
    for (int k = 0; k < state->spans_of[0].count; k++) {
        const ls_gradient_span *span = &state->spans_of[0].items[k];
        ls_tensor gradients = view_span(flat->gradients, LS_F32, span->offset, span->count);
        ls_tensor halves = view_span(state->halves, state->reduce_dtype, packed, span->count);
        LS_TRY(
            device->kernels->cast(ls_device_stream(device), back ? &gradients : &halves, back ? &halves : &gradients));
        packed += span->count;
    }
    return LS_OK;
}

/* The gradients as halves, averaged, and back; the CPU's halves are the communicator's own. */
static ls_status average_halves(const ls_data_parallel_state *state) {
    const ls_device *device = state->flats[0].gradients->device;
    const int64_t count = state->spans_of[0].total;
    LS_TRY(cast_halves(state, false));
    if (state->in_place) {
        const ls_tensor halves = ls_flat_view(state->halves, state->reduce_dtype, count);
        LS_TRY(ls_allreduce_in_place(state->comm, &halves, LS_AVG));
        return cast_halves(state, true);
    }
    void *memory = state->host_halves->memory;
    const size_t bytes = (size_t)count * ls_dtype_size(state->reduce_dtype);
    LS_TRY(device->is_host ? LS_OK : ls_device_fetch(device, memory, state->halves->memory, bytes));
    LS_TRY(ls_comm_allreduce(state->comm, memory, memory, (size_t)count, state->reduce_dtype, LS_AVG, NULL));
    LS_TRY(device->is_host ? LS_OK : ls_device_store(device, state->halves->memory, memory, bytes));
    return cast_halves(state, true);
}

/* The tail by itself. */
static ls_status average_tail(const ls_data_parallel_state *state) {
    const int flat = tail_flat(state);
    void *memory = tail_memory(state);
    return ls_comm_allreduce(state->comm, memory, memory, (size_t)ls_data_parallel_tail(state, flat),
                             state->flats[flat].dtype, LS_AVG, NULL);
}

static ls_status average_in_place(const ls_data_parallel_state *state, int i) {
    const ls_flat *flat = &state->flats[i];
    for (int k = 0; k < state->spans_of[i].count; k++) {
        const ls_gradient_span *span = &state->spans_of[i].items[k];
        const ls_tensor gradients = view_span(flat->gradients, flat->dtype, span->offset, span->count);
        LS_TRY(ls_allreduce_in_place(state->comm, &gradients, LS_AVG));
    }
    return LS_OK;
}

/* Ranks whose gradients differ in number. */
static ls_status explain_counts(ls_status status) {
    char reason[LS_ERROR_CAPACITY];
    if (status != LS_ERR_MISMATCH) {
        return status;
    }
    snprintf(reason, sizeof reason, "%s", ls_error_message());
    return ls_fail(status,
                   "ls_data_parallel: %s. If the numbers of elements differ: a parameter must be frozen "
                   "(ls_set_requires_grad) on all ranks or on none",
                   reason);
}

/* With the tail after them. */
static ls_status average_on_host(const ls_data_parallel_state *state, int i) {
    const size_t count = (size_t)(state->spans_of[i].total + ls_data_parallel_tail(state, i));
    void *memory = ls_gradient_spans_begin(state, i);
    LS_TRY(ls_gradient_spans_pack(state, i));
    const ls_status status =
        count > 0 ? ls_comm_allreduce(state->comm, memory, memory, count, state->flats[i].dtype, LS_AVG, NULL) : LS_OK;
    const ls_status unpacked = ls_gradient_spans_unpack(state, i);
    return status != LS_OK ? explain_counts(status) : unpacked;
}

/* What follows the gradients has as many marks as there were parameters and buffers at first. */
static ls_status check_counts(const ls_data_parallel_state *state) {
    const int parameters = state->model->parameters.count, buffers = state->model->buffers.count;
    return parameters == state->parameter_count && buffers == state->buffer_count
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "ls_data_parallel: the model has %d parameters and %d buffers, and had %d and %d when it was "
                         "made data-parallel: add them before",
                         parameters, buffers, state->parameter_count, state->buffer_count);
}

/* Copies of the gradients, where there are any: kept[i] of flat buffer i. */
static ls_status keep_gradients(const ls_data_parallel_state *state, ls_tensor **kept) {
    bool any = false;
    for (int i = 0; i < state->parameter_count && !any; i++) {
        const ls_leaf *leaf = leaf_of(state, i);
        any = leaf != NULL && leaf->has_gradient;
    }
    for (int i = 0; i < state->flat_count && any; i++) {
        const ls_flat *flat = &state->flats[i];
        const ls_tensor gradients = ls_flat_view(flat->gradients, flat->dtype, flat->count);
        kept[i] = ls_tensor_like_owned("ls_data_parallel", &gradients, flat->dtype);
        LS_TRY(kept[i] != NULL ? ls_kernels_of(kept[i])->copy(ls_stream_of(kept[i]), kept[i], &gradients)
                               : ls_error_status());
    }
    return LS_OK;
}

/* Puts back the gradients that were kept. */
static ls_status restore_gradients(const ls_data_parallel_state *state, ls_tensor *const *kept) {
    for (int i = 0; i < state->flat_count; i++) {
        if (kept[i] != NULL) {
            const ls_flat *flat = &state->flats[i];
            ls_tensor gradients = ls_flat_view(flat->gradients, flat->dtype, flat->count);
            LS_TRY(ls_kernels_of(kept[i])->copy(ls_stream_of(kept[i]), &gradients, kept[i]));
        }
    }
    return LS_OK;
}

/* With the tail first, which says whether there is anything to average and which gradients the ranks have. */
static ls_status average_after_tail(ls_data_parallel_state *state, const tail *own, tail *mean) {
    write_tail(state, own);
    LS_TRY(average_tail(state));
    *mean = read_tail(state);
    if (mean->failed > 0) {
        return share_cause(state, own->failed > 0);
    }
    if (!is_given(state, mean)) {
        return LS_OK;
    }
    LS_TRY(read_marks(state));
    if (own->weight != mean->weight) {
        LS_TRY(scale_gradients(state, own->weight / mean->weight));
    }
    if (state->reduce_dtype != LS_F32) {
        return average_halves(state);
    }
    for (int i = 0; i < state->flat_count; i++) {
        LS_TRY(average_in_place(state, i));
    }
    return LS_OK;
}

/* What this rank does to its gradients before they travel. `kept` becomes copies that the caller frees. */
static ls_status prepare_gradients(const ls_data_parallel_state *state, const tail *own, bool tail_first,
                                   ls_tensor **kept) {
    if (!tail_first) {
        LS_TRY(own->given < 1 ? keep_gradients(state, kept) : LS_OK);
        LS_TRY(own->weight != 1 ? scale_gradients(state, own->weight) : LS_OK);
    }
    return zero_missing(state);
}

/* With the tail after the gradients, in one call per dtype. */
static ls_status average_with_tail(ls_data_parallel_state *state, const tail *own, ls_tensor *const *kept, tail *mean) {
    write_tail(state, own);
    for (int i = 0; i < state->flat_count; i++) {
        LS_TRY(average_on_host(state, i));
    }
    *mean = read_tail(state);
    if (mean->failed > 0) {
        return share_cause(state, own->failed > 0);
    }
    if (!is_given(state, mean)) {
        return restore_gradients(state, kept);
    }
    LS_TRY(read_marks(state));
    return mean->weight != 1 ? scale_gradients(state, 1 / mean->weight) : LS_OK;
}

/* Averages the gradients over the ranks, each rank's scaled by own.weight; *mean becomes the mean of the tails. If the
 * pass gave the model a gradient on no rank, the gradients stay as they are. After a failure, the model has none. */
static ls_status average(ls_data_parallel_state *state, tail own, tail *mean) {
    if (!ls_module_list(state->model)) {
        return ls_error_status();
    }
    LS_TRY(check_counts(state));
    if (!gradients_are_home(state)) {
        LS_TRY(reclaim_gradients(state));
    }
    ls_gradient_spans_list(state);
    ls_tensor *kept[LS_FLAT_LIMIT] = {NULL};
    const bool tail_first = state->in_place || state->reduce_dtype != LS_F32;
    own.failed = own.failed > 0 || prepare_gradients(state, &own, tail_first, kept) != LS_OK;
    const ls_status status =
        tail_first ? average_after_tail(state, &own, mean) : average_with_tail(state, &own, kept, mean);
    for (int i = 0; i < state->flat_count; i++) {
        ls_tensor_drop(kept[i]);
    }
    if (status != LS_OK) {
        ls_data_parallel_forget_gradients(state);
    }
    return status;
}

/* ---- the usual case ---------------------------------------------------------------------------------------------- */

static ls_status agree_on_usual(ls_data_parallel_state *state, double divisor) {
    LS_TRY(ls_comm_allreduce(state->comm, &divisor, &divisor, 1, LS_F64, LS_MAX, NULL));
    state->usual = divisor > 0 ? divisor : 1;
    return LS_OK;
}

/* An averaging by what the losses divide by: d_r is `divisor`, 0 on a rank that brings nothing. `own` says the rest. */
static ls_status average_by_divisor(ls_data_parallel_state *state, double divisor, tail own, tail *mean) {
    if (state->usual == 0) {
        LS_TRY(agree_on_usual(state, divisor));
    }
    const double weight = own.agree > 0 ? 1 : divisor / state->usual;
    own.weight = weight != 0 ? weight : NO_WEIGHT;
    return average(state, own, mean);
}

/* ---- agreed weights ---------------------------------------------------------------------------------------------- */

/* What ranks tell each other of a pass before it, added up: a few divisors at a time. */
enum { DIVISORS = 8 };
typedef struct agreement {
    double ranks; /* that run it */
    double sums;  /* that each of them has */
    double squares;
    double samples;
    double failed;  /* ranks on which the pass has failed */
    double factors; /* ranks that bring a factor: see state->factor */
    double factor;
    double factor_square;
    double divisor[DIVISORS];
} agreement;

/* This rank's share of what all of them divide a sum by. */
static double share_of_divisor(double own, double all) {
    return isinf(own) ? 1 : own == 0 ? 0 : own / all;
}

/* Weighs the sums from `first` on; a loss that is one mean, and what is made of parameters, is weighed as a whole. */
static void weigh(ls_data_parallel_state *state, ls_batch_loss *loss, int first, const agreement *own,
                  const agreement *all) {
    const int left = loss->sums - first;
    const int count = left < DIVISORS ? left : DIVISORS;
    const double ranks = ls_comm_size(state->comm);
    if (first == 0) {
        const bool by_samples = loss->by_samples && all->samples > 0;
        loss->weight = by_samples ? ranks * own->samples / all->samples : ranks / all->ranks;
    }
    if (loss->only >= 0) {
        const int i = loss->only - first;
        if (i >= 0 && i < count && all->divisor[i] != 0) {
            loss->weight = ranks * share_of_divisor(own->divisor[i], all->divisor[i]);
        }
        return;
    }
    double weight[DIVISORS];
    for (int i = 0; i < count; i++) {
        weight[i] = all->ranks * share_of_divisor(own->divisor[i], all->divisor[i]);
    }
    if (count > 0) {
        ls_batch_loss_weigh(loss, first, count, weight);
    }
}

/* Agrees on the weights of a pass; `loss` is NULL on a rank that does not run it, or on which it has failed. */
static ls_status agree(ls_data_parallel_state *state, ls_batch_loss *loss, bool failed) {
    double most = 0;
    int first = 0;
    do {
        agreement own = {.ranks = loss != NULL, .samples = loss != NULL ? (double)state->samples : 0, .failed = failed};
        own.factors = state->factor != 0;
        own.factor = state->factor;
        own.factor_square = state->factor * state->factor;
        if (loss != NULL) {
            own.sums = loss->sums;
            own.squares = own.sums * own.sums;
            ls_batch_loss_divisors(loss, first, DIVISORS, own.divisor);
        }
        agreement all;
        LS_TRY(ls_comm_allreduce(state->comm, &own, &all, sizeof own / sizeof(double), LS_F64, LS_SUM, NULL));
        if (all.failed > 0) {
            return share_cause(state, failed);
        }
        if (all.ranks * all.squares != all.sums * all.sums) {
            return ls_fail(LS_ERR_MISMATCH,
                           "ls_backward: the losses that the ranks make of a data-parallel module's output are sums or "
                           "means in different numbers (%g here, %g on average): all ranks run one program",
                           own.sums, all.sums / all.ranks);
        }
        if (loss != NULL && !loss->weighed) {
            weigh(state, loss, first, &own, &all);
        }
        ls_means_compare(state, all.factors, all.factor, all.factor_square);
        most = all.ranks > 0 ? all.sums / all.ranks : 0;
        state->all_samples = all.samples;
        first += DIVISORS;
    } while (first < most);
    if (loss != NULL) {
        loss->weighed = true;
    }
    state->agreed = true;
    state->factor = 0;
    return LS_OK;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

static bool agrees_anyway(const ls_data_parallel_state *state) {
    return state->agrees || state->no_sync || state->gathering;
}

static bool agrees(void *user, const ls_batch_loss *loss) {
    return agrees_anyway(user) || loss->irregular || loss->weighed;
}

static ls_status pass_begins(void *user, ls_batch_loss *loss, bool agreed) {
    ls_data_parallel_state *state = user;
    LS_TRY(ls_comm_check_open("ls_data_parallel", state->comm));
    loss->watched |= state->mean_checks > 0;
    state->agreed = false;
    state->loss = loss->output;
    state->divisor = ls_batch_loss_divisor(loss, state->samples);
    if (!agreed) {
        return LS_OK;
    }
    if (!agrees_anyway(state)) {
        tail mean;
        LS_TRY(average_by_divisor(state, 0, (tail){.agree = 1}, &mean));
        state->agrees = true;
    }
    return agree(state, loss, false);
}

/* The end of a pass whose gradients stay on each rank, until a later pass averages them. */
static ls_status gather(ls_data_parallel_state *state, const tail *own, tail *mean) {
    double numbers[] = {own->given, own->failed};
    LS_TRY(ls_comm_allreduce(state->comm, numbers, numbers, 2, LS_F64, LS_AVG, NULL));
    *mean = (tail){.given = numbers[0], .failed = numbers[1]};
    return mean->failed > 0 ? share_cause(state, own->failed > 0) : LS_OK;
}

/* If a pass gave the model no gradient on any rank, the module watches the next one. A rank that has skipped the pass
 * cannot know this. */
static ls_status decide_pending(ls_data_parallel_state *state, const tail *mean) {
    state->pending = !is_given(state, mean);
    if (!state->pending || !(mean->given > 0)) {
        return LS_OK;
    }
    state->told = true;
    return ls_fail(LS_ERR_MISMATCH, "ls_backward: a rank without samples has skipped (ls_data_parallel_skip) a pass "
                                    "that gives the model no gradient: in such a program every rank needs samples");
}

/* The averaging at the end of a pass that the ranks have agreed on. */
static ls_status average_agreed(ls_data_parallel_state *state, double samples, tail own) {
    tail mean;
    own.weight = 1;
    LS_TRY(state->no_sync ? gather(state, &own, &mean) : average(state, own, &mean));
    LS_TRY(decide_pending(state, &mean));
    if (state->no_sync || state->pending) {
        state->gathering |= !state->pending;
        return LS_OK;
    }
    state->gathering = false;
    return state->all_samples > 0 ? ls_buffers_average(state, samples) : LS_OK;
}

static ls_status pass_ends(void *user, const ls_pass_findings *findings) {
    ls_data_parallel_state *state = user;
    if (findings != NULL && state->mean_checks > 0) {
        ls_means_check(state, findings);
    }
    const double samples = (double)state->samples;
    if (!ls_module_list(state->model)) {
        return ls_error_status();
    }
    const tail own = {.samples = samples, .given = was_given(state)};
    if (state->agreed) {
        return average_agreed(state, samples, own);
    }
    tail mean;
    LS_TRY(average_by_divisor(state, state->divisor, own, &mean));
    LS_TRY(decide_pending(state, &mean));
    return !state->pending && mean.samples > 0 ? ls_buffers_average(state, samples) : LS_OK;
}

static bool pass_fails(void *user, bool begun) {
    ls_data_parallel_state *state = user;
    state->told = false;
    tail mean;
    if (ls_module_list(state->model) && ls_comm_check_open("ls_data_parallel", state->comm) == LS_OK) {
        (void)(begun && state->agreed           ? average_agreed(state, 0, (tail){.failed = 1})
               : !begun && agrees_anyway(state) ? agree(state, NULL, true)
                                                : average_by_divisor(state, 0, (tail){.failed = 1}, &mean));
    }
    return state->told;
}

static bool pass_stays(void *user) {
    const ls_data_parallel_state *state = user;
    return state->pending;
}

static void hold_watched(void *user, bool hold) {
    ls_data_parallel_hold(user, hold);
}

const ls_pass_watch ls_data_parallel_watch = {.agrees = agrees,
                                              .begin = pass_begins,
                                              .end = pass_ends,
                                              .fail = pass_fails,
                                              .stays = pass_stays,
                                              .hold = hold_watched};

/* What the model communicated on the way forwards without samples, it communicates on the way back. */
static ls_status walk_empty(ls_tensor *output) {
    if (output == NULL || !ls_tape_communicates()) {
        return LS_OK;
    }
    ls_tensor *zeros = ls_zeros(ls_shape_of(output), ls_dtype_of(output));
    return zeros != NULL ? ls_backward_with(output, &(ls_backward_options){.gradient = zeros}) : ls_error_status();
}

ls_status ls_data_parallel_pass_without_samples(ls_data_parallel_state *state, ls_tensor *output) {
    state->samples = 0;
    if (!agrees_anyway(state)) {
        tail mean;
        LS_TRY(average_by_divisor(state, 0, (tail){.given = SKIPPED}, &mean));
        if (!(mean.agree > 0)) {
            LS_TRY(decide_pending(state, &mean));
            return mean.samples > 0 ? ls_buffers_average(state, 0) : LS_OK;
        }
        state->agrees = true;
    }
    LS_TRY(agree(state, NULL, false));
    LS_TRY(walk_empty(output));
    return average_agreed(state, 0, (tail){.given = SKIPPED});
}
