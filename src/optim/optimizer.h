/*
 * optim: optimizers, schedules, averages and clipping. This header: the frame that all optimizers share. An optimizer
 * is one `static const ls_optimizer_type` row; the frame keeps groups, gathers parameters that lie side by side into
 * runs and calls `step` once per run.
 */
#ifndef LS_OPTIM_OPTIMIZER_H
#define LS_OPTIM_OPTIMIZER_H

#include <lockstep/optim.h>

#include "autograd/op.h"
#include "base/describe.h"
#include "base/option.h"
#include "base/status.h"

#define LS_OPTIMIZER_STATES 3

/* Parameters with gradients side by side in memory, updated by one kernel call. */
typedef struct ls_run {
    ls_dtype dtype;
    int64_t count;
    const ls_tensor *tensor; /* the first of them */
    void *parameter;
    const void *gradient;
    void *state[LS_OPTIMIZER_STATES];
    bool first;     /* its first step: the state is as it was initialised */
    int64_t t;      /* the number of this step, from 1 */
    double product; /* of the type's product_factor of all steps, this one included */
} ls_run;

typedef struct ls_parameter_group ls_parameter_group;

/* What numbers a state may have: finite ones, and of 64-bit integers, which are counters, 0 to 2^53; unchecked are
 * those of a model's buffers, which may be -inf, in a mask, say. */
typedef enum ls_state_range { LS_STATE_ANY = 0, LS_STATE_NOT_NEGATIVE, LS_STATE_UNCHECKED } ls_state_range;

/* What PyTorch calls a state buffer, and what it may hold. */
typedef struct ls_state_word {
    const char *word;
    ls_state_range range;
} ls_state_word;

/* Named tensors over what an optimizer remembers. */
typedef struct ls_state_list {
    ls_named *items;
    char **names;           /* of the items */
    ls_state_range *ranges; /* of the items */
    int count;
} ls_state_list;

typedef struct ls_optimizer_type {
    const char *name; /* as in messages: "ls_sgd" */
    /* Of the options, but for learning_rate and weight_decay, which are a group's. */
    const ls_field *fields;
    /* How many state buffers a run needs, under these options. */
    int (*states)(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]);
    /* What they hold before the first step. */
    double (*state_start)(const ls_optimizer *optimizer);
    ls_status (*step)(const ls_optimizer *optimizer, const ls_kernels *kernels, ls_stream *stream, const ls_run *run,
                      double learning_rate, double weight_decay);
    /* Where its momentum is; NULL when it was made without. The row may have none. */
    double *(*momentum)(ls_optimizer *optimizer);
    bool one_by_one; /* a run is one parameter: the method looks at it as a whole */
    /* What each step multiplies into a product that goes with each parameter, and what PyTorch calls that; NULL: none.
     */
    double (*product_factor)(const ls_optimizer *optimizer, int64_t t);
    const char *product_word;

    /* Methods that evaluate the loss themselves have these in place of the three above. */
    ls_status (*step_closure)(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss);
    /* Refuses a group, not yet among the optimizer's, that the method cannot work on. */
    ls_status (*check_group)(const ls_optimizer *optimizer, const ls_parameter_group *group);
    /* Adds what the method remembers in optimizer->descent. */
    ls_status (*list)(ls_optimizer *optimizer, ls_state_list *list);
    /* Makes optimizer->descent such that `list` will add tensors like those given, if they can be its own. */
    ls_status (*make_room)(const char *call, ls_optimizer *optimizer, const ls_named *given, int count);
    /* Frees what the method remembers. */
    void (*forget)(ls_optimizer *optimizer);
} ls_optimizer_type;

/* One parameter of a group. Its state lies in the group's state buffers at `offset` bytes. */
typedef struct ls_optimizer_slot {
    ls_tensor *parameter; /* lent */
    size_t offset;
    int64_t t; /* steps taken */
    double product;
} ls_optimizer_slot;

