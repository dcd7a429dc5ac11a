/* Small matrix products in loops that the compiler vectorizes, for products that gemm_avx512.c does not accept. */
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/gemm.h"

#define REAL     float
#define FN(name) name##_f32
#include "tensor/device/cpu/gemm_plain.inc"

#define REAL     double
#define FN(name) name##_f64
#include "tensor/device/cpu/gemm_plain.inc"

void ls_gemm_plain(const ls_gemm *gemm) {
    (gemm->dtype == LS_F32 ? plain_f32 : plain_f64)(gemm);
    ls_gemm_finish(gemm);
}

void ls_gemm_finish(const ls_gemm *gemm) {
    (gemm->dtype == LS_F32 ? finish_f32 : finish_f64)(gemm);
}
