/*
 * Our own loops on the team of threads: the rank's share of the cores, or OMP_NUM_THREADS (base/threads.h). The team
 * belongs to module onednn, so that a process has one team, and no team before the first product that opens the module.
 * Pieces begin at multiples of `block`. A body computes an item in the same way in every piece, so the bits do not
 * depend on the number of threads.
 */
#ifndef LS_TENSOR_DEVICE_CPU_PARALLEL_H
#define LS_TENSOR_DEVICE_CPU_PARALLEL_H

#include <stdint.h>

/* Elements below which a loop is not worth waking a thread: some ten microseconds of work. */
enum { LS_PARALLEL_ELEMENTS = 1 << 15 };

/* Handles the items from `begin` to before `end`; bodies of one loop run at the same time. */
typedef void ls_parallel_body(int64_t begin, int64_t end, const void *context);

/*
 * Runs the body over `count` items of `elements` elements each, in pieces of whole blocks of `block` items; only the
 * last piece may end within a block. Makes one call with all items if there is one thread or too little work, and no
 * call if `count` is 0.
 */
void ls_parallel(int64_t count, int64_t elements, int64_t block, ls_parallel_body *body, const void *context);

#endif
