/*
 * Backend shm and process ids: processes in which several ranks are threads, reused process ids, and late threads.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "comm/backend/shm/shm.h"
#include "comm/record.h"
#include "tests/support/allocator.h"
#include "tests/support/files.h"
#include "tests/support/forks.h"

#define LONG_TIMEOUT 60.0 /* a timeout that never expires */
#define AT_ONCE      5.0  /* limit on a busy machine for the guaranteed second */
#define SILENT       0.3

enum { LARGE = 300000, LATE_IN_SPLIT = 8 }; /* the eighth allocation of a split belongs to its second half */

static float out[LARGE];
static float in[LARGE];

/* ---- two ranks in one process ------------------------------------------------------------------------------------ */

typedef struct member {
    int rank;
    int first; /* of the two ranks in one process, the rank that frees its world first */
    bool dies; /* finally, the other rank dies with the process */
    const char *url;
    const char *failure;
} member;

static ls_comm *enter(const member *self) {
    ls_comm *world = ls_init(&(ls_init_options){
        .init = self->url, .backend = "shm", .world_size = 3, .rank = self->rank, .timeout = LONG_TIMEOUT});
    return world != NULL && ls_comm_barrier(world, NULL) == LS_OK ? world : NULL;
}

static const char *leave_first(const member *self) {
    ls_comm *world = enter(self);
    LS_MUST(world != NULL);
    ls_comm_free(world);
    return NULL;
}

static void *leave_first_as_thread(void *argument) {
    member *self = argument;
    self->failure = leave_first(self);
    return NULL;
}

/* Sends a message long after the other rank of this process has left. */
static const char *stay(const member *self, member *other) {
    pthread_t thread;
    LS_MUST(pthread_create(&thread, NULL, leave_first_as_thread, other) == 0);
    ls_comm *world = enter(self);
    LS_MUST(world != NULL);
    LS_MUST(pthread_join(thread, NULL) == 0);
    LS_MUST(other->failure == NULL);
    usleep(200000); /* the listener checks every 20 ms whether this rank is alive */
    LS_MUST(ls_comm_send(world, out, 1, LS_F32, 2, 0, NULL) == LS_OK);
    LS_MUST(ls_comm_recv(world, in, 1, LS_F32, 2, 0, NULL) == LS_OK);
    if (self->dies) {
        raise(SIGKILL);
    }
    ls_comm_free(world);
    LS_MUST(!ls_forks_hold_memory());
    return NULL;
}

/* The rank that has its own process. */
static const char *listen_to(const member *self, int speaker) {
    ls_comm *world = enter(self);
    LS_MUST(world != NULL);
    LS_MUST(ls_comm_recv(world, in, 1, LS_F32, speaker, 0, NULL) == LS_OK);
    LS_MUST(ls_comm_send(world, out, 1, LS_F32, speaker, 0, NULL) == LS_OK);
    if (self->dies) {
        const double start = ls_clock_seconds();
        LS_MUST(ls_comm_recv(world, in, 1, LS_F32, speaker, 0, NULL) == LS_ERR_PEER);
        LS_MUST(failed_with(LS_ERR_PEER, speaker == 0 ? "rank 0 (process " : "rank 1 (process "));
        LS_MUST(failed_with(LS_ERR_PEER, ") died") && ls_clock_seconds() - start < AT_ONCE);
    }
    ls_comm_free(world);
    return NULL;
}

static const char *process_of_ranks(int process, const void *what) {
    member self = *(const member *)what;
    member other = self;
    const int second = 1 - self.first;
    self.rank = process == 0 ? second : 2;
    other.rank = self.first;
    return process == 0 ? stay(&self, &other) : listen_to(&self, second);
}

TEST(a_rank_leaves_and_its_process_lives) {
    char url[256];
    snprintf(url, sizeof url, "file://%s", test_path("meet"));
    for (int i = 0; i < 4; i++) {
        const member given = {.first = i % 2, .dies = i / 2 != 0, .url = url};
        processes_run(2, process_of_ranks, &given, given.dies ? 1U << 0 : 0);
    }
}

/* ---- process ids ------------------------------------------------------------------------------------------------- */

