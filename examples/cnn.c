/*
 * Fashion-MNIST with a convolutional network, data-parallel over all ranks. Batch normalisation uses the samples of all
 * ranks:
 *
 *     lockstep run -n 2 build/examples/cnn
 *
 * With random shifts and flips of the pictures, prepared by two threads per rank:
 *
 *     lockstep run -n 2 build/examples/cnn --augment --threads 2
 *
 * With a deeper network, random shifts and flips, and SGD with a one-cycle learning rate. On two ranks, the test
 * accuracy was 0.9345 after 12 epochs, which take about 8 minutes of processor time per rank:
 *
 *     lockstep run -n 2 build/examples/cnn --deep
 */
#include <lockstep/lockstep.h>

#include "arguments.h"
#include "data_parallel.h"

static long epochs = -1; /* not given: see set_defaults */
static long batch_size = 64;
static long channels = 0;
static long seed = 1;
static long max_steps = 0;
static long limit = 0;
static long threads = 0;
static double learning_rate = 0;
static const char *data;
static bool augment;
static bool deep;
static bool bf16;
static const char *run_record;
static bool capture;
static bool quiet;

static const argument options[] = {
    {"--epochs", ARGUMENT_COUNT, &epochs, "passes over the training data (5; --deep: 12)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per rank and step (64)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "learning rate of Adam (0.002); --deep: peak learning rate of SGD (0.1)"},
    {"--channels", ARGUMENT_SIZE, &channels,
     "of the first convolution; twice as many after each pooling (16; --deep: 32)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of weights and shuffling (1)"},
    {"--data", ARGUMENT_TEXT, &data, "folder with the four IDX files (Debian's dataset-fashion-mnist)"},
    {"--deep", ARGUMENT_FLAG, &deep, "five convolutions instead of two; implies --augment"},
    {"--augment", ARGUMENT_FLAG, &augment, "shift and flip pictures at random"},
    {"--threads", ARGUMENT_COUNT, &threads, "threads that prepare batches ahead (0: none)"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "number of steps (0: no limit)"},
    {"--limit", ARGUMENT_COUNT, &limit, "number of samples of each set to use (0: all)"},
    {"--report", ARGUMENT_TEXT, &run_record, "folder for the record of `lockstep report`"},
    {"--bf16", ARGUMENT_FLAG, &bf16, "matrix products and convolutions in bf16, the rest and the weights in f32"},
    {"--capture", ARGUMENT_FLAG, &capture, "record the first step, and replay it"},
    RECOMPUTE_ARGUMENT,
    DATA_PARALLEL_ARGUMENTS,
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

static void set_defaults(void) {
    epochs = epochs >= 0 ? epochs : deep ? 12 : 5;
    channels = channels > 0 ? channels : deep ? 32 : 16;
    learning_rate = learning_rate > 0 ? learning_rate : deep ? 0.1 : 2e-3;
    augment = augment || deep;
}

static ls_loader *open_data(ls_comm *world, bool train) {
    ls_dataset *set = ls_mnist_dataset(data, train);
    if (limit > 0 && limit < ls_dataset_count(set)) {
        set = ls_dataset_subset(set, 0, limit);
    }
    if (train && augment) { /* different in each epoch */
        set = ls_dataset_random_crop(set, &(ls_random_crop_options){.padding = deep ? 1 : 2});
        set = ls_dataset_normalize(ls_dataset_random_flip(set, 0.5, 0), 0.2860, 0.3530);
    } else {
        set = ls_dataset_preload(ls_dataset_normalize(set, 0.2860, 0.3530));
    }
    ls_loader_options loading =
        train ? loader_options(world, batch_size, global_batch_size) : loader_options(world, 500, 0);
    loading.seed = (uint64_t)seed;
    loading.threads = (int)threads;
    loading.no_shuffle = !train;
    return ls_loader_new(set, &loading);
}

/* Reshapes [n, 28, 28] to [n, 1, 28, 28]: images of one channel. */
static ls_tensor *add_channel(ls_tensor *x, void *user) {
    (void)user;
    return ls_unsqueeze(x, 1);
}

/* A 3x3 convolution with batch normalisation. With `half`, 2x2 max pooling halves the height and the width. */
static ls_module *block(int64_t in, int64_t out, bool half) {
    ls_module *windows = ls_nn_conv_2d(in, out, LS_SHAPE(3), &(ls_conv_layer_options){.same = true, .no_bias = true});
    ls_module *norm = ls_nn_batch_norm_2d(out, NULL);
    return half ? ls_sequential(windows, norm, ls_nn_relu(),
                                ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(2)}))
                : ls_sequential(windows, norm, ls_nn_relu());
}

