#include <math.h>

#include "optim/optimizer.h"

/*
 * By how much the step is scaled for the variance of the second moment at step t, section 3.3 of the paper; 0 where
 * that has none, as at the first steps.
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
    return kernels->adam(stream, &(ls_adam_step){
                                     .dtype = run->dtype,
                                     .count = run->count,
                                     .parameter = run->parameter,
                                     .gradient = run->gradient,
                                     .first_moment = run->state[0],
                                     .second_moment = run->state[1],
                                     .beta1 = options->beta1,
                                     .beta2 = options->beta2,
                                     .parameter_decay = options->decoupled ? learning_rate * weight_decay : 0,
                                     .gradient_decay = options->decoupled ? 0 : weight_decay,
                                     /* without it the second moment has no part: the fraction is over 0 sqrt(v) + 1 */
                                     .rate = rectified > 0 ? rate * rectified * sqrt(1 - pow(options->beta2, t)) : rate,
                                     .root = rectified > 0 ? 1 : 0,
                                     .epsilon = rectified > 0 ? options->epsilon : 1,
                                 });
}

static double *radam_momentum(ls_optimizer *optimizer) {
    return &optimizer->options.radam.beta1;
}

ls_optimizer *ls_radam(ls_module *model, const ls_radam_options *options) {
    static const ls_optimizer_type type = {
        .name = "ls_radam", .states = ls_adam_states, .step = radam_step, .momentum = radam_momentum};
    ls_radam_options given = options != NULL ? *options : (ls_radam_options){0};
    given.epsilon = ls_option(given.epsilon, 1e-8);
    if (ls_adam_check("ls_radam", &given.beta1, &given.beta2, 0.999) != LS_OK ||
        ls_option_within("ls_radam", "epsilon", given.epsilon, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.radam = given,
                                            .learning_rate = ls_option(given.learning_rate, 1e-3),
                                            .weight_decay = given.weight_decay},
                            model);
}
