/* Loaders of data sets: the order of an epoch, cut into global batches, of which each rank takes its share. */
#include <math.h>

#include "base/memory.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/order.h"
#include "tensor/device.h"
#include "tensor/scope.h"

typedef struct loader_state {
    ls_dataset *dataset;
    ls_loader_options options; /* its weights are only there while the loader is made */
    double *sums;              /* of the weights so far; NULL: samples are not drawn by weights */
    int rank;
    int world_size;
    int64_t global_batch;
    int64_t samples;       /* of an epoch */
    int64_t *order;        /* theirs, and behind them those that the epoch leaves out */
    int64_t ordered_epoch; /* whose order that is; -1: of none yet */
    int64_t begin;         /* the first place in it of the batch lent last */
    int64_t all;           /* its samples, of all ranks */
    int64_t mine;          /* this rank's first place */
    ls_tensor *input;      /* of the batch before, used again where nobody else holds them */
    ls_tensor *target;
    const ls_device *device; /* of what is lent */
    ls_tensor *lent[2];      /* the same there */
} loader_state;

/* ---- making ------------------------------------------------------------------------------------------------------ */

static ls_status check_sizes(const ls_loader_options *options) {
    if (options->batch_size < 0 || options->global_batch_size < 0 ||
        (options->batch_size > 0 && options->global_batch_size > 0)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: batch size %lld and global batch size %lld: give one of them, positive",
                       (long long)options->batch_size, (long long)options->global_batch_size);
    }
    if (options->comm != NULL && options->batch_size > INT64_MAX / ls_comm_size(options->comm)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_new: batch size %lld on each of %d ranks is larger than any number",
                       (long long)options->batch_size, ls_comm_size(options->comm));
    }
    return LS_OK;
}

static ls_status check_order(const ls_loader_options *options, int64_t count) {
    if ((options->weights != NULL) + (options->sampler != NULL) + options->no_shuffle > 1) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: weights, a sampler and no_shuffle exclude each other: give one of them");
    }
    if (options->weights != NULL && options->weight_count != count) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_new: %lld weights for %lld samples",
                       (long long)options->weight_count, (long long)count);
    }
    const bool repeats = options->weights != NULL || options->sampler != NULL;
    if (options->epoch_samples < 0 || (options->epoch_samples > count && (!repeats || count == 0))) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: %lld samples in an epoch: the data set has %lld, and only weights and a sampler "
                       "take some of them several times",
                       (long long)options->epoch_samples, (long long)count);
    }
    return LS_OK;
}

/* The sums of the weights so far. */
static ls_status add_weights(double *sums, const double *weights, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!(weights[i] >= 0) || !isfinite(weights[i])) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_loader_new: weight %lld is %g: it must be 0 or more, and finite",
                           (long long)i, weights[i]);
        }
        sum += weights[i];
        sums[i] = sum;
    }
    if (count > 0 && (!(sum > 0) || !isfinite(sum))) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_new: the weights add up to %g: that must be positive, and finite",
                       sum);
    }
    return LS_OK;
}

static ls_status allocate(loader_state *state) {
    const int64_t count = state->dataset->count;
    const size_t numbers = (size_t)(state->samples > count ? state->samples : count);
    const bool weighted = state->options.weights != NULL;
    state->order = ls_allocate_zeroed(numbers, sizeof *state->order);
    state->sums = weighted ? ls_allocate_zeroed((size_t)count, sizeof *state->sums) : NULL;
    if (state->order == NULL || (weighted && state->sums == NULL)) {
        return ls_fail_memory("ls_loader_new",
                              numbers * sizeof *state->order + (weighted ? (size_t)count * sizeof *state->sums : 0));
    }
    return weighted ? add_weights(state->sums, state->options.weights, count) : LS_OK;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static ls_status ask_sampler(const loader_state *state, int64_t epoch) {
    const ls_loader_options *options = &state->options;
    LS_TRY(options->sampler(epoch, state->order, state->samples, options->sampler_user));
    for (int64_t i = 0; i < state->samples; i++) {
        if (state->order[i] < 0 || state->order[i] >= state->dataset->count) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_loader_next: the sampler made %lld number %lld of epoch %lld: the data set has %lld "
                           "samples",
                           (long long)state->order[i], (long long)i, (long long)epoch,
                           (long long)state->dataset->count);
        }
    }
    return LS_OK;
}

static ls_status order_epoch(loader_state *state, int64_t epoch) {
    const ls_loader_options *options = &state->options;
    const int64_t count = state->dataset->count;
    state->ordered_epoch = -1;
    if (options->sampler != NULL) {
        LS_TRY(ask_sampler(state, epoch));
    } else if (state->sums != NULL) {
        ls_order_draw(state->order, state->samples, state->sums, count, options->seed, (uint64_t)epoch);
    } else {
        ls_order_identity(state->order, count);
        if (!options->no_shuffle) {
            ls_order_shuffle(state->order, count, options->seed, (uint64_t)epoch);
        }
    }
    state->ordered_epoch = epoch;
    return LS_OK;
}

static void give_up_lent(loader_state *state) {
    for (int i = 0; i < 2; i++) {
        ls_tensor_drop(state->lent[i]);
        state->lent[i] = NULL;
    }
}

static ls_status lend(loader_state *state) {
    state->lent[0] = ls_tensor_on_device("ls_loader_next", state->input, state->device);
    state->lent[1] = ls_tensor_on_device("ls_loader_next", state->target, state->device);
    return state->lent[0] != NULL && state->lent[1] != NULL ? LS_OK : ls_error_status();
}

