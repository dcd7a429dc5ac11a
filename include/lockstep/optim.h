/**
 * @file optim.h
 * Optimizers, schedules of learning rates, scaling and clipping of gradients, and averages of parameters:
 *
 * ```c
 * ls_optimizer *adam = ls_adam(model, &(ls_adam_options){.learning_rate = 3e-4});
 * ls_schedule *schedule = ls_schedule_warm_up(ls_schedule_cosine(adam, 900, 0), 100, 0.01);
 * // in every training step, after the backward pass:
 * ls_status status = ls_optimizer_step(adam);
 * if (status == LS_OK) {
 *     status = ls_schedule_advance(schedule);
 * }
 * ls_optimizer_zero_grad(adam);
 * ```
 *
 * Formulas, defaults and the order of operations are PyTorch's, if PyTorch has the method. If 0 selects the default of
 * a double, LS_ZERO selects 0, for example for beta1 of Adam or for the learning rate of a frozen group.
 */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An optimizer with its state. Opaque. Borrows the model's parameters: free the optimizer first. */
typedef struct ls_optimizer ls_optimizer;

/** g += weight_decay p; v = momentum v + (1 - dampening) g, but v = g in the first step and without momentum;
 * p -= learning_rate (nesterov ? g + momentum v : v). */
typedef struct ls_sgd_options {
    double learning_rate; /**< 0 selects the default, 1e-3 */
    double momentum;
    double dampening;
    double weight_decay;
    bool nesterov; /**< requires a momentum and no dampening */
} ls_sgd_options;

/** Kingma and Ba, arXiv 1412.6980: p -= learning_rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon). */
typedef struct ls_adam_options {
    double learning_rate; /**< 0 selects the default, 1e-3 */
    double beta1;         /**< 0 selects the default, 0.9 */
    double beta2;         /**< 0 selects the default, 0.999 */
    double epsilon;       /**< 0 selects the default, 1e-8 */
    double weight_decay;  /**< ls_adam adds it to the gradient; ls_adamw decouples it. For ls_adamw, 0 selects the
                             default, 0.01, and LS_ZERO selects no decay */
    bool amsgrad;         /**< uses the maximum of v over all steps */
} ls_adam_options;

/** Hinton's RMSprop: v = alpha v + (1 - alpha) g^2; p -= learning_rate g / (sqrt(v) + epsilon). */
typedef struct ls_rmsprop_options {
    double learning_rate; /**< 0 selects the default, 1e-2 */
    double alpha;         /**< 0 selects the default, 0.99 */
    double epsilon;       /**< 0 selects the default, 1e-8 */
    double momentum;
    double weight_decay;
    bool centered;
} ls_rmsprop_options;

/** Duchi et al., JMLR 2011: s += g^2; p -= learning_rate / (1 + (t - 1) learning_rate_decay) g / (sqrt(s) + epsilon).
 */
typedef struct ls_adagrad_options {
    double learning_rate; /**< 0 selects the default, 1e-2 */
    double learning_rate_decay;
    double weight_decay;
    double initial_sum;
    double epsilon; /**< 0 selects the default, 1e-10 */
} ls_adagrad_options;

/**
 * Zeiler, arXiv 1212.5701: v = rho v + (1 - rho) g^2; d = sqrt(u + epsilon) / sqrt(v + epsilon) g;
 * u = rho u + (1 - rho) d^2; p -= learning_rate d.
 */
typedef struct ls_adadelta_options {
    double learning_rate; /**< 0 selects the default, 1 */
    double rho;           /**< 0 selects the default, 0.9 */
    double epsilon;       /**< 0 selects the default, 1e-6 */
    double weight_decay;
} ls_adadelta_options;

/**
 * Dozat, Incorporating Nesterov Momentum into Adam (2016): Adam with mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2)
 * and M(t) = mu(1) ... mu(t): p -= learning_rate ((1 - mu(t)) / (1 - M(t)) g + mu(t + 1) / (1 - M(t + 1)) m) / (sqrt(v
 * / (1 - beta2^t)) + epsilon).
 */
typedef struct ls_nadam_options {
    double learning_rate;  /**< 0 selects the default, 2e-3 */
    double beta1;          /**< 0 selects the default, 0.9 */
    double beta2;          /**< 0 selects the default, 0.999 */
    double epsilon;        /**< 0 selects the default, 1e-8 */
    double momentum_decay; /**< 0 selects the default, 4e-3 */
    double weight_decay;   /**< added to the gradient */
    bool decoupled;        /**< weight decay as in ls_adamw */
} ls_nadam_options;

/**
 * Liu et al., arXiv 1908.03265: Adam with a factor that rectifies the variance of its adaptive rate. In the first
 * steps, in which this variance is intractable, p -= learning_rate m / (1 - beta1^t).
 */
typedef struct ls_radam_options {
    double learning_rate; /**< 0 selects the default, 1e-3 */
    double beta1;         /**< 0 selects the default, 0.9 */
    double beta2;         /**< 0 selects the default, 0.999 */
    double epsilon;       /**< 0 selects the default, 1e-8 */
    double weight_decay;  /**< added to the gradient */
    bool decoupled;       /**< weight decay as in ls_adamw */
} ls_radam_options;

