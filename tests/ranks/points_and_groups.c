/*
 * Sends and receives between every pair of ranks, of every size class, in order and out of order, blocking and
 * asynchronous, mixed with collectives. Communicators created by ls_comm_split: several at once, splits of splits, and
 * splits that outlive their parent.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 700001, RANKS_MOST = 8 };

static unsigned char sent(int from, int tag, size_t i) {
    return (unsigned char)(((i + 3) * 2654435761U + (unsigned)from * 40503U + (unsigned)tag * 9973U) >> 9);
}

static void fill(unsigned char *data, size_t count, int from, int tag) {
    for (size_t i = 0; i < count; i++) {
        data[i] = sent(from, tag, i);
    }
}

static bool holds(const unsigned char *data, size_t count, int from, int tag) {
    for (size_t i = 0; i < count; i++) {
        if (data[i] != sent(from, tag, i)) {
            return false;
        }
    }
    return true;
}

static const size_t sizes[] = {0, 1, 24, 88, 89, 4096, 8280, 8281, 16384, 70000, MOST};

enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Tests one pair after another, in both directions, including a rank with itself. The buffers have odd addresses. */
static ls_status every_pair(ls_comm *comm, unsigned char *out, unsigned char *in) {
    const int rank = ls_comm_rank(comm);
    for (int from = 0; from < ls_comm_size(comm); from++) {
        for (int to = 0; to < ls_comm_size(comm); to++) {
            for (int k = 0; k < SIZES; k++) {
                if (rank == from) {
                    fill(out + 1, sizes[k], from, k);
                    LS_TRY(ls_comm_send(comm, out + 1, sizes[k], LS_U8, to, k, NULL));
                }
                if (rank == to) {
                    memset(in, 0, sizes[k] + 8);
                    LS_TRY(ls_comm_recv(comm, in + 3, sizes[k], LS_U8, from, k, NULL));
                    LS_CHECK(holds(in + 3, sizes[k], from, k));
                    LS_CHECK(in[2] == 0 && in[3 + sizes[k]] == 0);
                }
            }
        }
    }
    return LS_OK;
}

/* All ranks send along the ring before they receive. Messages of any size are sent asynchronously; small messages are
 * also sent with blocking calls. */
static ls_status ring(ls_comm *comm, unsigned char *out, unsigned char *in) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    const int next = (rank + 1) % size;
    const int before = (rank + size - 1) % size;
    for (int k = 0; k < SIZES; k++) {
        ls_work *work = NULL;
        fill(out, sizes[k], rank, k);
        LS_TRY(ls_comm_send(comm, out, sizes[k], LS_U8, next, k, &work));
        LS_TRY(ls_comm_recv(comm, in, sizes[k], LS_U8, before, k, NULL));
        LS_TRY(ls_work_wait(work));
        LS_CHECK(holds(in, sizes[k], before, k));
    }
    for (int i = 0; i < 200; i++) { /* a number that travels around the ring, one hop per rank */
        int32_t number = rank * 1000 + i;
        LS_TRY(ls_comm_send(comm, &number, 1, LS_I32, next, 0, NULL));
        LS_TRY(ls_comm_recv(comm, &number, 1, LS_I32, before, 0, NULL));
        LS_CHECK(number == before * 1000 + i);
    }
    return LS_OK;
}

/* Each rank sends messages of all sizes to all ranks at once, and receives them from the last to the first. */
static ls_status flood(ls_comm *comm) {
    enum { COUNT = 6 };
    static const size_t counts[COUNT] = {1, 9000, 0, 100000, 300, 30000};
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    ls_work *sends[RANKS_MOST * COUNT];
    ls_work *receives[RANKS_MOST * COUNT];
    unsigned char *out = malloc((size_t)(COUNT * 100000));
    unsigned char *in = malloc((size_t)(size * COUNT) * 100000);
    LS_CHECK(out != NULL && in != NULL);
    for (int k = 0; k < COUNT; k++) {
        fill(out + k * 100000, counts[k], rank, k);
        for (int to = 0; to < size; to++) {
            LS_TRY(ls_comm_send(comm, out + k * 100000, counts[k], LS_U8, to, k, &sends[to * COUNT + k]));
        }
    }
    for (int i = size * COUNT - 1; i >= 0; i--) {
        LS_TRY(
            ls_comm_recv(comm, in + (size_t)i * 100000, counts[i % COUNT], LS_U8, i / COUNT, i % COUNT, &receives[i]));
        if (i == COUNT) { /* meanwhile */
            LS_TRY(ls_comm_barrier(comm, NULL));
        }
    }
    for (int i = 0; i < size * COUNT; i++) {
        LS_TRY(ls_work_wait(receives[i]));
        LS_CHECK(holds(in + (size_t)i * 100000, counts[i % COUNT], i / COUNT, i % COUNT));
    }
    for (int i = 0; i < size * COUNT; i++) {
        LS_TRY(ls_work_wait(sends[i]));
    }
    free(out);
    free(in);
    return LS_OK;
}

