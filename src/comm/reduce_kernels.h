/* The loops behind reduce.h, one per reduction and accumulator type, and the table that finds them. */
#ifndef LS_COMM_REDUCE_KERNELS_H
#define LS_COMM_REDUCE_KERNELS_H

#include <lockstep/comm.h>

/* into[i] = left[i] (+) right[i]; `into` may be left or right. */
typedef void ls_reduce_combine(void *into, const void *left, const void *right, size_t count);

/* Elements to accumulators of another type. */
typedef void ls_reduce_widen(void *into, const void *from, size_t count);

/* Accumulators back to elements, divided by `divisor`; in place where both have the same type. */
typedef void ls_reduce_finish(void *into, const void *from, size_t count, int divisor);

typedef struct ls_reduce_kernel {
    ls_reduce_combine *combine; /* NULL: the reduction means nothing on the dtype */
    ls_reduce_widen *widen;     /* NULL: elements are accumulators */
    ls_reduce_finish *finish;   /* NULL: accumulators are the result */
    ls_reduce_combine *two;     /* all of the reduction of two ranks in one pass; NULL: there is no such loop */
    size_t width;               /* bytes of an element */
    size_t accumulator;         /* bytes of an accumulator */
} ls_reduce_kernel;

/* The kernel of a valid dtype and reduction. */
const ls_reduce_kernel *ls_reduce_find(ls_dtype dtype, ls_reduction reduction);

#endif
