/*
 * Ranks that make different calls, for all calls except barrier, broadcast and all-reduce (see comm_mismatch.c): all
 * ranks get an error that lists the calls, no buffer is changed, and the communicator stays usable. Also ls_comm_alloc
 * on a backend without its own memory: ordinary memory, on all ranks or on none.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "base/status.h"
#include "comm/record.h"

#define COUNT 30000

enum { RANKS = 3 };

typedef ls_status a_call(ls_comm *world, const float *send, float *receive, size_t count);

static ls_status reduce(ls_comm *world, const float *send, float *receive, size_t count) {
    return ls_comm_reduce(world, send, receive, count, LS_F32, LS_SUM, 2, NULL);
}

static ls_status reduce_elsewhere(ls_comm *world, const float *send, float *receive, size_t count) {
    return ls_comm_reduce(world, send, receive, count, LS_F32, LS_SUM, 1, NULL);
}

static ls_status reduce_scatter(ls_comm *world, const float *send, float *receive, size_t count) {
    return ls_comm_reduce_scatter(world, send, receive, count, LS_F32, LS_SUM, NULL);
}

static ls_status gather(ls_comm *world, const float *send, float *receive, size_t count) {
    return ls_comm_gather(world, send, receive, count, LS_F32, 0, NULL);
}

static ls_status allgather(ls_comm *world, const float *send, float *receive, size_t count) {
    return ls_comm_allgather(world, send, receive, count, LS_F32, NULL);
}

static ls_status alltoall(ls_comm *world, const float *send, float *receive, size_t count) {
    return ls_comm_alltoall(world, send, receive, count, LS_F32, NULL);
}

static ls_status scatter(ls_comm *world, const float *send, float *receive, size_t count) {
    return ls_comm_scatter(world, send, receive, count, LS_F32, 0, NULL);
}

/* Gathers with the counts 5, 6 and `count`. */
static ls_status allgatherv(ls_comm *world, const float *send, float *receive, size_t count) {
    const size_t counts[RANKS] = {5, 6, count};
    return ls_comm_allgatherv(world, send, receive, counts, NULL, LS_F32, NULL);
}

static ls_status reduce_scatterv(ls_comm *world, const float *send, float *receive, size_t count) {
    const size_t counts[RANKS] = {5, 6, count};
    return ls_comm_reduce_scatterv(world, send, receive, counts, LS_F32, LS_SUM, NULL);
}

/* Rank 0 receives COUNT elements from each rank, and each rank sends `count`. */
static ls_status gatherv(ls_comm *world, const float *send, float *receive, size_t count) {
    const size_t counts[RANKS] = {COUNT, COUNT, COUNT};
    return ls_comm_gatherv(world, send, count, receive, counts, NULL, LS_F32, 0, NULL);
}

static ls_status scatterv(ls_comm *world, const float *send, float *receive, size_t count) {
    const size_t counts[RANKS] = {COUNT, COUNT, COUNT};
    return ls_comm_scatterv(world, send, counts, NULL, receive, count, LS_F32, 0, NULL);
}

static ls_status alltoallv(ls_comm *world, const float *send, float *receive, size_t count) {
    const size_t sent[RANKS] = {count, COUNT, COUNT};
    const size_t received[RANKS] = {COUNT, COUNT, COUNT};
    return ls_comm_alltoallv(world, send, sent, NULL, receive, received, NULL, LS_F32, NULL);
}

static ls_status split(ls_comm *world, const float *send, float *receive, size_t count) {
    ls_comm *made = NULL;
    (void)send;
    (void)receive;
    (void)count;
    const ls_status status = ls_comm_split(world, 0, 0, &made);
    ls_comm_free(made);
    return status;
}

