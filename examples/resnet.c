/*
 * A small ResNet (He et al., arXiv 1512.03385, section 4.2) on Fashion-MNIST, data-parallel over all ranks, with random
 * shifts and flips of the pictures, batch normalisation over the samples of all ranks, and SGD with a cosine learning
 * rate:
 *
 *     lockstep run -n 2 build/examples/resnet
 *
 * On CIFAR-10, from the folder with the files of its binary version:
 *
 *     lockstep run -n 2 build/examples/resnet --cifar cifar-10-batches-bin --depth 3 --epochs 100 --threads 1
 *
 * Parameters have the same names as in torchvision's ResNet, so that weights can be exchanged.
 */
#include <lockstep/lockstep.h>

#include "arguments.h"
#include "data_parallel.h"

enum { CLASSES = 10, STAGES = 3 };

static long epochs = 10;
static long batch_size = 64;
static long depth = 1;
static long width = 16;
static long seed = 1;
static long max_steps = 0;
static long limit = 0;
static long threads = 0;
static double learning_rate = 0.1;
static const char *cifar;
static const char *data;
static const char *load;
static const char *save;
static bool bf16;
static bool quiet;

static const argument options[] = {
    {"--epochs", ARGUMENT_COUNT, &epochs, "passes over the training data (10)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per rank and step (64)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "peak learning rate (0.1)"},
    {"--depth", ARGUMENT_SIZE, &depth, "blocks of two convolutions in each of the three stages (1)"},
    {"--width", ARGUMENT_SIZE, &width, "channels of the first stage; each later stage has twice as many (16)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of weights, shuffling and augmentation (1)"},
    {"--cifar", ARGUMENT_TEXT, &cifar, "folder with CIFAR-10's binary files, to train on instead"},
    {"--data", ARGUMENT_TEXT, &data, "folder with the four IDX files (Debian's dataset-fashion-mnist)"},
    {"--threads", ARGUMENT_COUNT, &threads, "threads that prepare batches ahead (0: none)"},
    {"--load", ARGUMENT_TEXT, &load, "start from the weights in this safetensors file"},
    {"--save", ARGUMENT_TEXT, &save, "write the weights to this safetensors file"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "number of steps (0: no limit)"},
    {"--limit", ARGUMENT_COUNT, &limit, "number of samples of each set to use (0: all)"},
    {"--bf16", ARGUMENT_FLAG, &bf16, "matrix products and convolutions in bf16, the rest and the weights in f32"},
    RECOMPUTE_ARGUMENT,
    DATA_PARALLEL_ARGUMENTS,
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- the pictures ------------------------------------------------------------------------------------------------ */

/* Reshapes [n, 28, 28] to [n, 1, 28, 28]: images of one channel. */
static ls_tensor *add_channel(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_unsqueeze(batch, 1);
}

static ls_loader *open_data(ls_comm *world, bool train) {
    ls_dataset *set = cifar != NULL ? ls_cifar10_dataset(cifar, train) : ls_mnist_dataset(data, train);
    if (limit > 0 && limit < ls_dataset_count(set)) {
        set = ls_dataset_subset(set, 0, limit);
    }
    if (cifar == NULL) {
        set = ls_dataset_concurrent(ls_dataset_transform_input(set, add_channel, NULL));
    }
    if (train) { /* different in each epoch */
        set = ls_dataset_random_crop(set, &(ls_random_crop_options){.padding = cifar != NULL ? 4 : 2});
        set = ls_dataset_random_flip(set, 0.5, 0);
    }
    set = cifar != NULL ? ls_dataset_normalize(set, 0.4734, 0.2516) : ls_dataset_normalize(set, 0.2860, 0.3530);
    ls_loader_options loading =
        train ? loader_options(world, batch_size, global_batch_size) : loader_options(world, 250, 0);
    loading.seed = (uint64_t)seed;
    loading.threads = (int)threads;
    loading.no_shuffle = !train;
    return ls_loader_new(set, &loading);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static ls_module *convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
    return ls_nn_conv_2d(
        in, out, LS_SHAPE(size),
        &(ls_conv_layer_options){.stride = LS_SHAPE(stride), .padding = LS_SHAPE(size / 2), .no_bias = true});
}

/* A block: relu(f(x) + x), or relu(f(x) + downsample(x)) if f changes the shape. */
typedef struct block_state {
    ls_module *f, *downsample;
} block_state;

static ls_tensor *block_forward(ls_module *self, ls_tensor *x) {
    const block_state *state = ls_module_state(self);
    return ls_relu(ls_add(ls_forward(state->f, x), state->downsample != NULL ? ls_forward(state->downsample, x) : x));
}

static ls_module *block(int64_t in, int64_t out, int64_t stride) {
    static const ls_module_type type = {
        .name = "BasicBlock", .state_size = sizeof(block_state), .forward = block_forward};
    ls_module *module = ls_module_new(&type);
    block_state *state = ls_module_state(module);
    if (state != NULL) {
        ls_module *f = ls_sequential_named(
            {"conv1", convolution(in, out, 3, stride)}, {"bn1", ls_nn_batch_norm_2d(out, NULL)}, {"relu", ls_nn_relu()},
            {"conv2", convolution(out, out, 3, 1)}, {"bn2", ls_nn_batch_norm_2d(out, NULL)});
        state->f = ls_module_add_child(module, "", f); /* names are "conv1.weight" and so on, without a prefix */
        if (in != out || stride != 1) {
            ls_module *downsample = ls_sequential(convolution(in, out, 1, stride), ls_nn_batch_norm_2d(out, NULL));
            state->downsample = ls_module_add_child(module, "downsample", downsample);
        }
    }
    return ls_module_finish(module);
}

/* Makes `depth` blocks; the first block has `in` input channels. */
static ls_module *stage(int64_t in, int64_t out, int64_t stride) {
    ls_module *blocks[100];
    for (long i = 0; i < depth; i++) {
        blocks[i] = i == 0 ? block(in, out, stride) : block(out, out, 1);
    }
    return ls_sequential_of(blocks, (int)depth);
}

static ls_module *build_model(void) {
    if (depth > 100) {
        (void)ls_error_set(LS_ERR_ARGUMENT, "--depth: %ld blocks exceed the limit of 100", depth);
        return NULL;
    }
    return ls_sequential_named(
        {"conv1", convolution(cifar != NULL ? 3 : 1, width, 3, 1)}, {"bn1", ls_nn_batch_norm_2d(width, NULL)},
        {"relu", ls_nn_relu()}, {"layer1", stage(width, width, 1)}, {"layer2", stage(width, 2 * width, 2)},
        {"layer3", stage(2 * width, 4 * width, 2)}, {"avgpool", ls_nn_adaptive_average_pool(LS_SHAPE(1))},
        {"flatten", ls_nn_flatten()}, {"fc", ls_nn_linear(4 * width, CLASSES)});
}

/* ---- the training ------------------------------------------------------------------------------------------------ */

static ls_status report(ls_trial *trial, ls_comm *world, const ls_module *model) {
    const double throughput = ls_trial_throughput(trial); /* collective: every rank must call it */
    const ls_status status = report_parameters(world, model);
    if (status != LS_OK || ls_comm_rank(world) != 0) {
        return status;
    }
    if (throughput > 0) { /* 0 if no training took place */
        printf("throughput: %.0f samples/s\n", throughput);
    }
    printf("test accuracy: %.4f\n", ls_trial_metric(trial, "test_acc"));
    return save != NULL ? ls_module_save(model, save, NULL) : LS_OK;
}

/* The learning rate rises for a twentieth of the steps, then falls to zero. */
static ls_trial *make_trial(ls_module *model, ls_optimizer *optimizer, ls_loader *training, ls_loader *test) {
    const int64_t steps = epochs * ls_loader_batch_count(training), rising = steps / 20 + 1;
    ls_schedule *falling = ls_schedule_cosine(optimizer, steps > rising ? steps - rising : 1, 0);
    ls_schedule *schedule = falling != NULL ? ls_schedule_warm_up(falling, rising, 0.01) : NULL;
    return schedule == NULL ? NULL
                            : ls_trial_new(&(ls_trial_options){
                                  .model = model,
                                  .optimizer = optimizer,
                                  .criterion = ls_criterion_cross_entropy,
                                  .train = training,
                                  .validate = test,
                                  .metrics = LS_METRICS("loss", "acc"),
                                  LS_CALLBACKS(ls_scheduler(schedule, &(ls_scheduler_options){.per_step = true})),
                                  .max_steps = max_steps,
                                  .autocast = bf16 ? LS_BF16 : LS_F32,
                                  .quiet = quiet});
}

static ls_status train(ls_comm *world) {
    ls_seed((uint64_t)seed);
    const ls_sgd_options sgd = {
        .learning_rate = learning_rate, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true};
    ls_loader *training = open_data(world, true);
    ls_loader *test = training != NULL ? open_data(world, false) : NULL;
    ls_module *model = test != NULL ? ls_module_retain(build_model()) : NULL;
    const bool good = model != NULL && (load == NULL || ls_module_load(model, load) == LS_OK);
    ls_module *parallel = good ? make_data_parallel(model, world) : NULL;
    ls_optimizer *optimizer = parallel != NULL ? ls_sgd(parallel, &sgd) : NULL;
    ls_trial *trial = optimizer != NULL ? make_trial(parallel, optimizer, training, test) : NULL;
    ls_status status = trial != NULL ? ls_trial_run(trial, epochs) : ls_error_status();
    status = status == LS_OK ? ls_trial_evaluate(trial, test, "test") : status;
    /* With --zero 3, each rank holds only a part. */
    status = status == LS_OK ? ls_data_parallel_gather(parallel, true) : status;
    status = status == LS_OK ? report(trial, world, model) : status;
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(parallel);
    ls_module_free(model);
    ls_loader_free(training);
    ls_loader_free(test);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Trains a ResNet on Fashion-MNIST or CIFAR-10.", options);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || train(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "resnet: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
