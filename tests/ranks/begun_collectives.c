/*
 * Collectives that a program starts and waits for later: the values and gradients of the blocking calls, any order of
 * the waits, several communicators, handles that are never or twice waited for, and errors.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <string.h>

#include <lockstep/lockstep.h>

enum { CALLS = 8 };

/* Some elements more than fit into the agreement, and a number that every rank count up to 5 divides into parts. */
enum { FEW = 2, MANY = 1260 };

/* Returns a leaf of [rows, 6] with elements that differ between ranks. */
static ls_tensor *leaf(const ls_comm *comm, int64_t rows, ls_dtype dtype) {
    ls_tensor *x = ls_detach(ls_to(ls_sin(ls_add(ls_arange(LS_SHAPE(rows, 6), LS_F64), ls_comm_rank(comm))), dtype));
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

/* Returns the number of columns in this rank's share of 6 columns. */
static int64_t columns(const ls_comm *comm) {
    const int size = ls_comm_size(comm), rank = ls_comm_rank(comm);
    return 6 / size + (rank < 6 % size);
}

static ls_handle *begin(ls_comm *comm, ls_tensor *x, int call) {
    const int root = ls_comm_size(comm) - 1;
    switch (call) {
    case 0:
        return ls_allreduce_begin(comm, x, LS_SUM);
    case 1:
        return ls_allreduce_begin(comm, x, LS_PROD);
    case 2:
        return ls_allreduce_begin(comm, x, LS_MAX);
    case 3:
        return ls_allgather_begin(comm, x, 1);
    case 4:
        return ls_reduce_scatter_begin(comm, x, 1, LS_AVG);
    case 5:
        return ls_broadcast_begin(comm, ls_comm_rank(comm) == root ? x : NULL, root);
    case 6:
        return ls_alltoall_begin(comm, x, 0, 1, columns(comm));
    default:
        return ls_reduce_scatter_begin(comm, x, 0, LS_MIN);
    }
}

static ls_tensor *blocking(ls_comm *comm, ls_tensor *x, int call) {
    const int root = ls_comm_size(comm) - 1;
    switch (call) {
    case 0:
        return ls_allreduce(comm, x, LS_SUM);
    case 1:
        return ls_allreduce(comm, x, LS_PROD);
    case 2:
        return ls_allreduce(comm, x, LS_MAX);
    case 3:
        return ls_allgather(comm, x, 1);
    case 4:
        return ls_reduce_scatter(comm, x, 1, LS_AVG);
    case 5:
        return ls_broadcast(comm, ls_comm_rank(comm) == root ? x : NULL, root);
    case 6:
        return ls_alltoall(comm, x, 0, 1, columns(comm));
    default:
        return ls_reduce_scatter(comm, x, 0, LS_MIN);
    }
}

/* Adds a term that uses each element of y differently. */
static ls_tensor *add_term(ls_tensor *loss, ls_tensor *y, int call) {
    return ls_add(loss, ls_sum(ls_mul(ls_square(y), call + 1)));
}

/* The order of the waits: from the first, from the last, or a rank's own. */
static int waited(int order, int rank, int i) {
    return order == 0 ? i : order == 1 ? CALLS - 1 - i : (i * 3 + rank) % CALLS;
}

/*
 * Starts all calls, waits in some order, and compares values and gradients with the blocking calls. The losses add up
 * in the order of the calls, so that the gradients have the same bits.
 */
static ls_status same_as_blocking(ls_comm *comm, int64_t rows, ls_dtype dtype, int order) {
    const int rank = ls_comm_rank(comm);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(comm, rows, dtype), *same = leaf(comm, rows, dtype);
    ls_handle *handles[CALLS];
    ls_tensor *y[CALLS], *expected[CALLS];
    for (int i = 0; i < CALLS; i++) {
        handles[i] = begin(comm, x, i);
        LS_CHECK(handles[i] != NULL);
    }
    for (int i = 0; i < CALLS; i++) {
        const int k = waited(order, rank, i);
        y[k] = ls_handle_wait(handles[k]);
        LS_CHECK(y[k] != NULL);
    }
    ls_tensor *loss = ls_scalar(0, dtype), *other = ls_scalar(0, dtype);
    for (int i = 0; i < CALLS; i++) {
        expected[i] = blocking(comm, same, i);
        LS_CHECK(ls_equal(y[i], expected[i]) && ls_requires_grad(y[i]) == ls_requires_grad(expected[i]));
        loss = add_term(loss, y[i], i);
    }
    LS_TRY(ls_backward(loss));
    for (int i = 0; i < CALLS; i++) {
        other = add_term(other, expected[i], i);
    }
    LS_TRY(ls_backward(other));
    LS_CHECK(ls_grad(x) != NULL && ls_equal(ls_grad(x), ls_grad(same)));
    return ls_scope_end(scope);
}

/* A rank that starts a call meets ranks that make the blocking call. */
static ls_status mixed_with_blocking(ls_comm *comm) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(comm, MANY, LS_F32), *same = leaf(comm, MANY, LS_F32);
    for (int i = 0; i < CALLS; i++) {
        ls_tensor *y = (ls_comm_rank(comm) + i) % 2 == 0 ? ls_handle_wait(begin(comm, x, i)) : blocking(comm, x, i);
        ls_tensor *expected = blocking(comm, same, i);
        LS_CHECK(ls_equal(y, expected));
        LS_TRY(ls_backward(ls_add(ls_sum(ls_square(y)), ls_sum(ls_square(expected)))));
    }
    LS_CHECK(ls_equal(ls_grad(x), ls_grad(same)));
    return ls_scope_end(scope);
}

