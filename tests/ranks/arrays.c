/*
 * Ranks that read one file with HDF5 or NetCDF, each with its own loader and cache: their shares of a global batch, in
 * rank order, equal the batch of one process, for every order and number of threads. Training on shards gives
 * bit-identical parameters on all ranks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/resumed.h"

#include "base/share.h"

enum { ROWS = 210, WIDTH = 1024, BATCH = 12, BLOCK = 16 /* rows of 64 KiB */, WINDOW = 3 };

/* Writes u [ROWS, WIDTH], y [ROWS] and class [ROWS]. Rank 0 writes, and the barrier makes the others wait. */
static ls_status write_file(ls_comm *world) {
    ls_status status = LS_OK;
    if (ls_comm_rank(world) == 0) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *classes = ls_empty(LS_SHAPE(ROWS), LS_I64);
        for (int i = 0; i < ROWS; i++) {
            ((int64_t *)elements(classes))[i] = i % 3;
        }
        const ls_named tensors[] = {{"class", classes},
                                    {"u", ls_reshape(ls_arange(LS_SHAPE(ROWS * WIDTH), LS_F32), LS_SHAPE(ROWS, WIDTH))},
                                    {"y", ls_arange(LS_SHAPE(ROWS), LS_I64)}};
        status = ls_hdf5_save(in_scratch("file.h5"), tensors, 3);
        const ls_status ended = ls_scope_end(scope);
        status = status == LS_OK ? ended : status;
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    return status;
}

typedef ls_dataset *open_function(const char *path, const ls_array_options *options);

static ls_dataset *open_file(open_function *open, const char *target) {
    const ls_array_options options = {.input = {.variables = (const char *const[]){"u"}, .variable_count = 1},
                                      .target = {.variables = &target, .variable_count = 1, .dtype = LS_I64},
                                      .cache_bytes = 2 * WINDOW * (BLOCK * WIDTH * 4 + ROWS * 8)};
    return open(in_scratch("file.h5"), &options);
}

static ls_status compare_batches(const ls_batch *mine, const ls_batch *whole) {
    const float *rows = elements(mine->input), *all = elements(whole->input);
    const int64_t *targets = elements(mine->target);
    LS_CHECK(mine->global_count == whole->count && mine->first + mine->count <= whole->count);
    for (int64_t i = 0; i < mine->count; i++) {
        LS_CHECK(memcmp(rows + i * WIDTH, all + (mine->first + i) * WIDTH, WIDTH * sizeof *rows) == 0);
        LS_CHECK(rows[i * WIDTH] == (float)(targets[i] * WIDTH));
    }
    return LS_OK;
}

static ls_status compare(ls_comm *world, open_function *open, ls_loader_options options) {
    ls_loader *alone = ls_loader_new(open_file(ls_hdf5_dataset, "y"), &options);
    options.comm = world;
    options.threads = ls_comm_rank(world) % 3;
    ls_loader *mine = ls_loader_new(open_file(open, "y"), &options);
    LS_CHECK(alone != NULL && mine != NULL);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (bool more = true; more;) {
            ls_batch whole, share;
            LS_TRY(ls_loader_next(alone, &whole, &more));
            LS_TRY(ls_loader_next(mine, &share, &more));
            LS_TRY(more ? compare_batches(&share, &whole) : LS_OK);
        }
    }
    ls_loader_free(alone);
    ls_loader_free(mine);
    return LS_OK;
}

/* Returns a hash of the parameters after an epoch on the ranks. The number of shards is the maximum number of ranks. */
static ls_status train_on(ls_comm *comm, uint64_t *hash) {
    enum { SHARDS = 5 };
    ls_dataset *data = ls_dataset_normalize(open_file(ls_hdf5_dataset, "class"), ROWS * WIDTH / 2, ROWS * WIDTH / 3);
    ls_loader *loader = ls_loader_new(
        data, &(ls_loader_options){
                  .global_batch_size = BATCH, .shards = SHARDS, .comm = comm, .seed = SEED, .shuffle_window = WINDOW});
    ls_seed(SEED);
    ls_module *model = ls_data_parallel(ls_nn_linear(WIDTH, 3), comm, &(ls_data_parallel_options){.shards = SHARDS});
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 1));
    *hash = LS_HASH_START;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        *hash = ls_hash(*hash, elements(parameter), (size_t)ls_numel(parameter) * sizeof(float));
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

static ls_status same_bits(ls_comm *world) {
    uint64_t all = 0, own = 0;
    ls_comm *self = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &self));
    LS_TRY(train_on(world, &all));
    LS_TRY(train_on(self, &own));
    LS_CHECK(all == own);
    ls_comm_free(self);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(write_file(world));
    static open_function *const libraries[] = {ls_hdf5_dataset, ls_netcdf_dataset};
    const ls_loader_options orders[] = {
        {.global_batch_size = BATCH, .seed = SEED},
        {.global_batch_size = BATCH, .no_shuffle = true},
        {.global_batch_size = BATCH, .seed = SEED, .shuffle_window = WINDOW},
    };
    for (int i = 0; i < 6; i++) {
        LS_TRY(compare(world, libraries[i % 2], orders[i / 2]));
    }
    LS_TRY(same_bits(world));
    return remove_scratch(world);
}
