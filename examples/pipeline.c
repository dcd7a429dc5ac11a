/*
 * A perceptron on Fashion-MNIST, split into stages, one per rank: while one stage processes a part of a batch, the next
 * stage processes the previous part. The result is the same as for the model on one rank.
 *
 *     lockstep run -n 2 build/examples/pipeline
 */
#include <inttypes.h>
#include <libgen.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

enum { MOST_LAYERS = 100, WARM_UP = 10 };

static const char *data;
static long epochs = 1;
static long batch_size = 256;
static long hidden = 512;
static long layers = 4;
static long micro_batches = 8;
static long max_steps = 0;
static long seed = 1;
static bool gpipe;
static bool quiet;
static const char *trace;

static const argument options[] = {
    {"--data", ARGUMENT_TEXT, &data, "folder with the four IDX files (Debian's dataset-fashion-mnist)"},
    {"--epochs", ARGUMENT_COUNT, &epochs, "passes over the data (1)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per step (256)"},
    {"--hidden", ARGUMENT_SIZE, &hidden, "width of the hidden layers (512)"},
    {"--layers", ARGUMENT_SIZE, &layers, "hidden layers, at most 100 (4: stages of 2 and of 4 ranks cost the same)"},
    {"--micro-batches", ARGUMENT_SIZE, &micro_batches, "micro-batches per batch (8)"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "number of steps (0: no limit)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of weights and shuffling (1)"},
    {"--gpipe", ARGUMENT_FLAG, &gpipe, "GPipe schedule: all forward passes, then all backward passes"},
    {"--trace", ARGUMENT_TEXT, &trace, "write a trace of the training, for ui.perfetto.dev, to this file"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* Every rank loads the same batches: the first stage uses the pictures, the last stage uses the labels. */
static ls_loader *open_data(bool train) {
    ls_dataset *set =
        ls_dataset_preload(ls_dataset_flatten(ls_dataset_normalize(ls_mnist_dataset(data, train), 0.2860, 0.3530)));
    return ls_loader_new(set,
                         &(ls_loader_options){.batch_size = batch_size, .seed = (uint64_t)seed, .no_shuffle = !train});
}

static ls_module *build_model(ls_comm *world) {
    ls_module *parts[2 * MOST_LAYERS + 1] = {ls_nn_linear(784, hidden), ls_nn_relu()};
    int count = 2;
    for (long i = 1; i < layers; i++) {
        parts[count++] = ls_nn_linear(hidden, hidden);
        parts[count++] = ls_nn_relu();
    }
    parts[count++] = ls_nn_linear(hidden, 10);
    ls_module *model = ls_sequential_of(parts, count);
    return ls_pipeline(model, world,
                       &(ls_pipeline_options){.micro_batches = (int)micro_batches,
                                              .schedule = gpipe ? LS_PIPELINE_GPIPE : LS_PIPELINE_1F1B});
}

typedef struct progress {
    long steps;
    long timed_samples;
    double began;
} progress;

static ls_status step(ls_module *model, ls_optimizer *optimizer, const ls_batch *batch, double *loss) {
    ls_optimizer_zero_grad(optimizer);
    const ls_status status =
        ls_pipeline_backward(model, batch->input, batch->target, ls_criterion_cross_entropy, NULL, loss);
    return status == LS_OK ? ls_optimizer_step(optimizer) : status;
}

static ls_status epoch(ls_module *model, ls_optimizer *optimizer, ls_loader *loader, double sums[2], progress *done) {
    while (max_steps == 0 || done->steps < max_steps) {
        ls_batch batch;
        bool more = true;
        double loss = 0;
        ls_status status = ls_loader_next(loader, &batch, &more);
        if (status != LS_OK || !more) {
            return status;
        }
        if (done->steps == WARM_UP) { /* restart the measurement after the warm-up */
            *done = (progress){.steps = WARM_UP, .began = ls_clock_seconds()};
        }
        status = step(model, optimizer, &batch, &loss);
        if (status != LS_OK) {
            return status;
        }
        sums[0] += loss * (double)batch.count;
        sums[1] += (double)batch.count;
        done->timed_samples += (long)batch.count;
        done->steps++;
    }
    return LS_OK;
}

/* Rank 0 receives each loss, and prints the mean of each epoch. */
static ls_status train(ls_comm *world, ls_module *model, ls_optimizer *optimizer, ls_loader *loader,
                       double *throughput) {
    progress done = {.began = ls_clock_seconds()};
    for (long i = 0; i < epochs && (max_steps == 0 || done.steps < max_steps); i++) {
        double sums[2] = {0, 0};
        const ls_status status = epoch(model, optimizer, loader, sums, &done);
        if (status != LS_OK) {
            return status;
        }
        if (ls_comm_rank(world) == 0 && !quiet) {
            printf("epoch %ld: loss %.4f\n", i + 1, sums[0] / sums[1]);
            fflush(stdout);
        }
    }
    *throughput = (double)done.timed_samples / (ls_clock_seconds() - done.began);
    return LS_OK;
}

static ls_status test(ls_module *model, ls_loader *loader, double *accuracy) {
    double right = 0;
    double all = 0;
    ls_batch batch;
    bool more = true;
    ls_status status = ls_loader_next(loader, &batch, &more);
    while (status == LS_OK && more) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *best = ls_argmax(ls_forward(model, batch.input), 1, false);
        right += ls_item(ls_sum(ls_to(ls_eq(best, batch.target), LS_F64)));
        all += (double)batch.count;
        status = ls_scope_end(scope);
        status = status == LS_OK ? ls_loader_next(loader, &batch, &more) : status;
    }
    *accuracy = right / all;
    return status;
}

/* Errors should appear before the training, not after it. */
static ls_status check_trace(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s", trace);
    return access(dirname(path), W_OK) == 0
               ? LS_OK
               : ls_error_set(LS_ERR_IO, "--trace: cannot write %s: %s", trace, strerror(errno));
}

static ls_status run(ls_comm *world) {
    if (trace != NULL && check_trace() != LS_OK) {
        return ls_error_status();
    }
    ls_seed((uint64_t)seed);
    ls_loader *training = open_data(true);
    ls_loader *testing = training != NULL ? open_data(false) : NULL;
    ls_module *model = testing != NULL ? build_model(world) : NULL;
    ls_optimizer *optimizer = model != NULL ? ls_adam(model, NULL) : NULL;
    ls_status status = optimizer != NULL ? LS_OK : ls_error_status();
    double throughput = 0;
    double accuracy = 0;
    if (status == LS_OK && trace != NULL) {
        status = ls_trace_start();
    }
    if (status == LS_OK) {
        status = train(world, model, optimizer, training, &throughput);
    }
    if (status == LS_OK && trace != NULL) {
        status = ls_trace_stop(world, trace);
    }
    if (status == LS_OK) {
        status = test(model, testing, &accuracy);
        printf("rank %d stage of %" PRId64 " parameters\n", ls_comm_rank(world), ls_module_size(model));
    }
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        printf("throughput: %.0f samples/s\ntest accuracy: %.4f\n", throughput, accuracy);
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(training);
    ls_loader_free(testing);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Trains a perceptron on Fashion-MNIST in stages, one per rank.", options);
    if (layers > MOST_LAYERS) {
        fprintf(stderr, "pipeline: --layers %ld: must be a whole number from 1 to %d\n", layers, MOST_LAYERS);
        return 2;
    }
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "pipeline: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
