/*
 * The arithmetic of random numbers, for the host and for GPUs. The same (seed, stream, block) gives the same words on
 * every device. A block of four words contains two 64-bit numbers: the first two words and the last two words.
 */
#ifndef LS_BASE_PHILOX_H
#define LS_BASE_PHILOX_H

#include "base/clones.h"
#include "base/host_device.h"

#include <stdint.h>

/* Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011). The counter is (block, stream), the key is the seed. */
enum { LS_PHILOX_ROUNDS = 10 };

LS_HOST_DEVICE static inline void ls_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t words[4]) {
    uint32_t c0 = (uint32_t)block;
    uint32_t c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream;
    uint32_t c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    LS_UNROLLED
    for (int round = 0; round < LS_PHILOX_ROUNDS; round++) {
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

LS_HOST_DEVICE static inline uint64_t ls_number_of_words(const uint32_t words[2]) {
    return (uint64_t)words[0] << 32 | words[1];
}

/* Returns a number in [0, 1). */
LS_HOST_DEVICE static inline double ls_unit_of_words(const uint32_t words[2]) {
    return (double)(ls_number_of_words(words) >> 11) * 0x1p-53;
}

/* Returns an integer in [0, bound), computed by one multiplication (Lemire, arXiv 1805.10941, without the rejection
 * step). */
LS_HOST_DEVICE static inline uint64_t ls_below_of_words(const uint32_t words[2], uint64_t bound) {
#ifdef __CUDA_ARCH__
    return __umul64hi(ls_number_of_words(words), bound);
#else
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)ls_number_of_words(words) * bound) >> 64);
#endif
}

#endif
