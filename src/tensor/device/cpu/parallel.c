#include "tensor/device/cpu/parallel.h"

#include "tensor/device/cpu/libraries.h"

typedef struct parallel_loop {
    int64_t count, block, blocks;
    int pieces;
    ls_parallel_body *body;
    const void *context;
} parallel_loop;

static void run_piece(int piece, const void *context) {
    const parallel_loop *loop = context;
    const int64_t begin = loop->blocks * piece / loop->pieces * loop->block;
    const int64_t end = loop->blocks * (piece + 1) / loop->pieces * loop->block;
    loop->body(begin, end < loop->count ? end : loop->count, loop->context);
}

void ls_parallel(int64_t count, int64_t elements, int64_t block, ls_parallel_body *body, const void *context) {
    parallel_loop loop = {.count = count, .block = block, .pieces = 1, .body = body, .context = context};
    loop.blocks = (count + block - 1) / block;
    const ls_onednn *onednn = NULL;
    if (loop.blocks > 1 && count >= LS_PARALLEL_ELEMENTS / (elements > 0 ? elements : 1)) {
        onednn = ls_onednn_opened();
        loop.pieces = onednn != NULL ? onednn->team() : 1;
        loop.pieces = loop.blocks < loop.pieces ? (int)loop.blocks : loop.pieces;
    }
    if (loop.pieces > 1) {
        onednn->parallel(loop.pieces, run_piece, &loop);
    } else if (count > 0) {
        body(0, count, context);
    }
}