/*
 * Rank 1 dies while its message waits to be read from its memory. The process of this test acts as a new process with
 * the same id: its memory does not contain the message.
 */
static const char *rank_of_reused_number(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL);
    ls_shm *shm = world->state;
    ls_work *work = NULL;
    if (rank == 1) {
        LS_MUST(ls_comm_send(world, out, LARGE, LS_F32, 0, 0, &work) == LS_OK);
    }
    LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 1) {
        raise(SIGKILL);
    }
    while (ls_shm_alive(shm, 1)) {
        usleep(1000);
    }
    shm->ranks[1].process = (int32_t)getppid();
    LS_MUST(ls_comm_recv(world, in, LARGE, LS_F32, 1, 0, NULL) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "ls_comm_recv #1: rank 1 (process ") && failed_with(LS_ERR_PEER, ") died"));
    return NULL;
}

static const char *rank_that_looks(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    return ((ls_shm *)world->state)->peer_reads ? NULL : "ranks cannot read each other's memory";
}

TEST(a_number_that_is_given_again) {
    setenv(LS_ALGORITHM_VARIABLE, "shm:read=0", 1);
    if (!ls_forks_run(2, LONG_TIMEOUT, rank_that_looks, NULL)) {
        unsetenv(LS_ALGORITHM_VARIABLE);
        printf("SKIPPED a number that is given again: the kernel does not let ranks read each other's memory here\n");
        skip();
    }
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, LONG_TIMEOUT, rank_of_reused_number, NULL);
    unsetenv(LS_ALGORITHM_VARIABLE);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), -SIGKILL);
    ls_forks_end(&forks);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static _Thread_local int until_late;      /* allocations of this thread until a slow one; 0 means that none is slow */
static _Thread_local ls_comm *to_give_up; /* the communicator that it then aborts for lack of memory, or NULL */

static void *allocate_late(size_t size, size_t alignment, void *user) {
    if (until_late != 0 && --until_late == 0) {
        usleep(3 * (useconds_t)(SILENT * 1e6));
        if (to_give_up != NULL) {
            (void)ls_shm_abort(to_give_up->state, ls_fail(LS_ERR_MEMORY, "no memory for a message"), 0);
            usleep((useconds_t)(SILENT * 1e6));
        }
    }
    return test_allocate(size, alignment, user);
}

/* Rank 2 is late for the second half of the split, when the memory of the new communicator already exists. */
static ls_status split_too_late(ls_comm *world, void *argument) {
    atomic_int *timeouts = argument;
    ls_comm *part = NULL;
    until_late = ls_comm_rank(world) == 2 ? 2 : 0;
    const ls_status status = ls_comm_split(world, 0, 0, &part);
    until_late = 0;
    atomic_fetch_add(timeouts, status == LS_ERR_TIMEOUT && part == NULL &&
                                   strstr(ls_error_message(), "ls_comm_split #1: rank 2 did not make") != NULL);
    return LS_OK;
}

TEST(a_split_that_fails_between_threads_gives_all_back) {
    atomic_int timeouts = 0;
    test_allocator allocator;
    setenv("LOCKSTEP_TIMEOUT", "0.3", 1);
    test_allocator_start(&allocator);
    ls_set_allocator(&(ls_allocator){.allocate = allocate_late, .release = test_release, .user = &allocator});
    assert_int_equal(ls_run_threads(3, split_too_late, &timeouts), LS_OK);
    unsetenv("LOCKSTEP_TIMEOUT");
    assert_int_equal(test_allocator_stop(&allocator), 0);
    assert_int_equal(atomic_load(&timeouts), 3);
}

/*
 * Rank 2 revokes the world while the others wait in the second half of the split. Then it continues with the memory of
 * the new communicator, which contains the others' steps.
 */
static ls_status split_in_vain(ls_comm *world, void *argument) {
    atomic_int *as_it_should = argument;
    const bool last = ls_comm_rank(world) == 2;
    ls_comm *part = NULL;
    until_late = last ? LATE_IN_SPLIT : 0;
    to_give_up = last ? world : NULL;
    const ls_status status = ls_comm_split(world, 0, 0, &part);
    until_late = 0;
    to_give_up = NULL;
    const char *reason = last ? "rank 0 (process " : "no memory for a message";
    atomic_fetch_add(as_it_should, status == (last ? LS_ERR_PEER : LS_ERR_MEMORY) && part == NULL &&
                                       strstr(ls_error_message(), reason) != NULL);
    return LS_OK;
}

