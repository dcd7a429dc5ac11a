/*
 * A training run with checkpoints in the folder `run`, for checkpoints.sh. Writes its result, bit by bit, to
 * result.RANK. Environment variables cause events:
 *
 *     KILLS=N SEED=S     in each of the first N starts, SIGKILL ends a rank at a moment that depends on S
 *     HOLD=STEP          ranks announce themselves by up.RANK, and wait for a preemption signal
 *     HOLD_RANK=R        only this rank does
 *     ZERO=N             .zero in ls_data_parallel
 *     WIDTH=N            the number of hidden features; 16 if missing
 *     ALIASED=1          gives a parameter a second name
 *     EXPORTED=FILE      writes the hash of the weights in this file to standard output, and does not train
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "train/checkpoint/checkpoint.h"

enum { SAMPLES = 250, INPUTS = 8, CLASSES = 4, EPOCHS = 6, LONGEST_US = 200000 };

static long number_of(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

static long rank;
static bool doomed;

static void die(int number) {
    (void)number;
    (void)raise(SIGKILL);
}

/* Selects a rank for this start, and its lifetime. */
static void draw_lots(void) {
    const uint64_t seed = (uint64_t)number_of("SEED", 0), start = (uint64_t)number_of("LOCKSTEP_RESTART_COUNT", 0);
    rank = number_of("RANK", number_of("SLURM_PROCID", 0));
    doomed = (long)start < number_of("KILLS", 0) &&
             ls_random_u32(seed, start, 0) % (uint32_t)number_of("WORLD_SIZE", 1) == (uint32_t)rank;
    if (doomed) {
        const suseconds_t when = 1 + (suseconds_t)(ls_random_u32(seed, start, 1) % LONGEST_US);
        (void)signal(SIGALRM, die);
        (void)setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = when}}, NULL);
    }
}

static void wait_a_moment(void) {
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static ls_status hold(ls_trial_state *state, void *user) {
    (void)user;
    if (state->step != number_of("HOLD", -1) || number_of("HOLD_RANK", rank) != rank) {
        return LS_OK;
    }
    char name[32], new_name[32];
    snprintf(name, sizeof name, "up.%ld", rank);
    snprintf(new_name, sizeof new_name, "new.%ld", rank);
    FILE *file = fopen(new_name, "we");
    if (file == NULL) {
        return ls_error_set(LS_ERR_IO, "cannot write %s", new_name);
    }
    fprintf(file, "%ld\n", (long)getpid());
    fclose(file);
    if (rename(new_name, name) != 0) {
        return ls_error_set(LS_ERR_IO, "cannot write %s", name);
    }
    while (ls_signals_since(state->trial->checkpointer->heard) == 0) {
        wait_a_moment();
    }
    return LS_OK;
}

/* Waits to be killed, because the training was faster than the kill. */
static ls_status wait_for_death(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    while (doomed) {
        wait_a_moment();
    }
    return LS_OK;
}

static ls_loader *make_loader(ls_comm *world, uint64_t set, int64_t count) {
    ls_tensor *input = ls_empty(LS_SHAPE(count, INPUTS), LS_F32), *target = ls_empty(LS_SHAPE(count), LS_I64);
    for (int64_t i = 0; i < count * INPUTS; i++) {
        ((float *)ls_data(input))[i] = (float)ls_random_normal(set, 0, (uint64_t)i);
    }
    for (int64_t i = 0; i < count; i++) {
        ((int64_t *)ls_data(target))[i] = (int64_t)(ls_random_u32(set, 1, (uint64_t)i) % CLASSES);
    }
    return ls_loader_new(ls_tensor_dataset(input, target),
                         &(ls_loader_options){.global_batch_size = 12, .comm = world, .seed = 3});
}

static uint64_t hash_state(ls_optimizer *optimizer) {
    const ls_named *tensors = NULL;
    int count = 0;
    uint64_t hash = 0;
    if (ls_optimizer_state(optimizer, &tensors, &count) != LS_OK) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        const unsigned char *bytes = ls_data_const(tensors[i].tensor);
        const size_t size = (size_t)ls_numel(tensors[i].tensor) * ls_dtype_size(ls_dtype_of(tensors[i].tensor));
        for (size_t k = 0; k < size; k++) {
            hash = hash * 31 + bytes[k];
        }
    }
    return hash;
}

