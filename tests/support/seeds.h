/* Reads numbers from environment variables, and runs checks with many seeds. */
#ifndef LS_TESTS_SUPPORT_SEEDS_H
#define LS_TESTS_SUPPORT_SEEDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Returns the number in an environment variable, or `otherwise` if the variable is not set. */
static inline uint64_t seeds_number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

/*
 * Calls `check` with the seeds 1 to `count`. LOCKSTEP_ENGINE_SEED=N runs only seed N, and LOCKSTEP_ENGINE_SEEDS=N runs
 * N seeds. Returns false if LOCKSTEP_ENGINE_SEED is set, because the run then need not cover all cases.
 */
static inline bool seeds_run(uint64_t count, void (*check)(uint64_t seed, void *context), void *context) {
    const uint64_t first = seeds_number("LOCKSTEP_ENGINE_SEED", 0);
    const uint64_t runs = seeds_number("LOCKSTEP_ENGINE_SEEDS", first != 0 ? 1 : count);
    for (uint64_t i = 0; i < runs; i++) {
        check((first != 0 ? first : 1) + i, context);
    }
    return first == 0;
}

#endif
