/*
 * Loaders of pipelines: all stages must get the same samples. If a loader divides the batches over the stages, or if
 * the stages are at different batches, the pipeline and its trials fail on every rank before the step.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include <string.h>

#include <lockstep/lockstep.h>

#include "tests/support/ranks.h"

enum { BATCH = 20, IN = 6, HIDDEN = 9, OUT = 3 };

static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_mse_loss(output, target, LS_LOSS_MEAN);
}

typedef struct trainee {
    ls_module *pipeline;
    ls_optimizer *optimizer;
    ls_loader *loader;
} trainee;

static trainee make_trainee(ls_comm *stages, ls_comm *divided) {
    ls_seed(3);
    ls_module *layers[] = {ls_nn_linear(IN, HIDDEN),     ls_nn_relu(),
                           ls_nn_linear(HIDDEN, HIDDEN), ls_nn_tanh(),
                           ls_nn_linear(HIDDEN, HIDDEN), ls_nn_linear(HIDDEN, OUT)};
    ls_tensor *x = ls_randn(LS_SHAPE(2 * BATCH, IN), LS_F32), *y = ls_randn(LS_SHAPE(2 * BATCH, OUT), LS_F32);
    trainee made = {.pipeline = ls_pipeline(ls_sequential_of(layers, 6), stages, NULL)};
    made.optimizer = ls_sgd(made.pipeline, NULL);
    made.loader =
        ls_loader_new(ls_tensor_dataset(x, y), &(ls_loader_options){.global_batch_size = BATCH, .comm = divided});
    return made;
}

static void free_trainee(const trainee *t) {
    ls_loader_free(t->loader);
    ls_optimizer_free(t->optimizer);
    ls_module_free(t->pipeline);
}

/* Trains on an epoch of batches, or on views of them. */
static ls_status train_epoch(const trainee *t, bool views) {
    bool more = true;
    for (;;) {
        ls_batch batch;
        LS_TRY(ls_loader_next(t->loader, &batch, &more));
        if (!more) {
            return LS_OK;
        }
        ls_tensor *x = views ? ls_narrow(batch.input, 0, 0, batch.count) : batch.input;
        ls_tensor *y = views ? ls_reshape(batch.target, LS_SHAPE(batch.count, OUT)) : batch.target;
        LS_TRY(ls_pipeline_backward(t->pipeline, x, y, criterion, NULL, NULL));
        ls_optimizer_zero_grad(t->optimizer);
    }
}

/* Every rank fails before the step, and the pipeline stays usable. */
static ls_status different_shares(ls_comm *world, bool views) {
    for (int k = 0; k < 2; k++) {
        ls_scope *scope = ls_scope_begin();
        const trainee t = make_trainee(world, k == 0 ? world : NULL);
        const bool fails = k == 0 && ls_comm_size(world) > 1;
        ls_scope *inner = ls_scope_begin();
        const ls_status status = train_epoch(&t, views);
        LS_CHECK(status == (fails ? LS_ERR_MISMATCH : LS_OK));
        LS_CHECK(!fails || strstr(ls_error_message(), "give the loader no .comm") != NULL);
        LS_CHECK((ls_scope_end(inner) == LS_OK) == !fails);
        LS_TRY(ls_pipeline_backward(t.pipeline, ls_ones(LS_SHAPE(BATCH, IN), LS_F32),
                                    ls_ones(LS_SHAPE(BATCH, OUT), LS_F32), criterion, NULL, NULL));
        free_trainee(&t);
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

/* The last stage is one batch ahead. */
static ls_status different_batches(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    const trainee t = make_trainee(world, NULL);
    const bool ahead = ls_comm_size(world) > 1 && ls_comm_rank(world) == ls_comm_size(world) - 1;
    ls_batch batch;
    bool more = true;
    for (int i = 0; i < 1 + ahead; i++) {
        LS_TRY(ls_loader_next(t.loader, &batch, &more));
    }
    ls_scope *inner = ls_scope_begin();
    const ls_status status = ls_pipeline_backward(t.pipeline, batch.input, batch.target, criterion, NULL, NULL);
    LS_CHECK(status == (ls_comm_size(world) > 1 ? LS_ERR_MISMATCH : LS_OK));
    LS_CHECK(status == LS_OK || strstr(ls_error_message(), "target begins with sample 0 of batch 1") != NULL);
    LS_CHECK(ls_scope_end(inner) == status);
    free_trainee(&t);
    return ls_scope_end(scope);
}

/* Two pipelines share the batches of a loader: .comm connects the ranks of the same stage. */
static ls_status shares_of_pipelines(ls_comm *world) {
    ls_comm *stages, *data;
    if (ls_comm_size(world) != 4) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &stages));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &data));
    ls_scope *scope = ls_scope_begin();
    const trainee t = make_trainee(stages, data);
    LS_TRY(train_epoch(&t, false));
    free_trainee(&t);
    LS_TRY(ls_scope_end(scope));
    ls_comm_free(stages);
    ls_comm_free(data);
    return LS_OK;
}

static ls_status train_in_trial(ls_trial_state *state, void *user) {
    double loss = 0;
    (void)user;
    ls_optimizer_zero_grad(state->optimizer);
    ls_tensor *x = ls_mul(state->input, 2), *y = ls_mul(state->target, 2);
    LS_TRY(ls_pipeline_backward(state->model, x, y, criterion, NULL, &loss));
    state->loss = ls_scalar(loss, LS_F64);
    return ls_optimizer_step(state->optimizer);
}

/* Trials reject loaders that divide the batches over the stages before the first step, even if the step changes the
 * samples. */
static ls_status trials(ls_comm *world) {
    for (int k = 0; k < 3; k++) {
        ls_scope *scope = ls_scope_begin();
        const trainee t = make_trainee(world, k == 1 ? world : NULL);
        const trainee other = make_trainee(world, k == 2 ? world : NULL);
        ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = t.pipeline,
                                                           .optimizer = t.optimizer,
                                                           .step = train_in_trial,
                                                           .criterion = ls_criterion_mse,
                                                           .train = t.loader,
                                                           .validate = other.loader,
                                                           .comm = world,
                                                           .quiet = true});
        const bool fails = k > 0 && ls_comm_size(world) > 1;
        LS_CHECK(trial != NULL && ls_trial_run(trial, 1) == (fails ? LS_ERR_MISMATCH : LS_OK));
        LS_CHECK(!fails || (strstr(ls_error_message(), k == 1 ? "the training loader" : "the validation loader") &&
                            strstr(ls_error_message(), "remove .comm")));
        const bool evaluation_fails = k == 2 && ls_comm_size(world) > 1;
        LS_CHECK(ls_trial_evaluate(trial, other.loader, "test") == (evaluation_fails ? LS_ERR_MISMATCH : LS_OK));
        ls_trial_free(trial);
        free_trainee(&t);
        free_trainee(&other);
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(different_shares(world, false));
    LS_TRY(different_shares(world, true));
    LS_TRY(different_batches(world));
    LS_TRY(shares_of_pipelines(world));
    LS_TRY(trials(world));
    return ls_comm_barrier(world, NULL);
}
