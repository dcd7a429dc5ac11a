/*
 * How the gradients of a data-parallel module become those of one process with the whole batch.
 *
 * In the usual case the loss is one mean over samples (samples.h), whose divisor d_r is this rank's part of what one
 * process would divide by: samples, elements, the weights of targets that count. The gradient wanted is then
 * sum(d_r g_r) / sum(d_r). Each rank scales its own gradient by w_r = d_r / d for one d that all ranks agreed on (their
 * largest first one; mostly w_r is 1 and there is nothing to do) and puts w_r behind the gradients. The average over
 * ranks of w_r g_r, divided by that of w_r, is the gradient wanted. What the loss has beside, of parameters alone, is
 * equal on all ranks and stays so. Behind w_r stand the samples, by which buffers are averaged, and a mark per
 * parameter, 1 where this rank has a gradient, so that all ranks learn which parameters were used anywhere.
 *
 * In the other cases (sums; several sums or means; ranks that communicate inside of the model; passes gathered under
 * no_sync) the ranks agree before the backward pass on the sums D of the divisors. With P ranks, a loss that is one
 * mean is weighed by P d_r / D. Any other is weighed by P / R, with R ranks that have samples, so that what it has of
 * parameters alone counts once, and in it the gradient of each sum by R d_r / D where it divides, by R where it does
 * not. The plain average over ranks is then right.
 * Where gradients travel as halves (reduce_dtype), the tail goes first and by itself, in f32. The mean of the weights
 * is then known before the gradients are rounded, and each rank scales its own by w_r over that mean.
 *
 * Whether a pass is of this kind follows from the program, which is the same on all ranks; but a rank without samples
 * does not run it. So the first such pass begins with an averaging that brings nothing but a mark which says so; from
 * then on all ranks agree before every pass.
 */
#include <math.h>

#include "autograd/tape.h"
#include "base/log.h"
#include "comm/hold.h"
#include "parallel/buffers.h"
#include "parallel/data_parallel.h"

/* Behind the gradients of the finest dtype; then the marks. */
enum { WEIGHT, SAMPLES, AGREE, MARKS };

/* What a rank brings that has nothing to be weighed by: too little to count beside others, and what was gathered in
 * the gradients before comes through when no rank has anything. */
static const double NO_WEIGHT = 0x1p-80;

static int tail_flat(const ls_data_parallel_state *state) {
    return state->flat_count - 1;
}

int64_t ls_data_parallel_tail(const ls_data_parallel_state *state, int flat) {
    return flat == tail_flat(state) ? MARKS + state->parameter_count : 0;
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

/* Number `index` of the tail. */
static void write_number(const ls_data_parallel_state *state, int64_t index, double value) {
    void *tail = tail_memory(state);
    if (state->flats[tail_flat(state)].dtype == LS_F64) {
        ((double *)tail)[index] = value;
    } else {
        ((float *)tail)[index] = (float)value;
    }
}

static double read_number(const ls_data_parallel_state *state, int64_t index) {
    const void *tail = tail_memory(state);
    return state->flats[tail_flat(state)].dtype == LS_F64 ? ((const double *)tail)[index]
                                                          : (double)((const float *)tail)[index];
}

static ls_status scale_gradients(const ls_data_parallel_state *state, double factor) {
    for (int i = 0; i < state->flat_count; i++) {
        const ls_flat *flat = &state->flats[i];
        const ls_device *device = flat->gradients->device;
        LS_TRY(device->kernels->scale(ls_device_stream(device), flat->dtype, flat->count, factor,
                                      flat->gradients->memory));
    }
    return LS_OK;
}

/* What the ranks tell each other behind the gradients; afterwards the mean over ranks. */
typedef struct tail {
    double weight;
    double samples;
    double agree; /* positive: the ranks go on to agree on weights, and come back */
} tail;

/* Zeroes what a parameter without a gradient would contribute. */
static ls_status zero_missing(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = leaf_of(state, i);
        if (leaf != NULL && !leaf->has_gradient) {
            LS_TRY(ls_kernels_of(leaf->gradient)->fill(ls_stream_of(leaf->gradient), leaf->gradient, 0));
        }
    }
    return LS_OK;
}

