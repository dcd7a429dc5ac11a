/*
 * Waits: deadlines, time limits, the time during which a process was stopped, and pauses between polls.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/wait.h"

TEST(test_deadlines) {
    assert_true(ls_deadline_passed(LS_DEADLINE_NOW));
    assert_true(ls_deadline_passed(ls_deadline_after(-3)));
    assert_false(ls_deadline_passed(LS_DEADLINE_NEVER));
    assert_true(ls_deadline_after(1e12) == LS_DEADLINE_NEVER);
    assert_int_equal(ls_deadline_milliseconds(LS_DEADLINE_NOW), 0);
    assert_int_equal(ls_deadline_milliseconds(LS_DEADLINE_NEVER), 60000);
    const int left = ls_deadline_milliseconds(ls_deadline_after(30));
    assert_true(left > 1000 && left <= 30000);
}

/* Gaps between polls count for at most one second, because a longer gap means that the process was stopped. */
TEST(test_a_stopped_process_does_not_age) {
    ls_awake awake = {0};
    assert_int_equal(ls_awake_poll(&awake, 500), 0);
    assert_int_equal(ls_awake_poll(&awake, 700), 200);
    assert_int_equal(ls_awake_at(&awake, 750), 250);
    assert_int_equal(ls_awake_poll(&awake, 700 + UINT64_C(3600000000000)), 200 + LS_STOPPED_NS);
    assert_int_equal(ls_awake_poll(&awake, 701 + UINT64_C(3600000000000)), 201 + LS_STOPPED_NS);
}

/* A wait pauses until its limit has passed, and at least once. After the limit, it does not pause again. */
TEST(test_a_wait_ends_at_its_limit) {
    ls_wait wait = {.limit_ns = 30000000, .yields = 3};
    const uint64_t begin = ls_clock_ns();
    int pauses = 0;
    while (ls_wait_pause(&wait)) {
        pauses++;
    }
    assert_true(ls_clock_ns() - begin >= 30000000);
    assert_true(pauses >= 1);
    assert_int_equal(wait.polls,
                     pauses < 3 ? pauses : 3); /* on a busy machine, a single yield may take the whole time */
    assert_false(ls_wait_pause(&wait));
}

/* Sleeps grow with the elapsed time, so a long wait polls rarely. `longest_ns` limits them. */
TEST(test_pauses_grow) {
    ls_wait wait = {.limit_ns = UINT64_C(3600000000000),
                    .awake = {.ns = UINT64_C(640000000), .polled_ns = ls_clock_ns()}};
    uint64_t begin = ls_clock_ns();
    assert_true(ls_wait_pause(&wait));
    assert_true(ls_clock_ns() - begin >= 20000000);
    wait = (ls_wait){.longest_ns = 100000, .awake = {.ns = UINT64_C(500000000000), .polled_ns = ls_clock_ns()}};
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        begin = ls_clock_ns();
        assert_true(ls_wait_pause(&wait));
        const uint64_t took = ls_clock_ns() - begin;
        shortest = took < shortest ? took : shortest;
    }
    assert_true(shortest >= 100000 && shortest < 20000000);
}

/* The wait of a stopped process does not end while it is stopped. */
TEST(test_the_limit_of_a_stopped_process) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        const uint64_t begin = ls_clock_ns();
        ls_wait wait = {.limit_ns = UINT64_C(1500000000)};
        (void)!write(ends[1], "w", 1);
        while (ls_wait_pause(&wait)) {
        }
        /* 1.7 s on the machine's clock, of which 1 s counts */
        _exit(ls_clock_ns() - begin >= UINT64_C(2200000000) ? 0 : 1);
    }
    char byte;
    int status = 0;
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGSTOP), 0);
    ls_sleep_ns(UINT64_C(1700000000));
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(ends[0]);
    close(ends[1]);
}

TEST(test_events) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_false(ls_wait_event(ends[0], POLLIN, LS_DEADLINE_NOW));
    const uint64_t begin = ls_clock_ns();
    assert_false(ls_wait_event(ends[0], POLLIN, begin + 5000000));
    assert_true(ls_clock_ns() >= begin + 5000000);
    assert_int_equal(write(ends[1], "x", 1), 1);
    struct pollfd both[] = {{.fd = ends[0], .events = POLLIN}, {.fd = ends[1], .events = POLLOUT}};
    assert_int_equal(ls_wait_events(both, 2, LS_DEADLINE_NEVER), 2);
    assert_true(ls_wait_event(ends[0], POLLIN, LS_DEADLINE_NOW));
    close(ends[0]);
    close(ends[1]);
}

typedef struct sleeper {
    _Atomic uint32_t word;
    _Atomic bool asleep;
    _Atomic bool woken;
} sleeper;

static void *sleep_on(void *argument) {
    sleeper *self = argument;
    const ls_futex futex = {.word = &self->word};
    const uint32_t word = atomic_load(&self->word);
    atomic_store(&self->asleep, true);
    while (atomic_load(&self->word) == word) {
        ls_futex_sleep(&futex, word, 2, UINT64_C(60000000000));
    }
    atomic_store(&self->woken, true);
    return NULL;
}

/* A thread sleeps until the word changes. If the word has already changed, the thread does not sleep. */
TEST(test_futex) {
    sleeper self = {0};
    const ls_futex futex = {.word = &self.word};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, sleep_on, &self), 0);
    while (!atomic_load(&self.asleep)) {
        ls_yield_briefly();
    }
    ls_sleep_ns(20000000);
    assert_false(atomic_load(&self.woken));
    ls_futex_wake(&futex, LS_FUTEX_ALL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(atomic_load(&self.woken));
    ls_futex_sleep(&futex, 0, 1, UINT64_C(60000000000)); /* the word is 1 now */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_a_stopped_process_does_not_age),
        cmocka_unit_test(test_a_wait_ends_at_its_limit),
        cmocka_unit_test(test_pauses_grow),
        cmocka_unit_test(test_the_limit_of_a_stopped_process),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_futex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
