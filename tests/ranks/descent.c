/*
 * L-BFGS and conjugate gradients on several ranks. With replicated parameters, all ranks take bit-identical steps. With
 * parameters sharded over the ranks (.comm), the steps equal the steps of one rank with all parameters.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/share.h"

enum { POINTS = 501, STEPS = 3 };

typedef struct problem {
    ls_comm *world;
    ls_tensor *x, *y; /* this rank's points; the first ranks have one more */
    ls_tensor *p;
    int evaluations;
} problem;

/* y = p0 tanh(p1 x) + p2 */
static ls_tensor *curve(ls_tensor *x, ls_tensor *p) {
    return ls_add(ls_mul(ls_tanh(ls_mul(x, ls_select(p, 0, 1))), ls_select(p, 0, 0)), ls_select(p, 0, 2));
}

static ls_status make_points(problem *self, ls_dtype dtype) {
    const int64_t size = ls_comm_size(self->world), rank = ls_comm_rank(self->world);
    const double truth[] = {1.5, 0.7, -0.25}, start[] = {1, 1, 1};
    ls_scope *scope = ls_scope_begin();
    ls_seed(5);
    ls_tensor *all = ls_mul(ls_sub(ls_rand(LS_SHAPE(POINTS), dtype), 0.5), 6);
    self->x = ls_keep(ls_clone(ls_slice(all, 0, rank, POINTS, size)));
    self->y = ls_keep(curve(self->x, ls_to(ls_from(LS_SHAPE(3), LS_F64, truth), dtype)));
    self->p = ls_keep(ls_clone(ls_to(ls_from(LS_SHAPE(3), LS_F64, start), dtype)));
    LS_TRY(ls_scope_end(scope));
    return ls_set_requires_grad(self->p, true);
}

static ls_status evaluate(void *user, double *value) {
    problem *self = user;
    ls_tensor *p = ls_allreduce(self->world, self->p, LS_AVG);
    ls_tensor *loss = ls_allreduce(self->world, ls_mse_loss(curve(self->x, p), self->y, LS_LOSS_SUM), LS_SUM);
    self->evaluations++;
    *value = ls_item(loss);
    return ls_backward(loss);
}

/* Checks that every rank has rank 0's parameters, made the same number of evaluations, and stopped for the same
 * reason. */
static ls_status compare(const problem *self, const ls_optimizer *optimizer) {
    const ls_step_info info = ls_optimizer_last_step(optimizer);
    double mine[7] = {self->evaluations, info.evaluations, info.iterations, info.reason}, first[7];
    for (int64_t i = 0; i < 3; i++) {
        mine[i + 4] = ls_at(self->p, &i);
    }
    LS_CHECK(info.reason > LS_STOP_ONE_STEP && info.iterations > 0 && info.evaluations > 0);
    memcpy(first, mine, sizeof mine);
    LS_TRY(ls_comm_broadcast(self->world, first, 7, LS_F64, 0, NULL));
    LS_CHECK(memcmp(first, mine, sizeof mine) == 0);
    return LS_OK;
}

static ls_status fit(ls_comm *world, ls_optimizer *optimizer, ls_dtype dtype, double tolerance) {
    problem self = {.world = world};
    LS_CHECK(optimizer != NULL);
    LS_TRY(make_points(&self, dtype));
    LS_TRY(ls_optimizer_add_group(optimizer, &self.p, 1, NULL));
    for (int step = 0; step < STEPS; step++) {
        LS_TRY(ls_optimizer_step_closure(optimizer, evaluate, &self, NULL));
        LS_TRY(compare(&self, optimizer));
    }
    LS_CHECK(fabs(ls_at(self.p, (int64_t[]){0}) - 1.5) < tolerance);
    LS_CHECK(fabs(ls_at(self.p, (int64_t[]){1}) - 0.7) < tolerance);
    LS_CHECK(fabs(ls_at(self.p, (int64_t[]){2}) + 0.25) < tolerance);
    ls_optimizer_free(optimizer);
    ls_release(self.p);
    ls_release(self.x);
    ls_release(self.y);
    return LS_OK;
}

