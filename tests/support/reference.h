/*
 * What calls must give: what ranks send, and reductions computed one element after the other and one rank after the
 * other along the documented tree, so that it shares no code with the library. What ranks give repeats itself after
 * REFERENCE_PERIOD elements: so large buffers are filled fast, and as it is a prime, chunks in the wrong place do not
 * go unseen.
 */
#ifndef LS_TESTS_SUPPORT_REFERENCE_H
#define LS_TESTS_SUPPORT_REFERENCE_H

#include <lockstep/comm.h>

enum { REFERENCE_PERIOD = 1021 };

/* Whether the reduction means something on the dtype. */
bool reference_reduces(ls_dtype dtype, ls_reduction reduction);

/* Bytes of one element: of a pair for minloc and maxloc. */
size_t reference_width(ls_dtype dtype, ls_reduction reduction);

/* What one call reduces: another `seed`, other values. */
typedef struct reference {
    ls_dtype dtype;
    ls_reduction reduction;
    uint64_t seed;
} reference;

/* Writes the `count` elements that `rank` gives: small values, with zeros, ties and negative numbers. */
void reference_fill(const reference *r, int rank, size_t count, void *data);

/* Writes the reduction over `ranks` ranks of their elements [first, first + count). */
void reference_reduce(const reference *r, int ranks, size_t first, size_t count, void *data);

/* Writes `count` random elements of the dtype that `from` sends to `to` (-1: to all). Bools are 0 and 1. */
void reference_send(uint64_t seed, ls_dtype dtype, int from, int to, size_t count, void *data);

/* A number that follows from x and looks random. */
static inline uint64_t reference_mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#endif
