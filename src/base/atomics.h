/* Gives C's atomic types and calls the same names in C++, which the kernels of device/cuda are written in. */
#ifndef LS_BASE_ATOMICS_H
#define LS_BASE_ATOMICS_H

#ifdef __cplusplus
#include <atomic>
using std::atomic_int;
using std::atomic_load_explicit;
using std::memory_order_relaxed;
#else
#include <stdatomic.h>
#endif

#endif