/*
 * Sends many small messages for which no rank waits yet, with a collective in between. Tests the order in which they
 * are received.
 */
static ls_status kept_for_later(ls_comm *comm) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    ls_work *reduced = NULL;
    float sum = 1.0F;
    for (int32_t i = 0; i < 100; i++) {
        LS_TRY(ls_comm_send(comm, &i, 1, LS_I32, (rank + 1) % size, i % 3, NULL));
    }
    LS_TRY(ls_comm_barrier(comm, NULL));
    LS_TRY(ls_comm_allreduce(comm, &sum, &sum, 1, LS_F32, LS_SUM, &reduced));
    for (int tag = 2; tag >= 0; tag--) {
        for (int32_t i = tag; i < 100; i += 3) {
            int32_t got = -1;
            LS_TRY(ls_comm_recv(comm, &got, 1, LS_I32, (rank + size - 1) % size, tag, NULL));
            LS_CHECK(got == i);
        }
    }
    LS_TRY(ls_work_wait(reduced));
    LS_CHECK(sum == (float)size);
    return LS_OK;
}

/* A receive waits for a message that is sent after a collective, which this rank has begun asynchronously. */
static ls_status crossed(ls_comm *comm, unsigned char *out, unsigned char *in) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    float sum = 1.0F;
    if (size == 1) {
        return LS_OK;
    }
    if (rank == 0) {
        ls_work *work = NULL;
        LS_TRY(ls_comm_allreduce(comm, &sum, &sum, 1, LS_F32, LS_SUM, &work));
        LS_TRY(ls_comm_recv(comm, in, MOST, LS_U8, 1, 0, NULL));
        LS_CHECK(holds(in, MOST, 1, 77));
        return ls_work_wait(work);
    }
    LS_TRY(ls_comm_allreduce(comm, &sum, &sum, 1, LS_F32, LS_SUM, NULL));
    LS_CHECK(sum == (float)size);
    if (rank == 1) {
        fill(out, MOST, 1, 77);
        LS_TRY(ls_comm_send(comm, out, MOST, LS_U8, 0, 0, NULL));
    }
    return LS_OK;
}

