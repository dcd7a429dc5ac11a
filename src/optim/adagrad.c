#include <math.h>

#include "optim/optimizer.h"

static int adagrad_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    (void)optimizer;
    words[0] = (ls_state_word){"sum", LS_STATE_NOT_NEGATIVE};
    return 1;
}

static double adagrad_state_start(const ls_optimizer *optimizer) {
    return optimizer->options.adagrad.initial_sum;
}

static ls_status adagrad_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                              const ls_run *run, double learning_rate, double weight_decay) {
    const ls_adagrad_options *options = &optimizer->options.adagrad;
    return kernels->adagrad(
        stream, &(ls_adagrad_step){
                    .dtype = run->dtype,
                    .count = run->count,
                    .parameter = run->parameter,
                    .gradient = run->gradient,
                    .sum = run->state[0],
                    .learning_rate = learning_rate / (1 + (double)(run->t - 1) * options->learning_rate_decay),
                    .epsilon = options->epsilon,
                    .weight_decay = weight_decay,
                });
}

static const ls_field fields[] = {LS_FIELD(ls_adagrad_options, learning_rate_decay),
                                  LS_FIELD(ls_adagrad_options, initial_sum),
                                  LS_FIELD(ls_adagrad_options, epsilon),
                                  {.name = NULL}};

ls_optimizer *ls_adagrad(ls_module *model, const ls_adagrad_options *options) {
    static const ls_optimizer_type type = {.name = "ls_adagrad",
                                           .fields = fields,
                                           .states = adagrad_states,
                                           .state_start = adagrad_state_start,
                                           .step = adagrad_step};
    ls_adagrad_options given = options != NULL ? *options : (ls_adagrad_options){0};
    given.epsilon = ls_option(given.epsilon, 1e-10);
    given.learning_rate_decay = ls_option(given.learning_rate_decay, 0);
    given.initial_sum = ls_option(given.initial_sum, 0);
    if (ls_option_within("ls_adagrad", "learning_rate_decay", given.learning_rate_decay, 0, INFINITY) != LS_OK ||
        ls_option_within("ls_adagrad", "initial_sum", given.initial_sum, 0, INFINITY) != LS_OK ||
        ls_option_within("ls_adagrad", "epsilon", given.epsilon, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.adagrad = given,
                                            .learning_rate = ls_option(given.learning_rate, 1e-2),
                                            .weight_decay = given.weight_decay},
                            model);
}