/**
 * Chen et al., arXiv 2302.06675, algorithm 2: p -= learning_rate (sign(beta1 m + (1 - beta1) g) + weight_decay p);
 * m = beta2 m + (1 - beta2) g. Compared with AdamW, use a learning rate that is 3 to 10 times smaller, and a weight
 * decay that is larger by the same factor.
 */
typedef struct ls_lion_options {
    double learning_rate; /**< 0 selects the default, 1e-4 */
    double beta1;         /**< 0 selects the default, 0.9 */
    double beta2;         /**< 0 selects the default, 0.99 */
    double weight_decay;
} ls_lion_options;

/**
 * You et al., arXiv 1904.00962, algorithm 2, for large batches: p -= learning_rate |p| / |r| r, where r is the
 * direction of Adam plus weight_decay p. Norms are per parameter. If a norm is 0, the factor |p| / |r| is 1. Parameters
 * that are sharded over ranks (ls_nn_column_parallel) are rejected.
 */
typedef struct ls_lamb_options {
    double learning_rate; /**< 0 selects the default, 1e-3 */
    double beta1;         /**< 0 selects the default, 0.9 */
    double beta2;         /**< 0 selects the default, 0.999 */
    double epsilon;       /**< 0 selects the default, 1e-6 */
    double weight_decay;  /**< 0 selects the default, 0.01 */
} ls_lamb_options;

/** Selects how ls_muon adjusts its learning rate to the shape of a matrix. */
typedef enum ls_muon_rates {
    LS_MUON_ORIGINAL = 0, /**< factor sqrt(max(1, rows / columns)) */
    LS_MUON_AS_ADAMW,     /**< factor 0.2 sqrt(max(rows, columns)), like "match_rms_adamw" in PyTorch */
} ls_muon_rates;

/**
 * Jordan et al., Muon: An optimizer for hidden layers in neural networks (2024), as in PyTorch. Makes the momentum
 * matrix M nearly orthogonal with `iterations` iterations of X = a X + (b X X^T + c (X X^T)^2) X, starting with X = M /
 * |M|, in the dtype of the parameter (PyTorch uses bf16). Then p -= learning_rate weight_decay p, p -= adjusted
 * learning_rate X.
 *
 * - For a model, group 0 gets the parameters [m, n], and group 1 gets all other parameters and uses ls_adamw.
 * - A group added with ls_optimizer_add_group uses ls_adamw if its parameters include no matrix, or if its options set
 *   `.adamw`. Set it for embeddings and the last layer, which train better with ls_adamw. Any other group must contain
 *   only matrices (LS_ERR_SHAPE).
 * - Sharded parameters are rejected, as in ls_lamb, except in groups that use ls_adamw.
 * - A step takes 2 n m^2 + m^3 multiplications per iteration and matrix [m, n], where m is the smaller side; on the CPU
 *   in one thread. It needs memory for two such matrices and two matrices [m, m].
 */
typedef struct ls_muon_options {
    double learning_rate; /**< 0 selects the default, 1e-3 */
    double weight_decay;  /**< 0 selects the default, 0.1 */
    double momentum;      /**< 0 selects the default, 0.95 */
    double a, b, c;       /**< coefficients; if all are 0, the defaults are 3.4445, -4.7750 and 2.0315 */
    double epsilon;       /**< smallest divisor |M|; 0 selects the default, 1e-7 */
    int iterations;       /**< number of iterations, 1 to 99; 0 selects the default, 5 */
    ls_muon_rates rates;
    bool no_nesterov;
    ls_adam_options adamw; /**< options for the parameters that are not matrices */
} ls_muon_options;

/**
 * Limited-memory BFGS (Nocedal and Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5): quasi-Newton
 * directions from the last `history_size` steps. Call ls_optimizer_step_closure. All parameters are in one group, of
 * the same dtype, without weight decay. Fields have the meaning and the defaults of PyTorch's LBFGS. With LS_ZERO as a
 * tolerance, only a gradient of 0, or a move of 0, counts as convergence.
 *
 * Set `comm` if the parameters are sharded over ranks, for example a field that is distributed over the ranks of a
 * solver. Inner products and norms are then sums over all shards, and every rank takes the same step. Without `comm`,
 * each rank uses the inner products of its own shard: the ranks take different steps, and the fit is wrong without an
 * error. Leave `comm` NULL if every rank has all parameters (replicas). docs/howto/lbfgs-in-an-mpi-simulation.md has an
 * example. With `comm`:
 *
 * - Steps are collective over `comm`.
 * - The closure must return the same loss on every rank (ls_allreduce), otherwise LS_ERR_MISMATCH.
 * - Every rank must have at least one parameter, which may be empty.
 * - If a rank has no parameters, or if the closure fails on a rank, the step fails on all ranks. The failing rank gets
 *   its own error, and the other ranks get LS_ERR_MISMATCH with its rank number.
 *
 * Fails with LS_ERR_UNSUPPORTED with .zero in ls_data_parallel, and if tensor parallelism shards a parameter, because
 * such a model also has replicated parameters. Also fails with LS_ERR_UNSUPPORTED if the model is a stage of a pipeline
 * and `comm` is NULL.
 */
