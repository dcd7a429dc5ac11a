/*
 * Random numbers inside Lockstep. A random operation uses one stream of its thread's generator. Number i of the
 * operation is a function of (seed, stream, i), so the result does not depend on the number of threads.
 */
#ifndef LS_BASE_RANDOM_H
#define LS_BASE_RANDOM_H

#include <lockstep/base.h>

/* Returns the seed and an unused stream. Advances this thread's generator by one stream. */
ls_random_state ls_random_next_stream(void);

/*
 * Returns and sets the state of this thread's generator like ls_random_get_state and ls_random_set_state, for use
 * inside Lockstep. ls_random_accesses counts the calls of the public functions, and of ls_seed.
 */
ls_random_state ls_random_present(void);
void ls_random_continue(ls_random_state state);
uint32_t ls_random_accesses(void);

/* Computes block `block` of the stream: words 4 * block to 4 * block + 3 of ls_random_u32. */
void ls_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]);

/* Computes `count` blocks, beginning with block `first`: 4 * count words. Cheaper than one call per block. */
void ls_random_blocks(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t *words);

/* Computes `count` pairs of numbers of ls_random_uniform or ls_random_normal, beginning with number 2 * first. */
void ls_random_uniform_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, double *numbers);
void ls_random_normal_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, double *numbers);

/* Returns number `index` of the stream as an integer in [0, bound). The bias is less than bound / 2^64. */
uint64_t ls_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound);

#endif
