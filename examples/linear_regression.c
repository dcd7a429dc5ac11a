/*
 * mpi4torch's linear regression: finds the curve y = a + b x + c x^2 through 10,000 points, which are distributed over
 * the ranks. The program does not send gradients: the loss covers all points, and two calls to ls_allreduce carry
 * values forward and gradients back. The answer does not depend on the number of ranks.
 *
 *     lockstep run -n 4 build/examples/linear_regression
 */
#include <lockstep/lockstep.h>

#include "arguments.h"

static long points = 10000;
static long fits = 1;
static long seed = 42;
static bool quiet;

static const argument options[] = {
    {"--points", ARGUMENT_SIZE, &points, "total number, divided over the ranks (10000)"},
    {"--fits", ARGUMENT_SIZE, &fits, "repetitions of the fit, for measurements (1)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of the points (42)"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

static const double truth[] = {0.1, 1, -2};

typedef struct problem {
    ls_comm *world;
    ls_tensor *x; /* this rank's points */
    ls_tensor *y;
    ls_tensor *parameters; /* a, b, c */
} problem;

static ls_tensor *curve(ls_tensor *x, ls_tensor *p) {
    ls_tensor *slope = ls_add(ls_mul(x, ls_select(p, 0, 2)), ls_select(p, 0, 1));
    return ls_add(ls_mul(slope, x), ls_select(p, 0, 0));
}

/* Makes this rank's share of the points. If the number of points is not divisible by the number of ranks, the first
 * ranks have one more point. */
static ls_status make_points(problem *self) {
    const long rank = ls_comm_rank(self->world), size = ls_comm_size(self->world);
    const long share = points / size, rest = points % size;
    const long begin = share * rank + (rank < rest ? rank : rest);
    ls_scope *scope = ls_scope_begin();
    ls_seed((uint64_t)seed);
    ls_tensor *all = ls_mul(ls_rand(LS_SHAPE(points), LS_F64), 2);
    self->x = ls_keep(ls_clone(ls_narrow(all, 0, begin, share + (rank < rest))));
    self->y = ls_keep(curve(self->x, ls_from(LS_SHAPE(3), LS_F64, truth)));
    return ls_scope_end(scope);
}

/* Returns the same number on every rank. */
static ls_tensor *loss_of_all_points(const problem *self) {
    /* Forward: the mean of all ranks' parameters. Backward: the gradients of all shares are combined. */
    ls_tensor *p = ls_allreduce(self->world, self->parameters, LS_AVG);
    ls_tensor *share = ls_mse_loss(curve(self->x, p), self->y, LS_LOSS_SUM);
    return ls_allreduce(self->world, share, LS_SUM);
}

static void print_parameters(const char *name, const problem *self) {
    double p[3];
    for (int64_t i = 0; i < 3; i++) {
        p[i] = ls_at(self->parameters, &i);
    }
    printf("%s: [%.17g, %.17g, %.17g]\n", name, p[0], p[1], p[2]);
}

static ls_status evaluate(void *user, double *value) {
    const problem *self = user;
    ls_tensor *loss = loss_of_all_points(self);
    *value = ls_item(loss);
    if (ls_comm_rank(self->world) == 0 && !quiet) {
        print_parameters("Params", self);
        printf("Loss: %.17g\n", *value);
    }
    return ls_backward(loss);
}

/* Starts at [0, 1, 2], and stops when the gradient is almost zero. */
static ls_status fit(problem *self) {
    ls_scope *scope = ls_scope_begin();
    self->parameters = ls_keep(ls_arange(LS_SHAPE(3), LS_F64));
    ls_status status = ls_scope_end(scope);
    ls_optimizer *optimizer =
        ls_lbfgs(NULL, &(ls_lbfgs_options){.tolerance_gradient = 1e-10, .tolerance_change = 1e-30});
    if (status == LS_OK) {
        status = optimizer != NULL ? ls_set_requires_grad(self->parameters, true) : ls_error_status();
    }
    if (status == LS_OK) {
        status = ls_optimizer_add_group(optimizer, &self->parameters, 1, NULL);
    }
    if (status == LS_OK) {
        status = ls_optimizer_step_closure(optimizer, evaluate, self, NULL);
    }
    ls_optimizer_free(optimizer);
    return status;
}

static ls_status run(ls_comm *world) {
    problem self = {.world = world};
    ls_status status = make_points(&self);
    double began = ls_clock_seconds();
    for (long i = 0; i < fits && status == LS_OK; i++) {
        if (i == fits / 10) { /* the fits before this one were the warm-up */
            began = ls_clock_seconds();
        }
        ls_release(self.parameters);
        status = fit(&self);
    }
    const double seconds = ls_clock_seconds() - began;
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        print_parameters("Final parameters", &self);
        if (fits > 1) {
            printf("throughput: %.1f fits/s\n", (double)(fits - fits / 10) / seconds);
        }
    }
    ls_release(self.parameters);
    ls_release(self.x);
    ls_release(self.y);
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Fits a curve through points that the ranks share.", options);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "linear_regression: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
