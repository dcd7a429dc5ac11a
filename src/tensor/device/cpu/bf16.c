/*
 * Products of f32 whose operands count as rounded to bf16. Where the processor multiplies matrices of bf16 (Intel's
 * AMX), oneDNN makes the larger ones; else they are those of f32 with rounded copies, which have the same values: the
 * product of two numbers of bf16 is exact in f32. Instructions for vectors of bf16 (AVX-512) are no gain: oneDNN's
 * product by them takes longer than its product of f32 (docs/notes/matmul.md).
 */
#include "base/clones.h"
#include "base/float16.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/device/cpu/libraries.h"
#include "tensor/scope.h"

/* Below, f32 is as fast. */
enum { FEWEST_MULTIPLICATIONS = 1 << 20 };

bool ls_bf16_pays(void) {
    const ls_onednn *onednn = ls_onednn_open();
    return onednn != NULL && onednn->has_fast_bf16;
}

/* Rounds to the nearest, ties to even; what is not a number stays that. */
LS_CLONES static void round_row(int64_t count, const float *restrict from, float *restrict to) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = ls_bits_of_float(from[i]);
        const uint32_t rounded = bits + 0x7fffU + (bits >> 16 & 1U);
        const uint32_t kept = (bits & 0x7fffffffU) > 0x7f800000U ? bits | 0x400000U : rounded;
        to[i] = ls_float_of_bits(kept & 0xffff0000U);
    }
}

ls_status ls_rounded_begin(const ls_tensor *x, ls_tensor *rounded) {
    const size_t bytes = (size_t)x->count * sizeof(float);
    *rounded = *x;
    rounded->data = ls_record_allocate(bytes);
    if (rounded->data == NULL) {
        return ls_fail_memory("rounding to bf16", bytes);
    }
    round_row(x->count, x->data, rounded->data);
    return LS_OK;
}

void ls_rounded_end(const ls_tensor *rounded) {
    if (rounded->data != NULL) {
        ls_record_release(rounded->data, (size_t)rounded->count * sizeof(float));
    }
}

static void round_rows(int64_t rows, int64_t columns, const float *from, int64_t step, float *to) {
    for (int64_t i = 0; i < rows; i++) {
        round_row(columns, from + i * step, to + i * columns);
    }
}

static ls_status rounded_product(const ls_gemm *gemm) {
    const int64_t a_rows = gemm->transpose_a ? gemm->k : gemm->m, a_columns = gemm->transpose_a ? gemm->m : gemm->k;
    const int64_t b_rows = gemm->transpose_b ? gemm->n : gemm->k, b_columns = gemm->transpose_b ? gemm->k : gemm->n;
    const size_t bytes = (size_t)(a_rows * a_columns + b_rows * b_columns) * sizeof(float);
    float *room = ls_record_allocate(bytes + sizeof(float));
    if (room == NULL) {
        return ls_fail_memory("matrix product", bytes);
    }
    ls_gemm rounded = *gemm;
    rounded.in_bf16 = false;
    rounded.a = room;
    rounded.lda = a_columns > 0 ? a_columns : 1;
    rounded.b = room + a_rows * a_columns;
    rounded.ldb = b_columns > 0 ? b_columns : 1;
    round_rows(a_rows, a_columns, gemm->a, gemm->lda, room);
    round_rows(b_rows, b_columns, gemm->b, gemm->ldb, room + a_rows * a_columns);
    const ls_status status = ls_cpu_gemm(NULL, &rounded);
    ls_record_release(room, bytes + sizeof(float));
    return status;
}

ls_status ls_gemm_bf16(const ls_gemm *gemm) {
    const double multiplications = (double)gemm->m * (double)gemm->n * (double)gemm->k;
    if (multiplications < FEWEST_MULTIPLICATIONS || !ls_bf16_pays()) {
        return rounded_product(gemm);
    }
    const ls_status status = ls_onednn_open()->gemm_bf16(gemm);
    if (status == LS_ERR_UNSUPPORTED) {
        return rounded_product(gemm);
    }
    LS_TRY(status);
    ls_gemm_finish(gemm);
    return LS_OK;
}
