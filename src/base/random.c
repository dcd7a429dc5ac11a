#include "base/random.h"

#include "base/clones.h"
#include "base/philox.h"

#include <math.h>

static _Thread_local ls_random_state generator;
static _Thread_local uint32_t accesses;

void ls_seed(uint64_t seed) {
    ls_random_set_state((ls_random_state){.seed = seed, .stream = 0});
}

ls_random_state ls_random_get_state(void) {
    accesses++;
    return generator;
}

ls_random_state ls_random_present(void) {
    return generator;
}

void ls_random_set_state(ls_random_state state) {
    accesses++;
    generator = state;
}

void ls_random_continue(ls_random_state state) {
    generator = state;
}

uint32_t ls_random_accesses(void) {
    return accesses;
}

ls_random_state ls_random_next_stream(void) {
    const ls_random_state current = generator;
    generator.stream++;
    return current;
}

void ls_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]) {
    ls_philox(seed, stream, block, words);
}

/* Static, because the dispatcher of a cloned function that is not static would be exported. */
LS_CLONES static void make_blocks(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t *words) {
    LS_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        ls_philox(seed, stream, first + (uint64_t)i, words + 4 * i);
    }
}

void ls_random_blocks(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t *words) {
    make_blocks(seed, stream, first, count, words);
}

uint32_t ls_random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    ls_random_block(seed, stream, index / 4, words);
    return words[index % 4];
}

void ls_random_uniform_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, double *numbers) {
    enum { BLOCKS = 64 };
    for (int64_t done = 0; done < count; done += BLOCKS) {
        uint32_t words[4 * BLOCKS];
        const int64_t blocks = count - done < BLOCKS ? count - done : BLOCKS;
        ls_random_blocks(seed, stream, first + (uint64_t)done, blocks, words);
        for (int64_t i = 0; i < 2 * blocks; i++) {
            numbers[2 * done + i] = ls_unit_of_words(words + 2 * i);
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
    uint32_t words[4];
    ls_random_block(seed, stream, index / 2, words);
    return ls_below_of_words(words + index % 2 * 2, bound);
}
