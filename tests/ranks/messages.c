/*
 * Differentiable sends and receives: rings, orders, loops, groups, and errors.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

static ls_tensor *leaf(double value, int64_t count) {
    ls_tensor *x = ls_full(LS_SHAPE(count), LS_F64, value);
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

static double grad_of(const ls_tensor *x) {
    return ls_grad(x) != NULL ? ls_at(ls_grad(x), (int64_t[]){0}) : 0;
}

static int next_of(const ls_comm *comm) {
    return (ls_comm_rank(comm) + 1) % ls_comm_size(comm);
}

static int previous_of(const ls_comm *comm) {
    return (ls_comm_rank(comm) + ls_comm_size(comm) - 1) % ls_comm_size(comm);
}

/* The ring as a program would write it without considering gradients, with small and large messages. */
static ls_status plain_ring(ls_comm *world) {
    for (int64_t count = 1; count <= 100000; count *= 100000) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *a = ls_ones(LS_SHAPE(count), LS_F32);
        LS_TRY(ls_set_requires_grad(a, true));
        ls_handle *sent = ls_isend(world, a, next_of(world), 0);
        ls_tensor *b = ls_recv(world, LS_SHAPE(count), LS_F32, previous_of(world), 0);
        ls_handle_wait(sent);
        LS_TRY(ls_backward(ls_sum(ls_add(a, b))));
        LS_CHECK(grad_of(a) == 2);
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

/* The gradient arrives although the receiver does not use the message and the sender has no loss. */
static ls_status neglected_messages(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    if (size == 1) {
        return LS_OK;
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(3, 2);
    ls_tensor *loss = ls_scalar(0, LS_F32);
    if (rank == 0) {
        ls_send(world, ls_square(a), 1, 4);
        ls_send(world, ls_mul(a, 10), 1, 4);
    } else if (rank == 1) {
        loss = ls_sum(ls_recv(world, LS_SHAPE(2), LS_F64, 0, 4));
        (void)ls_recv(world, LS_SHAPE(2), LS_F64, 0, 4);
    }
    if (rank <= 1) {
        LS_TRY(ls_backward(loss));
    }
    LS_CHECK(grad_of(a) == (rank == 0 ? 6 : 0));
    return ls_scope_end(scope);
}

/* Waits for two messages with the same tag in opposite orders on the two sides: each gradient reaches its message. */
static ls_status waits_in_any_order(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(1, 3);
    ls_tensor *b = leaf(1, 3);
    ls_handle *sent[] = {ls_isend(world, a, next_of(world), 1), ls_isend(world, b, next_of(world), 1)};
    ls_handle *got[] = {ls_irecv(world, LS_SHAPE(3), LS_F64, previous_of(world), 1),
                        ls_irecv(world, LS_SHAPE(3), LS_F64, previous_of(world), 1)};
    const int first = rank % 2;
    ls_tensor *x[2];
    x[first] = ls_handle_wait(got[first]);
    ls_handle_wait(sent[1]);
    x[1 - first] = ls_handle_wait(got[1 - first]);
    ls_handle_wait(sent[0]);
    LS_TRY(ls_backward(ls_sum(ls_add(ls_mul(x[0], 5), ls_mul(x[1], 7)))));
    LS_CHECK(grad_of(a) == 5 && grad_of(b) == 7);
    return ls_scope_end(scope);
}

/* ls_handle_wait returns the tensor of a sent message, and gradients flow through it, too. */
static ls_status sent_tensors_are_given_back(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(2, 2);
    ls_handle *sent = ls_isend(world, a, next_of(world), 0);
    ls_tensor *b = ls_recv(world, LS_SHAPE(2), LS_F64, previous_of(world), 0);
    ls_tensor *given_back = ls_handle_wait(sent);
    LS_CHECK(ls_equal(given_back, a));
    ls_tensor *to_myself = ls_send(world, a, ls_comm_rank(world), 3);
    ls_tensor *own = ls_recv(world, LS_SHAPE(2), LS_F64, ls_comm_rank(world), 3);
    ls_tensor *joined = ls_join_dummies(b, (ls_tensor *[]){given_back, own}, 2);
    LS_CHECK(ls_requires_grad(ls_join_dummies(ls_scalar(1, LS_F64), &a, 1)) &&
             ls_equal(ls_join_dummies(a, NULL, 0), a));
    LS_TRY(ls_backward(ls_sum(ls_mul(joined, ls_add(to_myself, given_back)))));
    /* 4 from the rank that receives this a as its b, and 2 b from the two uses of a here */
    LS_CHECK(grad_of(a) == 8);
    return ls_scope_end(scope);
}

/*
 * A recurrent net whose steps travel around the ranks, with two backward passes over the kept tape, and inner scopes.
 */
static ls_status a_loop_around_the_ranks(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *w = leaf(1.5, 1);
    ls_tensor *state = ls_ones(LS_SHAPE(1), LS_F64);
    for (int step = 0; step < 3; step++) {
        ls_scope *inner = ls_scope_begin();
        ls_handle *sent = ls_isend(world, ls_mul(state, w), next_of(world), step);
        state = ls_keep(ls_recv(world, LS_SHAPE(1), LS_F64, previous_of(world), step));
        ls_handle_wait(sent);
        LS_TRY(ls_scope_end(inner));
    }
    ls_tensor *loss = ls_sum(state); /* the product of w on three consecutive ranks */
    LS_TRY(ls_backward_with(loss, &(ls_backward_options){.keep_tape = true}));
    LS_CHECK(fabs(grad_of(w) - 3 * 1.5 * 1.5) < 1e-12);
    LS_TRY(ls_backward(loss));
    LS_CHECK(fabs(grad_of(w) - 6 * 1.5 * 1.5) < 1e-12);
    (void)size;
    return ls_scope_end(scope);
}

/* A scope that ends without kept tensors still completes its communication, because the other ranks need it. */
static ls_status sends_outlive_their_scope(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(3, 1);
    ls_scope *inner = ls_scope_begin();
    ls_handle *sent = ls_isend(world, ls_square(a), next_of(world), 0);
    ls_tensor *b = ls_keep(ls_recv(world, LS_SHAPE(1), LS_F64, previous_of(world), 0));
    ls_handle_wait(sent);
    if (ls_comm_rank(world) == 0) {
        ls_release(b);
        b = NULL;
    }
    LS_TRY(ls_scope_end(inner));
    LS_TRY(ls_backward(b != NULL ? ls_sum(b) : ls_scalar(0, LS_F64)));
    LS_CHECK(grad_of(a) == (next_of(world) == 0 ? 0 : 6));
    return ls_scope_end(scope);
}

/*
 * Receives for which no rank has waited before the backward pass: the sender gets zeros, and ls_handle_wait still
 * returns the message.
 */
static ls_status receives_left_open(ls_comm *world) {
    for (int waiters = 0; waiters < 2; waiters++) { /* no rank waits before the pass, then all ranks except 0 do */
        ls_scope *scope = ls_scope_begin();
        ls_tensor *a = leaf(3, 1);
        const bool waits = waiters == 1 && ls_comm_rank(world) != 0;
        ls_handle *coming = ls_irecv(world, LS_SHAPE(1), LS_F64, previous_of(world), 0);
        ls_handle *sent = ls_isend(world, ls_square(a), next_of(world), 0);
        ls_tensor *b = waits ? ls_handle_wait(coming) : NULL;
        ls_handle_wait(sent);
        LS_TRY(ls_backward(b != NULL ? ls_add(ls_sum(a), ls_sum(b)) : ls_sum(a)));
        const bool used = waiters == 1 && next_of(world) != 0;
        LS_CHECK(grad_of(a) == (used ? 7 : 1));
        LS_CHECK(waits || ls_item(ls_handle_wait(coming)) == 9);
        LS_TRY(ls_scope_end(scope));
    }
    ls_scope *scope = ls_scope_begin(); /* now with a message without a gradient */
    ls_tensor *a = leaf(3, 1);
    ls_handle *coming = ls_irecv(world, LS_SHAPE(1), LS_I64, previous_of(world), 0);
    ls_handle *sent = ls_isend(world, ls_full(LS_SHAPE(1), LS_I64, 5), next_of(world), 0);
    LS_TRY(ls_backward(ls_sum(a)));
    LS_CHECK(grad_of(a) == 1 && ls_item(ls_handle_wait(coming)) == 5);
    ls_handle_wait(sent);
    return ls_scope_end(scope);
}

/* If no rank requires a gradient, nothing is recorded and nothing is sent back. */
static ls_status without_gradient(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(3, 2);
    const bool before = ls_no_grad(true);
    ls_handle *sent = ls_isend(world, a, next_of(world), 0);
    ls_tensor *b = ls_recv(world, LS_SHAPE(2), LS_F64, previous_of(world), 0);
    LS_CHECK(!ls_requires_grad(b) && !ls_requires_grad(ls_handle_wait(sent)));
    (void)ls_no_grad(before);
    ls_tensor *whole = ls_full(LS_SHAPE(2), LS_I64, ls_comm_rank(world));
    sent = ls_isend(world, whole, next_of(world), 0);
    b = ls_recv(world, LS_SHAPE(2), LS_I64, previous_of(world), 0);
    ls_handle_wait(sent);
    LS_CHECK(ls_at(b, (int64_t[]){1}) == previous_of(world));
    LS_CHECK(ls_backward(ls_scalar(0, LS_F64)) == LS_ERR_STATE);

    /* Only one side is under ls_no_grad: the other side's gradient arrives, but without a contribution from this
     * side. */
    const bool off = ls_comm_rank(world) == 0;
    (void)ls_no_grad(off);
    sent = ls_isend(world, a, next_of(world), 0);
    b = ls_recv(world, LS_SHAPE(2), LS_F64, previous_of(world), 0);
    LS_CHECK(ls_requires_grad(ls_handle_wait(sent)) == !off);
    LS_CHECK(ls_requires_grad(b) == (!off && previous_of(world) != 0));
    (void)ls_no_grad(before);
    if (ls_comm_size(world) > 1) {
        LS_TRY(ls_backward(ls_sum(b)));
        LS_CHECK(grad_of(a) == (off || next_of(world) == 0 ? 0 : 1));
    }
    (void)ls_scope_end(scope);
    return LS_OK;
}

static bool said(const char *text) {
    return strstr(ls_error_message(), text) != NULL;
}

/* The receiver's error says which message arrived instead, or why the sender could not create it. Both ranks
 * continue. */
static ls_status messages_that_do_not_fit(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_scope *scope = ls_scope_begin();
    if (rank == 0) {
        ls_send(world, ls_ones(LS_SHAPE(2, 3), LS_F32), 1, 0);
        ls_send(world, ls_ones(LS_SHAPE(2, 3), LS_F32), 1, 0);
        LS_CHECK(ls_send(world, ls_matmul(ls_ones(LS_SHAPE(2, 3), LS_F32), ls_ones(LS_SHAPE(2), LS_F32)), 1, 0) ==
                 NULL);
        LS_CHECK(said("ls_matmul"));
        ls_send(world, ls_ones(LS_SHAPE(5), LS_F32), 1, 0);
    } else if (rank == 1) {
        LS_CHECK(ls_recv(world, LS_SHAPE(3, 2), LS_F32, 0, 0) == NULL);
        LS_CHECK(said("rank 0 sends [2, 3] of f32 with tag 0, but this rank expects [3, 2] of f32"));
        LS_CHECK(ls_recv(world, LS_SHAPE(400), LS_F64, 0, 0) == NULL);
        LS_CHECK(said("rank 0 sends [2, 3] of f32 with tag 0, but this rank expects [400] of f64"));
        LS_CHECK(ls_recv(world, LS_SHAPE(2), LS_F32, 0, 0) == NULL);
        LS_CHECK(said("rank 0 failed before it could send with tag 0"));
        LS_CHECK(ls_recv(world, LS_SHAPE(5), LS_F32, 0, 0) != NULL);
    }
    (void)ls_scope_end(scope);
    return ls_comm_barrier(world, NULL);
}

static ls_status wrong_arguments(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(1), LS_F32);
    LS_CHECK(ls_isend(NULL, x, 0, 0) == NULL && said("communicator is NULL"));
    LS_CHECK(ls_isend(world, x, size, 0) == NULL && said("ls_isend: destination "));
    LS_CHECK(ls_irecv(world, LS_SHAPE(1), LS_F32, size, 0) == NULL && said("ls_irecv: source "));
    LS_CHECK(ls_irecv(world, LS_SHAPE(1), LS_F32, -1, 0) == NULL && said("ls_irecv: source -1"));
    LS_CHECK(ls_irecv(world, LS_SHAPE(-1), LS_F32, 0, 0) == NULL);
    LS_CHECK(ls_isend(world, x, 0, 1 << 30) == NULL && said("ls_isend: tag"));
    LS_CHECK(ls_isend(world, x, 0, -1) == NULL && said("ls_isend: tag -1"));
    LS_CHECK(ls_join_dummies(x, (ls_tensor *[]){NULL}, 1) == NULL && ls_join_dummies(NULL, NULL, 0) == NULL);
    LS_CHECK(ls_join_dummies(x, NULL, 1) == NULL);
    LS_CHECK(ls_handle_wait(NULL) == NULL);
    (void)ls_scope_end(scope);
    return LS_OK;
}

/* Two halves of the world, each with its own messages and sums, contribute to one loss. */
static ls_status several_communicators(ls_comm *world) {
    ls_comm *half = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &half));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(2, 1);
    ls_tensor *in_half = ls_allreduce(half, ls_square(a), LS_SUM);
    ls_handle *sent = ls_isend(world, in_half, next_of(world), 0);
    ls_tensor *other = ls_recv(world, LS_SHAPE(1), LS_F64, previous_of(world), 0);
    ls_handle_wait(sent);
    LS_TRY(ls_backward(ls_sum(ls_allreduce(half, ls_add(other, in_half), LS_AVG))));
    /* Every rank's square occurs in the sums of its half. Two ranks use each sum. */
    LS_CHECK(grad_of(a) == 4.0 * 2 * ls_comm_size(half));
    LS_TRY(ls_scope_end(scope));
    ls_comm_free(half);
    return LS_OK;
}

