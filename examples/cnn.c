/*
 * Fashion-MNIST with a convolutional network, data-parallel over all ranks; batch normalisation is over the samples of
 * all of them:
 *
 *     lockstep run -n 2 build/examples/cnn
 *
 * With pictures that are moved and flipped at random, which two threads of each rank prepare:
 *
 *     lockstep run -n 2 build/examples/cnn --augment --threads 2
 */
#include <inttypes.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static long epochs = 5;
static long batch_size = 64;
static long channels = 16;
static long seed = 1;
static long max_steps = 0;
static long limit = 0;
static long threads = 0;
static double learning_rate = 2e-3;
static const char *data;
static bool augment;
static bool quiet;

static const argument options[] = {
    {"--epochs", ARGUMENT_COUNT, &epochs, "times over the training data (5)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per rank and step (64)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "Adam's learning rate (0.002)"},
    {"--channels", ARGUMENT_SIZE, &channels, "of the first convolution; the second has twice as many (16)"},
    {"--seed", ARGUMENT_COUNT, &seed, "of weights and shuffling (1)"},
    {"--data", ARGUMENT_TEXT, &data, "folder with the four IDX files (Debian's dataset-fashion-mnist)"},
    {"--augment", ARGUMENT_FLAG, &augment, "moves and flips pictures at random"},
    {"--threads", ARGUMENT_COUNT, &threads, "that prepare batches ahead (0: none)"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "stop after so many steps (0: no limit)"},
    {"--limit", ARGUMENT_COUNT, &limit, "use only so many samples of each set (0: all)"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

static ls_loader *open_data(ls_comm *world, bool train) {
    ls_dataset *set = ls_mnist_dataset(data, train);
    if (limit > 0 && limit < ls_dataset_count(set)) {
        set = ls_dataset_subset(set, 0, limit);
    }
    if (train && augment) { /* anew in each epoch */
        set = ls_dataset_random_crop(set, &(ls_random_crop_options){.padding = 2});
        set = ls_dataset_normalize(ls_dataset_random_flip(set, 0.5, 0), 0.2860, 0.3530);
    } else {
        set = ls_dataset_preload(ls_dataset_normalize(set, 0.2860, 0.3530));
    }
    return ls_loader_new(set, &(ls_loader_options){.batch_size = train ? batch_size : 500,
                                                   .comm = world,
                                                   .seed = (uint64_t)seed,
                                                   .threads = (int)threads,
                                                   .no_shuffle = !train});
}

/* [n, 28, 28] to [n, 1, 28, 28]: images of one channel. */
static ls_tensor *add_channel(ls_tensor *x, void *user) {
    (void)user;
    return ls_unsqueeze(x, 1);
}

/* 3 by 3 windows, normalised, and the largest of each 2 by 2: half the height and the width. */
static ls_module *block(int64_t in, int64_t out) {
    return ls_sequential(ls_nn_conv_2d(in, out, LS_SHAPE(3), &(ls_conv_options){.same = true, .no_bias = true}),
                         ls_nn_batch_norm_2d(out, NULL), ls_nn_relu(),
                         ls_nn_max_pool(&(ls_pool_options){.kernel = LS_SHAPE(2)}));
}

static ls_module *build_model(ls_comm *world) {
    ls_module *model = ls_sequential(ls_nn_function("AddChannel", add_channel, NULL), block(1, channels),
                                     block(channels, 2 * channels), ls_nn_flatten(),
                                     ls_nn_linear(2 * channels * 7 * 7, 128), ls_nn_relu(), ls_nn_linear(128, 10));
    return ls_data_parallel(model, world, NULL);
}

static ls_status report(ls_trial *trial, ls_comm *world, const ls_module *model, ls_loader *test) {
    ls_status status = ls_trial_evaluate(trial, test, "test");
    const double throughput = ls_trial_throughput(trial);
    printf("rank %d parameters %016" PRIx64 "\n", ls_comm_rank(world), ls_module_hash(model));
    fflush(stdout);
    if (status == LS_OK) {
        status = ls_comm_barrier(world, NULL); /* so that rank 0's lines are the last */
    }
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        printf("throughput: %.0f samples/s\n", throughput);
        printf("test accuracy: %.4f\n", ls_trial_metric(trial, "test_acc"));
    }
    return status;
}

static ls_status train(ls_comm *world) {
    ls_seed((uint64_t)seed);
    ls_loader *training = open_data(world, true);
    ls_loader *test = training != NULL ? open_data(world, false) : NULL;
    ls_module *model = test != NULL ? build_model(world) : NULL;
    ls_optimizer *optimizer = model != NULL ? ls_adam(model, &(ls_adam_options){.learning_rate = learning_rate}) : NULL;
    ls_trial *trial = optimizer == NULL ? NULL
                                        : ls_trial_new(&(ls_trial_options){.model = model,
                                                                           .optimizer = optimizer,
                                                                           .criterion = ls_criterion_cross_entropy,
                                                                           .train = training,
                                                                           .validate = test,
                                                                           .metrics = LS_METRICS("loss", "acc"),
                                                                           .max_steps = max_steps,
                                                                           .quiet = quiet});
    ls_status status = trial != NULL ? ls_trial_run(trial, epochs) : ls_error_status();
    if (status == LS_OK) {
        status = report(trial, world, model, test);
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(training);
    ls_loader_free(test);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Trains a convolutional network on Fashion-MNIST.", options);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || train(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "cnn: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
