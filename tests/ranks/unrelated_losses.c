/*
 * Losses that do not use the output of a data-parallel module while a forward pass of the module is on the tape. If a
 * loss depends on neither the parameters nor the output, its gradients are this rank's, unscaled, even if the ranks
 * have different numbers of samples. If the loss depends on the parameters, on an activation, or also on the output,
 * the module still gets the gradients of one process.
 *
 * ranks: 1 2 3
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/elements.h"

enum { INPUTS = 3, HIDDEN = 4, SEED = 23, LEAF = 3 };

/* ---- models and batches ------------------------------------------------------------------------------------------ */

typedef struct trainee {
    ls_module *model;
    ls_tensor *hidden; /* an activation of the last forward pass */
    ls_tensor *input;  /* this rank's share, or all samples */
} trainee;

static ls_tensor *expose(ls_tensor *x, void *user) {
    ((trainee *)user)->hidden = x;
    return x;
}

static ls_module *make(trainee *who, bool normalized) {
    const ls_linear_options linear = {.dtype = LS_F64};
    const ls_batch_norm_options norm = {.dtype = LS_F64};
    ls_seed(SEED);
    ls_module *first = ls_nn_linear_with(INPUTS, HIDDEN, &linear);
    ls_module *last = ls_nn_linear_with(HIDDEN, 2, &linear);
    ls_module *activation = ls_nn_function("Expose", expose, who);
    return normalized ? ls_sequential(first, ls_nn_batch_norm_1d(HIDDEN, &norm), ls_nn_tanh(), activation, last)
                      : ls_sequential(first, ls_nn_tanh(), activation, last);
}

/* How ranks share the batch, and how the module averages gradients. */
typedef struct setting {
    bool uneven;
    bool normalized;
    int zero;
    bool no_sync;
} setting;

enum { SETTINGS = 16 };

static setting setting_of(int number) {
    return (setting){.uneven = (number & 1) != 0,
                     .normalized = (number & 2) != 0,
                     .zero = (number & 4) != 0 ? 2 : 0,
                     .no_sync = (number & 8) != 0};
}

static int64_t first_of(const setting *s, int rank) {
    return s->uneven ? 2 * rank + rank * (rank - 1) / 2 : 3 * rank; /* shares of 2, 3 and 4 samples */
}

typedef struct pair {
    trainee all;   /* the data-parallel module */
    trainee alone; /* one process */
} pair;

static ls_status begin(ls_comm *world, const setting *s, pair *p) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    p->all = p->alone = (trainee){.model = NULL};
    p->alone.model = make(&p->alone, s->normalized);
    p->all.model = ls_data_parallel(make(&p->all, s->normalized), world, &(ls_data_parallel_options){.zero = s->zero});
    LS_CHECK(p->alone.model != NULL && p->all.model != NULL);
    p->alone.input = ls_randn(LS_SHAPE(first_of(s, size), INPUTS), LS_F64);
    const int64_t first = first_of(s, rank);
    p->all.input = ls_narrow(p->alone.input, 0, first, first_of(s, rank + 1) - first);
    return LS_OK;
}

static void end(pair *p) {
    ls_module_free(p->all.model);
    ls_module_free(p->alone.model);
}

/* A leaf that belongs to no module: 1, 2, 3. */
static ls_tensor *make_leaf(void) {
    const double numbers[LEAF] = {1, 2, 3};
    ls_tensor *leaf = ls_from(LS_SHAPE(LEAF), LS_F64, numbers);
    return ls_set_requires_grad(leaf, true) == LS_OK ? leaf : NULL;
}

static bool is_close(double a, double b) {
    return fabs(a - b) <= 1e-10 * (1 + fabs(b));
}

static ls_status leaf_has(const ls_tensor *leaf, double factor) {
    LS_CHECK(ls_grad(leaf) != NULL);
    const double *gradient = elements(ls_grad(leaf));
    for (int i = 0; i < LEAF; i++) {
        LS_CHECK(is_close(gradient[i], factor * (i + 1)));
    }
    return LS_OK;
}

