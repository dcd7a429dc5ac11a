/* Options of data-parallel training that several examples have. */
#ifndef LS_EXAMPLES_DATA_PARALLEL_H
#define LS_EXAMPLES_DATA_PARALLEL_H

#include <lockstep/lockstep.h>

#include "arguments.h"

static const char *wire = "f32";
static long bucket_bytes = 0;
static bool no_overlap = false;
static long zero = 0;

#define DATA_PARALLEL_ARGUMENTS                                                                                        \
    {"--wire", ARGUMENT_TEXT, &wire, "format of gradients between ranks: f32, bf16, f16 or powersgd (f32)"},           \
        {"--bucket-bytes", ARGUMENT_COUNT, &bucket_bytes, "bytes of gradients per all-reduce (0: automatic)"},         \
        {"--no-overlap", ARGUMENT_FLAG, &no_overlap, "average gradients after the backward pass"}, {                   \
        "--zero", ARGUMENT_COUNT, &zero,                                                                               \
            "what ranks share (ZeRO): 1 optimizer, 2 also gradients, 3 also parameters (0)"                            \
    }

/* Returns a module that the ranks train together, with these options. Takes ownership of the model. */
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
                                              .overlap = no_overlap         ? LS_OVERLAP_OFF
                                                         : bucket_bytes > 0 ? LS_OVERLAP_ON
                                                                            : LS_OVERLAP_AUTO};
    return ls_data_parallel(model, world, &options);
}

#endif
