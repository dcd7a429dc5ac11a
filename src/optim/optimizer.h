/*
 * optim: optimizers and clipping. This header: the frame that all optimizers share. An optimizer is one `static const
 * ls_optimizer_type` row; the frame keeps groups, gathers parameters that lie side by side into runs and calls `step`
 * once per run.
 */
#ifndef LS_OPTIM_OPTIMIZER_H
#define LS_OPTIM_OPTIMIZER_H

#include <lockstep/optim.h>

#include "autograd/op.h"
#include "base/status.h"

#define LS_OPTIMIZER_STATES 3

/* Parameters with gradients side by side in memory, updated by one kernel call. */
typedef struct ls_run {
    ls_dtype dtype;
    int64_t count;
    void *parameter;
    const void *gradient;
    void *state[LS_OPTIMIZER_STATES];
    bool first; /* its first step: the state is as it was initialised */
    int64_t t;  /* the number of this step, from 1 */
} ls_run;

typedef struct ls_group ls_group;

typedef struct ls_optimizer_type {
    const char *name; /* as in messages: "ls_sgd" */
    /* How many state buffers a run needs, under these options. */
    int (*state_count)(const ls_optimizer *optimizer);
    /* What they hold before the first step. */
    double (*state_start)(const ls_optimizer *optimizer);
    ls_status (*step)(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream, const ls_run *run,
                      double learning_rate, double weight_decay);

    /* Methods that evaluate the loss themselves have these in place of the three above. */
    ls_status (*step_closure)(ls_optimizer *optimizer, ls_closure closure, void *argument, double *loss);
    /* Refuses a group, not yet among the optimizer's, that the method cannot work on. */
    ls_status (*check_group)(const ls_optimizer *optimizer, const ls_group *group);
    /* Frees what the method remembers. */
    void (*forget)(ls_optimizer *optimizer);
} ls_optimizer_type;

/* One parameter of a group. Its state lies in the group's state buffers at `offset` bytes. */
typedef struct ls_slot {
    ls_tensor *parameter; /* lent */
    size_t offset;
    int64_t t; /* steps taken */
} ls_slot;

struct ls_group {
    double learning_rate;
    double weight_decay;
    ls_slot *slots;
    int count;
    size_t bytes;                     /* of a block that has a place for every slot, gaps included */
    char *state[LS_OPTIMIZER_STATES]; /* one such block each */
};

struct ls_optimizer {
    const ls_optimizer_type *type;
    union {
        ls_sgd_options sgd;
        ls_adam_options adam;
        ls_rmsprop_options rmsprop;
        ls_adagrad_options adagrad;
        ls_lbfgs_options lbfgs;
        ls_conjugate_gradient_options conjugate_gradient;
    } options;
    bool decoupled; /* Adam's weight decay acts on the parameter */
    double learning_rate;
    double weight_decay;
    ls_group *groups;
    int group_count;
    struct ls_descent *descent; /* what a method that evaluates the loss remembers; NULL before its first step */
};

/*
 * An optimizer with the options of `initial`, over the parameters of `model` if that is not NULL.
 */
ls_optimizer *ls_optimizer_new(const ls_optimizer *initial, ls_module *model);

/* Evaluates the loss as ls_closure says. */
ls_status ls_optimizer_evaluate(ls_optimizer *optimizer, ls_closure closure, void *argument, double *loss);

/* Checks that an option lies in [low, high]; the message names call and option. */
ls_status ls_option_within(const char *call, const char *option, double value, double low, double high);

#endif
