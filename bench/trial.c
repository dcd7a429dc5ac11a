/*
 * Measures the overhead of a trial's loop compared with a hand-written loop. Both run the same steps of a small model
 * in turn, with a callback on every step. Prints the median nanoseconds per step of both, and the difference.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

#include "median.h"

enum { FEATURES = 10, SAMPLES = 1000, EPOCHS = 20, ROUNDS = 21 };

typedef struct work {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *loader;
} work;

static ls_status set_up(work *w) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(1);
    ls_tensor *x = ls_rand(LS_SHAPE(SAMPLES, FEATURES), LS_F32);
    ls_dataset *set = ls_tensor_dataset(x, ls_sum_axes(x, LS_AXES(1), true));
    w->loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 1});
    w->model = ls_nn_linear(FEATURES, 1);
    w->optimizer = ls_sgd(w->model, &(ls_sgd_options){.learning_rate = 1e-3});
    const ls_status status = ls_scope_end(scope);
    return w->loader != NULL && w->optimizer != NULL ? status : ls_error_status();
}

static ls_status step_by_hand(work *w, const ls_batch *batch, double *loss_sum) {
    ls_optimizer_zero_grad(w->optimizer);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_mse_loss(ls_forward(w->model, batch->input), batch->target, LS_LOSS_MEAN);
    ls_status status = ls_backward(loss);
    *loss_sum += status == LS_OK ? ls_item(loss) * (double)batch->count : 0;
    const ls_status ended = ls_scope_end(scope);
    status = status == LS_OK ? ended : status;
    return status == LS_OK ? ls_optimizer_step(w->optimizer) : status;
}

static ls_status run_by_hand(work *w, double *ns) {
    const double began = ls_clock_seconds();
    double loss_sum = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        ls_batch batch;
        bool more = true;
        while (more) {
            ls_status status = ls_loader_next(w->loader, &batch, &more);
            if (status == LS_OK && more) {
                status = step_by_hand(w, &batch, &loss_sum);
            }
            if (status != LS_OK) {
                return status;
            }
        }
    }
    *ns = (ls_clock_seconds() - began) * 1e9 / (EPOCHS * SAMPLES);
    return LS_OK;
}

static ls_status count(ls_trial_state *state, void *user) {
    *(int64_t *)user += state->count;
    return LS_OK;
}

static ls_status run_trial(ls_trial *trial, int round, double *ns) {
    const double began = ls_clock_seconds();
    const ls_status status = ls_trial_run(trial, (int64_t)(round + 1) * EPOCHS);
    *ns = (ls_clock_seconds() - began) * 1e9 / (EPOCHS * SAMPLES);
    return status;
}

static ls_status measure(work *by_hand, ls_trial *trial) {
    double hand[ROUNDS], loop[ROUNDS], more[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        ls_status status = run_by_hand(by_hand, &hand[round]);
        status = status == LS_OK ? run_trial(trial, round, &loop[round]) : status;
        if (status != LS_OK) {
            return status;
        }
        more[round] = loop[round] - hand[round];
    }
    printf("a step by hand: %.0f ns, of a trial: %.0f ns, difference in a round: %.0f ns (medians of %d)\n",
           median(hand, ROUNDS), median(loop, ROUNDS), median(more, ROUNDS), ROUNDS);
    return LS_OK;
}

int main(void) {
    work by_hand = {0}, in_trial = {0};
    int64_t samples = 0;
    ls_trial *trial = NULL;
    if (set_up(&by_hand) == LS_OK && set_up(&in_trial) == LS_OK) {
        trial = ls_trial_new(&(ls_trial_options){
            .model = in_trial.model,
            .optimizer = in_trial.optimizer,
            .criterion = ls_criterion_mse,
            .train = in_trial.loader,
            .quiet = true,
            LS_CALLBACKS(ls_callback_new(&(ls_callback_hooks){.on_step_training = count}, &samples))});
    }
    if (trial == NULL || measure(&by_hand, trial) != LS_OK || samples != (int64_t)ROUNDS * EPOCHS * SAMPLES) {
        fprintf(stderr, "trial: %s\n", ls_error_message());
        return 1;
    }
    ls_trial_free(trial);
    ls_optimizer_free(by_hand.optimizer);
    ls_optimizer_free(in_trial.optimizer);
    ls_module_free(by_hand.model);
    ls_module_free(in_trial.model);
    ls_loader_free(by_hand.loader);
    ls_loader_free(in_trial.loader);
    return 0;
}