/* Compares gradients through the parameters after a step of SGD, because .zero divides the gradients. */
static ls_status compare_gradients(const pair *p) {
    const ls_sgd_options options = {.learning_rate = 1};
    ls_optimizer *all = ls_sgd(p->all.model, &options), *alone = ls_sgd(p->alone.model, &options);
    LS_TRY(ls_optimizer_step(all));
    LS_TRY(ls_optimizer_step(alone));
    ls_optimizer_free(all);
    ls_optimizer_free(alone);
    for (int i = 0; i < ls_module_parameter_count(p->alone.model); i++) {
        const ls_tensor *expected = ls_module_parameter(p->alone.model, i);
        const ls_tensor *trained = ls_module_parameter(p->all.model, i);
        for (int64_t k = 0; k < ls_numel(expected); k++) {
            LS_CHECK(is_close(((const double *)elements(trained))[k], ((const double *)elements(expected))[k]));
        }
    }
    return LS_OK;
}

/* ---- losses that do not depend on the module --------------------------------------------------------------------- */

typedef enum kind { MEAN, SUM, SEEDED, LEAF_ITSELF, OTHER_MODULE, REDUCED, KINDS } kind;

/*
 * Runs a backward pass from a loss of `leaf` alone. *factor gets the gradient of an element divided by the element.
 */
static ls_status pass_of_leaf(ls_comm *world, kind how, ls_tensor *leaf, double *factor) {
    ls_tensor *square = ls_square(leaf);
    *factor = how == MEAN || how == OTHER_MODULE ? 2.0 / LEAF : how == REDUCED ? 2.0 * ls_comm_size(world) : 2;
    switch (how) {
    case MEAN:
        return ls_backward(ls_mean(square));
    case SUM:
        return ls_backward(ls_sum(square));
    case SEEDED:
        return ls_backward_with(square, &(ls_backward_options){.gradient = ls_ones(LS_SHAPE(LEAF), LS_F64)});
    case REDUCED: /* the backward pass adds up the gradients of all ranks */
        return ls_backward(ls_allreduce(world, ls_sum(square), LS_SUM));
    default: {
        ls_module *model = ls_nn_linear_with(LEAF, LEAF, &(ls_linear_options){.dtype = LS_F64});
        LS_TRY(ls_nn_init_constant(ls_module_parameter(model, 0), 0));
        double *weight = elements(ls_module_parameter(model, 0));
        for (int i = 0; i < LEAF; i++) {
            weight[i * LEAF + i] = 1;
        }
        LS_TRY(ls_nn_init_constant(ls_module_parameter(model, 1), 0));
        const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, leaf))));
        ls_module_free(model);
        return status;
    }
    }
}

static ls_status unrelated(ls_comm *world, const setting *s, kind how) {
    pair p;
    ls_scope *scope = ls_scope_begin();
    LS_TRY(begin(world, s, &p));
    ls_tensor *leaf = make_leaf(), *one = ls_from(LS_SHAPE(1), LS_F64, (const double[]){1});
    LS_TRY(ls_set_requires_grad(one, true));
    LS_TRY(ls_data_parallel_no_sync(p.all.model, s->no_sync));
    ls_tensor *output = ls_forward(p.all.model, p.all.input);
    double factor = 0;
    if (how == LEAF_ITSELF) {
        LS_TRY(ls_backward(one));
        LS_CHECK(((const double *)elements(ls_grad(one)))[0] == 1);
    } else {
        LS_TRY(pass_of_leaf(world, how, leaf, &factor));
        LS_TRY(leaf_has(leaf, factor));
    }
    LS_TRY(ls_data_parallel_no_sync(p.all.model, false));
    LS_TRY(ls_backward(ls_mean(ls_square(output)))); /* the module's own pass is still right */
    LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(p.alone.model, p.alone.input)))));
    LS_TRY(compare_gradients(&p));
    end(&p);
    return ls_scope_end(scope);
}

/* ---- losses that depend on the module ---------------------------------------------------------------------------- */