static ls_status write_result(ls_trial *trial, ls_module *model, ls_optimizer *optimizer) {
    static const char *const names[] = {"loss", "acc", "val_loss", "val_acc"};
    char name[32];
    snprintf(name, sizeof name, "result.%ld", rank);
    FILE *file = fopen(name, "we");
    if (file == NULL) {
        return ls_error_set(LS_ERR_IO, "cannot write %s", name);
    }
    if (ls_data_parallel_gather(model, true) != LS_OK) {
        fclose(file);
        return ls_error_status();
    }
    fprintf(file, "model %016" PRIx64 " optimizer %016" PRIx64 "\n", ls_module_hash(model), hash_state(optimizer));
    for (int64_t epoch = 0; epoch < ls_trial_history_count(trial); epoch++) {
        for (int i = 0; i < 4; i++) {
            fprintf(file, "%a%c", ls_trial_history(trial, epoch, names[i]), i < 3 ? ' ' : '\n');
        }
    }
    fclose(file);
    return LS_OK;
}

static ls_module *make_model(ls_comm *world) {
    const ls_data_parallel_options options = {.zero = (int)number_of("ZERO", 0)};
    const int64_t width = number_of("WIDTH", 16);
    ls_module *layers = ls_sequential(ls_nn_linear(INPUTS, width), ls_nn_batch_norm_1d(width, NULL), ls_nn_relu(),
                                      ls_nn_dropout(0.2), ls_nn_linear(width, CLASSES));
    if (number_of("ALIASED", 0) != 0) { /* the metadata of the file has the second name */
        (void)ls_module_add_parameter(ls_module_child(layers, 4), "first", ls_module_find(layers, "0.weight"));
    }
    return ls_data_parallel(layers, world, &options);
}

static ls_status hash_exported(ls_comm *world, const char *path) {
    ls_module *model = make_model(world);
    const ls_status status = ls_module_load(model, path);
    if (status == LS_OK) {
        printf("model %016" PRIx64 "\n", ls_module_hash(model));
    }
    ls_module_free(model);
    return status;
}

static ls_status train(ls_comm *world) {
    ls_seed(11);
    ls_module *model = make_model(world);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    ls_loader *training = make_loader(world, 1, SAMPLES), *held_back = make_loader(world, 2, 50);
    const ls_checkpoint_options checkpoints = {
        .folder = "run", .every_steps = 4, .every_epochs = 1, .best = "val_loss"};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model,
        .optimizer = optimizer,
        .criterion = ls_criterion_cross_entropy,
        .train = training,
        .validate = held_back,
        .metrics = LS_METRICS("loss", "acc"),
        LS_CALLBACKS(ls_callback_new(&(ls_callback_hooks){.on_step_training = hold, .on_end = wait_for_death}, NULL)),
        .checkpoint = &checkpoints,
        .resume = "run",
        .quiet = true});
    ls_status status = trial != NULL ? ls_trial_run(trial, EPOCHS) : ls_error_status();
    if (status == LS_OK) {
        status = write_result(trial, model, optimizer);
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(training);
    ls_loader_free(held_back);
    return status;
}

int main(void) {
    draw_lots();
    ls_comm *world = ls_init(NULL);
    const char *exported = getenv("EXPORTED");
    ls_status status = world == NULL      ? ls_error_status()
                       : exported != NULL ? hash_exported(world, exported)
                                          : train(world);
    if (status == LS_OK) {
        status = ls_finalize();
    }
    if (status != LS_OK) {
        fprintf(stderr, "checkpoint_program: %s\n", ls_error_message());
    }
    return status == LS_OK ? 0 : status == LS_ERR_STOPPED ? LS_EXIT_STOPPED : 1;
}
