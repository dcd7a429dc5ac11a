/*
 * Cases that the conformance list (conformance.c) omits: every reduction on every dtype at more lengths, special
 * values, ls_comm_alloc itself, late waits for work, wrong arguments.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "tests/support/reference.h"
#include "tests/support/steps.h"

enum { RANKS_MOST = 8 };

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static ls_status one_allreduce(ls_comm *world, ls_dtype dtype, ls_reduction reduction, size_t count) {
    step s = {.call = STEP_ALLREDUCE,
              .comm = world,
              .dtype = dtype,
              .reduction = reduction,
              .count = count,
              .seed = count,
              .in_place = count % 2 == 0,
              .shift = count % 3};
    LS_TRY(step_begin(&s));
    return step_end(&s);
}

static ls_status every_kind(ls_comm *world) {
    static const size_t counts[] = {2, 5, 15, 16, 17, 31, 33, 65, 130, 1000, 5001, 40001};
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        for (int reduction = 0; reduction < LS_REDUCTION_COUNT; reduction++) {
            if (!reference_reduces((ls_dtype)dtype, (ls_reduction)reduction)) {
                double x = 0;
                LS_CHECK(ls_comm_allreduce(world, &x, &x, 1, (ls_dtype)dtype, (ls_reduction)reduction, NULL) ==
                         LS_ERR_UNSUPPORTED);
                continue;
            }
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                LS_TRY(one_allreduce(world, (ls_dtype)dtype, (ls_reduction)reduction, counts[i]));
            }
        }
    }
    return LS_OK;
}

static ls_status nan_wins(ls_comm *world) {
    const int size = ls_comm_size(world);
    for (int holder = 0; holder < size; holder++) {
        float values[3] = {1.0F, ls_comm_rank(world) == holder ? NAN : 2.0F, -3.0F};
        ls_loc_f32 pair = {.value = values[1], .location = 10 + ls_comm_rank(world)};
        LS_TRY(ls_comm_allreduce(world, &pair, &pair, 1, LS_F32, LS_MINLOC, NULL));
        LS_CHECK(isnan(pair.value) && pair.location == 10 + holder);
        float least[3];
        LS_TRY(ls_comm_allreduce(world, values, least, 3, LS_F32, LS_MIN, NULL));
        LS_TRY(ls_comm_allreduce(world, values, values, 3, LS_F32, LS_MAX, NULL));
        LS_CHECK(least[0] == 1.0F && isnan(least[1]) && least[2] == -3.0F);
        LS_CHECK(values[0] == 1.0F && isnan(values[1]) && values[2] == -3.0F);
    }
    return LS_OK;
}

static ls_status integers_wrap_and_average(ls_comm *world) {
    const int size = ls_comm_size(world);
    uint8_t byte = 200;
    uint8_t mean = 0;
    int32_t most = INT32_MAX;
    int32_t negative = ls_comm_rank(world) == 0 ? -1 : 0;
    LS_TRY(ls_comm_allreduce(world, &byte, &mean, 1, LS_U8, LS_AVG, NULL));
    LS_TRY(ls_comm_allreduce(world, &byte, &byte, 1, LS_U8, LS_SUM, NULL));
    LS_TRY(ls_comm_allreduce(world, &most, &most, 1, LS_I32, LS_AVG, NULL));
    LS_TRY(ls_comm_allreduce(world, &negative, &negative, 1, LS_I32, LS_AVG, NULL));
    LS_CHECK(mean == 200 && byte == (uint8_t)(200 * size));
    LS_CHECK(most == INT32_MAX && negative == -1 / size);
    return LS_OK;
}

/* ---- memory from ls_comm_alloc ----------------------------------------------------------------------------------- */

static ls_status cleared_and_aligned(ls_comm *world) {
    const size_t count = 300001;
    float *memory = ls_comm_alloc(world, count * sizeof *memory);
    LS_CHECK(memory != NULL && ((uintptr_t)memory & 63) == 0);
    for (size_t i = 0; i < count; i++) {
        LS_CHECK(memory[i] == 0.0F);
        memory[i] = 1.0F;
    }
    ls_comm_release(world, memory);
    memory = ls_comm_alloc(world, count * sizeof *memory);
    LS_CHECK(memory != NULL && memory[0] == 0.0F && memory[count - 1] == 0.0F);
    ls_comm_release(world, memory);
    return LS_OK;
}

