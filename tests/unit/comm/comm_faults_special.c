/*
 * No call blocks forever: cases that comm_faults.c omits. Messages whose partner has died, children that outlive their
 * rank, ranks that never join, asynchronous work, and too little memory. comm_stopped.c tests stopped jobs.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/comm.h"
#include "tests/support/forks.h"

#define LONG_TIMEOUT 60.0 /* a timeout that never expires */
#define AT_ONCE      5.0  /* limit on a busy machine for the guaranteed second */
#define SILENT       0.3

enum { LARGE = 300000 };

static float out[LARGE];
static float in[LARGE];

static bool is_shm(void) {
    const char *backend = getenv("LOCKSTEP_TEST_BACKEND");
    return backend == NULL || strcmp(backend, "shm") == 0;
}

/* Skips tests that only apply to backend shm, and prints the reason. */
static bool skips(const char *test, const char *why) {
    if (!is_shm()) {
        printf("SKIPPED %s: a backend other than shm: %s\n", test, why);
    }
    return !is_shm();
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* The call through which a rank learns of another rank's death. */
static const char *message_rank(ls_comm *world, int rank, const void *argument) {
    const int how = *(const int *)argument;
    const double start = ls_clock_seconds();
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 2) {
        raise(SIGKILL);
    }
    ls_status status = LS_OK;
    if (how == 0) { /* rank 1 waits for a message from rank 0, which is alive and waits for the dead rank */
        status = ls_comm_recv(world, in, LARGE, LS_F32, rank == 0 ? 2 : 0, 0, NULL);
    } else if (how == 1) { /* a large message waits for its receiver, or for space in a buffer */
        while (status == LS_OK) {
            status = ls_comm_send(world, out, LARGE, LS_F32, 2, 0, NULL);
        }
    } else if (how == 2) { /* small messages are stored for the receiver, up to a limit */
        while (status == LS_OK) {
            status = ls_comm_send(world, out, 1, LS_F32, 2, 0, NULL);
        }
    } else { /* as work */
        ls_work *works[2];
        LS_MUST(ls_comm_recv(world, in, 8, LS_F32, 2, 0, &works[0]) == LS_OK);
        /* The receive may have detected the death already, so that every later call fails. */
        const ls_status sent = ls_comm_send(world, out, LARGE, LS_F32, 2, 0, &works[1]);
        while (!ls_work_done(works[0])) {
        }
        status = ls_work_wait(works[0]);
        LS_MUST(sent == LS_OK || (sent == status && works[1] == NULL));
        const ls_status ended = ls_work_wait(works[1]);
        LS_MUST(sent != LS_OK || ended == status || (ended == LS_OK && !is_shm())); /* buffers had room for it */
    }
    LS_MUST(failed_with(LS_ERR_PEER, "rank 2 ") && status == LS_ERR_PEER);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_PEER);
    return NULL;
}

TEST(killed_partners) {
    for (int how = 0; how < 4; how++) {
        ls_forks forks;
        ls_forks_start(&forks, 3, 0, LONG_TIMEOUT, message_rank, &how);
        const int first = ls_forks_wait(&forks, 0);
        const int second = ls_forks_wait(&forks, 1);
        ls_forks_end(&forks);
        if (first != 0 || second != 0) {
            fail_msg("how %d: ranks ended with %d and %d", how, first, second);
        }
    }
}

