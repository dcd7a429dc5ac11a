/*
 * The second guarantee of communication: if ranks make different calls, all ranks get an error that lists the calls,
 * and no buffer is changed. Also tests ls_run_threads itself.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <stdatomic.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/comm.h"
#include "tests/support/forks.h"

/* One rank's call. */
typedef struct one_call {
    ls_operation operation;
    size_t count;
    ls_dtype dtype;
    ls_reduction reduction;
    int root;
} one_call;

/* Two calls that do not match. Rank `odd` makes the second call. */
typedef struct disagreement {
    one_call usual;
    one_call other;
    const char *usual_text;
    const char *other_text;
} disagreement;

static const disagreement disagreements[] = {
    {{LS_OP_BARRIER, 0, 0, 0, 0},
     {LS_OP_ALLREDUCE, 1, LS_F32, LS_SUM, 0},
     "called barrier",
     "called allreduce of 1 f32, sum"},
    {{LS_OP_BROADCAST, 9, LS_F32, 0, 0},
     {LS_OP_ALLREDUCE, 9, LS_F32, LS_SUM, 0},
     "called broadcast of 9 f32 from rank 0",
     "called allreduce of 9 f32, sum"},
    {{LS_OP_ALLREDUCE, 5, LS_F32, LS_SUM, 0},
     {LS_OP_ALLREDUCE, 6, LS_F32, LS_SUM, 0},
     "allreduce of 5 f32, sum",
     "allreduce of 6 f32, sum"},
    {{LS_OP_ALLREDUCE, 1000, LS_F32, LS_SUM, 0},
     {LS_OP_ALLREDUCE, 60000, LS_F32, LS_SUM, 0},
     "allreduce of 1000 f32, sum",
     "allreduce of 60000 f32, sum"},
    {{LS_OP_ALLREDUCE, 0, LS_F32, LS_SUM, 0},
     {LS_OP_ALLREDUCE, 60000, LS_F32, LS_SUM, 0},
     "allreduce of 0 f32, sum",
     "allreduce of 60000 f32, sum"},
    {{LS_OP_ALLREDUCE, 60000, LS_F32, LS_SUM, 0},
     {LS_OP_ALLREDUCE, 60000, LS_I32, LS_SUM, 0},
     "allreduce of 60000 f32, sum",
     "allreduce of 60000 i32, sum"},
    {{LS_OP_ALLREDUCE, 60000, LS_F32, LS_AVG, 0},
     {LS_OP_ALLREDUCE, 60000, LS_F32, LS_SUM, 0},
     "allreduce of 60000 f32, avg",
     "allreduce of 60000 f32, sum"},
    {{LS_OP_BROADCAST, 60000, LS_F32, 0, 0},
     {LS_OP_BROADCAST, 60000, LS_F32, 0, 1},
     "broadcast of 60000 f32 from rank 0",
     "broadcast of 60000 f32 from rank 1"},
    {{LS_OP_ALLOC, 100, 0, 0, 0}, {LS_OP_ALLOC, 200, 0, 0, 0}, "alloc of 100 bytes", "alloc of 200 bytes"},
    {{LS_OP_ALLOC, 100, 0, 0, 0}, {LS_OP_BARRIER, 0, 0, 0, 0}, "alloc of 100 bytes", "barrier"},
};

static ls_status make(ls_comm *world, const one_call *call, float *buffer, bool later) {
    ls_work *work = NULL;
    ls_work **wanted = later && call->operation != LS_OP_ALLOC ? &work : NULL;
    ls_status status = LS_ERR_INTERNAL;
    switch (call->operation) {
    case LS_OP_BARRIER:
        status = ls_comm_barrier(world, wanted);
        break;
    case LS_OP_BROADCAST:
        status = ls_comm_broadcast(world, buffer, call->count, call->dtype, call->root, wanted);
        break;
    case LS_OP_ALLREDUCE:
        status = ls_comm_allreduce(world, buffer, buffer, call->count, call->dtype, call->reduction, wanted);
        break;
    default:
        status = ls_comm_alloc(world, call->count) != NULL ? LS_OK : ls_error_status();
    }
    return status == LS_OK ? ls_work_wait(work) : status;
}

#define LS_HOLDS(condition)                                                                                            \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return ls_fail(LS_ERR_INTERNAL, "line %d, rank %d: not true: %s (%s)", __LINE__, ls_comm_rank(world),      \
                           #condition, ls_error_message());                                                            \
        }                                                                                                              \
    } while (0)

/* Returns whether the message contains "rank 1 called TEXT" or, if several ranks made the call, "ranks 0, 2 called
 * TEXT". */
