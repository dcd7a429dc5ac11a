/* L-BFGS and conjugate gradients on a loss that ranks share: all take the same steps, bit for bit. */
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

enum { POINTS = 501, STEPS = 3 };

typedef struct problem {
    ls_comm *world;
    ls_tensor *x, *y; /* this rank's points, one more on the first ranks */
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

/* Every rank holds rank 0's parameters and has looked as often. */
static ls_status compare(const problem *self) {
    double mine[4] = {self->evaluations}, first[4];
    for (int64_t i = 0; i < 3; i++) {
        mine[i + 1] = ls_at(self->p, &i);
    }
    memcpy(first, mine, sizeof mine);
    LS_TRY(ls_comm_broadcast(self->world, first, 4, LS_F64, 0, NULL));
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
        LS_TRY(compare(&self));
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

ls_status rank_test(ls_comm *world) {
    const ls_lbfgs_options search = {.strong_wolfe = true};
    LS_TRY(fit(world, ls_lbfgs(NULL, NULL), LS_F64, 1e-4));
    LS_TRY(fit(world, ls_lbfgs(NULL, &search), LS_F64, 1e-4));
    LS_TRY(fit(world, ls_lbfgs(NULL, &search), LS_F32, 1e-2));
    return fit(world, ls_conjugate_gradient(NULL, NULL), LS_F64, 1e-4);
}