static ls_status many_allocations(ls_comm *world) {
    float *kept[20];
    float *expected = malloc(19 * 10000);
    LS_CHECK(expected != NULL);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 20; i++) {
            kept[i] = ls_comm_alloc(world, i == 3 ? 0 : (size_t)i * 10000);
            LS_CHECK(kept[i] != NULL);
        }
        for (int i = 19; i >= 15; i--) {
            const size_t count = (size_t)i * 2500;
            const reference r = {LS_F32, LS_SUM, (uint64_t)i};
            reference_fill(&r, ls_comm_rank(world), count, kept[i]);
            LS_TRY(ls_comm_allreduce(world, kept[i], kept[i], count, LS_F32, LS_SUM, NULL));
            reference_reduce(&r, ls_comm_size(world), 0, count, expected);
            LS_CHECK(memcmp(expected, kept[i], count * sizeof(float)) == 0);
        }
        for (int i = 0; i < 20; i++) {
            if (round < 2 || i % 2 == 0) { /* the last allocations are left until the communicator is freed */
                ls_comm_release(world, kept[i]);
            }
        }
    }
    free(expected);
    LS_CHECK(ls_comm_alloc(world, SIZE_MAX / 2 + 1) == NULL && ls_error_status() == LS_ERR_MEMORY);
    return ls_comm_barrier(world, NULL); /* the communicator is still usable */
}

/* Makes one reduction of `count` elements from one allocation into another, at offsets that differ between ranks. */
static ls_status between(ls_comm *world, unsigned char *from, unsigned char *into, size_t count, int root) {
    const int rank = ls_comm_rank(world);
    const reference r = {LS_F32, LS_SUM, count + (uint64_t)root};
    const size_t bytes = count * sizeof(float);
    float *send = (float *)(void *)(from + 4 * rank);
    float *receive = (float *)(void *)(into + 64 + 12 * rank);
    unsigned char *sent = malloc(bytes);
    float *expected = malloc(bytes);
    LS_CHECK(sent != NULL && expected != NULL);
    reference_fill(&r, rank, count, send);
    memcpy(sent, send, bytes);
    memset(receive, 0x55, bytes);
    LS_TRY(root < 0 ? ls_comm_allreduce(world, send, receive, count, LS_F32, LS_SUM, NULL)
                    : ls_comm_reduce(world, send, receive, count, LS_F32, LS_SUM, root, NULL));
    LS_CHECK(memcmp(sent, send, bytes) == 0);
    if (root < 0 || rank == root) {
        reference_reduce(&r, ls_comm_size(world), 0, count, expected);
        LS_CHECK(memcmp(expected, receive, bytes) == 0);
    }
    free(sent);
    free(expected);
    return LS_OK;
}

/* Returns whether ranks read each other's shared memory directly, with the default sizes. */
static bool is_direct(ls_comm *world) {
    return strcmp(ls_comm_backend(world), "shm") != 0 || ls_comm_size(world) == 1 ||
           getenv("LOCKSTEP_ALGORITHM") != NULL || strcmp(ls_comm_algorithm(world), "direct") == 0;
}

/* Returns false if a large all-reduce of two ranks over TCP did not use Rabenseifner's algorithm. */
static bool is_by_halves(ls_comm *world, size_t count) {
    const bool expected = strcmp(ls_comm_backend(world), "tcp") == 0 && ls_comm_size(world) == 2 && count > 65536;
    return !expected || strcmp(ls_comm_algorithm(world), "rabenseifner") == 0;
}