static void write_tail(const ls_data_parallel_state *state, const tail *own) {
    write_number(state, WEIGHT, own->weight);
    write_number(state, SAMPLES, own->samples);
    write_number(state, AGREE, own->agree);
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = leaf_of(state, i);
        write_number(state, MARKS + i, leaf != NULL && leaf->has_gradient ? 1 : 0);
    }
}

/* Learns which parameters have a gradient on any rank. */
static tail read_tail(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count; i++) {
        ls_leaf *leaf = leaf_of(state, i);
        if (leaf != NULL) {
            leaf->has_gradient = read_number(state, MARKS + i) > 0;
            ls_leaf_changed(leaf, "ls_data_parallel");
        }
    }
    return (tail){.weight = read_number(state, WEIGHT),
                  .samples = read_number(state, SAMPLES),
                  .agree = read_number(state, AGREE)};
}

/* Between a device and the host; nothing where they are one. */
static ls_status fetch_gradients(const ls_data_parallel_state *state, int i) {
    const ls_flat *flat = &state->flats[i];
    const size_t bytes = (size_t)flat->count * ls_dtype_size(flat->dtype);
    return state->common[i] == flat->gradients
               ? LS_OK
               : ls_device_fetch(flat->gradients->device, state->common[i]->memory, flat->gradients->memory, bytes);
}

