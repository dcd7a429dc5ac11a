/* Every optimization method, with every variant of its state, for tests that treat all methods alike. */
#ifndef LS_TESTS_SUPPORT_OPTIMIZERS_H
#define LS_TESTS_SUPPORT_OPTIMIZERS_H

#include <lockstep/optim.h>

enum {
    OPTIMIZER_SGD,
    OPTIMIZER_MOMENTUM,
    OPTIMIZER_ADAM,
    OPTIMIZER_AMSGRAD,
    OPTIMIZER_ADAMW,
    OPTIMIZER_RMSPROP,
    OPTIMIZER_RMSPROP_MOMENTUM,
    OPTIMIZER_RMSPROP_CENTERED,
    OPTIMIZER_ADAGRAD,
    OPTIMIZER_ADADELTA,
    OPTIMIZER_NADAM,
    OPTIMIZER_RADAM,
    OPTIMIZER_LION,
    OPTIMIZER_LAMB,
    OPTIMIZER_MUON,
    OPTIMIZERS_OF_ONE_PASS, /* the following methods evaluate the loss more than once per step */
    OPTIMIZER_LBFGS = OPTIMIZERS_OF_ONE_PASS,
    OPTIMIZER_LBFGS_SEARCH,
    OPTIMIZER_CONJUGATE_GRADIENT,
    OPTIMIZERS
};

/* The number of vector pairs that each variant of L-BFGS keeps. */
enum { OPTIMIZERS_PAIRS = 5, OPTIMIZERS_SEARCH_PAIRS = 7 };

static const char *const optimizer_names[OPTIMIZERS] = {
    [OPTIMIZER_SGD] = "sgd",
    [OPTIMIZER_MOMENTUM] = "sgd with momentum",
    [OPTIMIZER_ADAM] = "adam",
    [OPTIMIZER_AMSGRAD] = "amsgrad",
    [OPTIMIZER_ADAMW] = "adamw",
    [OPTIMIZER_RMSPROP] = "rmsprop",
    [OPTIMIZER_RMSPROP_MOMENTUM] = "rmsprop with momentum",
    [OPTIMIZER_RMSPROP_CENTERED] = "centered rmsprop",
    [OPTIMIZER_ADAGRAD] = "adagrad",
    [OPTIMIZER_ADADELTA] = "adadelta",
    [OPTIMIZER_NADAM] = "nadam",
    [OPTIMIZER_RADAM] = "radam",
    [OPTIMIZER_LION] = "lion",
    [OPTIMIZER_LAMB] = "lamb",
    [OPTIMIZER_MUON] = "muon",
    [OPTIMIZER_LBFGS] = "lbfgs",
    [OPTIMIZER_LBFGS_SEARCH] = "lbfgs with line search",
    [OPTIMIZER_CONJUGATE_GRADIENT] = "conjugate gradient",
};

/* Returns ownership of a new optimizer of this kind, such as OPTIMIZER_ADAM. */
static inline ls_optimizer *optimizer_make(int kind, ls_module *model) {
    switch (kind) {
    case OPTIMIZER_SGD:
        return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05});
    case OPTIMIZER_MOMENTUM:
        return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9, .nesterov = true});
    case OPTIMIZER_ADAM:
        return ls_adam(model, NULL);
    case OPTIMIZER_AMSGRAD:
        return ls_adam(model, &(ls_adam_options){.amsgrad = true, .weight_decay = 0.1});
    case OPTIMIZER_ADAMW:
        return ls_adamw(model, NULL);
    case OPTIMIZER_RMSPROP:
        return ls_rmsprop(model, NULL);
    case OPTIMIZER_RMSPROP_MOMENTUM:
        return ls_rmsprop(model, &(ls_rmsprop_options){.momentum = 0.9});
    case OPTIMIZER_RMSPROP_CENTERED:
        return ls_rmsprop(model, &(ls_rmsprop_options){.momentum = 0.9, .centered = true});
    case OPTIMIZER_ADAGRAD:
        return ls_adagrad(model, &(ls_adagrad_options){.initial_sum = 0.1, .learning_rate_decay = 0.1});
    case OPTIMIZER_ADADELTA:
        return ls_adadelta(model, NULL);
    case OPTIMIZER_NADAM:
        return ls_nadam(model, &(ls_nadam_options){.momentum_decay = 0.3});
    case OPTIMIZER_RADAM:
        return ls_radam(model, &(ls_radam_options){.beta2 = 0.9});
    case OPTIMIZER_LION:
        return ls_lion(model, NULL);
    case OPTIMIZER_LAMB:
        return ls_lamb(model, NULL);
    case OPTIMIZER_MUON:
        return ls_muon(model, &(ls_muon_options){.learning_rate = 0.02});
    case OPTIMIZER_LBFGS:
        return ls_lbfgs(
            model, &(ls_lbfgs_options){.max_iterations = 3, .history_size = OPTIMIZERS_PAIRS, .learning_rate = 0.1});
    case OPTIMIZER_LBFGS_SEARCH:
        return ls_lbfgs(model, &(ls_lbfgs_options){
                                   .max_iterations = 3, .history_size = OPTIMIZERS_SEARCH_PAIRS, .strong_wolfe = true});
    default:
        return ls_conjugate_gradient(model, &(ls_conjugate_gradient_options){.max_iterations = 3});
    }
}

#endif