struct ls_parameter_group {
    const ls_optimizer *by; /* whose method and options step it: the group's own optimizer, or that one's `others` */
    double learning_rate;
    double weight_decay;
    ls_optimizer_slot *slots;
    int count;
    const ls_device *device;          /* of all parameters, and of the states */
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
        ls_adadelta_options adadelta;
        ls_nadam_options nadam;
        ls_radam_options radam;
        ls_lion_options lion;
        ls_lamb_options lamb;
        ls_muon_options muon;
        ls_lbfgs_options lbfgs;
        ls_conjugate_gradient_options conjugate_gradient;
    } options;
    bool decoupled; /* Adam's weight decay acts on the parameter */
    double learning_rate;
    double weight_decay;
    ls_parameter_group *groups;
    int group_count;
    bool stepped;           /* it has begun a step */
    ls_step_info last_step; /* what the last step with a closure did so far */
    ls_optimizer *others;   /* for parameters that are no matrices, where the method is for matrices; without groups */
    const ls_module *model; /* lent, for names; NULL when groups were added by hand */
    ls_state_list lent;     /* what ls_optimizer_state gave last */
    ls_comm *comm; /* borrowed: the ranks over which the parameters of ls_descent are sharded; NULL: not sharded */
    struct ls_descent *descent; /* what a method that evaluates the loss remembers; NULL before its first step */
};

/*
 * An optimizer with the options of `initial`, over the parameters of `model` if that is not NULL. It takes `others`
 * over, also when it fails.
 */
ls_optimizer *ls_optimizer_new(const ls_optimizer *initial, ls_module *model);

/* LS_ERR_STATE for an optimizer that was freed. */
ls_status ls_optimizer_check_here(const char *call, const ls_optimizer *optimizer);
/* Whether the parameter is in a group. */
bool ls_optimizer_has(const ls_optimizer *optimizer, const ls_tensor *parameter);

/* The type's check_group of methods that must see parameters as wholes: LS_ERR_UNSUPPORTED for parts of tensors. */
ls_status ls_group_check_whole(const ls_optimizer *optimizer, const ls_parameter_group *group);

/* Checks the betas of Adam and its kin, and sets those that were left zero; and with them epsilon, of those whose
 * second beta is usually 0.999. */
ls_status ls_adam_check(const char *call, double *beta1, double *beta2, double usual_beta2);
ls_status ls_adam_check_all(const char *call, double *beta1, double *beta2, double *epsilon, double usual_epsilon);
/* A step of Adam's kernel over the run, without decay, rate and root, which are to be set. */
ls_adam_step ls_adam_step_of(const ls_run *run, double beta1, double beta2, double epsilon);
/* The states of those that remember both moments: exp_avg and exp_avg_sq. */
int ls_adam_states(const ls_optimizer *optimizer, ls_state_word words[LS_OPTIMIZER_STATES]);

/*
 * The next run of slots from `*first` on: those up to `*last` have gradients and lie side by side, unless they are to
 * be taken one by one. False at the end.
 */
bool ls_group_next_run(const ls_parameter_group *group, bool one_by_one, int *first, int *last);

/* Whether the step of these gradients is to be skipped, as ls_grad_scaler_unscale found; NULL before that. */
bool *ls_grad_scaler_skips(const ls_grad_scaler *scaler, const ls_optimizer *optimizer);

/* LS_ERR_STATE where a parameter has moved away from its state. */
ls_status ls_group_check_device(const ls_optimizer *optimizer, const ls_parameter_group *group);

/* Evaluates the loss as ls_closure says, and counts the evaluation. */
ls_status ls_optimizer_evaluate(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss);

/* Adds the memory, which is the device's, as a tensor "OWNER.WORD", or "WORD" when the owner is "". */
ls_status ls_state_add(ls_state_list *list, const char *owner, ls_state_word word, ls_shape shape, ls_dtype dtype,
                       const ls_device *device, void *memory);
/* The tensor of that name; NULL when there is none. */
const ls_tensor *ls_state_find(const ls_named *tensors, int count, const char *name);
/* Writes a group's method with its options, and the group's rates, into `text`. */
void ls_optimizer_describe(const ls_optimizer *optimizer, int group, char *text, size_t size);

/* Frees the list. */
void ls_state_forget(ls_state_list *list);
/*
 * Copies the given tensors into those of the list, if they are just those and hold what they may; otherwise changes
 * nothing. `type` is what remembers them, as in messages.
 */
ls_status ls_state_restore(const char *call, const char *type, const ls_state_list *list, const ls_named *given,
                           int count);
/* LS_ERR_ARGUMENT where what `owner` (may be NULL) is to be given is NULL somewhere. */
ls_status ls_state_check_given(const char *call, const void *owner, const ls_named *given, int count);

#endif
