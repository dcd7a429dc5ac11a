/*
 * For any order of samples (shuffled, shuffled by blocks, sequential, drawn by weights, custom), any random changes,
 * and any number of threads: the ranks' shares of a global batch, in rank order, equal the batch of a loader in one
 * process. So training gives the same result.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/training.h"

#include "base/share.h"

enum { SAMPLES = 23, EPOCHS = 2, SEED = 9, MOST_RANKS = 64 };

static ls_dataset *numbers(void) {
    ls_tensor *x = ls_arange(LS_SHAPE(SAMPLES, 1), LS_F64);
    return ls_tensor_dataset(x, x);
}

static ls_dataset *plain_pictures(void) {
    ls_tensor *input = ls_empty(LS_SHAPE(SAMPLES, 3, 6, 5), LS_U8);
    for (int64_t i = 0; i < ls_numel(input); i++) {
        ((uint8_t *)elements(input))[i] = (uint8_t)ls_random_u32(SEED, 1, (uint64_t)i);
    }
    ls_tensor *classes = ls_empty(LS_SHAPE(SAMPLES), LS_I64);
    for (int64_t i = 0; i < SAMPLES; i++) {
        ((int64_t *)elements(classes))[i] = i % 3;
    }
    return ls_tensor_dataset(input, classes);
}

/* Pictures of f32 with every random change. */
static ls_dataset *pictures(void) {
    ls_dataset *set =
        ls_dataset_random_crop(plain_pictures(), &(ls_random_crop_options){.height = 5, .padding = 2, .fill = 9});
    set = ls_dataset_random_rotation(ls_dataset_random_flip(set, 0.5, 0.5), 40, 0);
    set =
        ls_dataset_color_jitter(set, &(ls_color_jitter_options){.brightness = 0.5, .contrast = 0.5, .saturation = 0.5});
    set = ls_dataset_random_erasing(ls_dataset_normalize(set, 0.4, 0.3), &(ls_random_erasing_options){.noise = true});
    return ls_dataset_cutout(set, 2, 1, 0);
}

typedef ls_dataset *maker(void);

/* Draws each sample with equal probability at each position. */
static ls_status draw_evenly(int64_t epoch, int64_t *order, int64_t count, void *user) {
    const uint64_t *seed = user;
    for (int64_t i = 0; i < count; i++) {
        order[i] = ls_random_u32(*seed, (uint64_t)epoch, (uint64_t)i) % SAMPLES;
    }
    return LS_OK;
}

/* Checks that this rank's rows are the rows of the global batch that follow the rows of lower ranks. */
static ls_status share_is_right(ls_comm *world, const ls_batch *mine, const ls_batch *whole) {
    int64_t counts[MOST_RANKS];
    LS_TRY(ls_comm_allgather(world, &mine->count, counts, 1, LS_I64, NULL));
    int64_t before = 0;
    int64_t all = 0;
    for (int rank = 0; rank < ls_comm_size(world); rank++) {
        before += rank < ls_comm_rank(world) ? counts[rank] : 0;
        all += counts[rank];
        LS_CHECK(counts[rank] == ls_share_of(whole->count, ls_comm_size(world), rank).count);
    }
    LS_CHECK(mine->first == before && whole->first == 0);
    LS_CHECK(all == whole->count && mine->global_count == all && mine->number == whole->number);
    LS_CHECK(ls_size(mine->input, 0) == mine->count && ls_size(mine->target, 0) == mine->count);
    if (mine->count > 0) {
        const size_t row = (size_t)(ls_numel(mine->input) / mine->count) * ls_dtype_size(ls_dtype_of(mine->input));
        const char *rows = (const char *)elements(whole->input) + (size_t)before * row;
        LS_CHECK(memcmp(elements(mine->input), rows, (size_t)mine->count * row) == 0);
    }
    return LS_OK;
}

static ls_status compare_with(ls_comm *world, maker *make, ls_loader_options options, int threads) {
    ls_loader *alone = ls_loader_new(make(), &options);
    options.comm = world;
    options.threads = threads;
    ls_loader *all = ls_loader_new(make(), &options);
    LS_CHECK(alone != NULL && all != NULL);
    LS_CHECK(ls_loader_batch_count(all) == ls_loader_batch_count(alone));
    /* The ranks reach the same position in different ways. */
    if (ls_comm_rank(world) == 1) {
        LS_TRY(ls_loader_seek(all, 1, 1));
        ls_batch batch;
        bool more;
        LS_TRY(ls_loader_next(all, &batch, &more));
        LS_TRY(ls_loader_seek(all, 0, 0));
    }
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (bool more = true; more;) {
            ls_batch whole;
            ls_batch mine;
            LS_TRY(ls_loader_next(alone, &whole, &more));
            LS_TRY(ls_loader_next(all, &mine, &more));
            LS_TRY(more ? share_is_right(world, &mine, &whole) : LS_OK);
        }
    }
    ls_loader_free(alone);
    ls_loader_free(all);
    return LS_OK;
}

static ls_status compare(ls_comm *world, maker *make, ls_loader_options options) {
    LS_TRY(compare_with(world, make, options, 0));
    return compare_with(world, make, options, 2);
}

