/*
 * Plans: a primitive of oneDNN with the reorders around it, ready to be run. Making one takes milliseconds (oneDNN
 * writes machine code), so a process keeps those of the last shapes. Ranks may be threads: a plan is one thread's from
 * ls_plan_take to ls_plan_give, and there may be several plans for the same.
 */
#ifndef LS_TENSOR_DEVICE_ONEDNN_PLAN_H
#define LS_TENSOR_DEVICE_ONEDNN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/device/onednn/describe.h"

enum { LS_PLAN_OPERANDS = 4, LS_PLAN_SLOTS = 32, LS_PLAN_KEY = 32 };

/* All that a plan depends on. */
typedef struct ls_plan_key {
    int64_t number[LS_PLAN_KEY];
} ls_plan_key;

typedef struct ls_operand {
    int argument; /* DNNL_ARG_SRC and so on */
    bool output;
    dnnl_primitive_t reorder; /* between what the caller has and what the primitive wants; NULL: they are the same */
    size_t bytes;             /* of what the primitive wants */
} ls_operand;

/* What one thread runs a plan with. */
typedef struct ls_plan_slot {
    dnnl_stream_t stream;
    dnnl_memory_t given[LS_PLAN_OPERANDS];
    dnnl_memory_t wanted[LS_PLAN_OPERANDS]; /* `given` itself where there is no reorder */
    dnnl_memory_t scratch;
} ls_plan_slot;

typedef struct ls_plan {
    ls_plan_key key;
    uint64_t used; /* when: larger is later */
    bool busy;
    bool refused; /* oneDNN has no such primitive */
    dnnl_primitive_t primitive;
    size_t scratch_bytes;
    int slots; /* so many threads may run it at once */
    int operands;
    ls_operand operand[LS_PLAN_OPERANDS];
    ls_plan_slot slot[LS_PLAN_SLOTS];
} ls_plan;

/* An operand for ls_plan_build. */
typedef struct ls_operand_plan {
    int argument;
    dnnl_query_t query; /* the layout that the primitive wants; dnnl_query_undef: as it is given */
    bool output;
    ls_layout given;
} ls_operand_plan;

/* Completes a new plan from a descriptor; the caller keeps that and the layouts. */
dnnl_status_t ls_plan_build(ls_plan *plan, const_dnnl_primitive_desc_t description, int slots,
                            const ls_operand_plan *operands, int count);

/* Fills a new plan with the key's; anything but dnnl_success makes it a refused one. */
typedef dnnl_status_t ls_plan_maker(ls_plan *plan, int slots, const void *context);

/* The plan for a key, to be given back; NULL when there is no memory. */
ls_plan *ls_plan_take(const ls_plan_key *key, int slots, ls_plan_maker *make, const void *context);
void ls_plan_give(ls_plan *plan);

/* Where an operand's numbers are: as the caller has them, and (if there is a reorder) room as the primitive wants them.
 */
dnnl_status_t ls_plan_place(ls_plan *plan, int slot, int operand, void *given, void *wanted);
/* Makes one from the other; nothing where they are the same. */
dnnl_status_t ls_plan_reorder(ls_plan *plan, int slot, int operand);
dnnl_status_t ls_plan_execute(ls_plan *plan, int slot, void *scratch);

/* oneDNN's engine, and the core's functions (module.c). */
extern dnnl_engine_t ls_onednn_engine;
extern const ls_onednn_core *ls_onednn_host;

/* The most threads that oneDNN may use. */
int ls_onednn_threads(void);

/*
 * Between these two the calling thread gives oneDNN one thread: how it divides its work, and so the bits, do not depend
 * on how many there are. `begin` returns how many threads the caller may use instead, and `end` takes it.
 */
int ls_onednn_single_begin(void);
void ls_onednn_single_end(int threads);

ls_status ls_onednn_conv(ls_conv_work work, const ls_tensor *large, const ls_tensor *small, const ls_tensor *weight,
                         const ls_tensor *bias, const ls_window *window, bool in_bf16);
ls_status ls_onednn_gemm_bf16(const ls_gemm *gemm);

#endif
