/*
 * Differentiable collectives: values, gradients compared with finite differences, and ranks that use the results in
 * different ways.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

typedef struct setting setting;

/* A call to test. Computes the result from this rank's tensor of the given sizes. */
typedef struct call {
    const char *name;
    ls_tensor *(*make)(const setting *s, ls_tensor *x);
    bool reduces;
    bool rooted;
    bool varies; /* ranks may differ in size along the axis */
} call;

struct setting {
    ls_comm *comm;
    const call *call;
    ls_reduction reduction;
    int root;
    int axis;
    bool turned;       /* use a non-contiguous view as the input */
    unsigned constant; /* bit r: the input of rank r requires no gradient */
    unsigned ignoring; /* bit r: rank r does not use the result */
};

static bool has(unsigned set, const ls_comm *comm) {
    return (set >> ls_comm_rank(comm) & 1U) != 0;
}

/* Returns values between -2 and 2 that differ between ranks, with zeros and ties. */
static ls_tensor *numbers(const ls_comm *comm, ls_shape shape, int salt) {
    ls_tensor *x = ls_empty(shape, LS_F64);
    double *at = elements(x);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        at[i] = 2 * sin(1.7 * salt + 2.3 * ls_comm_rank(comm) + 0.9 * (double)i);
    }
    return x;
}

static ls_tensor *leaf(ls_tensor *x) {
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

/* Combines the input and the result of a call. */
static ls_tensor *use(const setting *s, ls_tensor *x, ls_tensor *result) {
    if (has(s->ignoring, s->comm)) {
        return ls_sum(ls_square(x));
    }
    return ls_add(ls_sum(ls_square(result)), ls_sum(ls_sin(x)));
}

static ls_tensor *bring(const setting *s, ls_tensor *x) {
    return has(s->constant, s->comm) ? numbers(s->comm, ls_shape_of(x), 77) : x;
}

/* Returns the size of a rank's share along the axis, zero on one rank. */
static int64_t share_of(int rank) {
    return (2 * rank + 3) % 4 + (rank > 2);
}

static int64_t total_share(const ls_comm *comm) {
    int64_t total = 0;
    for (int rank = 0; rank < ls_comm_size(comm); rank++) {
        total += share_of(rank);
    }
    return total;
}

static ls_tensor *make_allreduce(const setting *s, ls_tensor *x) {
    return ls_allreduce(s->comm, x, s->reduction);
}

static ls_tensor *make_reduce(const setting *s, ls_tensor *x) {
    return ls_reduce(s->comm, x, s->reduction, s->root);
}

static ls_tensor *make_reduce_scatter(const setting *s, ls_tensor *x) {
    return ls_reduce_scatter(s->comm, x, s->axis, s->reduction);
}

static bool is_root(const setting *s) {
    return ls_comm_rank(s->comm) == s->root;
}

static ls_tensor *make_broadcast(const setting *s, ls_tensor *x) {
    return ls_broadcast(s->comm, is_root(s) ? x : NULL, s->root);
}

static ls_tensor *make_gather(const setting *s, ls_tensor *x) {
    return ls_gather(s->comm, x, s->axis, s->root);
}

static ls_tensor *make_allgather(const setting *s, ls_tensor *x) {
    return ls_allgather(s->comm, x, s->axis - 3);
}

/* The root's tensor is as long as all shares together. The contents of the other ranks' tensors are ignored. */
static ls_tensor *make_scatter(const setting *s, ls_tensor *x) {
    ls_tensor *whole = is_root(s) ? ls_pad(x, s->axis, total_share(s->comm) - ls_size(x, s->axis), 0, 0.5) : x;
    whole = is_root(s) ? ls_mul(whole, whole) : whole;
    return ls_scatter(s->comm, whole, s->axis, share_of(ls_comm_rank(s->comm)), s->root);
}

/* Divides the next axis, whose size is the sum of all shares. */
static ls_tensor *make_alltoall(const setting *s, ls_tensor *x) {
    const int next = (s->axis + 1) % 3;
    ls_tensor *wide = ls_pad(x, next, 0, total_share(s->comm) - ls_size(x, next), 0);
    wide = ls_mul(wide, wide);
    return ls_alltoall(s->comm, wide, s->axis, next, share_of(ls_comm_rank(s->comm)));
}

/* Redistributes the data: the shares of the ranks in reverse order. */
static ls_tensor *make_division(const setting *s, ls_tensor *x) {
    return ls_alltoall(s->comm, x, s->axis, s->axis, share_of(ls_comm_size(s->comm) - 1 - ls_comm_rank(s->comm)));
}

static const call calls[] = {
    {"allreduce", make_allreduce, .reduces = true},
    {"reduce", make_reduce, .reduces = true, .rooted = true},
    {"reduce_scatter", make_reduce_scatter, .reduces = true},
    {"broadcast", make_broadcast, .rooted = true},
    {"gather", make_gather, .rooted = true, .varies = true},
    {"allgather", make_allgather, .varies = true},
    {"scatter", make_scatter, .rooted = true},
    {"alltoall", make_alltoall, .varies = true},
    {"division", make_division, .varies = true},
};

static ls_tensor *through_call(ls_tensor **inputs, int count, void *user) {
    const setting *s = user;
    ls_tensor *x = bring(s, inputs[0]);
    (void)count;
    return use(s, inputs[0],
               s->call->make(s, s->turned ? ls_transpose(ls_contiguous(ls_transpose(x, 0, 2)), 0, 2) : x));
}

static ls_status check_one(setting s) {
    ls_scope *scope = ls_scope_begin();
    int64_t size[3] = {2, 3, 2};
    size[s.axis] = s.call->varies ? share_of(ls_comm_rank(s.comm)) : size[s.axis];
    ls_tensor *x = leaf(numbers(s.comm, ls_shape_make(3, size), s.axis));
    const ls_status status = ls_gradcheck_distributed(s.comm, through_call, &x, 1, &s, NULL);
    const ls_status ended = ls_scope_end(scope);
    if (status != LS_OK || ended != LS_OK) {
        return ls_fail(status != LS_OK ? status : ended, "%s, %s, root %d, axis %d, constant on %x, ignored by %x: %s",
                       s.call->name, ls_reduction_name(s.reduction), s.root, s.axis, s.constant, s.ignoring,
                       ls_error_message());
    }
    return LS_OK;
}

/*
 * Tests every call with every reduction that has a gradient, along every axis. All or some ranks use the results, and
 * all or some inputs require a gradient.
 */
static ls_status gradients_of_every_call(ls_comm *world) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (int reduction = LS_SUM; reduction <= (calls[i].reduces ? LS_MAX : LS_SUM); reduction++) {
            for (int variant = 0; variant < 9; variant++) {
                const setting s = {.comm = world,
                                   .call = &calls[i],
                                   .reduction = (ls_reduction)reduction,
                                   .root = calls[i].rooted ? variant % ls_comm_size(world) : 0,
                                   .axis = variant % 3,
                                   .turned = variant % 2 == 1,
                                   .constant = variant >= 3 && variant < 6 ? 5 : 0,
                                   .ignoring = variant >= 6 ? 10U >> (variant % 2) : 0};
                LS_TRY(check_one(s));
            }
        }
    }
    return LS_OK;
}