static bool told(const char *ranks, const char *text) {
    const char *at = strstr(ls_error_message(), text);
    char expected[64];
    snprintf(expected, sizeof expected, "rank%s %s called ", strchr(ranks, ',') != NULL ? "s" : "", ranks);
    return at != NULL && strstr(ls_error_message(), expected) != NULL;
}

static ls_status disagree(ls_comm *world, void *argument) {
    static const char *const usual_ranks[] = {"0, 2", "0"};
    const disagreement *d = argument;
    const int size = ls_comm_size(world);
    const bool odd = ls_comm_rank(world) == 1;
    float *buffer = ls_allocate_zeroed(60000, sizeof *buffer);
    LS_HOLDS(buffer != NULL);
    ls_status status = LS_OK;
    for (int later = 0; later < 2 && status == LS_OK; later++) {
        buffer[0] = 4.0F;
        const ls_status got = make(world, odd ? &d->other : &d->usual, buffer, later == 1);
        if (got != LS_ERR_MISMATCH || !told(usual_ranks[size == 2], d->usual_text) || !told("1", d->other_text) ||
            buffer[0] != 4.0F) {
            status = ls_fail(LS_ERR_INTERNAL, "status %s, message: %s", ls_status_name(got), ls_error_message());
        }
    }
    ls_free(buffer);
    LS_TRY(status);
    float one = 1.0F; /* all ranks got the error and are in step, so the communicator stays usable */
    LS_TRY(ls_comm_allreduce(world, &one, &one, 1, LS_F32, LS_SUM, NULL));
    LS_HOLDS(one == (float)size);
    return LS_OK;
}

TEST(every_disagreement) {
    for (size_t i = 0; i < sizeof disagreements / sizeof disagreements[0]; i++) {
        for (int ranks = 2; ranks <= 3; ranks++) {
            disagreement d = disagreements[i];
            if (ls_run_threads(ranks, disagree, &d) != LS_OK) {
                fail_msg("case %zu with %d ranks: %s", i, ranks, ls_error_message());
            }
        }
    }
}

static const char *disagree_process(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    disagreement d = disagreements[6];
    (void)rank;
    LS_MUST(world != NULL && disagree(world, &d) == LS_OK);
    return NULL;
}

TEST(disagreement_of_processes) {
    assert_true(ls_forks_run(3, 30.0, disagree_process, NULL));
}

/* A rank skips a call and exits while the others wait for it. */
static ls_status stay_away(ls_comm *world, void *argument) {
    (void)argument;
    if (ls_comm_rank(world) == 1) {
        return LS_OK;
    }
    return ls_comm_barrier(world, NULL);
}

TEST(a_missing_rank) {
    assert_int_equal(ls_run_threads(3, stay_away, NULL), LS_ERR_PEER);
    expect_message("ls_comm_barrier #1: rank 1 ");
    expect_message("left");
}

static const char *skip_process(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL);
    if (rank == 1) { /* busy for longer than the others' timeout */
        const double start = ls_clock_seconds();
        while (ls_clock_seconds() - start < 3.5) {
        }
        LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_TIMEOUT);
        return NULL;
    }
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_TIMEOUT &&
            failed_with(LS_ERR_TIMEOUT, "rank 1 did not make this call"));
    return NULL;
}

TEST(a_late_rank) {
    assert_true(ls_forks_run(3, 3, skip_process, NULL));
}

/* ---- ls_run_threads
 * ---------------------------------------------------------------------------------------------------- */

/* The other ranks fail because rank 1 does. */
static ls_status fail_on_some(ls_comm *world, void *argument) {
    (void)argument;
    if (ls_comm_rank(world) == 1) {
        return ls_fail(LS_ERR_FORMAT, "rank %d does not like it", ls_comm_rank(world));
    }
    return ls_comm_barrier(world, NULL);
}

/* Rank 1 fails without an error message. */
static ls_status fail_silently(ls_comm *world, void *argument) {
    (void)argument;
    return ls_comm_rank(world) == 1 ? LS_ERR_FORMAT : ls_comm_barrier(world, NULL);
}

enum { MANY = 80 };

/* A list that does not fit into the message ends with an ellipsis. */
static ls_status disagree_among_many(ls_comm *world, void *argument) {
    (void)argument;
    float number[2] = {0};
    const size_t count = ls_comm_rank(world) == 1 ? 2 : 1;
    LS_HOLDS(ls_comm_allreduce(world, number, number, count, LS_F32, LS_SUM, NULL) == LS_ERR_MISMATCH);
    LS_HOLDS(strstr(ls_error_message(), "ranks 0, 2, 3, 4, ") != NULL);
    LS_HOLDS(strstr(ls_error_message(), ", ... called allreduce of 1 f32, sum (#1); rank 1 called") != NULL);
    return LS_OK;
}

