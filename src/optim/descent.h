/*
 * Code shared by the methods that evaluate the loss themselves. These methods choose a direction from previous
 * gradients, move along it by a fixed step or a line search, and check for convergence. A method supplies the
 * direction.
 *
 * Vectors contain one number for each parameter element, in the layout of the group's state blocks
 * (ls_optimizer_slot.offset). The gaps are always zero.
 */
#ifndef LS_OPTIM_DESCENT_H
#define LS_OPTIM_DESCENT_H

#include "optim/optimizer.h"
#include "tensor/account.h"

#define LS_DESCENT_GRADIENTS 3

typedef struct ls_descent ls_descent;

typedef struct ls_descent_options {
    int max_iterations;
    int max_evaluations;
    double tolerance_gradient;
    double tolerance_change;
    bool searches;    /* uses a line search along each direction, for the strong Wolfe conditions */
    double curvature; /* c2 of (3.7b): the fraction of the slope that may remain */
} ls_descent_options;

/*
 * Sets descent->direction and, as the first trial length, descent->step, from descent->gradient[0] and the method's
 * memory. descent->iterations is 1 on the very first call.
 */
typedef ls_status (*ls_descent_direct)(ls_optimizer *optimizer, ls_descent *descent);

struct ls_descent {
    const ls_parameter_group *group;
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_dtype dtype;
    int64_t count;                        /* numbers in a vector, including gaps */
    void *direction;                      /* the latest direction */
    void *start;                          /* the parameters at the start of the search; NULL for fixed steps */
    void *gradient[LS_DESCENT_GRADIENTS]; /* gradient[0] is the gradient at the parameters; the other vectors are free
                                             between searches */
    void *previous_gradient;              /* gradient at which the last direction was chosen */
    double step;                          /* step taken along the direction, as a multiple of the direction */
    double slope;                         /* derivative of the loss along the direction when it was chosen */
    double loss;                          /* at the parameters */
    int64_t iterations;                   /* number of directions chosen, over all steps */
    int64_t restarted;                    /* conjugate gradients: the last iteration along steepest descent */
    double restart_every; /* conjugate gradients: number of directions between restarts; 0 if not yet known */
    bool *frozen;         /* whether each parameter was frozen in the latest step */
    bool knows_frozen;    /* `frozen` is set */
    bool forgets;         /* the next direction must not depend on previous ones */
    double *number;       /* on the device: the last kernel's result */
    void *memory;         /* owned by the method */
    ls_account *account;  /* counts the vectors */
    int64_t vectors;      /* number of vectors */

    /* Members for the current step. */
    ls_optimizer *optimizer;
    ls_closure closure;
    void *user;
};

/* Runs one step of the optimizer: evaluates, chooses directions and moves until a limit is reached. Sets last_step. */
ls_status ls_descend(ls_optimizer *optimizer, const ls_descent_options *options, ls_descent_direct direct,
                     ls_closure closure, void *user, double *first_loss);

/* Rejects a second group, mixed dtypes and weight decay. */
ls_status ls_descent_check_group(const ls_optimizer *optimizer, const ls_parameter_group *group);
/*
 * Checks a method's public limits. Replaces zero limits with the defaults; the default of max_evaluations is
 * `evaluations` per iteration.
 */
ls_status ls_descent_limits(const char *call, double evaluations, int *max_iterations, int *max_evaluations,
                            double *tolerance_gradient, double *tolerance_change);
/*
 * The common part of the types' `list` and `make_room`. State that is not listed is recomputed at the beginning of a
 * step. Before the first direction, there is no state to list or to make room for.
 */
ls_status ls_descent_list(ls_optimizer *optimizer, ls_state_list *list);
ls_status ls_descent_make_room(ls_optimizer *optimizer, bool searches, const ls_named *given, int count);
/* Returns the number of bytes that the method has yet to allocate if it keeps up to `pairs` pairs of vectors. */
int64_t ls_descent_pending(const ls_optimizer *optimizer, bool searches, int pairs);
/* Returns the shape of a vector. */
ls_shape ls_vector_shape(const ls_descent *descent);

/* Frees the vectors. The method frees `memory` first. NULL is allowed. */
void ls_descent_free(ls_descent *descent);

/*
 * Moves from the parameters along the direction to a point that satisfies the strong Wolfe conditions, or to the best
 * point found. Updates step, loss and gradient[0]. `options` is as above.
 */
ls_status ls_line_search(ls_descent *descent, const ls_descent_options *options);

/*
 * Reduces a number over the ranks that hold shards of the parameters. All these ranks get the same value. Collective if
 * the parameters are sharded.
 */
ls_status ls_descent_combine(const ls_descent *descent, double *number, ls_reduction reduction);

/* Sets the parameters to start + step * direction. */
ls_status ls_descent_place(ls_descent *descent, double step);
/* Adds step * direction to the parameters. */
ls_status ls_descent_move(const ls_descent *descent, double step);
/* Copy the parameters or their gradients to a vector. The gradient of a parameter without a gradient counts as zero. */
ls_status ls_descent_gather_parameters(const ls_descent *descent, char *vector);
ls_status ls_descent_gather_gradient(const ls_descent *descent, char *vector);

/* Evaluates the loss at the current parameters, and stores its gradient. */
ls_status ls_descent_evaluate(ls_descent *descent, void *gradient, double *loss);
/*
 * Ends an evaluation with this rank's status. If the evaluation failed on a rank that holds a shard of the parameters,
 * it fails on all these ranks. It also fails if their losses, or the losses of the replicas of a data-parallel model,
 * differ. A loss that is not finite on one rank becomes NaN on all ranks, so that all ranks take the same decisions.
 */
ls_status ls_descent_agree(const ls_optimizer *optimizer, ls_status status, double *loss);

/* Returns a zero vector on the parameters' device, or NULL with an error. */
void *ls_vector_new(ls_descent *descent);
void ls_vector_free(ls_descent *descent, void *vector); /* NULL is allowed */
ls_status ls_vector_copy(const ls_descent *descent, void *to, const void *from);
/* Computes the dot product over all shards of the parameters. Collective if the parameters are sharded. */
ls_status ls_vector_dot(const ls_descent *descent, const void *x, const void *y, double *sum);
ls_status ls_vector_largest(const ls_descent *descent, const void *vector, double *largest); /* magnitude */

/* y += a x */
static inline ls_status ls_vector_add(const ls_descent *descent, double a, const void *x, void *y) {
    return descent->kernels->axpy(descent->stream, descent->dtype, descent->count, a, x, y);
}

static inline ls_status ls_vector_scale(const ls_descent *descent, double a, void *y) {
    return descent->kernels->scale(descent->stream, descent->dtype, descent->count, a, y);
}

/* Sets direction = -gradient[0], and a first step that changes no parameter by more than learning_rate. */
ls_status ls_descent_steepest(ls_descent *descent, double learning_rate);

#endif