/* Tests one zero, two zeros, and ties: cases in which gradients of products, minima and maxima are easily wrong. */
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

/* Some ranks have no loss, an input without a gradient, or recording disabled. */
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

/*
 * The sum of the counts exceeds 64 bits, and with three ranks it wraps around to the valid sum: all ranks get the
 * error.
 */
static ls_status counts_beyond_all_bounds(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const int64_t count = rank < 2 ? INT64_MAX : rank == 2 ? 6 : 0;
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_zeros(LS_SHAPE(4), LS_F32);
    LS_CHECK(ls_scatter(world, x, 0, count, 0) == NULL && ls_error_status() == LS_ERR_SHAPE);
    LS_EXPECT_MESSAGE("counts add up to 9223372036854775807, but");
    LS_CHECK(ls_alltoall(world, ls_zeros(LS_SHAPE(2, 4), LS_F32), 0, 1, count) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_SHAPE);
    (void)ls_scope_end(scope);
    return LS_OK;
}

/* The gradient check rejects a negative number of inputs. */
static ls_status negative_inputs(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(numbers(world, LS_SHAPE(2, 3, 2), 0));
    LS_CHECK(ls_gradcheck_distributed(world, through_call, &x, -1, NULL, NULL) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("count is -1, but must not be negative");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_ARGUMENT);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(counts_beyond_all_bounds(world));
    LS_TRY(negative_inputs(world));
    LS_TRY(gradients_of_every_call(world));
    LS_TRY(gradients_at_zeros_and_equals(world));
    LS_TRY(ranks_that_stay_out(world));
    return ls_comm_barrier(world, NULL);
}