/* Calls in progress on several communicators at a time, which the ranks wait for in different orders. */
static ls_status several_communicators(ls_comm *world) {
    enum { COMMS = 3 };
    ls_comm *comms[COMMS];
    ls_handle *handles[COMMS];
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    for (int i = 0; i < COMMS; i++) {
        LS_TRY(ls_comm_split(world, i == 1 ? rank % 2 : 0, 0, &comms[i]));
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_full(LS_SHAPE(MANY), LS_F64, rank + 1);
    LS_TRY(ls_set_requires_grad(x, true));
    for (int i = 0; i < COMMS; i++) {
        handles[i] = ls_allreduce_begin(comms[i], x, LS_SUM);
    }
    ls_tensor *sum = ls_mul(x, 0);
    for (int i = 0; i < COMMS; i++) {
        sum = ls_add(sum, ls_handle_wait(handles[(i + rank) % COMMS]));
    }
    double expected = size * (size + 1);
    for (int other = rank % 2; other < size; other += 2) {
        expected += other + 1;
    }
    LS_CHECK(ls_at(sum, (int64_t[]){MANY - 1}) == expected);
    LS_TRY(ls_backward(ls_sum(sum)));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){0}) == 2 * size + ls_comm_size(comms[1]));
    LS_TRY(ls_scope_end(scope));
    for (int i = 0; i < COMMS; i++) {
        ls_comm_free(comms[i]);
    }
    return LS_OK;
}

/*
 * A backward pass while calls are in progress: it ends the calls, and ls_handle_wait still returns the results, through
 * which a second pass runs.
 */
static ls_status pass_before_the_wait(ls_comm *comm) {
    const int size = ls_comm_size(comm);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_full(LS_SHAPE(MANY), LS_F64, 2);
    LS_TRY(ls_set_requires_grad(x, true));
    ls_handle *handle = ls_allreduce_begin(comm, x, LS_PROD);
    LS_TRY(ls_backward(ls_sum(ls_mul(x, 3))));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){0}) == 3);
    ls_tensor *y = ls_handle_wait(handle);
    LS_CHECK(ls_at(y, (int64_t[]){MANY - 1}) == 1 << size);
    LS_TRY(ls_backward(ls_sum(y)));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){0}) == 3 + size * (1 << (size - 1)));
    LS_TRY(ls_scope_end(scope));

    /* Rank 0 waits and uses the result; the others have not waited when the pass reaches the call. */
    scope = ls_scope_begin();
    x = ls_full(LS_SHAPE(MANY), LS_F64, 2);
    LS_TRY(ls_set_requires_grad(x, true));
    handle = ls_allreduce_begin(comm, x, LS_SUM);
    y = ls_comm_rank(comm) == 0 ? ls_handle_wait(handle) : NULL;
    LS_TRY(ls_backward(y != NULL ? ls_sum(y) : ls_scalar(0, LS_F64)));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){0}) == 1);
    y = y != NULL ? y : ls_handle_wait(handle);
    LS_CHECK(ls_at(y, (int64_t[]){0}) == 2 * size);
    return ls_scope_end(scope);
}

