/*
 * Receives from any rank whose senders exit, leave or are silent: the error names the rank and the call. Messages that
 * were sent before arrive. LOCKSTEP_TEST_BACKEND selects a backend other than shm.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <unistd.h>

#include "base/wait.h"
#include "tests/support/forks.h"

#define LONG    60.0 /* a timeout that never expires */
#define SILENT  2.5  /* a timeout that a test lets expire */
#define AT_ONCE 20.0 /* limit on a busy machine for the guaranteed second */

enum { TAG = 5, OTHER_TAG = 6, READY = 7 };

typedef enum way { ALL_LEAVE, ONE_LEAVES, ONE_DIES, ALL_DIE, SILENCE } way;

typedef struct task {
    int size;
    way how;
} task;

static const char *send_number(ls_comm *world, int tag) {
    const int rank = ls_comm_rank(world);
    LS_MUST(ls_comm_send(world, &rank, 1, LS_I32, 0, tag, NULL) == LS_OK);
    return NULL;
}

/* A rank other than 0: sends one message, may exit, and may send a second message. */
static const char *sender(ls_comm *world, const task *t) {
    const int rank = ls_comm_rank(world);
    LS_MUST(send_number(world, OTHER_TAG) == NULL);
    LS_MUST(send_number(world, TAG) == NULL);
    LS_MUST(ls_comm_recv(world, NULL, 0, LS_U8, 0, READY, NULL) == LS_OK);
    if (t->how == ALL_DIE || (t->how == ONE_DIES && rank == 1)) {
        raise(SIGKILL);
    }
    if (t->how == ALL_LEAVE || (t->how == ONE_LEAVES && rank == 1)) {
        ls_comm_free(world);
        pause(); /* the process lives on */
    }
    if (t->how == ONE_LEAVES) {
        ls_sleep_ns(500000000);
        LS_MUST(send_number(world, TAG) == NULL);
    }
    pause();
    return NULL;
}

/* Returns whether the latest error names this rank and the receive. */
static bool names(const char *rank) {
    return strncmp(ls_error_message(), "ls_comm_recv_any #", 18) == 0 && strstr(ls_error_message(), rank) != NULL;
}

static const char *receiver(ls_comm *world, const task *t) {
    int32_t number = -1;
    int source = -1;
    unsigned seen = 0;
    for (int i = 1; i < t->size; i++) { /* all messages with tag TAG arrive */
        LS_MUST(ls_comm_recv_any(world, &number, 1, LS_I32, TAG, &source, NULL) == LS_OK && number == source);
        seen |= 1U << source;
    }
    LS_MUST(seen == (1U << t->size) - 2);
    for (int rank = 1; rank < t->size; rank++) {
        LS_MUST(ls_comm_send(world, NULL, 0, LS_U8, rank, READY, NULL) == LS_OK);
    }
    for (int rank = 2; rank < t->size && t->how == ONE_LEAVES; rank++) { /* the other ranks send more messages */
        LS_MUST(ls_comm_recv_any(world, &number, 1, LS_I32, TAG, &source, NULL) == LS_OK && source != 1);
    }
    if (t->how == ONE_LEAVES) {
        return NULL;
    }
    const double start = ls_clock_seconds();
    const ls_status expected = t->how == SILENCE ? LS_ERR_TIMEOUT : LS_ERR_PEER;
    LS_MUST(ls_comm_recv_any(world, &number, 1, LS_I32, TAG, &source, NULL) == expected && source == -1);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    LS_MUST(names(t->how == SILENCE ? "no rank sent a message with tag 5 within 2.5 s" : "rank "));
    LS_MUST(t->how != ONE_DIES || names("rank 1 "));
    LS_MUST(t->how != SILENCE || names("; a message with tag 6 waits here, none with tag 5"));
    LS_MUST(t->how != ALL_LEAVE || names("left without making this call"));
    LS_MUST(ls_comm_barrier(world, NULL) == expected);
    return NULL;
}

static const char *rank_of(ls_comm *world, int rank, const void *argument) {
    const task *t = argument;
    LS_MUST(world != NULL);
    return rank == 0 ? receiver(world, t) : sender(world, t);
}

static void run(way how) {
    for (int size = how == ONE_LEAVES ? 3 : 2; size <= 4; size++) {
        ls_forks forks;
        const task t = {.size = size, .how = how};
        ls_forks_start(&forks, size, 0, how == SILENCE ? SILENT : LONG, rank_of, &t);
        const int status = ls_forks_wait(&forks, 0);
        ls_forks_end(&forks);
        if (status != 0) {
            fail_msg("%d ranks: the receiver ended with %d", size, status);
        }
    }
}

TEST(all_leave) {
    run(ALL_LEAVE);
}

TEST(one_leaves) {
    run(ONE_LEAVES);
}

TEST(one_dies) {
    run(ONE_DIES);
}

TEST(all_die) {
    run(ALL_DIE);
}

TEST(silence) {
    run(SILENCE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_leave), cmocka_unit_test(one_leaves), cmocka_unit_test(one_dies),
        cmocka_unit_test(all_die),   cmocka_unit_test(silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
