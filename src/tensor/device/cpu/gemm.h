/*
 * The implementations of matrix products. ls_cpu_gemm (gemm.c) selects one of them. The first three accept an inner
 * size of zero. All of them apply the bias and the activation.
 */
#ifndef LS_TENSOR_DEVICE_CPU_GEMM_H
#define LS_TENSOR_DEVICE_CPU_GEMM_H

#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/onednn/onednn.h"

/*
 * Computes small f32 products with masked vectors. Returns false, without doing anything, if the processor does not
 * support them (valgrind hides AVX-512) or if both operands are transposed.
 */
bool ls_gemm_avx512(const ls_gemm *gemm);
bool ls_gemm_avx2(const ls_gemm *gemm);

/* Computes products in plain loops: small products, and products that read a matrix only once. */
void ls_gemm_plain(const ls_gemm *gemm);

/* Adds the bias and applies the activation to a product computed by a library. Does nothing if the product
 * accumulates. */
void ls_gemm_finish(const ls_gemm *gemm);

/* Computes one f32 product of rounded operands, of any size. `multiply` computes products of rounded copies. */
ls_status ls_gemm_rounded(const ls_gemm *gemm, ls_gemm_kernel *multiply);

/* Returns whether oneDNN computes larger products of rounded operands faster than f32 products. */
bool ls_rounding_pays(ls_dtype rounds_to);

/* Creates a dense f32 tensor with the numbers of x, rounded to a 16-bit dtype. ls_rounded_end frees its memory. */
ls_status ls_rounded_begin(const ls_tensor *x, ls_dtype rounds_to, ls_tensor *rounded);
void ls_rounded_end(const ls_tensor *rounded);

/*
 * Computes an f32 or f64 product in parts, on the threads of plug-in onednn, without bias and activation. The bits do
 * not depend on the number of threads. Returns LS_ERR_UNSUPPORTED, without an error message and without changes, if
 * `multiply` does not support the product.
 */
ls_status ls_product_divided(const ls_gemm *gemm, const ls_onednn *onednn, ls_product_part *multiply);

/* Computes a product with oneDNN (f32) or OpenBLAS (f64). */
ls_status ls_gemm_library(const ls_gemm *gemm);

#endif
