/*
 * Random numbers inside Lockstep. An operation that needs randomness takes one stream of its thread's generator and
 * derives number i of it from (seed, stream, i), so results depend on neither thread count nor call order within it.
 */
#ifndef LS_BASE_RANDOM_H
#define LS_BASE_RANDOM_H

#include <lockstep/base.h>

/* The seed and a stream nobody else has; advances this thread's generator by one stream. */
ls_random_state ls_random_next_stream(void);

/* Four 32-bit words: block `block` of `stream` under `seed` (ls_random_u32's words 4 * block and on). */
void ls_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]);

/* The words of `count` blocks from `first` on, 4 * count of them, for less than as many calls cost. */
void ls_random_blocks(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t *words);

/* `count` pairs of numbers of ls_random_uniform and of ls_random_normal, from number 2 * first on. */
void ls_random_uniform_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, double *numbers);
void ls_random_normal_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, double *numbers);

/* A number in [0, bound) without bias for all practical bounds (multiply-high of 64 bits); number `index` of the
 * stream. */
uint64_t ls_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound);

#endif
