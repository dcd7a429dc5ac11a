#include <math.h>

#include "optim/optimizer.h"

/*
 * Returns the factor of the step that rectifies the variance of the second moment at step t (section 3.3 of the paper),
 * or 0 if the variance is not tractable, as in the first steps.
 */
static double rectification(double beta2, double t) {
    const double most = 2 / (1 - beta2) - 1, power = pow(beta2, t);
    const double length = most - 2 * t * power / (1 - power);
    return length > 5 ? sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) : 0;
}

static ls_status radam_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                            const ls_run *run, double learning_rate, double weight_decay) {
    const ls_radam_options *options = &optimizer->options.radam;
    const double t = (double)run->t, rate = learning_rate / (1 - pow(options->beta1, t));
    const double rectified = rectification(options->beta2, t);
    /* If the factor is 0, the second moment is not used: the divisor is 0 * sqrt(v) + 1. */
    ls_adam_step step = ls_adam_step_of(run, options->beta1, options->beta2, rectified > 0 ? options->epsilon : 1);
    step.parameter_decay = options->decoupled ? learning_rate * weight_decay : 0;
    step.gradient_decay = options->decoupled ? 0 : weight_decay;
    step.rate = rectified > 0 ? rate * rectified * sqrt(1 - pow(options->beta2, t)) : rate;
    step.root = rectified > 0 ? 1 : 0;
    return kernels->adam(stream, &step);
}

static double *radam_momentum(ls_optimizer *optimizer) {
    return &optimizer->options.radam.beta1;
}

static const ls_field fields[] = {LS_FIELD(ls_radam_options, beta1),
                                  LS_FIELD(ls_radam_options, beta2),
                                  LS_FIELD(ls_radam_options, epsilon),
                                  LS_FIELD(ls_radam_options, decoupled),
                                  {.name = NULL}};

ls_optimizer *ls_radam(ls_module *model, const ls_radam_options *options) {
    static const ls_optimizer_type type = {
        .name = "ls_radam", .fields = fields, .states = ls_adam_states, .step = radam_step, .momentum = radam_momentum};
    ls_radam_options given = options != NULL ? *options : (ls_radam_options){0};
    if (ls_adam_check_all("ls_radam", &given.beta1, &given.beta2, &given.epsilon, 1e-8) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.radam = given,
                                            .learning_rate = ls_option(given.learning_rate, 1e-3),
                                            .weight_decay = given.weight_decay},
                            model);
}