/* While work is in progress on a second communicator, a waiting rank polls instead of sleeping. */
static const char *busy_rank(ls_comm *world, int rank, const void *argument) {
    const int how = *(const int *)argument;
    ls_comm *other = NULL;
    ls_comm *made = NULL;
    ls_work *open = NULL;
    ls_work *work = NULL;
    LS_MUST(world != NULL && ls_comm_split(world, rank == 2, rank, &other) == LS_OK);
    LS_MUST(rank == 2 || ls_comm_recv(other, in, LARGE, LS_F32, 1 - rank, 0, &open) == LS_OK);
    LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 2) {
        usleep(50000); /* the others wait */
        raise(SIGKILL);
    }
    const double start = ls_clock_seconds();
    ls_status status = LS_OK;
    switch (how) {
    case 0:
        status = ls_comm_barrier(world, NULL);
        break;
    case 1:
        status = ls_comm_recv(world, out, 1, LS_F32, 1 - rank, 0, NULL);
        break;
    case 2:
        while (status == LS_OK) {
            status = ls_comm_send(world, out, LARGE, LS_F32, 2, 0, NULL);
        }
        break;
    case 3:
        status = ls_comm_alloc(world, 5000) != NULL ? LS_OK : ls_error_status();
        break;
    case 4:
        status = ls_comm_split(world, 0, 0, &made);
        break;
    default:
        LS_MUST(ls_comm_allreduce(world, out, out, LARGE, LS_F32, LS_SUM, &work) == LS_OK);
        status = ls_work_wait(work);
        break;
    }
    LS_MUST(status == LS_ERR_PEER && failed_with(LS_ERR_PEER, "rank 2 ") && made == NULL);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    LS_MUST(ls_comm_send(other, out, LARGE, LS_F32, 1 - rank, 0, &work) == LS_OK); /* which continues */
    LS_MUST(ls_work_wait(open) == LS_OK && ls_work_wait(work) == LS_OK);
    ls_comm_free(other);
    return NULL;
}

TEST(killed_while_others_are_busy) {
    for (int how = 0; how < 6; how++) {
        ls_forks forks;
        ls_forks_start(&forks, 3, 0, LONG_TIMEOUT, busy_rank, &how);
        const int first = ls_forks_wait(&forks, 0);
        const int second = ls_forks_wait(&forks, 1);
        ls_forks_end(&forks);
        if (first != 0 || second != 0) {
            fail_msg("how %d: ranks ended with %d and %d", how, first, second);
        }
    }
}

static const char *silent_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 1) {
        pause();
    }
    LS_MUST(ls_comm_recv(world, in, 3, LS_F32, 1, 0, NULL) == LS_ERR_TIMEOUT);
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "ls_comm_recv #1: rank 1 "));
    return NULL;
}

TEST(silent_partners) {
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, SILENT, silent_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

/* Only rank 0 has made the call that times out. The other ranks learn which rank gave up, and why. */
static const char *waiting_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 0) {
        LS_MUST(ls_comm_recv(world, in, 3, LS_F32, 1, 9, NULL) == LS_ERR_TIMEOUT);
        LS_MUST(failed_with(LS_ERR_TIMEOUT, "ls_comm_recv #1: rank 1 sent nothing with tag 9 within 2 s"));
        return NULL;
    }
    usleep(1000000); /* so that rank 0's timeout passes first */
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_TIMEOUT && failed_with(LS_ERR_TIMEOUT, ": rank 0 "));
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "gave up: rank 1 sent nothing with tag 9 within 2 s"));
    return NULL;
}

TEST(timeouts_of_messages_name_the_rank_that_gave_up) {
    assert_true(ls_forks_run(3, 2.0, waiting_rank, NULL));
}

/* Both ranks send before they receive, without `work`. */
static const char *sending_first(ls_comm *world, int rank, const void *argument) {
    const size_t bytes = *(const size_t *)argument;
    unsigned char *memory = calloc(bytes, 1);
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    const ls_status status = ls_comm_send(world, memory, bytes, LS_U8, 1 - rank, 0, NULL);
    free(memory);
    LS_MUST(status == LS_ERR_TIMEOUT && failed_with(LS_ERR_TIMEOUT, " did not receive the message with tag 0 within"));
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "pass `work`, or let one rank receive first"));
    return NULL;
}

TEST(blocking_sends_that_wait_for_each_other) {
    const size_t bytes = (size_t)96 << 20; /* more than any backend stores for a later receive */
    assert_true(ls_forks_run(2, SILENT, sending_first, &bytes));
}

/* Ranks are threads: a partner has left, but its earlier messages still count. */
static ls_status leave_early(ls_comm *world, void *argument) {
    (void)argument;
    int32_t number = 7;
    if (ls_comm_rank(world) == 1) {
        return ls_comm_send(world, &number, 1, LS_I32, 0, 0, NULL);
    }
    number = 0;
    LS_TRY(ls_comm_recv(world, &number, 1, LS_I32, 1, 0, NULL));
    if (number != 7) {
        return ls_fail(LS_ERR_INTERNAL, "received %d", number);
    }
    return ls_comm_recv(world, &number, 1, LS_I32, 1, 0, NULL);
}

