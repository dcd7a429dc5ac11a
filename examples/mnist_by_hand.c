/*
 * torchbearer's distributed example: each rank is started by hand, on one machine or on several. Three callbacks do the
 * work of ls_data_parallel.
 *
 *     build/examples/mnist_by_hand --world-size 2 --rank 0 --host 127.0.0.1 &
 *     build/examples/mnist_by_hand --world-size 2 --rank 1 --host 127.0.0.1
 */
#include <inttypes.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static long world_size = 0;
static long rank = 0;
static const char *host = "127.0.0.1";
static long port = 29500;
static long epochs = 3;
static long seed = 1;
static long max_steps = 0;
static long checkpoint = 0;
static const char *data;
static const char *save = "runs/mnist_by_hand";
static bool resume;
static bool quiet;

static const argument options[] = {
    {"--world-size", ARGUMENT_COUNT, &world_size, "number of ranks (0: a single process)"},
    {"--rank", ARGUMENT_COUNT, &rank, "rank of this process, from 0"},
    {"--host", ARGUMENT_TEXT, &host, "address of rank 0 (127.0.0.1)"},
    {"--port", ARGUMENT_SIZE, &port, "port on which rank 0 listens (29500)"},
    {"--epochs", ARGUMENT_COUNT, &epochs, "passes over the training data (3)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of weights and shuffling (1)"},
    {"--data", ARGUMENT_TEXT, &data, "folder with the four IDX files (Debian's dataset-fashion-mnist)"},
    {"--save", ARGUMENT_TEXT, &save, "folder for checkpoints (runs/mnist_by_hand)"},
    {"--checkpoint", ARGUMENT_COUNT, &checkpoint, "steps from one checkpoint to the next (0: none)"},
    {"--resume", ARGUMENT_FLAG, &resume, "resume from the newest checkpoint, if there is one"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "number of steps (0: no limit)"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- the three callbacks ----------------------------------------------------------------------------------------- */

static ls_status sync_model(ls_trial_state *state, void *user) {
    (void)user;
    return ls_sync_parameters(state->model, state->comm, 0);
}

static ls_status average_gradients(ls_trial_state *state, void *user) {
    (void)user;
    return ls_sync_gradients(state->model, state->comm);
}

static ls_status flatten(ls_trial_state *state, void *user) {
    (void)user;
    state->input = ls_flatten(state->input, 1, -1);
    return state->input != NULL ? LS_OK : ls_error_status();
}

/* --------------------------------------------------------------------------------------------------------------------
 */

static ls_loader *open_data(ls_comm *world, bool train) {
    ls_dataset *set = ls_dataset_normalize(ls_mnist_dataset(data, train), 0.2860, 0.3530);
    return ls_loader_new(
        set, &(ls_loader_options){
                 .batch_size = 128, .comm = world, .seed = (uint64_t)seed, .no_shuffle = !train, .drop_last = train});
}

static ls_trial *make_trial(ls_comm *world, ls_module *model, ls_optimizer *optimizer, ls_loader *training,
                            ls_loader *test) {
    const ls_checkpoint_options saving = {.folder = save, .every_steps = checkpoint};
    const ls_callback_hooks sync = {.on_init = sync_model}, average = {.on_backward = average_gradients},
                            shape = {.on_sample = flatten, .on_sample_validation = flatten};
    return ls_trial_new(&(ls_trial_options){
        .model = model,
        .optimizer = optimizer,
        .criterion = ls_criterion_cross_entropy,
        .train = training,
        .validate = test,
        .comm = world,
        .metrics = LS_METRICS("loss", "acc"),
        LS_CALLBACKS(ls_callback_new(&sync, NULL), ls_callback_new(&average, NULL), ls_callback_new(&shape, NULL)),
        .checkpoint = checkpoint > 0 ? &saving : NULL,
        .resume = resume ? save : NULL,
        .max_steps = max_steps,
        .quiet = quiet});
}

static ls_status train(ls_comm *world) {
    ls_seed((uint64_t)(seed + ls_comm_rank(world))); /* different weights on each rank, until the first callback */
    ls_loader *training = open_data(world, true);
    ls_loader *test = training != NULL ? open_data(world, false) : NULL;
    ls_module *model = test != NULL ? ls_sequential(ls_nn_linear(784, 100), ls_nn_relu(), ls_nn_linear(100, 10)) : NULL;
    ls_optimizer *optimizer = model != NULL ? ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.001}) : NULL;
    ls_trial *trial = optimizer != NULL ? make_trial(world, model, optimizer, training, test) : NULL;
    const ls_status status = trial != NULL ? ls_trial_run(trial, epochs) : ls_error_status();
    const double throughput = status == LS_OK ? ls_trial_throughput(trial) : 0;
    if (status == LS_OK) {
        printf("rank %d parameters %016" PRIx64 "\n", ls_comm_rank(world), ls_module_hash(model));
    }
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        printf("throughput: %.0f samples/s\n", throughput);
        printf("test accuracy: %.4f\n", ls_trial_metric(trial, "val_acc"));
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(training);
    ls_loader_free(test);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Trains on Fashion-MNIST, every rank started by hand.", options);
    if (rank > 0 && world_size == 0) {
        fprintf(stderr, "mnist_by_hand: --rank %ld needs --world-size: set it to the number of ranks\n", rank);
        return 2;
    }
    char url[512];
    snprintf(url, sizeof url, strchr(host, ':') != NULL ? "tcp://[%s]:%ld" : "tcp://%s:%ld", host, port);
    ls_comm *world = ls_init(
        world_size == 0 ? NULL : &(ls_init_options){.init = url, .world_size = (int)world_size, .rank = (int)rank});
    const ls_status status = world != NULL ? train(world) : ls_error_status();
    if (status != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "mnist_by_hand: %s\n", ls_error_message());
        return status == LS_ERR_STOPPED ? LS_EXIT_STOPPED : 1; /* after SIGTERM, once a checkpoint was written */
    }
    return 0;
}
