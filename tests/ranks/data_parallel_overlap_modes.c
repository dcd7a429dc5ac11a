/*
 * All ranks refuse a data-parallel module if they have different options, models or modes of overlap.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/parallel.h>

enum { WIDTH = 128 };

/* Ranks with different options all get an error. */
static ls_status options_that_differ(ls_comm *world) {
    for (int i = 0; i < 2 && ls_comm_size(world) > 1; i++) {
        const size_t bytes = i == 0 && ls_comm_rank(world) == 0 ? 100 : 200;
        const ls_overlap_mode mode = i == 1 && ls_comm_rank(world) == 0 ? LS_OVERLAP_OFF : LS_OVERLAP_ON;
        ls_module *model = ls_data_parallel(ls_nn_linear(WIDTH, WIDTH), world,
                                            &(ls_data_parallel_options){.overlap = mode, .bucket_bytes = bytes});
        LS_CHECK(model == NULL && ls_error_status() == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE(i == 0 && ls_comm_rank(world) == 0 ? ".bucket_bytes = 100" : ".bucket_bytes = 200");
        LS_EXPECT_MESSAGE(i == 1 && ls_comm_rank(world) == 0 ? ".overlap = 2," : ".overlap = 1,");
    }
    return LS_OK;
}

/* Returns a model that is large on rank 0 and small on the other ranks. Returns NULL if ls_data_parallel refuses the
 * model. */
static ls_module *wrap_unequal(ls_comm *world, const ls_data_parallel_options *options) {
    return ls_data_parallel(ls_sequential(ls_nn_linear(8, ls_comm_rank(world) == 0 ? 20000 : 1)), world, options);
}

/* The message about models of different sizes names the sizes, even if `.overlap` selects the mode by the size. */
static ls_status models_that_differ(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    for (int unsynced = 0; unsynced < 2; unsynced++) {
        const ls_data_parallel_options options = {.no_initial_sync = unsynced != 0};
        LS_CHECK(wrap_unequal(world, &options) == NULL && ls_error_status() == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("the models differ: rank 0's has 2 parameters (180000 numbers)");
    }
    return LS_OK;
}

/* Modules with common layers average after the pass: if only rank 0 has such modules, the modes differ. */
static ls_status modes_that_differ(ls_comm *world) {
    const ls_data_parallel_options options = {.overlap = LS_OVERLAP_ON, .no_initial_sync = true};
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_module *common = ls_nn_linear(WIDTH, WIDTH);
    ls_module *first = ls_data_parallel(ls_sequential(common), world, &options);
    ls_module *layer = ls_comm_rank(world) == 0 ? common : ls_nn_linear(WIDTH, WIDTH);
    LS_CHECK(first != NULL && ls_data_parallel(ls_sequential(layer), world, &options) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE(".overlap selects averaging during the backward pass on some ranks only");
    ls_module_free(first);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(options_that_differ(world));
    LS_TRY(models_that_differ(world));
    LS_TRY(modes_that_differ(world));
    return ls_comm_barrier(world, NULL);
}
