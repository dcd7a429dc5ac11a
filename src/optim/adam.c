#include <math.h>

#include "optim/optimizer.h"

int ls_adam_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    (void)optimizer;
    words[0] = (ls_state_word){"exp_avg", LS_STATE_ANY};
    words[1] = (ls_state_word){"exp_avg_sq", LS_STATE_NOT_NEGATIVE};
    return 2;
}

static int adam_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]) {
    words[2] = (ls_state_word){"max_exp_avg_sq", LS_STATE_NOT_NEGATIVE};
    return ls_adam_states(optimizer, words) + (optimizer->options.adam.amsgrad ? 1 : 0);
}

ls_adam_step ls_adam_step_of(const ls_run *run, double beta1, double beta2, double epsilon) {
    return (ls_adam_step){.dtype = run->dtype,
                          .count = run->count,
                          .parameter = run->parameter,
                          .gradient = run->gradient,
                          .first_moment = run->state[0],
                          .second_moment = run->state[1],
                          .beta1 = beta1,
                          .beta2 = beta2,
                          .epsilon = epsilon};
}

static ls_status adam_step(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream,
                           const ls_run *run, double learning_rate, double weight_decay) {
    const ls_adam_options *options = &optimizer->options.adam;
    ls_adam_step step = ls_adam_step_of(run, options->beta1, options->beta2, options->epsilon);
    step.largest_second_moment = run->state[2];
    step.parameter_decay = optimizer->decoupled ? learning_rate * weight_decay : 0;
    step.gradient_decay = optimizer->decoupled ? 0 : weight_decay;
    step.rate = learning_rate / (1 - pow(options->beta1, (double)run->t));
    step.root = 1 / sqrt(1 - pow(options->beta2, (double)run->t));
    return kernels->adam(stream, &step);
}

static double *adam_momentum(ls_optimizer *optimizer) {
    return &optimizer->options.adam.beta1;
}

ls_status ls_adam_check(const char *call, double *beta1, double *beta2, double usual_beta2) {
    const double below_one = nextafter(1, 0);
    *beta1 = ls_option(*beta1, 0.9);
    *beta2 = ls_option(*beta2, usual_beta2);
    LS_TRY(ls_option_within(call, "beta1", *beta1, 0, below_one));
    return ls_option_within(call, "beta2", *beta2, 0, below_one);
}

ls_status ls_adam_check_all(const char *call, double *beta1, double *beta2, double *epsilon, double usual_epsilon) {
    *epsilon = ls_option(*epsilon, usual_epsilon);
    LS_TRY(ls_adam_check(call, beta1, beta2, 0.999));
    return ls_option_within(call, "epsilon", *epsilon, 0, INFINITY);
}

static ls_optimizer *adam_new(const char *call, const ls_optimizer_type *type, bool decoupled, ls_module *model,
                              const ls_adam_options *options) {
    ls_adam_options given = options != NULL ? *options : (ls_adam_options){0};
    given.weight_decay = ls_option(given.weight_decay, decoupled ? 0.01 : 0);
    if (ls_adam_check_all(call, &given.beta1, &given.beta2, &given.epsilon, 1e-8) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = type,
                                            .options.adam = given,
                                            .decoupled = decoupled,
                                            .learning_rate = ls_option(given.learning_rate, 1e-3),
                                            .weight_decay = given.weight_decay},
                            model);
}

static const ls_field fields[] = {LS_FIELD(ls_adam_options, beta1),
                                  LS_FIELD(ls_adam_options, beta2),
                                  LS_FIELD(ls_adam_options, epsilon),
                                  LS_FIELD(ls_adam_options, amsgrad),
                                  {.name = NULL}};

ls_optimizer *ls_adam(ls_module *model, const ls_adam_options *options) {
    static const ls_optimizer_type type = {
        .name = "ls_adam", .fields = fields, .states = adam_states, .step = adam_step, .momentum = adam_momentum};
    return adam_new("ls_adam", &type, false, model, options);
}

ls_optimizer *ls_adamw(ls_module *model, const ls_adam_options *options) {
    static const ls_optimizer_type type = {
        .name = "ls_adamw", .fields = fields, .states = adam_states, .step = adam_step, .momentum = adam_momentum};
    return adam_new("ls_adamw", &type, true, model, options);
}
