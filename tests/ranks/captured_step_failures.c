/*
 * Captured steps (ls_step_capture) of data-parallel models: if an operation, an exchange or a check of a replay fails
 * on a rank, all ranks get the same error, and later steps are right.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/captured_training.h"

static ls_status tells_failures(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3}));
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .drops = true}));
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .normalizes = true}));
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}}));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    for (int zero = 1; zero <= 3; zero++) {
        LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .parallel = {.zero = zero}}));
        LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .parallel = {.zero = zero, .overlap = LS_OVERLAP_ON}}));
        if (zero < 3) { /* after a failure, stage 3 cannot gather the parameters for their hash */
            LS_TRY(compare(world, (run_plan){.revoked_at = 5, .parallel = {.zero = zero}}));
        }
    }
    LS_TRY(compare(world, (run_plan){.revoked_at = 5, .drops = true}));
    LS_TRY(compare(world, (run_plan){.revoked_at = 5, .normalizes = true}));
    LS_TRY(compare(world, (run_plan){.revoked_at = 5}));
    return compare(world, (run_plan){.revoked_at = 5, .parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}});
}

/* A bucket fails, or buckets of a failed pass are in flight when the next step begins. */
static ls_status tells_failed_buckets(ls_comm *world) {
    static const size_t sizes[] = {1, 500};
    for (int i = 0; i < 2 && ls_comm_size(world) > 1; i++) {
        const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = sizes[i]};
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .refused_at = 1}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .refused_at = 4, .branch_at = 2}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .stranded_at = 3}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .stranded_at = 4, .branch_at = 3}));
    }
    return LS_OK;
}

static bool has_gradients(const training *self) {
    bool has = false;
    for (int i = 0; i < ls_module_parameter_count(self->model); i++) {
        has = has || ls_grad(ls_module_parameter(self->model, i)) != NULL;
    }
    return has;
}

/* If the checks of a replay fail on one rank, all ranks fail without gradients, and the next step is right again. */
static ls_status tells_failed_checks(ls_comm *world, bool drops) {
    training self;
    const run_plan plan = {.replaying = ALL, .drops = drops};
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(take_step(&self, 0));
    for (int i = 1; i < 4; i++) {
        ls_module_train(ls_module_child(ls_module_child(self.model, 0), 1), i != 2 || !is_last(&self));
        ls_scope *scope = ls_scope_begin();
        const ls_status status = take_step(&self, i);
        LS_CHECK((status != LS_OK) == (i == 2));
        if (i == 2) {
            LS_EXPECT_MESSAGE("mode when the step was captured");
        }
        LS_CHECK(ls_comm_size(world) == 1 || has_gradients(&self) == (i != 2));
        LS_CHECK((ls_scope_end(scope) != LS_OK) == (i == 2));
    }
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

static void set_indices(const training *self, int step, bool bad) {
    int64_t *indices = ls_data(self->x);
    for (int64_t i = 0; i < 4; i++) {
        indices[i] = (step + 3 * i + ls_comm_rank(self->comm)) % INPUTS;
    }
    indices[3] = bad ? INPUTS : indices[3];
    ls_mark_changed(self->x);
}

/* In stage 3 of ZeRO, an operation fails on one rank while this rank has the parameters of a unit. All ranks get the
 * cause, and the next steps are right again. */
static ls_status tells_failures_in_units(ls_comm *world) {
    const run_plan plan = {.parallel = {.zero = 3}};
    training self = {.plan = &plan, .comm = world};
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    self.model = ls_data_parallel(
        ls_sequential(ls_nn_embedding(INPUTS, WIDTH), ls_nn_batch_norm_1d(WIDTH, NULL), ls_nn_linear(WIDTH, CLASSES)),
        world, &plan.parallel);
    self.x = ls_zeros(LS_SHAPE(4), LS_I64);
    self.target = ls_zeros(LS_SHAPE(4), LS_I64);
    self.optimizer = ls_sgd(self.model, NULL);
    for (int i = 0; i < 5; i++) {
        set_indices(&self, i, i == 2 && is_last(&self));
        ls_scope *scope = ls_scope_begin();
        self.step = i == 0 ? ls_step_capture(step_of, &self, NULL) : self.step;
        LS_CHECK(self.step != NULL);
        LS_CHECK((i > 0 && ls_step_replay(self.step) != LS_OK) == (i == 2));
        if (i == 2) {
            LS_EXPECT_MESSAGE("out of range");
        }
        LS_CHECK((ls_scope_end(scope) != LS_OK) == (i == 2));
    }
    LS_TRY(ls_data_parallel_gather(self.model, true));
    LS_TRY(ranks_have_same_module(world, self.model));
    self.comm = NULL;
    end(&self);
    return LS_OK;
}

/* A captured step that averages gradients cannot be replayed under no_sync. */
static ls_status notices_no_sync(ls_comm *world, ls_overlap_mode overlap) {
    training self;
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    const run_plan plan = {.replaying = ALL, .parallel = {.overlap = overlap, .bucket_bytes = 1}};
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(take_step(&self, 0));
    LS_TRY(ls_data_parallel_no_sync(self.model, true));
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(take_step(&self, 1) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_data_parallel_no_sync was switched on");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_TRY(ls_data_parallel_no_sync(self.model, false));
    LS_TRY(take_step(&self, 1));
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

/* After a loss that needs numbers from all ranks, ranks agree before every pass. The step must be captured again. */
static ls_status notices_other_losses(ls_comm *world) {
    training self;
    run_plan plan = {.replaying = ALL};
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(take_step(&self, 0));
    plan.sums = 1;
    LS_TRY(run_eagerly(&self));
    plan.sums = 0;
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(take_step(&self, 1) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("a loss needed numbers from all ranks");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(tells_failures(world));
    LS_TRY(tells_failures_in_units(world));
    LS_TRY(tells_failed_buckets(world));
    LS_TRY(tells_failed_checks(world, false));
    LS_TRY(tells_failed_checks(world, true));
    LS_TRY(notices_other_losses(world));
    LS_TRY(notices_no_sync(world, LS_OVERLAP_OFF));
    LS_TRY(notices_no_sync(world, LS_OVERLAP_ON));
    return ls_comm_barrier(world, NULL);
}
