/* How inner loops over numbers are compiled, in one place for all of them. */
#ifndef LS_BASE_CLONES_H
#define LS_BASE_CLONES_H

#include <stdint.h> /* defines __GLIBC__ */

/*
 * Before a function: build it for several generations of x86-64 and take the best when the program starts. This needs
 * gcc and glibc (clang 14 does not know the names of the generations); sanitizers start before such choices are made.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && !defined(LS_SANITIZED)
#define LS_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define LS_CLONES
#endif

/*
 * Before a loop: its turns do not depend on each other. The output may be an operand itself, never a shifted one. And
 * behind that, where the number of turns is a small constant: it becomes vectors, which gcc misses once it is straight
 * code.
 */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#define LS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define LS_ROLLED
#else
#define LS_INDEPENDENT _Pragma("GCC ivdep")
#define LS_ROLLED      _Pragma("GCC unroll 1")
#endif

/* Before a short loop inside one that is to vectorise: it becomes straight code. */
#if defined(__CUDACC__)
#define LS_UNROLLED /* nvcc does so by itself */
#elif defined(__clang__)
#define LS_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define LS_UNROLLED _Pragma("GCC unroll 16")
#endif

#endif
