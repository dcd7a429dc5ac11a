/*
 * Ranks that call different things, on any number of ranks and any backend: every rank learns who called what, no
 * buffer is touched, and the communicator goes on in step. Counts that do not fit, and messages other than wanted,
 * likewise.
 */
#include <string.h>

#include "tests/support/ranks.h"

#define MOST 5000 /* more than any backend sends along with what it announces */

static bool untouched(const float *values, size_t count, float expected) {
    for (size_t i = 0; i < count; i++) {
        if (values[i] != expected) {
            return false;
        }
    }
    return true;
}

static bool says(const char *text) {
    return strstr(ls_error_message(), text) != NULL;
}

/* The ranks are in step. */
static ls_status sum_ranks(ls_comm *world) {
    const int size = ls_comm_size(world);
    int64_t sum = ls_comm_rank(world);
    LS_CHECK(ls_comm_allreduce(world, &sum, &sum, 1, LS_I64, LS_SUM, NULL) == LS_OK);
    LS_CHECK(sum == (int64_t)size * (size - 1) / 2);
    return LS_OK;
}

static ls_status different_calls(ls_comm *world, float *values, size_t count) {
    const bool odd = ls_comm_rank(world) == ls_comm_size(world) - 1;
    for (size_t i = 0; i < MOST; i++) {
        values[i] = 7;
    }
    LS_CHECK((odd ? ls_comm_broadcast(world, values, count, LS_F32, 0, NULL)
                  : ls_comm_allreduce(world, values, values, count, LS_F32, LS_SUM, NULL)) == LS_ERR_MISMATCH);
    LS_CHECK(says("ranks called different things: rank") && says("f32, sum (#") && says("from rank 0 (#"));
    LS_CHECK(ls_comm_allreduce(world, values, values, odd ? count + 1 : count, LS_F32, LS_SUM, NULL) ==
             LS_ERR_MISMATCH);
    LS_CHECK(ls_comm_allreduce(world, values, values, count, LS_F32, odd ? LS_MAX : LS_SUM, NULL) == LS_ERR_MISMATCH);
    LS_CHECK(says(", max (#") && says(", sum (#"));
    LS_CHECK(ls_comm_reduce(world, values, values, count, odd ? LS_I32 : LS_F32, LS_SUM, 0, NULL) == LS_ERR_MISMATCH);
    LS_CHECK(ls_comm_gather(world, values, values + MOST, 1, LS_F32, odd ? 1 : 0, NULL) == LS_ERR_MISMATCH);
    LS_CHECK(untouched(values, MOST, 7));
    ls_work *work = NULL;
    LS_CHECK((odd ? ls_comm_barrier(world, &work) : ls_comm_broadcast(world, values, count, LS_F32, 0, &work)) ==
             LS_OK);
    LS_CHECK(ls_work_wait(work) == LS_ERR_MISMATCH && says("called barrier (#"));
    return sum_ranks(world);
}

/* Rank 0 gives its neighbour `count` elements, which wants one less. */
static ls_status different_counts(ls_comm *world, float *values, size_t count) {
    const int size = ls_comm_size(world);
    const int rank = ls_comm_rank(world);
    size_t sent[64] = {0};
    size_t wanted[64] = {0};
    LS_CHECK(size <= 64);
    sent[1] = rank == 0 ? count : 0;
    wanted[0] = rank == 1 ? count - 1 : 0;
    for (size_t i = 0; i < 2 * MOST; i++) {
        values[i] = 3;
    }
    LS_CHECK(ls_comm_alltoallv(world, values, sent, NULL, values + MOST, wanted, NULL, LS_F32, NULL) ==
             LS_ERR_MISMATCH);
    LS_CHECK(says(": rank 0 sends ") && says(" f32 to rank 1, which wants "));
    LS_CHECK(untouched(values, 2 * MOST, 3));
    return sum_ranks(world);
}

static ls_status different_messages(ls_comm *world, float *values, size_t count) {
    const int rank = ls_comm_rank(world);
    if (rank == 0) {
        ls_work *work[2] = {NULL, NULL};
        for (size_t i = 0; i < count; i++) {
            values[i] = 2;
        }
        LS_CHECK(ls_comm_send(world, values, count, LS_F32, 1, 5, &work[0]) == LS_OK);
        LS_CHECK(ls_comm_send(world, values, count, LS_F32, 1, 5, &work[1]) == LS_OK);
        const ls_status first = ls_work_wait(work[0]); /* a backend may tell the sender too */
        LS_CHECK(first == LS_OK || first == LS_ERR_MISMATCH);
        LS_CHECK(ls_work_wait(work[1]) == LS_OK);
    } else if (rank == 1) {
        memset(values, 0, count * sizeof *values);
        LS_CHECK(ls_comm_recv(world, values, count - 1, LS_F32, 0, 5, NULL) == LS_ERR_MISMATCH);
        LS_CHECK(says("rank 0 sent ") && says("but this rank wants ") && untouched(values, count, 0));
        LS_CHECK(ls_comm_recv(world, values, count, LS_F32, 0, 5, NULL) == LS_OK && untouched(values, count, 2));
    }
    return sum_ranks(world);
}

ls_status rank_test(ls_comm *world) {
    static const size_t counts[] = {2, 40, 300, MOST - 1};
    static _Thread_local float own[2 * MOST]; /* ranks may be threads */
    float *values = own;
    LS_TRY(sum_ranks(world));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0] && ls_comm_size(world) > 1; i++) {
        LS_TRY(different_calls(world, values, counts[i]));
        LS_TRY(different_counts(world, values, counts[i]));
        LS_TRY(different_messages(world, values, counts[i]));
    }
    return LS_OK;
}