/* Samples that stand one after the other, the first of them at a place. */
static ls_status fetch(loader_state *state, const int64_t *indices, int64_t first, int64_t count) {
    const size_t size = (size_t)count * sizeof(int64_t);
    int64_t *places = ls_record_allocate(size);
    if (places == NULL) {
        return ls_fail_memory("ls_loader_next", size);
    }
    for (int64_t i = 0; i < count; i++) {
        places[i] = first + i;
    }
    const ls_samples samples = {.indices = indices,
                                .places = places,
                                .count = count,
                                .seed = state->options.seed,
                                .epoch = state->ordered_epoch};
    const ls_status status = ls_dataset_batch(state->dataset, &samples, &state->input, &state->target);
    ls_record_release(places, size);
    return status;
}

static ls_status dataset_next(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    loader_state *state = self->state;
    (void)more; /* there are as many as the loader was said to have */
    if (state->ordered_epoch != epoch) {
        LS_TRY(order_epoch(state, epoch));
    }
    const int64_t begin = number * state->global_batch;
    const int64_t left = state->samples - begin;
    const int64_t all = left < state->global_batch ? left : state->global_batch;
    const int64_t mine = begin + all * state->rank / state->world_size;
    state->begin = begin;
    state->all = all;
    state->mine = mine;
    const int64_t next = begin + all * (state->rank + 1) / state->world_size;
    give_up_lent(state);
    LS_TRY(fetch(state, state->order + mine, mine, next - mine));
    LS_TRY(lend(state));
    batch->input = state->lent[0];
    batch->target = state->lent[1];
    batch->count = next - mine;
    batch->global_count = all;
    return LS_OK;
}

static void dataset_free_state(ls_loader *self) {
    loader_state *state = self->state;
    give_up_lent(state);
    ls_tensor_drop(state->input);
    ls_tensor_drop(state->target);
    ls_dataset_drop(state->dataset);
    ls_free(state->order);
    ls_free(state->sums);
}

static const ls_loader_type dataset_type = {.name = "of a data set",
                                            .state_size = sizeof(loader_state),
                                            .next = dataset_next,
                                            .free_state = dataset_free_state};

/* Takes the caller's reference to `dataset`, also when it fails. */
static ls_loader *loader_of(ls_dataset *dataset, const ls_loader_options *options) {
    const int world_size = options->comm != NULL ? ls_comm_size(options->comm) : 1;
    const int64_t samples = options->epoch_samples > 0 ? options->epoch_samples : dataset->count;
    const int64_t global_batch = options->global_batch_size > 0
                                     ? options->global_batch_size
                                     : (options->batch_size > 0 ? options->batch_size : 1) * world_size;
    const bool part = samples % global_batch != 0 && !options->drop_last;
    ls_loader *loader = ls_loader_custom(&dataset_type, samples / global_batch + part);
    if (loader == NULL) {
        ls_dataset_drop(dataset);
        return NULL;
    }
    loader_state *state = loader->state;
    *state = (loader_state){.dataset = dataset,
                            .options = *options,
                            .device = options->device != NULL ? ls_device_find("ls_loader_new", options->device)
                                                              : ls_device_default(),
                            .rank = options->comm != NULL ? ls_comm_rank(options->comm) : 0,
                            .world_size = world_size,
                            .global_batch = global_batch,
                            .samples = samples,
                            .ordered_epoch = -1};
    if (state->device == NULL || allocate(state) != LS_OK) {
        ls_loader_free(loader);
        return NULL;
    }
    state->options.weights = NULL;
    return loader;
}

ls_loader *ls_loader_new(ls_dataset *dataset, const ls_loader_options *options) {
    static const ls_loader_options defaults;
    options = options != NULL ? options : &defaults;
    dataset = ls_dataset_take(dataset);
    if (dataset == NULL || check_sizes(options) != LS_OK || check_order(options, dataset->count) != LS_OK) {
        ls_dataset_drop(dataset);
        return NULL;
    }
    return loader_of(dataset, options);
}

ls_dataset *ls_loader_dataset(const ls_loader *loader) {
    return loader != NULL && loader->type == &dataset_type ? ((const loader_state *)loader->state)->dataset : NULL;
}

const int64_t *ls_loader_samples(const ls_loader *loader) {
    const loader_state *state = loader->state;
    return loader->type == &dataset_type ? state->order + state->mine : NULL;
}

ls_status ls_loader_fetch(ls_loader *loader, int64_t *places, int64_t count, ls_tensor **input, ls_tensor **target) {
    const loader_state *state = loader->state;
    if (loader->type != &dataset_type) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_loader: this one, %s, cannot give other samples of a batch: one of a data "
                       "set can (ls_loader_new)",
                       loader->type->name);
    }
    for (int64_t i = 0; i < count; i++) {
        if (places[i] < 0 || places[i] >= state->all) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_loader: there is no sample %lld in a batch of %lld",
                           (long long)places[i], (long long)state->all);
        }
        places[i] += state->begin;
    }
    const size_t size = (size_t)count * sizeof(int64_t);
    int64_t *indices = ls_record_allocate(size);
    if (indices == NULL) {
        return ls_fail_memory("ls_loader", size);
    }
    for (int64_t i = 0; i < count; i++) {
        indices[i] = state->order[places[i]];
    }
    const ls_samples samples = {.indices = indices,
                                .places = places,
                                .count = count,
                                .seed = state->options.seed,
                                .epoch = state->ordered_epoch};
    const ls_status status = ls_dataset_batch(state->dataset, &samples, input, target);
    ls_record_release(indices, size);
    return status;
}

int64_t ls_loader_global_batch(const ls_loader *loader) {
    return loader->type == &dataset_type ? ((const loader_state *)loader->state)->global_batch : 0;
}
