/*
 * Trials, on any number of ranks, whose ranks differ in the optimizer, callbacks or metrics before the first step, or
 * in the parameters at the end of an epoch and before a checkpoint. Every rank fails with LS_ERR_MISMATCH and the same
 * message, which contains both values, and the communicator stays usable. Differences that a program may intend are
 * accepted: replicas that no call averages, optimizers of ranks with their own step, and setups in an evaluation.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/callbacks.h>
#include <lockstep/checkpoint.h>
#include <lockstep/parallel.h>
#include <lockstep/train.h>

enum { SAMPLES = 24, INPUTS = 3 };

/* How the last rank differs. */
typedef struct setting {
    double learning_rate; /* 0: nothing */
    double momentum;
    double clipping;
    bool adam;
    int64_t schedule_steps; /* of ls_schedule_step on rank 0; on the last rank, one less */
    int64_t milestone; /* of ls_schedule_multi_step on rank 0, after a smaller milestone; on the last rank, one less */
    bool own_callback;
    bool validates; /* only the last rank has a loader for validation, which no other rank shares */
    const char *const *metrics;
    int64_t change_at; /* step after which a parameter changes on the last rank; 0 means never */
    const char *folder;
    bool no_sync;
    bool own_step;          /* on all ranks; the last rank has no optimizer */
    bool evaluates;         /* instead of a run */
    bool saves;             /* saves instead of a run, after a parameter has changed on the last rank */
    int64_t further_epochs; /* on the last rank */
} setting;

static ls_status change_weight(ls_module *model) {
    ls_tensor *weight = ls_module_find(model, "weight");
    const bool before = ls_no_grad(true);
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_copy_into(ls_select(weight, 1, 2), ls_full(LS_SHAPE(1), LS_F64, 0.125));
    ls_no_grad(before);
    LS_TRY(status);
    return ls_scope_end(scope);
}

static ls_status change(ls_trial_state *state, void *user) {
    const setting *s = user;
    if (s->change_at == 0 || state->step != s->change_at || ls_comm_rank(state->comm) < ls_comm_size(state->comm) - 1) {
        return LS_OK;
    }
    return change_weight(state->model);
}

static ls_status step(ls_trial_state *state, void *user) {
    (void)user;
    if (state->count == 0) {
        return ls_data_parallel_skip(state->model);
    }
    state->loss = ls_criterion_mse(ls_forward(state->model, state->input), state->target, NULL);
    return ls_backward(state->loss);
}

static ls_status do_nothing(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_OK;
}

static void write_empty_text(void *user, char *text, size_t size) {
    (void)user;
    (void)size;
    text[0] = '\0';
}

/* Callbacks that only one rank may have, inside a composed callback. */
static ls_callback *make_group(int rank) {
    const ls_callback_hooks own = {.on_forward = do_nothing, .describe = write_empty_text};
    return ls_on_rank(ls_callbacks_of((ls_callback *[]){ls_callback_new(&own, NULL), ls_callback_new(&own, NULL)}, 2),
                      rank);
}

static ls_dataset *make_dataset(void) {
    return ls_tensor_dataset(ls_full(LS_SHAPE(SAMPLES, INPUTS), LS_F64, 0.5), ls_zeros(LS_SHAPE(SAMPLES, 1), LS_F64));
}

static ls_status carry_out(ls_trial *trial, ls_module *model, ls_loader *loader, setting s, int64_t epochs) {
    ls_comm *comm = ls_data_parallel_comm(model);
    const bool last = ls_comm_rank(comm) == ls_comm_size(comm) - 1;
    LS_TRY(ls_data_parallel_no_sync(model, s.no_sync));
    if (s.evaluates) {
        return ls_trial_evaluate(trial, loader, "test");
    }
    if (s.saves) {
        LS_TRY(last ? change_weight(model) : LS_OK);
        return ls_trial_save(trial, s.folder);
    }
    return ls_trial_run(trial, epochs + (last ? s.further_epochs : 0));
}