/* Rank 1 frees the borrowed world, which makes the rank leave. */
static ls_status free_on_some(ls_comm *world, void *argument) {
    (void)argument;
    if (ls_comm_rank(world) == 1) {
        ls_comm_free(world);
        return LS_OK;
    }
    return ls_comm_barrier(world, NULL);
}

static ls_status note_rank(ls_comm *world, void *argument) {
    int *ranks = argument;
    LS_HOLDS(strcmp(ls_comm_backend(world), "shm") == 0);
    LS_HOLDS(ls_comm_local_rank(world) == ls_comm_rank(world) && ls_comm_local_size(world) == ls_comm_size(world));
    ranks[ls_comm_rank(world)] = ls_comm_size(world);
    return ls_comm_barrier(world, NULL);
}

/* Rank 1 is silent until rank 0 has reported its silence. */
static ls_status wait_for_silent(ls_comm *world, void *argument) {
    atomic_bool *told = argument;
    for (int i = 0; ls_comm_rank(world) == 1 && i < 1000 && !atomic_load(told); i++) {
        usleep(5000);
    }
    const ls_status status = ls_comm_rank(world) == 0 ? ls_comm_barrier(world, NULL) : LS_OK;
    atomic_store(told, true);
    return status;
}

TEST(threads_have_the_timeout) {
    atomic_bool told = false;
    setenv("LOCKSTEP_TIMEOUT", "0.2", 1);
    assert_int_equal(ls_run_threads(2, wait_for_silent, &told), LS_ERR_TIMEOUT);
    assert_string_equal(ls_error_message(), "ls_comm_barrier #1: rank 1 did not make this call within 0.2 s");
    setenv("LOCKSTEP_TIMEOUT", "soon", 1);
    assert_int_equal(ls_run_threads(2, wait_for_silent, &told), LS_ERR_ARGUMENT);
    expect_message("ls_run_threads: LOCKSTEP_TIMEOUT=soon is not");
    unsetenv("LOCKSTEP_TIMEOUT");
}

static ls_status fail_with_another_status(ls_comm *world, void *argument) {
    (void)argument;
    (void)ls_error_set(LS_ERR_IO, "rank %d has no file", ls_comm_rank(world));
    return ls_comm_rank(world) == 1 ? LS_ERR_STATE : LS_OK;
}

TEST(threads_as_ranks) {
    int ranks[9] = {0};
    assert_int_equal(ls_run_threads(9, note_rank, ranks), LS_OK);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(ranks[i], 9);
    }
    assert_int_equal(ls_run_threads(3, fail_on_some, NULL), LS_ERR_FORMAT);
    assert_string_equal(ls_error_message(), "rank 1 does not like it");
    assert_int_equal(ls_run_threads(3, fail_silently, NULL), LS_ERR_FORMAT);
    assert_string_equal(ls_error_message(), "ls_run_threads: rank 1 of 3: its function returned LS_ERR_FORMAT");
    assert_int_equal(ls_run_threads(3, fail_with_another_status, NULL), LS_ERR_STATE);
    assert_string_equal(ls_error_message(), "rank 1 has no file");
    assert_int_equal(ls_run_threads(3, free_on_some, NULL), LS_ERR_PEER);
    expect_message("ls_comm_barrier #1: rank 1 (process ");
    expect_message(") left without making this call");
    assert_int_equal(ls_run_threads(MANY, disagree_among_many, NULL), LS_OK);
    assert_int_equal(ls_run_threads(0, note_rank, ranks), LS_ERR_ARGUMENT);
    assert_int_equal(ls_run_threads(-2, note_rank, ranks), LS_ERR_ARGUMENT);
    assert_int_equal(ls_run_threads(2, NULL, NULL), LS_ERR_ARGUMENT);
}

TEST(backends_by_name) {
    assert_ptr_equal(ls_backend_find("shm"), &ls_backend_shm);
    assert_ptr_equal(ls_backend_find("self"), &ls_backend_self);
    assert_null(ls_backend_find("telepathy"));
    expect_message("there is no backend \"telepathy\": this build has self, shm, tcp, and no "
                   "lockstep-telepathy.so was found in ");
    assert_null(ls_backend_find("../shm"));
    assert_string_equal(ls_error_message(), "\"../shm\" is not the name of a backend");
    assert_null(ls_backend_find(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_disagreement), cmocka_unit_test(disagreement_of_processes),
        cmocka_unit_test(a_missing_rank),     cmocka_unit_test(a_late_rank),
        cmocka_unit_test(threads_as_ranks),   cmocka_unit_test(threads_have_the_timeout),
        cmocka_unit_test(backends_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
