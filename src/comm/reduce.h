/*
 * The reduction of several ranks' buffers into one: every reduction of lockstep/comm.h on every dtype that supports it.
 * Independent of communicators, so every backend that reduces by itself uses it, and all backends give bit-identical
 * results.
 */
#ifndef LS_COMM_REDUCE_H
#define LS_COMM_REDUCE_H

#include <lockstep/comm.h>

/* The maximum number of ranks that one call can reduce. */
#define LS_REDUCE_MAX_RANKS 4096

/* Returns LS_OK if the dtype supports the reduction. Otherwise, fails with LS_ERR_ARGUMENT (invalid dtype or
 * reduction) or LS_ERR_UNSUPPORTED. */
ls_status ls_reduce_check(const char *call, ls_dtype dtype, ls_reduction reduction);

/* Returns the size in bytes of an element, or of a pair for minloc and maxloc. */
size_t ls_reduce_width(ls_dtype dtype, ls_reduction reduction);

typedef struct ls_reduce_task {
    ls_dtype dtype;
    ls_reduction reduction;
    int ranks;                  /* at least 1 */
    const void *const *sources; /* one buffer per rank */
    int copies;                 /* at least 1 */
    void *const *destinations;  /* `copies` buffers that all receive the result */
    size_t count;
} ls_reduce_task;

/*
 * Computes destination[i] = sources[0][i] + sources[1][i] + ... in the order of a balanced binary tree: the left
 * subtree of n ranks contains the largest power of two below n, and the right subtree the rest. A destination may be
 * one of the sources; buffers must not overlap otherwise. No alignment is required. The dtype and reduction must have
 * passed ls_reduce_check.
 */
void ls_reduce_buffers(const ls_reduce_task *task);

#endif
