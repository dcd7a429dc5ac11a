/* Options of data-parallel training and a report of the parameters, shared by several examples. */
#ifndef LS_EXAMPLES_DATA_PARALLEL_H
#define LS_EXAMPLES_DATA_PARALLEL_H

#include <inttypes.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static const char *wire = "f32";
static long bucket_bytes = 0;
static bool no_overlap = false;
static long zero = 0;
static long shards = 0;
static long global_batch_size = 0;
static bool recompute;

#define SHARD_ARGUMENTS                                                                                                \
    {"--global-batch-size", ARGUMENT_SIZE, &global_batch_size,                                                         \
     "samples per step over all ranks, instead of --batch-size"},                                                      \
    {                                                                                                                  \
        "--shards", ARGUMENT_SIZE, &shards,                                                                            \
            "same bits on 1 to N ranks: N slices of each batch; --batch-size is per slice (off)"                       \
    }

#define DATA_PARALLEL_ARGUMENTS                                                                                        \
    {"--wire", ARGUMENT_TEXT, &wire, "format of gradients between ranks: f32, bf16, f16 or powersgd (f32)"},           \
        {"--bucket-bytes", ARGUMENT_COUNT, &bucket_bytes, "bytes of gradients per all-reduce (0: automatic)"},         \
        {"--no-overlap", ARGUMENT_FLAG, &no_overlap, "average gradients after the backward pass"},                     \
        {"--zero", ARGUMENT_COUNT, &zero,                                                                              \
         "ZeRO stage: 1 shards the optimizer state, 2 also gradients, 3 also parameters (0)"},                         \
        SHARD_ARGUMENTS

#define RECOMPUTE_ARGUMENT                                                                                             \
    { "--recompute", ARGUMENT_FLAG, &recompute, "recompute each part in the backward pass, to save memory" }

/*
 * Recomputes the parts of a model, such as layers and blocks. Batch normalization cannot be recomputed, because it has
 * buffers and computes over the samples of all ranks. In a block that contains it, only the other parts are recomputed.
 */
static inline ls_status recompute_parts(ls_module *module) {
    const bool divides = strcmp(ls_module_type_name(module), "Sequential") == 0 || ls_module_buffer_count(module) > 0;
    if (!divides && ls_module_parameter_count(module) > 0) {
        return ls_recompute(module, true);
    }
    ls_status status = LS_OK;
    for (int i = 0; i < ls_module_child_count(module) && status == LS_OK; i++) {
        status = recompute_parts(ls_module_child(module, i));
    }
    return status;
}

/* Returns the model, with recomputed parts if --recompute is set, or NULL on failure. Takes ownership of the model. */
static inline ls_module *make_recomputed(ls_module *model) {
    if (model != NULL && recompute && recompute_parts(model) != LS_OK) {
        ls_module_free(model);
        return NULL;
    }
    return model;
}

/* Wraps the model for data-parallel training with these options. Takes ownership of the model. */
static inline ls_module *make_data_parallel(ls_module *model, ls_comm *world) {
    static const ls_dtype formats[] = {LS_F32, LS_BF16, LS_F16};
    const bool powersgd = strcmp(wire, "powersgd") == 0;
    int i = 0;
    while (i < 3 && !powersgd && strcmp(wire, ls_dtype_name(formats[i])) != 0) {
        i++;
    }
    if (i == 3) {
        ls_module_free(model);
        (void)ls_error_set(LS_ERR_ARGUMENT, "--wire: unknown format \"%s\"; available: f32, bf16, f16, powersgd", wire);
        return NULL;
    }
    const ls_data_parallel_options options = {.reduce_dtype = formats[i],
                                              .powersgd_rank = powersgd ? 4 : 0,
                                              .bucket_bytes = (size_t)bucket_bytes,
                                              .zero = (int)zero,
                                              .shards = (int)shards,
                                              .overlap = no_overlap         ? LS_OVERLAP_OFF
                                                         : bucket_bytes > 0 ? LS_OVERLAP_ON
                                                                            : LS_OVERLAP_AUTO};
    return ls_data_parallel(make_recomputed(model), world, &options);
}

/*
 * Returns options for a loader that all ranks share: `global` samples per step or, if `global` is 0, `own` samples for
 * each rank or, with --shards, for each shard.
 */
static inline ls_loader_options loader_options(ls_comm *world, long own, long global) {
    global = global > 0 ? global : own * shards;
    return (ls_loader_options){
        .batch_size = global > 0 ? 0 : own, .global_batch_size = global, .comm = world, .shards = (int)shards};
}

/* Prints the hash of this rank's parameters, and waits for the other ranks, so that later lines of rank 0 come last. */
static inline ls_status report_parameters(ls_comm *world, const ls_module *model) {
    printf("rank %d parameters %016" PRIx64 "\n", ls_comm_rank(world), ls_module_hash(model));
    fflush(stdout);
    return ls_comm_barrier(world, NULL);
}

#endif