/* The sum of the squares of the first parameter counts once. */
static ls_tensor *sum_of_squares_of_first_parameter(const trainee *who) {
    return ls_sum(ls_square(ls_module_parameter(who->model, 0)));
}

/* A mean of an activation is a mean over samples, although it does not use the output. */
static ls_tensor *mean_square_of_activation(const trainee *who) {
    return ls_mean(ls_square(who->hidden));
}

static ls_status related(ls_comm *world, const setting *s, ls_tensor *(*loss_of)(const trainee *who)) {
    pair p;
    ls_scope *scope = ls_scope_begin();
    LS_TRY(begin(world, s, &p));
    LS_CHECK(ls_forward(p.all.model, p.all.input) != NULL && ls_forward(p.alone.model, p.alone.input) != NULL);
    LS_TRY(ls_backward(loss_of(&p.all)));
    LS_TRY(ls_backward(loss_of(&p.alone)));
    LS_TRY(compare_gradients(&p));
    end(&p);
    return ls_scope_end(scope);
}

static ls_tensor *loss_of_both(const trainee *who, ls_tensor *leaf) {
    return ls_add(ls_mean(ls_square(ls_forward(who->model, who->input))), ls_sum(ls_square(leaf)));
}

/* If a loss also depends on a leaf outside the module, the average over the ranks is the gradient of one process. */
static ls_status of_both(ls_comm *world, const setting *s) {
    pair p;
    ls_scope *scope = ls_scope_begin();
    LS_TRY(begin(world, s, &p));
    ls_tensor *leaf = make_leaf();
    LS_TRY(ls_backward(loss_of_both(&p.all, leaf)));
    LS_TRY(ls_backward(loss_of_both(&p.alone, make_leaf())));
    LS_TRY(compare_gradients(&p));
    double *gradient = elements(ls_grad(leaf));
    LS_TRY(ls_comm_allreduce(world, gradient, gradient, LEAF, LS_F64, LS_AVG, NULL));
    LS_TRY(leaf_has(leaf, 2));
    end(&p);
    return ls_scope_end(scope);
}

/* Two modules are on the tape, and the loss depends on one of them or on neither. */
static ls_status two_modules(ls_comm *world, const setting *s) {
    for (int used = 0; used < 3; used++) {
        pair p[2];
        ls_scope *scope = ls_scope_begin();
        ls_tensor *leaf = make_leaf();
        for (int i = 0; i < 2; i++) {
            LS_TRY(begin(world, s, &p[i]));
            LS_CHECK(ls_forward(p[i].all.model, p[i].all.input) != NULL);
            LS_CHECK(ls_forward(p[i].alone.model, p[i].alone.input) != NULL);
        }
        if (used < 2) {
            LS_TRY(ls_backward(ls_mean(ls_square(p[used].all.hidden))));
            LS_TRY(ls_backward(ls_mean(ls_square(p[used].alone.hidden))));
        } else {
            LS_TRY(ls_backward(ls_mean(ls_square(leaf))));
            LS_TRY(leaf_has(leaf, 2.0 / LEAF));
        }
        for (int i = 0; i < 2; i++) {
            LS_TRY(compare_gradients(&p[i]));
            end(&p[i]);
        }
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const bool cpu = strcmp(ls_default_device(), "cpu") == 0;
    for (int number = 0; number < SETTINGS; number++) {
        const setting s = setting_of(number);
        if (s.zero > 0 && !cpu) {
            continue; /* .zero = 2 needs a CPU */
        }
        for (kind how = 0; how < KINDS; how++) {
            LS_TRY(unrelated(world, &s, how));
        }
        if (!s.no_sync) {
            /* .zero = 2 refuses a loss of a parameter */
            LS_TRY(s.zero == 0 ? related(world, &s, sum_of_squares_of_first_parameter) : LS_OK);
            LS_TRY(related(world, &s, mean_square_of_activation));
            LS_TRY(of_both(world, &s));
            LS_TRY(s.zero == 0 ? two_modules(world, &s) : LS_OK);
        }
    }
    return LS_OK;
}
