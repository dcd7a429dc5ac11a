/* Attributes and pragmas for inner loops over numbers. */
#ifndef LS_BASE_CLONES_H
#define LS_BASE_CLONES_H

#include <stdint.h> /* defines __GLIBC__ */

/*
 * LS_CLONES before a function: the compiler builds it for several x86-64 levels, and the program selects the best level
 * when it starts. This needs gcc and glibc: clang 14 does not know the names of the levels. Sanitizers start before the
 * selection, so builds with sanitizers have one level.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && !defined(LS_SANITIZED)
#define LS_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#define LS_HAS_CLONES
#else
#define LS_CLONES
#endif

/*
 * LS_INDEPENDENT before a loop: the iterations are independent. The output may be one of the operands, but not an
 * operand shifted by some elements. LS_ROLLED after it, if the number of iterations is a small constant: keeps gcc from
 * unrolling the loop, because gcc vectorizes only loops.
 */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#define LS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define LS_ROLLED
#else
#define LS_INDEPENDENT _Pragma("GCC ivdep")
#define LS_ROLLED      _Pragma("GCC unroll 1")
#endif

/* LS_UNROLLED before a short inner loop: the compiler unrolls it, so that the outer loop can be vectorized. */
#if defined(__CUDACC__)
#define LS_UNROLLED /* nvcc unrolls such loops without a pragma */
#elif defined(__clang__)
#define LS_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define LS_UNROLLED _Pragma("GCC unroll 16")
#endif

#endif
