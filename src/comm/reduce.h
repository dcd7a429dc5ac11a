/*
 * How buffers of several ranks become one: every reduction of lockstep/comm.h on every dtype where it means something.
 * Knows nothing of communicators, so each backend that reduces by itself uses it and all give the same bits.
 */
#ifndef LS_COMM_REDUCE_H
#define LS_COMM_REDUCE_H

#include <lockstep/comm.h>

/* More ranks than this cannot be reduced by one call. */
#define LS_REDUCE_MAX_RANKS 4096

/* LS_OK when the reduction means something on the dtype; else LS_ERR_ARGUMENT (no such value) or LS_ERR_UNSUPPORTED. */
ls_status ls_reduce_check(const char *call, ls_dtype dtype, ls_reduction reduction);

/* Bytes of one element: of a pair for minloc and maxloc. */
size_t ls_reduce_width(ls_dtype dtype, ls_reduction reduction);

typedef struct ls_reduce_task {
    ls_dtype dtype;
    ls_reduction reduction;
    int ranks;                  /* at least 1 */
    const void *const *sources; /* one buffer per rank */
    int copies;                 /* at least 1 */
    void *const *destinations;  /* `copies` buffers that all get the result */
    size_t count;
} ls_reduce_task;

/*
 * destination[i] = sources[0][i] + sources[1][i] + ... in the order of a balanced binary tree: n ranks are the largest
 * power of two below n, reduced, and the rest, reduced. A destination may be one of the sources; buffers may not
 * overlap otherwise. No alignment is needed. The pair must have passed ls_reduce_check.
 */
void ls_reduce_buffers(const ls_reduce_task *task);

#endif
