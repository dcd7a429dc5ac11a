/**
 * @file attention.h
 * Attention and rotary positions, with gradients; autograd.h includes it. Tensors are floating; halves are computed by
 * way of f32. LS_ERR_SHAPE where sizes or dtypes do not fit, LS_ERR_ARGUMENT for an option that is out of range.
 */
#ifndef LOCKSTEP_ATTENTION_H
#define LOCKSTEP_ATTENTION_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Options of ls_attention; zero fields mean what their comments say. */
typedef struct ls_attention_options {
    bool causal;          /**< query i attends to keys 0 to i only */
    ls_tensor *key_mask;  /**< bool or u8 [batch, keys]: keys where it is 0 are not attended to; NULL: all are */
    ls_tensor *attn_mask; /**< broadcasts to [batch, heads, queries, keys], and is either bool: a query attends to keys
                               where it is true; or of q's dtype: it is added to scale q k^T. NULL: no mask. Gets no
                               gradient: LS_ERR_UNSUPPORTED if it wants one */
    double scale;         /**< 0: 1 / sqrt(width) */
} ls_attention_options;

/**
 * softmax(scale q k^T + attn_mask) v (Vaswani et al., arXiv 1706.03762): q [batch, heads, queries, width], k [batch,
 * heads, keys, width] and v [batch, heads, keys, value width] give [batch, heads, queries, value width]; without heads,
 * and without a batch, all have an axis less. 0 where a query has no key to attend to. Memory grows with the lengths,
 * not with their product: scores are made in blocks, and made again on the way back (Dao et al., arXiv 2205.14135; Rabe
 * and Staats, arXiv 2112.05682). Where heads lie inside of positions in q's memory they do so in the result's, too
 * (ls_contiguous moves them). `options` may be NULL. PyTorch's scaled_dot_product_attention.
 */
LS_API ls_tensor *ls_attention(ls_tensor *q, ls_tensor *k, ls_tensor *v, const ls_attention_options *options);

/** Options of ls_rotary; zero fields mean what their comments say. */
typedef struct ls_rotary_options {
    double base;   /**< 0: 10000 */
    int64_t first; /**< the place of the first position */
    bool halves;   /**< pairs are elements i and i + width / 2, as in GPT-NeoX and LLaMA; else 2 i and 2 i + 1 */
} ls_rotary_options;

/** Rotary positions (Su et al., arXiv 2104.09864): pair i of the last axis of x [..., positions, width], an even width,
 * is turned by the angle (first + position) base^(-2 i / width): x's shape. Products of queries and keys then depend on
 * the distance of their positions. LS_ERR_SHAPE for x of LS_MAX_DIMS axes without `halves`. `options` may be NULL. */
LS_API ls_tensor *ls_rotary(ls_tensor *x, const ls_rotary_options *options);

#ifdef __cplusplus
}
#endif

#endif