/* Reductions from one allocation into another and back, even if the ranks use different allocations. */
static ls_status between_allocations(ls_comm *world) {
    static const size_t counts[] = {400, 5000, 70001, 1 << 20};
    const size_t most = (4U << 20) + 256;
    unsigned char *a = ls_comm_alloc(world, most);
    unsigned char *b = ls_comm_alloc(world, most);
    unsigned char *given_back = ls_comm_alloc(world, most);
    const bool odd = ls_comm_rank(world) % 2 != 0;
    LS_CHECK(a != NULL && b != NULL && given_back != NULL);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        LS_TRY(between(world, a, b, counts[i], -1));
        LS_CHECK(is_direct(world) && is_by_halves(world, counts[i]));
        LS_TRY(between(world, b, a, counts[i], -1));
        LS_CHECK(is_direct(world));
        LS_TRY(between(world, odd ? a : b, odd ? b : a, counts[i], -1));
        for (int root = 0; root < ls_comm_size(world); root++) {
            LS_TRY(between(world, a, b, counts[i], root));
        }
    }
    ls_comm_release(world, odd ? given_back : NULL);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) { /* an allocation that only some ranks still have */
        LS_TRY(between(world, a, odd ? b : given_back, counts[i], -1));
        LS_TRY(between(world, odd ? b : given_back, a, counts[i], -1));
    }
    ls_comm_release(world, odd ? NULL : given_back);
    ls_comm_release(world, b);
    ls_comm_release(world, a);
    return LS_OK;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

/* Starts more work than any queue holds, and waits for it in reverse order, with a blocking call in the middle. */
static ls_status asynchronous(ls_comm *world) {
    enum { CALLS = 40 };
    step *steps = calloc(CALLS, sizeof *steps);
    LS_CHECK(steps != NULL);
    for (int i = 0; i < CALLS; i++) {
        steps[i] = (step){.call = (step_call)(i % STEP_MESSAGE),
                          .comm = world,
                          .dtype = LS_F32,
                          .count = (size_t)(i % 7) * 4999,
                          .root = i % ls_comm_size(world),
                          .seed = (uint64_t)i,
                          .later = true};
        LS_TRY(step_begin(&steps[i]));
        if (i == 25) { /* the blocking call is ordered after the earlier calls */
            int64_t one = 1;
            LS_TRY(ls_comm_allreduce(world, &one, &one, 1, LS_I64, LS_SUM, NULL));
            LS_CHECK(one == ls_comm_size(world));
            LS_CHECK(ls_work_done(steps[25].works[0]) && ls_work_done(steps[0].works[0]));
        }
    }
    while (!ls_work_done(steps[33].works[0])) {
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        LS_TRY(step_end(&steps[i]));
    }
    free(steps);
    return ls_work_wait(NULL);
}

/* ---- wrong input ------------------------------------------------------------------------------------------------- */

