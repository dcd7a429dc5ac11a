/*
 * Limited-memory BFGS: Nocedal and Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5. The choice of
 * stored pairs, the first steps and the limits are the same as in PyTorch.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "optim/descent.h"

/* A move s, and the resulting change y of the gradient. */
typedef struct pair {
    void *move;
    void *change;
    double inverse; /* rho = 1 / (y.s) */
    double alpha;   /* of the present direction */
} pair;

/* A ring buffer of pairs: the k-th oldest pair has index (oldest + k) % capacity. */
typedef struct history {
    int capacity;
    int oldest;
    int used;
    double scale; /* gamma of (7.20): the diagonal of the initial inverse Hessian approximation */
    pair pairs[];
} history;

static pair *pair_at(history *past, int k) {
    return &past->pairs[(past->oldest + k) % past->capacity];
}

static history *history_new(const char *call, int capacity) {
    const size_t bytes = sizeof(history) + (size_t)capacity * sizeof(pair);
    history *past = ls_allocate_zeroed(1, bytes);
    if (past == NULL) {
        (void)ls_fail_memory(call, bytes);
        return NULL;
    }
    past->capacity = capacity;
    past->scale = 1;
    return past;
}

/* Empties the ring buffer, but keeps the memory of its vectors. */
static void forget_pairs(history *past) {
    past->oldest = 0;
    past->used = 0;
    past->scale = 1;
}

/* Stores the last move if the curvature along it is positive. Replaces the oldest pair if the history is full. */
static ls_status remember(ls_descent *descent, history *past) {
    void *change = descent->gradient[1];
    double product = 0, square = 0;
    LS_TRY(ls_vector_copy(descent, change, descent->gradient[0]));
    LS_TRY(ls_vector_add(descent, -1, descent->previous_gradient, change));
    LS_TRY(ls_vector_dot(descent, change, descent->direction, &product));
    product *= descent->step;
    if (!(product > 1e-10)) {
        return LS_OK;
    }
    LS_TRY(ls_vector_dot(descent, change, change, &square));
    const bool full = past->used == past->capacity;
    pair *newest = pair_at(past, full ? 0 : past->used);
    newest->move = newest->move != NULL ? newest->move : ls_vector_new(descent);
    newest->change = newest->change != NULL ? newest->change : ls_vector_new(descent);
    if (newest->move == NULL || newest->change == NULL) {
        return ls_error_status();
    }
    /* The direction and gradient[1] are free here, so the pair can use their memory. */
    LS_TRY(ls_vector_scale(descent, descent->step, descent->direction));
    void *const move = newest->move;
    newest->move = descent->direction;
    descent->direction = move;
    descent->gradient[1] = newest->change;
    newest->change = change;
    newest->inverse = 1 / product;
    past->scale = product / square;
    past->oldest = full ? (past->oldest + 1) % past->capacity : past->oldest;
    past->used += full ? 0 : 1;
    return LS_OK;
}

/* Algorithm 7.4: direction = -H gradient. */
static ls_status two_loops(ls_descent *descent, history *past) {
    void *direction = descent->direction;
    double product = 0;
    LS_TRY(ls_vector_copy(descent, direction, descent->gradient[0]));
    LS_TRY(ls_vector_scale(descent, -1, direction));
    for (int k = past->used - 1; k >= 0; k--) {
        pair *each = pair_at(past, k);
        LS_TRY(ls_vector_dot(descent, each->move, direction, &product));
        each->alpha = product * each->inverse;
        LS_TRY(ls_vector_add(descent, -each->alpha, each->change, direction));
    }
    LS_TRY(ls_vector_scale(descent, past->scale, direction));
    for (int k = 0; k < past->used; k++) {
        const pair *each = pair_at(past, k);
        LS_TRY(ls_vector_dot(descent, each->change, direction, &product));
        LS_TRY(ls_vector_add(descent, each->alpha - product * each->inverse, each->move, direction));
    }
    return LS_OK;
}

static ls_status direct(ls_optimizer *optimizer, ls_descent *descent) {
    const double learning_rate = optimizer->groups[0].learning_rate;
    if (descent->memory == NULL) {
        descent->memory = history_new(optimizer->type->name, optimizer->options.lbfgs.history_size);
        if (descent->memory == NULL) {
            return ls_error_status();
        }
        return ls_descent_steepest(descent, learning_rate);
    }
    if (descent->forgets) {
        forget_pairs(descent->memory);
        return ls_descent_steepest(descent, learning_rate);
    }
    LS_TRY(remember(descent, descent->memory));
    LS_TRY(two_loops(descent, descent->memory));
    descent->step = learning_rate;
    return LS_OK;
}

static ls_status lbfgs_step(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss) {
    const ls_lbfgs_options *options = &optimizer->options.lbfgs;
    const ls_descent_options limits = {
        .max_iterations = options->max_iterations,
        .max_evaluations = options->max_evaluations,
        .tolerance_gradient = options->tolerance_gradient,
        .tolerance_change = options->tolerance_change,
        .searches = options->strong_wolfe,
        .curvature = 0.9,
    };
    return ls_descend(optimizer, &limits, direct, closure, user, loss);
}