/* Ways in which the pass fails on a rank. */
enum { NO_LOSS, CHANGED_TENSOR, FAILURES };

/* A loss with which ls_backward fails in this way. */
static ls_tensor *failing_loss(ls_tensor *x, int failure) {
    if (failure == NO_LOSS) {
        return ls_matmul(x, ls_zeros(LS_SHAPE(ls_numel(x) + 1), LS_F64));
    }
    ls_tensor *doubled = ls_mul(x, 2);
    ls_tensor *loss = ls_sum(ls_square(doubled));
    return ls_fill(ls_detach(doubled), 0) == LS_OK ? loss : NULL;
}

/*
 * If the pass fails on a rank, the sender of the rank's message gets the cause instead of the gradient. The gradient of
 * a message that the program has not waited for is the first that a pass sends, so it is sent if the pass begins.
 */
static ls_status a_pass_that_fails(ls_comm *world, int failing, int failure, int64_t count, bool waits) {
    const int rank = ls_comm_rank(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(2, count);
    ls_handle *coming = ls_irecv(world, LS_SHAPE(count), LS_F64, previous_of(world), 0);
    ls_handle *sent = ls_isend(world, ls_square(a), next_of(world), 0);
    ls_tensor *b = waits && ls_handle_wait(sent) != NULL ? ls_handle_wait(coming) : a;
    const ls_status status = ls_backward(rank == failing ? failing_loss(b, failure) : ls_sum(b));
    if (rank == failing) {
        LS_CHECK(status == (failure == NO_LOSS ? LS_ERR_SHAPE : LS_ERR_STATE));
        LS_EXPECT_MESSAGE(failure == NO_LOSS ? "ls_matmul: " : "ls_square saved a tensor");
    } else if (next_of(world) == failing && (waits || failure == NO_LOSS)) {
        char expected[100];
        snprintf(expected, sizeof expected, "ls_backward: rank %d failed: %s", failing,
                 failure == NO_LOSS ? "ls_matmul: " : "ls_backward: ls_square saved a tensor");
        LS_CHECK(status == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE(expected);
    } else {
        LS_CHECK(status == LS_OK && grad_of(a) == (waits ? 4 : 1));
    }
    LS_CHECK(waits || (ls_item(ls_max(ls_handle_wait(coming))) == 4 && ls_handle_wait(sent) != NULL));
    LS_CHECK(ls_scope_end(scope) == status);
    return ls_comm_barrier(world, NULL);
}

static ls_status passes_that_fail(ls_comm *world) {
    for (int failing = 0; failing < ls_comm_size(world); failing++) {
        for (int failure = 0; failure < FAILURES; failure++) {
            for (int64_t count = 1; count <= 100000; count *= 100000) {
                LS_TRY(a_pass_that_fails(world, failing, failure, count, true));
                LS_TRY(a_pass_that_fails(world, failing, failure, count, false));
            }
        }
    }
    return LS_OK;
}

/*
 * A message that could not be received has no gradient. Rank 1 has no loss at first, and then a loss that does not need
 * the message.
 */
static ls_status a_gradient_that_is_missing(ls_comm *world) {
    for (int losses = 0; losses < 2 && ls_comm_size(world) > 1; losses++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *a = leaf(2, 3);
        ls_status status = LS_OK;
        if (ls_comm_rank(world) == 0) {
            ls_send(world, ls_square(a), 1, 0);
            status = ls_backward(ls_sum(a));
            LS_CHECK(status == LS_ERR_MISMATCH);
            LS_EXPECT_MESSAGE("rank 1 failed: ls_irecv: rank 0 sends [3] of f64");
        } else if (ls_comm_rank(world) == 1) {
            ls_tensor *b = ls_recv(world, LS_SHAPE(4), LS_F64, 0, 0);
            status = LS_ERR_MISMATCH;
            if (losses == 1) { /* a later error is not the cause */
                ls_scope *other = ls_scope_begin();
                LS_CHECK(ls_reshape(a, LS_SHAPE(77)) == NULL && ls_scope_end(other) == LS_ERR_SHAPE);
            }
            LS_CHECK(b == NULL && ls_backward(losses == 0 ? b : ls_sum(a)) == (losses == 0 ? status : LS_ERR_STATE));
        }
        LS_CHECK(ls_scope_end(scope) == status);
        LS_TRY(ls_comm_barrier(world, NULL));
    }
    return LS_OK;
}

/* Checks the result of a backward pass, and that the communicator stays usable. */
static ls_status end_pass(ls_comm *world, ls_scope *scope, ls_status status, ls_status expected, const char *text) {
    LS_CHECK(status == expected);
    if (expected != LS_OK) {
        LS_EXPECT_MESSAGE(text);
    }
    (void)ls_scope_end(scope);
    return ls_comm_barrier(world, NULL);
}

/* Rank 1 starts to receive, sends, and cannot receive. Rank 0 needs rank 1's answer before it can send a gradient. */
static ls_status a_lost_message_before_a_send(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(2, 3), *loss = ls_sum(a);
    if (rank == 0) {
        ls_tensor *received = ls_recv(world, LS_SHAPE(3), LS_F64, 1, 1);
        ls_send(world, ls_square(a), 1, 0);
        loss = ls_add(ls_sum(received), loss);
    } else if (rank == 1) {
        ls_handle *coming = ls_irecv(world, LS_SHAPE(4), LS_F64, 0, 0);
        ls_send(world, ls_square(a), 0, 1);
        loss = ls_handle_wait(coming);
        LS_CHECK(loss == NULL);
    }
    return end_pass(world, scope, ls_backward(loss), rank < 2 ? LS_ERR_MISMATCH : LS_OK, "rank 0 sends [3] of f64");
}

/* Rank 0 cannot receive the first of the messages that it has not waited for. All senders get its answer. */
static ls_status lost_messages_of_several_ranks(ls_comm *world, bool has_loss) {
    const int rank = ls_comm_rank(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(2, 3);
    if (rank > 0) {
        ls_send(world, ls_square(a), 0, 0);
    }
    for (int source = 1; rank == 0 && source < ls_comm_size(world); source++) {
        LS_CHECK(ls_irecv(world, LS_SHAPE(source == 1 ? 4 : 3), LS_F64, source, 0) != NULL);
    }
    const ls_status status = ls_backward(rank > 0 || has_loss ? ls_sum(a) : NULL);
    if (rank == 0 && !has_loss) { /* the error of a message that has already arrived may explain the missing loss */
        LS_CHECK(status == LS_ERR_ARGUMENT || status == LS_ERR_MISMATCH);
        (void)ls_scope_end(scope);
        return ls_comm_barrier(world, NULL);
    }
    return end_pass(world, scope, status, LS_ERR_MISMATCH,
                    rank == 0 ? "sends [3] of f64" : "ls_backward: rank 0 failed: ");
}

enum { WRONG_SHAPE, SENDER_WITHOUT_LOSS, RECEIVER_WITHOUT_LOSS, OTHER_WITHOUT_LOSS, DATA_PARALLEL_FAILURES };

/*
 * Ranks 1 and 2 have a data-parallel module, and receive a message from rank 0, which has no such module. `failure`
 * selects the failure: rank 1 expects a wrong shape (WRONG_SHAPE), or rank 0, rank 1 or rank 2 has no loss (the next
 * three values). With WRONG_SHAPE and SENDER_WITHOUT_LOSS, all ranks also sum their losses.
 */
static ls_status messages_into_a_data_parallel_module(ls_comm *world, int failure) {
    const int rank = ls_comm_rank(world);
    const bool sums = failure < RECEIVER_WITHOUT_LOSS;
    ls_comm *group = NULL;
    LS_TRY(ls_comm_split(world, rank == 1 || rank == 2 ? 0 : -1, 0, &group));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_sum(leaf(2, 1));
    ls_module *model = NULL;
    if (rank == 0) {
        ls_tensor *sent = ls_square(leaf(2, 6));
        ls_send(world, sent, 1, 0);
        ls_send(world, sent, 2, 0);
    } else if (rank < 3) {
        model = ls_data_parallel(ls_nn_linear_with(3, 2, &(ls_linear_options){.dtype = LS_F64}), group, NULL);
        ls_tensor *received = ls_recv(world, LS_SHAPE(failure == WRONG_SHAPE && rank == 1 ? 7 : 6), LS_F64, 0, 0);
        ls_tensor *x = received != NULL ? ls_reshape(received, LS_SHAPE(2, 3)) : ls_ones(LS_SHAPE(2, 3), LS_F64);
        loss = ls_mean(ls_forward(model, x));
        loss = rank == 1 && received != NULL ? ls_add(loss, ls_sum(ls_square(received))) : loss;
    }
    loss = sums ? ls_allreduce(world, loss, LS_SUM) : loss;
    const ls_status status = ls_backward(rank == failure - SENDER_WITHOUT_LOSS && failure != WRONG_SHAPE ? NULL : loss);
    LS_CHECK((status == LS_OK) == (rank > 2 && failure != SENDER_WITHOUT_LOSS));
    if (status != LS_OK) {
        LS_EXPECT_MESSAGE(failure != WRONG_SHAPE ? "the loss is NULL"
                          : rank == 0            ? "rank 0 sends [6] of f64"
                                                 : "was not received");
    }
    (void)ls_scope_end(scope);
    ls_module_free(model);
    ls_comm_free(group);
    return ls_comm_barrier(world, NULL);
}

/* A failure reaches the ranks of all communicators on the tape. */
static ls_status a_failure_on_two_communicators(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_comm *parts[2] = {NULL}; /* without rank 1, and without rank 2 */
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = leaf(2, 1);
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_comm_split(world, rank == i + 1 ? -1 : 0, 0, &parts[i]));
        loss = parts[i] != NULL ? ls_allreduce(parts[i], loss, LS_SUM) : loss;
    }
    const ls_status expected = rank == 0 ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH;
    LS_CHECK(ls_backward(rank == 0 ? NULL : ls_sum(loss)) == expected);
    LS_EXPECT_MESSAGE(rank == 0 ? "the loss is NULL" : "rank 0 failed: ls_backward: the loss is NULL");
    (void)ls_scope_end(scope);
    ls_comm_free(parts[0]);
    ls_comm_free(parts[1]);
    return ls_comm_barrier(world, NULL);
}

/*
 * A message that never arrives. Its scope does not wait for it if the communicator has already been freed. A rank that
 * still waits in the barrier may get an error saying that the other rank has left, and then the receive has failed.
 */
static ls_status a_message_given_up(ls_comm *world) {
    ls_comm *ending = NULL;
    ls_scope *scope = ls_scope_begin();
    LS_TRY(ls_comm_split(world, 0, 0, &ending));
    const int other = (ls_comm_rank(world) + 1) % ls_comm_size(world);
    LS_CHECK(other == ls_comm_rank(world) || ls_irecv(ending, LS_SHAPE(3), LS_F32, other, 5) != NULL);
    LS_TRY(ls_comm_barrier(world, NULL));
    ls_comm_free(ending);
    const ls_status status = ls_scope_end(scope);
    LS_CHECK(status == LS_OK || (status == LS_ERR_PEER && said("left without making this call")));
    return LS_OK;
}

/* A backward pass waits for a message whose sender leaves. ls_handle_wait must not return the missing message. */
static ls_status a_receive_that_fails_in_a_pass(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_comm *ending = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &ending));
    ls_scope *scope = ls_scope_begin();
    if (ls_comm_rank(world) == 0) {
        ls_handle *coming = ls_irecv(ending, (ls_shape){0}, LS_F32, 1, 5);
        LS_CHECK(coming != NULL);
        LS_CHECK(ls_backward(ls_sum(leaf(3, 1))) != LS_OK);
        LS_CHECK(ls_handle_wait(coming) == NULL);
    } else {
        (void)usleep(100000); /* rank 0 waits in its pass meanwhile */
    }
    ls_comm_free(ending);
    (void)ls_scope_end(scope);
    return ls_comm_barrier(world, NULL);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(plain_ring(world));
    LS_TRY(neglected_messages(world));
    LS_TRY(receives_left_open(world));
    LS_TRY(a_message_given_up(world));
    LS_TRY(a_receive_that_fails_in_a_pass(world));
    LS_TRY(waits_in_any_order(world));
    LS_TRY(sent_tensors_are_given_back(world));
    LS_TRY(a_loop_around_the_ranks(world));
    LS_TRY(sends_outlive_their_scope(world));
    LS_TRY(without_gradient(world));
    LS_TRY(messages_that_do_not_fit(world));
    LS_TRY(wrong_arguments(world));
    LS_TRY(several_communicators(world));
    LS_TRY(passes_that_fail(world));
    LS_TRY(a_gradient_that_is_missing(world));
    if (ls_comm_size(world) > 1) {
        LS_TRY(a_lost_message_before_a_send(world));
        LS_TRY(lost_messages_of_several_ranks(world, true));
        LS_TRY(lost_messages_of_several_ranks(world, false));
    }
    if (ls_comm_size(world) > 2) {
        LS_TRY(a_failure_on_two_communicators(world));
        for (int failure = 0; failure < DATA_PARALLEL_FAILURES; failure++) {
            LS_TRY(messages_into_a_data_parallel_module(world, failure));
        }
    }
    return ls_comm_barrier(world, NULL);
}
