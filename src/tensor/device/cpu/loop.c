#include "tensor/device/cpu/loop.h"

#include <string.h>

#include "tensor/device/cpu/parallel.h"

void ls_loop_walk(const ls_loop *loop, int axes, ls_loop_body body, const void *context) {
    int64_t index[LS_MAX_DIMS] = {0};
    void *at[LS_LOOP_TENSORS];
    memcpy(at, loop->at, sizeof at);
    for (;;) {
        body(loop->size[axes], at, loop->step[axes], context);
        int axis = axes - 1;
        for (; axis >= 0; axis--) {
            const bool more = ++index[axis] < loop->size[axis];
            const int64_t turns = more ? 1 : 1 - loop->size[axis];
            for (int t = 0; t < loop->tensors; t++) {
                at[t] = (char *)at[t] + turns * loop->step[axis][t] * loop->element[t];
            }
            if (more) {
                break;
            }
            index[axis] = 0;
        }
        if (axis < 0) {
            return;
        }
    }
}

/* ---- loops on several threads ------------------------------------------------------------------------------------ */

typedef struct spread_loop {
    const ls_loop *loop;
    int axes;
    ls_loop_body body;
    const void *context;
} spread_loop;

static void walk_piece(int64_t begin, int64_t end, const void *context) {
    const spread_loop *spread = context;
    ls_loop piece = *spread->loop;
    piece.size[0] = end - begin;
    for (int t = 0; t < piece.tensors; t++) {
        piece.at[t] = (char *)piece.at[t] + begin * piece.step[0][t] * piece.element[t];
    }
    ls_loop_walk(&piece, spread->axes, spread->body, spread->context);
}

void ls_loop_spread_walk(const ls_loop *loop, int axes, int64_t block, ls_loop_body body, const void *context) {
    int64_t elements = 1;
    for (int axis = 1; axis < loop->ndim; axis++) {
        elements *= loop->size[axis];
    }
    const spread_loop spread = {.loop = loop, .axes = axes, .body = body, .context = context};
    ls_parallel(loop->size[0], elements, block, walk_piece, &spread);
}

/* ---- dense tensors ----------------------------------------------------------------------------------------------- */

/*
 * Tensors that are single elements, or dense with the same number of elements, need no plan: an operand that broadcasts
 * to a shape with the same number of elements has that shape. Returns false for other tensors; `flat` is then
 * undefined.
 */
static bool lie_flat(ls_loop *flat, int tensors, const ls_tensor *const *tensor) {
    flat->size[0] = tensor[0]->count;
    for (int t = 0; t < tensors; t++) {
        if (tensor[t]->count == flat->size[0] && tensor[t]->contiguous) {
            flat->step[0][t] = 1;
        } else if (tensor[t]->count == 1) {
            flat->step[0][t] = 0;
        } else {
            return false;
        }
        flat->at[t] = tensor[t]->data;
    }
    return true;
}

void ls_loop_run(int tensors, const ls_tensor *const *tensor, ls_loop_body body, const void *context) {
    ls_loop loop;
    if (tensor[0]->count == 0) {
        return;
    }
    if (lie_flat(&loop, tensors, tensor)) {
        body(loop.size[0], loop.at, loop.step[0], context);
        return;
    }
    ls_loop_plan(&loop, tensors, tensor);
    ls_loop_walk(&loop, loop.ndim - 1, body, context);
}

void ls_loop_spread(int tensors, const ls_tensor *const *tensor, ls_loop_body body, const void *context) {
    if (tensor[0]->count < LS_PARALLEL_ELEMENTS) {
        ls_loop_run(tensors, tensor, body, context);
        return;
    }
    ls_loop loop;
    ls_loop_plan(&loop, tensors, tensor);
    const int64_t block = loop.ndim == 1 ? LS_PARALLEL_ELEMENTS / 8 : 1;
    ls_loop_spread_walk(&loop, loop.ndim - 1, block, body, context);
}