typedef struct ls_lbfgs_options {
    double learning_rate; /**< fixed step, or first step of a line search; 0 selects the default, 1 */
    int history_size; /**< number of previous steps in the history, each stored as two vectors as long as all parameters
                         together; 0 selects the default, 100 */
    int max_iterations;        /**< maximum number of directions per step; 0 selects the default, 20 */
    int max_evaluations;       /**< maximum number of evaluations per step, checked after each direction; 0 selects 5/4
                                  max_iterations */
    double tolerance_gradient; /**< largest element of the gradient at convergence; 0 selects the default, 1e-7 */
    double tolerance_change;   /**< change of loss or parameters at convergence; 0 selects the default, 1e-9 */
    bool strong_wolfe; /**< searches along each direction for a point that satisfies the strong Wolfe conditions */
    ls_comm *comm;     /**< ranks over which the parameters are sharded (borrowed); NULL if they are not sharded */
} ls_lbfgs_options;

/** The formula for beta, the factor of the previous direction in a new conjugate direction. */
typedef enum ls_conjugate_formula { LS_POLAK_RIBIERE = 0, LS_FLETCHER_REEVES } ls_conjugate_formula;

/**
 * Nonlinear conjugate gradients (Nocedal and Wright, algorithm 5.4). Has no history, so it needs less memory than
 * ls_lbfgs with the default history_size. Always uses a line search, with tighter conditions than ls_lbfgs. Restarts
 * with steepest descent after `restart_every` directions, if gradients are far from orthogonal (5.52), and if a
 * direction is not a descent direction. Steps, parameters and the other fields are as in ls_lbfgs.
 */
typedef struct ls_conjugate_gradient_options {
    ls_conjugate_formula formula; /**< 0 selects LS_POLAK_RIBIERE, with which beta is never negative (5.44, 5.45) */
    double learning_rate;         /**< factor that multiplies the first trial step; 0 selects the default, 1 */
    int restart_every; /**< number of directions between restarts; 0 selects the number of elements in all parameters */
    int max_iterations;        /**< 0 selects the default, 20 */
    int max_evaluations;       /**< 0 selects 5/2 max_iterations */
    double tolerance_gradient; /**< 0 selects the default, 1e-7 */
    double tolerance_change;   /**< 0 selects the default, 1e-9 */
    ls_comm *comm;             /**< as in ls_lbfgs_options */
} ls_conjugate_gradient_options;

/**
 * Returns an optimizer with one group of all floating-point parameters that `model` has now: add all layers first.
 * Borrows the model: free the optimizer first. If `model` is NULL, the optimizer has no group; add groups with
 * ls_optimizer_add_group before the first step, which otherwise fails with LS_ERR_STATE. `options` may be NULL. Returns
 * ownership to the caller, or NULL on failure, for example if an option is out of range or a parameter is bf16 or f16.
 */
LS_API ls_optimizer *ls_sgd(ls_module *model, const ls_sgd_options *options);
/** Creates an Adam optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_adam(ls_module *model, const ls_adam_options *options);
/** Creates an Adam optimizer with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), under the same
 * rules as ls_sgd. */
LS_API ls_optimizer *ls_adamw(ls_module *model, const ls_adam_options *options);
/** Creates an RMSprop optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_rmsprop(ls_module *model, const ls_rmsprop_options *options);
/** Creates an Adagrad optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_adagrad(ls_module *model, const ls_adagrad_options *options);
/** Creates an Adadelta optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_adadelta(ls_module *model, const ls_adadelta_options *options);
/** Creates a NAdam optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_nadam(ls_module *model, const ls_nadam_options *options);
/** Creates a RAdam optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_radam(ls_module *model, const ls_radam_options *options);
/** Creates a Lion optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_lion(ls_module *model, const ls_lion_options *options);
/** Creates a LAMB optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_lamb(ls_module *model, const ls_lamb_options *options);
/** Creates a Muon optimizer with two groups, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_muon(ls_module *model, const ls_muon_options *options);
/** Creates an L-BFGS optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_lbfgs(ls_module *model, const ls_lbfgs_options *options);
/** Creates a conjugate gradient optimizer, under the same rules as ls_sgd. */
LS_API ls_optimizer *ls_conjugate_gradient(ls_module *model, const ls_conjugate_gradient_options *options);

/** Options for a parameter group that override the options of the optimizer. */
typedef struct ls_group_options {
    double learning_rate; /**< 0 selects the rate in the optimizer's options, and LS_ZERO freezes the group */
    double weight_decay;  /**< 0 selects the decay in the optimizer's options, and LS_ZERO selects no decay */
    bool adamw;           /**< for ls_muon: uses ls_adamw instead, even for matrices */
} ls_group_options;

/** Adds a group of `count` parameters (borrowed): contiguous leaves of f32 or f64 on one device. A parameter may be in
 * one group only. `options` may be NULL. */
LS_API ls_status ls_optimizer_add_group(ls_optimizer *optimizer, ls_tensor *const *parameters, int count,
                                        const ls_group_options *options) LS_WARN_UNUSED;
/** Returns the number of groups. */
LS_API int ls_optimizer_group_count(const ls_optimizer *optimizer);
/** Returns a group's learning rate, or 0 if there is no such group. */
LS_API double ls_optimizer_learning_rate(const ls_optimizer *optimizer, int group);
/** Sets the learning rate of a group, or of all groups if `group` is -1. */
LS_API ls_status ls_optimizer_set_learning_rate(ls_optimizer *optimizer, int group,
                                                double learning_rate) LS_WARN_UNUSED;
