/*
 * f32 products of operands that are rounded to bf16 or f16. If the processor computes fast in bf16 (Intel's AMX, AMD's
 * vectors), oneDNN computes the larger products. Otherwise, they are f32 products of rounded copies, which have the
 * same values: the product of two 16-bit floats is exact in f32. Intel's bf16 vectors do not help: oneDNN's bf16
 * product is slower than its f32 product (docs/internals/notes/matmul.md).
 */
#include "base/clones.h"
#include "base/float16.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/device/cpu/libraries.h"
#include "tensor/scope.h"

/* Below this limit, f32 is equally fast. */
enum { FEWEST_MULTIPLICATIONS = 1 << 20 };

bool ls_rounding_pays(ls_dtype rounds_to) {
    const ls_onednn *onednn = rounds_to == LS_BF16 ? ls_onednn_open() : NULL;
    return onednn != NULL && onednn->has_fast_bf16;
}

/* Rounds to nearest, ties to even. NaN stays NaN. */
LS_CLONES static void round_row_to_bf16(int64_t count, const float *restrict from, float *restrict to) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = ls_bits_of_float(from[i]);
        const uint32_t rounded = bits + 0x7fffU + (bits >> 16 & 1U);
        const uint32_t kept = (bits & 0x7fffffffU) > 0x7f800000U ? bits | 0x400000U : rounded;
        to[i] = ls_float_of_bits(kept & 0xffff0000U);
    }
}

/* Like ls_f16_from_float, without branches. */
LS_CLONES static void round_row_to_f16(int64_t count, const float *restrict from, float *restrict to) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = ls_bits_of_float(from[i]);
        const uint32_t magnitude = bits & 0x7fffffffU;
        const uint32_t rounded = (magnitude + 0xfffU + (magnitude >> 13 & 1U)) & 0xffffe000U;
        /* Below 2^-14, f16 numbers are multiples of 2^-24, like f32 numbers from 0.5 to 1. */
        const uint32_t small = ls_bits_of_float(ls_float_of_bits(magnitude) + 0.5F - 0.5F);
        const uint32_t finite = magnitude < 0x38800000U ? small : rounded;
        const uint32_t large =
            magnitude > 0x7f800000U ? 0x7fc00000U : 0x7f800000U; /* values of 65520 and above become infinite */
        to[i] = ls_float_of_bits((bits & 0x80000000U) | (magnitude >= 0x477ff000U ? large : finite));
    }
}

static void round_row(ls_dtype rounds_to, int64_t count, const float *from, float *to) {
    (rounds_to == LS_BF16 ? round_row_to_bf16 : round_row_to_f16)(count, from, to);
}

ls_status ls_rounded_begin(const ls_tensor *x, ls_dtype rounds_to, ls_tensor *rounded) {
    const size_t bytes = (size_t)x->count * sizeof(float);
    *rounded = *x;
    rounded->data = ls_record_allocate(bytes);
    if (rounded->data == NULL) {
        return ls_fail_memory("rounding to halves", bytes);
    }
    round_row(rounds_to, x->count, x->data, rounded->data);
    return LS_OK;
}

void ls_rounded_end(const ls_tensor *rounded) {
    if (rounded->data != NULL) {
        ls_record_release(rounded->data, (size_t)rounded->count * sizeof(float));
    }
}

static void round_rows(ls_dtype rounds_to, int64_t rows, int64_t columns, const float *from, int64_t step, float *to) {
    for (int64_t i = 0; i < rows; i++) {
        round_row(rounds_to, columns, from + i * step, to + i * columns);
    }
}

static ls_status rounded_product(const ls_gemm *gemm, ls_gemm_kernel *multiply) {
    const int64_t a_rows = gemm->transpose_a ? gemm->k : gemm->m, a_columns = gemm->transpose_a ? gemm->m : gemm->k;
    const int64_t b_rows = gemm->transpose_b ? gemm->n : gemm->k, b_columns = gemm->transpose_b ? gemm->k : gemm->n;
    const size_t bytes = (size_t)(a_rows * a_columns + b_rows * b_columns) * sizeof(float);
    float *room = ls_record_allocate(bytes + sizeof(float));
    if (room == NULL) {
        return ls_fail_memory("matrix product", bytes);
    }
    ls_gemm rounded = *gemm;
    rounded.rounds_to = LS_F32;
    rounded.a = room;
    rounded.lda = a_columns > 0 ? a_columns : 1;
    rounded.b = room + a_rows * a_columns;
    rounded.ldb = b_columns > 0 ? b_columns : 1;
    round_rows(gemm->rounds_to, a_rows, a_columns, gemm->a, gemm->lda, room);
    round_rows(gemm->rounds_to, b_rows, b_columns, gemm->b, gemm->ldb, room + a_rows * a_columns);
    const ls_status status = multiply(NULL, &rounded);
    ls_record_release(room, bytes + sizeof(float));
    return status;
}

ls_status ls_gemm_rounded(const ls_gemm *gemm, ls_gemm_kernel *multiply) {
    const double multiplications = (double)gemm->m * (double)gemm->n * (double)gemm->k;
    if (multiplications < FEWEST_MULTIPLICATIONS || !ls_rounding_pays(gemm->rounds_to)) {
        return rounded_product(gemm, multiply);
    }
    const ls_status status = ls_onednn_open()->gemm_bf16(gemm);
    if (status == LS_ERR_UNSUPPORTED) {
        return rounded_product(gemm, multiply);
    }
    LS_TRY(status);
    ls_gemm_finish(gemm);
    return LS_OK;
}
