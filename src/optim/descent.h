/*
 * What methods that evaluate the loss themselves share: they choose a direction from the gradients seen so far, go
 * along it, by a fixed step or by a line search, and look whether that was enough. A method supplies the direction.
 *
 * Vectors have one number for each of the parameters, laid out like the group's state blocks
 * (ls_optimizer_slot.offset); the gaps are zero and stay so.
 */
#ifndef LS_OPTIM_DESCENT_H
#define LS_OPTIM_DESCENT_H

#include "optim/optimizer.h"

#define LS_DESCENT_GRADIENTS 3

typedef struct ls_descent ls_descent;

typedef struct ls_descent_options {
    int max_iterations;
    int max_evaluations;
    double tolerance_gradient;
    double tolerance_change;
    bool searches;    /* along each direction, for the strong Wolfe conditions */
    double curvature; /* c2 of (3.7b): how much of the slope may be left */
} ls_descent_options;

/*
 * Sets descent->direction, and descent->step to the length that is tried first, from descent->gradient[0] and what it
 * remembers. descent->iterations is 1 on the first call ever.
 */
typedef ls_status (*ls_descent_direct)(ls_optimizer *optimizer, ls_descent *descent);

struct ls_descent {
    const ls_parameter_group *group;
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_dtype dtype;
    int64_t count;                        /* numbers in a vector, gaps included */
    void *direction;                      /* the last one taken */
    void *start;                          /* the parameters where the search began; NULL for fixed steps */
    void *gradient[LS_DESCENT_GRADIENTS]; /* [0]: at the parameters; the others are free between searches */
    void *previous_gradient;              /* where the last direction was chosen */
    double step;                          /* taken along the direction, in its lengths */
    double slope;                         /* of the loss along the direction where that was chosen */
    double loss;                          /* at the parameters */
    int64_t iterations;                   /* directions chosen, over all steps */
    int64_t restarted;                    /* conjugate gradients: the last of them along steepest descent */
    double restart_every;                 /* conjugate gradients: directions between restarts; 0: not yet known */
    double *number;                       /* on the device: what a kernel measured last */
    void *memory;                         /* the method's own */

    /* Of the present step. */
    ls_optimizer *optimizer;
    ls_closure closure;
    void *user;
};

/* One step of the optimizer: evaluations, directions and moves until one of the limits is met. Fills last_step. */
ls_status ls_descend(ls_optimizer *optimizer, const ls_descent_options *options, ls_descent_direct direct,
                     ls_closure closure, void *user, double *first_loss);

/* Refuses a second group, mixed dtypes and weight decay. */
ls_status ls_descent_check_group(const ls_optimizer *optimizer, const ls_parameter_group *group);
/* Checks a method's public limits and sets those that are zero; max_evaluations to so many per iteration. */
ls_status ls_descent_limits(const char *call, double evaluations, int *max_iterations, int *max_evaluations,
                            double *tolerance_gradient, double *tolerance_change);
/*
 * The type's `list` and `make_room`, as far as all methods are alike. What is not listed is found anew at the beginning
 * of a step. There is nothing to list before the first direction, and no room is made for the state of such a time.
 */
ls_status ls_descent_list(ls_optimizer *optimizer, ls_state_list *list);
ls_status ls_descent_make_room(ls_optimizer *optimizer, bool searches, const ls_named *given, int count);
/* The shape of a vector. */
ls_shape ls_vector_shape(const ls_descent *descent);

/* Frees the vectors; `memory` is the method's to free before. NULL is allowed. */
void ls_descent_free(ls_descent *descent);

/*
 * Goes along the direction from the parameters to a point that meets the strong Wolfe conditions, or to the best it
 * found, and updates step, loss and gradient[0]. `options` as above.
 */
ls_status ls_line_search(ls_descent *descent, const ls_descent_options *options);

/*
 * Reduces a number over the ranks that hold parts of the parameters, to the same value on all of them. Collective if
 * the parameters are sharded.
 */
ls_status ls_descent_combine(const ls_descent *descent, double *number, ls_reduction reduction);

/* Puts the parameters at start + step * direction. */
ls_status ls_descent_place(ls_descent *descent, double step);
/* Adds step * direction to the parameters. */
ls_status ls_descent_move(const ls_descent *descent, double step);
/* Copies the parameters, or their gradients, to a vector. A parameter without a gradient has a gradient of zeros. */
ls_status ls_descent_gather_parameters(const ls_descent *descent, char *vector);
ls_status ls_descent_gather_gradient(const ls_descent *descent, char *vector);

/* Evaluates the loss at the parameters, and stores its gradient. */
ls_status ls_descent_evaluate(ls_descent *descent, void *gradient, double *loss);
/*
 * Ends an evaluation, which has the given status on this rank. If it has failed on a rank that holds a part of the
 * parameters, it fails on all of them. It also fails if their losses differ. A loss that is not finite on one rank
 * becomes NaN on all, so that all ranks decide alike.
 */
ls_status ls_descent_agree(const ls_optimizer *optimizer, ls_status status, double *loss);

/* A vector of zeros on the parameters' device; NULL with the error set. */
void *ls_vector_new(const ls_descent *descent);
void ls_vector_free(const ls_descent *descent, void *vector); /* NULL is allowed */
ls_status ls_vector_copy(const ls_descent *descent, void *to, const void *from);
/* Over all parts of sharded parameters: collective then. */
ls_status ls_vector_dot(const ls_descent *descent, const void *x, const void *y, double *sum);
ls_status ls_vector_largest(const ls_descent *descent, const void *vector, double *largest); /* magnitude */

/* y += a x */
static inline ls_status ls_vector_add(const ls_descent *descent, double a, const void *x, void *y) {
    return descent->kernels->axpy(descent->stream, descent->dtype, descent->count, a, x, y);
}

static inline ls_status ls_vector_scale(const ls_descent *descent, double a, void *y) {
    return descent->kernels->scale(descent->stream, descent->dtype, descent->count, a, y);
}

/* direction = -gradient[0], and a first step no longer than learning_rate in any parameter. */
ls_status ls_descent_steepest(ls_descent *descent, double learning_rate);

#endif
