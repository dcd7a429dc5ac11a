/*
 * The loop of every fuzzer, and its randomness. A round is a function of its seed alone. By itself a fuzzer runs a
 * fixed number of rounds, the same in every run; with
 *
 *     LOCKSTEP_FUZZ_SECONDS=600   it runs so long with fresh seeds instead
 *     LOCKSTEP_FUZZ_SEED=N        it runs the one round of seed N: the replay of a failure
 *
 * When a round fails, by an assertion, a signal or a sanitizer's report, its fuzzer and seed are printed.
 */
#ifndef LS_TESTS_SUPPORT_FUZZ_H
#define LS_TESTS_SUPPORT_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* One round; `number` counts them, for rounds that take turns at several kinds (a replay has its seed's). */
typedef void fuzz_round(uint64_t number, void *argument);

/* Runs the rounds, seeds 0 to rounds - 1 unless the environment says otherwise; returns how many. */
uint64_t fuzz_run(const char *name, uint64_t rounds, fuzz_round *round, void *argument);

/* Random numbers of this round: in [0, bound). */
size_t fuzz_below(size_t bound);

/* Changes bits, bytes, words and the length a few times, within `capacity` bytes; returns the new size. */
size_t fuzz_mutate(uint8_t *bytes, size_t size, size_t capacity);

#endif