static ls_status told_apart(ls_comm *comm, unsigned char *out, unsigned char *in) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    const int next = (rank + 1) % size;
    const int before = (rank + size - 1) % size;
    static const size_t counts[] = {3, 60000};
    for (int k = 0; k < 2; k++) {
        for (int early = 0; early < 2; early++) { /* either the message or the receive comes first */
            ls_work *send = NULL;
            ls_work *receive = NULL;
            char expected[96];
            memset(in, 9, counts[k] * 4 + 4);
            if (early == 0) {
                LS_TRY(ls_comm_recv(comm, in, counts[k] + 1, LS_F32, before, 4, &receive));
                LS_TRY(ls_comm_barrier(comm, NULL));
            }
            LS_TRY(ls_comm_send(comm, out, counts[k], LS_F32, next, 4, &send));
            if (early == 1) {
                LS_TRY(ls_comm_barrier(comm, NULL));
                LS_TRY(ls_comm_recv(comm, in, counts[k] + 1, LS_F32, before, 4, &receive));
            }
            LS_CHECK(ls_work_wait(receive) == LS_ERR_MISMATCH);
            snprintf(expected, sizeof expected, "rank %d sent %zu f32 with tag 4, but this rank expects %zu f32",
                     before, counts[k], counts[k] + 1);
            LS_EXPECT_MESSAGE(expected);
            LS_CHECK(in[0] == 9 && in[counts[k] * 4] == 9);
            const ls_status ended = ls_work_wait(send);
            LS_CHECK(ended == LS_OK || ended == LS_ERR_MISMATCH);
            LS_TRY(ls_comm_barrier(comm, NULL));
        }
    }
    int32_t number = 5;
    LS_TRY(ls_comm_send(comm, &number, 1, LS_I32, next, 1, NULL));
    float real = 0;
    LS_CHECK(ls_comm_recv(comm, &real, 1, LS_F32, before, 1, NULL) == LS_ERR_MISMATCH);
    LS_CHECK(ls_comm_send(comm, out, 1, LS_U8, size, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_send(comm, out, 1, LS_U8, 0, -1, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_send(comm, NULL, 1, LS_U8, 0, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_recv(comm, in, 1, (ls_dtype)99, 0, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_recv(NULL, in, 1, LS_U8, 0, 0, NULL) == LS_ERR_ARGUMENT);
    return ls_comm_barrier(comm, NULL);
}

static ls_status messages(ls_comm *comm) {
    unsigned char *out = malloc(MOST + 16);
    unsigned char *in = malloc(MOST + 16);
    LS_CHECK(out != NULL && in != NULL);
    LS_TRY(every_pair(comm, out, in));
    LS_TRY(ring(comm, out, in));
    LS_TRY(flood(comm));
    LS_TRY(kept_for_later(comm));
    LS_TRY(crossed(comm, out, in));
    LS_TRY(told_apart(comm, out, in));
    free(out);
    free(in);
    return LS_OK;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static ls_status sum_of(ls_comm *comm, int64_t value, int64_t *sum) {
    return ls_comm_allreduce(comm, &value, sum, 1, LS_I64, LS_SUM, NULL);
}

/* Splits the ranks into even and odd ones, in reverse order, and alternates with the whole communicator. */
static ls_status halves(ls_comm *comm) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    ls_comm *half = NULL;
    LS_TRY(ls_comm_split(comm, rank % 2, -rank, &half));
    const int count = (size + 1 - rank % 2) / 2;
    LS_CHECK(half != NULL && ls_comm_size(half) == count && ls_comm_rank(half) == count - 1 - rank / 2);
    LS_CHECK(ls_comm_local_size(half) == count && ls_comm_local_rank(half) == ls_comm_rank(half));
    LS_CHECK(strcmp(ls_comm_backend(half), ls_comm_backend(comm)) == 0);
    float *shared = ls_comm_alloc(half, 4 * 5000);
    LS_CHECK(shared != NULL);
    for (int i = 0; i < 5000; i++) {
        shared[i] = (float)(rank + i % 10);
    }
    ls_work *works[2];
    int64_t all = 1;
    LS_TRY(ls_comm_allreduce(half, shared, shared, 5000, LS_F32, LS_MAX, &works[0]));
    LS_TRY(ls_comm_allreduce(comm, &all, &all, 1, LS_I64, LS_SUM, &works[1]));
    LS_TRY(ls_work_wait(works[1]));
    LS_TRY(ls_work_wait(works[0]));
    const int last = rank % 2 + 2 * (count - 1);
    LS_CHECK(all == size && shared[0] == (float)last && shared[4999] == (float)(last + 9));
    LS_TRY(messages(half));
    ls_comm_free(half);
    return LS_OK;
}

/* Some ranks join no communicator, and one rank is alone. A split of a split outlives its parent. */
static ls_status nested(ls_comm *comm) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    ls_comm *some = NULL;
    ls_comm *inner = NULL;
    LS_TRY(ls_comm_split(comm, rank == 0 ? -1 : rank == size - 1 ? 9 : 4, 0, &some));
    LS_CHECK((some == NULL) == (rank == 0));
    if (some != NULL) {
        LS_CHECK(ls_comm_size(some) == (rank == size - 1 ? 1 : size - 2));
        LS_TRY(ls_comm_split(some, 0, 0, &inner));
        ls_comm_free(some);
        int64_t sum = 0;
        LS_TRY(sum_of(inner, rank, &sum));
        LS_CHECK(sum == (rank == size - 1 ? rank : (int64_t)(size - 2) * (size - 1) / 2));
    }
    int64_t sum = 0;
    LS_TRY(sum_of(comm, 1, &sum));
    LS_CHECK(sum == size);
    ls_comm_free(inner);
    return LS_OK;
}

static ls_status many(ls_comm *comm) {
    enum { COUNT = 12 };
    ls_comm *made[COUNT];
    for (int i = 0; i < COUNT; i++) {
        LS_TRY(ls_comm_split(comm, 0, i % 2 == 0 ? 0 : -ls_comm_rank(comm), &made[i]));
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        int64_t first = ls_comm_rank(comm);
        LS_TRY(ls_comm_broadcast(made[i], &first, 1, LS_I64, 0, NULL));
        LS_CHECK(first == (i % 2 == 0 ? 0 : ls_comm_size(comm) - 1));
    }
    for (int i = 0; i < COUNT; i++) {
        ls_comm_free(made[i]);
    }
    ls_comm *none = comm;
    LS_TRY(ls_comm_split(comm, -5, 0, &none));
    LS_CHECK(none == NULL);
    none = comm;
    LS_CHECK(ls_comm_split(NULL, 0, 0, &none) == LS_ERR_ARGUMENT && none == NULL);
    LS_CHECK(ls_comm_split(comm, 0, 0, NULL) == LS_ERR_ARGUMENT);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(messages(world));
    LS_TRY(halves(world));
    LS_TRY(nested(world));
    LS_TRY(many(world));
    return ls_comm_barrier(world, NULL);
}
