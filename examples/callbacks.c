/*
 * A trial with its own callback, metric and schedule, alongside built-in ones. The model learns which of two rings a
 * point lies on; some labels are wrong.
 *
 *     lockstep run -n 2 build/examples/callbacks
 */
#include <inttypes.h>
#include <math.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static long epochs = 40;
static long samples = 600;
static long seed = 1;
static const char *log_path;
static bool quiet;

static const argument options[] = {
    {"--epochs", ARGUMENT_COUNT, &epochs, "maximum number of epochs (40)"},
    {"--samples", ARGUMENT_SIZE, &samples, "number of training samples, over all ranks (600)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of data, weights and shuffling (1)"},
    {"--log", ARGUMENT_TEXT, &log_path, "write a line for each epoch to this CSV file"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- a custom callback: the norm of the gradient ----------------------------------------------------------------- */

typedef struct gradient_norms {
    double largest;
    double sum;
    long steps;
} gradient_norms;

/* Called after the gradients are averaged over all ranks and before the optimizer uses them. */
static ls_status measure_gradient(ls_trial_state *state, void *user) {
    gradient_norms *norms = user;
    double norm;
    const ls_status status = ls_clip_grad_norm(state->model, 1.0, &norm);
    norms->largest = norm > norms->largest ? norm : norms->largest;
    norms->sum += norm;
    norms->steps++;
    return status;
}

/* The hook for the end of an epoch: rank 0 prints a line. */
static ls_status tell_gradient(ls_trial_state *state, void *user) {
    gradient_norms *norms = user;
    if (ls_comm_rank(state->comm) == 0 && !quiet) {
        printf("gradient norms of epoch %" PRId64 ": mean %.3f, largest %.3f\n", state->epoch,
               norms->sum / (double)norms->steps, norms->largest);
    }
    *norms = (gradient_norms){.largest = 0};
    return LS_OK;
}

/* ---- a custom metric: the mean probability of the right class ---------------------------------------------------- */

/* The mean probability of the targets: this rank's sum and number of samples. The trial adds up the values of all
 * ranks. */
static ls_status measure_sureness(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    ls_tensor *probability = ls_softmax(state->output, 1);
    ls_tensor *right = ls_take_along_axis(probability, 1, ls_unsqueeze(state->target, 1));
    *sum = ls_item(ls_sum(right));
    *weight = (double)state->count;
    return right != NULL ? LS_OK : ls_error_status();
}

/* ---- a custom schedule: warm-up, then 1 / sqrt(epoch) ------------------------------------------------------------ */

static double factor_of(int64_t epoch, void *user) {
    const double warm = *(const double *)user;
    const double done = (double)epoch + 1;
    return done < warm ? done / warm : sqrt(warm / done);
}

/* ---- the trial --------------------------------------------------------------------------------------------------- */

/* Makes points on rings of radius 1 and 2. One point in twenty has the other ring's label. */
static ls_dataset *make_rings(uint64_t set, int64_t count) {
    float *x = malloc((size_t)count * 2 * sizeof *x);
    int64_t *ring = malloc((size_t)count * sizeof *ring);
    for (int64_t i = 0; x != NULL && ring != NULL && i < count; i++) {
        const uint64_t at = 4 * (uint64_t)i;
        const double angle = 6.283185307179586 * ls_random_uniform((uint64_t)seed, set, at);
        const int64_t outer = ls_random_uniform((uint64_t)seed, set, at + 1) < 0.5;
        const double radius = 1 + (double)outer + 0.3 * (ls_random_uniform((uint64_t)seed, set, at + 2) - 0.5);
        x[2 * i] = (float)(radius * cos(angle));
        x[2 * i + 1] = (float)(radius * sin(angle));
        ring[i] = ls_random_uniform((uint64_t)seed, set, at + 3) < 0.05 ? 1 - outer : outer;
    }
    ls_dataset *dataset = NULL;
    if (x != NULL && ring != NULL) {
        dataset = ls_tensor_dataset(ls_from(LS_SHAPE(count, 2), LS_F32, x), ls_from(LS_SHAPE(count), LS_I64, ring));
    } else {
        (void)ls_error_set(LS_ERR_MEMORY, "--samples %" PRId64 ": out of memory", count);
    }
    free(x);
    free(ring);
    return dataset;
}

static ls_status report(ls_comm *world, const ls_trial *trial, const ls_module *model, const ls_callback *stopping) {
    if (ls_comm_rank(world) == 0) {
        printf("epochs: %" PRId64 "%s\n", ls_trial_history_count(trial),
               ls_early_stopping_stopped(stopping) ? " (stopped early)" : "");
        printf("loss: %.4f\n", ls_early_stopping_best(stopping));
        printf("accuracy: %.4f\n", ls_trial_metric(trial, "test_acc"));
        printf("sureness: %.4f\n", ls_trial_metric(trial, "test_sureness"));
    }
    printf("rank %d parameters %016" PRIx64 "\n", ls_comm_rank(world), ls_module_hash(model));
    return LS_OK;
}

static ls_status train(ls_comm *world, ls_module *model, ls_optimizer *optimizer, ls_loader *loader, ls_loader *held) {
    gradient_norms norms = {.largest = 0};
    double warm = 5;
    const ls_metric_functions sureness = {.name = "sureness", .mean = measure_sureness};
    ls_callback *stopping = ls_early_stopping(&(ls_early_stopping_options){.patience = 8, .restore_best = true});
    ls_callback *const callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_backward = measure_gradient,
                                                                           .on_end_training = tell_gradient,
                                                                           .name = "gradient norms"},
                                                      &norms),
                                      ls_terminate_on_nan(NULL),
                                      ls_scheduler(ls_schedule_function(optimizer, factor_of, &warm), NULL),
                                      stopping,
                                      log_path != NULL ? ls_csv_log(log_path, NULL) : ls_callbacks_of(NULL, 0),
                                      quiet ? ls_callbacks_of(NULL, 0) : ls_console(NULL)};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .validate = held,
                                                       .metrics = LS_METRICS("loss", "acc"),
                                                       LS_CUSTOM_METRICS(ls_metric_new(&sureness, NULL)),
                                                       .callbacks = callbacks,
                                                       .callback_count = sizeof callbacks / sizeof *callbacks,
                                                       .quiet = true});
    ls_status status = trial != NULL ? ls_trial_run(trial, epochs) : ls_error_status();
    if (status == LS_OK) {
        status = ls_trial_evaluate(trial, held, "test");
    }
    if (status == LS_OK) {
        status = report(world, trial, model, stopping);
    }
    ls_trial_free(trial);
    return status;
}

static ls_status run(ls_comm *world) {
    const ls_loader_options loading = {.global_batch_size = 32, .comm = world, .seed = (uint64_t)seed};
    ls_seed((uint64_t)seed);
    ls_loader *loader = ls_loader_new(make_rings(0, samples), &loading);
    ls_loader *held = ls_loader_new(make_rings(1, 200), &loading);
    ls_module *model =
        ls_data_parallel(ls_sequential(ls_nn_linear(2, 32), ls_nn_relu(), ls_nn_linear(32, 2)), world, NULL);
    ls_optimizer *optimizer = model != NULL ? ls_adam(model, &(ls_adam_options){.learning_rate = 0.01}) : NULL;
    const ls_status status = loader != NULL && held != NULL && optimizer != NULL
                                 ? train(world, model, optimizer, loader, held)
                                 : ls_error_status();
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    ls_loader_free(held);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Learns to separate two rings, with a custom callback, metric and schedule.", options);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "callbacks: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