static ls_status run(ls_comm *world, setting s, int64_t epochs) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    const bool differs = last && ls_comm_size(world) > 1;
    const double rate = differs && s.learning_rate != 0 ? s.learning_rate : 0.1;
    ls_seed(1);
    ls_module *model =
        ls_data_parallel(ls_nn_linear_with(INPUTS, 1, &(ls_linear_options){.dtype = LS_F64}), world, NULL);
    ls_optimizer *optimizer =
        differs && s.adam
            ? ls_adam(model, &(ls_adam_options){.learning_rate = rate})
            : ls_sgd(model, &(ls_sgd_options){.learning_rate = rate, .momentum = differs ? s.momentum : 0});
    ls_loader *loader =
        ls_loader_new(make_dataset(), &(ls_loader_options){.global_batch_size = 6, .comm = world, .seed = 3});
    ls_loader *validate = differs && s.validates ? ls_loader_new(make_dataset(), NULL) : NULL;
    ls_callback *callbacks[4] = {ls_callback_new(&(ls_callback_hooks){.on_step_training = change}, &s)};
    int count = 1;
    if (s.clipping > 0 && !differs) {
        callbacks[count++] = ls_gradient_norm_clipping(s.clipping);
    }
    if (s.schedule_steps > 0) {
        callbacks[count++] = ls_scheduler(ls_schedule_step(optimizer, s.schedule_steps - differs, 0.5), NULL);
    }
    if (s.milestone > 0) {
        const int64_t milestones[] = {1, s.milestone - differs};
        callbacks[count++] = ls_scheduler(ls_schedule_multi_step(optimizer, milestones, 2, 0.5), NULL);
    }
    if (s.own_callback && differs) {
        callbacks[count++] = ls_callback_new(&(ls_callback_hooks){.on_forward = do_nothing}, NULL);
        callbacks[count++] = make_group(ls_comm_rank(world));
    }
    const ls_checkpoint_options checkpoint = {.folder = s.folder, .every_steps = 2};
    ls_trial *trial =
        ls_trial_new(&(ls_trial_options){.model = model,
                                         .optimizer = differs && s.own_step ? NULL : optimizer,
                                         .step = s.own_step ? step : NULL,
                                         .criterion = ls_criterion_mse,
                                         .train = loader,
                                         .validate = validate,
                                         .metrics = differs && s.metrics != NULL ? s.metrics : LS_METRICS("loss"),
                                         .callbacks = callbacks,
                                         .callback_count = count,
                                         .checkpoint = s.folder != NULL ? &checkpoint : NULL,
                                         .quiet = true});
    const ls_status status = trial != NULL ? carry_out(trial, model, loader, s, epochs) : ls_error_status();
    char message[1024];
    snprintf(message, sizeof message, "%s", ls_error_message());
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_loader_free(loader);
    ls_loader_free(validate);
    ls_module_free(model);
    return status == LS_OK ? LS_OK : ls_error_set(status, "%s", message);
}

/*
 * Checks that the message is the same on every rank, and that the ranks are in step. `says` contains %d for the rank's
 * number.
 */
static ls_status expect(ls_comm *world, setting s, int64_t epochs, const char *says) {
    char expected[400];
    snprintf(expected, sizeof expected, says, ls_comm_size(world) - 1);
    const ls_status status = run(world, s, epochs);
    if (status != LS_ERR_MISMATCH || strstr(ls_error_message(), expected) == NULL) {
        return ls_error_set(LS_ERR_INTERNAL, "%s: \"%s\", not \"%s\"", ls_status_name(status), ls_error_message(),
                            expected);
    }
    int64_t sum = 1;
    LS_CHECK(ls_comm_allreduce(world, &sum, &sum, 1, LS_I64, LS_SUM, NULL) == LS_OK);
    LS_CHECK(sum == ls_comm_size(world));
    return LS_OK;
}