static ls_status lbfgs_list(ls_optimizer *optimizer, ls_state_list *list) {
    LS_TRY(ls_descent_list(optimizer, list));
    history *past = optimizer->descent != NULL ? optimizer->descent->memory : NULL;
    if (past == NULL) {
        return LS_OK;
    }
    const ls_shape vector = ls_vector_shape(optimizer->descent);
    const ls_dtype dtype = optimizer->descent->dtype;
    const ls_device *device = optimizer->descent->group->device;
    LS_TRY(ls_state_add(list, "", (ls_state_word){"H_diag", LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_F64, &ls_cpu,
                        &past->scale));
    for (int k = 0; k < past->used; k++) {
        pair *each = pair_at(past, k);
        char number[16];
        snprintf(number, sizeof number, "%d", k);
        LS_TRY(
            ls_state_add(list, "old_stps", (ls_state_word){number, LS_STATE_ANY}, vector, dtype, device, each->move));
        LS_TRY(
            ls_state_add(list, "old_dirs", (ls_state_word){number, LS_STATE_ANY}, vector, dtype, device, each->change));
        LS_TRY(ls_state_add(list, "ro", (ls_state_word){number, LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_F64, &ls_cpu,
                            &each->inverse));
    }
    return LS_OK;
}

/* Makes room for the number of pairs in the given state. */
static ls_status lbfgs_make_room(const char *call, ls_optimizer *optimizer, const ls_named *given, int count) {
    const int capacity = optimizer->options.lbfgs.history_size;
    LS_TRY(ls_descent_make_room(optimizer, optimizer->options.lbfgs.strong_wolfe, given, count));
    ls_descent *descent = optimizer->descent;
    if (descent == NULL) {
        return LS_OK;
    }
    history *past = descent->memory = history_new(optimizer->type->name, capacity);
    if (past == NULL) {
        return ls_error_status();
    }
    for (int i = 0; i < count; i++) {
        if (strncmp(given[i].name, "old_stps.", 9) != 0) {
            continue;
        }
        if (past->used == capacity) {
            return ls_fail(LS_ERR_SHAPE, "%s: the state contains more steps than the history_size %d of this ls_lbfgs",
                           call, capacity);
        }
        pair *each = &past->pairs[past->used++];
        each->move = ls_vector_new(descent);
        each->change = each->move != NULL ? ls_vector_new(descent) : NULL;
        if (each->change == NULL) {
            return ls_error_status();
        }
    }
    return LS_OK;
}

static void lbfgs_forget(ls_optimizer *optimizer) {
    history *past = optimizer->descent != NULL ? optimizer->descent->memory : NULL;
    for (int i = 0; past != NULL && i < past->capacity; i++) {
        ls_vector_free(optimizer->descent, past->pairs[i].move);
        ls_vector_free(optimizer->descent, past->pairs[i].change);
    }
    ls_free(past);
    ls_descent_free(optimizer->descent);
}

static int64_t lbfgs_pending(const ls_optimizer *optimizer) {
    const ls_lbfgs_options *options = &optimizer->options.lbfgs;
    return ls_descent_pending(optimizer, options->strong_wolfe, options->history_size);
}

static const ls_field fields[] = {LS_FIELD(ls_lbfgs_options, history_size),
                                  LS_FIELD(ls_lbfgs_options, max_iterations),
                                  LS_FIELD(ls_lbfgs_options, max_evaluations),
                                  LS_FIELD(ls_lbfgs_options, tolerance_gradient),
                                  LS_FIELD(ls_lbfgs_options, tolerance_change),
                                  LS_FIELD(ls_lbfgs_options, strong_wolfe),
                                  {.name = NULL}};

ls_optimizer *ls_lbfgs(ls_module *model, const ls_lbfgs_options *options) {
    static const ls_optimizer_type type = {.name = "ls_lbfgs",
                                           .fields = fields,
                                           .step_closure = lbfgs_step,
                                           .check_group = ls_descent_check_group,
                                           .list = lbfgs_list,
                                           .make_room = lbfgs_make_room,
                                           .forget = lbfgs_forget,
                                           .pending = lbfgs_pending};
    ls_lbfgs_options given = options != NULL ? *options : (ls_lbfgs_options){0};
    given.history_size = given.history_size != 0 ? given.history_size : 100;
    if (ls_option_within("ls_lbfgs", "history_size", given.history_size, 1, 1e6) != LS_OK ||
        ls_descent_limits("ls_lbfgs", 1.25, &given.max_iterations, &given.max_evaluations, &given.tolerance_gradient,
                          &given.tolerance_change) != LS_OK) {
        return NULL;
    }
    return ls_optimizer_new(&(ls_optimizer){.type = &type,
                                            .options.lbfgs = given,
                                            .learning_rate = ls_option(given.learning_rate, 1),
                                            .comm = given.comm},
                            model);
}
