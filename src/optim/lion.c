#include "optim/optimizer.h"

static int lion_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    (void)optimizer;
    words[0] = (ls_state_word){"exp_avg", LS_STATE_ANY};
    return 1;
}

static ls_status lion_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                           const ls_run *run, double learning_rate, double weight_decay) {
    return kernels->lion(stream, &(ls_lion_step){
                                     .dtype = run->dtype,
                                     .count = run->count,
                                     .parameter = run->parameter,
                                     .gradient = run->gradient,
                                     .average = run->state[0],
                                     .learning_rate = learning_rate,
                                     .beta1 = optimizer->options.lion.beta1,
                                     .beta2 = optimizer->options.lion.beta2,
                                     .weight_decay = weight_decay,
                                 });
}

static double *lion_momentum(ls_optimizer *optimizer) {
    return &optimizer->options.lion.beta1;
}

static const ls_field fields[] = {LS_FIELD(ls_lion_options, beta1), LS_FIELD(ls_lion_options, beta2), {.name = NULL}};

ls_optimizer *ls_lion(ls_module *model, const ls_lion_options *options) {
    static const ls_optimizer_type type = {
        .name = "ls_lion", .fields = fields, .states = lion_states, .step = lion_step, .momentum = lion_momentum};
    ls_lion_options given = options != NULL ? *options : (ls_lion_options){0};
    if (ls_adam_check("ls_lion", &given.beta1, &given.beta2, 0.99) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.lion = given,
                                            .learning_rate = ls_option(given.learning_rate, 1e-4),
                                            .weight_decay = given.weight_decay},
                            model);
}
