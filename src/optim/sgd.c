#include <math.h>

#include "optim/optimizer.h"

static int sgd_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    words[0] = (ls_state_word){"momentum_buffer", LS_STATE_ANY};
    return optimizer->options.sgd.momentum > 0 ? 1 : 0;
}

static ls_status sgd_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                          const ls_run *run, double learning_rate, double weight_decay) {
    const ls_sgd_options *options = &optimizer->options.sgd;
    return kernels->sgd(stream, &(ls_sgd_step){
                                    .dtype = run->dtype,
                                    .count = run->count,
                                    .parameter = run->parameter,
                                    .gradient = run->gradient,
                                    .momentum_buffer = run->state[0],
                                    .learning_rate = learning_rate,
                                    .momentum = options->momentum,
                                    .dampening = options->dampening,
                                    .weight_decay = weight_decay,
                                    .nesterov = options->nesterov,
                                    .first = run->first,
                                });
}

static double *sgd_momentum(ls_optimizer *optimizer) {
    return optimizer->options.sgd.momentum > 0 ? &optimizer->options.sgd.momentum : NULL;
}

static const ls_field fields[] = {LS_FIELD(ls_sgd_options, momentum),
                                  LS_FIELD(ls_sgd_options, dampening),
                                  LS_FIELD(ls_sgd_options, nesterov),
                                  {.name = NULL}};

ls_optimizer *ls_sgd(ls_module *model, const ls_sgd_options *options) {
    static const ls_optimizer_type type = {
        .name = "ls_sgd", .fields = fields, .states = sgd_states, .step = sgd_step, .momentum = sgd_momentum};
    ls_sgd_options given = options != NULL ? *options : (ls_sgd_options){0};
    given.momentum = ls_option(given.momentum, 0);
    given.dampening = ls_option(given.dampening, 0);
    if (ls_option_within("ls_sgd", "momentum", given.momentum, 0, INFINITY) != LS_OK ||
        ls_option_within("ls_sgd", "dampening", given.dampening, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    if (given.nesterov && (given.momentum <= 0 || given.dampening != 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "ls_sgd: Nesterov needs a momentum above 0 (is %g) and no dampening (is %g)",
                            given.momentum, given.dampening);
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.sgd = given,
                                            .learning_rate = ls_option(given.learning_rate, 1e-3),
                                            .weight_decay = given.weight_decay},
                            model);
}
