/*
 * Training on several ranks is interrupted, and the states of each rank's optimizer and averages are restored into new
 * objects: training continues bit-identically, equal on all ranks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <string.h>

#include "base/memory.h"
#include "tests/support/optimizers.h"

#include <lockstep/lockstep.h>

enum { BEFORE = 4, AFTER = 4, MOST = 64 };

typedef struct problem {
    ls_module *model;
    ls_comm *world;
} problem;

/* Returns the mean over ranks of losses of different data. */
static ls_status mean_loss(void *argument, double *value) {
    const problem *p = argument;
    ls_seed(100 + (uint64_t)ls_comm_rank(p->world));
    ls_tensor *x = ls_randn(LS_SHAPE(6, 5), LS_F32), *y = ls_randn(LS_SHAPE(6, 3), LS_F32);
    ls_tensor *loss = ls_mean(ls_square(ls_sub(ls_forward(p->model, x), y)));
    LS_TRY(ls_backward(loss));
    *value = ls_item(loss);
    LS_TRY(ls_sync_gradients(p->model, p->world));
    return ls_comm_allreduce(p->world, value, value, 1, LS_F64, LS_AVG, NULL);
}

static ls_module *make_model(void) {
    ls_seed(3);
    return ls_sequential(ls_nn_linear(5, 7), ls_nn_tanh(), ls_nn_linear(7, 3));
}

static ls_status train(ls_module *model, ls_optimizer *optimizer, ls_ema *averages, ls_comm *world, int steps) {
    problem p = {model, world};
    for (int step = 0; step < steps; step++) {
        double loss;
        LS_TRY(ls_optimizer_step_closure(optimizer, mean_loss, &p, &loss));
        LS_TRY(ls_ema_update(averages));
    }
    return LS_OK;
}

/* Copies borrowed tensors, as if they were read from a file. */
static ls_status copy_tensors(const ls_named *tensors, int count, ls_named *copies) {
    LS_CHECK(count <= MOST);
    for (int i = 0; i < count; i++) {
        copies[i] = (ls_named){ls_duplicate_string(tensors[i].name), ls_clone(tensors[i].tensor)};
        LS_CHECK(copies[i].name != NULL && copies[i].tensor != NULL);
    }
    return LS_OK;
}

static void free_names(const ls_named *copies, int count) {
    for (int i = 0; i < count; i++) {
        ls_free((char *)copies[i].name);
    }
}

static ls_status compare(int kind, ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_module *model = make_model(), *other = make_model();
    ls_optimizer *first = optimizer_make(kind, model);
    ls_ema *averages = ls_ema_new(model, 0.8), *other_averages = ls_ema_new(other, 0.8);
    LS_TRY(train(model, first, averages, world, BEFORE));
    const ls_named *lent;
    ls_named copies[MOST], averaged[MOST];
    int count = 0, averaged_count = 0;
    LS_TRY(ls_optimizer_state(first, &lent, &count));
    LS_TRY(copy_tensors(lent, count, copies));
    LS_TRY(ls_ema_state(averages, &lent, &averaged_count));
    LS_TRY(copy_tensors(lent, averaged_count, averaged));
    const bool before = ls_no_grad(true);
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        LS_TRY(ls_copy_into(ls_module_parameter(other, i), ls_module_parameter(model, i)));
    }
    (void)ls_no_grad(before);
    LS_TRY(train(model, first, averages, world, AFTER));
    ls_optimizer_free(first);

    ls_optimizer *second = optimizer_make(kind, other);
    LS_TRY(ls_optimizer_set_state(second, copies, count));
    LS_TRY(ls_ema_set_state(other_averages, averaged, averaged_count));
    LS_TRY(train(other, second, other_averages, world, AFTER));
    for (int i = 0; i < 2; i++) { /* the parameters, then their averages */
        LS_CHECK(ls_module_hash(other) == ls_module_hash(model));
        LS_TRY(ranks_have_same_module(world, model));
        LS_TRY(ls_ema_swap(averages));
        LS_TRY(ls_ema_swap(other_averages));
    }
    ls_ema_free(averages);
    ls_ema_free(other_averages);
    ls_optimizer_free(second);
    free_names(copies, count);
    free_names(averaged, averaged_count);
    ls_module_free(model);
    ls_module_free(other);
    return ls_scope_end(scope);
}

/* Optimizers that need norms of whole tensors refuse sharded tensors. */
static ls_status check_divided(ls_comm *world) {
    ls_module *model = ls_sequential(ls_nn_column_parallel(world, 4, 8 * ls_comm_size(world), NULL));
    LS_CHECK(model != NULL);
    LS_CHECK(ls_lamb(model, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("ls_lamb: parameter 0 is sharded over ranks");
    LS_CHECK(ls_muon(model, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("ls_muon: parameter 0 is sharded over ranks");
    ls_optimizer *optimizer = ls_lion(model, NULL);
    LS_CHECK(optimizer != NULL);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        const ls_status status = compare(kind, world);
        if (status != LS_OK) {
            return ls_fail(status, "%s: %s", optimizer_names[kind], ls_error_message());
        }
    }
    return check_divided(world);
}
