/*
 * A line search for the strong Wolfe conditions (Nocedal and Wright, 2nd ed., (3.7)). Algorithm 3.5 brackets a point
 * that satisfies them. Algorithm 3.6 narrows the bracket by cubic interpolation (3.59). Limits and safeguards are the
 * same as in PyTorch's LBFGS, so that both take the same paths. A point whose loss is not finite counts as too high. If
 * the interpolation fails, the interval is halved.
 */
#include "optim/descent.h"

#include <math.h>

enum { MAX_EVALUATIONS = 25 }; /* after the first */

#define DECREASE 1e-4 /* c1 of (3.7a) */

typedef struct point {
    double step;
    double loss;
    double slope; /* derivative of the loss with respect to the step */
    void *gradient;
} point;

typedef struct line_search {
    ls_descent *descent;
    point start;
    double curvature;
    int evaluations;
} line_search;

static void swap_points(point *a, point *b) {
    const point held = *a;
    *a = *b;
    *b = held;
}

/* Evaluates the loss at `step`, and stores the loss and the gradient in the point. */
static ls_status evaluate(line_search *search, double step, point *at) {
    ls_descent *descent = search->descent;
    at->step = step;
    LS_TRY(ls_descent_place(descent, step));
    LS_TRY(ls_descent_evaluate(descent, at->gradient, &at->loss));
    LS_TRY(ls_vector_dot(descent, at->gradient, descent->direction, &at->slope));
    if (!isfinite(at->loss) || !isfinite(at->slope)) {
        at->loss = INFINITY;
    }
    return LS_OK;
}

/* Returns whether (3.7a) is violated. */
static bool is_high(const line_search *search, const point *at) {
    return at->loss > search->start.loss + DECREASE * at->step * search->start.slope;
}

/* Returns whether (3.7b) is satisfied. */
static bool is_flat(const line_search *search, const point *at) {
    return fabs(at->slope) <= -search->curvature * search->start.slope;
}

/*
 * Returns the minimum in [low, high] of the cubic that interpolates both points and their slopes, or the midpoint if
 * there is no minimum.
 */
static double interpolate(const point *a, const point *b, double low, double high) {
    const point *left = a->step <= b->step ? a : b;
    const point *right = left == a ? b : a;
    const double d1 = left->slope + right->slope - 3 * (left->loss - right->loss) / (left->step - right->step);
    const double d2 = sqrt(d1 * d1 - left->slope * right->slope);
    const double width = right->step - left->step;
    const double lowest = right->step - width * ((right->slope + d2 - d1) / (right->slope - left->slope + 2 * d2));
    return isfinite(lowest) ? fmin(fmax(lowest, low), high) : (low + high) / 2;
}

/*
 * Algorithm 3.5: extends the step until `ends` bracket a good point. If it finds a good point itself, sets both ends to
 * this point, and *found to true. `spare` is memory for a gradient. The gradient of the start is overwritten too.
 */
static ls_status bracket(line_search *search, double step, void *spare, point ends[2], bool *found) {
    ls_descent *descent = search->descent;
    point previous = search->start;
    point at = {.gradient = spare};
    LS_TRY(evaluate(search, step, &at));
    for (; search->evaluations < MAX_EVALUATIONS; search->evaluations++) {
        const bool rises = is_high(search, &at) || (search->evaluations > 1 && at.loss >= previous.loss);
        *found = !rises && is_flat(search, &at);
        if (rises || *found || at.slope >= 0) {
            ends[0] = *found ? at : previous;
            ends[1] = at;
            return LS_OK;
        }
        const double next = interpolate(&previous, &at, at.step + 0.01 * (at.step - previous.step), 10 * at.step);
        swap_points(&previous, &at);
        LS_TRY(evaluate(search, next, &at));
    }
    /* The loss decreased in all steps. The gradient at the start may be overwritten, because the descent has a copy. */
    LS_TRY(ls_vector_copy(descent, previous.gradient, descent->previous_gradient));
    ends[0] = search->start;
    ends[0].gradient = previous.gradient;
    ends[1] = at;
    return LS_OK;
}

/*
 * Returns the next trial step in the bracket: the minimum of the cubic. If this minimum is at an end, or is close to an
 * end for the second time in a row (*stuck), returns the point at a distance of 10 percent of the bracket from this
 * end.
 */
static double next_step(const point ends[2], bool *stuck) {
    const double low = fmin(ends[0].step, ends[1].step);
    const double high = fmax(ends[0].step, ends[1].step);
    const double margin = 0.1 * (high - low);
    const double step = interpolate(&ends[0], &ends[1], low, high);
    const bool close = fmin(high - step, step - low) < margin;
    const bool push = close && (*stuck || step >= high || step <= low);
    *stuck = close && !push;
    if (!push) {
        return step;
    }
    return fabs(step - high) < fabs(step - low) ? high - margin : low + margin;
}

/* Algorithm 3.6: narrows the bracket around a good point. Sets *lowest to the index of the better end. */
static ls_status zoom(line_search *search, const ls_descent_options *options, void *spare, point ends[2], int *lowest) {
    double largest = 0;
    const ls_descent *descent = search->descent;
    LS_TRY(ls_vector_largest(descent, descent->direction, &largest));
    point at = {.gradient = spare};
    bool stuck = false;
    while (search->evaluations < MAX_EVALUATIONS &&
           !(fabs(ends[1].step - ends[0].step) * largest < options->tolerance_change)) {
        LS_TRY(evaluate(search, next_step(ends, &stuck), &at));
        search->evaluations++;
        point *low = &ends[*lowest], *high = &ends[1 - *lowest];
        if (is_high(search, &at) || at.loss >= low->loss) {
            swap_points(high, &at);
            *lowest = ends[0].loss <= ends[1].loss ? 0 : 1;
            continue;
        }
        const bool found = is_flat(search, &at);
        if (!found && at.slope * (high->step - low->step) >= 0) {
            swap_points(high, low);
        }
        swap_points(low, &at);
        if (found) {
            break;
        }
    }
    return LS_OK;
}

/* Makes `at` the current point of the descent. */
static ls_status settle(ls_descent *descent, const point *at) {
    for (int i = 1; i < LS_DESCENT_GRADIENTS; i++) {
        if (descent->gradient[i] == at->gradient) {
            descent->gradient[i] = descent->gradient[0];
            descent->gradient[0] = at->gradient;
        }
    }
    descent->step = at->step;
    descent->loss = at->loss;
    return ls_descent_place(descent, at->step);
}

static ls_status run(line_search *search, const ls_descent_options *options) {
    ls_descent *descent = search->descent;
    point ends[2];
    bool found = false;
    LS_TRY(bracket(search, descent->step, descent->gradient[1], ends, &found));
    int lowest = ends[0].loss <= ends[1].loss ? 0 : 1;
    if (!found) {
        LS_TRY(zoom(search, options, descent->gradient[2], ends, &lowest));
    }
    return settle(descent, &ends[lowest]);
}

ls_status ls_line_search(ls_descent *descent, const ls_descent_options *options) {
    line_search search = {
        .descent = descent,
        .start = {.loss = descent->loss, .slope = descent->slope, .gradient = descent->gradient[0]},
        .curvature = options->curvature,
    };
    const ls_status status = run(&search, options);
    if (status != LS_OK) {
        (void)ls_descent_place(descent, 0);
    }
    return status;
}
