#include <math.h>

#include "optim/optimizer.h"

/* Returns the momentum of step t. */
static double nadam_mu(const ls_optimizer *optimizer, int64_t t) {
    const ls_nadam_options *options = &optimizer->options.nadam;
    return options->beta1 * (1 - 0.5 * pow(0.96, (double)t * options->momentum_decay));
}

static ls_status nadam_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                            const ls_run *run, double learning_rate, double weight_decay) {
    const ls_nadam_options *options = &optimizer->options.nadam;
    const double next = nadam_mu(optimizer, run->t + 1);
    ls_adam_step step = ls_adam_step_of(run, options->beta1, options->beta2, options->epsilon);
    step.parameter_decay = options->decoupled ? learning_rate * weight_decay : 0;
    step.gradient_decay = options->decoupled ? 0 : weight_decay;
    step.rate = learning_rate * next / (1 - run->product * next);
    step.gradient_rate = learning_rate * (1 - nadam_mu(optimizer, run->t)) / (1 - run->product);
    step.root = 1 / sqrt(1 - pow(options->beta2, (double)run->t));
    return kernels->adam(stream, &step);
}

static double *nadam_momentum(ls_optimizer *optimizer) {
    return &optimizer->options.nadam.beta1;
}

static const ls_field fields[] = {LS_FIELD(ls_nadam_options, beta1),     LS_FIELD(ls_nadam_options, beta2),
                                  LS_FIELD(ls_nadam_options, epsilon),   LS_FIELD(ls_nadam_options, momentum_decay),
                                  LS_FIELD(ls_nadam_options, decoupled), {.name = NULL}};

ls_optimizer *ls_nadam(ls_module *model, const ls_nadam_options *options) {
    static const ls_optimizer_type type = {.name = "ls_nadam",
                                           .fields = fields,
                                           .states = ls_adam_states,
                                           .step = nadam_step,
                                           .momentum = nadam_momentum,
                                           .product_factor = nadam_mu,
                                           .product_word = "mu_product"};
    ls_nadam_options given = options != NULL ? *options : (ls_nadam_options){0};
    given.momentum_decay = ls_option(given.momentum_decay, 4e-3);
    if (ls_adam_check_all("ls_nadam", &given.beta1, &given.beta2, &given.epsilon, 1e-8) != LS_OK ||
        ls_option_within("ls_nadam", "momentum_decay", given.momentum_decay, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.nadam = given,
                                            .learning_rate = ls_option(given.learning_rate, 2e-3),
                                            .weight_decay = given.weight_decay},
                            model);
}
