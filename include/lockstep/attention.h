/**
 * @file attention.h
 * Attention and rotary position embeddings, with gradients.
 *
 * ```c
 * ls_tensor *q = ls_randn(LS_SHAPE(2, 4, 16, 8), LS_F32);
 * ls_tensor *k = ls_randn(LS_SHAPE(2, 4, 16, 8), LS_F32);
 * ls_tensor *v = ls_randn(LS_SHAPE(2, 4, 16, 8), LS_F32);
 * ls_attention_options causal = {.causal = true};
 * ls_tensor *y = ls_attention(ls_rotary(q, NULL), ls_rotary(k, NULL), v, &causal);
 * ```
 *
 * Tensors are floating-point, except masks. 16-bit floats are computed in f32. Errors: LS_ERR_SHAPE if sizes or dtypes
 * are incompatible, LS_ERR_ARGUMENT if an option is out of range.
 */
#ifndef LOCKSTEP_ATTENTION_H
#define LOCKSTEP_ATTENTION_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Options for ls_attention. Zero fields select the defaults. */
typedef struct ls_attention_options {
    bool causal;          /**< query i attends only to keys 0 to i */
    ls_tensor *key_mask;  /**< bool or u8 [batch, keys]: 0 for keys to ignore; NULL selects no mask */
    ls_tensor *attn_mask; /**< mask that broadcasts to [batch, heads, queries, keys]. A bool mask is true if the query
                             attends to the key; a mask of q's dtype is added to the scaled product, scale * q k^T. The
                             mask must not require a gradient while operations are recorded (LS_ERR_UNSUPPORTED). NULL
                             selects no mask */
    double scale;         /**< factor that multiplies q k^T; 0 selects the default, 1 / sqrt(width) */
} ls_attention_options;

/**
 * Computes softmax(scale q k^T + attn_mask) v (Vaswani et al., arXiv 1706.03762; PyTorch's
 * scaled_dot_product_attention). `options` may be NULL.
 * - q is [batch, heads, queries, width], k [batch, heads, keys, width], v [batch, heads, keys, value width].
 * - The result is [batch, heads, queries, value width]. q, k, v and the result may omit the heads, or the heads and the
 *   batch. A key_mask requires the batch.
 * - The result of a query without keys is 0.
 * - Keys and values that masks or `causal` exclude must be finite, because they are multiplied by 0.
 * - Without an `attn_mask` of several rows, memory grows with the lengths, not with their product: scores are computed
 *   in blocks, and again in the backward pass (Dao et al., arXiv 2205.14135; Rabe and Staats, arXiv 2112.05682).
 * - If q is an f32 or f64 view [batch, heads, queries, width] of [batch, queries, heads, width], the result has the
 *   same memory layout. ls_contiguous changes it.
 */
LS_API ls_tensor *ls_attention(ls_tensor *q, ls_tensor *k, ls_tensor *v, const ls_attention_options *options);

/** Options for ls_rotary. Zero fields select the defaults. */
typedef struct ls_rotary_options {
    double base;   /**< base of the rotation angles; 0 selects the default, 10000 */
    int64_t first; /**< index of the first position */
    bool halves;   /**< pairs elements i and i + width / 2 (GPT-NeoX, LLaMA) instead of elements 2 i and 2 i + 1 */
} ls_rotary_options;

/**
 * Rotates pair i of the last axis of x [..., positions, width] by the angle (first + position) base^(-2 i / width), so
 * that products of queries and keys depend on their relative positions (Su et al., arXiv 2104.09864). The width must be
 * even. The result has x's shape. `options` may be NULL.
 *
 * Positions begin with `first` on each rank. If the ranks of a data-parallel module have different positions of one
 * sequence, set `first` to the index of this rank's first position.
 */
LS_API ls_tensor *ls_rotary(ls_tensor *x, const ls_rotary_options *options);

#ifdef __cplusplus
}
#endif

#endif
