/* Provides C's atomic types and functions under the same names in C++, the language of the kernels of device/cuda. */
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
