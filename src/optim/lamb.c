#include <math.h>

#include "optim/optimizer.h"

static ls_status lamb_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                           const ls_run *run, double learning_rate, double weight_decay) {
    const ls_lamb_options *options = &optimizer->options.lamb;
    return kernels->lamb(stream, &(ls_lamb_step){
                                     .dtype = run->dtype,
                                     .count = run->count,
                                     .parameter = run->parameter,
                                     .gradient = run->gradient,
                                     .first_moment = run->state[0],
                                     .second_moment = run->state[1],
                                     .learning_rate = learning_rate,
                                     .beta1 = options->beta1,
                                     .beta2 = options->beta2,
                                     .epsilon = options->epsilon,
                                     .weight_decay = weight_decay,
                                     .correction1 = 1 - pow(options->beta1, (double)run->t),
                                     .correction2 = 1 - pow(options->beta2, (double)run->t),
                                 });
}

static double *lamb_momentum(ls_optimizer *optimizer) {
    return &optimizer->options.lamb.beta1;
}

static const ls_field fields[] = {LS_FIELD(ls_lamb_options, beta1),
                                  LS_FIELD(ls_lamb_options, beta2),
                                  LS_FIELD(ls_lamb_options, epsilon),
                                  {.name = NULL}};

ls_optimizer *ls_lamb(ls_module *model, const ls_lamb_options *options) {
    static const ls_optimizer_type type = {.name = "ls_lamb",
                                           .fields = fields,
                                           .states = ls_adam_states,
                                           .step = lamb_step,
                                           .momentum = lamb_momentum,
                                           .one_by_one = true,
                                           .check_group = ls_group_check_whole};
    ls_lamb_options given = options != NULL ? *options : (ls_lamb_options){0};
    if (ls_adam_check_all("ls_lamb", &given.beta1, &given.beta2, &given.epsilon, 1e-6) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.lamb = given,
                                            .learning_rate = ls_option(given.learning_rate, 1e-3),
                                            .weight_decay = ls_option(given.weight_decay, 0.01)},
                            model);
}
