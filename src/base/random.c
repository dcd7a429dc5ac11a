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

/* Numbers 2 * pair and 2 * pair + 1 of 64 bits. */
static void random_u64_pair(uint64_t seed, uint64_t stream, uint64_t pair, uint64_t numbers[2]) {
    uint32_t words[4];
    ls_random_block(seed, stream, pair, words);
    numbers[0] = (uint64_t)words[0] << 32 | words[1];
    numbers[1] = (uint64_t)words[2] << 32 | words[3];
}

void ls_random_uniform_pair(uint64_t seed, uint64_t stream, uint64_t pair, double numbers[2]) {
    uint64_t bits[2];
    random_u64_pair(seed, stream, pair, bits);
    numbers[0] = (double)(bits[0] >> 11) * 0x1p-53;
    numbers[1] = (double)(bits[1] >> 11) * 0x1p-53;
}

void ls_random_normal_pair(uint64_t seed, uint64_t stream, uint64_t pair, double numbers[2]) {
    const double two_pi = 6.283185307179586476925;
    double uniform[2];
    ls_random_uniform_pair(seed, stream, pair, uniform);
    const double radius = sqrt(-2.0 * log1p(-uniform[0]));
    const double angle = two_pi * uniform[1];
    numbers[0] = radius * cos(angle);
    numbers[1] = radius * sin(angle);
}

double ls_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    double pair[2];
    ls_random_uniform_pair(seed, stream, index / 2, pair);
    return pair[index % 2];
}

double ls_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    double pair[2];
    ls_random_normal_pair(seed, stream, index / 2, pair);
    return pair[index % 2];
}

uint64_t ls_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound) {
    __extension__ typedef unsigned __int128 wide; /* one multiplication instead of a loop of divisions */
    uint64_t pair[2];
    random_u64_pair(seed, stream, index / 2, pair);
    return (uint64_t)(((wide)pair[index % 2] * bound) >> 64);
}
