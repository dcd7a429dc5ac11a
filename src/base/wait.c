#include "base/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHORTEST_SLEEP_NS UINT64_C(50000)
#define LONGEST_SLEEP_NS  UINT64_C(20000000)
#define SHARE_OF_WAIT     32 /* the sleep is 1/32 of the time waited so far */
#define MINUTE_MS         60000

void ls_sleep_ns(uint64_t ns) {
    const struct timespec length = {.tv_sec = (time_t)(ns / 1000000000U), .tv_nsec = (long)(ns % 1000000000U)};
    (void)nanosleep(&length, NULL);
}

static uint64_t sleep_length(const ls_wait *wait) {
    const uint64_t longest = wait->longest_ns != 0 ? wait->longest_ns : LONGEST_SLEEP_NS;
    uint64_t length = wait->awake.ns / SHARE_OF_WAIT;
    length = length < SHORTEST_SLEEP_NS ? SHORTEST_SLEEP_NS : length;
    length = length < longest ? length : longest;
    if (wait->limit_ns != 0 && wait->limit_ns - wait->awake.ns < length) {
        length = wait->limit_ns - wait->awake.ns;
    }
    return length;
}

bool ls_wait_pause(ls_wait *wait) {
    const uint64_t waited = ls_awake_poll(&wait->awake, ls_clock_ns());
    if (wait->limit_ns != 0 && waited >= wait->limit_ns) {
        return false;
    }
    if (wait->polls < wait->yields) {
        wait->polls++;
        ls_yield_briefly();
    } else {
        ls_sleep_ns(sleep_length(wait));
    }
    return true;
}

int ls_deadline_milliseconds(ls_deadline deadline) {
    const uint64_t now = ls_clock_ns();
    const uint64_t left = deadline > now ? deadline - now : 0;
    return left > MINUTE_MS * UINT64_C(1000000) ? MINUTE_MS : (int)((left + 999999U) / 1000000U);
}

int ls_wait_events(struct pollfd *items, size_t count, ls_deadline deadline) {
    const int ready = poll(items, (nfds_t)count, ls_deadline_milliseconds(deadline));
    return ready > 0 ? ready : 0;
}

bool ls_wait_event(int fd, short events, ls_deadline deadline) {
    return ls_wait_events(&(struct pollfd){.fd = fd, .events = events}, 1, deadline) != 0;
}

void ls_futex_sleep(const ls_futex *futex, uint32_t expected, uint32_t bits, uint64_t ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t nanoseconds = (uint64_t)until.tv_nsec + ns;
    until.tv_sec += (time_t)(nanoseconds / 1000000000U);
    until.tv_nsec = (long)(nanoseconds % 1000000000U);
    const int operation = futex->shared ? FUTEX_WAIT_BITSET : FUTEX_WAIT_BITSET_PRIVATE;
    syscall(SYS_futex, futex->word, operation, expected, &until, NULL, bits);
}

void ls_futex_wake(const ls_futex *futex, uint32_t bits) {
    atomic_fetch_add(futex->word, 1);
    const int operation = futex->shared ? FUTEX_WAKE_BITSET : FUTEX_WAKE_BITSET_PRIVATE;
    syscall(SYS_futex, futex->word, operation, INT_MAX, NULL, NULL, bits);
}

void ls_yield_briefly(void) {
    sched_yield();
}

bool ls_yield(uint64_t now) {
    sched_yield();
    return ls_clock_ns() - now < LS_LONG_YIELD_NS;
}