static ls_status store_gradients(const ls_data_parallel_state *state, int i) {
    const ls_flat *flat = &state->flats[i];
    const size_t bytes = (size_t)flat->count * ls_dtype_size(flat->dtype);
    return state->common[i] == flat->gradients
               ? LS_OK
               : ls_device_store(flat->gradients->device, flat->gradients->memory, state->common[i]->memory, bytes);
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

/*
 * Buffers (running statistics) become the mean over samples too, so that all ranks keep one model; those that cannot be
 * averaged become rank 0's. `share` is this rank's part of all samples, times the ranks.
 */
static ls_status average_buffers(const ls_data_parallel_state *state, double share) {
    for (int i = 0; i < ls_module_buffer_count(state->model); i++) {
        const ls_tensor *buffer = ls_module_buffer(state->model, i);
        const ls_dtype dtype = (ls_dtype)buffer->dtype;
        ls_tensor_changed(buffer, "ls_data_parallel");
        if (dtype != LS_F32 && dtype != LS_F64) {
            LS_TRY(ls_broadcast_in_place(state->comm, buffer, 0));
            continue;
        }
        const ls_kernels *kernels = ls_kernels_of(buffer);
        if (share != 1) {
            LS_TRY(kernels->scale(ls_stream_of(buffer), dtype, buffer->count, share, buffer->data));
        }
        LS_TRY(ls_allreduce_in_place(state->comm, buffer, LS_AVG));
    }
    return LS_OK;
}

/* The gradients as halves, averaged, and back; the CPU's halves are the communicator's own. */
static ls_status average_halves(const ls_data_parallel_state *state) {
    const ls_flat *flat = &state->flats[0];
    const ls_device *device = flat->gradients->device;
    ls_stream *stream = ls_device_stream(device);
    ls_tensor gradients = ls_flat_view(flat->gradients, LS_F32, flat->count);
    ls_tensor halves = ls_flat_view(state->halves, state->reduce_dtype, flat->count);
    LS_TRY(device->kernels->cast(stream, &halves, &gradients));
    if (state->in_place) {
        LS_TRY(ls_allreduce_in_place(state->comm, &halves, LS_AVG));
        return device->kernels->cast(stream, &gradients, &halves);
    }
    void *memory = state->host_halves->memory;
    const size_t bytes = state->host_halves->bytes;
    LS_TRY(device->is_host ? LS_OK : ls_device_fetch(device, memory, state->halves->memory, bytes));
    LS_TRY(ls_comm_allreduce(state->comm, memory, memory, (size_t)flat->count, state->reduce_dtype, LS_AVG, NULL));
    LS_TRY(device->is_host ? LS_OK : ls_device_store(device, state->halves->memory, memory, bytes));
    return device->kernels->cast(stream, &gradients, &halves);
}

/* The tail by itself. */
static ls_status average_tail(const ls_data_parallel_state *state) {
    const int flat = tail_flat(state);
    void *memory = tail_memory(state);
    return ls_comm_allreduce(state->comm, memory, memory, (size_t)ls_data_parallel_tail(state, flat),
                             state->flats[flat].dtype, LS_AVG, NULL);
}

/* As `average`, with the tail first. */
static ls_status average_in_halves(ls_data_parallel_state *state, const tail *own, tail *mean) {
    LS_TRY(zero_missing(state));
    write_tail(state, own);
    LS_TRY(average_tail(state));
    *mean = read_tail(state);
    if (own->weight != mean->weight) {
        LS_TRY(scale_gradients(state, own->weight / mean->weight));
    }
    return average_halves(state);
}

static ls_status average_in_place(const ls_data_parallel_state *state, int i) {
    const ls_flat *flat = &state->flats[i];
    const ls_tensor gradients = ls_flat_view(flat->gradients, flat->dtype, flat->count);
    return ls_allreduce_in_place(state->comm, &gradients, LS_AVG);
}

/* With the tail behind them. */
static ls_status average_on_host(const ls_data_parallel_state *state, int i) {
    const ls_flat *flat = &state->flats[i];
    const size_t count = (size_t)(flat->count + ls_data_parallel_tail(state, i));
    void *memory = state->common[i]->memory;
    LS_TRY(fetch_gradients(state, i));
    LS_TRY(ls_comm_allreduce(state->comm, memory, memory, count, flat->dtype, LS_AVG, NULL));
    return store_gradients(state, i);
}

/* The average over ranks of the gradients, each weighed by own->weight; *mean becomes that of the tails. */
static ls_status average(ls_data_parallel_state *state, const tail *own, tail *mean) {
    if (!ls_module_list(state->model)) {
        return ls_error_status();
    }
    if (!gradients_are_home(state)) {
        LS_TRY(reclaim_gradients(state));
    }
    if (state->reduce_dtype != LS_F32) {
        return average_in_halves(state, own, mean);
    }
    if (own->weight != 1) {
        LS_TRY(scale_gradients(state, own->weight));
    }
    LS_TRY(zero_missing(state));
    write_tail(state, own);
    for (int i = 0; i < state->flat_count; i++) {
        LS_TRY(state->in_place ? average_in_place(state, i) : average_on_host(state, i));
    }
    LS_TRY(state->in_place ? average_tail(state) : LS_OK);
    *mean = read_tail(state);
    return mean->weight != 1 ? scale_gradients(state, 1 / mean->weight) : LS_OK;
}

/* ---- the usual case ---------------------------------------------------------------------------------------------- */

static ls_status agree_on_usual(ls_data_parallel_state *state, double divisor) {
    LS_TRY(ls_comm_allreduce(state->comm, &divisor, &divisor, 1, LS_F64, LS_MAX, NULL));
    state->usual = divisor > 0 ? divisor : 1;
    return LS_OK;
}

/* An averaging by what the losses divide by: d_r is `divisor`. */
static ls_status average_by_divisor(ls_data_parallel_state *state, double divisor, double samples, bool agree,
                                    tail *mean) {
    if (state->usual == 0) {
        LS_TRY(agree_on_usual(state, divisor));
    }
    const double weight = agree ? 1 : divisor / state->usual;
    const tail own = {.weight = weight != 0 ? weight : NO_WEIGHT, .samples = samples, .agree = agree ? 1 : 0};
    return average(state, &own, mean);
}

static double share_of(double samples, double mean) {
    return mean > 0 ? samples / mean : 1;
}

/* ---- agreed weights ---------------------------------------------------------------------------------------------- */

/* What ranks tell each other of a pass before it, added up: a few divisors at a time. */
enum { DIVISORS = 12 };
typedef struct agreement {
    double ranks; /* that run it */
    double sums;  /* that each of them has */
    double squares;
    double samples;
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

/* ---- means made by hand ------------------------------------------------------------------------------------------ */

/*
 * The gradient of a sum over samples is that of the sum of all ranks. A program that divides the sum by the count of
 * its own rank means the mean, but gets a gradient as many times too large as there are ranks. The gradient of the loss
 * with respect to the sum shows this: it is one over a count of this rank, or differs from rank to rank.
 */
static void warn(ls_data_parallel_state *state, const char *constant) {
    state->looks = 0;
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
            "ls_backward: this loss takes the result of %s over the samples of this rank for a constant, where "
            "one process would take that of the global batch; reduce it over the ranks first (ls_allreduce)",
            constant);
    }
}

