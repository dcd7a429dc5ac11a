/* Loaders of data sets: split the samples of an epoch into global batches, and give each rank its share. */
#include <math.h>

#include "base/describe.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/share.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/order.h"
#include "data/prefetch.h"
#include "tensor/device.h"
#include "tensor/scope.h"

/* A batch: positions in the epoch's order. */
typedef struct share {
    int64_t begin; /* the first */
    int64_t all;   /* number of samples of all ranks */
    int64_t mine;  /* first sample of this rank */
    int64_t count; /* this rank's */
} share;

typedef struct loader_state {
    ls_dataset *dataset;
    ls_loader_options options; /* `weights` is valid only while the loader is being created */
    double *sums;              /* cumulative weights; NULL if samples are not drawn by weight */
    int rank;
    int world_size;
    int64_t global_batch;
    int64_t samples;       /* per epoch */
    int64_t *order;        /* sample indices of the epoch, then the samples that the epoch leaves out */
    ls_block_order blocks; /* used if options.shuffle_window > 0 */
    int64_t ordered_epoch; /* the epoch of `order`; -1 before the first epoch */
    share lent_share;      /* the share of the last batch */
    ls_prefetch *prefetch; /* makes batches on threads; NULL if batches are made on the caller's thread, into `input`
                              and `target` */
    ls_tensor *input;      /* input of the last batch; reused if there are no other references */
    ls_tensor *target;
} loader_state;

/* ---- construction ------------------------------------------------------------------------------------------------ */

static ls_status check_sizes(const ls_loader_options *options) {
    if (options->batch_size < 0 || options->global_batch_size < 0 ||
        (options->batch_size > 0 && options->global_batch_size > 0)) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "ls_loader_new: batch size %lld and global batch size %lld: set exactly one of them, to a positive number",
            (long long)options->batch_size, (long long)options->global_batch_size);
    }
    const int ranks = options->comm != NULL ? ls_comm_size(options->comm) : 1;
    if (options->shards < 0 || (options->shards > 0 && options->shards < ranks)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: .shards is %d, but must be 0 (off) or at least the number of ranks (%d)",
                       options->shards, ranks);
    }
    if (options->shards > 0 && options->global_batch_size == 0) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: .shards is %d, but .global_batch_size is not set, so the global batch would "
                       "depend on the number of ranks: set .global_batch_size instead of .batch_size",
                       options->shards);
    }
    if (options->comm != NULL && options->batch_size > INT64_MAX / ls_comm_size(options->comm)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_new: batch size %lld on each of %d ranks is too large",
                       (long long)options->batch_size, ls_comm_size(options->comm));
    }
    return LS_OK;
}

static ls_status check_threads(const ls_loader_options *options) {
    enum { MOST = 1024 };
    LS_TRY(ls_option_within("ls_loader_new", "threads", options->threads, 0, MOST));
    LS_TRY(ls_option_within("ls_loader_new", "prefetch", (double)options->prefetch, 0, INT32_MAX));
    return options->prefetch == 0 || options->threads > 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "ls_loader_new: prefetch is %lld and threads is 0: prefetching needs threads",
                         (long long)options->prefetch);
}

/* Returns whether each block of the loader consists of whole blocks of the data set. */
static bool is_aligned(const ls_sample_storage *storage, int64_t block) {
    return storage->block > 0 && block % storage->block == 0;
}

/* Returns the largest number of data-set blocks that the samples of one loader block can occupy. */
static int64_t storage_blocks(const ls_sample_storage *storage, int64_t block) {
    if (block == 0 || storage->block == 0) {
        return 1;
    }
    return is_aligned(storage, block) ? block / storage->block : block > 1 ? 2 + (block - 2) / storage->block : 1;
}

/* Checks the options of the block-wise shuffle. A window that does not fit in the cache would read each block once
 * per sample. */
static ls_status check_blocks(const ls_loader_options *options, const ls_dataset *dataset) {
    const int64_t window = options->shuffle_window, block = options->shuffle_block;
    if (window < 0 || block < 0 || (block > 0 && window == 0)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: .shuffle_window is %lld and .shuffle_block is %lld: both must be 0 or more, and "
                       ".shuffle_block needs a .shuffle_window",
                       (long long)window, (long long)block);
    }
    const ls_sample_storage *storage = &dataset->storage;
    if (window > 0 && block == 0 && storage->block == 0) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: .shuffle_window is %lld, but the data set has no blocks (ls_dataset_block): set "
                       ".shuffle_block, or use ls_dataset_subset instead of random parts",
                       (long long)window);
    }
    const int64_t most = storage->cached / 2 / storage_blocks(storage, block); /* a batch may need two windows */
    return storage->block == 0 || window <= most || window == 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "ls_loader_new: .shuffle_window is %lld blocks, but the cache of the data set is sufficient "
                         "only for windows of %lld: set a smaller window, or a larger .cache_bytes of the data set",
                         (long long)window, (long long)(most > 0 ? most : 0));
}

