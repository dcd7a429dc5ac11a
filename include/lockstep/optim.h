/**
 * @file optim.h
 * Optimizers, how gradients change parameters, and schedules of their learning rates. Formulas, defaults and the order
 * of operations are PyTorch's. Where zero means a default, LS_ZERO means zero: beta1 of Adam, the learning rate of a
 * group that is frozen.
 */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/comm.h>
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
    double weight_decay;  /**< of ls_adam, added to the gradient; of ls_adamw, decoupled (0: 0.01, LS_ZERO: no decay) */
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
 * Zeiler, arXiv 1212.5701: v = rho v + (1 - rho) g^2; d = sqrt(u + epsilon) / sqrt(v + epsilon) g;
 * u = rho u + (1 - rho) d^2; p -= learning_rate d.
 */
typedef struct ls_adadelta_options {
    double learning_rate; /**< 0: 1 */
    double rho;           /**< 0: 0.9 */
    double epsilon;       /**< 0: 1e-6 */
    double weight_decay;
} ls_adadelta_options;

/**
 * Dozat, Incorporating Nesterov Momentum into Adam (2016): Adam with mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2)
 * and M(t) = mu(1) ... mu(t): p -= learning_rate ((1 - mu(t)) / (1 - M(t)) g + mu(t + 1) / (1 - M(t + 1)) m) / (sqrt(v
 * / (1 - beta2^t)) + epsilon).
 */
typedef struct ls_nadam_options {
    double learning_rate;  /**< 0: 2e-3 */
    double beta1;          /**< 0: 0.9 */
    double beta2;          /**< 0: 0.999 */
    double epsilon;        /**< 0: 1e-8 */
    double momentum_decay; /**< 0: 4e-3 */
    double weight_decay;   /**< added to the gradient */
    bool decoupled;        /**< weight decay as in ls_adamw */
} ls_nadam_options;

/**
 * Liu et al., arXiv 1908.03265: Adam whose steps are scaled by how much its second moment can be relied on; for the
 * first steps, where that is not at all, p -= learning_rate m / (1 - beta1^t).
 */
typedef struct ls_radam_options {
    double learning_rate; /**< 0: 1e-3 */
    double beta1;         /**< 0: 0.9 */
    double beta2;         /**< 0: 0.999 */
    double epsilon;       /**< 0: 1e-8 */
    double weight_decay;  /**< added to the gradient */
    bool decoupled;       /**< weight decay as in ls_adamw */
} ls_radam_options;

/**
 * Chen et al., arXiv 2302.06675, algorithm 2: p -= learning_rate (sign(beta1 m + (1 - beta1) g) + weight_decay p);
 * m = beta2 m + (1 - beta2) g. Its learning rate is a third to a tenth of Adam's, its weight decay as much larger.
 */
typedef struct ls_lion_options {
    double learning_rate; /**< 0: 1e-4 */
    double beta1;         /**< 0: 0.9 */
    double beta2;         /**< 0: 0.99 */
    double weight_decay;
} ls_lion_options;

/**
 * You et al., arXiv 1904.00962, algorithm 2, for large batches: with r the direction of Adam plus weight_decay p,
 * p -= learning_rate |p| / |r| r, where the norms are those of each parameter, and their quotient 1 where one is 0.
 * Parameters that are divided over ranks (ls_nn_column_parallel) are refused.
 */
typedef struct ls_lamb_options {
    double learning_rate; /**< 0: 1e-3 */
    double beta1;         /**< 0: 0.9 */
    double beta2;         /**< 0: 0.999 */
    double epsilon;       /**< 0: 1e-6 */
    double weight_decay;  /**< 0: 0.01 */
} ls_lamb_options;

/** How ls_muon's learning rate goes with the shape of a matrix. */
typedef enum ls_muon_rates {
    LS_MUON_ORIGINAL = 0, /**< times sqrt(max(1, rows / columns)) */
    LS_MUON_AS_ADAMW,     /**< times 0.2 sqrt(max(rows, columns)): steps as large as ls_adamw's, "match_rms_adamw" */
} ls_muon_rates;

