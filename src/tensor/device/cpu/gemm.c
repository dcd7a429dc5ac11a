/* Matrix products: selection of the implementation. The limits were measured: see docs/internals/performance.md. */
#include "tensor/device/cpu/gemm.h"

#include "tensor/device/cpu/floating.h"

/*
 * Numbers of multiplications up to which an implementation is faster than the next implementation in ls_cpu_gemm. A
 * library checks its arguments, copies operands and, on its first call, generates code (25 ms).
 */
enum {
    MOST_IN_STRIPS = 131072, /* for our vector code, with B not transposed */
    MOST_IN_DOTS = 4096,     /* for our vector code, with B transposed */
    MOST_IN_PLAIN_LOOPS = 1024
};

/* The numbers of products and columns in a block of multiply_long_row. */
enum { MOST_ADDED = 4096, MOST_COLUMNS = 256 };

/* Returns whether the product reads one matrix once and does little other work, so that a library cannot be faster. */
static bool is_one_pass(const ls_gemm *gemm) {
    return gemm->k == 1 || (gemm->m == 1 && !gemm->transpose_a);
}

/* Returns whether the product takes at most `most` multiplications. */
static bool is_at_most(const ls_gemm *gemm, int most) {
    return (double)gemm->m * (double)gemm->n * (double)gemm->k <= most;
}

static void multiply_in_one_pass(const ls_gemm *gemm) {
    if (!ls_gemm_avx512(gemm) && !ls_gemm_avx2(gemm)) {
        ls_gemm_plain(gemm);
    }
}

/*
 * Computes one row of f32 in blocks of sums. Without blocks, each product would be added to a sum that is larger by a
 * factor of up to k: the relative error of a million products could exceed 1 %.
 */
static void multiply_long_row(const ls_gemm *gemm) {
    const int64_t next_row = gemm->transpose_b ? 1 : gemm->ldb, next_column = gemm->transpose_b ? gemm->ldb : 1;
    float block[MOST_COLUMNS] = {0};
    ls_gemm part = {.m = 1, .lda = gemm->lda, .ldb = gemm->ldb, .transpose_b = gemm->transpose_b, .c = block};
    for (int64_t j = 0; j < gemm->n; j += part.n) {
        part.n = gemm->n - j < MOST_COLUMNS ? gemm->n - j : MOST_COLUMNS;
        for (int64_t p = 0; p < gemm->k; p += part.k) {
            part.k = gemm->k - p < MOST_ADDED ? gemm->k - p : MOST_ADDED;
            part.a = (const float *)gemm->a + p;
            part.b = (const float *)gemm->b + p * next_row + j * next_column;
            multiply_in_one_pass(&part);
            float *sums = (float *)gemm->c + j;
            for (int64_t i = 0; i < part.n; i++) {
                sums[i] = p > 0 || gemm->accumulate ? sums[i] + block[i] : block[i];
            }
        }
    }
    ls_gemm_finish(gemm);
}

/* Computes the products one after another. */
__attribute__((noinline)) static ls_status multiply_batch(const ls_gemm *gemm) {
    const int64_t width = (int64_t)ls_dtype_size(gemm->dtype);
    ls_gemm each = *gemm;
    each.batch = 1;
    for (int64_t i = 0; i < gemm->batch; i++) {
        LS_TRY(ls_cpu_gemm(NULL, &each));
        each.a = (const char *)each.a + gemm->step_a * width;
        each.b = (const char *)each.b + gemm->step_b * width;
        each.c = (char *)each.c + gemm->step_c * width;
    }
    return LS_OK;
}

ls_status ls_cpu_gemm(ls_stream *stream, const ls_gemm *gemm) {
    (void)stream;
    if ((gemm->dtype != LS_F32 && gemm->dtype != LS_F64) || (gemm->dtype == LS_F32 && gemm->compute == LS_F64)) {
        return ls_no_kernel("gemm", gemm->dtype);
    }
    if (gemm->m == 0 || gemm->n == 0) {
        return LS_OK;
    }
    if (gemm->batch > 1) {
        return multiply_batch(gemm);
    }
    if (gemm->rounds_to != LS_F32 && gemm->dtype == LS_F32) {
        return ls_gemm_rounded(gemm, ls_cpu_gemm);
    }
    if (gemm->dtype == LS_F32 && gemm->m == 1 && !gemm->transpose_a && gemm->k > MOST_ADDED) {
        multiply_long_row(gemm);
        return LS_OK;
    }
    const bool one_pass = is_one_pass(gemm);
    if (gemm->dtype == LS_F32 && (one_pass || is_at_most(gemm, gemm->transpose_b ? MOST_IN_DOTS : MOST_IN_STRIPS)) &&
        (ls_gemm_avx512(gemm) || ls_gemm_avx2(gemm))) {
        return LS_OK;
    }
    if (one_pass || is_at_most(gemm, MOST_IN_PLAIN_LOOPS)) {
        ls_gemm_plain(gemm);
        return LS_OK;
    }
    return ls_gemm_library(gemm);
}
