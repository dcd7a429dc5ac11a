/*
 * Fashion-MNIST with a multi-layer perceptron, data-parallel over all ranks:
 *
 *     lockstep run -n 2 build/examples/fashion_mnist
 *
 * The same program runs alone, or on any number of ranks. With these options, it survives a kill at any moment, and
 * writes a log for TensorBoard:
 *
 *     lockstep run -n 2 --max-restarts 3 build/examples/fashion_mnist --checkpoint 200 --resume --tensorboard board
 *
 * With these options, the weights are bit-identical on one to eight ranks, even if training resumes on a different
 * number of ranks:
 *
 *     lockstep run -n 2 build/examples/fashion_mnist --shards 8 --global-batch-size 128
 *
 * On a slow network, the ranks can train alone for 32 steps at a time (DiLoCo):
 *
 *     lockstep run -n 2 build/examples/fashion_mnist --outer 32
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "arguments.h"
#include "data_parallel.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

static long epochs = 10;
static long batch_size = 64;
static long hidden = 512;
static long seed = 1;
static long max_steps = 0;
static long limit = 0;
static long checkpoint = 0;
static long outer_steps = 0;
static double outer_momentum = 0.8;
static double outer_rate = 0.5;
static double learning_rate = 1e-3;
static const char *data;
static const char *save = "runs/fashion_mnist";
static const char *tensorboard;
static const char *run_record;
static bool resume;
static bool capture;
static bool quiet;

static const argument options[] = {
    {"--epochs", ARGUMENT_COUNT, &epochs, "passes over the training data (10)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per rank and step (64)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "Adam's learning rate (0.001)"},
    {"--hidden", ARGUMENT_SIZE, &hidden, "width of the two hidden layers (512)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of weights and shuffling (1)"},
    {"--data", ARGUMENT_TEXT, &data, "folder with the four IDX files (Debian's dataset-fashion-mnist)"},
    {"--save", ARGUMENT_TEXT, &save, "folder for weights, log and checkpoints (runs/fashion_mnist)"},
    {"--checkpoint", ARGUMENT_COUNT, &checkpoint, "steps from one checkpoint to the next (0: none)"},
    {"--resume", ARGUMENT_FLAG, &resume, "resume from the newest checkpoint, if there is one"},
    {"--report", ARGUMENT_TEXT, &run_record, "folder for the record of `lockstep report`"},
    {"--tensorboard", ARGUMENT_TEXT, &tensorboard, "folder for TensorBoard's event files"},
    {"--max-steps", ARGUMENT_COUNT, &max_steps, "number of steps (0: no limit)"},
    {"--limit", ARGUMENT_COUNT, &limit, "number of samples of each set to use (0: all)"},
    {"--outer", ARGUMENT_COUNT, &outer_steps, "steps that each rank trains alone, as in DiLoCo (0: average gradients)"},
    {"--outer-lr", ARGUMENT_NUMBER, &outer_rate, "outer learning rate (0.5)"},
    {"--outer-momentum", ARGUMENT_PART, &outer_momentum, "outer Nesterov momentum (0.8)"},
    {"--capture", ARGUMENT_FLAG, &capture, "record the first step, and replay it"},
    RECOMPUTE_ARGUMENT,
    DATA_PARALLEL_ARGUMENTS,
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- data and model ---------------------------------------------------------------------------------------------- */

static ls_loader *open_data(ls_comm *world, bool train) {
    ls_dataset *set = ls_mnist_dataset(data, train);
    if (limit > 0 && limit < ls_dataset_count(set)) {
        set = ls_dataset_subset(set, 0, limit);
    }
    set = ls_dataset_preload(ls_dataset_flatten(ls_dataset_normalize(set, 0.2860, 0.3530)));
    ls_loader_options loading =
        train ? loader_options(world, batch_size, global_batch_size) : loader_options(world, 500, 0);
    loading.seed = (uint64_t)seed;
    loading.no_shuffle = !train;
    return ls_loader_new(set, &loading);
}

