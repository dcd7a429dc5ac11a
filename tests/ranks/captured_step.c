/*
 * Captured steps (ls_step_capture) of data-parallel models: one rank replays them, several ranks run the function. Both
 * have the parameters of training without a capture. What communicates is refused on every rank, which says why.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include <stdio.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/step.h>

#include "tests/support/ranks.h"

enum { INPUTS = 5, STEPS = 6 };

typedef struct training {
    ls_comm *world;
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *x, *target;
    bool reduces;
} training;

static ls_tensor *step_of(void *user) {
    const training *self = user;
    ls_optimizer_zero_grad(self->optimizer);
    ls_tensor *y = ls_forward(self->model, self->x);
    ls_tensor *loss = ls_mse_loss(self->reduces ? ls_allreduce(self->world, y, LS_SUM) : y, self->target, LS_LOSS_MEAN);
    return ls_backward(loss) == LS_OK && ls_optimizer_step(self->optimizer) == LS_OK ? loss : NULL;
}

static ls_status begin(training *self, ls_comm *world, int zero) {
    ls_seed(5);
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, 16), ls_nn_tanh(), ls_nn_linear(16, 2));
    *self = (training){.world = world,
                       .model = ls_data_parallel(model, world, &(ls_data_parallel_options){.zero = zero}),
                       .x = ls_zeros(LS_SHAPE(3, INPUTS), LS_F32),
                       .target = ls_full(LS_SHAPE(3, 2), LS_F32, 0.5)};
    self->optimizer = ls_adam(self->model, &(ls_adam_options){.learning_rate = 0.01});
    return self->optimizer != NULL ? LS_OK : ls_error_status();
}

static void end(training *self) {
    ls_optimizer_free(self->optimizer);
    ls_module_free(self->model);
    ls_release(self->x);
    ls_release(self->target);
}

/* Gives the rank its share of a batch. */
static ls_status change_batch(training *self, int step) {
    return ls_fill(self->x, 0.1 * step + 0.3 * ls_comm_rank(self->world));
}

static ls_status train(ls_comm *world, int zero, uint64_t *hash) {
    training self;
    LS_TRY(begin(&self, world, zero));
    for (int i = 0; i < STEPS; i++) {
        LS_TRY(change_batch(&self, i));
        ls_scope *scope = ls_scope_begin();
        const ls_tensor *loss = step_of(&self);
        LS_TRY(ls_scope_end(scope));
        LS_CHECK(loss != NULL);
    }
    LS_TRY(ls_data_parallel_gather(self.model, true));
    *hash = ls_module_hash(self.model);
    LS_CHECK(*hash != 0);
    end(&self);
    return LS_OK;
}

static ls_status train_captured(ls_comm *world, int zero, uint64_t *hash) {
    training self;
    LS_TRY(begin(&self, world, zero));
    LS_TRY(change_batch(&self, 0));
    ls_step *step = ls_step_capture(step_of, &self, &(ls_step_capture_options){.fallback = true});
    LS_CHECK(step != NULL);
    LS_CHECK(ls_step_is_captured(step) == (ls_comm_size(world) == 1));
    for (int i = 1; i < STEPS; i++) {
        LS_TRY(change_batch(&self, i));
        LS_TRY(ls_step_replay(step));
    }
    LS_TRY(ls_data_parallel_gather(self.model, true));
    *hash = ls_module_hash(self.model);
    LS_CHECK(*hash != 0);
    LS_TRY(ranks_have_same_module(world, self.model));
    ls_step_free(step);
    end(&self);
    return LS_OK;
}

/* Without .fallback, the capture fails on every rank, after a step with all its effects. */
static ls_status is_refused(ls_comm *world, bool reduces, const char *reason) {
    training self;
    LS_TRY(begin(&self, world, 0));
    self.reduces = reduces;
    const uint64_t before = ls_module_hash(self.model);
    LS_CHECK(ls_step_capture(step_of, &self, NULL) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE(reason);
    LS_CHECK(ls_module_hash(self.model) != before);
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    for (int zero = 0; zero <= 3; zero++) {
        uint64_t eager = 0, captured = 1;
        LS_TRY(train(world, zero, &eager));
        LS_TRY(train_captured(world, zero, &captured));
        LS_CHECK(eager == captured);
    }
    if (ls_comm_size(world) > 1) {
        LS_TRY(is_refused(world, false, "ls_step_capture: ls_data_parallel communicates, which is not recorded"));
    }
    LS_TRY(is_refused(world, true, "communicates, which is not recorded: run the step without ls_step_capture"));
    return ls_comm_barrier(world, NULL);
}
