/*
 * A training run with checkpoints and a record in the folder RECORD, for report.sh. Two environment variables change
 * it:
 *
 *     KILL_STEP=N   SIGKILL ends rank 1 after step N of the first start
 *     RATE=X        learning rate
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { SAMPLES = 240, INPUTS = 8, CLASSES = 4, EPOCHS = 4 };

static ls_status kill_rank(ls_trial_state *state, void *user) {
    const char *step = getenv("KILL_STEP");
    (void)user;
    if (step != NULL && strcmp(getenv("LOCKSTEP_RESTART_COUNT"), "0") == 0 && ls_comm_rank(state->comm) == 1 &&
        state->step == strtol(step, NULL, 10)) {
        (void)raise(SIGKILL);
    }
    return LS_OK;
}

static ls_loader *make_loader(ls_comm *world, uint64_t set) {
    ls_tensor *input = ls_empty(LS_SHAPE(SAMPLES, INPUTS), LS_F32), *target = ls_empty(LS_SHAPE(SAMPLES), LS_I64);
    for (int64_t i = 0; i < SAMPLES * INPUTS; i++) {
        ((float *)ls_data(input))[i] = (float)ls_random_normal(set, 0, (uint64_t)i);
    }
    for (int64_t i = 0; i < SAMPLES; i++) {
        ((int64_t *)ls_data(target))[i] = ((float *)ls_data(input))[i * INPUTS] > 0;
    }
    return ls_loader_new(ls_tensor_dataset(input, target),
                         &(ls_loader_options){.global_batch_size = 12, .comm = world, .seed = 3});
}

static ls_status train(ls_comm *world) {
    const char *rate = getenv("RATE");
    ls_seed(1);
    ls_loader *training = make_loader(world, 1), *validation = make_loader(world, 2);
    ls_module *model =
        ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, 16), ls_nn_relu(), ls_nn_linear(16, CLASSES)), world, NULL);
    ls_optimizer *optimizer =
        ls_adam(model, &(ls_adam_options){.learning_rate = rate != NULL ? strtod(rate, NULL) : 0.01});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model,
        .optimizer = optimizer,
        .criterion = ls_criterion_cross_entropy,
        .train = training,
        .validate = validation,
        .metrics = LS_METRICS("loss", "acc"),
        .checkpoint = &(ls_checkpoint_options){.folder = "run", .every_steps = 7},
        .resume = "run",
        .quiet = true,
        LS_CALLBACKS(ls_csv_log("log.csv", NULL), ls_run_log(getenv("RECORD"), &(ls_run_log_options){.every_steps = 1}),
                     ls_callback_new(&(ls_callback_hooks){.on_step_training = kill_rank}, NULL))});
    ls_status status = trial != NULL ? ls_trial_run(trial, EPOCHS) : ls_error_status();
    status = status == LS_OK ? ls_trial_evaluate(trial, validation, "<b>&") : status;
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(training);
    ls_loader_free(validation);
    return status;
}

int main(void) {
    ls_comm *world = ls_init(NULL);
    const ls_status status = world != NULL ? train(world) : ls_error_status();
    if (status != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "report_program: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
