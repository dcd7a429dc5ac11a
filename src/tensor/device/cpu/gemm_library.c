/*
 * Large matrix products: oneDNN for f32, OpenBLAS for f64. oneDNN is fastest if it can read both operands in place. It
 * copies transposed operands; for a layer, these are mainly the weights (B transposed). If a smaller matrix can be
 * transposed instead, this file transposes it. Rows at a distance of a large power of two share few sets of the L1
 * cache, so in matrices created here the distance of rows is an odd number of cache lines.
 */
#include <string.h>

#include "base/threads.h"
#include "tensor/device/cpu/cpu.h"
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/device/cpu/libraries.h"
#include "tensor/scope.h"

/* Four numbers of a row, with any alignment. */
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

static inline void transpose_four(const float *from, int64_t from_step, float *to, int64_t to_step) {
    const four a = *(const four *)from;
    const four b = *(const four *)(from + from_step);
    const four c = *(const four *)(from + 2 * from_step);
    const four d = *(const four *)(from + 3 * from_step);
    const four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four *)to = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(four *)(to + to_step) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(four *)(to + 2 * to_step) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(four *)(to + 3 * to_step) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/*
 * Computes to[j][i] = from[i][j]. Reads a block of sixteen columns to its end before the next block: each cache line of
 * `from` is read completely, and the sixteen written rows of `to` stay in the L1 cache. If the distance between these
 * rows is a multiple of the page size, only eight rows fit.
 */
static void transpose(int64_t rows, int64_t columns, const float *from, int64_t from_step, float *to, int64_t to_step) {
    const int64_t even_rows = rows - rows % 4;
    const int64_t even_columns = columns - columns % 4;
    const int64_t width = to_step % 1024 == 0 ? 8 : 16;
    for (int64_t block = 0; block < even_columns; block += width) {
        const int64_t end = block + width < even_columns ? block + width : even_columns;
        for (int64_t i = 0; i < even_rows; i += 4) {
            for (int64_t j = block; j < end; j += 4) {
                transpose_four(from + i * from_step + j, from_step, to + j * to_step + i, to_step);
            }
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = i < even_rows ? even_columns : 0; j < columns; j++) {
            to[j * to_step + i] = from[i * from_step + j];
        }
    }
}

/* Calls OpenBLAS with its current number of threads. */
static ls_status openblas_multiply(const ls_gemm *gemm) {
    const ls_openblas *openblas = ls_openblas_open();
    const CBLAS_TRANSPOSE a = gemm->transpose_a ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE b = gemm->transpose_b ? CblasTrans : CblasNoTrans;
    const blasint m = (blasint)gemm->m, n = (blasint)gemm->n, k = (blasint)gemm->k;
    const blasint lda = (blasint)gemm->lda, ldb = (blasint)gemm->ldb, ldc = (blasint)gemm->ldc;
    if (gemm->dtype == LS_F64) {
        openblas->dgemm(CblasRowMajor, a, b, m, n, k, 1.0, gemm->a, lda, gemm->b, ldb, gemm->accumulate ? 1.0 : 0.0,
                        gemm->c, ldc);
    } else {
        openblas->sgemm(CblasRowMajor, a, b, m, n, k, 1.0F, gemm->a, lda, gemm->b, ldb, gemm->accumulate ? 1.0F : 0.0F,
                        gemm->c, ldc);
    }
    return LS_OK;
}

/*
 * Computes the product in parts on the threads of plug-in onednn. Without this plug-in, OpenBLAS uses its own threads,
 * and the bits depend on their number.
 */
static ls_status openblas_product(const ls_gemm *gemm) {
    if (ls_openblas_open() == NULL) {
        return ls_error_status();
    }
    const ls_onednn *onednn = ls_onednn_open();
    const int before = ls_openblas_limit_begin(onednn != NULL ? 1 : ls_threads_limit());
    const ls_status status =
        onednn != NULL ? ls_product_divided(gemm, onednn, openblas_multiply) : openblas_multiply(gemm);
    ls_openblas_limit_end(before);
    return status;
}

/* Calls oneDNN, or OpenBLAS if oneDNN is missing. */
static ls_status f32_product(const ls_gemm *gemm) {
    const ls_onednn *onednn = ls_onednn_open();
    const ls_status status = onednn != NULL ? ls_product_divided(gemm, onednn, onednn->gemm) : LS_ERR_UNSUPPORTED;
    return status == LS_ERR_UNSUPPORTED ? openblas_product(gemm) : status;
}

/* Returns the row stride of a matrix created here: an odd number of cache lines. */
static int64_t step_of(int64_t columns) {
    return ((columns + 15) / 16 | 1) * 16;
}

/* The number of rows whose bias and activation are applied while the rows are in the L1 cache. */
enum { FINISHED_AT_ONCE = 16 };

/* Computes some rows of C from columns of its transpose. Adds the previous values if the product accumulates. */
static void rows_from_columns(const ls_gemm *rows, const float *columns, int64_t step, float *added) {
    if (!rows->accumulate) {
        transpose(rows->n, rows->m, columns, step, rows->c, rows->ldc);
        ls_gemm_finish(rows);
        return;
    }
    transpose(rows->n, rows->m, columns, step, added, rows->n);
    for (int64_t i = 0; i < rows->m; i++) {
        float *restrict to = (float *)rows->c + i * rows->ldc;
        for (int64_t j = 0; j < rows->n; j++) {
            to[j] += added[i * rows->n + j];
        }
    }
}

/*
 * Computes the transpose of C as op(B)^T op(A)^T, with both operands read in place, and then C. One of A and B is
 * already transposed; this function transposes the other.
 */
