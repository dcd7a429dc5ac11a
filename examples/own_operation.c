/*
 * A custom solver inside a model: how well does each part of a rod conduct heat? The heat is known before and after one
 * implicit time step, (1 + L) after = before, where L contains the conductivities. The tridiagonal solver is an
 * operation whose gradient is its adjoint: another tridiagonal solve. Data-parallel over the samples.
 *
 *     lockstep run -n 2 build/examples/own_operation
 */
#include <lockstep/lockstep.h>

#include "arguments.h"

static long points = 32;
static long samples = 256;
static long batch_size = 32;
static long epochs = 40;
static bool quiet;

static const argument options[] = {
    {"--points", ARGUMENT_SIZE, &points, "points of the rod, at least 2 (32)"},
    {"--samples", ARGUMENT_SIZE, &samples, "measured samples, divided over the ranks (256)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "samples per step, of all ranks (32)"},
    {"--epochs", ARGUMENT_SIZE, &epochs, "passes over the data (40)"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- the operation: solves A x = b for x [rows, n]; A is given by its three diagonals [n] ------------------------ */

enum { BELOW, DIAGONAL, ABOVE, RIGHT, INPUTS };

/*
 * Solves one row by the Thomas algorithm (Golub and Van Loan, Matrix Computations, 4.3.6), which needs no pivoting if A
 * is diagonally dominant. If `turned` is set, uses the transpose of A.
 */
static bool solve_row(ls_tensor *const *inputs, bool turned, const double *b, double *x, double *ratio) {
    const int64_t n = ls_numel(inputs[DIAGONAL]);
    const double *below = ls_data_const(inputs[BELOW]), *diagonal = ls_data_const(inputs[DIAGONAL]),
                 *above = ls_data_const(inputs[ABOVE]);
    double pivot = 0;
    for (int64_t i = 0; i < n; i++) {
        const double left = i == 0 ? 0 : turned ? above[i - 1] : below[i];
        const double right = i == n - 1 ? 0 : turned ? below[i + 1] : above[i];
        pivot = diagonal[i] - (i > 0 ? left * ratio[i - 1] : 0);
        if (pivot == 0) {
            return false;
        }
        ratio[i] = right / pivot;
        x[i] = (b[i] - (i > 0 ? left * x[i - 1] : 0)) / pivot;
    }
    for (int64_t i = n - 2; i >= 0; i--) {
        x[i] -= ratio[i] * x[i + 1];
    }
    return true;
}

/* Solves the system for all rows of b. */
static ls_tensor *solve_rows(ls_custom_call *call, bool turned, ls_tensor *b) {
    const int64_t n = ls_numel(call->inputs[DIAGONAL]), rows = ls_size(b, 0);
    ls_tensor *x = ls_empty(ls_shape_of(b), LS_F64), *ratios = ls_empty(LS_SHAPE(n), LS_F64);
    for (int64_t row = 0; x != NULL && ratios != NULL && row < rows; row++) {
        const double *from = (const double *)ls_data_const(b) + row * n;
        if (!solve_row(call->inputs, turned, from, (double *)ls_data(x) + row * n, ls_data(ratios))) {
            (void)ls_error_set(LS_ERR_ARGUMENT, "tridiagonal_solve: the matrix is singular");
            return NULL;
        }
    }
    return x;
}

static ls_status solve_forward(ls_custom_call *call) {
    const int64_t n = ls_numel(call->inputs[DIAGONAL]);
    if (ls_ndim(call->inputs[RIGHT]) != 2 || ls_size(call->inputs[RIGHT], 1) != n ||
        ls_numel(call->inputs[BELOW]) != n || ls_numel(call->inputs[ABOVE]) != n) {
        return ls_error_set(LS_ERR_SHAPE,
                            "tridiagonal_solve: expected three diagonals [n] and a right-hand side [rows, n]");
    }
    call->outputs[0] = solve_rows(call, false, call->inputs[RIGHT]);
    return call->outputs[0] != NULL ? LS_OK : ls_error_status();
}

/* With A^T y = g, the gradient of b is y, and the gradient of A is -y x^T. Only its three diagonals are needed. */
static ls_status solve_backward(ls_custom_call *call) {
    ls_tensor *x = call->outputs[0], *y = solve_rows(call, true, call->output_gradients[0]);
    if (y == NULL) {
        return ls_error_status();
    }
    const int64_t n = ls_size(x, 1);
    ls_tensor *none = ls_zeros(LS_SHAPE(1), LS_F64), *dense = ls_neg(ls_sum_axes(ls_mul(y, x), LS_AXES(0), false));
    ls_tensor *low = ls_mul(ls_narrow(y, 1, 1, n - 1), ls_narrow(x, 1, 0, n - 1));
    ls_tensor *high = ls_mul(ls_narrow(y, 1, 0, n - 1), ls_narrow(x, 1, 1, n - 1));
    call->input_gradients[BELOW] = ls_concat((ls_tensor *[]){none, ls_neg(ls_sum_axes(low, LS_AXES(0), false))}, 2, 0);
    call->input_gradients[DIAGONAL] = dense;
    call->input_gradients[ABOVE] = ls_concat((ls_tensor *[]){ls_neg(ls_sum_axes(high, LS_AXES(0), false)), none}, 2, 0);
    call->input_gradients[RIGHT] = y;
    return LS_OK;
}

static const ls_custom_op tridiagonal_solve = {.name = "tridiagonal_solve",
                                               .forward = solve_forward,
                                               .backward = solve_backward,
                                               .by_sample = true,
                                               .on_host = true};

static ls_tensor *solve(ls_tensor **inputs, int count, void *user) {
    return ls_custom(&tridiagonal_solve, inputs, count, user, NULL);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Computes the heat after a time step. `conductivity` [n - 1] is defined between adjacent points. */
static ls_tensor *step_in_time(ls_tensor *conductivity, ls_tensor *before) {
    ls_tensor *none = ls_zeros(LS_SHAPE(1), LS_F64);
    ls_tensor *left = ls_concat((ls_tensor *[]){none, conductivity}, 2, 0);
    ls_tensor *right = ls_concat((ls_tensor *[]){conductivity, none}, 2, 0);
    ls_tensor *inputs[INPUTS] = {ls_neg(left), ls_add(ls_add(left, right), 1), ls_neg(right), before};
    return solve(inputs, INPUTS, NULL);
}

static ls_tensor *rod_forward(ls_module *self, ls_tensor *before) {
    return step_in_time(ls_softplus(ls_module_find(self, "conductivity")), before); /* keeps it positive */
}

static ls_module *make_rod(void) {
    static const ls_module_type type = {.name = "Rod", .forward = rod_forward};
    ls_module *rod = ls_module_new(&type);
    (void)ls_module_add_parameter(rod, "conductivity", ls_zeros(LS_SHAPE(points - 1), LS_F64));
    return ls_module_finish(rod);
}

/* The true conductivity: a good conductor with a crack in its middle. */
static ls_tensor *true_conductivity(void) {
    const long middle = (points - 1) / 2;
    ls_tensor *parts[] = {ls_full(LS_SHAPE(middle), LS_F64, 2), ls_full(LS_SHAPE(1), LS_F64, 0.1),
                          ls_full(LS_SHAPE(points - 2 - middle), LS_F64, 2)};
    return ls_concat(parts, 3, 0);
}

static ls_dataset *measure(void) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *before = ls_randn(LS_SHAPE(samples, points), LS_F64);
    ls_dataset *set = ls_tensor_dataset(before, step_in_time(true_conductivity(), before));
    return ls_scope_end(scope) == LS_OK ? set : NULL;
}

/* Compares the gradients of a small solve with finite differences. */
static ls_status check_gradients(void) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *inputs[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        inputs[i] = ls_rand(i == RIGHT ? LS_SHAPE(3, 5) : LS_SHAPE(5), LS_F64);
        inputs[i] = i == DIAGONAL ? ls_add(inputs[i], 3) : inputs[i];
        inputs[i] = ls_detach(inputs[i]);
        if (inputs[i] == NULL || ls_set_requires_grad(inputs[i], true) != LS_OK) {
            return ls_scope_end(scope);
        }
    }
    const ls_status status = ls_gradcheck(solve, inputs, INPUTS, NULL, NULL);
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static double error_of(ls_module *rod) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *found = ls_softplus(ls_detach(ls_module_parameter(rod, 0)));
    const double error = ls_item(ls_max(ls_abs(ls_sub(found, true_conductivity()))));
    (void)ls_scope_end(scope);
    return error;
}

static ls_status run(ls_comm *world) {
    ls_seed(1);
    ls_status status = check_gradients();
    if (status != LS_OK) {
        return status;
    }
    ls_module *rod = ls_data_parallel(make_rod(), world, NULL);
    ls_optimizer *optimizer = ls_adam(rod, &(ls_adam_options){.learning_rate = 0.1});
    const ls_loader_options loading = {.global_batch_size = batch_size, .comm = world};
    ls_loader *loader = ls_loader_new(measure(), &loading);
    const ls_trial_options trying = {.model = rod,
                                     .criterion = ls_criterion_mse,
                                     .optimizer = optimizer,
                                     .train = loader,
                                     .metrics = LS_METRICS("loss"),
                                     .quiet = quiet};
    ls_trial *trial = ls_trial_new(&trying);
    status = trial != NULL ? ls_trial_run(trial, epochs) : ls_error_status();
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        printf("gradients: match finite differences\n");
        printf("conductivity: maximum error %.1e\n", error_of(rod));
    }
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_optimizer_free(optimizer);
    ls_module_free(rod);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Finds how a rod conducts heat, through a solver with its own gradient.", options);
    if (points < 2) {
        fprintf(stderr, "own_operation: --points is %ld, but must be at least 2\n", points);
        return 2;
    }
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "own_operation: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