static ls_status check_order(const ls_loader_options *options, int64_t count) {
    if ((options->weights != NULL) + (options->sampler != NULL) + options->no_shuffle + (options->shuffle_window > 0) >
        1) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: set at most one of .weights, .sampler, .no_shuffle and .shuffle_window");
    }
    if (options->weights != NULL && options->weight_count != count) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_new: %lld weights for %lld samples",
                       (long long)options->weight_count, (long long)count);
    }
    const bool repeats = options->weights != NULL || options->sampler != NULL;
    if (options->epoch_samples < 0 || (options->epoch_samples > count && (!repeats || count == 0))) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: an epoch has %lld samples, but the data set has only %lld; set .weights or "
                       ".sampler to draw samples several times",
                       (long long)options->epoch_samples, (long long)count);
    }
    if (options->epoch_samples > PTRDIFF_MAX / (ptrdiff_t)sizeof(int64_t)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: an epoch has %lld samples, whose order does not fit into memory: set a smaller "
                       ".epoch_samples",
                       (long long)options->epoch_samples);
    }
    return LS_OK;
}

/* Computes cumulative weights. */
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
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_new: the weights add up to %g, but their sum must be positive and finite", sum);
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
    if (state->options.shuffle_window > 0) {
        const ls_sample_storage *storage = &state->dataset->storage;
        const int64_t block = state->options.shuffle_block;
        state->blocks = (ls_block_order){.block = block > 0 ? block : storage->block,
                                         .first = is_aligned(storage, block) ? storage->first : 0,
                                         .window = state->options.shuffle_window,
                                         .batch = state->global_batch};
        return ls_block_order_make(&state->blocks, count);
    }
    return weighted ? add_weights(state->sums, state->options.weights, count) : LS_OK;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

typedef struct sampling {
    const loader_state *state;
    int64_t epoch;
} sampling;

static ls_status call_sampler(void *argument) {
    const sampling *s = argument;
    const ls_loader_options *options = &s->state->options;
    return options->sampler(s->epoch, s->state->order, s->state->samples, options->sampler_user);
}

static ls_status ask_sampler(const loader_state *state, int64_t epoch) {
    LS_TRY(ls_without_recording(call_sampler, &(sampling){state, epoch}));
    for (int64_t i = 0; i < state->samples; i++) {
        if (state->order[i] < 0 || state->order[i] >= state->dataset->count) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_loader_next: the sampler returned %lld as index %lld of epoch %lld, but the data set "
                           "has %lld samples",
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
    } else if (options->shuffle_window > 0) {
        ls_block_order_fill(&state->blocks, state->order, count, options->seed, (uint64_t)epoch);
    } else {
        ls_order_identity(state->order, count);
        if (!options->no_shuffle) {
            ls_order_shuffle(state->order, count, options->seed, (uint64_t)epoch);
        }
    }
    state->ordered_epoch = epoch;
    return LS_OK;
}

static share share_of(const loader_state *state, int64_t number) {
    const int64_t begin = number * state->global_batch;
    const int64_t left = state->samples - begin;
    const int64_t all = left < state->global_batch ? left : state->global_batch;
    const int shards = state->options.shards;
    if (shards == 0) {
        const ls_share own = ls_share_of(all, state->world_size, state->rank);
        return (share){.begin = begin, .all = all, .mine = begin + own.start, .count = own.count};
    }
    const ls_share slices = ls_share_of(shards, state->world_size, state->rank); /* slices of this rank */
    const int64_t first = ls_share_of(all, shards, slices.start).start;
    const ls_share last = ls_share_of(all, shards, slices.start + slices.count - 1);
    return (share){.begin = begin, .all = all, .mine = begin + first, .count = last.start + last.count - first};
}

