/*
 * Fashion-MNIST with a multi-layer perceptron, data-parallel over all ranks:
 *
 *     lockstep run -n 2 build/examples/fashion_mnist
 *
 * The same program runs alone, or as any number of ranks.
 */
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

/* ---- what can be chosen -------------------------------------------------------------------------------------------
 */

static long epochs = 10;
static long batch_size = 64;
static long hidden = 512;
static long seed = 1;
static long max_steps = 0;
static long limit = 0;
static double learning_rate = 1e-3;
static const char *data;
static const char *save = "runs/fashion_mnist";
static const char *checkpoints;
static bool quiet;

static const argument options[] = {
    {"--epochs", ARGUMENT_COUNT, &epochs, "times over the training data (10)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per rank and step (64)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "Adam's learning rate (0.001)"},
    {"--hidden", ARGUMENT_SIZE, &hidden, "width of the two hidden layers (512)"},
    {"--seed", ARGUMENT_COUNT, &seed, "of weights and shuffling (1)"},
    {"--data", ARGUMENT_TEXT, &data, "folder with the four IDX files (Debian's dataset-fashion-mnist)"},
    {"--save", ARGUMENT_TEXT, &save, "folder for weights and log (runs/fashion_mnist)"},
    {"--checkpoints", ARGUMENT_TEXT, &checkpoints, "folder of checkpoints, to go on from if there are some (none)"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "stop after so many steps (0: no limit)"},
    {"--limit", ARGUMENT_COUNT, &limit, "use only so many samples of each set (0: all)"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- data and model ------------------------------------------------------------------------------------------------
 */

static ls_loader *open_data(ls_comm *world, bool train) {
    ls_dataset *set = ls_mnist_dataset(data, train);
    if (limit > 0 && limit < ls_dataset_count(set)) {
        set = ls_dataset_subset(set, 0, limit);
    }
    set = ls_dataset_preload(ls_dataset_flatten(ls_dataset_normalize(set, 0.2860, 0.3530)));
    return ls_loader_new(
        set, &(ls_loader_options){
                 .batch_size = train ? batch_size : 500, .comm = world, .seed = (uint64_t)seed, .no_shuffle = !train});
}

static ls_module *build_model(ls_comm *world) {
    ls_module *model = ls_sequential(ls_nn_linear(784, hidden), ls_nn_relu(), ls_nn_linear(hidden, hidden),
                                     ls_nn_relu(), ls_nn_linear(hidden, 10));
    return ls_data_parallel(model, world, NULL);
}

/* ---- results -------------------------------------------------------------------------------------------------------
 */

static ls_status make_folder(const char *path) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s/", path) >= (int)sizeof part) {
        return ls_error_set(LS_ERR_ARGUMENT, "--save: the folder's name is too long");
    }
    for (char *at = strchr(part + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            return ls_error_set(LS_ERR_IO, "--save: cannot make the folder %s: %s", part, strerror(errno));
        }
        *at = '/';
    }
    return access(part, W_OK) == 0
               ? LS_OK
               : ls_error_set(LS_ERR_IO, "--save: cannot write to the folder %s: %s", path, strerror(errno));
}

static ls_status write_results(const ls_trial *trial, const ls_module *model) {
    char path[4096 + 64];
    snprintf(path, sizeof path, "%s/weights.safetensors", save);
    ls_status status = ls_module_save(model, path, NULL);
    if (status == LS_OK) {
        snprintf(path, sizeof path, "%s/log.csv", save);
        status = ls_trial_save_history(trial, path);
    }
    return status;
}

static ls_status report(ls_trial *trial, ls_comm *world, ls_module *model, ls_loader *test) {
    ls_status status = ls_trial_evaluate(trial, test, "test");
    const double throughput = ls_trial_throughput(trial);
    printf("rank %d parameters %016" PRIx64 "\n", ls_comm_rank(world), ls_module_hash(model));
    fflush(stdout);
    if (status == LS_OK) {
        status = ls_comm_barrier(world, NULL); /* so that rank 0's lines are the last */
    }
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        status = write_results(trial, model);
        printf("throughput: %.0f samples/s\n", throughput);
        printf("test accuracy: %.4f\n", ls_trial_metric(trial, "test_acc"));
        if (status == LS_OK && !quiet) {
            printf("saved %s/weights.safetensors and %s/log.csv\n", save, save);
        }
    }
    return status;
}

static ls_status train(ls_comm *world) {
    ls_seed((uint64_t)seed);
    ls_loader *training = open_data(world, true);
    ls_loader *test = training != NULL ? open_data(world, false) : NULL;
    /* Better now than after the training. */
    const bool ready = test != NULL && (ls_comm_rank(world) != 0 || make_folder(save) == LS_OK);
    ls_module *model = ready ? build_model(world) : NULL;
    ls_optimizer *optimizer = model != NULL ? ls_adam(model, &(ls_adam_options){.learning_rate = learning_rate}) : NULL;
    const bool saves = optimizer != NULL && checkpoints != NULL;
    const ls_callback saving = saves ? ls_checkpoint_callback(&(ls_checkpoint_options){
                                           .folder = checkpoints, .every_epochs = 1, .every_seconds = 60})
                                     : (ls_callback){0};
    ls_trial *trial = optimizer == NULL ? NULL
                                        : ls_trial_new(&(ls_trial_options){.model = model,
                                                                           .optimizer = optimizer,
                                                                           .criterion = ls_criterion_cross_entropy,
                                                                           .train = training,
                                                                           .validate = test,
                                                                           .metrics = LS_METRICS("loss", "acc"),
                                                                           .callbacks = &saving,
                                                                           .callback_count = saves,
                                                                           .resume = checkpoints,
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
    ARGUMENTS_READ(argc, argv, "Trains a perceptron with two hidden layers on Fashion-MNIST.", options);
    ls_comm *world = ls_init(NULL);
    ls_status status = world != NULL ? train(world) : ls_error_status();
    if (status == LS_OK) {
        status = ls_finalize();
    }
    if (status != LS_OK) {
        fprintf(stderr, "fashion_mnist: %s\n", ls_error_message());
    }
    return status == LS_OK ? 0 : status == LS_ERR_STOPPED ? LS_EXIT_STOPPED : 1;
}
