/* Loaders: the order of an epoch, cut into global batches, of which each rank takes its share. */
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/trace.h"
#include "data/dataset.h"

struct ls_loader {
    ls_dataset *dataset;
    ls_loader_options options;
    int rank;
    int world_size;
    int64_t global_batch;
    int64_t epoch;
    int64_t batch;    /* the next one */
    bool ordered;     /* `order` is that of `epoch` */
    int64_t *order;   /* all samples, in the epoch's order */
    ls_tensor *input; /* of the batch lent last */
    ls_tensor *target;
};

/* Fisher and Yates's shuffle; number i of stream `epoch` under the seed decides step i. */
static void shuffle(int64_t *order, int64_t count, uint64_t seed, int64_t epoch) {
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = (int64_t)ls_random_below(seed, (uint64_t)epoch, (uint64_t)i, (uint64_t)i + 1);
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void order_epoch(ls_loader *loader) {
    const int64_t count = loader->dataset->count;
    for (int64_t i = 0; i < count; i++) {
        loader->order[i] = i;
    }
    if (!loader->options.no_shuffle) {
        shuffle(loader->order, count, loader->options.seed, loader->epoch);
    }
    loader->ordered = true;
}

static ls_status check_options(const ls_loader_options *options) {
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

ls_loader *ls_loader_new(ls_dataset *dataset, const ls_loader_options *options) {
    static const ls_loader_options defaults;
    options = options != NULL ? options : &defaults;
    dataset = ls_dataset_take(dataset);
    if (dataset == NULL || check_options(options) != LS_OK) {
        ls_dataset_drop(dataset);
        return NULL;
    }
    ls_loader *loader = ls_allocate_zeroed(1, sizeof *loader);
    int64_t *order = ls_allocate_zeroed((size_t)dataset->count, sizeof *order);
    if (loader == NULL || order == NULL) {
        ls_free(loader);
        ls_free(order);
        (void)ls_fail_memory("ls_loader_new", (size_t)dataset->count * sizeof *order);
        ls_dataset_drop(dataset);
        return NULL;
    }
    loader->dataset = dataset;
    loader->options = *options;
    loader->order = order;
    loader->rank = options->comm != NULL ? ls_comm_rank(options->comm) : 0;
    loader->world_size = options->comm != NULL ? ls_comm_size(options->comm) : 1;
    loader->global_batch = options->global_batch_size > 0
                               ? options->global_batch_size
                               : (options->batch_size > 0 ? options->batch_size : 1) * loader->world_size;
    return loader;
}

void ls_loader_free(ls_loader *loader) {
    if (loader == NULL) {
        return;
    }
    ls_tensor_drop(loader->input);
    ls_tensor_drop(loader->target);
    ls_dataset_drop(loader->dataset);
    ls_free(loader->order);
    ls_free(loader);
}

ls_dataset *ls_loader_dataset(const ls_loader *loader) {
    return loader != NULL ? loader->dataset : NULL;
}

int64_t ls_loader_batch_count(const ls_loader *loader) {
    if (loader == NULL) {
        return 0;
    }
    const int64_t count = loader->dataset->count;
    const bool part = count % loader->global_batch != 0 && !loader->options.drop_last;
    return count / loader->global_batch + part;
}

ls_status ls_loader_seek(ls_loader *loader, int64_t epoch, int64_t batch) {
    if (loader == NULL || epoch < 0 || batch < 0 || batch > ls_loader_batch_count(loader)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_seek: epoch %lld, batch %lld: an epoch has %lld batches",
                       (long long)epoch, (long long)batch, (long long)ls_loader_batch_count(loader));
    }
    loader->ordered = loader->ordered && loader->epoch == epoch;
    loader->epoch = epoch;
    loader->batch = batch;
    return LS_OK;
}

ls_status ls_loader_next(ls_loader *loader, ls_batch *batch, bool *more) {
    if (loader == NULL || batch == NULL || more == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_next: an argument is NULL");
    }
    *batch = (ls_batch){0};
    *more = loader->batch < ls_loader_batch_count(loader);
    if (!*more) {
        return ls_loader_seek(loader, loader->epoch + 1, 0);
    }
    if (!loader->ordered) {
        order_epoch(loader);
    }
    const int64_t begin = loader->batch * loader->global_batch;
    const int64_t left = loader->dataset->count - begin;
    const int64_t all = left < loader->global_batch ? left : loader->global_batch;
    const int64_t mine = begin + all * loader->rank / loader->world_size;
    const int64_t next = begin + all * (loader->rank + 1) / loader->world_size;
    const uint64_t began = ls_trace_now();
    LS_TRY(ls_dataset_batch(loader->dataset, loader->order + mine, next - mine, &loader->input, &loader->target));
    ls_trace_add(LS_TRACE_TRAINING, began, -1, "batch");
    *batch = (ls_batch){.input = loader->input,
                        .target = loader->target,
                        .count = next - mine,
                        .global_count = all,
                        .number = loader->batch++};
    return LS_OK;
}