/* ---- a field that is sharded over the ranks ---------------------------------------------------------------------- */

/* The sum of cosh(k (x - 1)) + x^2 / 2 over points k = 1 to n. A rank has `count` points, beginning with `first`. */
typedef struct field {
    ls_comm *comm; /* NULL if this process has all points */
    int64_t first, count;
    ls_tensor *x;
    bool local_loss; /* simulates a mistake: the loss is not summed over the ranks */
    int fails;       /* number of the evaluation in which the last rank fails; 0 means never */
    bool early;      /* before it communicates */
    int evaluations;
    ls_step_info last_step;
} field;

/* The all-reduces of an evaluation. Every rank makes all of them, even if one fails. */
static ls_status add_up(const field *self, double *value) {
    double again = *value;
    const ls_status status = ls_comm_allreduce(self->comm, value, value, 1, LS_F64, LS_SUM, NULL);
    const ls_status second = ls_comm_allreduce(self->comm, &again, &again, 1, LS_F64, LS_SUM, NULL);
    return status != LS_OK ? status : second;
}

static ls_status evaluate_field(void *user, double *value) {
    field *self = user;
    const bool fails = ++self->evaluations == self->fails && ls_comm_rank(self->comm) == ls_comm_size(self->comm) - 1;
    if (fails && self->early) {
        return ls_error_set(LS_ERR_ARGUMENT, "the field is rough");
    }
    ls_tensor *k = ls_div(ls_add(ls_arange(LS_SHAPE(self->count), LS_F64), (double)(self->first + 1)), 4.0);
    ls_tensor *scaled = ls_mul(k, ls_sub(self->x, 1));
    ls_tensor *cosh2 = ls_add(ls_exp(scaled), ls_exp(ls_neg(scaled)));
    ls_tensor *loss = ls_sum(ls_add(ls_mul(cosh2, 0.5), ls_mul(ls_square(self->x), 0.5)));
    LS_TRY(ls_backward(loss));
    *value = ls_item(loss);
    LS_TRY(self->comm == NULL || self->local_loss ? LS_OK : add_up(self, value));
    return fails ? ls_error_set(LS_ERR_ARGUMENT, "the field is rough") : LS_OK;
}

static ls_status fit_field(field *self, ls_optimizer *optimizer, double *loss) {
    LS_CHECK(optimizer != NULL);
    ls_scope *scope = ls_scope_begin();
    self->x = ls_keep(ls_zeros(LS_SHAPE(self->count), LS_F64));
    LS_TRY(ls_scope_end(scope));
    LS_TRY(ls_set_requires_grad(self->x, true));
    LS_TRY(ls_optimizer_add_group(optimizer, &self->x, 1, NULL));
    ls_status status = LS_OK;
    for (int step = 0; step < STEPS && status == LS_OK; step++) {
        self->evaluations = self->fails == 0 ? 0 : self->evaluations;
        status = ls_optimizer_step_closure(optimizer, evaluate_field, self, loss);
    }
    self->last_step = ls_optimizer_last_step(optimizer);
    ls_optimizer_free(optimizer);
    return status;
}

typedef ls_optimizer *(*method)(ls_comm *comm);

static ls_optimizer *fixed_steps(ls_comm *comm) {
    return ls_lbfgs(NULL, &(ls_lbfgs_options){.comm = comm, .max_iterations = 4, .learning_rate = 0.5});
}

static ls_optimizer *searches(ls_comm *comm) {
    return ls_lbfgs(NULL, &(ls_lbfgs_options){.comm = comm, .max_iterations = 4, .strong_wolfe = true});
}

static ls_optimizer *conjugate(ls_comm *comm) {
    return ls_conjugate_gradient(NULL, &(ls_conjugate_gradient_options){.comm = comm, .max_iterations = 4});
}

/* Fits `points` points, once sharded over the ranks and once in one process. If there are few points, some ranks
 * have none. */