static ls_status settings_differ(ls_comm *world) {
    LS_TRY(
        expect(world, (setting){.learning_rate = 0.25}, 1,
               "the ranks' optimizers differ: rank 0 has ls_sgd, group 0 (learning_rate 0.1), but rank %d has ls_sgd, "
               "group 0 (learning_rate 0.25)"));
    LS_TRY(expect(world, (setting){.momentum = 0.9}, 1,
                  "rank 0 has ls_sgd, group 0 (learning_rate 0.1), but rank %d has ls_sgd (momentum 0.9), group 0"));
    LS_TRY(expect(world, (setting){.adam = true}, 1,
                  "rank 0 has ls_sgd, group 0 (learning_rate 0.1), but rank %d has ls_adam"));
    LS_TRY(
        expect(world, (setting){.clipping = 0.5}, 1,
               "the ranks' callbacks differ: rank 0 has ls_gradient_norm_clipping (limit 0.5), but rank %d has none"));
    LS_TRY(expect(world, (setting){.schedule_steps = 3}, 1,
                  "rank 0 has ls_scheduler: ls_schedule_step (steps 3, gamma 0.5), but rank %d has ls_scheduler: "
                  "ls_schedule_step (steps 2, gamma 0.5)"));
    LS_TRY(expect(world, (setting){.milestone = 30}, 1,
                  "the ranks' callbacks differ: rank 0 has ls_scheduler: ls_schedule_multi_step (count 2, "
                  "milestones_hash "));
    LS_TRY(expect(world, (setting){.further_epochs = 2}, 1,
                  "the ranks' epochs in ls_trial_run differ: rank 0 has 1 (epochs that have run: 0), but rank "
                  "%d has 3 (epochs that have run: 0)"));
    LS_TRY(expect(world, (setting){.validates = true}, 1,
                  "the ranks' loaders differ for validation: rank 0 has none, but rank %d has a loader whose batches"));
    return expect(world, (setting){.metrics = LS_METRICS("loss", "mae")}, 1,
                  "the ranks' metrics differ: rank 0 has none, but rank %d has mae");
}

/* An epoch has 4 steps. */
static ls_status parameters_differ(ls_comm *world) {
    static const char *const says = "the parameters of the ranks differ: element 2 of \"weight\" is ";
    char folder[64] = "/tmp/lockstep-trial-alike-XXXXXX";
    if (ls_comm_rank(world) == 0) {
        LS_CHECK(mkdtemp(folder) != NULL);
    }
    LS_TRY(ls_comm_broadcast(world, folder, sizeof folder, LS_U8, 0, NULL));
    LS_TRY(expect(world, (setting){.change_at = 4}, 2, says));
    LS_TRY(expect(world, (setting){.change_at = 1}, 1, says));
    LS_TRY(expect(world, (setting){.change_at = 2, .folder = folder}, 1, " on rank 0 and 0.125 on rank %d; change"));
    LS_TRY(expect(world, (setting){.saves = true, .folder = folder}, 0, says));
    LS_CHECK(ls_comm_rank(world) > 0 || rmdir(folder) == 0); /* no checkpoint was written */
    return LS_OK;
}

static ls_status in_a_loop(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    ls_module *model = ls_data_parallel(ls_nn_linear(2, 2), world, NULL);
    LS_CHECK(ls_data_parallel_check(model) == LS_OK);
    LS_CHECK(ls_data_parallel_check(NULL) == LS_ERR_ARGUMENT);
    if (last) {
        ls_scope *scope = ls_scope_begin();
        const bool before = ls_no_grad(true);
        LS_CHECK(ls_copy_into(ls_module_find(model, "bias"), ls_full(LS_SHAPE(2), LS_F32, 7)) == LS_OK);
        ls_no_grad(before);
        LS_TRY(ls_scope_end(scope));
    }
    const ls_status status = ls_data_parallel_check(model);
    LS_CHECK(status == (ls_comm_size(world) > 1 ? LS_ERR_MISMATCH : LS_OK));
    LS_CHECK(status == LS_OK || strstr(ls_error_message(), "element 0 of \"bias\" is ") != NULL);
    LS_CHECK(ls_sync_parameters(model, world, 0) == LS_OK);
    LS_CHECK(ls_data_parallel_check(model) == LS_OK);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(run(world, (setting){.own_callback = true}, 2));
    LS_TRY(run(world, (setting){.no_sync = true, .change_at = 4}, 2));
    LS_TRY(run(world, (setting){.own_step = true}, 1));
    LS_TRY(run(world, (setting){.evaluates = true, .learning_rate = 0.25}, 0));
    LS_TRY(in_a_loop(world));
    if (ls_comm_size(world) > 1) {
        LS_TRY(settings_differ(world));
        LS_TRY(parameters_differ(world));
    }
    return LS_OK;
}