TEST(a_split_that_is_revoked_between_threads_keeps_its_memory) {
    atomic_int as_it_should = 0;
    test_allocator allocator;
    test_allocator_start(&allocator);
    ls_set_allocator(&(ls_allocator){.allocate = allocate_late, .release = test_release, .user = &allocator});
    setenv("LOCKSTEP_TIMEOUT", "20", 1);
    assert_int_equal(ls_run_threads(3, split_in_vain, &as_it_should), LS_OK);
    unsetenv("LOCKSTEP_TIMEOUT");
    assert_int_equal(test_allocator_stop(&allocator), 0);
    assert_int_equal(atomic_load(&as_it_should), 3);
}

/* A split communicator outlives its parent, and releases its own memory when it is freed. */
static ls_status part_of_part(ls_comm *world, void *argument) {
    test_allocator *allocator = argument;
    ls_comm *part = NULL;
    ls_comm *smaller = NULL;
    float number = 1;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    LS_TRY(ls_comm_split(part, ls_comm_rank(part) != 0, 0, &smaller));
    ls_comm_free(part);
    float *memory = ls_comm_alloc(smaller, sizeof number);
    ls_status status = memory != NULL ? LS_OK : ls_error_status();
    if (status == LS_OK) {
        status = ls_comm_allreduce(smaller, &number, memory, 1, LS_F32, LS_SUM, NULL);
    }
    if (status == LS_OK && *memory != (float)ls_comm_size(smaller)) {
        status = ls_fail(LS_ERR_INTERNAL, "a sum of %g", (double)*memory);
    }
    ls_comm_free(smaller);
    LS_TRY(status);
    LS_TRY(ls_comm_barrier(world, NULL));
    const long live = atomic_load(&allocator->live);
    LS_TRY(ls_comm_barrier(world, NULL));
    for (int i = 0; i < 3; i++) {
        LS_TRY(ls_comm_split(world, 0, 0, &part));
        ls_comm_free(part);
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    const long later = atomic_load(&allocator->live);
    LS_TRY(ls_comm_barrier(world, NULL));
    return live == later ? LS_OK : ls_fail(LS_ERR_INTERNAL, "%ld blocks, and later %ld", live, later);
}

TEST(parts_between_threads_give_all_back) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    const ls_status status = ls_run_threads(3, part_of_part, &allocator);
    const long left = test_allocator_stop(&allocator);
    if (status != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
    assert_int_equal(left, 0);
}

/* ---- errors that name a rank that had waited
 * ----------------------------------------------------------------------------- */

/* Rank 1 sleeps until a message arrives, receives it, and dies. So it no longer waits for any message. */
static const char *rank_that_was_served(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 1) {
        LS_MUST(ls_comm_recv(world, in, 1, LS_F32, 0, 5, NULL) == LS_OK);
        LS_MUST(ls_comm_send(world, in, 1, LS_F32, 0, 6, NULL) == LS_OK);
        raise(SIGKILL);
    }
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    LS_MUST(ls_comm_send(world, out, 1, LS_F32, 1, 5, NULL) == LS_OK);
    LS_MUST(ls_comm_recv(world, in, 1, LS_F32, 1, 6, NULL) == LS_OK);
    LS_MUST(ls_comm_send(world, out, LARGE, LS_F32, 1, 7, NULL) == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 1 ") && strstr(ls_error_message(), "it waits for") == NULL);
    return NULL;
}

TEST(a_message_that_came_is_not_awaited) {
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, LONG_TIMEOUT, rank_that_was_served, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

int main(void) {
    unsetenv("LOCKSTEP_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_leaves_and_its_process_lives),
        cmocka_unit_test(a_number_that_is_given_again),
        cmocka_unit_test(a_split_that_fails_between_threads_gives_all_back),
        cmocka_unit_test(a_split_that_is_revoked_between_threads_keeps_its_memory),
        cmocka_unit_test(parts_between_threads_give_all_back),
        cmocka_unit_test(a_message_that_came_is_not_awaited),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