/** Returns the momentum of ls_sgd, ls_rmsprop and ls_muon, beta1 of Adam's variants and ls_lion, or otherwise 0. */
LS_API double ls_optimizer_momentum(const ls_optimizer *optimizer);
/**
 * Sets the momentum of all groups, between 0 and 1 exclusive, except for groups of ls_muon that use ls_adamw.
 * ls_optimizer_state does not contain it. Fails with LS_ERR_STATE for a method without momentum, and for ls_sgd and
 * ls_rmsprop created without momentum, which have no buffer for it.
 */
LS_API ls_status ls_optimizer_set_momentum(ls_optimizer *optimizer, double momentum) LS_WARN_UNUSED;

/**
 * Updates every parameter that has a gradient. Fails with LS_ERR_STATE if a parameter has moved to another device, and
 * for ls_lbfgs and ls_conjugate_gradient, which need ls_optimizer_step_closure.
 *
 * With .zero in ls_data_parallel, the call is collective, and there are two more errors:
 *
 * - LS_ERR_MISMATCH if the ranks' methods, options, rates or numbers of steps differ, or if another rank fails
 * - LS_ERR_STATE if gradients are not averaged yet, or if an earlier step has failed
 */
LS_API ls_status ls_optimizer_step(ls_optimizer *optimizer) LS_WARN_UNUSED;

/**
 * Computes the loss for the current parameters, runs the backward pass and stores the loss in `*loss`. The optimizer
 * first clears the gradients of its parameters. It calls the closure in a separate scope, with gradients enabled.
 */
typedef ls_status (*ls_closure)(void *user, double *loss);

/**
 * Takes one step, and evaluates the loss with `closure(user, ...)`. ls_lbfgs and ls_conjugate_gradient follow up to
 * max_iterations directions, and may evaluate several times per direction. Other optimizers evaluate once and call
 * ls_optimizer_step. Sets `*loss` (may be NULL) to the loss before the step.
 *
 * - With more than one rank, the closure must return the same loss on all ranks (ls_allreduce), and the same gradients
 *   unless the parameters are sharded (`comm` of ls_lbfgs_options). The ranks then take the same steps. With a
 *   data-parallel model (ls_data_parallel), the loss is the mean over the samples of all ranks, and ls_lbfgs and
 *   ls_conjugate_gradient fail with LS_ERR_MISMATCH if the losses differ.
 * - Fails with LS_ERR_STATE if the loss is not finite. A line search treats such a point as too high instead.
 * - ls_lbfgs and ls_conjugate_gradient restart with steepest descent if parameters were frozen or unfrozen since the
 *   last step.
 * - After a failure in a line search, the parameters have their values from the start of the search. With fixed steps,
 *   they have their values from the last evaluation.
 */
LS_API ls_status ls_optimizer_step_closure(ls_optimizer *optimizer, ls_closure closure, void *user,
                                           double *loss) LS_WARN_UNUSED;

/** Why ls_optimizer_step_closure stopped. */
typedef enum ls_stop_reason {
    LS_STOP_NONE = 0,    /**< no step yet */
    LS_STOP_FAILED,      /**< the step failed */
    LS_STOP_ONE_STEP,    /**< one step per call: all optimizers except ls_lbfgs and ls_conjugate_gradient */
    LS_STOP_GRADIENT,    /**< converged: no element of the gradient is larger than tolerance_gradient */
    LS_STOP_CHANGE,      /**< converged: loss change < tolerance_change, or all parameter changes <= tolerance_change */
    LS_STOP_DIRECTION,   /**< the loss rises along the direction, or falls with a slope below tolerance_change */
    LS_STOP_ITERATIONS,  /**< max_iterations directions were taken */
    LS_STOP_EVALUATIONS, /**< max_evaluations was reached */
} ls_stop_reason;

/** Result of the last ls_optimizer_step_closure. */
typedef struct ls_step_info {
    ls_stop_reason reason;
    int iterations;  /**< number of directions; 1 for an optimizer that takes one step per call */
    int evaluations; /**< number of calls to the closure */
} ls_step_info;

/**
 * Returns the result of the last ls_optimizer_step_closure. The reason is LS_STOP_NONE before the first step, and if
 * `optimizer` is NULL. After a successful step, the result is the same on every rank if the loss and the gradients are
 * the same.
 */
LS_API ls_step_info ls_optimizer_last_step(const ls_optimizer *optimizer);
/** Returns the reason in words, such as "max_iterations reached". */
LS_API const char *ls_stop_reason_name(ls_stop_reason reason);
/** Clears the gradients of all parameters in all groups. */
LS_API void ls_optimizer_zero_grad(ls_optimizer *optimizer);
/**
 * Lists the state of the optimizer as named tensors, to be saved with the parameters. The tensors are the optimizer's
 * own memory. With .zero in ls_data_parallel, they are copies with the state of all ranks, and the call is collective.
 * Returns borrowed pointers, valid until the next step, ls_optimizer_add_group, ls_optimizer_free, or the next call to
 * ls_optimizer_state, _set_state, _save or _load. Names follow PyTorch:
 *
 * - "param_groups.0.lr" (f64) for each group
 * - "PARAMETER.STATE" for each parameter, such as "0.weight.exp_avg". PARAMETER is the parameter's name in the
 *   optimizer's model. A parameter outside this model has its number instead, counted over all groups.
 *   ls_optimizer_save fails with LS_ERR_ARGUMENT if the name of a parameter of the model equals such a number.
 * - STATE is step (i64) and: momentum_buffer (ls_sgd, ls_rmsprop, ls_muon), exp_avg (also ls_lion), exp_avg_sq,
 *   max_exp_avg_sq (Adam's variants), mu_product (f64, ls_nadam), square_avg, grad_avg (ls_rmsprop), acc_delta
 *   (ls_adadelta), sum (ls_adagrad)
 * - ls_lbfgs and ls_conjugate_gradient instead have numbers such as n_iter, and vectors of all parameters: d,
 *   prev_flat_grad, and, oldest first, old_stps.0, old_dirs.0. Each parameter begins at a multiple of 64 bytes.
 */
