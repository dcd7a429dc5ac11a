/*
 * Communication that works in place on a value, or whose gradient needs a value: if the value changes between the
 * forward and the backward pass, the pass is refused before anything is sent. So all ranks can continue together.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

static ls_tensor *leaf(ls_tensor *x) {
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

static ls_status expect_change(ls_tensor *loss, const char *operation, const char *by) {
    char expected[200];
    snprintf(expected, sizeof expected, "that was later modified in place (by %s)", by);
    LS_CHECK(ls_backward(loss) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE(operation);
    LS_EXPECT_MESSAGE(expected);
    return LS_OK;
}

/* Returns the sum of products of each parameter with itself, or with its gradient. The backward pass reads both
 * factors. */
static ls_tensor *sum_of_products(ls_module *model, bool by_gradient) {
    ls_tensor *sum = NULL;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_tensor *w = ls_module_parameter(model, i);
        ls_tensor *part = ls_sum(ls_mul(w, by_gradient ? ls_grad(w) : w));
        sum = sum != NULL ? ls_add(sum, part) : part;
    }
    return sum;
}

static ls_status models(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_module *model = ls_sequential(ls_nn_linear(3, 4), ls_nn_linear(4, 2));
    ls_tensor *x = ls_rand(LS_SHAPE(5, 3), LS_F32);
    ls_tensor *loss = sum_of_products(model, false);
    LS_TRY(ls_sync_parameters(model, world, 0));
    LS_TRY(expect_change(loss, "ls_mul", "ls_sync_parameters"));
    LS_TRY(ls_backward(ls_mean(ls_forward(model, x))));
    loss = sum_of_products(model, true);
    LS_TRY(ls_sync_gradients(model, world));
    LS_TRY(expect_change(loss, "ls_mul", "ls_sync_gradients"));
    if (ls_comm_size(world) > 1) {
        model = ls_data_parallel(model, world, NULL);
        LS_TRY(ls_backward(ls_mean(ls_forward(model, x))));
        loss = sum_of_products(model, true);
        LS_TRY(ls_data_parallel_skip(model)); /* averages once more */
        LS_TRY(expect_change(loss, "ls_mul", "ls_data_parallel"));
    }
    ls_module_free(model);
    (void)ls_scope_end(scope);
    return LS_OK;
}

typedef ls_tensor *(*reducer)(ls_comm *comm, ls_tensor *x, ls_reduction reduction);

static ls_tensor *reduced(ls_comm *comm, ls_tensor *x, ls_reduction reduction) {
    return ls_reduce(comm, x, reduction, ls_comm_size(comm) - 1);
}

static ls_tensor *scattered(ls_comm *comm, ls_tensor *x, ls_reduction reduction) {
    return ls_reduce_scatter(comm, x, 0, reduction);
}

static ls_status change(ls_tensor *x, double value) {
    const bool before = ls_no_grad(true);
    const ls_status status = ls_fill(x, value);
    (void)ls_no_grad(before);
    return status;
}

/*
 * The backward pass of sums and means does not need the values. For products, minima and maxima, it compares or
 * multiplies the values.
 */
static ls_status reductions(ls_comm *world) {
    static const reducer reducers[] = {ls_allreduce, reduced, scattered};
    static const char *const names[] = {"ls_allreduce", "ls_reduce", "ls_reduce_scatter"};
    static const ls_reduction all[] = {LS_SUM, LS_AVG, LS_PROD, LS_MIN, LS_MAX};
    for (int i = 0; i < 15; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = leaf(ls_full(LS_SHAPE(ls_comm_size(world), 2), LS_F64, 1 + ls_comm_rank(world)));
        ls_tensor *loss = ls_sum(reducers[i / 5](world, x, all[i % 5]));
        LS_TRY(change(x, 9));
        if (i % 5 < 2) {
            LS_TRY(ls_backward(loss));
            LS_CHECK(ls_grad(x) != NULL);
        } else {
            LS_TRY(expect_change(loss, names[i / 5], "ls_fill"));
        }
        (void)ls_scope_end(scope);
    }
    return LS_OK;
}

/* The gradient of a sum needs no values, so it is a constant. Gradients of products, minima and maxima are not
 * constants. */
static ls_status gradients_of_reductions(ls_comm *world) {
    static const reducer reducers[] = {ls_allreduce, reduced, scattered};
    static const ls_reduction all[] = {LS_SUM, LS_AVG, LS_PROD, LS_MIN, LS_MAX};
    for (int i = 0; i < 15; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = leaf(ls_full(LS_SHAPE(ls_comm_size(world), 2), LS_F64, 1 + ls_comm_rank(world)));
        LS_TRY(ls_backward(ls_sum(reducers[i / 5](world, x, all[i % 5]))));
        const ls_status status = ls_backward(ls_sum(ls_mul(x, ls_clone(ls_grad(x)))));
        LS_CHECK(status == (i % 5 < 2 ? LS_OK : LS_ERR_UNSUPPORTED));
        (void)ls_scope_end(scope);
    }
    return LS_OK;
}

/* On ranks other than the root, the contents of the result do not matter. */
static ls_status results_that_count_for_nothing(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(ls_full(LS_SHAPE(2), LS_F64, 1 + ls_comm_rank(world)));
    ls_tensor *y = reduced(world, x, LS_MAX);
    if (ls_comm_rank(world) < ls_comm_size(world) - 1) {
        LS_TRY(ls_fill(ls_detach(y), 9));
    }
    LS_TRY(ls_backward(ls_sum(y)));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){1}) == (ls_comm_rank(world) == ls_comm_size(world) - 1));
    return ls_scope_end(scope);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(models(world));
    LS_TRY(reductions(world));
    LS_TRY(gradients_of_reductions(world));
    LS_TRY(results_that_count_for_nothing(world));
    return ls_comm_barrier(world, NULL);
}
