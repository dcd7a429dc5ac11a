/*
 * Iterates over several tensors at once. The first tensor determines the shape; the other tensors broadcast to it
 * (their axes are aligned on the right, and missing or size-1 axes repeat). Axes that are adjacent in memory in all
 * tensors are merged, so that the body, a plain loop over n elements, runs as few times as possible: once if all
 * tensors are dense.
 */
#ifndef LS_TENSOR_DEVICE_CPU_LOOP_H
#define LS_TENSOR_DEVICE_CPU_LOOP_H

#include "tensor/tensor.h"

enum { LS_LOOP_TENSORS = 4 };

/* Processes n elements of every tensor. The elements of tensor t are at at[t], at[t] + step[t], ... (steps in
 * elements). */
typedef void (*ls_loop_body)(int64_t n, void *const *at, const int64_t *step, const void *context);

/* The merged axes, in the order of the first tensor's memory: axis 0 has the largest stride. There is at least one
 * axis. */
typedef struct ls_loop {
    int tensors;
    int ndim;
    int64_t size[LS_MAX_DIMS];
    int64_t step[LS_MAX_DIMS][LS_LOOP_TENSORS]; /* in elements; 0 repeats */
    void *at[LS_LOOP_TENSORS];
    int64_t element[LS_LOOP_TENSORS]; /* bytes */
} ls_loop;

/* Makes the plan; the first tensor must not be empty. */
void ls_loop_plan(ls_loop *loop, int tensors, const ls_tensor *const *tensor);

/* Calls the body for all elements. Does nothing if the first tensor is empty. */
void ls_loop_run(int tensors, const ls_tensor *const *tensor, ls_loop_body body, const void *context);

/* Same as ls_loop_run on several threads, for bodies that write only to their elements of the first tensor. */
void ls_loop_spread(int tensors, const ls_tensor *const *tensor, ls_loop_body body, const void *context);

/*
 * Same as ls_loop_run for an existing plan, but iterates only over its first `axes` axes. The body gets the size and
 * the steps of axis `axes` (below ndim), and processes the axes after it itself.
 */
void ls_loop_walk(const ls_loop *loop, int axes, ls_loop_body body, const void *context);

/* Same as ls_loop_walk, on several threads, in pieces of axis 0 whose sizes are multiples of `block`. */
void ls_loop_spread_walk(const ls_loop *loop, int axes, int64_t block, ls_loop_body body, const void *context);

#endif
