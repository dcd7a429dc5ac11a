#include "tests/support/fuzz.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <lockstep/base.h>

#include "base/random.h"

/* Sets the function that the address and thread sanitizers call before they end a process. NULL in other builds. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static const char *running; /* the fuzzer whose round is unfinished, or NULL */
static uint64_t seed, dice;
static pid_t owner; /* processes that a round forks are not the fuzzer */

static void report(void) {
    if (running != NULL && getpid() == owner) {
        fprintf(stderr, "fuzzer %s: the round of seed %" PRIu64 " failed; LOCKSTEP_FUZZ_SEED=%" PRIu64 " replays it\n",
                running, seed, seed);
    }
    running = NULL;
}

static void report_signal(int number) {
    report();
    signal(number, SIG_DFL);
    raise(number);
}

static void watch(void) {
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    if (owner != 0) {
        return;
    }
    owner = getpid();
    atexit(report);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(report);
        return;
    }
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) {
        signal(fatal[i], report_signal);
    }
}

static void run_one(const char *name, uint64_t of, fuzz_round *round, void *argument) {
    running = name;
    seed = of;
    dice = 0;
    round(of, argument);
    running = NULL;
}

uint64_t fuzz_run(const char *name, uint64_t rounds, fuzz_round *round, void *argument) {
    const char *seconds = getenv("LOCKSTEP_FUZZ_SECONDS");
    const char *replay = getenv("LOCKSTEP_FUZZ_SEED");
    uint64_t first = 0, done = 0;
    report(); /* for a test that failed before this fuzzer */
    watch();
    if (replay != NULL) {
        run_one(name, strtoull(replay, NULL, 10), round, argument);
        return 1;
    }
    if (seconds != NULL && getrandom(&first, sizeof first, 0) != (ssize_t)sizeof first) {
        abort();
    }
    first &= UINT64_MAX >> 8; /* a moderate number, far below an overflow */
    const double end = ls_clock_seconds() + (seconds != NULL ? strtod(seconds, NULL) : 0);
    for (; seconds != NULL ? ls_clock_seconds() < end : done < rounds; done++) {
        run_one(name, first + done, round, argument);
    }
    if (seconds != NULL) {
        fprintf(stderr, "fuzzer %s: %" PRIu64 " rounds from seed %" PRIu64 "\n", name, done, first);
    }
    return done;
}

size_t fuzz_below(size_t bound) {
    return bound > 0 ? (size_t)ls_random_below(seed, 1, dice++, bound) : 0;
}

static void put_word(uint8_t *bytes, size_t size, size_t at) {
    static const uint64_t edges[] = {0,
                                     1,
                                     0x7f,
                                     0xff,
                                     0x7fff,
                                     0xffff,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     INT64_MAX,
                                     (uint64_t)INT64_MAX + 1,
                                     UINT64_MAX};
    const uint64_t word = edges[fuzz_below(sizeof edges / sizeof *edges)];
    const size_t width = (size_t)1 << fuzz_below(4);
    memcpy(bytes + at, &word, width < size - at ? width : size - at);
}

size_t fuzz_mutate(uint8_t *bytes, size_t size, size_t capacity) {
    for (size_t times = 1 + fuzz_below(4); times > 0; times--) {
        const size_t at = fuzz_below(size);
        switch (fuzz_below(6)) {
        case 0: /* cut */
            size = at;
            break;
        case 1: /* insert a byte */
            if (size < capacity) {
                memmove(bytes + at + 1, bytes + at, size - at);
                bytes[at] = (uint8_t)fuzz_below(256);
                size++;
            }
            break;
        case 2: /* a number near a limit */
            if (size > 0) {
                put_word(bytes, size, at);
            }
            break;
        default:
            if (size > 0) {
                bytes[at] ^= (uint8_t)(1U << fuzz_below(8));
            }
        }
    }
    return size;
}