static ls_module *build_model(ls_comm *world) {
    ls_module *model = ls_sequential(ls_nn_linear(784, hidden), ls_nn_relu(), ls_nn_linear(hidden, hidden),
                                     ls_nn_relu(), ls_nn_linear(hidden, 10));
    return outer_steps > 0 ? make_recomputed(model) : make_data_parallel(model, world);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static ls_status make_folder(const char *path) {
    char part[4096];
    if (snprintf(part, sizeof part, "%s/", path) >= (int)sizeof part) {
        return ls_error_set(LS_ERR_ARGUMENT, "--save: the folder's name is too long");
    }
    for (char *at = strchr(part + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            return ls_error_set(LS_ERR_IO, "--save: cannot create the folder %s: %s", part, strerror(errno));
        }
        *at = '/';
    }
    return access(part, W_OK) == 0
               ? LS_OK
               : ls_error_set(LS_ERR_IO, "--save: cannot write to the folder %s: %s", path, strerror(errno));
}

/* Returns the path of a file in the --save folder. */
static const char *in_folder(char path[4096 + 64], const char *name) {
    snprintf(path, 4096 + 64, "%s/%s", save, name);
    return path;
}

static ls_status report(ls_trial *trial, ls_comm *world, ls_module *model, ls_loader *test) {
    ls_status status = ls_trial_evaluate(trial, test, "test");
    if (status == LS_OK && zero > 2) { /* a rank has only a part of the parameters */
        status = ls_data_parallel_gather(model, true);
    }
    const double throughput = ls_trial_throughput(trial);
    status = status == LS_OK ? report_parameters(world, model) : status;
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        char path[4096 + 64];
        status = ls_module_save(model, in_folder(path, "weights.safetensors"), NULL);
        printf("throughput: %.0f samples/s\n", throughput);
        printf("test accuracy: %.4f\n", ls_trial_metric(trial, "test_acc"));
        if (status == LS_OK && !quiet) {
            printf("saved %s/weights.safetensors and %s/log.csv\n", save, save);
        }
    }
    return status;
}

/* The objects that a trial borrows. */
typedef struct parts {
    ls_loader *training, *test;
    ls_module *model;
    ls_optimizer *optimizer;
    ls_outer *outer; /* NULL without --outer */
} parts;

static ls_trial *make_trial(const parts *p) {
    char log[4096 + 64], checkpoints[4096 + 64];
    const ls_checkpoint_options saving = {.folder = in_folder(checkpoints, "checkpoints"), .every_steps = checkpoint};
    ls_callback *callbacks[3] = {ls_csv_log(in_folder(log, "log.csv"), NULL)};
    int count = 1;
    if (tensorboard != NULL) {
        callbacks[count++] = ls_tensorboard(tensorboard, NULL);
    }
    if (run_record != NULL) {
        callbacks[count++] = ls_run_log(run_record, NULL);
    }
    return ls_trial_new(&(ls_trial_options){.model = p->model,
                                            .optimizer = p->optimizer,
                                            .criterion = ls_criterion_cross_entropy,
                                            .train = p->training,
                                            .validate = p->test,
                                            .metrics = LS_METRICS("loss", "acc"),
                                            .callbacks = callbacks,
                                            .callback_count = count,
                                            .checkpoint = checkpoint > 0 ? &saving : NULL,
                                            .resume = resume ? checkpoints : NULL,
                                            .max_steps = max_steps,
                                            .outer = p->outer,
                                            .quiet = quiet,
                                            .capture = capture});
}

/* Makes the loaders, the model and its optimizers. Returns false on failure. */
static bool make_parts(ls_comm *world, parts *p) {
    p->training = open_data(world, true);
    p->test = p->training != NULL ? open_data(world, false) : NULL;
    /* Errors should appear before the training, not after it. */
    if (outer_steps > 0 && (strcmp(wire, "f32") != 0 || zero > 0 || shards > 0)) {
        (void)ls_error_set(LS_ERR_ARGUMENT, "--wire, --zero and --shards cannot be combined with --outer, which does "
                                            "not average gradients: omit --outer, or omit these options");
        return false;
    }
    const bool ready = p->test != NULL && (ls_comm_rank(world) != 0 || make_folder(save) == LS_OK);
    p->model = ready ? build_model(world) : NULL;
    if (p->model != NULL && outer_steps > 0) {
        p->outer = ls_outer_new(p->model, world,
                                &(ls_outer_options){.steps = outer_steps,
                                                    .learning_rate = outer_rate,
                                                    .momentum = outer_momentum > 0 ? outer_momentum : LS_ZERO});
    }
    if (p->model != NULL && (p->outer != NULL || outer_steps == 0)) {
        p->optimizer = ls_adam(p->model, &(ls_adam_options){.learning_rate = learning_rate});
    }
    return p->optimizer != NULL;
}

static ls_status train(ls_comm *world) {
    parts p = {.model = NULL};
    ls_seed((uint64_t)seed);
    ls_trial *trial = make_parts(world, &p) ? make_trial(&p) : NULL;
    ls_status status = trial != NULL ? ls_trial_run(trial, epochs) : ls_error_status();
    if (status == LS_OK) {
        status = report(trial, world, p.model, p.test);
    }
    ls_trial_free(trial);
    ls_optimizer_free(p.optimizer);
    ls_outer_free(p.outer);
    ls_module_free(p.model);
    ls_loader_free(p.training);
    ls_loader_free(p.test);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Trains a perceptron with two hidden layers on Fashion-MNIST.", options);
    ls_comm *world = ls_init(NULL);
    const ls_status status = world != NULL ? train(world) : ls_error_status();
    if (status != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "fashion_mnist: %s\n", ls_error_message());
        return status == LS_ERR_STOPPED ? LS_EXIT_STOPPED : 1; /* after SIGTERM, once a checkpoint was written */
    }
    return 0;
}
