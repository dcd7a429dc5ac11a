#include <math.h>

#include "optim/optimizer.h"

static int adadelta_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    (void)optimizer;
    words[0] = (ls_state_word){"square_avg", LS_STATE_NOT_NEGATIVE};
    words[1] = (ls_state_word){"acc_delta", LS_STATE_NOT_NEGATIVE};
    return 2;
}

static ls_status adadelta_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                               const ls_run *run, double learning_rate, double weight_decay) {
    return kernels->adadelta(stream, &(ls_adadelta_step){
                                         .dtype = run->dtype,
                                         .count = run->count,
                                         .parameter = run->parameter,
                                         .gradient = run->gradient,
                                         .square_average = run->state[0],
                                         .change_average = run->state[1],
                                         .learning_rate = learning_rate,
                                         .rho = optimizer->options.adadelta.rho,
                                         .epsilon = optimizer->options.adadelta.epsilon,
                                         .weight_decay = weight_decay,
                                     });
}

static const ls_field fields[] = {
    LS_FIELD(ls_adadelta_options, rho), LS_FIELD(ls_adadelta_options, epsilon), {.name = NULL}};

ls_optimizer *ls_adadelta(ls_module *model, const ls_adadelta_options *options) {
    static const ls_optimizer_type type = {
        .name = "ls_adadelta", .fields = fields, .states = adadelta_states, .step = adadelta_step};
    ls_adadelta_options given = options != NULL ? *options : (ls_adadelta_options){0};
    given.rho = ls_option(given.rho, 0.9);
    given.epsilon = ls_option(given.epsilon, 1e-6);
    if (ls_option_within("ls_adadelta", "rho", given.rho, 0, 1) != LS_OK ||
        ls_option_within("ls_adadelta", "epsilon", given.epsilon, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.adadelta = given,
                                            .learning_rate = ls_option(given.learning_rate, 1),
                                            .weight_decay = given.weight_decay},
                            model);
}