TEST(partners_that_leave) {
    assert_int_equal(ls_run_threads(2, leave_early, NULL), LS_ERR_PEER);
    expect_message("ls_comm_recv #2: rank 1 ");
}

/* Ranks are threads: after any failed call, the buffer of a send may be freed at once. */
enum { LENT = 64 << 20 };

typedef struct lending {
    _Atomic bool lent;
    _Atomic bool taking;
} lending;

static ls_status lend(ls_comm *world, lending *shared) {
    void *memory = mmap(NULL, LENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    ls_work *work = NULL;
    int32_t number = 1;
    ls_status status = memory == MAP_FAILED ? ls_fail(LS_ERR_MEMORY, "no memory")
                                            : ls_comm_send(world, memory, LENT, LS_U8, 1, 0, &work);
    atomic_store(&shared->lent, true);
    while (!atomic_load(&shared->taking)) {
    }
    usleep(2000); /* usually enough for the receiver to begin reading */
    while (status == LS_OK) {
        status = ls_comm_send(world, &number, 1, LS_I32, 2, 0, NULL); /* to the rank that leaves */
    }
    const ls_status ended = ls_work_wait(work);
    munmap(memory, LENT);
    return status == LS_ERR_PEER && ended == LS_ERR_PEER ? LS_OK : LS_ERR_INTERNAL;
}

static ls_status lend_and_fail(ls_comm *world, void *argument) {
    lending *shared = argument;
    if (ls_comm_rank(world) == 0) {
        return lend(world, shared);
    }
    unsigned char *into = ls_comm_rank(world) == 1 ? malloc(LENT) : NULL;
    ls_status taken = LS_OK;
    if (into != NULL) {
        while (!atomic_load(&shared->lent)) {
        }
        atomic_store(&shared->taking, true);
        taken = ls_comm_recv(world, into, LENT, LS_U8, 0, 0, NULL);
    }
    free(into);
    return taken == LS_ERR_PEER ? LS_OK : taken;
}

TEST(a_lent_buffer_that_goes) {
    lending shared = {false, false};
    assert_int_equal(ls_run_threads(3, lend_and_fail, &shared), LS_OK);
}

static ls_status own_message(ls_comm *world, void *argument) {
    (void)argument;
    int32_t number = 0;
    return ls_comm_recv(world, &number, 1, LS_I32, ls_comm_rank(world), 0, NULL);
}

TEST(nobody_can_send_it) {
    ls_comm *world = ls_init(NULL);
    assert_non_null(world);
    assert_int_equal(own_message(world, NULL), LS_ERR_STATE);
    assert_int_equal(ls_finalize(), LS_OK);
}

/* ---- children of a rank do not replace it ------------------------------------------------------------------------ */

static const char *parent_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 1) {
        if (fork() == 0) {
            usleep(300000); /* the child, which inherited everything, outlives the rank */
            _exit(0);
        }
        raise(SIGKILL);
    }
    const double start = ls_clock_seconds();
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_PEER);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE && strstr(ls_error_message(), "rank 1 ") != NULL);
    return NULL;
}

TEST(a_child_is_not_the_rank) {
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, LONG_TIMEOUT, parent_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

/* Children are not ranks: their calls fail and do not affect any rank. */
static const char *child_of_rank(ls_comm *world, ls_work *work) {
    int32_t number = 1;
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_STATE && strstr(ls_error_message(), "fork") != NULL);
    LS_MUST(ls_comm_send(world, &number, 1, LS_I32, 1, 0, NULL) == LS_ERR_STATE);
    LS_MUST(ls_comm_alloc(world, 64) == NULL && ls_error_status() == LS_ERR_STATE);
    LS_MUST(ls_work_wait(work) == LS_ERR_STATE);
    ls_comm_free(world);
    return NULL;
}

static const char *rank_with_child(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    int32_t number = 0;
    ls_work *work = NULL;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 0) {
        LS_MUST(ls_comm_recv(world, &number, 1, LS_I32, 1, 0, &work) == LS_OK);
        const pid_t child = fork();
        if (child == 0) {
            const char *wrong = child_of_rank(world, work);
            _exit(wrong == NULL ? 0 : 1);
        }
        int ended = -1;
        LS_MUST(waitpid(child, &ended, 0) == child && ended == 0);
    }
    for (int i = 0; i < 100; i++) {
        LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    }
    const int32_t sent = 17;
    LS_MUST(rank == 0 || ls_comm_send(world, &sent, 1, LS_I32, 0, 0, NULL) == LS_OK);
    LS_MUST(rank == 1 || (ls_work_wait(work) == LS_OK && number == sent));
    return NULL;
}

