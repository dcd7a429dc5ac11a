/*
 * Training on several ranks, broken off, with what each rank's optimizer remembers put into a new one: it goes on with
 * the bits of training that was not broken off, on every rank.
 */
#include "tests/support/ranks.h"

#include "base/memory.h"

#include <lockstep/lockstep.h>

enum { KINDS = 5, BEFORE = 4, AFTER = 4, MOST = 64 };

static ls_optimizer *make(int kind, ls_module *model) {
    switch (kind) {
    case 0:
        return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9});
    case 1:
        return ls_adam(model, NULL);
    case 2:
        return ls_rmsprop(model, &(ls_rmsprop_options){.momentum = 0.9, .centered = true});
    case 3:
        return ls_lbfgs(model, &(ls_lbfgs_options){.max_iterations = 3, .history_size = 5, .strong_wolfe = true});
    default:
        return ls_conjugate_gradient(model, &(ls_conjugate_gradient_options){.max_iterations = 3});
    }
}

typedef struct problem {
    ls_module *model;
    ls_comm *world;
} problem;

/* The mean over ranks of the losses of data that differ from rank to rank. */
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

static ls_status train(ls_module *model, ls_optimizer *optimizer, ls_comm *world, int steps) {
    problem p = {model, world};
    for (int step = 0; step < steps; step++) {
        double loss;
        LS_TRY(ls_optimizer_step_closure(optimizer, mean_loss, &p, &loss));
    }
    return LS_OK;
}

/* Copies of what is lent, as they would come from a file. */
static ls_status take_state(ls_optimizer *optimizer, ls_named *copies, int *count) {
    const ls_named *tensors;
    LS_TRY(ls_optimizer_state(optimizer, &tensors, count));
    LS_CHECK(*count <= MOST);
    for (int i = 0; i < *count; i++) {
        copies[i] = (ls_named){ls_duplicate_string(tensors[i].name), ls_clone(tensors[i].tensor)};
        LS_CHECK(copies[i].name != NULL && copies[i].tensor != NULL);
    }
    return LS_OK;
}

static ls_status compare(int kind, ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_module *model = make_model(), *other = make_model();
    ls_optimizer *first = make(kind, model);
    LS_TRY(train(model, first, world, BEFORE));
    ls_named copies[MOST];
    int count = 0;
    LS_TRY(take_state(first, copies, &count));
    const bool before = ls_no_grad(true);
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        LS_TRY(ls_copy_into(ls_module_parameter(other, i), ls_module_parameter(model, i)));
    }
    (void)ls_no_grad(before);
    LS_TRY(train(model, first, world, AFTER));
    ls_optimizer_free(first);

    ls_optimizer *second = make(kind, other);
    LS_TRY(ls_optimizer_set_state(second, copies, count));
    LS_TRY(train(other, second, world, AFTER));
    LS_CHECK(ls_module_hash(other) == ls_module_hash(model));
    ls_optimizer_free(second);
    for (int i = 0; i < count; i++) {
        ls_free((char *)copies[i].name);
    }
    ls_module_free(model);
    ls_module_free(other);
    return ls_scope_end(scope);
}

ls_status rank_test(ls_comm *world) {
    for (int kind = 0; kind < KINDS; kind++) {
        LS_TRY(compare(kind, world));
    }
    return LS_OK;
}