/* The result belongs to the scope of the wait, and works without recording on some ranks. */
static ls_status scopes_and_no_grad(ls_comm *comm) {
    const int size = ls_comm_size(comm), rank = ls_comm_rank(comm);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(MANY), LS_F64);
    LS_TRY(ls_set_requires_grad(x, true));
    ls_handle *handle = ls_allreduce_begin(comm, x, LS_SUM);
    ls_scope *inner = ls_scope_begin();
    ls_tensor *y = ls_handle_wait(handle);
    ls_tensor *kept = ls_keep(ls_mul(y, 2));
    LS_TRY(ls_scope_end(inner));
    LS_TRY(ls_backward(ls_sum(kept)));
    LS_CHECK(ls_at(ls_grad(x), (int64_t[]){0}) == 2 * size);
    LS_TRY(ls_scope_end(scope));

    scope = ls_scope_begin(); /* a result that no tape holds ends with the scope of the wait */
    handle = ls_allreduce_begin(comm, ls_ones(LS_SHAPE(MANY), LS_F64), LS_SUM);
    inner = ls_scope_begin();
    y = ls_handle_wait(handle);
    LS_CHECK(ls_at(y, (int64_t[]){0}) == size);
    LS_TRY(ls_scope_end(inner));
    LS_CHECK(ls_sum(y) == NULL);
    LS_EXPECT_MESSAGE("a scope that has ended");
    (void)ls_scope_end(scope);

    scope = ls_scope_begin();
    const bool before = ls_no_grad(rank == 0);
    x = ls_ones(LS_SHAPE(MANY), LS_F64);
    LS_TRY(ls_set_requires_grad(x, true));
    y = ls_handle_wait(ls_allgather_begin(comm, x, 0));
    LS_CHECK(ls_requires_grad(y) == (rank != 0));
    (void)ls_no_grad(before);
    if (size > 1) {
        LS_TRY(ls_backward(rank == 0 ? ls_scalar(0, LS_F64) : ls_sum(y)));
        LS_CHECK(rank == 0 || ls_at(ls_grad(x), (int64_t[]){0}) == size - 1);
    }
    return ls_scope_end(scope);
}

/* A handle that is never waited for: the scope waits, so that no buffer is freed too early, and fails. */
static ls_status never_waited(ls_comm *comm, int64_t count) {
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_allreduce_begin(comm, ls_ones(LS_SHAPE(count), LS_F32), LS_SUM) != NULL);
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_allreduce_begin: the program never waited for its handle; call ls_handle_wait before "
                      "ls_scope_end");
    scope = ls_scope_begin(); /* only one rank does this; the other ranks already have their results */
    ls_handle *handle = ls_alltoall_begin(comm, leaf(comm, count, LS_F32), 0, 1, columns(comm));
    if (ls_comm_rank(comm) != 0) {
        LS_CHECK(ls_handle_wait(handle) != NULL);
    }
    LS_CHECK(ls_scope_end(scope) == (ls_comm_rank(comm) == 0 ? LS_ERR_STATE : LS_OK));
    return ls_comm_barrier(comm, NULL);
}

static ls_status waited_twice(ls_comm *comm) {
    ls_scope *scope = ls_scope_begin();
    ls_handle *handle = ls_broadcast_begin(comm, ls_ones(LS_SHAPE(MANY), LS_F32), 0);
    LS_CHECK(ls_handle_wait(handle) != NULL);
    LS_CHECK(ls_handle_wait(handle) == NULL);
    LS_EXPECT_MESSAGE("ls_handle_wait: this handle was already waited for");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    return LS_OK;
}