TEST(children_are_no_ranks) {
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, LONG_TIMEOUT, rank_with_child, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    ls_forks_end(&forks);
}

/* Children cannot use the descriptors of a process, even if they become ranks themselves. */
static ls_status meet_often(ls_comm *world, void *argument) {
    ls_status status = LS_OK;
    (void)argument;
    for (int i = 0; i < 200 && status == LS_OK; i++) {
        usleep(500);
        status = ls_comm_barrier(world, NULL);
    }
    return status;
}

/* Rank 0 serves the store in a thread. */
static const char *parent_with_work(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    int32_t numbers[20];
    ls_work *works[20];
    for (int32_t i = 0; i < 20; i++) {
        if (rank == 0) {
            usleep(5000);
            LS_MUST(ls_comm_send(world, &i, 1, LS_I32, 1, 0, NULL) == LS_OK);
        } else {
            LS_MUST(ls_comm_recv(world, &numbers[i], 1, LS_I32, 0, 0, &works[i]) == LS_OK);
        }
    }
    if (rank == 1) {
        LS_MUST(ls_spawn(2, meet_often, NULL) == LS_OK);
        for (int32_t i = 0; i < 20; i++) {
            LS_MUST(ls_work_wait(works[i]) == LS_OK && numbers[i] == i);
        }
    }
    return NULL;
}

/* ls_spawn refuses to run if there are threads, and the thread sanitizer's runtime starts one. */
#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD true
#else
#define HAS_THREAD false
#endif

TEST(children_leave_open_work_alone) {
    if (HAS_THREAD || skips(__func__, "it has a thread, and ls_spawn forks from processes without")) {
        skip();
    }
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, LONG_TIMEOUT, parent_with_work, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    ls_forks_end(&forks);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static const char *early_rank(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world == NULL && failed_with(LS_ERR_TIMEOUT, "rank 2 did not join"));
    return NULL;
}

TEST(a_rank_that_never_joins) {
    if (skips(__func__, "its words differ, and are tested in comm_admission")) {
        skip();
    }
    ls_forks forks;
    ls_forks_start(&forks, 3, 1U << 2, 3, early_rank, NULL); /* long enough for the ranks that join */
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    ls_forks_end(&forks);
}

/* ---- too little memory ------------------------------------------------------------------------------------------- */

static const char *poor_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL);
    if (rank == 0) { /* as if the machine had no more memory to reserve */
        signal(SIGXFSZ, SIG_DFL);
        const struct rlimit little = {8 << 20, 8 << 20};
        LS_MUST(setrlimit(RLIMIT_FSIZE, &little) == 0);
    }
    float *small = ls_comm_alloc(world, 1 << 20);
    LS_MUST(small != NULL);
    LS_MUST(ls_comm_alloc(world, 16 << 20) == NULL && failed_with(LS_ERR_MEMORY, rank == 0 ? "ulimit -f" : "rank 0"));
    LS_MUST(ls_comm_alloc(world, (size_t)1 << 56) == NULL && ls_error_status() == LS_ERR_MEMORY);
    small[0] = (float)rank;
    LS_MUST(ls_comm_allreduce(world, small, small, 100000, LS_F32, LS_SUM, NULL) == LS_OK && small[0] == 1.0F);
    return NULL;
}

TEST(a_shortage_is_an_error) {
    if (skips(__func__, "a limit on the size of files limits shared memory alone")) {
        skip();
    }
    assert_true(ls_forks_run(2, LONG_TIMEOUT, poor_rank, NULL));
}

/* A rank without memory for a call reports this to the others, and continues to run. */
static _Atomic size_t starving_from = SIZE_MAX; /* bytes of the smallest allocation that fails */

static void *allocate_little(size_t size, size_t alignment, void *user) {
    void *memory = NULL;
    (void)user;
    const bool failing =
        size >= atomic_load(&starving_from) || posix_memalign(&memory, alignment < 16 ? 16 : alignment, size) != 0;
    return failing ? NULL : memory;
}

