/*
 * flashlight's distributed perceptron: learns y = sum of x^3 + sin(2 pi u) from 10 features x in [1, 2] and noise u,
 * with one sample per step on each rank.
 *
 *     lockstep run -n 2 build/examples/perceptron
 *
 * With these options, the parameters are bit-identical on one to eight ranks:
 *
 *     lockstep run -n 2 build/examples/perceptron --shards 8 --global-batch-size 64
 */
#include <lockstep/lockstep.h>

#include "arguments.h"
#include "data_parallel.h"

static long epochs = 100;
static long batch_size = 1;
static long samples = 10000;
static long seed = 1;
static long max_steps = 0;
static double learning_rate = 1e-4;
static bool capture;
static bool quiet;

static const argument options[] = {
    {"--epochs", ARGUMENT_COUNT, &epochs, "passes over the data (100)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per rank and step (1)"},
    {"--samples", ARGUMENT_SIZE, &samples, "total number, divided over the ranks (10000)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "learning rate (0.0001)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of data, weights and shuffling (1)"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "number of steps (0: no limit)"},
    SHARD_ARGUMENTS,
    {"--capture", ARGUMENT_FLAG, &capture, "record the first step, and replay it"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

enum { FEATURES = 10, WARM_UP = 100 };

static ls_dataset *make_data(void) {
    ls_scope *scope = ls_scope_begin();
    const double two_pi = 6.283185307179586;
    ls_tensor *x = ls_add(ls_rand(LS_SHAPE(samples, FEATURES), LS_F32), 1);
    ls_tensor *noise = ls_sin(ls_mul(ls_rand(LS_SHAPE(samples, 1), LS_F32), two_pi));
    ls_tensor *y = ls_add(ls_sum_axes(ls_pow(x, 3), LS_AXES(1), true), noise);
    ls_dataset *set = ls_tensor_dataset(x, y);
    return ls_scope_end(scope) == LS_OK ? set : NULL;
}

static ls_tensor *loss_of(const ls_batch *batch, void *model) {
    return ls_mse_loss(ls_forward(model, batch->input), batch->target, LS_LOSS_MEAN);
}

/* Computes the loss and its gradients, and adds the loss, weighted by the number of samples, to *loss_sum. */
static ls_status backward(ls_module *model, const ls_batch *batch, double *loss_sum) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = loss_of(batch, model);
    const ls_status status = ls_backward(loss);
    *loss_sum += status == LS_OK ? ls_item(loss) * (double)batch->count : 0;
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Does the same with --shards, even if this rank's share of the batch is empty. */
static ls_status backward_in_slices(ls_module *model, const ls_batch *batch, double *loss_sum) {
    const ls_status status = ls_data_parallel_step(model, batch, loss_of, model);
    *loss_sum += status == LS_OK ? ls_data_parallel_loss(model, NULL) * (double)batch->count : 0;
    return status;
}

/* Takes one step on one batch. A rank with an empty share of the last batch uses the gradients of the other ranks. */
static ls_status step(ls_module *model, ls_optimizer *optimizer, const ls_batch *batch, double *loss_sum) {
    ls_optimizer_zero_grad(optimizer);
    const ls_status status = shards > 0         ? backward_in_slices(model, batch, loss_sum)
                             : batch->count > 0 ? backward(model, batch, loss_sum)
                                                : ls_data_parallel_skip(model);
    return status == LS_OK ? ls_optimizer_step(optimizer) : status;
}

/* A step of fixed shapes that is captured, and its inputs. */
typedef struct captured {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *input, *target;
    ls_step *step; /* NULL before the first batch */
} captured;

static ls_tensor *captured_step(void *user) {
    captured *self = user;
    ls_optimizer_zero_grad(self->optimizer);
    ls_tensor *loss = ls_mse_loss(ls_forward(self->model, self->input), self->target, LS_LOSS_MEAN);
    return ls_backward(loss) == LS_OK && ls_optimizer_step(self->optimizer) == LS_OK ? loss : NULL;
}

/* Does the same as `step`. Captures the first batch, and replays the step for each other batch of this shape. */
static ls_status step_captured(captured *self, const ls_batch *batch, double *loss_sum) {
    if (batch->count == 0) {
        return step(self->model, self->optimizer, batch, loss_sum);
    }
    if (self->step == NULL) {
        self->input = ls_clone(batch->input);
        self->target = ls_clone(batch->target);
        self->step = ls_step_capture(captured_step, self, &(ls_step_capture_options){.fallback = true});
    } else if (batch->count != ls_shape_of(self->input).size[0]) {
        return step(self->model, self->optimizer, batch, loss_sum);
    } else if (ls_copy_into(self->input, batch->input) != LS_OK || ls_copy_into(self->target, batch->target) != LS_OK ||
               ls_step_replay(self->step) != LS_OK) {
        return ls_error_status();
    }
    if (self->step == NULL) {
        return ls_error_status();
    }
    *loss_sum += ls_item(ls_step_result(self->step)) * (double)batch->count;
    return LS_OK;
}

static void free_captured(captured *self) {
    ls_step_free(self->step);
    ls_release(self->input);
    ls_release(self->target);
}

typedef struct progress {
    long steps;
    long timed_samples;
    double seconds;
} progress;

static ls_status epoch(captured *self, ls_loader *loader, double sums[2], progress *done) {
    double began = ls_clock_seconds();
    ls_batch batch;
    bool more = true;
    for (;;) {
        ls_status status = ls_loader_next(loader, &batch, &more);
        if (status == LS_OK && more && done->steps == WARM_UP) { /* restart the measurement after the warm-up */
            *done = (progress){.steps = WARM_UP};
            began = ls_clock_seconds();
        }
        if (status == LS_OK && more) {
            status =
                capture ? step_captured(self, &batch, &sums[0]) : step(self->model, self->optimizer, &batch, &sums[0]);
        }
        if (status != LS_OK) {
            return status;
        }
        if (!more) {
            done->seconds += ls_clock_seconds() - began;
            return LS_OK;
        }
        sums[1] += (double)batch.count;
        done->steps++;
        done->timed_samples += batch.global_count;
        if (max_steps > 0 && done->steps >= max_steps) {
            done->seconds += ls_clock_seconds() - began;
            return LS_OK;
        }
    }
}

static ls_status train(ls_comm *world, captured *self, ls_loader *loader) {
    progress done = {0};
    double error = 0;
    for (long i = 0; i < epochs && (max_steps == 0 || done.steps < max_steps); i++) {
        double sums[2] = {0, 0};
        ls_status status = epoch(self, loader, sums, &done);
        if (status == LS_OK) {
            status = ls_comm_allreduce(world, sums, sums, 2, LS_F64, LS_SUM, NULL);
        }
        if (status != LS_OK) {
            return status;
        }
        error = sums[0] / sums[1];
        if (ls_comm_rank(world) == 0 && !quiet) {
            printf("Epoch: %ld Mean Squared Error: %g\n", i + 1, error);
            fflush(stdout);
        }
    }
    const ls_status status = report_parameters(world, self->model);
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        if (quiet) {
            printf("Mean Squared Error: %g\n", error);
        }
        printf("throughput: %.0f samples/s\n", done.seconds > 0 ? (double)done.timed_samples / done.seconds : 0);
    }
    return status;
}

static ls_module *build_model(ls_comm *world) {
    ls_module *model = ls_sequential(ls_nn_linear(FEATURES, 100), ls_nn_relu(), ls_nn_linear(100, 1));
    return make_data_parallel(model, world);
}

static ls_status run(ls_comm *world) {
    ls_seed((uint64_t)seed);
    ls_loader_options loading = loader_options(world, batch_size, global_batch_size);
    loading.seed = (uint64_t)seed;
    ls_loader *loader = ls_loader_new(make_data(), &loading);
    ls_module *model = loader != NULL ? build_model(world) : NULL;
    ls_optimizer *optimizer =
        model != NULL ? ls_sgd(model, &(ls_sgd_options){.learning_rate = learning_rate, .momentum = 0.9}) : NULL;
    captured self = {.model = model, .optimizer = optimizer};
    const ls_status status = optimizer != NULL ? train(world, &self, loader) : ls_error_status();
    free_captured(&self);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Learns a sum of cubes, one sample at a time.", options);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "perceptron: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