/* Fetches samples of the epoch in `order`. May run on any thread. */
static ls_status fetch(const loader_state *state, const int64_t *indices, const int64_t *places, int64_t count,
                       ls_tensor **input, ls_tensor **target) {
    const ls_samples samples = {.indices = indices,
                                .places = places,
                                .count = count,
                                .seed = state->options.seed,
                                .epoch = state->ordered_epoch};
    return ls_dataset_batch(state->dataset, &samples, input, target);
}

static ls_status make_batch(void *user, int64_t number, ls_tensor **input, ls_tensor **target) {
    const loader_state *state = user;
    const share part = share_of(state, number);
    const size_t size = (size_t)part.count * sizeof(int64_t);
    int64_t *places = ls_record_allocate(size);
    if (places == NULL) {
        return ls_fail_memory("ls_loader_next", size);
    }
    for (int64_t i = 0; i < part.count; i++) {
        places[i] = part.mine + i;
    }
    const ls_status status = fetch(state, state->order + part.mine, places, part.count, input, target);
    ls_record_release(places, size);
    return status;
}

/* Returns the batch on the host, valid until the next call. */
static ls_status take(ls_loader *self, int64_t number, ls_tensor **input, ls_tensor **target) {
    loader_state *state = self->state;
    if (state->prefetch != NULL) {
        return ls_prefetch_take(state->prefetch, number, self->batches, !self->lent_copies, input, target);
    }
    if (!self->lent_copies) { /* the elements stay where they are, for the next batch */
        state->input = ls_tensor_renew(state->input);
        state->target = ls_tensor_renew(state->target);
    }
    const ls_status status = make_batch(state, number, &state->input, &state->target);
    *input = state->input;
    *target = state->target;
    return status;
}

static ls_status dataset_next(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    loader_state *state = self->state;
    (void)more; /* the loader's fixed number of batches determines the end */
    if (state->ordered_epoch != epoch) {
        ls_prefetch_halt(state->prefetch); /* the threads of `prefetch` read the order */
        LS_TRY(order_epoch(state, epoch));
    }
    LS_TRY(take(self, number, &batch->input, &batch->target));
    state->lent_share = share_of(state, number);
    batch->first = state->lent_share.mine - state->lent_share.begin;
    batch->count = state->lent_share.count;
    batch->global_count = state->lent_share.all;
    return LS_OK;
}

static void dataset_free_state(ls_loader *self) {
    loader_state *state = self->state;
    ls_prefetch_free(state->prefetch);
    ls_tensor_withdraw(state->input);
    ls_tensor_withdraw(state->target);
    ls_dataset_drop(state->dataset);
    ls_free(state->order);
    ls_free(state->sums);
    ls_block_order_free(&state->blocks);
}

static const ls_loader_type dataset_type = {.name = "of a data set",
                                            .state_size = sizeof(loader_state),
                                            .next = dataset_next,
                                            .free_state = dataset_free_state};

/*
 * One thread calls the program's functions, in the order of batches, unless the program has declared them thread-safe.
 */
static ls_status make_threads(loader_state *state) {
    const ls_loader_options *options = &state->options;
    if (options->threads == 0) {
        return LS_OK;
    }
    const int threads = state->dataset->serial ? 1 : options->threads;
    const int64_t ahead = options->prefetch > 0 ? options->prefetch : 2 * (int64_t)threads;
    state->prefetch =
        ls_prefetch_new(threads, ahead, options->comm != NULL ? ls_comm_rank(options->comm) : -1, make_batch, state);
    return state->prefetch != NULL ? LS_OK : ls_error_status();
}

/* Takes ownership of the caller's reference to `dataset`, even on failure. */
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
    loader->of_dataset = true;
    loader->undivided = world_size == 1;
    loader->device = options->device != NULL ? ls_device_find("ls_loader_new", options->device) : ls_device_default();
    loader_state *state = loader->state;
    *state = (loader_state){.dataset = dataset,
                            .options = *options,
                            .rank = options->comm != NULL ? ls_comm_rank(options->comm) : 0,
                            .world_size = world_size,
                            .global_batch = global_batch,
                            .samples = samples,
                            .ordered_epoch = -1};
    if (loader->device == NULL || allocate(state) != LS_OK || make_threads(state) != LS_OK) {
        ls_loader_free(loader);
        return NULL;
    }
    state->options.weights = NULL;
    return loader;
}

