/* Nonlinear conjugate gradients: Nocedal and Wright, Numerical Optimization, 2nd ed., algorithm 5.4 and section 5.2. */
#include <math.h>

#include "optim/descent.h"

/* Threshold nu of (5.52): above it, two successive gradients are far from orthogonal. */
#define TOO_SIMILAR 0.1

/* Computes beta for the current gradient by (5.41a) or (5.45), or sets it to 0 to restart along steepest descent. */
static ls_status weigh(const ls_descent *descent, ls_conjugate_formula formula, double *beta) {
    const void *gradient = descent->gradient[0], *previous = descent->previous_gradient;
    double square = 0, previous_square = 0, shared = 0;
    LS_TRY(ls_vector_dot(descent, gradient, gradient, &square));
    LS_TRY(ls_vector_dot(descent, previous, previous, &previous_square));
    LS_TRY(ls_vector_dot(descent, gradient, previous, &shared));
    *beta = formula == LS_FLETCHER_REEVES ? square / previous_square : fmax(0, (square - shared) / previous_square);
    if (fabs(shared) >= TOO_SIMILAR * square) {
        *beta = 0;
    }
    return LS_OK;
}

/* Computes direction = beta * direction - gradient. Sets *slope to the derivative of the loss along the direction. */
static ls_status conjugate(ls_descent *descent, double beta, double *slope) {
    LS_TRY(ls_vector_scale(descent, beta, descent->direction));
    LS_TRY(ls_vector_add(descent, -1, descent->gradient[0], descent->direction));
    return ls_vector_dot(descent, descent->gradient[0], descent->direction, slope);
}

/* Sets the number of directions between restarts. The default is the number of elements of all parameters. */
static ls_status find_restart(ls_descent *descent) {
    double directions = descent->optimizer->options.conjugate_gradient.restart_every;
    if (directions == 0) {
        for (int i = 0; i < descent->group->count; i++) {
            directions += (double)descent->group->slots[i].parameter->count;
        }
        LS_TRY(ls_descent_combine(descent, &directions, LS_SUM));
    }
    descent->restart_every = directions;
    return LS_OK;
}

static ls_status direct(ls_optimizer *optimizer, ls_descent *descent) {
    /* The step is 0 at the start, and if the last search found no lower loss. */
    if (descent->step == 0 || descent->forgets) {
        descent->restarted = descent->iterations;
        return ls_descent_steepest(descent, optimizer->groups[0].learning_rate);
    }
    double beta = 0, slope = 0;
    LS_TRY(descent->restart_every == 0 ? find_restart(descent) : LS_OK);
    if ((double)(descent->iterations - descent->restarted) < descent->restart_every) {
        LS_TRY(weigh(descent, optimizer->options.conjugate_gradient.formula, &beta));
    }
    LS_TRY(conjugate(descent, beta, &slope));
    if (beta != 0 && slope >= 0) {
        beta = 0;
        LS_TRY(conjugate(descent, 0, &slope));
    }
    descent->restarted = beta != 0 ? descent->restarted : descent->iterations;
    /*
     * The first trial step is chosen so that a linear loss would change by as much as in the last step (section 3.5).
     */
    descent->step *= descent->slope / slope;
    return LS_OK;
}

static ls_status conjugate_gradient_step(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss) {
    const ls_conjugate_gradient_options *options = &optimizer->options.conjugate_gradient;
    const ls_descent_options limits = {
        .max_iterations = options->max_iterations,
        .max_evaluations = options->max_evaluations,
        .tolerance_gradient = options->tolerance_gradient,
        .tolerance_change = options->tolerance_change,
        .searches = true,
        .curvature = 0.1,
    };
    return ls_descend(optimizer, &limits, direct, closure, user, loss);
}

static ls_status conjugate_gradient_make_room(const char *call, ls_optimizer *optimizer, const ls_named *given,
                                              int count) {
    (void)call;
    return ls_descent_make_room(optimizer, true, given, count);
}

static void conjugate_gradient_forget(ls_optimizer *optimizer) {
    ls_descent_free(optimizer->descent);
}

static int64_t conjugate_gradient_pending(const ls_optimizer *optimizer) {
    return ls_descent_pending(optimizer, true, 0);
}

static const ls_field fields[] = {LS_FIELD(ls_conjugate_gradient_options, formula),
                                  LS_FIELD(ls_conjugate_gradient_options, restart_every),
                                  LS_FIELD(ls_conjugate_gradient_options, max_iterations),
                                  LS_FIELD(ls_conjugate_gradient_options, max_evaluations),
                                  LS_FIELD(ls_conjugate_gradient_options, tolerance_gradient),
                                  LS_FIELD(ls_conjugate_gradient_options, tolerance_change),
                                  {.name = NULL}};

ls_optimizer *ls_conjugate_gradient(ls_module *model, const ls_conjugate_gradient_options *options) {
    static const ls_optimizer_type type = {.name = "ls_conjugate_gradient",
                                           .fields = fields,
                                           .step_closure = conjugate_gradient_step,
                                           .check_group = ls_descent_check_group,
                                           .list = ls_descent_list,
                                           .make_room = conjugate_gradient_make_room,
                                           .forget = conjugate_gradient_forget,
                                           .pending = conjugate_gradient_pending};
    ls_conjugate_gradient_options given = options != NULL ? *options : (ls_conjugate_gradient_options){0};
    if (given.formula != LS_POLAK_RIBIERE && given.formula != LS_FLETCHER_REEVES) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_conjugate_gradient: there is no formula %d", (int)given.formula);
    }
    if (ls_option_within(type.name, "restart_every", given.restart_every, 0, INT32_MAX) != LS_OK ||
        ls_descent_limits(type.name, 2.5, &given.max_iterations, &given.max_evaluations, &given.tolerance_gradient,
                          &given.tolerance_change) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.conjugate_gradient = given,
                                            .learning_rate = ls_option(given.learning_rate, 1),
                                            .comm = given.comm},
                            model);
}