/* The tensor of a call in progress is changed: the wait fails, whatever the size is. */
static ls_status changed_in_progress(ls_comm *comm, int64_t count) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(count), LS_F32);
    ls_handle *handle = ls_allgather_begin(comm, x, 0);
    LS_TRY(ls_fill(x, 3));
    LS_CHECK(ls_handle_wait(handle) == NULL && ls_error_status() == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_allgather_begin: its tensor");
    LS_EXPECT_MESSAGE("(by ls_fill) before ls_handle_wait");
    (void)ls_scope_end(scope);
    LS_TRY(ls_comm_barrier(comm, NULL));
    scope = ls_scope_begin(); /* a view without common elements counts, too */
    x = ls_ones(LS_SHAPE(2, count), LS_F32);
    handle = ls_allgather_begin(comm, ls_narrow(x, 0, 0, 1), 0);
    LS_TRY(ls_fill(ls_narrow(x, 0, 1, 1), 3));
    LS_CHECK(ls_handle_wait(handle) == NULL && ls_error_status() == LS_ERR_STATE);
    (void)ls_scope_end(scope);
    return ls_comm_barrier(comm, NULL);
}

static ls_status wrong_arguments(ls_comm *comm) {
    const int size = ls_comm_size(comm), rank = ls_comm_rank(comm);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(2, 3), LS_F32);
    LS_CHECK(ls_allreduce_begin(NULL, x, LS_SUM) == NULL);
    LS_EXPECT_MESSAGE("ls_allreduce: the communicator is NULL");
    LS_CHECK(ls_allgather_begin(comm, x, 2) == NULL);
    LS_EXPECT_MESSAGE("axis 2 does not exist");
    LS_CHECK(ls_broadcast_begin(comm, x, size) == NULL);
    (void)ls_scope_end(scope);
    if (size > 1) {
        scope = ls_scope_begin();
        x = ls_ones(rank == 0 ? LS_SHAPE(2, 3) : LS_SHAPE(3, 2), LS_F32);
        LS_CHECK(ls_allreduce_begin(comm, x, LS_SUM) == NULL && ls_error_status() == LS_ERR_MISMATCH);
        LS_CHECK(ls_handle_wait(NULL) == NULL && ls_error_status() == LS_ERR_MISMATCH);
        ls_tensor *bad = rank == 1 ? ls_matmul(x, x) : x; /* the shapes do not fit */
        LS_CHECK(ls_allreduce_begin(comm, bad, LS_SUM) == NULL);
        LS_EXPECT_MESSAGE("ls_matmul");
        (void)ls_scope_end(scope);
    }
    return ls_comm_barrier(comm, NULL);
}

/* The communicator is freed while a call is in progress. */
static ls_status freed_in_progress(ls_comm *world) {
    ls_comm *ending = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &ending));
    ls_scope *scope = ls_scope_begin();
    ls_handle *handle = ls_allreduce_begin(ending, ls_ones(LS_SHAPE(MANY), LS_F64), LS_SUM);
    ls_handle *other = NULL;
    LS_CHECK(handle != NULL);
    LS_TRY(ls_comm_barrier(world, NULL));
    ls_comm_free(ending);
    other = ls_allreduce_begin(ending, ls_ones(LS_SHAPE(1), LS_F64), LS_SUM);
    LS_CHECK(other == NULL && ls_error_status() == LS_ERR_STATE);
    ls_tensor *y = ls_handle_wait(handle); /* the call may have ended before */
    LS_CHECK(y == NULL || ls_at(y, (int64_t[]){0}) == ls_comm_size(world));
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    return ls_comm_barrier(world, NULL);
}

ls_status rank_test(ls_comm *world) {
    for (int order = 0; order < 3; order++) {
        LS_TRY(same_as_blocking(world, FEW, LS_F64, order));
        LS_TRY(same_as_blocking(world, MANY, LS_F32, order));
    }
    LS_TRY(mixed_with_blocking(world));
    LS_TRY(several_communicators(world));
    LS_TRY(pass_before_the_wait(world));
    LS_TRY(scopes_and_no_grad(world));
    LS_TRY(never_waited(world, 1));
    LS_TRY(never_waited(world, MANY));
    LS_TRY(waited_twice(world));
    LS_TRY(changed_in_progress(world, 1));
    LS_TRY(changed_in_progress(world, MANY));
    LS_TRY(wrong_arguments(world));
    return freed_in_progress(world);
}
