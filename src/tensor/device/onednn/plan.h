/*
 * Plans: a oneDNN primitive with the reorders around it, ready to run. Creating a plan takes milliseconds (oneDNN
 * generates machine code), so a process caches the plans of recent shapes. Ranks may be threads: between ls_plan_take
 * and ls_plan_give, only one thread uses a plan, and there may be several plans with the same key.
 */
#ifndef LS_TENSOR_DEVICE_ONEDNN_PLAN_H
#define LS_TENSOR_DEVICE_ONEDNN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/device/onednn/describe.h"

enum { LS_PLAN_OPERANDS = 4, LS_PLAN_SLOTS = 32, LS_PLAN_KEY = 32 };

/* All properties on which a plan depends. */
typedef struct ls_plan_key {
    int64_t number[LS_PLAN_KEY];
} ls_plan_key;

typedef struct ls_operand {
    int argument; /* DNNL_ARG_SRC and so on */
    bool output;
    dnnl_primitive_t reorder; /* from the caller's layout to the primitive's; NULL if the layouts are equal */
    size_t bytes;             /* size in the primitive's layout */
} ls_operand;

/* The data that one thread needs to run a plan. */
typedef struct ls_plan_slot {
    dnnl_stream_t stream;
    dnnl_memory_t given[LS_PLAN_OPERANDS];
    dnnl_memory_t wanted[LS_PLAN_OPERANDS]; /* `given` itself if there is no reorder */
    dnnl_memory_t scratch;
} ls_plan_slot;

typedef struct ls_plan {
    ls_plan_key key;
    uint64_t used; /* time of the last use; larger values are later */
    bool busy;
    bool refused; /* oneDNN has no such primitive */
    dnnl_primitive_t primitive;
    size_t scratch_bytes;
    int slots; /* number of threads that may run the plan at the same time */
    int operands;
    ls_operand operand[LS_PLAN_OPERANDS];
    ls_plan_slot slot[LS_PLAN_SLOTS];
} ls_plan;

/* An operand for ls_plan_build. */
typedef struct ls_operand_plan {
    int argument;
    dnnl_query_t query; /* the layout that the primitive wants; dnnl_query_undef selects the given layout */
    bool output;
    ls_layout given;
} ls_operand_plan;

/* Completes a new plan from a descriptor. The caller keeps ownership of the descriptor and the layouts. */
dnnl_status_t ls_plan_build(ls_plan *plan, const_dnnl_primitive_desc_t description, int slots,
                            const ls_operand_plan *operands, int count);

/* Creates the plan for a key. Any status except dnnl_success marks the plan as refused. */
typedef dnnl_status_t ls_plan_maker(ls_plan *plan, int slots, const void *context);

/* Returns the plan for a key, or NULL if out of memory. The caller returns the plan with ls_plan_give. */
ls_plan *ls_plan_take(const ls_plan_key *key, int slots, ls_plan_maker *make, const void *context);
void ls_plan_give(ls_plan *plan);

/*
 * Sets the addresses of an operand: `given` in the caller's layout, and, if there is a reorder, `wanted` in the
 * primitive's layout.
 */
dnnl_status_t ls_plan_place(ls_plan *plan, int slot, int operand, void *given, void *wanted);
/* Converts between the two layouts. Does nothing if they are equal. */
dnnl_status_t ls_plan_reorder(ls_plan *plan, int slot, int operand);
dnnl_status_t ls_plan_execute(ls_plan *plan, int slot, void *scratch);

/* oneDNN's engine, and the core's functions (module.c). */
extern dnnl_engine_t ls_onednn_engine;
extern const ls_onednn_core *ls_onednn_host;

/*
 * Implements .team and .set_threads of ls_onednn. oneDNN divides its work by the number of threads. So this number is 1
 * during oneDNN calls whose bits must not depend on the size of the team.
 */
int ls_onednn_team(void);
int ls_onednn_set_threads(int threads);

ls_status ls_onednn_conv(ls_conv_work work, const ls_tensor *large, const ls_tensor *small, const ls_tensor *weight,
                         const ls_tensor *bias, const ls_window *window, bool in_bf16);
ls_status ls_onednn_gemm_bf16(const ls_gemm *gemm);

#endif