static ls_status wrong_input(ls_comm *world) {
    float x[8] = {0};
    const int size = ls_comm_size(world);
    LS_CHECK(ls_comm_barrier(NULL, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(NULL, x, x, 1, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, NULL, x, 1, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, NULL, 1, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x + 1, 4, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x, SIZE_MAX / 3, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x, 1, (ls_dtype)77, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x, 1, LS_F32, (ls_reduction)77, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_broadcast(world, x, 1, LS_F32, size, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_broadcast(world, x, 1, LS_F32, -1, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_broadcast(world, NULL, 1, LS_F32, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, NULL, NULL, 0, LS_F32, LS_SUM, NULL) == LS_OK);
    LS_CHECK(ls_comm_broadcast(world, NULL, 0, LS_F32, 0, NULL) == LS_OK);
    LS_CHECK(ls_comm_alloc(NULL, 1) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    ls_comm_release(NULL, NULL);
    ls_comm_release(world, NULL);
    LS_CHECK(ls_comm_rank(NULL) == -1 && ls_comm_size(NULL) == 0);
    LS_CHECK(strcmp(ls_reduction_name(LS_AVG), "avg") == 0);
    LS_CHECK(strcmp(ls_reduction_name((ls_reduction)99), "unknown") == 0);
    return LS_OK;
}

/* A call that fails stores NULL instead of an ls_work, so the program may pass the result to ls_work_wait. */
static ls_status no_work(ls_comm *world) {
    ls_work *const stale = (ls_work *)&(char){0};
    float x = 0;
    ls_work *work = stale;
    LS_CHECK(ls_comm_barrier(NULL, &work) == LS_ERR_ARGUMENT && work == NULL);
    work = stale;
    LS_CHECK(ls_comm_broadcast(world, NULL, 1, LS_F32, 0, &work) == LS_ERR_ARGUMENT && work == NULL);
    work = stale;
    LS_CHECK(ls_comm_send(world, &x, 1, LS_F32, -1, 0, &work) == LS_ERR_ARGUMENT && work == NULL);
    work = stale;
    LS_CHECK(ls_comm_recv(world, &x, 1, LS_F32, 0, -1, &work) == LS_ERR_ARGUMENT && work == NULL);
    work = stale;
    LS_CHECK(ls_comm_recv_any(world, NULL, 1, LS_F32, 0, NULL, &work) == LS_ERR_ARGUMENT && work == NULL);
    return LS_OK;
}

/* Buffers may be adjacent, in either order, but may not overlap. */
static ls_status side_by_side(ls_comm *world) {
    enum { COUNT = 5 };
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    int32_t x[COUNT * (RANKS_MOST + 1)];
    for (int after = 0; after < 2; after++) {
        int32_t *send = after ? x + COUNT * size : x, *receive = after ? x : x + COUNT;
        for (int i = 0; i < COUNT; i++) {
            send[i] = 10 * rank + i;
        }
        LS_TRY(ls_comm_allgather(world, send, receive, COUNT, LS_I32, NULL));
        for (int i = 0; i < COUNT * size; i++) {
            LS_CHECK(receive[i] == 10 * (i / COUNT) + i % COUNT);
        }
        LS_TRY(ls_comm_allreduce(world, after ? x + COUNT : x, after ? x : x + COUNT, COUNT, LS_I32, LS_MAX, NULL));
    }
    LS_CHECK(ls_comm_allreduce(world, x, x + COUNT - 1, COUNT, LS_I32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x + COUNT - 1, x, COUNT, LS_I32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("the send and receive buffers overlap; pass separate buffers");
    return LS_OK;
}

/* The same for calls with a count per rank: a buffer may lie between the parts of the other buffer. */
static ls_status among_parts(ls_comm *world) {
    enum { COUNT = 2 };
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    int32_t x[2 * COUNT * RANKS_MOST];
    size_t counts[RANKS_MOST], displacements[RANKS_MOST];
    for (int i = 0; i < size; i++) {
        counts[i] = COUNT;
        displacements[i] = (size_t)(2 * COUNT * i);
    }
    int32_t *between = x + COUNT;
    between[0] = rank;
    between[1] = -rank;
    LS_TRY(ls_comm_allgatherv(world, between, x, counts, displacements, LS_I32, NULL));
    for (int i = 0; i < size; i++) {
        LS_CHECK(x[2 * COUNT * i] == i && x[2 * COUNT * i + 1] == -i);
    }
    LS_CHECK(ls_comm_allgatherv(world, x + 1, x, counts, displacements, LS_I32, NULL) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_comm_allgatherv: the send and receive buffers overlap; pass separate buffers");
    if (rank == 0) {
        LS_CHECK(ls_comm_gatherv(world, x + 1, COUNT, x, counts, displacements, LS_I32, 0, NULL) == LS_ERR_ARGUMENT);
        LS_CHECK(ls_comm_scatterv(world, x, counts, displacements, x + 1, COUNT, LS_I32, 0, NULL) == LS_ERR_ARGUMENT);
        LS_EXPECT_MESSAGE("ls_comm_scatterv: the send and receive buffers overlap; pass separate buffers");
    }
    return LS_OK;
}

/* The parts of a receive buffer may be in any order, but may not overlap. */
static ls_status permuted_parts(ls_comm *world) {
    enum { COUNT = 2 };
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    const int32_t sent[COUNT] = {rank, -rank};
    int32_t x[COUNT * RANKS_MOST + 1];
    size_t counts[RANKS_MOST], displacements[RANKS_MOST];
    for (int i = 0; i < size; i++) { /* first the even ranks, then the odd ranks */
        counts[i] = COUNT;
        displacements[i] = (size_t)(COUNT * (i % 2 == 0 ? i / 2 : (size + 1) / 2 + i / 2));
    }
    LS_TRY(ls_comm_allgatherv(world, sent, x, counts, displacements, LS_I32, NULL));
    for (int i = 0; i < size; i++) {
        LS_CHECK(x[displacements[i]] == i && x[displacements[i] + 1] == -i);
    }
    if (size == 1) {
        return LS_OK;
    }
    displacements[size - 1] = displacements[0] + 1;
    LS_CHECK(ls_comm_allgatherv(world, sent, x, counts, displacements, LS_I32, NULL) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_comm_allgatherv: the parts of ranks 0 and ");
    LS_EXPECT_MESSAGE(
        "overlap in the receive buffer, at elements 0 to 1 and 1 to 2: pass displacements without overlaps");
    if (rank == 0) {
        LS_CHECK(ls_comm_gatherv(world, sent, COUNT, x, counts, displacements, LS_I32, 0, NULL) == LS_ERR_ARGUMENT);
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    counts[size - 1] = 0; /* an empty part overlaps nothing */
    return ls_comm_allgatherv(world, sent, x, counts, displacements, LS_I32, NULL);
}

/* Sender, receiver and tag are checked before anything is sent. */
static ls_status wrong_partners(ls_comm *world) {
    char x[2] = {0};
    const int size = ls_comm_size(world);
    const int partners[] = {-1, size};
    for (int i = 0; i < 2; i++) {
        LS_CHECK(ls_comm_send(world, x, 1, LS_U8, partners[i], 0, NULL) == LS_ERR_ARGUMENT);
        LS_CHECK(ls_comm_recv(world, x, 1, LS_U8, partners[i], 0, NULL) == LS_ERR_ARGUMENT);
        LS_EXPECT_MESSAGE("is not one of the ");
    }
    LS_CHECK(ls_comm_send(world, x, 1, LS_U8, 0, -1, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_recv(world, x, 1, LS_U8, 0, -1, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_send(world, NULL, 1, LS_U8, 0, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_recv(NULL, x, 1, LS_U8, 0, 0, NULL) == LS_ERR_ARGUMENT);
    return LS_OK;
}

static ls_status more_wrong_input(ls_comm *comm) {
    unsigned char x[64] = {0};
    const int size = ls_comm_size(comm);
    size_t counts[RANKS_MOST] = {0};
    LS_CHECK(ls_comm_gather(NULL, x, x + 32, 1, LS_U8, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_gather(comm, x, x + 32, 1, LS_U8, size, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_gather(comm, NULL, x + 32, 1, LS_U8, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgather(comm, x, NULL, 1, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgather(comm, x, x + 1, 2, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgather(comm, x, x + 32, SIZE_MAX / 2, LS_F64, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgatherv(comm, x, x + 32, NULL, NULL, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_scatter(comm, x, x, 1, LS_U8, -1, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_alltoall(comm, x, x + 1, 2, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_alltoall(comm, x, x + 32, 1, (ls_dtype)77, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_alltoallv(comm, x, counts, NULL, x, NULL, NULL, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce(comm, x, x + 32, 1, LS_F32, (ls_reduction)77, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce(comm, x, x + 32, 1, LS_F32, LS_SUM, size, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce(comm, x, x + 32, 1, LS_BOOL, LS_SUM, 0, NULL) == LS_ERR_UNSUPPORTED);
    LS_CHECK(ls_comm_reduce_scatter(comm, x, x + 1, 4, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce_scatterv(comm, x, x + 32, NULL, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgatherv(comm, NULL, NULL, counts, (const size_t[RANKS_MOST]){7, 7}, LS_U8, NULL) == LS_OK);
    counts[size - 1] = 1; /* the last element that needs room */
    LS_CHECK(ls_comm_allgatherv(comm, x, NULL, counts, NULL, LS_U8, NULL) == LS_ERR_ARGUMENT);
    counts[0] = SIZE_MAX;
    LS_CHECK(ls_comm_alltoallv(comm, x, counts, NULL, x, counts, NULL, LS_U8, NULL) == LS_ERR_ARGUMENT);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_input(world));
    LS_TRY(no_work(world));
    LS_TRY(more_wrong_input(world));
    LS_TRY(side_by_side(world));
    LS_TRY(among_parts(world));
    LS_TRY(permuted_parts(world));
    LS_TRY(wrong_partners(world));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(every_kind(world));
    LS_TRY(nan_wins(world));
    LS_TRY(integers_wrap_and_average(world));
    LS_TRY(cleared_and_aligned(world));
    LS_TRY(many_allocations(world));
    LS_TRY(between_allocations(world));
    LS_TRY(asynchronous(world));
    return ls_comm_barrier(world, NULL);
}
