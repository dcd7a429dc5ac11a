/*
 * The expected results of calls: the values that ranks send, and reductions computed element by element and rank by
 * rank along the documented tree, independently of the library. A rank's values repeat after REFERENCE_PERIOD elements,
 * so that large buffers are filled fast. The period is a prime, so that misplaced chunks are detected.
 */
#ifndef LS_TESTS_SUPPORT_REFERENCE_H
#define LS_TESTS_SUPPORT_REFERENCE_H

#include <lockstep/comm.h>

enum { REFERENCE_PERIOD = 1021 };

/* Returns whether the reduction is defined for the dtype. */
bool reference_reduces(ls_dtype dtype, ls_reduction reduction);

/* Returns the size in bytes of one element; for minloc and maxloc, of one pair. */
size_t reference_width(ls_dtype dtype, ls_reduction reduction);

/* The inputs of one reduction. A different `seed` gives different values. */
typedef struct reference {
    ls_dtype dtype;
    ls_reduction reduction;
    uint64_t seed;
} reference;

/* Writes the `count` elements of `rank`: small values, with zeros, ties and negative numbers. */
void reference_fill(const reference *r, int rank, size_t count, void *data);

/* Writes the reduction over `ranks` ranks of their elements [first, first + count). */
void reference_reduce(const reference *r, int ranks, size_t first, size_t count, void *data);

/* Writes `count` random elements of the dtype that rank `from` sends to rank `to`, or to all ranks if `to` is -1.
 * Bools are 0 and 1. */
void reference_send(uint64_t seed, ls_dtype dtype, int from, int to, size_t count, void *data);

/* Returns a pseudorandom function of x. */
static inline uint64_t reference_mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#endif