static ls_module *build_model(ls_comm *world) {
    const int64_t c = channels;
    ls_module *first = ls_nn_function("AddChannel", add_channel, NULL);
    ls_module *model =
        deep ? ls_sequential(first, block(1, c, true), block(c, 2 * c, false), block(2 * c, 2 * c, true),
                             block(2 * c, 4 * c, false), block(4 * c, 4 * c, false),
                             ls_nn_adaptive_average_pool(LS_SHAPE(1)), ls_nn_flatten(), ls_nn_linear(4 * c, 10))
             : ls_sequential(first, block(1, c, true), block(c, 2 * c, true), ls_nn_flatten(),
                             ls_nn_linear(2 * c * 7 * 7, 128), ls_nn_relu(), ls_nn_linear(128, 10));
    return make_data_parallel(model, world);
}

static ls_optimizer *make_optimizer(ls_module *model) {
    const ls_sgd_options sgd = {
        .learning_rate = learning_rate, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true};
    return deep ? ls_sgd(model, &sgd) : ls_adam(model, &(ls_adam_options){.learning_rate = learning_rate});
}

static ls_trial *make_trial(ls_module *model, ls_optimizer *optimizer, ls_loader *training, ls_loader *test) {
    ls_callback *callbacks[3];
    int count = 0;
    if (!quiet) {
        callbacks[count++] = ls_timer(NULL); /* a table at the end, with the time spent waiting for data */
    }
    if (deep) {
        const int64_t steps = epochs * ls_loader_batch_count(training);
        const ls_one_cycle_options one_cycle = {.steps = steps > 0 ? steps : 1, .rising = 0.2, .no_momentum = true};
        ls_schedule *schedule = ls_schedule_one_cycle(optimizer, &one_cycle);
        callbacks[count++] = ls_scheduler(schedule, &(ls_scheduler_options){.per_step = true});
    }
    if (run_record != NULL) {
        callbacks[count++] = ls_run_log(run_record, NULL);
    }
    return ls_trial_new(&(ls_trial_options){.model = model,
                                            .optimizer = optimizer,
                                            .criterion = ls_criterion_cross_entropy,
                                            .train = training,
                                            .validate = test,
                                            .metrics = LS_METRICS("loss", "acc"),
                                            .callbacks = callbacks,
                                            .callback_count = count,
                                            .max_steps = max_steps,
                                            .autocast = bf16 ? LS_BF16 : LS_F32,
                                            .quiet = quiet,
                                            .capture = capture});
}

static ls_status report(ls_trial *trial, ls_comm *world, ls_module *model, ls_loader *test) {
    ls_status status = ls_trial_evaluate(trial, test, "test");
    /* With --zero 3, each rank holds only a part. */
    status = status == LS_OK ? ls_data_parallel_gather(model, true) : status;
    const double throughput = ls_trial_throughput(trial);
    status = status == LS_OK ? report_parameters(world, model) : status;
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
    ls_optimizer *optimizer = model != NULL ? make_optimizer(model) : NULL;
    ls_trial *trial = optimizer != NULL ? make_trial(model, optimizer, training, test) : NULL;
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
    set_defaults();
    ls_comm *world = ls_init(NULL);
    if (world == NULL || train(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "cnn: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
