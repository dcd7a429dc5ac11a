/* Differentiable collectives: values, gradients against differences, and ranks that use results differently. */
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

typedef struct setting {
    ls_comm *comm;
    ls_reduction reduction;
    unsigned constant; /* bit r: rank r brings a tensor that wants no gradient */
    unsigned ignoring; /* bit r: rank r does not use the result */
} setting;

static bool has(unsigned set, const ls_comm *comm) {
    return (set >> ls_comm_rank(comm) & 1U) != 0;
}

/* Values between -2 and 2 that differ from rank to rank, with zeros and equals among them. */
static ls_tensor *numbers(const ls_comm *comm, ls_shape shape, int salt) {
    ls_tensor *x = ls_empty(shape, LS_F64);
    double *at = ls_data(x);
    for (int64_t i = 0; i < ls_count(x); i++) {
        at[i] = 2 * sin(1.7 * salt + 2.3 * ls_comm_rank(comm) + 0.9 * (double)i);
    }
    return x;
}

static ls_tensor *leaf(ls_tensor *x) {
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

/* What the function under check makes of its input and the result of a call. */
static ls_tensor *use(const setting *s, ls_tensor *x, ls_tensor *result) {
    if (has(s->ignoring, s->comm)) {
        return ls_sum(ls_square(x));
    }
    return ls_add(ls_sum(ls_square(result)), ls_sum(ls_sin(x)));
}

static ls_tensor *bring(const setting *s, ls_tensor *x) {
    return has(s->constant, s->comm) ? numbers(s->comm, ls_shape_of(x), 77) : x;
}

static ls_tensor *through_allreduce(ls_tensor **inputs, int count, void *user) {
    const setting *s = user;
    (void)count;
    return use(s, inputs[0], ls_allreduce(s->comm, bring(s, inputs[0]), s->reduction));
}

static ls_status check(setting s, ls_function function, ls_tensor *x) {
    return ls_gradcheck_distributed(s.comm, function, &x, 1, &s, NULL);
}

static ls_status check_allreduce(ls_comm *world) {
    static const ls_shape shapes[] = {{0, {0}}, {2, {2, 3}}, {1, {0}}, {3, {1, 5, 9}}};
    for (int reduction = LS_SUM; reduction <= LS_MAX; reduction++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            for (unsigned mask = 0; mask < 3; mask++) {
                const setting s = {.comm = world,
                                   .reduction = (ls_reduction)reduction,
                                   .constant = mask == 1 ? 5 : 0,
                                   .ignoring = mask == 2 ? 10 : 0};
                ls_scope *scope = ls_scope_begin();
                LS_TRY(check(s, through_allreduce, leaf(numbers(world, shapes[i], (int)i))));
                LS_TRY(ls_scope_end(scope));
            }
        }
    }
    return LS_OK;
}

/* One zero, two zeros, equals: where a product or an extreme is easily wrong. */
static ls_status gradients_at_zeros_and_equals(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    ls_scope *scope = ls_scope_begin();
    const double values[] = {rank == 0 ? 0 : 2, rank <= 1 ? 0 : 3, 1, rank == size - 1 ? NAN : 1};
    ls_tensor *x = leaf(ls_from(LS_SHAPE(4), LS_F64, values));
    LS_TRY(ls_backward(ls_sum(ls_allreduce(world, x, LS_PROD))));
    const double others = pow(2, size - 1);
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){0}) == (rank == 0 ? size * others : 0));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){1}) == (size == 1 ? 1 : 0));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){2}) == size);
    for (int reduction = LS_MIN; reduction <= LS_MAX; reduction++) {
        ls_zero_grad(x);
        LS_TRY(ls_backward(ls_sum(ls_allreduce(world, x, (ls_reduction)reduction))));
        LS_CHECK(ls_at(ls_grad(x), (int64_t[]){2}) == (rank == 0 ? size : 0));
        LS_CHECK(ls_at(ls_grad(x), (int64_t[]){3}) == (rank == size - 1 ? size : 0));
    }
    return ls_scope_end(scope);
}

/* Some ranks have no loss, no gradient to give, or no wish to record. */
static ls_status ranks_that_stay_out(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(numbers(world, LS_SHAPE(3), 1));
    ls_tensor *y = ls_allreduce(world, x, LS_SUM);
    LS_TRY(ls_backward(rank == 0 ? ls_sum(y) : ls_scalar(0, LS_F32)));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){0}) == 1);
    ls_zero_grad(x);

    const bool before = ls_no_grad(rank == 0);
    y = ls_allreduce(world, x, LS_SUM);
    LS_CHECK(ls_requires_grad(y) == (rank != 0));
    (void)ls_no_grad(before);
    if (size > 1) {
        LS_TRY(ls_backward(ls_sum(y)));
        LS_CHECK(rank == 0 ? ls_grad(x) == NULL : ls_at(ls_grad(x), (int64_t[]){0}) == size - 1);
    }

    (void)ls_no_grad(true);
    LS_CHECK(!ls_requires_grad(ls_allreduce(world, x, LS_SUM)));
    (void)ls_no_grad(false);
    LS_CHECK(!ls_requires_grad(ls_allreduce(world, ls_detach(x), LS_SUM)));
    LS_CHECK(ls_backward(ls_scalar(0, LS_F32)) == LS_ERR_STATE);
    (void)ls_scope_end(scope);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(check_allreduce(world));
    LS_TRY(gradients_at_zeros_and_equals(world));
    LS_TRY(ranks_that_stay_out(world));
    return ls_comm_barrier(world, NULL);
}
