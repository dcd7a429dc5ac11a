/*
 * Ranks that exit, leave or stop while other ranks are in ls_comm_monitored_barrier: LS_ERR_PEER or LS_ERR_TIMEOUT
 * names the rank and the call, and every later call fails in the same way. LOCKSTEP_TEST_BACKEND selects a backend
 * other than shm.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "tests/support/forks.h"

#define LONG    60.0 /* a timeout that never expires */
#define SILENT  5.0  /* a timeout that a test lets expire */
#define AT_ONCE 20.0 /* limit on a busy machine for the guaranteed second */

enum { SIZE = 4, VICTIM = 1, LATE = 3, CALLS = 3 };

typedef enum way { KILLED, EXITS, LEAVES, KILLED_INSIDE, STOPPED_INSIDE } way;

typedef struct plan {
    way how;
    int go[2]; /* a pipe: the last rank enters after it has received a byte */
} plan;

extern uint64_t ls_comm_tell_after_ns;

/* The rank logs that it is waiting, so it has entered. */
static void suffer_inside(ls_log_level level, int rank, const char *line, void *user) {
    (void)level, (void)rank, (void)line;
    raise(*(const way *)user == STOPPED_INSIDE ? SIGSTOP : SIGKILL);
}

static const char *suffer(ls_comm *world, way how) {
    switch (how) {
    case KILLED:
        raise(SIGKILL);
        break;
    case EXITS:
        _exit(0);
    case LEAVES:
        ls_comm_free(world);
        raise(SIGSTOP); /* the process lives on */
        break;
    default:
        ls_comm_tell_after_ns = 50000000;
        ls_log_set_level(LS_LOG_WARNING);
        ls_log_set_sink(suffer_inside, &how);
        LS_MUST(ls_comm_monitored_barrier(world, LONG) == LS_ERR_TIMEOUT); /* after SIGCONT */
    }
    return NULL;
}

static const char *survive(ls_comm *world, way how) {
    const ls_status expected = how == STOPPED_INSIDE ? LS_ERR_TIMEOUT : LS_ERR_PEER;
    const double start = ls_clock_seconds();
    char message[LS_ERROR_CAPACITY], name[64];
    float x = 0;
    LS_MUST(ls_comm_monitored_barrier(world, LONG) == expected);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    snprintf(message, sizeof message, "%s", ls_error_message());
    snprintf(name, sizeof name, "ls_comm_monitored_barrier #%d: ", CALLS + 1);
    LS_MUST(strncmp(message, name, strlen(name)) == 0 && strstr(message, "rank 1 ") != NULL);
    LS_MUST(how != STOPPED_INSIDE || strstr(message, "rank 1 entered, but did not proceed within 5 s") != NULL);
    LS_MUST(ls_comm_monitored_barrier(world, LONG) == expected && strcmp(ls_error_message(), message) == 0);
    LS_MUST(ls_comm_allreduce(world, &x, &x, 1, LS_F32, LS_SUM, NULL) == expected);
    LS_MUST(strcmp(ls_error_message(), message) == 0);
    return NULL;
}

static const char *rank_of(ls_comm *world, int rank, const void *argument) {
    const plan *p = argument;
    char byte = 0;
    LS_MUST(world != NULL);
    for (int i = 0; i < CALLS; i++) {
        LS_MUST(ls_comm_monitored_barrier(world, LONG) == LS_OK);
    }
    if (rank == VICTIM) {
        return suffer(world, p->how);
    }
    LS_MUST(rank != LATE || read(p->go[0], &byte, 1) == 1);
    return survive(world, p->how);
}

/* The last rank enters after the victim has exited or stopped. */
static void run(way how) {
    ls_forks forks;
    plan p = {.how = how};
    siginfo_t info;
    bool good = true;
    assert_int_equal(pipe(p.go), 0);
    ls_forks_start(&forks, SIZE, 0, how == STOPPED_INSIDE ? SILENT : LONG, rank_of, &p);
    assert_int_equal(waitid(P_PID, (id_t)forks.processes[VICTIM], &info, WEXITED | WSTOPPED | WNOWAIT), 0);
    assert_int_equal(write(p.go[1], "", 1), 1);
    for (int rank = 0; rank < SIZE; rank++) {
        good = (rank == VICTIM || ls_forks_wait(&forks, rank) == 0) && good;
    }
    if (how == STOPPED_INSIDE) {
        kill(forks.processes[VICTIM], SIGCONT);
        good = ls_forks_wait(&forks, VICTIM) == 0 && good;
    }
    ls_forks_end(&forks);
    close(p.go[0]);
    close(p.go[1]);
    assert_true(good);
}

TEST(killed_outside) {
    run(KILLED);
}

TEST(exited) {
    run(EXITS);
}

TEST(left) {
    run(LEAVES);
}

TEST(killed_inside) {
    run(KILLED_INSIDE);
}

TEST(stopped_inside) {
    run(STOPPED_INSIDE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_outside), cmocka_unit_test(exited),         cmocka_unit_test(left),
        cmocka_unit_test(killed_inside),  cmocka_unit_test(stopped_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