static ls_status fit_sharded(ls_comm *world, method make, int64_t points) {
    const ls_share share = ls_share_of(points, ls_comm_size(world), ls_comm_rank(world));
    field part = {.comm = world, .first = share.start, .count = share.count};
    field all = {.count = points};
    double loss = 0, expected = 0;
    LS_TRY(fit_field(&part, make(world), &loss));
    LS_TRY(fit_field(&all, make(NULL), &expected));
    LS_CHECK(fabs(loss - expected) < 1e-9 * expected);
    LS_CHECK(part.last_step.reason == all.last_step.reason && part.last_step.iterations == all.last_step.iterations);
    LS_CHECK(part.last_step.evaluations == part.evaluations && part.evaluations == all.evaluations);
    for (int64_t i = 0; i < part.count; i++) {
        const int64_t there = part.first + i;
        LS_CHECK(fabs(ls_at(part.x, &i) - ls_at(all.x, &there)) < 1e-9);
    }
    ls_release(part.x);
    ls_release(all.x);
    return LS_OK;
}

static ls_status refuse_local_losses(ls_comm *world) {
    field part = {.comm = world, .first = ls_comm_rank(world), .count = 1, .local_loss = true};
    double loss = 0;
    const ls_status status = fit_field(&part, searches(world), &loss);
    LS_CHECK(status == (ls_comm_size(world) > 1 ? LS_ERR_MISMATCH : LS_OK));
    LS_CHECK(status == LS_OK || strstr(ls_error_message(), "sum the loss over these ranks") != NULL);
    ls_release(part.x);
    return LS_OK;
}

/* Checks the errors after one rank failed: it keeps its error, and the errors of the other ranks name it. All ranks
 * can continue together. */
static ls_status check_failure(ls_comm *world, ls_status status, ls_status expected, const char *says) {
    char names[32];
    const int last = ls_comm_size(world) - 1;
    snprintf(names, sizeof names, "rank %d of .comm", last);
    LS_CHECK(status == (ls_comm_rank(world) == last ? expected : LS_ERR_MISMATCH));
    LS_EXPECT_MESSAGE(ls_comm_rank(world) == last ? says : names);
    return ls_comm_barrier(world, NULL);
}

static ls_status fail_on_last_rank(ls_comm *world, method make) {
    for (int fails = 1; fails <= 3; fails++) {
        for (int early = 0; early <= 1; early++) {
            field part = {.comm = world, .first = ls_comm_rank(world), .count = 1, .fails = fails, .early = early != 0};
            double loss = 0;
            const ls_status status = fit_field(&part, make(world), &loss);
            LS_TRY(check_failure(world, status, LS_ERR_ARGUMENT, "the field is rough"));
            ls_release(part.x);
        }
    }
    return LS_OK;
}

static ls_status leave_out_last_rank(ls_comm *world, method make) {
    field part = {.comm = world, .first = ls_comm_rank(world), .count = 1};
    double loss = 0;
    ls_status status = LS_OK;
    if (ls_comm_rank(world) < ls_comm_size(world) - 1) {
        status = fit_field(&part, make(world), &loss);
        ls_release(part.x);
    } else {
        ls_optimizer *optimizer = make(world);
        status = ls_optimizer_step_closure(optimizer, evaluate_field, &part, &loss);
        ls_optimizer_free(optimizer);
    }
    return check_failure(world, status, LS_ERR_STATE, "has no parameters");
}

static ls_status test_sharded(ls_comm *world) {
    const method methods[] = {fixed_steps, searches, conjugate};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        LS_TRY(fit_sharded(world, methods[i], 24));
        LS_TRY(fit_sharded(world, methods[i], 2));
        LS_TRY(fail_on_last_rank(world, methods[i]));
    }
    LS_TRY(refuse_local_losses(world));
    return leave_out_last_rank(world, searches);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(test_sharded(world));
    const ls_lbfgs_options search = {.strong_wolfe = true};
    LS_TRY(fit(world, ls_lbfgs(NULL, NULL), LS_F64, 1e-4));
    LS_TRY(fit(world, ls_lbfgs(NULL, &search), LS_F64, 1e-4));
    LS_TRY(fit(world, ls_lbfgs(NULL, &search), LS_F32, 1e-2));
    return fit(world, ls_conjugate_gradient(NULL, NULL), LS_F64, 1e-4);
}
