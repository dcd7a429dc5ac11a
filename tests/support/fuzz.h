/*
 * The loop and the random numbers of every fuzzer. A round depends only on its seed. By default a fuzzer runs a fixed
 * number of rounds, the same in every run. Other modes:
 *
 *     LOCKSTEP_FUZZ_SECONDS=600   runs for this time with fresh seeds
 *     LOCKSTEP_FUZZ_SEED=N        runs only the round of seed N: replays a failure
 *
 * If a round fails by an assertion, a signal or a sanitizer's report, the fuzzer's name and the seed are printed.
 */
#ifndef LS_TESTS_SUPPORT_FUZZ_H
#define LS_TESTS_SUPPORT_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/*
 * One round. `number` is the number of the round, for rounds that alternate between several kinds; a replay uses the
 * number of its seed.
 */
typedef void fuzz_round(uint64_t number, void *argument);

/* Runs the rounds, with seeds 0 to rounds - 1 unless the environment selects others. Returns the number of rounds. */
uint64_t fuzz_run(const char *name, uint64_t rounds, fuzz_round *round, void *argument);

/* Returns a random number in [0, bound), which depends on the seed of this round. */
size_t fuzz_below(size_t bound);

/* Changes bits, bytes, words and the length a few times, within `capacity` bytes. Returns the new size. */
size_t fuzz_mutate(uint8_t *bytes, size_t size, size_t capacity);

#endif
