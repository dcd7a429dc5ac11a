/*
 * Our own loops on the thread team, whose size is the rank's share of the cores, or OMP_NUM_THREADS (base/threads.h).
 * The team belongs to plug-in onednn, so that a process has only one team, and no team before the first product that
 * opens the plug-in. Pieces begin at multiples of `block`. A body computes an item in the same way in every piece, so
 * the bits do not depend on the number of threads.
 */
#ifndef LS_TENSOR_DEVICE_CPU_PARALLEL_H
#define LS_TENSOR_DEVICE_CPU_PARALLEL_H

#include <stdint.h>

/* Minimum number of elements for which waking a thread pays off: about ten microseconds of work. */
enum { LS_PARALLEL_ELEMENTS = 1 << 15 };

/* Processes the items in [begin, end). Bodies of the same loop run concurrently. */
typedef void ls_parallel_body(int64_t begin, int64_t end, const void *context);

/*
 * Runs the body over `count` items of `elements` elements each, in pieces of whole blocks of `block` items; only the
 * last piece may end within a block. Makes a single call with all items if there is only one thread or too little work,
 * and no call if `count` is 0.
 */
void ls_parallel(int64_t count, int64_t elements, int64_t block, ls_parallel_body *body, const void *context);

#endif
