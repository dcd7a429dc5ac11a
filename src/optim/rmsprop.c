#include <math.h>

#include "optim/optimizer.h"

/*
 * State 0 is the average of squares. State 1 is the momentum buffer or, without momentum, the average of gradients.
 * State 2 is the average of gradients if there is also a momentum buffer.
 */
static int rmsprop_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    const ls_rmsprop_options *options = &optimizer->options.rmsprop;
    int count = 0;
    words[count++] = (ls_state_word){"square_avg", LS_STATE_NOT_NEGATIVE};
    if (options->momentum > 0) {
        words[count++] = (ls_state_word){"momentum_buffer", LS_STATE_ANY};
    }
    if (options->centered) {
        words[count++] = (ls_state_word){"grad_avg", LS_STATE_ANY};
    }
    return count;
}

static ls_status rmsprop_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                              const ls_run *run, double learning_rate, double weight_decay) {
    const ls_rmsprop_options *options = &optimizer->options.rmsprop;
    const bool has_momentum = options->momentum > 0;
    return kernels->rmsprop(stream, &(ls_rmsprop_step){
                                        .dtype = run->dtype,
                                        .count = run->count,
                                        .parameter = run->parameter,
                                        .gradient = run->gradient,
                                        .square_average = run->state[0],
                                        .momentum_buffer = has_momentum ? run->state[1] : NULL,
                                        .gradient_average = options->centered ? run->state[has_momentum ? 2 : 1] : NULL,
                                        .learning_rate = learning_rate,
                                        .alpha = options->alpha,
                                        .epsilon = options->epsilon,
                                        .momentum = options->momentum,
                                        .weight_decay = weight_decay,
                                    });
}

static double *rmsprop_momentum(ls_optimizer *optimizer) {
    return optimizer->options.rmsprop.momentum > 0 ? &optimizer->options.rmsprop.momentum : NULL;
}

static const ls_field fields[] = {LS_FIELD(ls_rmsprop_options, alpha),
                                  LS_FIELD(ls_rmsprop_options, epsilon),
                                  LS_FIELD(ls_rmsprop_options, momentum),
                                  LS_FIELD(ls_rmsprop_options, centered),
                                  {.name = NULL}};

ls_optimizer *ls_rmsprop(ls_module *model, const ls_rmsprop_options *options) {
    static const ls_optimizer_type type = {.name = "ls_rmsprop",
                                           .fields = fields,
                                           .states = rmsprop_states,
                                           .step = rmsprop_step,
                                           .momentum = rmsprop_momentum};
    ls_rmsprop_options given = options != NULL ? *options : (ls_rmsprop_options){0};
    given.alpha = ls_option(given.alpha, 0.99);
    given.epsilon = ls_option(given.epsilon, 1e-8);
    given.momentum = ls_option(given.momentum, 0);
    if (ls_option_within("ls_rmsprop", "alpha", given.alpha, 0, INFINITY) != LS_OK ||
        ls_option_within("ls_rmsprop", "epsilon", given.epsilon, 0, INFINITY) != LS_OK ||
        ls_option_within("ls_rmsprop", "momentum", given.momentum, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.rmsprop = given,
                                            .learning_rate = ls_option(given.learning_rate, 1e-2),
                                            .weight_decay = given.weight_decay},
                            model);
}