static ls_status turned_result(const ls_gemm *gemm) {
    const bool turns_b = gemm->transpose_a;
    const int64_t step = step_of(gemm->m), operand_step = turns_b ? step_of(gemm->k) : step;
    const int64_t operand_size = (turns_b ? gemm->n : gemm->k) * operand_step;
    const int64_t added_size = gemm->accumulate ? FINISHED_AT_ONCE * gemm->n : 0;
    const size_t bytes = (size_t)(operand_size + gemm->n * step + added_size) * sizeof(float);
    float *operand = ls_record_allocate(bytes);
    if (operand == NULL) {
        return ls_fail_memory("matrix product", bytes);
    }
    float *result = operand + operand_size;
    ls_gemm transposed = {.m = gemm->n, .n = gemm->m, .k = gemm->k, .c = result, .ldc = step};
    if (turns_b) {
        transpose(gemm->k, gemm->n, gemm->b, gemm->ldb, operand, operand_step);
        transposed.a = operand, transposed.lda = operand_step;
        transposed.b = gemm->a, transposed.ldb = gemm->lda;
    } else {
        transpose(gemm->m, gemm->k, gemm->a, gemm->lda, operand, operand_step);
        transposed.a = gemm->b, transposed.lda = gemm->ldb;
        transposed.b = operand, transposed.ldb = operand_step;
    }
    const ls_status status = f32_product(&transposed);
    for (int64_t i = 0; status == LS_OK && i < gemm->m; i += FINISHED_AT_ONCE) {
        ls_gemm rows = *gemm;
        rows.m = gemm->m - i < FINISHED_AT_ONCE ? gemm->m - i : FINISHED_AT_ONCE;
        rows.c = (float *)gemm->c + i * gemm->ldc;
        rows_from_columns(&rows, result + i, step, result + gemm->n * step);
    }
    ls_record_release(operand, bytes);
    return status;
}

/* Transposes A, copies B with a larger row stride, or both, and then computes the product with oneDNN. */
static ls_status moved_operands(const ls_gemm *gemm, bool transpose_a, bool spread_b) {
    const int64_t a_step = transpose_a ? step_of(gemm->k) : 0;
    const int64_t b_step = spread_b ? step_of(gemm->n) : 0;
    const size_t bytes = (size_t)(gemm->m * a_step + gemm->k * b_step) * sizeof(float);
    float *scratch = ls_record_allocate(bytes);
    if (scratch == NULL) {
        return ls_fail_memory("matrix product", bytes);
    }
    ls_gemm moved = *gemm;
    if (transpose_a) {
        transpose(gemm->k, gemm->m, gemm->a, gemm->lda, scratch, a_step);
        moved.a = scratch;
        moved.lda = a_step;
        moved.transpose_a = false;
    }
    if (spread_b) {
        float *b = scratch + gemm->m * a_step;
        for (int64_t i = 0; i < gemm->k; i++) {
            memcpy(b + i * b_step, (const float *)gemm->b + i * gemm->ldb, (size_t)gemm->n * sizeof(float));
        }
        moved.b = b;
        moved.ldb = b_step;
    }
    const ls_status status = f32_product(&moved);
    ls_record_release(scratch, bytes);
    return status;
}

/*
 * oneDNN's AVX2 code reads B in place, and is a third slower if the distance of the rows is a multiple of 2 KiB. Its
 * AVX-512 code is not slower.
 */
static bool is_slow_to_read(int64_t step) {
#if defined(__x86_64__)
    return step % 512 == 0 && !__builtin_cpu_supports("avx512f");
#else
    (void)step;
    return false;
#endif
}

/*
 * Decides whether transposing pays off. The result: if the matrix that is transposed for it is smaller than the copy
 * that oneDNN would make (B), or smaller than A, which would otherwise be transposed. An operand: if A is a large
 * enough part of the work. Measured with 16 to 1024 rows and layers of 10 to 1024.
 */
static bool is_result_worth_transposing(const ls_gemm *gemm) {
    if (gemm->transpose_a && !gemm->transpose_b) {
        return gemm->k >= 16 && gemm->n >= 128 && !is_slow_to_read(gemm->lda) &&
               (double)gemm->m * (double)gemm->k >= 1.5 * (double)gemm->n * (double)(gemm->k + gemm->m);
    }
    return !gemm->transpose_a && gemm->transpose_b && !gemm->accumulate && gemm->m >= 16 &&
           (double)gemm->n * (double)gemm->k >= (double)gemm->m * (double)(gemm->n + gemm->k);
}

static bool is_operand_worth_transposing(const ls_gemm *gemm) {
    return gemm->transpose_a && !gemm->transpose_b && gemm->k >= 16 && gemm->m >= 32 && gemm->n >= 128;
}

/* With few rows of A, a copy of B does not pay off. */
static bool is_operand_worth_spreading(const ls_gemm *gemm) {
    return !gemm->transpose_b && gemm->m >= 24 && is_slow_to_read(gemm->ldb);
}

ls_status ls_gemm_library(const ls_gemm *gemm) {
    if (gemm->dtype == LS_F32 && is_result_worth_transposing(gemm)) {
        return turned_result(gemm);
    }
    const bool transpose_a = is_operand_worth_transposing(gemm);
    const bool spread_b = is_operand_worth_spreading(gemm);
    if (gemm->dtype == LS_F64) {
        LS_TRY(openblas_product(gemm));
    } else if (transpose_a || spread_b) {
        LS_TRY(moved_operands(gemm, transpose_a, spread_b));
    } else {
        LS_TRY(f32_product(gemm));
    }
    ls_gemm_finish(gemm);
    return LS_OK;
}
