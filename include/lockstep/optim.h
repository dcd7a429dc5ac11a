/**
 * @file optim.h
 * Optimizers: how gradients change parameters. Formulas, defaults and the order of operations are PyTorch's. Where zero
 * means a default, LS_ZERO means zero: beta1 of Adam, the learning rate of a group that is frozen.
 */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/formats.h>
#include <lockstep/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An optimizer with its state. It lends the model's parameters: free it before the model. Opaque. */
typedef struct ls_optimizer ls_optimizer;

/** g += weight_decay p; v = momentum v + (1 - dampening) g; p -= learning_rate (nesterov ? g + momentum v : v). */
typedef struct ls_sgd_options {
    double learning_rate; /**< 0: 1e-3 */
    double momentum;
    double dampening;
    double weight_decay;
    bool nesterov;
} ls_sgd_options;

/** Kingma and Ba, arXiv 1412.6980: p -= learning_rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon). */
typedef struct ls_adam_options {
    double learning_rate; /**< 0: 1e-3 */
    double beta1;         /**< 0: 0.9 */
    double beta2;         /**< 0: 0.999 */
    double epsilon;       /**< 0: 1e-8 */
    double weight_decay;  /**< of ls_adam, added to the gradient; of ls_adamw, decoupled (0 there: 0.01) */
    bool no_weight_decay; /**< ls_adamw without decay */
    bool amsgrad;
} ls_adam_options;

/** Hinton's RMSprop: v = alpha v + (1 - alpha) g^2; p -= learning_rate g / (sqrt(v) + epsilon). */
typedef struct ls_rmsprop_options {
    double learning_rate; /**< 0: 1e-2 */
    double alpha;         /**< 0: 0.99 */
    double epsilon;       /**< 0: 1e-8 */
    double momentum;
    double weight_decay;
    bool centered;
} ls_rmsprop_options;

/** Duchi et al., JMLR 2011: s += g^2; p -= learning_rate / (1 + (t - 1) learning_rate_decay) g / (sqrt(s) + epsilon).
 */
typedef struct ls_adagrad_options {
    double learning_rate; /**< 0: 1e-2 */
    double learning_rate_decay;
    double weight_decay;
    double initial_sum;
    double epsilon; /**< 0: 1e-10 */
} ls_adagrad_options;

/**
 * Limited-memory BFGS (Nocedal and Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5): quasi-Newton
 * directions from the last `history_size` steps. All fields mean what PyTorch's LBFGS means by them; zero is its
 * default, and a tolerance of LS_ZERO ends a step only where nothing changes. It steps by ls_optimizer_step_closure and
 * takes parameters of one dtype in one group without weight decay.
 */
typedef struct ls_lbfgs_options {
    double learning_rate;      /**< length of a fixed step, and what a search tries first; 0: 1 */
    int history_size;          /**< 0: 100; each takes twice the memory of the parameters */
    int max_iterations;        /**< directions taken per step; 0: 20 */
    int max_evaluations;       /**< per step, looked at after each direction; 0: 5/4 max_iterations */
    double tolerance_gradient; /**< done when no element of the gradient is larger; 0: 1e-7 */
    double tolerance_change;   /**< done when neither loss nor any parameter changes by more; 0: 1e-9 */
    bool strong_wolfe;         /**< search along each direction for a point that meets the strong Wolfe conditions */
} ls_lbfgs_options;

/** How a conjugate direction remembers the one before: the method's beta. */
typedef enum ls_conjugate_formula { LS_POLAK_RIBIERE = 0, LS_FLETCHER_REEVES } ls_conjugate_formula;

/**
 * Nonlinear conjugate gradients (Nocedal and Wright, algorithm 5.4), for when there is no memory for the history of
 * ls_lbfgs; always with its search, made tighter. It goes back to steepest descent after `restart_every` directions,
 * where gradients are far from orthogonal (5.52) and where a direction does not descend. The other fields, how it steps
 * and what it takes are as in ls_lbfgs.
 */
typedef struct ls_conjugate_gradient_options {
    ls_conjugate_formula formula; /**< zero: Polak and Ribiere's, never below 0 (5.44, 5.45) */
    double learning_rate;         /**< scales the first trial step; 0: 1 */
    int restart_every;            /**< 0: as many as there are numbers in the parameters */
    int max_iterations;           /**< 0: 20 */
    int max_evaluations;          /**< 0: 5/2 max_iterations */
    double tolerance_gradient;    /**< 0: 1e-7 */
    double tolerance_change;      /**< 0: 1e-9 */
} ls_conjugate_gradient_options;

/**
 * An optimizer of all parameters of `model` (lent), in one group. With `model` NULL it begins without groups:
 * ls_optimizer_add_group gives them. `options` may be NULL. NULL and an error when an option is out of range.
 */
LS_API ls_optimizer *ls_sgd(ls_module *model, const ls_sgd_options *options);
/** As ls_sgd, by ls_adam_options. */
LS_API ls_optimizer *ls_adam(ls_module *model, const ls_adam_options *options);
/** As ls_adam, with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101). */
LS_API ls_optimizer *ls_adamw(ls_module *model, const ls_adam_options *options);
/** As ls_sgd, by ls_rmsprop_options. */
LS_API ls_optimizer *ls_rmsprop(ls_module *model, const ls_rmsprop_options *options);
/** As ls_sgd, by ls_adagrad_options. */
LS_API ls_optimizer *ls_adagrad(ls_module *model, const ls_adagrad_options *options);
/** As ls_sgd, by ls_lbfgs_options. */
LS_API ls_optimizer *ls_lbfgs(ls_module *model, const ls_lbfgs_options *options);
/** As ls_sgd, by ls_conjugate_gradient_options. */
LS_API ls_optimizer *ls_conjugate_gradient(ls_module *model, const ls_conjugate_gradient_options *options);

