/*
 * f32 products that are computed in bf16. Reorders round the operands and keep B's layout, because the product itself
 * changes the layout faster than the reorders could (docs/internals/notes/matmul.md). A transposed A is reordered to
 * row-major.
 */
#include "tensor/device/onednn/plan.h"

enum { A, B, C, MATRICES };
enum { ALIGNMENT = 64, KIND = -1 }; /* the key of a convolution never begins with this number */

typedef struct matmul_task {
    const ls_gemm *gemm;
    int threads; /* oneDNN may divide the work according to the number of threads */
} matmul_task;

static ls_plan_key key_of(const matmul_task *task) {
    const ls_gemm *g = task->gemm;
    return (ls_plan_key){
        {KIND, g->m, g->n, g->k, g->lda, g->ldb, g->ldc, g->transpose_a, g->transpose_b, g->accumulate, task->threads}};
}

static ls_layout given_layout(int64_t rows, int64_t columns, int64_t step, bool transposed) {
    const dnnl_dim_t size[] = {rows, columns};
    const dnnl_dim_t steps[] = {transposed ? 1 : step, transposed ? step : 1};
    return ls_layout_strided(2, size, dnnl_f32, steps);
}

static dnnl_status_t describe(const ls_gemm *g, const ls_layout layouts[MATRICES + 2], dnnl_primitive_desc_t *made) {
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attributes);
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    }
    if (status == dnnl_success) {
        status = ls_describe_matmul(made, ls_onednn_engine, layouts[MATRICES + A], layouts[MATRICES + B], layouts[C],
                                    g->accumulate, attributes);
    }
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    return status;
}

static dnnl_status_t make_plan(ls_plan *plan, int slots, const void *context) {
    const ls_gemm *g = ((const matmul_task *)context)->gemm;
    const dnnl_dim_t a_size[] = {g->m, g->k}, b_size[] = {g->k, g->n};
    const ls_layout layouts[MATRICES + 2] = {
        given_layout(g->m, g->k, g->lda, g->transpose_a), given_layout(g->k, g->n, g->ldb, g->transpose_b),
        given_layout(g->m, g->n, g->ldc, false), ls_layout_new(2, a_size, dnnl_bf16, dnnl_ab),
        ls_layout_new(2, b_size, dnnl_bf16, g->transpose_b ? dnnl_ba : dnnl_ab)};
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < MATRICES + 2; i++) {
        status = layouts[i] != NULL ? status : dnnl_out_of_memory;
    }
    dnnl_primitive_desc_t description = NULL;
    if (status == dnnl_success) {
        status = describe(g, layouts, &description);
    }
    if (status == dnnl_success) {
        const ls_operand_plan operands[MATRICES] = {{DNNL_ARG_SRC, dnnl_query_src_md, false, layouts[A]},
                                                    {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, false, layouts[B]},
                                                    {DNNL_ARG_DST, dnnl_query_undef, true, layouts[C]}};
        status = ls_plan_build(plan, description, slots, operands, MATRICES);
        (void)dnnl_primitive_desc_destroy(description);
    }
    for (int i = 0; i < MATRICES + 2; i++) {
        ls_layout_free(layouts[i]);
    }
    return status;
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static dnnl_status_t run(ls_plan *plan, const ls_gemm *g, char *room) {
    void *const given[MATRICES] = {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b, g->c};
    dnnl_status_t status = dnnl_success;
    for (int i = A; i <= C && status == dnnl_success; i++) {
        status = ls_plan_place(plan, 0, i, given[i], room);
        room += i < C ? aligned(plan->operand[i].bytes) : 0;
        if (status == dnnl_success && i < C) {
            status = ls_plan_reorder(plan, 0, i);
        }
    }
    return status == dnnl_success ? ls_plan_execute(plan, 0, room) : status;
}

static ls_status multiply(const ls_gemm *gemm, int team) {
    const matmul_task task = {.gemm = gemm, .threads = team};
    const ls_plan_key key = key_of(&task);
    ls_plan *plan = ls_plan_take(&key, 1, make_plan, &task);
    if (plan == NULL) {
        return ls_onednn_host->fail_memory("matrix product", sizeof *plan);
    }
    ls_status status = LS_ERR_UNSUPPORTED;
    if (!plan->refused) {
        const size_t bytes =
            aligned(plan->operand[A].bytes) + aligned(plan->operand[B].bytes) + aligned(plan->scratch_bytes);
        char *room = ls_onednn_host->allocate(bytes);
        status = room != NULL && run(plan, gemm, room) == dnnl_success
                     ? LS_OK
                     : ls_onednn_host->fail_memory("matrix product", bytes);
        if (room != NULL) {
            ls_onednn_host->release(room, bytes);
        }
    }
    ls_plan_give(plan);
    return status;
}

ls_status ls_onednn_gemm_bf16(const ls_gemm *gemm) {
    const int team = ls_onednn_team(), before = ls_onednn_set_threads(team);
    const ls_status status = multiply(gemm, team);
    (void)ls_onednn_set_threads(before);
    return status;
}
