/*
 * The matrix products behind ls_cpu_gemm, which chooses among them (gemm.c). The first three take
 * an inner size of zero too; all finish the result (bias, activation) themselves.
 */
#ifndef LS_TENSOR_DEVICE_CPU_GEMM_H
#define LS_TENSOR_DEVICE_CPU_GEMM_H

#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/onednn/onednn.h"

/*
 * Small f32 products with masked vectors. False, with nothing done, where the processor lacks them (or hides them, as
 * valgrind does AVX-512) or both operands are transposed.
 */
bool ls_gemm_avx512(const ls_gemm *gemm);
bool ls_gemm_avx2(const ls_gemm *gemm);

/* Plain loops, for small products and for those that are one pass over a matrix. */
void ls_gemm_plain(const ls_gemm *gemm);

/* The bias and the activation of a product that a library made; nothing when it accumulates. */
void ls_gemm_finish(const ls_gemm *gemm);

/* One product of f32 with operands that count as rounded, of any size. `multiply` makes products of rounded copies. */
ls_status ls_gemm_rounded(const ls_gemm *gemm, ls_gemm_kernel *multiply);

/* Whether oneDNN makes the larger ones faster than those of f32. */
bool ls_rounding_pays(ls_dtype rounds_to);

/* A dense tensor like x, of f32, its numbers rounded to those of a half, with memory to be given back by
 * ls_rounded_end. */
ls_status ls_rounded_begin(const ls_tensor *x, ls_dtype rounds_to, ls_tensor *rounded);
void ls_rounded_end(const ls_tensor *rounded);

/*
 * A product of f32 or f64 in parts, on the threads of the module, whose bits do not depend on the number of threads.
 * Without bias and activation. LS_ERR_UNSUPPORTED, with nothing done and no message, if `multiply` refuses.
 */
ls_status ls_product_divided(const ls_gemm *gemm, const ls_onednn *onednn, ls_product_part *multiply);

/* oneDNN for f32, OpenBLAS for f64. */
ls_status ls_gemm_library(const ls_gemm *gemm);

#endif
