/* The plan of a loop, in a separate file, because it is also compiled for plug-in cuda and therefore must not call
 * the core's threads. */
#include <string.h>

#include "tensor/device/cpu/loop.h"

/* Returns the step of tensor t along `axis` of the first tensor. */
static int64_t step_along(const ls_tensor *t, const ls_tensor *first, int axis) {
    const int own = axis - (first->ndim - t->ndim);
    return own < 0 || t->size[own] == 1 ? 0 : t->stride[own];
}

/* Returns whether, in every tensor, the outer axis i continues where the inner axis j ends. */
static bool axes_join(const ls_loop *loop, int i, int j) {
    for (int t = 0; t < loop->tensors; t++) {
        if (loop->step[i][t] != loop->step[j][t] * loop->size[j]) {
            return false;
        }
    }
    return true;
}

static void axis_copy(ls_loop *loop, int to, int from) {
    loop->size[to] = loop->size[from];
    memcpy(loop->step[to], loop->step[from], sizeof loop->step[to]);
}

/* Repeated axes count as the outermost axes, so that the inner loops run over memory. */
static bool axis_is_outside(const int64_t *step, const int64_t *other) {
    return step[0] == 0 ? other[0] != 0 : other[0] != 0 && step[0] > other[0];
}

/* Inserts an axis of more than one element at its position among the existing axes. */
static void axis_insert(ls_loop *loop, int64_t size, const int64_t *step) {
    int at = loop->ndim++;
    for (; at > 0 && axis_is_outside(step, loop->step[at - 1]); at--) {
        axis_copy(loop, at, at - 1);
    }
    loop->size[at] = size;
    memcpy(loop->step[at], step, sizeof loop->step[at]);
}

static void axes_merge(ls_loop *loop) {
    int last = 0;
    for (int axis = 1; axis < loop->ndim; axis++) {
        if (axes_join(loop, last, axis)) {
            loop->size[axis] *= loop->size[last];
        } else {
            last++;
        }
        axis_copy(loop, last, axis);
    }
    loop->ndim = last + 1;
}

void ls_loop_plan(ls_loop *loop, int tensors, const ls_tensor *const *tensor) {
    const ls_tensor *const first = tensor[0];
    loop->tensors = tensors;
    loop->ndim = 0;
    for (int t = 0; t < tensors; t++) {
        loop->at[t] = tensor[t]->data;
        loop->element[t] = (int64_t)ls_dtype_size(tensor[t]->dtype);
    }
    for (int axis = 0; axis < first->ndim; axis++) {
        int64_t step[LS_LOOP_TENSORS] = {0};
        for (int t = 0; t < tensors; t++) {
            step[t] = step_along(tensor[t], first, axis);
        }
        if (first->size[axis] != 1) {
            axis_insert(loop, first->size[axis], step);
        }
    }
    if (loop->ndim == 0) { /* one element: its steps do not matter, and steps of 1 select the fast path */
        axis_insert(loop, 1, (const int64_t[LS_LOOP_TENSORS]){1, 1, 1, 1});
    }
    axes_merge(loop);
}
