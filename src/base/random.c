#include "base/random.h"

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

void ls_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]) {
    uint32_t c0 = (uint32_t)block;
    uint32_t c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream;
    uint32_t c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
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

uint32_t ls_random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    ls_random_block(seed, stream, index / 4, words);
    return words[index % 4];
}

static uint64_t random_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    ls_random_block(seed, stream, index / 2, words);
    const uint64_t at = (index % 2) * 2;
    return (uint64_t)words[at] << 32 | words[at + 1];
}

double ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(random_u64(seed, stream, index) >> 11) * 0x1p-53;
}

double ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    const double two_pi = 6.283185307179586476925;
    const uint64_t pair = index / 2 * 2;
    const double radius = sqrt(-2.0 * log1p(-ls_random_uniform(seed, stream, pair)));
    const double angle = two_pi * ls_random_uniform(seed, stream, pair + 1);
    return radius * (index % 2 == 0 ? cos(angle) : sin(angle));
}

uint64_t ls_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound) {
    __extension__ typedef unsigned __int128 wide; /* one multiplication instead of a loop of divisions */
    return (uint64_t)(((wide)random_u64(seed, stream, index) * bound) >> 64);
}