static bool is_one_over(double factor, double count) {
    return fabs(fabs(factor) * count - 1) < 1e-5;
}

/* Whether a sum is divided by how many it sums over on this rank, and not by how many all ranks do. */
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

static void look_at(ls_data_parallel_state *state, const ls_pass_findings *findings) {
    state->looks--;
    state->factor = 0;
    bool divided = false;
    for (int i = 0; i < findings->sums && state->agreed; i++) {
        state->factor += findings->sum[i].factor;
        divided |= is_divided_by_own_count(state, findings->sum[i].factor, findings->sum[i].sizes);
    }
    if (divided || findings->constant != NULL) {
        warn(state, divided || findings->divides ? NULL : findings->constant);
    }
}

/* The factors of the last pass, which are equal in a program that divides by what all ranks have alike. */
static void compare_factors(ls_data_parallel_state *state, const agreement *all) {
    const double square = all->factor * all->factor;
    if (state->looks > 0 && all->factors * all->factor_square - square > 1e-8 * square) {
        warn(state, NULL);
    }
}

/* Agrees on the weights of a pass; `loss` is NULL on a rank that does not run it. */
static ls_status agree(ls_data_parallel_state *state, ls_batch_loss *loss) {
    double most = 0;
    int first = 0;
    do {
        agreement own = {.ranks = loss != NULL, .samples = loss != NULL ? (double)state->samples : 0};
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
        if (all.ranks * all.squares != all.sums * all.sums) {
            return ls_fail(LS_ERR_MISMATCH,
                           "ls_backward: the losses that the ranks make of a data-parallel module's output are sums or "
                           "means in different numbers (%g here, %g on average): all ranks run one program",
                           own.sums, all.sums / all.ranks);
        }
        if (loss != NULL && !loss->weighed) {
            weigh(state, loss, first, &own, &all);
        }
        compare_factors(state, &all);
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
    LS_TRY(ls_batch_loss_check(loss));
    LS_TRY(ls_comm_check_open("ls_data_parallel", state->comm));
    loss->watched |= state->looks > 0;
    state->agreed = false;
    state->divisor = loss->by_samples ? (double)state->samples : loss->divisor;
    if (!agreed) {
        return LS_OK;
    }
    if (!agrees_anyway(state)) {
        tail mean;
        LS_TRY(average_by_divisor(state, 0, 0, true, &mean));
        state->agrees = true;
    }
    return agree(state, loss);
}

/* The averaging at the end of a pass that this rank has agreed on. */
static ls_status average_agreed(ls_data_parallel_state *state, double samples) {
    if (state->no_sync) {
        state->gathering = true;
        return LS_OK;
    }
    state->gathering = false;
    tail mean;
    LS_TRY(average(state, &(tail){.weight = 1}, &mean));
    return state->all_samples > 0 ? average_buffers(state, samples * ls_comm_size(state->comm) / state->all_samples)
                                  : LS_OK;
}

static ls_status pass_ends(void *user, const ls_pass_findings *findings) {
    ls_data_parallel_state *state = user;
    if (findings != NULL && state->looks > 0) {
        look_at(state, findings);
    }
    const double samples = (double)state->samples;
    if (state->agreed) {
        return average_agreed(state, samples);
    }
    tail mean;
    LS_TRY(average_by_divisor(state, state->divisor, samples, false, &mean));
    return mean.samples > 0 ? average_buffers(state, share_of(samples, mean.samples)) : LS_OK;
}

static void hold_watched(void *user, bool hold) {
    ls_data_parallel_hold(user, hold);
}

const ls_pass_watch ls_data_parallel_watch = {
    .agrees = agrees, .begin = pass_begins, .end = pass_ends, .hold = hold_watched};

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
        LS_TRY(average_by_divisor(state, 0, 0, false, &mean));
        if (!(mean.agree > 0)) {
            return mean.samples > 0 ? average_buffers(state, 0) : LS_OK;
        }
        state->agrees = true;
    }
    LS_TRY(agree(state, NULL));
    LS_TRY(walk_empty(output));
    return average_agreed(state, 0);
}