/* A loader divides a batch as ls_reduce_scatter divides an axis: 10 samples become 10; 5 and 5; 4, 3 and 3. */
static ls_status shares_like_reduce_scatter(ls_comm *world) {
    enum { COUNT = 10 };
    ls_scope *scope = ls_scope_begin();
    ls_tensor *places = ls_arange(LS_SHAPE(COUNT), LS_I64);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(ls_clone(places), ls_clone(places)),
                                      &(ls_loader_options){.global_batch_size = COUNT, .comm = world});
    ls_batch batch;
    bool more;
    LS_TRY(ls_loader_next(loader, &batch, &more));
    const ls_tensor *part = ls_reduce_scatter(world, places, 0, LS_MAX);
    LS_CHECK(part != NULL && batch.count == ls_size(part, 0) && batch.global_count == COUNT);
    LS_CHECK(batch.count == 0 || batch.first == ((const int64_t *)elements(part))[0]);
    ls_loader_free(loader);
    return ls_scope_end(scope);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static ls_tensor *to_doubles(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_to(batch, LS_F64);
}

static ls_dataset *with_classes(bool changed) {
    ls_dataset *set = changed ? pictures() : ls_dataset_normalize(plain_pictures(), 0.4, 0.3);
    return ls_dataset_concurrent(ls_dataset_transform_input(ls_dataset_flatten(set), to_doubles, NULL));
}

/* Trains for two epochs. In the last batch of each, some of three ranks have no sample. */
static ls_status train(training *t, ls_comm *comm, bool changed, int threads) {
    const ls_linear_options layer = {.dtype = LS_F64};
    const ls_loader_options loading = {
        .global_batch_size = 7, .comm = comm, .seed = SEED, .threads = threads, .prefetch = threads};
    *t = (training){.train = ls_loader_new(with_classes(changed), &loading)};
    const int64_t features = ls_dataset_layout(ls_loader_dataset(t->train)).input_shape.size[0];
    ls_seed(SEED);
    t->model = ls_sequential(ls_nn_linear_with(features, 4, &layer), ls_nn_tanh(), ls_nn_linear_with(4, 3, &layer));
    t->model = comm != NULL ? ls_data_parallel(t->model, comm, NULL) : t->model;
    t->optimizer = ls_sgd(t->model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.5});
    t->trial = ls_trial_new(&(ls_trial_options){.model = t->model,
                                                .optimizer = t->optimizer,
                                                .criterion = ls_criterion_cross_entropy,
                                                .train = t->train,
                                                .quiet = true});
    LS_CHECK(t->trial != NULL);
    return ls_trial_run(t->trial, EPOCHS);
}

static ls_status trains_as_alone(ls_comm *world) {
    training all, alone, plain;
    LS_TRY(train(&all, world, true, 2));
    LS_TRY(train(&alone, NULL, true, 0));
    LS_TRY(train(&plain, NULL, false, 0));
    LS_CHECK(parameter_difference(all.model, alone.model) < 1e-10);
    LS_CHECK(ls_module_parameter_count(all.model) == 4 && ls_trial_metric(alone.trial, "loss") > 0);
    LS_CHECK(fabs(ls_trial_metric(all.trial, "loss") - ls_trial_metric(alone.trial, "loss")) < 1e-10);
    LS_CHECK(fabs(ls_trial_metric(plain.trial, "loss") - ls_trial_metric(alone.trial, "loss")) > 1e-4);
    training_end(&all);
    training_end(&alone);
    training_end(&plain);
    return LS_OK;
}

/* Each rank computes the same split by itself, whatever random numbers it has drawn before. */
static ls_status same_split(ls_comm *world) {
    ls_dataset *parts[2];
    ls_seed((uint64_t)ls_comm_rank(world));
    LS_TRY(ls_dataset_split(numbers(), (const double[]){0.4, 0.6}, 2, SEED, parts));
    ls_dataset_free(parts[1]);
    ls_loader *loader = ls_loader_new(parts[0], &(ls_loader_options){.batch_size = SAMPLES, .no_shuffle = true});
    ls_batch batch;
    bool more;
    LS_TRY(ls_loader_next(loader, &batch, &more));
    for (int64_t i = 0; i < batch.count; i++) {
        double sides[2] = {((const double *)elements(batch.input))[i], -((const double *)elements(batch.input))[i]};
        LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_F64, LS_MAX, NULL));
        LS_CHECK(sides[0] == -sides[1]);
    }
    LS_CHECK(batch.count == 10);
    ls_loader_free(loader);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    double weights[SAMPLES];
    uint64_t seed = SEED + 1;
    for (int i = 0; i < SAMPLES; i++) {
        weights[i] = i % 4 * 0.3;
    }
    LS_CHECK(ls_comm_size(world) <= MOST_RANKS);
    for (int64_t batch = 2; batch <= 10; batch += 4) { /* with batches of 2, some ranks have no samples */
        const ls_loader_options options = {.global_batch_size = batch, .seed = SEED};
        ls_loader_options other = options;
        LS_TRY(compare(world, numbers, options));
        LS_TRY(compare(world, pictures, options));
        other.no_shuffle = true;
        LS_TRY(compare(world, numbers, other));
        other = options;
        other.shuffle_window = 2;
        other.shuffle_block = 4;
        LS_TRY(compare(world, numbers, other));
        LS_TRY(compare(world, pictures, other));
        other = options;
        other.weights = weights;
        other.weight_count = SAMPLES;
        other.epoch_samples = 41;
        LS_TRY(compare(world, numbers, other));
        LS_TRY(compare(world, pictures, other));
        other = options;
        other.sampler = draw_evenly;
        other.sampler_user = &seed;
        other.epoch_samples = 33;
        other.drop_last = true;
        LS_TRY(compare(world, numbers, other));
    }
    LS_TRY(shares_like_reduce_scatter(world));
    LS_TRY(trains_as_alone(world));
    return same_split(world);
}
