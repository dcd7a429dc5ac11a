/*
 * Each rank fits the statistics from the whole data set, before or after ls_data_parallel. They are bit-identical on
 * all ranks. A step with uneven shares does not change them, and trains as in a single process.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>

#include <lockstep/data.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/numbers.h"

enum { ROWS = 11, COLUMNS = 3 };

static ls_tensor *rows_from(int64_t first, int64_t last) {
    ls_tensor *x = ls_empty(LS_SHAPE(last - first, COLUMNS), LS_F64);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        numbers_set(x, i, pow(100, (double)(i % COLUMNS)) * (3 + sin((double)(first * COLUMNS + i))));
    }
    return x;
}

static ls_status step(ls_module *model, int64_t first, int64_t last) {
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    LS_CHECK(optimizer != NULL);
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(optimizer);
    LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(model, rows_from(first, last))))));
    LS_TRY(ls_optimizer_step(optimizer));
    LS_TRY(ls_scope_end(scope));
    ls_optimizer_free(optimizer);
    return LS_OK;
}

static ls_module *make(ls_module *standardize) {
    ls_seed(4);
    return ls_sequential(standardize, ls_nn_linear_with(COLUMNS, 1, &(ls_linear_options){.dtype = LS_F64}));
}

static ls_status check(ls_comm *world, bool fits_first) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *rows = rows_from(0, ROWS);
    ls_dataset *data = ls_tensor_dataset(rows, rows);
    ls_module *standardize = ls_nn_standardize(COLUMNS), *of_one = ls_nn_standardize(COLUMNS);
    ls_module *alone = make(of_one), *model = make(standardize);
    LS_TRY(fits_first ? ls_nn_standardize_fit(standardize, data) : LS_OK);
    model = ls_data_parallel(model, world, NULL);
    LS_TRY(!fits_first ? ls_nn_standardize_fit(standardize, data) : LS_OK);
    LS_TRY(ls_nn_standardize_fit(of_one, data));
    ls_dataset_free(data);
    ls_tensor *fitted[] = {ls_clone(ls_module_buffer(model, 0)), ls_clone(ls_module_buffer(model, 1))};
    LS_TRY(step(model, ROWS * (int64_t)rank / size, ROWS * (int64_t)(rank + 1) / size));
    LS_TRY(step(alone, 0, ROWS));
    for (int i = 0; i < 2; i++) {
        ls_tensor *buffer = ls_module_buffer(model, i);
        LS_CHECK(ls_equal(buffer, fitted[i])); /* the step does not change it */
        LS_CHECK(ls_equal(buffer, ls_module_buffer(alone, i)));
        LS_CHECK(ls_equal(buffer, ls_broadcast(world, ls_detach(buffer), 0)));
        LS_CHECK(ls_allclose(ls_module_parameter(model, i), ls_module_parameter(alone, i), 1e-9, 1e-9));
    }
    ls_module_free(model);
    ls_module_free(alone);
    return ls_scope_end(scope);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(check(world, true));
    LS_TRY(check(world, false));
    return ls_comm_barrier(world, NULL);
}
