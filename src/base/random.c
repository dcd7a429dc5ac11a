#include "base/random.h"

#include "base/clones.h"

#include <math.h>

/* Philox 4x32-10, after Salmon, Moraes, Dror and Shaw (SC 2011): counter = (block, stream), key = seed. */
enum { PHILOX_ROUNDS = 10 };

static _Thread_local ls_random_state generator;

void ls_seed(uint64_t seed) {
    generator = (ls_random_state){.seed = seed, .stream = 0};
}

ls_random_state ls_random_get_state(void) {
    return generator;
}

void ls_random_set_state(ls_random_state state) {
    generator = state;
}

ls_random_state ls_random_next_stream(void) {
    const ls_random_state current = generator;
    generator.stream++;
    return current;
}

static inline void philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]) {
    uint32_t c0 = (uint32_t)block;
    uint32_t c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream;
    uint32_t c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    LS_UNROLLED
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53U * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57U * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

void ls_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]) {
    philox(seed, stream, block, words);
}

LS_CLONES void ls_random_blocks(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t *words) {
    LS_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        philox(seed, stream, first + (uint64_t)i, words + 4 * i);
    }
}

uint32_t ls_random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    ls_random_block(seed, stream, index / 4, words);
    return words[index % 4];
}

/* The 64-bit numbers of a block: its first two words, its last two. */
static uint64_t number_of_words(const uint32_t words[2]) {
    return (uint64_t)words[0] << 32 | words[1];
}

void ls_random_uniform_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, double *numbers) {
    enum { BLOCKS = 64 };
    for (int64_t done = 0; done < count; done += BLOCKS) {
        uint32_t words[4 * BLOCKS];
        const int64_t blocks = count - done < BLOCKS ? count - done : BLOCKS;
        ls_random_blocks(seed, stream, first + (uint64_t)done, blocks, words);
        for (int64_t i = 0; i < 2 * blocks; i++) {
            numbers[2 * done + i] = (double)(number_of_words(words + 2 * i) >> 11) * 0x1p-53;
        }
    }
}

void ls_random_normal_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, double *numbers) {
    const double two_pi = 6.283185307179586476925;
    ls_random_uniform_pairs(seed, stream, first, count, numbers);
    for (int64_t i = 0; i < 2 * count; i += 2) {
        const double radius = sqrt(-2.0 * log1p(-numbers[i]));
        const double angle = two_pi * numbers[i + 1];
        numbers[i] = radius * cos(angle);
        numbers[i + 1] = radius * sin(angle);
    }
}

double ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    double pair[2];
    ls_random_uniform_pairs(seed, stream, index / 2, 1, pair);
    return pair[index % 2];
}

double ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    double pair[2];
    ls_random_normal_pairs(seed, stream, index / 2, 1, pair);
    return pair[index % 2];
}

uint64_t ls_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound) {
    __extension__ typedef unsigned __int128 wide; /* one multiplication instead of a loop of divisions */
    uint32_t words[4];
    ls_random_block(seed, stream, index / 2, words);
    return (uint64_t)(((wide)number_of_words(words + index % 2 * 2) * bound) >> 64);
}
