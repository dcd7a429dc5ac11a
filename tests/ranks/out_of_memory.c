/*
 * A rank that runs out of memory in a training step gets LS_ERR_MEMORY. All other ranks get LS_ERR_MISMATCH, and the
 * message names this rank. The next step continues with equal parameters. An all-reduce of many tensors and the end of
 * a trace fail, too.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/trace.h>

enum { LARGE = 1 << 20, STEPS = 4, SPANS = 100, SPAN_BYTES = 48 /* at least */, HOST_BYTES = 64 /* of each rank */ };

/* This thread's allocations of at least this size fail. */
static _Thread_local size_t limit = SIZE_MAX;

static void *allocate(size_t size, size_t alignment, void *user) {
    (void)user;
    return size >= limit ? NULL : aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void release(void *memory, void *user) {
    (void)user;
    free(memory);
}

__attribute__((constructor)) static void use_own_memory(void) {
    ls_set_allocator(&(ls_allocator){.allocate = allocate, .release = release});
}

/* The hidden layer needs LARGE * `scale` bytes. */
static ls_status train_step(ls_module *model, ls_optimizer *optimizer, int64_t scale) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(optimizer);
    ls_tensor *x = ls_rand(LS_SHAPE(scale * LARGE / 4 / 64, 4), LS_F32);
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, x))));
    const ls_status stepped = status == LS_OK ? ls_optimizer_step(optimizer) : status;
    const ls_status ended = ls_scope_end(scope);
    return stepped != LS_OK ? stepped : ended;
}

/* Without memory for the first allocation, all ranks fail before they communicate. */
static ls_status reduce_many(ls_comm *world) {
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_F32);
    limit = 0;
    const ls_status status = ls_allreduce_many(world, &x, 1, LS_SUM);
    limit = SIZE_MAX;
    LS_CHECK(status == LS_ERR_MEMORY);
    LS_EXPECT_MESSAGE("ls_reducer_new: out of memory");
    ls_release(x);
    return ls_comm_barrier(world, NULL);
}

/* If a rank has no memory for `bytes` bytes, no rank gets a trace, and the ranks stay in step. */
static ls_status merge_traces(ls_comm *world, int rank, size_t bytes) {
    LS_TRY(ls_trace_start());
    for (int i = 0; i < SPANS; i++) {
        ls_trace_span("span", ls_clock_ns());
    }
    limit = ls_comm_rank(world) == rank ? bytes : SIZE_MAX;
    const ls_status status = ls_trace_stop(world, "/dev/null/trace.json");
    limit = SIZE_MAX;
    LS_CHECK(status == LS_ERR_MEMORY);
    LS_EXPECT_MESSAGE("out of memory");
    return ls_comm_barrier(world, NULL);
}

static ls_tensor *loss_of(const ls_batch *batch, void *model) {
    return ls_mean(ls_square(ls_forward(model, batch->input)));
}

/* Without memory for the sums over slices, a step with .shards fails on all ranks. */
static ls_status add_slices(ls_comm *world) {
    enum { SAMPLES = 4, NUMBERS = 16000 }; /* the numbers of four slices need more bytes */
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_scope *scope = ls_scope_begin();
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    ls_module *model =
        ls_data_parallel(ls_nn_linear(2, 1), part, &(ls_data_parallel_options){.shards = SAMPLES * size});
    const ls_batch batch = {.input = ls_ones(LS_SHAPE(SAMPLES, 2), LS_F32),
                            .first = SAMPLES * rank,
                            .count = SAMPLES,
                            .global_count = SAMPLES * size};
    LS_CHECK(model != NULL && batch.input != NULL);
    limit = rank == size - 1 ? NUMBERS : SIZE_MAX;
    const ls_status status = ls_data_parallel_step(model, &batch, loss_of, model);
    limit = SIZE_MAX;
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_CHECK(status == (rank == size - 1 ? LS_ERR_MEMORY : LS_ERR_PEER));
    LS_EXPECT_MESSAGE("out of memory");
    ls_module_free(model);
    ls_comm_free(part);
    return ls_scope_end(scope);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(reduce_many(world));
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    LS_TRY(merge_traces(world, 0, SPANS * SPAN_BYTES));
    LS_TRY(merge_traces(world, size - 1, (size_t)(size * HOST_BYTES)));
    LS_TRY(add_slices(world));
    ls_module *model =
        ls_data_parallel(ls_sequential(ls_nn_linear(4, 64), ls_nn_tanh(), ls_nn_linear(64, 1)), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    LS_CHECK(model != NULL && optimizer != NULL);
    char name[32];
    snprintf(name, sizeof name, "rank %d failed: ", size - 1);
    for (int step = 0; step < STEPS; step++) {
        const bool fails = step % 2 == 0;
        limit = fails && rank == size - 1 ? LARGE : SIZE_MAX;
        /* A failing step needs more memory than the caches of earlier steps hold. */
        const ls_status status = train_step(model, optimizer, fails ? 1 + 3 * step : 1);
        limit = SIZE_MAX;
        LS_CHECK(status == (!fails ? LS_OK : rank == size - 1 ? LS_ERR_MEMORY : LS_ERR_MISMATCH));
        LS_CHECK(!fails || rank == size - 1 || strstr(ls_error_message(), name) != NULL);
        LS_CHECK(!fails || strstr(ls_error_message(), "out of memory") != NULL);
        LS_TRY(ls_data_parallel_check(model));
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}