/** What a group of parameters does differently from the optimizer's options. */
typedef struct ls_group_options {
    double learning_rate; /**< 0: the optimizer's */
    double weight_decay;  /**< 0: the optimizer's */
    bool no_weight_decay;
} ls_group_options;

/** Adds a group of `count` parameters (lent). A parameter may be in one group only. */
LS_API ls_status ls_optimizer_add_group(ls_optimizer *optimizer, ls_tensor *const *parameters, int count,
                                        const ls_group_options *options) LS_WARN_UNUSED;
/** The number of groups. */
LS_API int ls_optimizer_group_count(const ls_optimizer *optimizer);
/** A group's learning rate; 0 out of range. */
LS_API double ls_optimizer_learning_rate(const ls_optimizer *optimizer, int group);
/** Sets the learning rate of a group, or of all with group -1. */
LS_API ls_status ls_optimizer_set_learning_rate(ls_optimizer *optimizer, int group,
                                                double learning_rate) LS_WARN_UNUSED;

/**
 * Changes every parameter that has a gradient; the others are left alone. LS_ERR_STATE for the methods that must
 * evaluate the loss themselves: ls_lbfgs, ls_conjugate_gradient.
 */
LS_API ls_status ls_optimizer_step(ls_optimizer *optimizer) LS_WARN_UNUSED;

/**
 * Evaluates the loss at the parameters as they are: goes backwards from it and stores its value in `*loss`. It is
 * called in a scope of its own, with recording on and the gradients of the optimizer's parameters forgotten.
 */
typedef ls_status (*ls_closure)(void *argument, double *loss);

/**
 * One step of an optimizer that may evaluate the loss, by `closure(argument, ...)`, as often as it needs: ls_lbfgs and
 * ls_conjugate_gradient go through up to max_iterations directions, any other evaluates once and does
 * ls_optimizer_step. `*loss` (may be NULL) is the loss before the step. On many ranks the closure must leave the same
 * loss and gradients on all of them (ls_allreduce); they then take the same steps. LS_ERR_STATE when the loss is not
 * finite. After a failure the parameters are where the search in which it came began, or, with fixed steps, where the
 * loss was evaluated last.
 */
LS_API ls_status ls_optimizer_step_closure(ls_optimizer *optimizer, ls_closure closure, void *argument,
                                           double *loss) LS_WARN_UNUSED;
/** Forgets the gradients of all parameters of all groups. */
LS_API void ls_optimizer_zero_grad(ls_optimizer *optimizer);
/**
 * What the optimizer remembers from step to step, as named tensors, to be saved beside the parameters. They are lent,
 * and are the memory that it works with: good until it next steps, is given a group or a state, is asked again or is
 * freed. Words are PyTorch's. "param_groups.0.lr" (f64) of each group; behind each parameter's name in the model that
 * the optimizer was made for (behind its number, counted over all groups, where groups were added) "step" (i64) and
 * momentum_buffer (ls_sgd, ls_rmsprop), exp_avg, exp_avg_sq, max_exp_avg_sq (ls_adam, ls_adamw), square_avg, grad_avg
 * (ls_rmsprop), sum (ls_adagrad): "0.weight.exp_avg". ls_lbfgs and ls_conjugate_gradient have vectors of all
 * parameters, each of which begins at a multiple of 64 bytes: d, prev_flat_grad, and, the oldest first, old_stps.0,
 * old_dirs.0.
 */
LS_API ls_status ls_optimizer_state(ls_optimizer *optimizer, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/**
 * Has the optimizer remember what one of the same kind, options and parameters did, copied from the tensors: with the
 * parameters of that time it goes on as that one would have, bit by bit. The names, shapes and dtypes must be exactly
 * those that it can have, counters and averages of squares not negative, and all numbers finite; otherwise nothing is
 * changed and the error names the first difference.
 */
LS_API ls_status ls_optimizer_set_state(ls_optimizer *optimizer, const ls_named *tensors, int count) LS_WARN_UNUSED;
/** Writes ls_optimizer_state as a safetensors file, as ls_safetensors_save does. */
LS_API ls_status ls_optimizer_save(ls_optimizer *optimizer, const char *path,
                                   const char *const *metadata) LS_WARN_UNUSED;
/** ls_optimizer_set_state from a safetensors file. */
LS_API ls_status ls_optimizer_load(ls_optimizer *optimizer, const char *path) LS_WARN_UNUSED;

/** Frees it; the parameters stay. NULL is allowed. */
LS_API void ls_optimizer_free(ls_optimizer *optimizer);

/**
 * Scales all gradients of the model so that their common Euclidean norm is at most `max_norm`. `*norm` (may be NULL) is
 * the norm before. LS_ERR_ARGUMENT when max_norm is not positive. Of a model that is divided over ranks (ls_pipeline,
 * ls_nn_column_parallel and its kin) it is the norm of the whole model, the same bits on all of them, and a collective
 * call.
 */
LS_API ls_status ls_clip_grad_norm(ls_module *model, double max_norm, double *norm) LS_WARN_UNUSED;
/** Holds every gradient element within [-limit, limit]. */
LS_API ls_status ls_clip_grad_value(ls_module *model, double limit) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
