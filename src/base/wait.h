/*
 * Waiting. Only this file and wait.c yield the core, sleep, and wait in the kernel; scripts/structure names the
 * exceptions. A wait consists of these parts:
 *
 * - ls_deadline: the time at which the wait ends. Several consecutive waits can share one deadline.
 * - ls_awake: the time during which this process could run. While a process is stopped (SIGSTOP, a debugger, a
 *   suspended machine), its time limits do not advance.
 * - ls_wait: pauses between polls of a condition that no file descriptor reports.
 * - ls_wait_events and ls_futex_sleep: sleeping until the kernel reports an event.
 * - ls_spin_pause and ls_yield: pauses between two polls of memory that another core is about to write.
 *
 * Every object here belongs to one thread, except for the futex word.
 */
#ifndef LS_BASE_WAIT_H
#define LS_BASE_WAIT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/base.h>

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

typedef uint64_t ls_deadline; /* nanoseconds of ls_clock_ns */

#define LS_DEADLINE_NOW   UINT64_C(0)
#define LS_DEADLINE_NEVER UINT64_MAX

static inline ls_deadline ls_deadline_after(double seconds) {
    return seconds >= 1e9 ? LS_DEADLINE_NEVER : ls_clock_ns() + (uint64_t)((seconds > 0 ? seconds : 0) * 1e9);
}

static inline bool ls_deadline_passed(ls_deadline deadline) {
    return ls_clock_ns() >= deadline;
}

/* ---- the time during which this process was not stopped ---------------------------------------------------------- */

/* The longest time between two polls that counts as time awake. A longer time means that the process was stopped. */
#define LS_STOPPED_NS UINT64_C(1000000000)

/* Measures from the first poll if it is initialized with zeros. */
typedef struct ls_awake {
    uint64_t ns;        /* nanoseconds awake at the latest poll */
    uint64_t polled_ns; /* ls_clock_ns at the latest poll; 0 before the first poll */
} ls_awake;

/* Returns the nanoseconds awake at time `now` of the clock. */
static inline uint64_t ls_awake_at(const ls_awake *awake, uint64_t now) {
    const uint64_t since = awake->polled_ns != 0 ? now - awake->polled_ns : 0;
    return awake->ns + (since < LS_STOPPED_NS ? since : LS_STOPPED_NS);
}

/* Records a poll at time `now`. Returns the nanoseconds awake so far. */
static inline uint64_t ls_awake_poll(ls_awake *awake, uint64_t now) {
    awake->ns = ls_awake_at(awake, now);
    awake->polled_ns = now;
    return awake->ns;
}

/* ---- pauses between polls ---------------------------------------------------------------------------------------- */

/* One wait for a condition that the caller polls. The caller sets the first three fields with designated
 * initializers. */
typedef struct ls_wait {
    uint64_t limit_ns;   /* nanoseconds awake after which the wait ends; 0 means no limit */
    uint64_t longest_ns; /* the longest sleep between two polls; 0 selects 20 ms */
    unsigned yields;     /* number of polls that are followed by a yield; later polls are followed by a sleep */
    unsigned polls;
    ls_awake awake;
} ls_wait;

/*
 * Pauses after a poll that found nothing: at first yields, then sleeps for 1/32 of the time waited so far, at least 50
 * us and at most longest_ns. Returns false, without a pause, if the limit has passed: the caller polls once more and
 * gives up.
 */
bool ls_wait_pause(ls_wait *wait);

/* Sleeps for `ns` nanoseconds. Returns early after a signal. */
void ls_sleep_ns(uint64_t ns);

/* ---- kernel events ----------------------------------------------------------------------------------------------- */

/*
 * Waits until one of `count` file descriptors has an event, or until the deadline. Sets `revents`. Returns the number
 * of descriptors with events. Also returns 0 after a signal, if out of memory, or after a minute, so the caller must
 * check its deadline.
 */
int ls_wait_events(struct pollfd *items, size_t count, ls_deadline deadline);

/* Same as ls_wait_events for one descriptor. Returns true if it has an event. */
bool ls_wait_event(int fd, short events, ls_deadline deadline);

/* Returns the milliseconds until the deadline, rounded up, at most a minute: a timeout for poll. */
int ls_deadline_milliseconds(ls_deadline deadline);

/* Describes whether the futex word is in memory that other processes share, and which sleepers a wake-up is for. */
typedef struct ls_futex {
    _Atomic uint32_t *word;
    bool shared;
} ls_futex;

#define LS_FUTEX_ALL UINT32_MAX

/* Sleeps while the word is `expected`, for at most `ns` nanoseconds, or until a wake-up with one of `bits`. */
void ls_futex_sleep(const ls_futex *futex, uint32_t expected, uint32_t bits, uint64_t ns);

/* Changes the word, and wakes the sleepers that wait for one of `bits`. */
void ls_futex_wake(const ls_futex *futex, uint32_t bits);

/* ---- spinning ---------------------------------------------------------------------------------------------------- */

/* A yield that takes this long has used up a slice of the scheduler: another program has the core. */
#define LS_LONG_YIELD_NS UINT64_C(1000000)

/*
 * Yields the core to other threads; `now` is the time of the clock. Returns true if this thread soon got the core back.
 * If the result is false several times in a row, sleeping is better: a thread that is woken gets the core before a busy
 * program does.
 */
bool ls_yield(uint64_t now);

/* Yields the core without reading the clock. */
void ls_yield_briefly(void);

/* Pauses between two polls of a word in memory. */
static inline void ls_spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/*
 * Pauses between two polls of a cache line that another core is about to write. A poll takes the line away from the
 * writer, and all polls that are in flight are repeated when the line changes. A back-off takes about five nanoseconds
 * on every processor; the time of the pause instruction varies.
 */
static inline void ls_spin_back_off(int times) {
    for (int i = 0; i < times; i++) {
#if defined(__x86_64__)
        __builtin_ia32_lfence();
        __builtin_ia32_lfence();
#else
        ls_spin_pause();
#endif
    }
}

#endif
