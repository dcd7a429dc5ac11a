/*
 * The bytes that data-parallel training passes to collective calls in a step: the bytes of the gradients, and few
 * additional bytes. With bf16 or f16, half as many.
 *
 * ranks: 2 3
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/parallel.h>

#include "comm/meter.h"

enum { WIDTH = 256, ROWS = 4, SEED = 5, STEPS = 2, BUCKET = 1 << 16 };

static ls_status run_step(ls_module *model) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, ls_ones(LS_SHAPE(ROWS, WIDTH), LS_F32)))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Sets *bytes to the bytes of a step with gradients of this dtype on the wire. */
static ls_status bytes_of_step(ls_comm *world, ls_overlap_mode overlap, ls_dtype dtype, int64_t *bytes) {
    ls_seed(SEED);
    ls_module *model = ls_data_parallel(
        ls_sequential(ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, WIDTH)), world,
        &(ls_data_parallel_options){
            .reduce_dtype = dtype, .overlap = overlap, .bucket_bytes = overlap == LS_OVERLAP_ON ? BUCKET : 0});
    LS_CHECK(model != NULL);
    LS_TRY(run_step(model)); /* the first step also compares the ranks */
    const uint64_t before = ls_comm_metered.bytes;
    for (int step = 0; step < STEPS; step++) {
        LS_TRY(run_step(model));
    }
    *bytes = (int64_t)(ls_comm_metered.bytes - before) / STEPS;
    ls_module_free(model);
    return LS_OK;
}

static ls_status check(ls_comm *world, ls_overlap_mode overlap) {
    const int64_t gradients = (int64_t)sizeof(float) * 2 * (WIDTH * WIDTH + WIDTH);
    int64_t f32 = 0, bf16 = 0, f16 = 0;
    LS_TRY(bytes_of_step(world, overlap, LS_F32, &f32));
    LS_TRY(bytes_of_step(world, overlap, LS_BF16, &bf16));
    LS_TRY(bytes_of_step(world, overlap, LS_F16, &f16));
    LS_CHECK(f32 >= gradients && (double)f32 <= 1.03 * (double)gradients);
    LS_CHECK((double)bf16 >= 0.5 * (double)gradients && (double)bf16 <= 0.505 * (double)f32);
    LS_CHECK(f16 == bf16);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(check(world, LS_OVERLAP_OFF));
    return check(world, LS_OVERLAP_ON);
}