/**
 * Jordan et al., Muon: An optimizer for hidden layers in neural networks (2024), as PyTorch has it: momentum whose
 * matrix is made nearly orthogonal, by `iterations` of X = a X + (b X X^T + c (X X^T)^2) X from X = M / |M|, in the
 * dtype of the parameter (PyTorch: in bf16). p -= learning_rate weight_decay p, p -= adjusted learning_rate X.
 *
 * It is for matrices: of a model it takes the parameters of two dimensions in group 0, and all others go to ls_adamw in
 * group 1. Of ls_optimizer_add_group a group without a matrix is ls_adamw's, and one that is asked for with `.adamw`:
 * embeddings and the last layer do better there. Divided parameters are refused as in ls_lamb.
 *
 * A step takes 2 n m^2 + m^3 multiplications per iteration and matrix [m, n], m the smaller side, in one thread, and
 * memory for two such matrices and two [m, m].
 */
typedef struct ls_muon_options {
    double learning_rate; /**< 0: 1e-3 */
    double weight_decay;  /**< 0: 0.1 */
    double momentum;      /**< 0: 0.95 */
    double a, b, c;       /**< all 0: 3.4445, -4.7750, 2.0315 */
    double epsilon;       /**< the least |M|; 0: 1e-7 */
    int iterations;       /**< to 99; 0: 5 */
    ls_muon_rates rates;
    bool no_nesterov;
    ls_adam_options adamw; /**< for the parameters that are no matrices */
} ls_muon_options;

/**
 * Limited-memory BFGS (Nocedal and Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5): quasi-Newton
 * directions from the last `history_size` steps. All fields mean what PyTorch's LBFGS means by them; zero is its
 * default, and a tolerance of LS_ZERO ends a step only where nothing changes. It steps by ls_optimizer_step_closure and
 * takes parameters of one dtype in one group without weight decay.
 *
 * Set `comm` if the parameters are sharded over ranks (a field split over the ranks of a solver, say), so that each
 * rank has its own part. All inner products and norms are then sums over all parts, and every rank takes the same step.
 * Without it, each rank uses the inner products of its own part: the ranks take different steps, and the fit is wrong
 * without an error. Leave it NULL if every rank has all parameters (replicas).
 *
 * With `comm`, steps are collective over it, the closure must give every rank the same loss (ls_allreduce), and every
 * rank must have at least one parameter, which may be empty. LS_ERR_MISMATCH if the losses differ. If a rank has no
 * parameters, or if the closure fails on it, the step fails on all ranks: this rank gets its own error, and the others
 * get LS_ERR_MISMATCH, which names the rank. A parameter that tensor parallelism shards is refused with
 * LS_ERR_UNSUPPORTED, because the model also has parameters that are replicas. The stages of a pipeline need `comm`:
 * LS_ERR_UNSUPPORTED without it.
 */
typedef struct ls_lbfgs_options {
    double learning_rate;      /**< length of a fixed step, and what a search tries first; 0: 1 */
    int history_size;          /**< 0: 100; each takes twice the memory of the parameters */
    int max_iterations;        /**< directions taken per step; 0: 20 */
    int max_evaluations;       /**< per step, looked at after each direction; 0: 5/4 max_iterations */
    double tolerance_gradient; /**< done when no element of the gradient is larger; 0: 1e-7 */
    double tolerance_change;   /**< done when neither loss nor any parameter changes by more; 0: 1e-9 */
    bool strong_wolfe;         /**< search along each direction for a point that meets the strong Wolfe conditions */
    ls_comm *comm;             /**< borrowed: the ranks over which the parameters are sharded; NULL: not sharded */
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
    ls_comm *comm;                /**< as in ls_lbfgs_options */
} ls_conjugate_gradient_options;

/**
 * Returns an optimizer of all parameters that `model` has at this time, in one group: add all layers first. Borrows the
 * model: free the optimizer first. With `model` NULL it begins without groups: ls_optimizer_add_group gives them.
 * `options` may be NULL. NULL and an error when an option is out of range.
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
/** As ls_sgd, by ls_adadelta_options. */
LS_API ls_optimizer *ls_adadelta(ls_module *model, const ls_adadelta_options *options);
/** As ls_sgd, by ls_nadam_options. */
LS_API ls_optimizer *ls_nadam(ls_module *model, const ls_nadam_options *options);
/** As ls_sgd, by ls_radam_options. */
LS_API ls_optimizer *ls_radam(ls_module *model, const ls_radam_options *options);
/** As ls_sgd, by ls_lion_options. */
LS_API ls_optimizer *ls_lion(ls_module *model, const ls_lion_options *options);
/** As ls_sgd, by ls_lamb_options. */
LS_API ls_optimizer *ls_lamb(ls_module *model, const ls_lamb_options *options);
/** As ls_sgd, by ls_muon_options, in two groups. */
LS_API ls_optimizer *ls_muon(ls_module *model, const ls_muon_options *options);
/** As ls_sgd, by ls_lbfgs_options. */
LS_API ls_optimizer *ls_lbfgs(ls_module *model, const ls_lbfgs_options *options);
/** As ls_sgd, by ls_conjugate_gradient_options. */
LS_API ls_optimizer *ls_conjugate_gradient(ls_module *model, const ls_conjugate_gradient_options *options);