LS_API ls_status ls_optimizer_state(ls_optimizer *optimizer, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/**
 * Restores the state of an optimizer with the same kind, options and parameters. Copies the tensors. If the parameters
 * are also restored, later steps are bit-identical. Names, shapes and dtypes must be exactly as in ls_optimizer_state,
 * in any order. All numbers must be finite; counters and averages of squares must not be negative. On failure, nothing
 * changes, and the error names the first difference. Fails with LS_ERR_STATE if the scope of a tensor has ended.
 */
LS_API ls_status ls_optimizer_set_state(ls_optimizer *optimizer, const ls_named *tensors, int count) LS_WARN_UNUSED;
/**
 * Saves ls_optimizer_state to a safetensors file, as ls_safetensors_save does. Always sets the metadata key
 * "lockstep_optimizer" to the method, for example "ls_adam". With .zero in ls_data_parallel, the call is collective,
 * and every rank writes to its own path.
 */
LS_API ls_status ls_optimizer_save(ls_optimizer *optimizer, const char *path,
                                   const char *const *metadata) LS_WARN_UNUSED;
/**
 * Calls ls_optimizer_set_state with the tensors of a safetensors file. Fails with LS_ERR_FORMAT if the file has the
 * state of a different method, even if the states have the same names. With .zero in ls_data_parallel, reads one tensor
 * at a time. If the file then becomes unreadable after the checks, the state may be partially restored.
 */
LS_API ls_status ls_optimizer_load(ls_optimizer *optimizer, const char *path) LS_WARN_UNUSED;

/** Frees the optimizer, but not the parameters. NULL is allowed. Do not use the optimizer afterwards: calls that return
 * a status usually fail with LS_ERR_STATE. */
LS_API void ls_optimizer_free(ls_optimizer *optimizer);

/**
 * A schedule sets the learning rates of an optimizer step by step. Opaque. Borrows the optimizer: free the schedule
 * first.
 *
 * - Formulas, defaults and the step at which a rate changes follow torch.optim.lr_scheduler, in closed form.
 * - The rates depend only on the number of steps t, on `base`, the rate of each group when the schedule was created,
 *   and for ls_schedule_plateau on the metrics. Ranks that advance in the same way therefore have the same rates.
 * - A group with base 0 is frozen and stays frozen.
 * - A step is one call to ls_schedule_advance, made after each training step or after each epoch.
 * - The constructors set the rates of step 0 and return ownership to the caller. They return NULL on failure, for
 *   example if a number is out of range.
 * - ls_schedule_advance fails with LS_ERR_STATE if a group was added to the optimizer later.
 *
 * Each formula below is the rate at step t. Its comment ends with the schedule's name in PyTorch.
 */
typedef struct ls_schedule ls_schedule;

/** base gamma^floor(t / steps); `gamma` 0 selects the default, 0.1. PyTorch: StepLR. */
LS_API ls_schedule *ls_schedule_step(ls_optimizer *optimizer, int64_t steps, double gamma);
/**
 * base gamma^(number of milestones <= t); `milestones` (copied) are in ascending order. `gamma` 0 selects the default,
 * 0.1. PyTorch: MultiStepLR.
 */
LS_API ls_schedule *ls_schedule_multi_step(ls_optimizer *optimizer, const int64_t *milestones, int count, double gamma);
/** base gamma^t. PyTorch: ExponentialLR. */
LS_API ls_schedule *ls_schedule_exponential(ls_optimizer *optimizer, double gamma);
/**
 * minimum + (base - minimum) (1 + cos(pi t / steps)) / 2 (Loshchilov and Hutter, arXiv 1608.03983, without restarts).
 * The rate rises again after `steps`. PyTorch: CosineAnnealingLR.
 */
LS_API ls_schedule *ls_schedule_cosine(ls_optimizer *optimizer, int64_t steps, double minimum);
/**
 * The schedule of the same paper, with restarts: after `steps`, the rate restarts at base, and the next cycle is
 * `multiplier` times as long. `multiplier` 0 selects the default, 1. PyTorch: CosineAnnealingWarmRestarts.
 */
LS_API ls_schedule *ls_schedule_cosine_warm_restarts(ls_optimizer *optimizer, int64_t steps, int64_t multiplier,
                                                     double minimum);
/**
 * base times a factor that changes linearly from `start` to `end` in `steps`, and then stays constant. 0 selects the
 * default: 1/3 for `start` and 1 for `end`. PyTorch: LinearLR.
 */
LS_API ls_schedule *ls_schedule_linear(ls_optimizer *optimizer, int64_t steps, double start, double end);
/** base (1 - min(t, steps) / steps)^power; `power` 0 selects the default, 1. PyTorch: PolynomialLR. */
LS_API ls_schedule *ls_schedule_polynomial(ls_optimizer *optimizer, int64_t steps, double power);
/**
 * base factor(t, user). Each step calls `factor` once for each group that is not frozen. `factor` must return the same
 * number for the same t. If the number is negative or not finite, ls_schedule_advance fails. PyTorch: LambdaLR.
 */
LS_API ls_schedule *ls_schedule_function(ls_optimizer *optimizer, double (*factor)(int64_t step, void *user),
                                         void *user);

/**
 * One cycle (Smith and Topin, arXiv 1708.07120) over `steps`, which must be set. The rate rises from peak /
 * initial_divisor to peak, then falls to peak / initial_divisor / final_divisor. Meanwhile, the momentum falls from
 * max_momentum to min_momentum and rises again. PyTorch: OneCycleLR.
 */
typedef struct ls_one_cycle_options {
    int64_t steps;
    double max_learning_rate; /**< peak rate for every group that is not frozen; 0 selects each group's base rate */
    double rising; /**< fraction of the steps during which the rate rises, up to 1; 0 selects the default, 0.3 */
    double initial_divisor; /**< 0 selects the default, 25 */
    double final_divisor;   /**< 0 selects the default, 1e4 */
    double min_momentum;    /**< 0 selects the default, 0.85 */
    double max_momentum;    /**< 0 selects the default, 0.95 */
    bool three_phases; /**< makes the fall as long as the rise, followed by a third phase to the end; `rising` is at
                          most 0.5 */
    bool linear;       /**< changes the values linearly instead of along a cosine */
    bool no_momentum;  /**< leaves the momentum unchanged; required for methods without momentum
                          (ls_optimizer_set_momentum) */
} ls_one_cycle_options;

/** Creates a one-cycle schedule. ls_schedule_advance fails with LS_ERR_STATE if the warm-up and all `steps` steps
 * are over. */
LS_API ls_schedule *ls_schedule_one_cycle(ls_optimizer *optimizer, const ls_one_cycle_options *options);

/** Selects how the height of the cycles of ls_schedule_cyclic changes. */
typedef enum ls_cycle_heights {
    LS_CYCLES_EQUAL = 0, /**< "triangular" */
    LS_CYCLES_HALVED,    /**< each cycle is half as high as the previous cycle: "triangular2" */
    LS_CYCLES_SHRINKING, /**< the height is multiplied by gamma^t: "exp_range" */
} ls_cycle_heights;

/**
 * Cycles (Smith, arXiv 1506.01186): the rate rises linearly from min_learning_rate to max_learning_rate, which must be
 * set, and falls again. Meanwhile, the momentum falls from max_momentum to min_momentum and rises again. `heights` can
 * make later cycles lower. PyTorch: CyclicLR.
 */
typedef struct ls_cyclic_options {
    double min_learning_rate; /**< lower bound of the rate, for every group that is not frozen; 0 selects each group's
                                 base rate */
    double max_learning_rate;
    int64_t steps_up;   /**< 0 selects the default, 2000 */
    int64_t steps_down; /**< 0 selects steps_up */
    ls_cycle_heights heights;
    double gamma;        /**< base of LS_CYCLES_SHRINKING; 0 selects the default, 1 */
    double min_momentum; /**< 0 selects the default, 0.8 */
    double max_momentum; /**< 0 selects the default, 0.9 */
    bool no_momentum;    /**< leaves the momentum unchanged; required for methods without momentum
                            (ls_optimizer_set_momentum) */
} ls_cyclic_options;

/** Creates a cyclic schedule. */
LS_API ls_schedule *ls_schedule_cyclic(ls_optimizer *optimizer, const ls_cyclic_options *options);

/**
 * Multiplies the rates by `factor` if more than `patience` consecutive metric values passed to ls_schedule_advance_by
 * do not improve (PyTorch's ReduceLROnPlateau). A metric improves if it is less than best * (1 - threshold).
 */
typedef struct ls_plateau_options {
    double factor;    /**< factor, below 1, by which a reduction multiplies the rates; 0 selects the default, 0.1 */
    int64_t patience; /**< number of consecutive metric values without improvement that are tolerated; 0 selects the
                         default, 10 */
    double threshold; /**< 0 selects the default, 1e-4 */
    int64_t cooldown; /**< number of metric values after a reduction that do not count against `patience` */
    double minimum;   /**< smallest rate after a reduction */
    double epsilon;   /**< largest change of a rate that is skipped as too small; 0 selects the default, 1e-8 */
    bool no_patience; /**< selects a patience of 0: the first metric that is not better reduces the rates */
    bool larger_is_better; /**< a metric is better if it is more than best * (1 + threshold) */
    bool absolute; /**< a metric is better if it is less than best - threshold or, with larger_is_better, more than
                      best + threshold */
} ls_plateau_options;

/** Creates a schedule that reduces the rates on a plateau. `options` may be NULL. Advance it with
 * ls_schedule_advance_by. */
LS_API ls_schedule *ls_schedule_plateau(ls_optimizer *optimizer, const ls_plateau_options *options);

/**
 * Adds `steps` warm-up steps before step 0 of a schedule, like LinearLR before another schedule in SequentialLR. In
 * the warm-up, the rates of step 0 are multiplied by a factor that rises linearly from `start` (0 to 1) to 1. Takes
 * ownership of the schedule and returns it; on failure, frees the schedule and returns NULL. Fails if the schedule has
 * been advanced or already has a warm-up. ls_schedule_plateau ignores the metrics of the warm-up.
 */
LS_API ls_schedule *ls_schedule_warm_up(ls_schedule *schedule, int64_t steps, double start);

/**
 * Advances to the next step and sets its rates, like PyTorch's scheduler.step(). Call it after ls_optimizer_step. Fails
 * with LS_ERR_STATE for ls_schedule_plateau, which needs a metric. On failure, nothing changes.
 */
LS_API ls_status ls_schedule_advance(ls_schedule *schedule) LS_WARN_UNUSED;
/**
 * Does the same with a metric, which only ls_schedule_plateau uses. NaN never counts as an improvement. To get the same
 * rates on all ranks, pass the same metric on all ranks: a value that is reduced over the ranks (ls_comm_allreduce,
 * ls_trial_metric).
 */
LS_API ls_status ls_schedule_advance_by(ls_schedule *schedule, double metric) LS_WARN_UNUSED;

/**
 * Lists the state of the schedule as named tensors, to be saved with ls_optimizer_state. Returns borrowed pointers,
 * valid until the next ls_schedule_state, ls_schedule_set_state or ls_schedule_free. Names are PyTorch's: last_epoch
 * (i64, the number of steps) and base_lrs (f64, for each group). ls_schedule_plateau also has best (f64),
 * num_bad_epochs and cooldown_counter (i64), and reductions (i64), which PyTorch does not have.
 */
LS_API ls_status ls_schedule_state(ls_schedule *schedule, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/**
 * Restores the state of a schedule that was created by the same constructor with the same arguments and groups. Sets
 * the rates of the restored step, and the momentum if the schedule changes it. Later rates are bit-identical. Checks
 * the tensors like ls_optimizer_set_state.
 */
LS_API ls_status ls_schedule_set_state(ls_schedule *schedule, const ls_named *tensors, int count) LS_WARN_UNUSED;
/** Frees the schedule. The optimizer keeps its rates. NULL is allowed. */
LS_API void ls_schedule_free(ls_schedule *schedule);

/**
 * A scaler keeps small gradients from underflowing to zero when products are computed in f16 (ls_autocast). It
 * multiplies the loss by a scale and divides the gradients by this scale. If a gradient is Inf or NaN, it skips the
 * step and reduces the scale. Defaults and the order of calls match PyTorch's GradScaler. Opaque.
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
 * All ranks skip the same steps, because their gradients are the same (ls_data_parallel, ls_sync_gradients). If a model
 * is sharded over ranks (ls_pipeline, ls_nn_column_parallel), these ranks agree on the steps to skip. A trial with
 * `.grad_scaler` makes these calls itself.
 */
typedef struct ls_grad_scaler ls_grad_scaler;

/** Options for ls_grad_scaler_new. */
typedef struct ls_grad_scaler_options {
    double initial_scale;    /**< 0 selects the default, 65536 */
    double growth_factor;    /**< factor that multiplies the scale after growth_interval consecutive updates without a
                                skipped step; 0 selects the default, 2 */
    double backoff_factor;   /**< factor, below 1, by which a skipped step multiplies the scale; 0 selects the default,
                                0.5 */
    int64_t growth_interval; /**< 0 selects the default, 2000 */
} ls_grad_scaler_options;

/**
 * Creates a scaler. `options` may be NULL. Returns ownership to the caller; free it with ls_grad_scaler_free. Returns
 * NULL if an option is out of range.
 */
LS_API ls_grad_scaler *ls_grad_scaler_new(const ls_grad_scaler_options *options);
/** Returns the loss times the scale, for ls_backward. */
LS_API ls_tensor *ls_grad_scaler_scale(const ls_grad_scaler *scaler, ls_tensor *loss);
/**
 * Divides the gradients of the optimizer's parameters by the scale, and checks in the same pass whether all are finite.
 * Collective if the model, or its gradients (.zero = 2 or 3), are sharded over ranks. A second call for the
 * optimizer before ls_grad_scaler_update fails with LS_ERR_STATE.
 */
LS_API ls_status ls_grad_scaler_unscale(ls_grad_scaler *scaler, ls_optimizer *optimizer) LS_WARN_UNUSED;
/**
 * Calls ls_grad_scaler_unscale if the program has not called it, and then ls_optimizer_step if all gradients are
 * finite. Otherwise skips the step: the optimizer and its parameters do not change. A second call for the
 * optimizer before ls_grad_scaler_update fails with LS_ERR_STATE, and so do ls_lbfgs and ls_conjugate_gradient, which
 * evaluate the loss themselves.
 */
LS_API ls_status ls_grad_scaler_step(ls_grad_scaler *scaler, ls_optimizer *optimizer) LS_WARN_UNUSED;
/**
 * Sets the scale of the next step: reduces it if a gradient was Inf or NaN since the last update. Call it once after
 * the steps of all optimizers. Fails with LS_ERR_STATE if neither ls_grad_scaler_unscale nor ls_grad_scaler_step was
 * called since the last update, or if the scale is so small that it cannot be the cause of Inf or NaN.
 */
LS_API ls_status ls_grad_scaler_update(ls_grad_scaler *scaler) LS_WARN_UNUSED;
/** Returns the scale. */
LS_API double ls_grad_scaler_get_scale(const ls_grad_scaler *scaler);
/** Returns the number of skipped steps. */
LS_API int64_t ls_grad_scaler_skipped(const ls_grad_scaler *scaler);
/** Lists the state: scale (f64), _growth_tracker and skipped (i64). Returns borrowed pointers, as ls_schedule_state
 * does. */
LS_API ls_status ls_grad_scaler_state(ls_grad_scaler *scaler, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/** Restores the state of a scaler with the same options. Checks the tensors like ls_optimizer_set_state. */
LS_API ls_status ls_grad_scaler_set_state(ls_grad_scaler *scaler, const ls_named *tensors, int count) LS_WARN_UNUSED;
/** Frees the scaler. NULL is allowed. */
LS_API void ls_grad_scaler_free(ls_grad_scaler *scaler);

/** Averages of a model's parameters during training. Opaque. Borrows the model: free the averages first. */
typedef struct ls_ema ls_ema;

/**
 * Creates exponential moving averages. Each ls_ema_update adds (1 - decay) (parameter - average) to the average, with
 * `decay` at least 0 and below 1, usually 0.999. A parameter that does not change is its own average, without rounding
 * errors. With decay 0, the average is the mean of all updates (stochastic weight averaging: Izmailov et al., arXiv
 * 1803.05407). The first update copies the parameters. Before the first update, the averages are the current
 * parameters, so ls_ema_swap and ls_ema_put do not change their values.
 *
 * Buffers, such as the statistics of batch normalization, are averaged too; integer buffers are copied. Averages of
 * bf16 and f16 are kept in f32, and rounded when they are put into the model.
 *
 * Returns ownership to the caller. Returns NULL on failure, for example if `decay` is out of range. Calls that use the
 * model's values fail with LS_ERR_STATE after the model was freed, after a parameter was added to the model and, with
 * .zero = 3, without ls_data_parallel_gather.
 */
LS_API ls_ema *ls_ema_new(ls_module *model, double decay);
/** Adds the current parameters to the averages. Call it after ls_optimizer_step. Fails with LS_ERR_STATE while the
 * averages are swapped into the model (ls_ema_swap). */
LS_API ls_status ls_ema_update(ls_ema *ema) LS_WARN_UNUSED;
/** Exchanges the averages and the parameters, to evaluate or save the averages. The next call exchanges them again. */
LS_API ls_status ls_ema_swap(ls_ema *ema) LS_WARN_UNUSED;
/** Copies the averages into the model. Fails with LS_ERR_STATE while the averages are swapped into the model
   (ls_ema_swap). */
LS_API ls_status ls_ema_put(ls_ema *ema) LS_WARN_UNUSED;
/** Returns the number of updates. */
LS_API int64_t ls_ema_count(const ls_ema *ema);
/**
 * Lists the averages as named tensors, with the names of parameters and buffers in the model, and "n_averaged" (i64,
 * ls_ema_count). Averages of bf16 and f16 are f32. Returns borrowed pointers, valid until the next call on `ema`. Fails
 * with LS_ERR_STATE while the averages are swapped into the model (ls_ema_swap).
 */
LS_API ls_status ls_ema_state(ls_ema *ema, const ls_named **tensors, int *count) LS_WARN_UNUSED;
/** Restores averages of the same model and decay. Later averages are bit-identical. Checks the tensors like
 * ls_optimizer_set_state, except that buffers may contain any numbers, such as -infinity in a mask. Averages of bf16
 * and f16 may be f32 or have the dtype of the model. Fails with LS_ERR_STATE while the averages are swapped into the
 * model. */
LS_API ls_status ls_ema_set_state(ls_ema *ema, const ls_named *tensors, int count) LS_WARN_UNUSED;
/** Frees the averages. The model does not change. NULL is allowed. */
LS_API void ls_ema_free(ls_ema *ema);

/**
 * Scales all gradients of the model so that their common Euclidean norm is at most `max_norm`, up to rounding. Sets
 * `*norm` (may be NULL) to the norm before scaling. If the model is sharded over ranks (ls_pipeline,
 * ls_nn_column_parallel, .zero = 2 or 3), the call is collective, and the norm covers the complete model and is
 * bit-identical on these ranks. Fails with LS_ERR_ARGUMENT if `max_norm` is not positive. Fails with LS_ERR_UNSUPPORTED
 * if a gradient is bf16 or f16; if the model is sharded, on all ranks that share the model.
 *
 * Squares are summed in f64: if the sum overflows (f64 gradients above 1e154), the norm is infinite and the gradients
 * become 0, as in PyTorch. If an element is infinite, it becomes NaN, and all finite elements become 0. If an element
 * is NaN, all elements become NaN. With an infinite `max_norm`, an infinite norm also makes all elements NaN.
 */
LS_API ls_status ls_clip_grad_norm(ls_module *model, double max_norm, double *norm) LS_WARN_UNUSED;
/** Clips every gradient element to [-limit, limit]; NaN stays NaN. Fails with LS_ERR_ARGUMENT if `limit` is not
 * positive, and with LS_ERR_UNSUPPORTED if a gradient is bf16 or f16. */
LS_API ls_status ls_clip_grad_value(ls_module *model, double limit) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
