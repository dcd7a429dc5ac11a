/*
 * Captured steps (ls_step_capture) of data-parallel models: replays give the same parameters as training without a
 * capture, even if only some ranks replay. Steps that communicate in other ways are refused on every rank.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/captured_training.h"

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

static ls_status averages_gradients(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.branch_at = 0}));
    LS_TRY(compare(world, (run_plan){.parallel = {.overlap = LS_OVERLAP_OFF}}));
    LS_TRY(compare(world, (run_plan){.parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}}));
    LS_TRY(compare(world, (run_plan){.parallel = {.reduce_dtype = LS_BF16, .overlap = LS_OVERLAP_ON}}));
    return compare(world, (run_plan){.parallel = {.powersgd_rank = 1}});
}

/* Buckets of one parameter, of several, and of all. */
static ls_status averages_in_buckets(ls_comm *world) {
    static const size_t sizes[] = {1, 200, 500, SIZE_MAX / 4};
    for (int i = 0; i < 4; i++) {
        const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = sizes[i]};
        ls_data_parallel_options bf16 = overlap;
        bf16.reduce_dtype = LS_BF16;
        LS_TRY(compare(world, (run_plan){.parallel = overlap}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .branch_at = 4}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .keeps = true}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .repeats = true}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .repeats = true, .recomputes = true}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .drops = true, .smaller_at = 3, .branch_at = 5}));
        LS_TRY(compare(world, (run_plan){.parallel = bf16, .branch_at = 1}));
    }
    return LS_OK;
}

/* A replay of the optimizer's step sends the updated parameters to all ranks. From stage 2 on, replays average the
 * gradients of each unit in the backward pass; in stage 3, they also gather its parameters. */
static ls_status captures_zero(ls_comm *world) {
    for (int zero = 1; zero <= 3; zero++) {
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero, .overlap = LS_OVERLAP_ON, .bucket_bytes = 64}}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero, .reduce_dtype = LS_BF16}, .smaller_at = 3}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .keeps = true}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero, .overlap = LS_OVERLAP_ON}, .keeps = true}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .repeats = true, .recomputes = true}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .weights = true, .sums = 2, .smaller_at = 5}));
    }
    return LS_OK;
}

/* A replay gets the gradients of parameters that only another rank uses. */
static ls_status gets_gradients_of_others(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.branch_at = 4, .clears_last = true}));
    return compare(world, (run_plan){.branch_at = 4});
}

/* A replay also clears the gradients that an exchange with the other ranks has decided. */
static ls_status clears_gradients_last(ls_comm *world) {
    for (int zero = 0; zero <= 3; zero++) {
        const ls_data_parallel_options in_buckets = {.zero = zero, .overlap = LS_OVERLAP_ON, .bucket_bytes = 64};
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .clears_last = true, .smaller_at = 3}));
        LS_TRY(compare(world, (run_plan){.parallel = in_buckets, .clears_last = true, .smaller_at = 2}));
    }
    return LS_OK;
}

/* Dropout derives its random numbers from the index in the global batch, even if a rank before a rank that replays has
 * fewer samples. */
static ls_status drops_by_sample(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.drops = true}));
    LS_TRY(compare(world, (run_plan){.drops = true, .smaller_at = 4}));
    LS_TRY(compare(world, (run_plan){.drops = true, .smaller_at = 3, .branch_at = 5}));
    return compare(world, (run_plan){.drops = true, .parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}});
}

/* Batch normalization exchanges sums in both passes, and its scaling factors depend on the samples of all ranks. */
static ls_status normalizes(ls_comm *world) {
    static const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64};
    LS_TRY(compare(world, (run_plan){.normalizes = true}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .smaller_at = 4}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .drops = true, .smaller_at = 3, .branch_at = 5}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .keeps = true}));
    LS_TRY(compare(world, (run_plan){.statistics = true, .smaller_at = 3}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .parallel = {.zero = 1}, .smaller_at = 2}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .parallel = {.powersgd_rank = 1}}));
    return compare(world, (run_plan){.normalizes = true, .parallel = overlap, .smaller_at = 3, .branch_at = 5});
}

/* Losses whose divisors depend on the targets, and losses that need several scaling factors. */
static ls_status scales_losses(ls_comm *world) {
    static const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64};
    LS_TRY(compare(world, (run_plan){.weights = true, .smaller_at = 3}));
    LS_TRY(compare(world, (run_plan){.ignores = true, .parallel = overlap}));
    LS_TRY(compare(world, (run_plan){.sums = 1}));
    LS_TRY(compare(world, (run_plan){.sums = 7, .smaller_at = 4, .parallel = overlap}));
    LS_TRY(compare(world, (run_plan){.sums = 2, .weights = true, .ignores = true, .smaller_at = 4}));
    LS_TRY(compare(world, (run_plan){.sums = 1, .weights = true, .normalizes = true, .smaller_at = 2}));
    LS_TRY(compare(world, (run_plan){.seeded = 1, .skips_at = 3}));
    LS_TRY(compare(world, (run_plan){.seeded = 1, .sums = 1, .normalizes = true, .skips_at = 3}));
    LS_TRY(compare(world, (run_plan){.seeded = 2, .skips_at = 3}));
    LS_TRY(compare(world, (run_plan){.sums = 2, .weights = true, .skips_at = 4, .parallel = {.zero = 2}}));
    return compare(world, (run_plan){.sums = 1, .spoiled_at = 3});
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* Without .fallback, the capture fails on every rank, but only after a complete step, which changes the model. */
static ls_status is_refused(ls_comm *world, run_plan plan, const char *reason) {
    training self;
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(change_batch(&self, 0));
    const uint64_t before = ls_module_hash(self.model);
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_step_capture(step_of, &self, NULL) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE(reason);
    LS_CHECK(ls_scope_end(scope) == LS_ERR_UNSUPPORTED);
    LS_TRY(ls_data_parallel_gather(self.model, true));
    LS_CHECK(ls_module_hash(self.model) != before);
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

/* If a step cannot be captured, ls_step_replay runs its function. */
static ls_status falls_back(ls_comm *world) {
    return compare(world, (run_plan){.falls_back = true, .reduces = true});
}

static ls_status refuses_other_communication(ls_comm *world) {
    LS_TRY(is_refused(world, (run_plan){.reduces = true}, "communicates, which is not recorded"));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(is_refused(world, (run_plan){.doubles = true}, "for several data-parallel modules"));
    return is_refused(world, (run_plan){.sums = 9}, "scales more than 8 sums or means over the samples");
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(averages_gradients(world));
    LS_TRY(averages_in_buckets(world));
    LS_TRY(captures_zero(world));
    LS_TRY(gets_gradients_of_others(world));
    LS_TRY(clears_gradients_last(world));
    LS_TRY(drops_by_sample(world));
    LS_TRY(normalizes(world));
    LS_TRY(scales_losses(world));
    LS_TRY(falls_back(world));
    LS_TRY(refuses_other_communication(world));
    return ls_comm_barrier(world, NULL);
}