static void release_all(void *memory, void *user) {
    (void)user;
    free(memory);
}

enum { ALLTOALL, SPLIT, OBJECTS, LARGE_OBJECTS, STARVING_CALLS };

static ls_status call_while_starving(ls_comm *world, int call) {
    ls_comm *part = NULL;
    ls_object all[3];
    const ls_object own = {.data = out, .bytes = call == OBJECTS ? 10 : sizeof out / 2};
    switch (call) {
    case ALLTOALL:
        return ls_comm_alltoall(world, out, out, LARGE / 3, LS_F32, NULL);
    case SPLIT:
        return ls_comm_split(world, 0, 0, &part);
    default:
        return ls_comm_allgather_object(world, &own, all);
    }
}

static const char *starving_rank(ls_comm *world, int rank, const void *argument) {
    const int call = *(const int *)argument;
    ls_set_allocator(&(ls_allocator){.allocate = allocate_little, .release = release_all});
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    atomic_store(&starving_from, rank != 1 ? SIZE_MAX : call == LARGE_OBJECTS ? sizeof out / 2 : 0);
    const double start = ls_clock_seconds();
    const ls_status status = call_while_starving(world, call);
    atomic_store(&starving_from, SIZE_MAX);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    LS_MUST(failed_with(rank == 1 ? LS_ERR_MEMORY : LS_ERR_PEER, rank == 1 ? "out of memory" : "rank 1 "));
    LS_MUST(strstr(ls_error_message(), "out of memory") != NULL && status == ls_error_status());
    LS_MUST(ls_comm_barrier(world, NULL) == status);
    if (rank == 1) {
        pause(); /* its exit would not notify the other ranks */
    }
    return NULL;
}

TEST(a_starving_rank_tells_the_others) {
    for (int call = 0; call < STARVING_CALLS; call++) {
        ls_forks forks;
        ls_forks_start(&forks, 3, 0, LONG_TIMEOUT, starving_rank, &call);
        const int first = ls_forks_wait(&forks, 0);
        const int second = ls_forks_wait(&forks, 2);
        ls_forks_end(&forks);
        if (first != 0 || second != 0) {
            fail_msg("call %d: ranks ended with %d and %d", call, first, second);
        }
    }
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static const char *work_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL);
    ls_work *works[3] = {NULL, NULL, NULL};
    if (rank == 1) {
        raise(SIGKILL);
    }
    for (int i = 0; i < 3; i++) {
        LS_MUST(ls_comm_allreduce(world, out, out, LARGE, LS_F32, LS_SUM, &works[i]) == LS_OK || i > 0);
    }
    const double start = ls_clock_seconds();
    while (!ls_work_done(works[0])) { /* polling alone detects the failure, too */
        LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    }
    LS_MUST(ls_work_wait(works[0]) == LS_ERR_PEER && strstr(ls_error_message(), "#1: rank 1 ") != NULL);
    LS_MUST(works[1] == NULL || ls_work_wait(works[1]) == LS_ERR_PEER);
    ls_comm_free(world); /* before waiting for works[2] */
    LS_MUST(works[2] == NULL || ls_work_wait(works[2]) != LS_OK);
    fflush(NULL);
    _exit(0);
}

TEST(work_fails_with_its_reason) {
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, LONG_TIMEOUT, work_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_partners),
        cmocka_unit_test(silent_partners),
        cmocka_unit_test(timeouts_of_messages_name_the_rank_that_gave_up),
        cmocka_unit_test(blocking_sends_that_wait_for_each_other),
        cmocka_unit_test(partners_that_leave),
        cmocka_unit_test(a_lent_buffer_that_goes),
        cmocka_unit_test(nobody_can_send_it),
        cmocka_unit_test(a_child_is_not_the_rank),
        cmocka_unit_test(children_are_no_ranks),
        cmocka_unit_test(children_leave_open_work_alone),
        cmocka_unit_test(a_rank_that_never_joins),
        cmocka_unit_test(a_shortage_is_an_error),
        cmocka_unit_test(a_starving_rank_tells_the_others),
        cmocka_unit_test(work_fails_with_its_reason),
        cmocka_unit_test(killed_while_others_are_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