ls_loader *ls_loader_new(ls_dataset *dataset, const ls_loader_options *options) {
    static const ls_loader_options defaults;
    options = options != NULL ? options : &defaults;
    dataset = ls_dataset_take("ls_loader_new", dataset);
    if (dataset == NULL || check_sizes(options) != LS_OK || check_threads(options) != LS_OK ||
        check_order(options, dataset->count) != LS_OK || check_blocks(options, dataset) != LS_OK) {
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
    return loader->type == &dataset_type ? state->order + state->lent_share.mine : NULL;
}

ls_status ls_loader_fetch(ls_loader *loader, int64_t *places, int64_t count, ls_tensor **input, ls_tensor **target) {
    const loader_state *state = loader->state;
    if (loader->type != &dataset_type) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_loader: this loader, %s, cannot replace samples in a batch; use a loader from ls_loader_new",
                       loader->type->name);
    }
    for (int64_t i = 0; i < count; i++) {
        if (places[i] < 0 || places[i] >= state->lent_share.all) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_loader: there is no sample %lld in a batch of %lld",
                           (long long)places[i], (long long)state->lent_share.all);
        }
        places[i] += state->lent_share.begin;
    }
    const size_t size = (size_t)count * sizeof(int64_t);
    int64_t *indices = ls_record_allocate(size);
    if (indices == NULL) {
        return ls_fail_memory("ls_loader", size);
    }
    for (int64_t i = 0; i < count; i++) {
        indices[i] = state->order[places[i]];
    }
    const ls_status status = fetch(state, indices, places, count, input, target);
    ls_record_release(indices, size);
    return status;
}

int64_t ls_loader_global_batch(const ls_loader *loader) {
    return loader->type == &dataset_type ? ((const loader_state *)loader->state)->global_batch : 0;
}

ls_loader_order ls_loader_order_of(const ls_loader *loader) {
    if (loader->type != &dataset_type) {
        return (ls_loader_order){.samples = 0};
    }
    const loader_state *state = loader->state;
    return (ls_loader_order){
        .samples = state->dataset->count, .seed = state->options.seed, .no_shuffle = state->options.no_shuffle};
}

int ls_loader_shards(const ls_loader *loader) {
    return loader->type == &dataset_type ? ((const loader_state *)loader->state)->options.shards : -1;
}

int ls_loader_ranks(const ls_loader *loader) {
    return loader != NULL && loader->type == &dataset_type ? ((const loader_state *)loader->state)->world_size : 0;
}

int ls_loader_share(const ls_loader *loader) {
    return loader != NULL && loader->type == &dataset_type ? ((const loader_state *)loader->state)->rank : 0;
}

/* The options and counts that must be equal on all ranks. */
typedef struct description {
    int64_t samples, epoch_samples, global_batch_size, shards, shuffle_window, shuffle_block;
    uint64_t seed, weights;
    bool drop_last, no_shuffle, sampler;
} description;

void ls_loader_describe(const ls_loader *loader, int ranks, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(description, samples),
                                      LS_FIELD(description, epoch_samples),
                                      LS_FIELD(description, global_batch_size),
                                      LS_FIELD(description, shards),
                                      LS_FIELD(description, shuffle_window),
                                      LS_FIELD(description, shuffle_block),
                                      LS_FIELD(description, seed),
                                      LS_FIELD(description, weights),
                                      LS_FIELD(description, drop_last),
                                      LS_FIELD(description, no_shuffle),
                                      LS_FIELD(description, sampler),
                                      {.name = NULL}};
    if (loader == NULL) {
        ls_describe(text, size, "none", NULL, NULL);
        return;
    }
    if (ls_loader_ranks(loader) != ranks) {
        ls_describe(text, size, "a loader whose batches are not divided over the ranks", NULL, NULL);
        return;
    }
    const loader_state *state = loader->state;
    const ls_loader_options *options = &state->options;
    const description own = {
        .samples = state->dataset->count,
        .epoch_samples = state->samples,
        .global_batch_size = state->global_batch,
        .shards = options->shards,
        .shuffle_window = options->shuffle_window,
        .shuffle_block = options->shuffle_window > 0 ? state->blocks.block : 0,
        .seed = options->seed,
        .weights = state->sums != NULL
                       ? ls_hash(LS_HASH_START, state->sums, (size_t)state->dataset->count * sizeof *state->sums)
                       : 0,
        .drop_last = options->drop_last,
        .no_shuffle = options->no_shuffle,
        .sampler = options->sampler != NULL};
    ls_describe(text, size, "a loader", fields, &own);
}
