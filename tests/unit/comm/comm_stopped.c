/*
 * A job that is stopped as a whole, for longer than its timeout, continues afterwards: in calls and in messages, with
 * and without work on a second communicator. LOCKSTEP_TEST_BACKEND selects a backend other than shm.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <unistd.h>

#include "tests/support/files.h"
#include "tests/support/forks.h"

static float out[1];
static float in[1];

#define STOPPED         (RESUMED_TIMEOUT + 0.5)
#define RESUMED_TIMEOUT 4.0

typedef struct resumption {
    char ready[2][32]; /* files by which the ranks announce that they wait for each other, */
    char resumed[32];  /* and a file that tells them that they were continued */
    bool by_message;
    bool busy; /* work is in progress on a second communicator */
} resumption;

static void await_file(const char *name) {
    while (access(test_path(name), F_OK) != 0) {
        usleep(1000);
    }
}

static const char *resumed_rank(ls_comm *world, int rank, const void *argument) {
    const resumption *how = argument;
    ls_comm *other = NULL;
    ls_work *open = NULL;
    LS_MUST(world != NULL && ls_comm_split(world, 0, rank, &other) == LS_OK);
    LS_MUST(!how->busy || ls_comm_recv(other, out, 1, LS_F32, 1 - rank, 0, &open) == LS_OK);
    LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    LS_MUST(test_file(how->ready[rank], "", 0) != NULL);
    if (rank == 1) {
        await_file(how->resumed); /* meanwhile, the other rank waits, and both are stopped */
        usleep(100000);           /* long enough that the other rank still has to wait */
    }
    LS_MUST(!how->by_message ? ls_comm_barrier(world, NULL) == LS_OK
            : rank == 1      ? ls_comm_send(world, out, 1, LS_F32, 0, 0, NULL) == LS_OK
                             : ls_comm_recv(world, in, 1, LS_F32, 1, 0, NULL) == LS_OK);
    LS_MUST(!how->busy || ls_comm_send(other, in, 1, LS_F32, 1 - rank, 0, NULL) == LS_OK);
    LS_MUST(ls_work_wait(open) == LS_OK);
    ls_comm_free(other);
    return NULL;
}

/* Stops all ranks at once. Most of the time, they are waiting. */
TEST(a_stopped_job_goes_on) {
    enum { JOBS = 4 };
    resumption how[JOBS];
    ls_forks forks[JOBS];
    (void)test_path(""); /* for all processes */
    for (int i = 0; i < JOBS; i++) {
        how[i] = (resumption){.by_message = i % 2 != 0, .busy = i / 2 != 0};
        for (int rank = 0; rank < 2; rank++) {
            snprintf(how[i].ready[rank], sizeof how[i].ready[rank], "ready.%d.%d", i, rank);
        }
        snprintf(how[i].resumed, sizeof how[i].resumed, "resumed.%d", i);
        ls_forks_start(&forks[i], 2, 0, RESUMED_TIMEOUT, resumed_rank, &how[i]);
    }
    for (int i = 0; i < JOBS; i++) {
        await_file(how[i].ready[0]);
        await_file(how[i].ready[1]);
        kill(forks[i].processes[1], SIGSTOP);
        kill(forks[i].processes[0], SIGSTOP);
    }
    usleep((useconds_t)(STOPPED * 1e6));
    for (int i = 0; i < JOBS; i++) {
        kill(forks[i].processes[0], SIGCONT);
        kill(forks[i].processes[1], SIGCONT);
        (void)test_file(how[i].resumed, "", 0);
    }
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(ls_forks_wait(&forks[i], 0), 0);
        assert_int_equal(ls_forks_wait(&forks[i], 1), 0);
        ls_forks_end(&forks[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stopped_job_goes_on)};
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
