/* Self-attention of one tensor, as one node of the tape: used by multi-head attention. */
#ifndef LS_AUTOGRAD_OPS_ATTENTION_H
#define LS_AUTOGRAD_OPS_ATTENTION_H

#include <lockstep/attention.h>

/*
 * Computes the attention of queries, keys and values that one projection made: the last axis of x [batch, length, 3
 * width] contains the queries of all heads, then the keys, then the values. Returns [batch, length, width]. Equivalent
 * to ls_attention on three views of x, but the backward pass writes the whole gradient of x at once, instead of adding
 * three parts to zeros. width is a multiple of heads.
 */
ls_tensor *ls_attention_of_projection(ls_tensor *x, int64_t heads, bool causal);

/* Fails with LS_ERR_ARGUMENT if the options are invalid for `count` positions. */
ls_status ls_rotary_check(const char *caller, const ls_rotary_options *options, int64_t count);

#endif