/** What a group of parameters does differently from the optimizer's options. */
typedef struct ls_group_options {
    double learning_rate; /**< 0: the optimizer's; LS_ZERO: 0 */
    double weight_decay;  /**< 0: the optimizer's; LS_ZERO: no decay */
    bool adamw;           /**< of ls_muon: this group is ls_adamw's, though it may have matrices */
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
/** The momentum of ls_sgd, ls_rmsprop and ls_muon, beta1 of ls_adam and its kin; 0 where there is none. */
LS_API double ls_optimizer_momentum(const ls_optimizer *optimizer);
/**
 * Sets that for all groups, between 0 and 1. LS_ERR_STATE for a method that has none, and for ls_sgd and ls_rmsprop
 * that were made without: they have no memory for it. It is not part of ls_optimizer_state.
 */
LS_API ls_status ls_optimizer_set_momentum(ls_optimizer *optimizer, double momentum) LS_WARN_UNUSED;

/**
 * Changes every parameter that has a gradient; the others are left alone. LS_ERR_STATE for the methods that must
 * evaluate the loss themselves: ls_lbfgs, ls_conjugate_gradient.
 */
LS_API ls_status ls_optimizer_step(ls_optimizer *optimizer) LS_WARN_UNUSED;

/**
 * Evaluates the loss at the parameters as they are: goes backwards from it and stores its value in `*loss`. It is
 * called in a scope of its own, with recording on and the gradients of the optimizer's parameters forgotten.
 */
typedef ls_status (*ls_closure)(void *user, double *loss);

/**
 * One step of an optimizer that may evaluate the loss, by `closure(user, ...)`, as often as it needs: ls_lbfgs and
 * ls_conjugate_gradient go through up to max_iterations directions, any other evaluates once and does
 * ls_optimizer_step. `*loss` (may be NULL) is the loss before the step. On several ranks, the closure must leave the
 * same loss on all of them (ls_allreduce), and the same gradients unless the parameters are sharded (`comm` of
 * ls_lbfgs_options); the ranks then take the same steps. LS_ERR_STATE when the loss is not finite. After a failure the
 * parameters are where the search in which it came began, or, with fixed steps, where the loss was evaluated last.
 */
LS_API ls_status ls_optimizer_step_closure(ls_optimizer *optimizer, ls_closure closure, void *user,
                                           double *loss) LS_WARN_UNUSED;

/** Why ls_optimizer_step_closure stopped. */
typedef enum ls_stop_reason {
    LS_STOP_NONE = 0, /**< there was no step yet */
    LS_STOP_FAILED,   /**< the step returned an error */
    LS_STOP_ONE_STEP, /**< the optimizer takes one step per call: all but ls_lbfgs and ls_conjugate_gradient */
    LS_STOP_GRADIENT, /**< converged: no element of the gradient is larger than tolerance_gradient */
    LS_STOP_CHANGE,   /**< converged: the last move changed the loss, or every parameter, by tolerance_change at most */
    LS_STOP_DIRECTION,   /**< the loss falls by tolerance_change at most along the direction */
    LS_STOP_ITERATIONS,  /**< max_iterations directions were taken */
    LS_STOP_EVALUATIONS, /**< max_evaluations was reached */
} ls_stop_reason;

/** What the last ls_optimizer_step_closure did. */
typedef struct ls_step_info {
    ls_stop_reason reason;
    int iterations;  /**< directions chosen; 1 for an optimizer that takes one step per call */
    int evaluations; /**< calls of the closure */
} ls_step_info;

/**
 * Returns what the last ls_optimizer_step_closure did, with LS_STOP_NONE before the first one and for NULL. After a
 * step that succeeded, it is the same on every rank if the loss and the gradients are.
 */
LS_API ls_step_info ls_optimizer_last_step(const ls_optimizer *optimizer);
/** Returns the reason in words: "max_iterations reached". */
LS_API const char *ls_stop_reason_name(ls_stop_reason reason);
/** Forgets the gradients of all parameters of all groups. */
LS_API void ls_optimizer_zero_grad(ls_optimizer *optimizer);
/**
 * What the optimizer remembers from step to step, as named tensors, to be saved beside the parameters. They are lent,
 * and are the memory that it works with: good until it next steps, is given a group or a state, is asked again or is
 * freed. Words are PyTorch's. "param_groups.0.lr" (f64) of each group; behind each parameter's name in the model that
 * the optimizer was made for (behind its number, counted over all groups, where groups were added) "step" (i64) and
 * momentum_buffer (ls_sgd, ls_rmsprop, ls_muon), exp_avg, exp_avg_sq, max_exp_avg_sq (ls_adam and its kin), mu_product
 * (f64, ls_nadam), square_avg, grad_avg (ls_rmsprop), acc_delta (ls_adadelta), sum (ls_adagrad): "0.weight.exp_avg".
 * ls_lbfgs and ls_conjugate_gradient have vectors of all parameters, each of which begins at a multiple of 64 bytes: d,
 * prev_flat_grad, and, the oldest first, old_stps.0, old_dirs.0.
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

/** Frees the optimizer; the parameters stay. NULL is allowed. A later call on the optimizer is LS_ERR_STATE. */
LS_API void ls_optimizer_free(ls_optimizer *optimizer);

/**
 * Sets the learning rates of an optimizer step by step. It lends the optimizer: free it before that. Opaque.
 *
 * ```c
 * ls_schedule *schedule = ls_schedule_warm_up(ls_schedule_cosine(optimizer, 900, 0), 100, 0.01);
 * // in every step of training, after the backward pass:
 * ls_status status = ls_optimizer_step(optimizer);
 * if (status == LS_OK) {
 *     status = ls_schedule_advance(schedule);
 * }
 * ```
 *
 * Formulas, defaults and the step at which a rate changes are those of torch.optim.lr_scheduler, in closed form: the
 * rates depend on the number of steps and on what the rates were when the schedule was made (`base` below, of each
 * group), so that ranks that advance alike have the same rates. A group whose base is 0 is frozen and stays so. A step
 * is whatever the caller advances at: a step of training, or an epoch.
 *
 * The constructors set the rates of step 0. They return NULL with an error when a number is out of range or the
 * optimizer is NULL. Groups that are added to the optimizer later are refused by ls_schedule_advance.
 */
typedef struct ls_schedule ls_schedule;

/** base gamma^floor(t / steps). `gamma` 0: 0.1. StepLR. */
LS_API ls_schedule *ls_schedule_step(ls_optimizer *optimizer, int64_t steps, double gamma);
/**
 * base gamma^(the number of milestones that are not after step t). `milestones` (copied) are in ascending order;
 * `gamma` 0: 0.1. MultiStepLR.
 */
LS_API ls_schedule *ls_schedule_multi_step(ls_optimizer *optimizer, const int64_t *milestones, int count, double gamma);
/** base gamma^t. ExponentialLR. */
LS_API ls_schedule *ls_schedule_exponential(ls_optimizer *optimizer, double gamma);
/**
 * minimum + (base - minimum) (1 + cos(pi t / steps)) / 2 (Loshchilov and Hutter, arXiv 1608.03983, without restarts).
 * After `steps` it rises again, as CosineAnnealingLR does.
 */
LS_API ls_schedule *ls_schedule_cosine(ls_optimizer *optimizer, int64_t steps, double minimum);
/**
 * The same paper's, with restarts: after `steps` it begins anew at base, over `multiplier` (0: 1) times as many steps
 * as before. CosineAnnealingWarmRestarts.
 */
LS_API ls_schedule *ls_schedule_cosine_warm_restarts(ls_optimizer *optimizer, int64_t steps, int64_t multiplier,
                                                     double minimum);
/** base times a factor that goes evenly from `start` (0: 1/3) to `end` (0: 1) in `steps`, and stays there. LinearLR. */
LS_API ls_schedule *ls_schedule_linear(ls_optimizer *optimizer, int64_t steps, double start, double end);
/** base (1 - min(t, steps) / steps)^power; `power` 0: 1. PolynomialLR. */
LS_API ls_schedule *ls_schedule_polynomial(ls_optimizer *optimizer, int64_t steps, double power);
/**
 * base factor(t, user). It is asked once for each group, must give the same for the same t, and gives a finite number
 * that is not negative; otherwise ls_schedule_advance fails. LambdaLR.
 */
LS_API ls_schedule *ls_schedule_function(ls_optimizer *optimizer, double (*factor)(int64_t step, void *user),
                                         void *user);

/**
 * One cycle (Smith and Topin, arXiv 1708.07120) of `steps`, which must be given: the rate rises from largest /
 * initial_divisor to the largest, and falls to largest / initial_divisor / final_divisor, while momentum falls from the
 * largest to the lowest and rises again. OneCycleLR.
 */
typedef struct ls_one_cycle_options {
    int64_t steps;
    double max_learning_rate; /**< of all groups that are not frozen; 0: base, of each group */
    double rising;            /**< the part of the steps in which the rate rises, to 1; 0: 0.3 */
    double initial_divisor;   /**< 0: 25 */
    double final_divisor;     /**< 0: 1e4 */
    double min_momentum;      /**< 0: 0.85 */
    double max_momentum;      /**< 0: 0.95 */
    bool three_phases;        /**< falls as long as it rose, then in a third phase to the end; rising is at most 0.5 */
    bool linear;              /**< straight lines in place of half waves of a cosine */
    bool no_momentum;         /**< leaves momentum alone: for methods without (ls_optimizer_set_momentum) */
} ls_one_cycle_options;

/** By the options. It has an end: ls_schedule_advance after `steps` is LS_ERR_STATE. */
LS_API ls_schedule *ls_schedule_one_cycle(ls_optimizer *optimizer, const ls_one_cycle_options *options);

/** What becomes of the height of the cycles of ls_schedule_cyclic. */
typedef enum ls_cycle_heights {
    LS_CYCLES_EQUAL = 0, /**< "triangular" */
    LS_CYCLES_HALVED,    /**< each is half as high as the one before: "triangular2" */
    LS_CYCLES_SHRINKING, /**< gamma^t as high: "exp_range" */
} ls_cycle_heights;

/**
 * Cycles (Smith, arXiv 1506.01186): the rate rises evenly from the lowest to the largest, which must be given, and
 * falls again, while momentum does the opposite. CyclicLR.
 */
typedef struct ls_cyclic_options {
    double min_learning_rate; /**< of all groups that are not frozen; 0: base, of each group */
    double max_learning_rate;
    int64_t steps_up;   /**< 0: 2000 */
    int64_t steps_down; /**< 0: steps_up */
    ls_cycle_heights heights;
    double gamma;        /**< of LS_CYCLES_SHRINKING; 0: 1 */
    double min_momentum; /**< 0: 0.8 */
    double max_momentum; /**< 0: 0.9 */
    bool no_momentum;    /**< leaves momentum alone: for methods without (ls_optimizer_set_momentum) */
} ls_cyclic_options;

/** By the options. */
LS_API ls_schedule *ls_schedule_cyclic(ls_optimizer *optimizer, const ls_cyclic_options *options);

/**
 * Multiplies the rates by `factor` when the metric of ls_schedule_advance_by has not become better more than `patience`
 * times in a row. Better is: less than best (1 - threshold). ReduceLROnPlateau.
 */
typedef struct ls_plateau_options {
    double factor;         /**< below 1; 0: 0.1 */
    int64_t patience;      /**< 0: 10 */
    double threshold;      /**< 0: 1e-4 */
    int64_t cooldown;      /**< so many metrics after a reduction are not counted */
    double minimum;        /**< of the rates */
    double epsilon;        /**< a rate that would change by no more is left; 0: 1e-8 */
    bool no_patience;      /**< reduces the first time that the metric is not better */
    bool larger_is_better; /**< better is: more than best (1 + threshold) */
    bool absolute;         /**< threshold is a difference: less than best - threshold, more than best + threshold */
} ls_plateau_options;

/** By the options, which may be NULL. It is advanced by ls_schedule_advance_by. */
LS_API ls_schedule *ls_schedule_plateau(ls_optimizer *optimizer, const ls_plateau_options *options);

/**
 * Puts `steps` in front of a schedule, in which its rates of step 0 are multiplied by a factor that goes evenly from
 * `start` (0 to 1) to 1; the schedule's own step 0 comes after them, as with LinearLR and then another in SequentialLR.
 * Takes the schedule and returns it; when it fails, which it also does on a schedule that has been advanced or has a
 * warm-up, the schedule is freed.
 */
LS_API ls_schedule *ls_schedule_warm_up(ls_schedule *schedule, int64_t steps, double start);

/**
 * Goes to the next step and sets its rates: scheduler.step() of PyTorch, after ls_optimizer_step. When it fails,
 * nothing is changed. LS_ERR_STATE of ls_schedule_plateau, which needs a metric.
 */
LS_API ls_status ls_schedule_advance(ls_schedule *schedule) LS_WARN_UNUSED;
/**
 * The same with a metric, at which only ls_schedule_plateau looks; no number (NaN) is not better. Ranks that are to
 * have the same rates must give the same metric: one that is reduced over them (ls_comm_allreduce, ls_trial_metric).
 */
LS_API ls_status ls_schedule_advance_by(ls_schedule *schedule, double metric) LS_WARN_UNUSED;

/**
 * What the schedule remembers, as named tensors, to be saved beside ls_optimizer_state. They are lent: good until it is
 * asked again, given a state or freed. Words are PyTorch's: last_epoch (i64, the number of steps) and base_lrs (f64, of
 * each group); of ls_schedule_plateau also best (f64), num_bad_epochs, cooldown_counter and reductions (i64).
 */
LS_API ls_status ls_schedule_state(ls_schedule *schedule, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/**
 * Has the schedule go on as one with the same constructor, numbers and groups did, with the same bits, and sets the
 * rates (and the momentum, where it does) of that step. Checked as in ls_optimizer_set_state.
 */
LS_API ls_status ls_schedule_set_state(ls_schedule *schedule, const ls_named *tensors, int count) LS_WARN_UNUSED;
/** Frees it; the optimizer stays with the rates that it has. NULL is allowed. */
LS_API void ls_schedule_free(ls_schedule *schedule);

/**
 * Keeps small gradients above zero where products are made in f16 (ls_autocast): the loss is multiplied by a scale, the
 * gradients are divided by it again, and a step whose gradients have an Inf or NaN is skipped, with a smaller scale
 * afterwards. Defaults, words of the state and what is refused are those of PyTorch's GradScaler. Opaque.
 *
 * ```c
 * ls_dtype before = ls_autocast(LS_F16);
 * ls_tensor *loss = ls_cross_entropy(ls_forward(model, x), target, NULL);
 * (void)ls_autocast(before);
 * bool good = ls_backward(ls_grad_scaler_scale(scaler, loss)) == LS_OK;
 * good = good && ls_grad_scaler_unscale(scaler, optimizer) == LS_OK; // only if gradients are used before the step,
 * good = good && ls_clip_grad_norm(model, 1, NULL) == LS_OK;         // as here
 * good = good && ls_grad_scaler_step(scaler, optimizer) == LS_OK;
 * good = good && ls_grad_scaler_update(scaler) == LS_OK;
 * ```
 *
 * On many ranks all skip the same steps: their gradients are the same (ls_data_parallel, ls_sync_gradients), and where
 * a model is divided over ranks (ls_pipeline, ls_nn_column_parallel and its kin) these agree. A trial does all that by
 * itself (`.grad_scaler`).
 */
typedef struct ls_grad_scaler ls_grad_scaler;

/** Options of ls_grad_scaler_new; zero fields mean the defaults. */
typedef struct ls_grad_scaler_options {
    double initial_scale;    /**< 0: 65536 */
    double growth_factor;    /**< of the scale, after growth_interval steps in a row that were not skipped; 0: 2 */
    double backoff_factor;   /**< of the scale, after a step that was; below 1; 0: 0.5 */
    int64_t growth_interval; /**< 0: 2000 */
} ls_grad_scaler_options;

/** By the options, which may be NULL. NULL and an error when one is out of range. */
LS_API ls_grad_scaler *ls_grad_scaler_new(const ls_grad_scaler_options *options);
/** The loss times the scale, for ls_backward. */
LS_API ls_tensor *ls_grad_scaler_scale(const ls_grad_scaler *scaler, ls_tensor *loss);
/**
 * Divides the gradients of the optimizer's parameters by the scale, and looks whether all are finite, in one pass. Once
 * between two updates (LS_ERR_STATE). A collective call where the model is divided over ranks.
 */
LS_API ls_status ls_grad_scaler_unscale(ls_grad_scaler *scaler, ls_optimizer *optimizer) LS_WARN_UNUSED;
/**
 * ls_grad_scaler_unscale, unless that was called, and ls_optimizer_step, unless a gradient is not finite: then the
 * optimizer and its parameters stay as they are. LS_ERR_STATE where it was called since the last update, and for
 * methods that evaluate the loss themselves (ls_lbfgs, ls_conjugate_gradient).
 */
LS_API ls_status ls_grad_scaler_step(ls_grad_scaler *scaler, ls_optimizer *optimizer) LS_WARN_UNUSED;
/**
 * Sets the scale for the next step, by whether one was skipped: behind the steps of all optimizers, which may be
 * several. LS_ERR_STATE where there was no ls_grad_scaler_unscale or _step, and where the scale has become so small
 * that it cannot be what makes gradients Inf or NaN.
 */
LS_API ls_status ls_grad_scaler_update(ls_grad_scaler *scaler) LS_WARN_UNUSED;
/** The scale. */
LS_API double ls_grad_scaler_get_scale(const ls_grad_scaler *scaler);
/** How many steps were skipped. */
LS_API int64_t ls_grad_scaler_skipped(const ls_grad_scaler *scaler);
/** scale (f64), _growth_tracker and skipped (i64), to be saved beside ls_optimizer_state. Lent, as there. */
LS_API ls_status ls_grad_scaler_state(ls_grad_scaler *scaler, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/** Goes on as one with the same options did. Checked as in ls_optimizer_set_state. */
LS_API ls_status ls_grad_scaler_set_state(ls_grad_scaler *scaler, const ls_named *tensors, int count) LS_WARN_UNUSED;
/** Frees it. NULL is allowed. */
LS_API void ls_grad_scaler_free(ls_grad_scaler *scaler);

/** Averages of a model's parameters over its training. They lend the model: free them before it. Opaque. */
typedef struct ls_ema ls_ema;

/**
 * Averages that forget exponentially: average = decay average + (1 - decay) parameter with each ls_ema_update, `decay`
 * from 0 to below 1, as a rule 0.999. With 0 the mean of all updates (stochastic weight averaging: Izmailov et al.,
 * arXiv 1803.05407). The first update takes the parameters as they are. Buffers, such as the statistics of batch
 * normalisation, are averaged too, and those that count are copied. NULL and an error for another decay.
 */
LS_API ls_ema *ls_ema_new(ls_module *model, double decay);
/** Adds the model as it is to the averages: after ls_optimizer_step. LS_ERR_STATE while the averages are in the model.
 */
LS_API ls_status ls_ema_update(ls_ema *ema) LS_WARN_UNUSED;
/** Puts the averages into the model and what was there aside, to measure or to save it; the next call, back. */
LS_API ls_status ls_ema_swap(ls_ema *ema) LS_WARN_UNUSED;
/** Copies the averages into the model, for good. LS_ERR_STATE while they are there by ls_ema_swap. */
LS_API ls_status ls_ema_put(ls_ema *ema) LS_WARN_UNUSED;
/** How many updates the averages are of. */
LS_API int64_t ls_ema_count(const ls_ema *ema);
/**
 * The averages as named tensors, with the names that parameters and buffers have in the model, and "n_averaged" (i64,
 * ls_ema_count), to be saved. Lent, as in ls_optimizer_state. LS_ERR_STATE while they are in the model.
 */
LS_API ls_status ls_ema_state(ls_ema *ema, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/** Goes on from such averages, of the same model and decay, with the same bits. Checked as in ls_optimizer_set_state.
 */
LS_API ls_status ls_ema_set_state(ls_ema *ema, const ls_named *tensors, int count) LS_WARN_UNUSED;
/** Frees them; the model keeps what is in it. NULL is allowed. */
LS_API void ls_ema_free(ls_ema *ema);

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
