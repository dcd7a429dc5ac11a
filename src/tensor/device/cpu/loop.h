/*
 * Walks through several tensors at once. The first decides the shape; the others broadcast to it (their axes count from
 * the right, and missing or size-1 axes repeat). Axes that lie together in all of them become one, so that the body, a
 * plain loop over n elements, runs as few times as possible: once when everything is dense.
 */
#ifndef LS_TENSOR_DEVICE_CPU_LOOP_H
#define LS_TENSOR_DEVICE_CPU_LOOP_H

#include "tensor/tensor.h"

enum { LS_LOOP_TENSORS = 4 };

/* Handles n elements of every tensor: of tensor t, those at at[t], at[t] + step[t], ... (steps in elements). */
typedef void (*ls_loop_body)(int64_t n, void *const *at, const int64_t *step, const void *context);

/* The merged axes, in the order of the first tensor's memory: axis 0 has the largest steps. At least one. */
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

/* Calls the body for all elements; an empty first tensor has none. */
void ls_loop_run(int tensors, const ls_tensor *const *tensor, ls_loop_body body, const void *context);

/* The same on several threads, for bodies that write nothing but their elements of the first tensor. */
void ls_loop_spread(int tensors, const ls_tensor *const *tensor, ls_loop_body body, const void *context);

/*
 * ls_loop_run for a plan in hand, over its first `axes` axes only: the body gets the size and the steps of axis `axes`
 * (below ndim) and processes the axes after it itself.
 */
void ls_loop_walk(const ls_loop *loop, int axes, ls_loop_body body, const void *context);

/* The same as ls_loop_spread does it: in pieces of axis 0, of a multiple of `block` each. */
void ls_loop_spread_walk(const ls_loop *loop, int axes, int64_t block, ls_loop_body body, const void *context);

#endif
