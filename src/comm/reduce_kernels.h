/* The reduction loops for reduce.h, one per reduction and accumulator type, and the table for their lookup. */
#ifndef LS_COMM_REDUCE_KERNELS_H
#define LS_COMM_REDUCE_KERNELS_H

#include <lockstep/comm.h>

/* Computes into[i] = left[i] (+) right[i]; `into` may be `left` or `right`. */
typedef void ls_reduce_combine(void *into, const void *left, const void *right, size_t count);

/* Converts elements to accumulators of a different type. */
typedef void ls_reduce_widen(void *into, const void *from, size_t count);

/* Converts accumulators back to elements, divided by `divisor`; in place if both have the same type. */
typedef void ls_reduce_finish(void *into, const void *from, size_t count, int divisor);

typedef struct ls_reduce_kernel {
    ls_reduce_combine *combine; /* NULL if the dtype does not support the reduction */
    ls_reduce_widen *widen;     /* NULL: elements are accumulators */
    ls_reduce_finish *finish;   /* NULL if the accumulators are the result */
    ls_reduce_combine *two;     /* whole reduction of two ranks in one pass; NULL if there is no such loop */
    size_t width;               /* bytes of an element */
    size_t accumulator;         /* bytes of an accumulator */
} ls_reduce_kernel;

/* Returns the kernel for a valid dtype and reduction. */
const ls_reduce_kernel *ls_reduce_find(ls_dtype dtype, ls_reduction reduction);

#endif