/* Rank 1 makes the second call, with `odd` as its count. All errors must contain both texts (or the only one). */
static const struct {
    a_call *usual;
    a_call *other;
    size_t count;
    size_t odd;
    const char *texts[2];
} cases[] = {
    {gather, allgather, 2, 2, {"ranks 0, 2 called gather of 2 f32 to rank 0", "rank 1 called allgather of 2 f32"}},
    {allgather, allgather, 2, COUNT, {"called allgather of 2 f32", "called allgather of 30000 f32"}},
    {alltoall, alltoall, COUNT, COUNT - 1, {"called alltoall of 30000 f32", "called alltoall of 29999 f32"}},
    {scatter, split, 100, 100, {"called scatter of 100 f32 from rank 0", "rank 1 called split"}},
    {reduce, reduce_elsewhere, 9, 9, {"called reduce of 9 f32 to rank 2, sum", "reduce of 9 f32 to rank 1, sum"}},
    {reduce_scatter, reduce_scatter, COUNT, 7, {"reduce_scatter of 30000 f32, sum", "reduce_scatter of 7 f32, sum"}},
    {allgatherv, allgatherv, 7, 8, {"called allgatherv of 18 f32 (counts", "called allgatherv of 19 f32 (counts"}},
    {reduce_scatterv, reduce_scatterv, 7, 8, {"reduce_scatterv of 18 f32 (counts", "of 19 f32 (counts"}},
    {gatherv, gatherv, COUNT, 11, {"rank 1 sends 11 f32 to rank 0, which expects 30000", "ls_comm_gatherv #"}},
    {scatterv, scatterv, COUNT, 11, {"rank 0 sends 30000 f32 to rank 1, which expects 11", "ls_comm_scatterv #"}},
    {alltoallv, alltoallv, COUNT, 11, {"rank 1 sends 11 f32 to rank 0, which expects 30000", "ls_comm_alltoallv #"}},
    {gatherv, scatterv, COUNT, COUNT, {"called gatherv of f32 to rank 0", "called scatterv of f32 from rank 0"}},
};

static const ls_backend *backend_without_memory(void) {
    static _Thread_local ls_backend bare;
    bare = ls_backend_shm;
    bare.alloc = NULL;
    bare.release = NULL;
    return &bare;
}

static _Thread_local float sent[RANKS * COUNT];
static _Thread_local float received[RANKS * COUNT];

static ls_status disagree(ls_comm *world, void *argument) {
    const size_t number = *(const size_t *)argument;
    const bool odd = ls_comm_rank(world) == 1;
    for (int again = 0; again < 2; again++) {
        received[0] = 4.0F;
        const ls_status status = odd ? cases[number].other(world, sent, received, cases[number].odd)
                                     : cases[number].usual(world, sent, received, cases[number].count);
        if (status != LS_ERR_MISMATCH || strstr(ls_error_message(), cases[number].texts[0]) == NULL ||
            strstr(ls_error_message(), cases[number].texts[1]) == NULL || received[0] != 4.0F) {
            return ls_fail(LS_ERR_INTERNAL, "status %s, message: %s", ls_status_name(status), ls_error_message());
        }
    }
    float one = 1.0F;
    LS_TRY(ls_comm_allreduce(world, &one, &one, 1, LS_F32, LS_SUM, NULL));
    return one == (float)RANKS ? LS_OK : ls_fail(LS_ERR_INTERNAL, "the ranks are out of step");
}

TEST(every_disagreement) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (ls_run_threads(RANKS, disagree, &i) != LS_OK) {
            fail_msg("case %zu: %s", i, ls_error_message());
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ls_status take_memory(ls_comm *world, void *argument) {
    (void)argument;
    const int size = ls_comm_size(world);
    world->backend = backend_without_memory();
    float *memory = ls_comm_alloc(world, 64);
    float *more = ls_comm_alloc(world, 0);
    if (memory == NULL || more == NULL || memory[15] != 0.0F) {
        return ls_error_status();
    }
    memory[0] = (float)ls_comm_rank(world);
    LS_TRY(ls_comm_broadcast(world, memory, 1, LS_F32, size - 1, NULL));
    LS_TRY(ls_comm_allgather(world, &memory[0], received, 1, LS_F32, NULL));
    if (received[0] != (float)(size - 1) || received[size - 1] != (float)(size - 1)) {
        return ls_fail(LS_ERR_INTERNAL, "broadcast and allgather gave %g", (double)received[0]);
    }
    ls_comm_release(world, memory);
    if (ls_comm_alloc(world, SIZE_MAX / 2 + 1) != NULL || ls_error_status() != LS_ERR_MEMORY) {
        return ls_fail(LS_ERR_INTERNAL, "memory without end was found");
    }
    return ls_comm_barrier(world, NULL);
}

TEST(ordinary_memory) {
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        if (ls_run_threads(ranks, take_memory, NULL) != LS_OK) {
            fail_msg("%d ranks: %s", ranks, ls_error_message());
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_disagreement),
        cmocka_unit_test(ordinary_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
