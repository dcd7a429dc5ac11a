/* Matrix products: which code does which shape, and what is fused onto the result. */
#include "tensor/device/cpu/floating.h"

#include <string.h>

#include "tensor/device/cpu/libraries.h"

#define REAL     float
#define FN(name) name##_f32
#include "tensor/device/cpu/gemm_small.inc"

#define REAL     double
#define FN(name) name##_f64
#include "tensor/device/cpu/gemm_small.inc"

/* Up to this many multiplications our own loops are faster than a library's call (docs/PERFORMANCE.md). */
enum { SMALL_PRODUCT = 4096 };

static bool is_small(const ls_gemm *gemm) {
    if (gemm->k == 1 || (gemm->m == 1 && !gemm->transpose_b)) {
        return true;
    }
    const double work = (double)gemm->m * (double)gemm->n * (double)gemm->k;
    return work <= SMALL_PRODUCT;
}

static ls_status large_f32(const ls_gemm *gemm) {
    const ls_onednn *onednn = ls_onednn_open();
    if (onednn == NULL) {
        return ls_error_status();
    }
    const dnnl_status_t status =
        onednn->sgemm(gemm->transpose_a ? 'T' : 'N', gemm->transpose_b ? 'T' : 'N', gemm->m, gemm->n, gemm->k, 1.0F,
                      gemm->a, gemm->lda, gemm->b, gemm->ldb, gemm->accumulate ? 1.0F : 0.0F, gemm->c, gemm->ldc);
    if (status == dnnl_out_of_memory) {
        return ls_fail_memory("matrix product", (size_t)(gemm->n * gemm->k) * sizeof(float));
    }
    if (status != dnnl_success) {
        return ls_fail(LS_ERR_INTERNAL, "matrix product: oneDNN refuses %lld x %lld x %lld with status %d",
                       (long long)gemm->m, (long long)gemm->n, (long long)gemm->k, (int)status);
    }
    return LS_OK;
}

static ls_status large_f64(const ls_gemm *gemm) {
    const ls_openblas *openblas = ls_openblas_open();
    if (openblas == NULL) {
        return ls_error_status();
    }
    openblas->dgemm(CblasRowMajor, gemm->transpose_a ? CblasTrans : CblasNoTrans,
                    gemm->transpose_b ? CblasTrans : CblasNoTrans, (blasint)gemm->m, (blasint)gemm->n, (blasint)gemm->k,
                    1.0, gemm->a, (blasint)gemm->lda, gemm->b, (blasint)gemm->ldb, gemm->accumulate ? 1.0 : 0.0,
                    gemm->c, (blasint)gemm->ldc);
    return LS_OK;
}

ls_status ls_cpu_gemm(ls_stream *stream, const ls_gemm *gemm) {
    (void)stream;
    const bool single = gemm->dtype == LS_F32;
    if (!single && gemm->dtype != LS_F64) {
        return ls_no_kernel("gemm", gemm->dtype);
    }
    if (gemm->m == 0 || gemm->n == 0) {
        return LS_OK;
    }
    if (gemm->k == 0) {
        if (!gemm->accumulate) {
            (single ? clear_f32 : clear_f64)(gemm);
        }
    } else if (is_small(gemm)) {
        (single ? small_f32 : small_f64)(gemm);
    } else {
        LS_TRY((single ? large_f32 : large_f64)(gemm));
    }
    if (!gemm->accumulate && (gemm->bias != NULL || gemm->activation != LS_ACTIVATION_NONE)) {
        (single ? finish_f32 : finish_f64)(gemm);
    }
    return LS_OK;
}
