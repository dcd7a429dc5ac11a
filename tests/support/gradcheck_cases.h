/*
 * The cases of the gradient-check table. Together, they record every operation of every family, over random shapes,
 * with broadcast and strided inputs in double precision. For tests of properties that all operations share.
 */
#ifndef LS_TESTS_SUPPORT_GRADCHECK_CASES_H
#define LS_TESTS_SUPPORT_GRADCHECK_CASES_H

#include <lockstep/attention.h>
#include <lockstep/convolution.h>
#include <lockstep/loss.h>

#include "tests/support/gradcheck_trials.h"

#include <math.h>

#include "autograd/ops/attention.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/recurrent.h"

/* ---- functions: element by element ------------------------------------------------------------------------------- */

#define FUNCTION(name, expression)                                                                                     \
    static ls_tensor *name(ls_tensor **x, int count, void *user) {                                                     \
        (void)count;                                                                                                   \
        (void)user;                                                                                                    \
        return expression;                                                                                             \
    }

FUNCTION(f_neg, ls_neg(x[0]))
FUNCTION(f_abs, ls_abs(x[0]))
FUNCTION(f_sqrt, ls_sqrt(x[0]))
FUNCTION(f_square, ls_square(x[0]))
FUNCTION(f_exp, ls_exp(x[0]))
FUNCTION(f_log, ls_log(x[0]))
FUNCTION(f_log1p, ls_log1p(x[0]))
FUNCTION(f_sin, ls_sin(x[0]))
FUNCTION(f_cos, ls_cos(x[0]))
FUNCTION(f_tanh, ls_tanh(x[0]))
FUNCTION(f_erf, ls_erf(x[0]))
FUNCTION(f_sigmoid, ls_sigmoid(x[0]))
FUNCTION(f_relu, ls_relu(x[0]))
FUNCTION(f_leaky_relu, ls_leaky_relu(x[0], 0.1))
FUNCTION(f_elu, ls_elu(x[0], 0.7))
FUNCTION(f_gelu, ls_gelu(x[0]))
FUNCTION(f_gelu_tanh, ls_gelu_tanh(x[0]))
FUNCTION(f_silu, ls_silu(x[0]))
FUNCTION(f_softplus, ls_softplus(x[0]))
FUNCTION(f_clamp, ls_clamp(x[0], -0.5, 0.8))
FUNCTION(f_steps, ls_add(x[0], ls_add(ls_add(ls_floor(x[0]), ls_round(x[0])), ls_add(ls_ceil(x[0]), ls_sign(x[0])))))
FUNCTION(f_masked_fill, ls_masked_fill(x[0], ls_lt(ls_sin(ls_arange(ls_shape_of(x[1]), LS_F64)), 0.2), 0.7))
FUNCTION(f_triangles, ls_add(ls_tril(x[0], 1), ls_mul(ls_triu(x[0], -1), 0.5)))
FUNCTION(f_add, ls_add(x[0], x[1]))
FUNCTION(f_sub, ls_sub(x[0], x[1]))
FUNCTION(f_mul, ls_mul(x[0], x[1]))
FUNCTION(f_div, ls_div(x[0], x[1]))
FUNCTION(f_pow, ls_pow(x[0], x[1]))
FUNCTION(f_maximum, ls_maximum(x[0], x[1]))
FUNCTION(f_minimum, ls_minimum(x[0], x[1]))
FUNCTION(f_add_number, ls_add(x[0], 1.5))
FUNCTION(f_sub_number, ls_sub(x[0], 1.5))
FUNCTION(f_number_left, ls_add(ls_sub(1.5, x[0]), ls_mul(2, ls_add(ls_div(1, x[0]), ls_pow(2.5, x[0])))))
FUNCTION(f_mul_number, ls_mul(x[0], -1.5))
FUNCTION(f_div_number, ls_div(x[0], -1.5))
FUNCTION(f_cube, ls_pow(x[0], 3))
FUNCTION(f_power, ls_pow(x[0], -2.5))
FUNCTION(f_maximum_number, ls_maximum(x[0], 0.3))
FUNCTION(f_minimum_number, ls_minimum(x[0], 0.3))
FUNCTION(f_same_twice, ls_mul(x[0], ls_add(x[0], x[0])))
FUNCTION(f_where, ls_where(ls_lt(ls_sin(ls_arange(ls_shape_of(x[0]), LS_F64)), 0.2), x[0], x[1]))

/* ---- functions: reductions --------------------------------------------------------------------------------------- */

#define REDUCTION(name)                                                                                                \
    FUNCTION(f_##name##_all, ls_##name(x[0]))                                                                          \
    FUNCTION(f_##name##_first, ls_##name##_axes(x[0], LS_AXES(0), true))                                               \
    FUNCTION(f_##name##_last, ls_##name##_axes(x[0], LS_AXES(-1), false))                                              \
    FUNCTION(f_##name##_outer, ls_##name##_axes(x[0], LS_AXES(-1, 0), false))

REDUCTION(sum)
REDUCTION(mean)
REDUCTION(prod)
REDUCTION(max)
REDUCTION(min)
FUNCTION(f_var, ls_var(x[0]))
FUNCTION(f_var_first, ls_var_axes(x[0], LS_AXES(0), 0, true))
FUNCTION(f_var_outer, ls_var_axes(x[0], LS_AXES(0, 2), 1, false))
FUNCTION(f_norm, ls_norm(x[0]))
FUNCTION(f_norm_1, ls_norm_axes(x[0], 1, LS_AXES(-1), true))
FUNCTION(f_norm_2, ls_norm_axes(x[0], 2, LS_AXES(0), false))
FUNCTION(f_norm_3, ls_norm_axes(x[0], 3, LS_AXES(0, -1), false))
FUNCTION(f_norm_half, ls_norm_axes(x[0], 0.5, LS_AXES(-1), false))
FUNCTION(f_norm_largest, ls_norm_axes(x[0], (double)INFINITY, LS_AXES(1), true))
FUNCTION(f_cumsum_first, ls_cumsum(x[0], 0))
FUNCTION(f_cumsum_last, ls_cumsum(x[0], -1))

/* ---- functions: views, joins, indices, copies -------------------------------------------------------------------- */

FUNCTION(f_reshape, ls_reshape(x[0], LS_SHAPE(-1, ls_size(x[0], 0))))
FUNCTION(f_flatten, ls_flatten(x[0], 0, 1))
FUNCTION(f_squeeze, ls_squeeze(x[0], 1))
FUNCTION(f_unsqueeze, ls_unsqueeze(x[0], -2))
FUNCTION(f_transpose, ls_transpose(x[0], 0, -1))
FUNCTION(f_permute, ls_permute(x[0], LS_AXES(2, 0, 1)))
FUNCTION(f_expand, ls_expand(x[0], LS_SHAPE(3, 2, -1)))
FUNCTION(f_narrow, ls_narrow(x[0], 0, 1, 1))
FUNCTION(f_slice, ls_slice(x[0], -1, 1, 100, 2))
FUNCTION(f_slices, ls_mul(ls_slice(x[0], 0, 0, -1, 1), ls_slice(x[0], 0, 1, 100, 1)))
FUNCTION(f_select, ls_select(x[0], 1, -1))
FUNCTION(f_pad, ls_pad(x[0], 0, 2, 1, 0.5))
FUNCTION(f_concat, ls_concat(x, count, 1))
FUNCTION(f_stack, ls_stack(x, count, -1))
FUNCTION(f_clone, ls_clone(x[0]))
FUNCTION(f_contiguous, ls_contiguous(x[0]))
FUNCTION(f_to, ls_to(ls_to(x[0], LS_F32), LS_F64))

/* Copies to a different device and back. */
static ls_tensor *f_to_device(ls_tensor **x, int count, void *user) {
    const char *own = ls_device_of(x[0]), *other = strcmp(own, "cpu") == 0 ? "shadow:0" : "cpu";
    (void)count;
    (void)user;
    return ls_tensor_to_device(ls_square(ls_tensor_to_device(x[0], other)), own);
}

/* Makes indices that repeat some positions and omit others. */
static ls_tensor *index_below(ls_shape shape, int64_t bound) {
    int64_t index[256];
    int64_t count = 1;
    for (int i = 0; i < shape.ndim; i++) {
        count *= shape.size[i];
    }
    for (int64_t i = 0; i < count; i++) {
        index[i] = i * i * 3 % bound;
    }
    return ls_from(shape, LS_I64, index);
}

FUNCTION(f_index_select, ls_index_select(x[0], 1, index_below(LS_SHAPE(5), ls_size(x[0], 1))))
FUNCTION(f_embedding, ls_embedding(x[0], index_below(LS_SHAPE(2, 3), ls_size(x[0], 0))))
FUNCTION(f_take_along,
         ls_take_along_axis(x[0], 1,
                            index_below(LS_SHAPE(ls_size(x[0], 0), 5, ls_size(x[0], 2) - 1), ls_size(x[0], 1))))

FUNCTION(f_flip, ls_flip(x[0], LS_AXES(0, -1)))
FUNCTION(f_roll, ls_roll(x[0], 1, 0))
FUNCTION(f_repeat, ls_repeat(x[0], LS_SHAPE(2, 1, 3)))
FUNCTION(f_sort_first, ls_sort(x[0], 0, true, NULL))
FUNCTION(f_sort_last, ls_sort(x[0], -1, false, NULL))
FUNCTION(f_top_k, ls_top_k(x[0], 2, -1, false, NULL))

static ls_tensor *f_split(ls_tensor **x, int count, void *user) {
    ls_tensor *parts[4] = {NULL};
    (void)count;
    (void)user;
    const int n = ls_split(x[0], 0, 2, parts, 4);
    return n == 2 ? ls_concat((ls_tensor *[]){parts[1], parts[0]}, 2, 0) : n < 0 ? NULL : ls_neg(parts[0]);
}

/* ---- functions: products, normalisation, losses ------------------------------------------------------------------ */

FUNCTION(f_matmul, ls_matmul(x[0], x[1]))
FUNCTION(f_linear, ls_linear(x[0], x[1], count > 2 ? x[2] : NULL))
FUNCTION(f_linear_relu, ls_linear_activation(x[0], x[1], count > 2 ? x[2] : NULL, LS_ACTIVATION_RELU))
FUNCTION(f_softmax_first, ls_softmax(x[0], 0))
FUNCTION(f_softmax_last, ls_softmax(x[0], -1))
FUNCTION(f_log_softmax_first, ls_log_softmax(x[0], 0))
FUNCTION(f_log_softmax_last, ls_log_softmax(x[0], -1))
FUNCTION(f_logsumexp_first, ls_logsumexp(x[0], 0, false))
FUNCTION(f_logsumexp_last, ls_logsumexp(x[0], -1, true))
FUNCTION(f_dropout, (ls_seed(5), ls_dropout(x[0], 0.4)))
FUNCTION(f_layer_norm, ls_layer_norm(x[0], count > 1 ? 0 : 1, count > 1 ? x[1] : NULL, count > 2 ? x[2] : NULL, 0.1))
FUNCTION(f_attention, ls_attention(x[0], x[1], x[2], NULL))
FUNCTION(f_attention_causal, ls_attention(x[0], x[1], x[2], &(ls_attention_options){.causal = true, .scale = 0.7}))
FUNCTION(f_attention_heads,
         ls_attention(ls_transpose(x[0], 1, 2), ls_transpose(x[1], 1, 2), ls_transpose(x[1], 1, 2), NULL))
FUNCTION(f_attention_of_projection,
         ls_attention_of_projection(ls_concat((ls_tensor *[]){x[0], x[1], x[2], x[2], x[0], x[1]}, 6, -1), 2, true))
FUNCTION(f_rotary, ls_rotary(ls_concat((ls_tensor *[]){x[0], x[0]}, 2, -1), NULL))
FUNCTION(f_rotary_halves, ls_rotary(ls_concat((ls_tensor *[]){x[0], x[0]}, 2, -1),
                                    &(ls_rotary_options){.base = 5, .first = 3, .halves = true}))

/* Attends to every other key. */
static ls_tensor *f_attention_masked(ls_tensor **x, int count, void *user) {
    ls_tensor *mask = ls_gt(ls_sin(ls_mul(ls_arange(LS_SHAPE(ls_size(x[1], 0), ls_size(x[1], -2)), LS_F64), 3)), -0.2);
    (void)count;
    (void)user;
    return ls_attention(x[0], x[1], x[2], &(ls_attention_options){.key_mask = mask});
}

/* One mask for all batches and heads, with a number for each score; some are -infinity. */
static ls_tensor *f_attention_biased(ls_tensor **x, int count, void *user) {
    ls_tensor *waves = ls_sin(ls_mul(ls_arange(LS_SHAPE(ls_size(x[0], -2), ls_size(x[1], -2)), LS_F64), 3));
    (void)count;
    (void)user;
    return ls_attention(
        x[0], x[1], x[2],
        &(ls_attention_options){.attn_mask = ls_masked_fill(waves, ls_gt(waves, 0.8), -INFINITY), .causal = true});
}

FUNCTION(f_rms_norm, ls_rms_norm(x[0], count > 1 ? 0 : 1, count > 1 ? x[1] : NULL, 0.1))
FUNCTION(f_group_norm,
         ls_group_norm(x[0], 1 + (ls_size(x[0], 1) == 4), count > 1 ? x[1] : NULL, count > 2 ? x[2] : NULL, 0.1))
FUNCTION(f_batch_norm,
         ls_batch_norm(x[0], NULL, NULL, count > 1 ? x[1] : NULL, count > 2 ? x[2] : NULL, true, 0.1, 0.1))

static ls_tensor *f_batch_norm_eval(ls_tensor **x, int count, void *user) {
    ls_tensor *mean = ls_full(LS_SHAPE(ls_size(x[0], 1)), LS_F64, 0.3);
    ls_tensor *variance = ls_full(LS_SHAPE(ls_size(x[0], 1)), LS_F64, 0.8);
    (void)count;
    (void)user;
    return ls_batch_norm(x[0], mean, variance, x[1], x[2], false, 0.1, 0.1);
}

/* `x` is [steps, n, gates * hidden]; then weight, bias and state. With `lengths`, the samples have 0, 2, 4 ...
 * steps. */
static ls_tensor *recur(ls_recurrence kind, ls_tensor **x, int count, bool reverse, bool lengths) {
    ls_tensor *given = NULL;
    if (lengths) {
        given = ls_minimum(ls_mul(ls_arange(LS_SHAPE(ls_size(x[0], 1)), LS_I64), 2), ls_size(x[0], 0));
    }
    const int64_t gates = ls_recurrence_gates(kind);
    ls_tensor *wide = ls_repeat(x[0], LS_SHAPE(1, 1, gates)), *weight = ls_repeat(x[1], LS_SHAPE(gates, 1));
    ls_tensor *bias = count > 2 ? ls_repeat(x[2], LS_SHAPE(gates)) : NULL, *state = NULL;
    for (int64_t i = 1; i < gates; i++) { /* different gates */
        wide = ls_mul(wide, ls_cos(ls_arange(LS_SHAPE(ls_size(wide, 2)), LS_F64)));
        weight = ls_mul(weight, ls_sin(ls_add(ls_arange(LS_SHAPE(ls_size(weight, 0), 1), LS_F64), i)));
    }
    if (count > 3) {
        ls_tensor *half = ls_mul(x[3], 0.5);
        state = ls_stack((ls_tensor *[]){x[3], half}, (int)ls_recurrence_states(kind), 0);
    }
    return ls_recur(kind, wide, weight, bias, state, given, reverse);
}

FUNCTION(f_rnn, recur(LS_RECURRENCE_TANH, x, count, false, false))
FUNCTION(f_rnn_relu, recur(LS_RECURRENCE_RELU, x, count, true, false))
FUNCTION(f_rnn_lengths, recur(LS_RECURRENCE_TANH, x, count, true, true))
FUNCTION(f_lstm, recur(LS_RECURRENCE_LSTM, x, count, false, false))
FUNCTION(f_lstm_lengths, recur(LS_RECURRENCE_LSTM, x, count, true, true))
FUNCTION(f_gru, recur(LS_RECURRENCE_GRU, x, count, false, false))
FUNCTION(f_gru_lengths, recur(LS_RECURRENCE_GRU, x, count, true, true))

FUNCTION(f_einsum, ls_einsum(count > 2 ? "ij,jk,ik->ki" : count > 1 ? "bij,bkj->bik" : "iji->j", x, count))
FUNCTION(f_weight_norm, ls_weight_norm(x[0], x[1]))

/* ---- functions: convolution and pooling -------------------------------------------------------------------------- */

#define CONV(name, call, ...)                                                                                          \
    FUNCTION(f_##name, call(x[0], x[1], count > 2 ? x[2] : NULL, &(call##_options){__VA_ARGS__}))

CONV(conv, ls_conv, .padding = LS_SHAPE(2))
CONV(conv_options, ls_conv, .stride = LS_SHAPE(2), .padding = LS_SHAPE(3), .dilation = LS_SHAPE(2))
CONV(conv_same, ls_conv, .same = true)
CONV(conv_depthwise, ls_conv, .groups = ls_size(x[0], 1), .padding = LS_SHAPE(2))
CONV(conv_transpose, ls_conv_transpose, .stride = LS_SHAPE(1))
CONV(conv_transpose_options, ls_conv_transpose, .stride = LS_SHAPE(2), .padding = LS_SHAPE(1), .dilation = LS_SHAPE(2),
     .output_padding = LS_SHAPE(1))
CONV(conv_transpose_depthwise, ls_conv_transpose, .groups = ls_size(x[0], 1))

#define POOL(name, call, ...) FUNCTION(f_##name, call(x[0], &(call##_options){__VA_ARGS__}))

POOL(max_pool, ls_max_pool, .kernel = LS_SHAPE(2))
POOL(max_pool_options, ls_max_pool, .kernel = LS_SHAPE(3), .stride = LS_SHAPE(1), .padding = LS_SHAPE(1))
POOL(average_pool, ls_average_pool, .kernel = LS_SHAPE(2), .stride = LS_SHAPE(1), .padding = LS_SHAPE(1))
POOL(average_pool_options, ls_average_pool, .kernel = LS_SHAPE(3), .stride = LS_SHAPE(2), .padding = LS_SHAPE(1),
     .ceil_mode = true, .exclude_padding = true)
FUNCTION(f_adaptive_average_pool, ls_adaptive_average_pool(x[0], LS_SHAPE(3)))
FUNCTION(f_adaptive_max_pool, ls_adaptive_max_pool(x[0], LS_SHAPE(2)))
FUNCTION(f_resize, ls_resize(x[0], LS_SHAPE(3), NULL))
FUNCTION(f_resize_linear, ls_resize(x[0], LS_SHAPE(3), &(ls_resize_options){.mode = LS_RESIZE_LINEAR}))
FUNCTION(f_pixel_shuffle, ls_pixel_shuffle(ls_concat((ls_tensor *[]){x[0], x[0], x[0], x[0]}, 4, 1), 2))

#define LOSS(name, call)                                                                                               \
    FUNCTION(f_##name##_mean, call(LS_LOSS_MEAN))                                                                      \
    FUNCTION(f_##name##_sum, call(LS_LOSS_SUM))                                                                        \
    FUNCTION(f_##name##_none, call(LS_LOSS_NONE))

#define MSE(reduction)   ls_mse_loss(x[0], x[1], reduction)
#define L1(reduction)    ls_l1_loss(x[0], x[1], reduction)
#define HUBER(reduction) ls_huber_loss(x[0], x[1], 0.6, reduction)
#define BCE(reduction)   ls_bce_loss(x[0], x[1], reduction)
#define BCE_LOGITS(reduction_)                                                                                         \
    ls_bce_with_logits_loss(x[0], x[1], &(ls_bce_with_logits_options){.reduction = (reduction_)})
#define WEIGHTED_BCE(reduction_)                                                                                       \
    ls_bce_with_logits_loss(                                                                                           \
        x[0], ls_sigmoid(x[1]),                                                                                        \
        &(ls_bce_with_logits_options){.reduction = (reduction_), .pos_weight = ls_exp(x[0]), .weight = ls_exp(x[1])})
#define KL_DIV(reduction) ls_kl_div_loss(x[0], x[1], reduction)
#define NLL(reduction_)   ls_nll_loss(x[0], classes_for(x[0]), &(ls_nll_loss_options){.reduction = (reduction_)})
#define CROSS_ENTROPY(reduction_)                                                                                      \
    ls_cross_entropy(x[0], classes_for(x[0]), &(ls_class_loss_options){.reduction = (reduction_)})

/* Draws a class for every position of x, without its class axis. */
static ls_tensor *classes_for(const ls_tensor *x) {
    ls_shape shape = ls_shape_of(x);
    for (int i = 1; i + 1 < shape.ndim; i++) {
        shape.size[i] = shape.size[i + 1];
    }
    shape.ndim--;
    return index_below(shape, ls_size(x, 1));
}

LOSS(mse, MSE)
LOSS(l1, L1)
LOSS(huber, HUBER)
LOSS(bce, BCE)
LOSS(bce_with_logits, BCE_LOGITS)
LOSS(weighted_bce, WEIGHTED_BCE)
LOSS(kl_div, KL_DIV)
LOSS(nll, NLL)
LOSS(cross_entropy, CROSS_ENTROPY)

static ls_tensor *f_cross_entropy_options(ls_tensor **x, int count, void *user) {
    ls_class_loss_options options = {.label_smoothing = 0.3, .ignore = true, .ignore_index = 1};
    (void)count;
    (void)user;
    options.weight = ls_add(ls_arange(LS_SHAPE(ls_size(x[0], 1)), LS_F64), 0.5);
    return ls_cross_entropy(x[0], classes_for(x[0]), &options);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define ONE_TENSOR  "ij . ijk"
#define TWO_TENSORS "ij,ij ij,j i1,1j .,ij ij,. ijk,1k j,ij"

static const gradcheck_case elementwise_cases[] = {
    {.name = "neg", .function = f_neg, .shapes = ONE_TENSOR},
    {.name = "abs", .function = f_abs, .shapes = ONE_TENSOR},
    {.name = "sqrt", .function = f_sqrt, .shapes = ONE_TENSOR, .low = 0.3, .high = 2},
    {.name = "square", .function = f_square, .shapes = ONE_TENSOR},
    {.name = "exp", .function = f_exp, .shapes = ONE_TENSOR},
    {.name = "log", .function = f_log, .shapes = ONE_TENSOR, .low = 0.3, .high = 3},
    {.name = "log1p", .function = f_log1p, .shapes = ONE_TENSOR, .low = -0.5, .high = 2},
    {.name = "sin", .function = f_sin, .shapes = ONE_TENSOR},
    {.name = "cos", .function = f_cos, .shapes = ONE_TENSOR},
    {.name = "tanh", .function = f_tanh, .shapes = ONE_TENSOR},
    {.name = "erf", .function = f_erf, .shapes = ONE_TENSOR},
    {.name = "sigmoid", .function = f_sigmoid, .shapes = ONE_TENSOR},
    {.name = "relu", .function = f_relu, .shapes = ONE_TENSOR},
    {.name = "leaky_relu", .function = f_leaky_relu, .shapes = ONE_TENSOR},
    {.name = "elu", .function = f_elu, .shapes = ONE_TENSOR},
    {.name = "gelu", .function = f_gelu, .shapes = ONE_TENSOR},
    {.name = "gelu_tanh", .function = f_gelu_tanh, .shapes = ONE_TENSOR},
    {.name = "silu", .function = f_silu, .shapes = ONE_TENSOR},
    {.name = "softplus", .function = f_softplus, .shapes = ONE_TENSOR},
    {.name = "clamp", .function = f_clamp, .shapes = ONE_TENSOR},
    {.name = "steps", .function = f_steps, .shapes = ONE_TENSOR},
    {.name = "masked_fill", .function = f_masked_fill, .shapes = "ij,ij ij,j ijk,1k"},
    {.name = "tril and triu", .function = f_triangles, .shapes = "ij ijk"},
    {.name = "add", .function = f_add, .shapes = TWO_TENSORS},
    {.name = "sub", .function = f_sub, .shapes = TWO_TENSORS},
    {.name = "mul", .function = f_mul, .shapes = TWO_TENSORS},
    {.name = "div", .function = f_div, .shapes = TWO_TENSORS, .low = 0.5, .high = 2},
    {.name = "pow", .function = f_pow, .shapes = TWO_TENSORS, .low = 0.5, .high = 2},
    {.name = "maximum", .function = f_maximum, .shapes = TWO_TENSORS},
    {.name = "minimum", .function = f_minimum, .shapes = TWO_TENSORS},
    {.name = "add number", .function = f_add_number, .shapes = ONE_TENSOR},
    {.name = "sub number", .function = f_sub_number, .shapes = ONE_TENSOR},
    {.name = "number on the left", .function = f_number_left, .shapes = ONE_TENSOR, .low = 0.4, .high = 2},
    {.name = "mul number", .function = f_mul_number, .shapes = ONE_TENSOR},
    {.name = "div number", .function = f_div_number, .shapes = ONE_TENSOR},
    {.name = "cube", .function = f_cube, .shapes = ONE_TENSOR},
    {.name = "power", .function = f_power, .shapes = ONE_TENSOR, .low = 0.5, .high = 2},
    {.name = "maximum number", .function = f_maximum_number, .shapes = ONE_TENSOR},
    {.name = "minimum number", .function = f_minimum_number, .shapes = ONE_TENSOR},
    {.name = "one tensor used twice", .function = f_same_twice, .shapes = ONE_TENSOR},
    {.name = "where", .function = f_where, .shapes = TWO_TENSORS},
};

#define REDUCTION_CASES(name_)                                                                                         \
    {.name = #name_, .function = f_##name_##_all, .shapes = "ij . ijk"},                                               \
        {.name = #name_ " of the first axis", .function = f_##name_##_first, .shapes = "ij ijk i"},                    \
        {.name = #name_ " of the last axis", .function = f_##name_##_last, .shapes = "ij ijk i"}, {                    \
        .name = #name_ " of the outer axes", .function = f_##name_##_outer, .shapes = "ij ijk i1jk"                    \
    }

static const gradcheck_case reduce_cases[] = {
    REDUCTION_CASES(sum),
    REDUCTION_CASES(mean),
    REDUCTION_CASES(prod),
    REDUCTION_CASES(max),
    REDUCTION_CASES(min),
    {.name = "var", .function = f_var, .shapes = "AB ABC"},
    {.name = "var of the first axis", .function = f_var_first, .shapes = "Ab Abc"},
    {.name = "var of the outer axes", .function = f_var_outer, .shapes = "AbC"},
    {.name = "norm", .function = f_norm, .shapes = "ij . ijk"},
    {.name = "1-norm", .function = f_norm_1, .shapes = "ij ijk"},
    {.name = "2-norm", .function = f_norm_2, .shapes = "ij ijk"},
    {.name = "3-norm", .function = f_norm_3, .shapes = "ij ijk"},
    {.name = "0.5-norm", .function = f_norm_half, .shapes = "ij ijk"},
    {.name = "largest", .function = f_norm_largest, .shapes = "ij ijk"},
    {.name = "cumsum of the first axis", .function = f_cumsum_first, .shapes = "i ij ijk"},
    {.name = "cumsum of the last axis", .function = f_cumsum_last, .shapes = "i ij ijk"},
};

static const gradcheck_case shape_cases[] = {
    {.name = "reshape", .function = f_reshape, .shapes = "ij ijk i"},
    {.name = "flatten", .function = f_flatten, .shapes = "ij ijk"},
    {.name = "squeeze", .function = f_squeeze, .shapes = "i1 i1j"},
    {.name = "unsqueeze", .function = f_unsqueeze, .shapes = "i ij"},
    {.name = "transpose", .function = f_transpose, .shapes = "ij ijk i"},
    {.name = "permute", .function = f_permute, .shapes = "ijk"},
    {.name = "expand", .function = f_expand, .shapes = "i 1i 11i"},
    {.name = "narrow", .function = f_narrow, .shapes = "A Ab"},
    {.name = "slice", .function = f_slice, .shapes = "A aB"},
    {.name = "slices of one tensor", .function = f_slices, .shapes = "A Ab"},
    {.name = "select", .function = f_select, .shapes = "ij ijk"},
    {.name = "split", .function = f_split, .shapes = "A Ab"},
    {.name = "pad", .function = f_pad, .shapes = "i ij"},
    {.name = "concat", .function = f_concat, .shapes = "ij,ik ij,ik,il,ij,ik ij"},
    {.name = "stack", .function = f_stack, .shapes = ".,. ij,ij,ij,ij i"},
    {.name = "clone", .function = f_clone, .shapes = ONE_TENSOR},
    {.name = "contiguous", .function = f_contiguous, .shapes = ONE_TENSOR},
    {.name = "to", .function = f_to, .shapes = ONE_TENSOR, .options = {.step = 0.01}}, /* linear, but in f32 */
    {.name = "index_select", .function = f_index_select, .shapes = "ij ijk"},
    {.name = "to_device", .function = f_to_device, .shapes = ONE_TENSOR},
    {.name = "embedding", .function = f_embedding, .shapes = "ij"},
    {.name = "flip", .function = f_flip, .shapes = "ij ijk"},
    {.name = "roll", .function = f_roll, .shapes = "i ij"},
    {.name = "repeat", .function = f_repeat, .shapes = "i ij ijk"},
    {.name = "sort of the first axis", .function = f_sort_first, .shapes = "i ij ijk"},
    {.name = "sort of the last axis", .function = f_sort_last, .shapes = "i ij ijk"},
    {.name = "top_k", .function = f_top_k, .shapes = "A iB ijC"},
    {.name = "take_along", .function = f_take_along, .shapes = "ijK"},
};

#define SEQUENCES "abc,cc,c,bc Abc,cc,c,bc Abc,cc"

static const gradcheck_case matrix_cases[] = {
    {.name = "matmul",
     .function = f_matmul,
     .shapes = "i,i ij,j j,jk ij,jk hij,jk ij,hjk hij,hjk 1hij,g1jk hij,j j,hjk"},
    {.name = "linear", .function = f_linear, .shapes = "ij,oj,o hij,oj,o j,oj,o ij,oj"},
    {.name = "linear and relu", .function = f_linear_relu, .shapes = "ij,oj,o hij,oj,o j,oj,o ij,oj"},
    {.name = "einsum", .function = f_einsum, .shapes = "ij,jk,ik bij,bkj iji"},
    {.name = "weight_norm", .function = f_weight_norm, .shapes = "ij,i1 ijk,i11"},
    {.name = "softmax of the first axis", .function = f_softmax_first, .shapes = "i ij ijk"},
    {.name = "softmax of the last axis", .function = f_softmax_last, .shapes = "i ij ijk"},
    {.name = "log_softmax of the first axis", .function = f_log_softmax_first, .shapes = "i ij ijk"},
    {.name = "log_softmax of the last axis", .function = f_log_softmax_last, .shapes = "i ij ijk"},
    {.name = "logsumexp of the first axis", .function = f_logsumexp_first, .shapes = "i ij ijk"},
    {.name = "logsumexp of the last axis", .function = f_logsumexp_last, .shapes = "i ij ijk"},
    {.name = "dropout", .function = f_dropout, .shapes = ONE_TENSOR},
    {.name = "layer_norm", .function = f_layer_norm, .shapes = "aB,B,B abC,bC,bC aB"},
    {.name = "attention", .function = f_attention, .shapes = "ij,kj,kl aij,akj,akl abij,abkj,abkl"},
    {.name = "attention, causal", .function = f_attention_causal, .shapes = "ij,kj,kl aij,akj,akl abij,abkj,abkl"},
    {.name = "attention, masked", .function = f_attention_masked, .shapes = "aij,akj,akl abij,abkj,abkl"},
    {.name = "attention, biased", .function = f_attention_biased, .shapes = "ij,kj,kl aij,akj,akl abij,abkj,abkl"},
    {.name = "attention, heads inside", .function = f_attention_heads, .shapes = "aiBj,akBj"},
    {.name = "attention, one projection", .function = f_attention_of_projection, .shapes = "aij,aij,aij"},
    {.name = "rotary", .function = f_rotary, .shapes = "ij aij"},
    {.name = "rotary, halves", .function = f_rotary_halves, .shapes = "ij aij"},
    {.name = "rms_norm", .function = f_rms_norm, .shapes = "aB,B abC,bC aB"},
    {.name = "group_norm", .function = f_group_norm, .shapes = "iBjk,B,B iBj"},
    {.name = "batch_norm", .function = f_batch_norm, .shapes = "AB,B,B ABc,B,B Ab"},
    {.name = "batch_norm, not training", .function = f_batch_norm_eval, .shapes = "ab,b,b abc,b,b"},
    {.name = "rnn", .function = f_rnn, .shapes = SEQUENCES},
    {.name = "rnn, relu", .function = f_rnn_relu, .shapes = SEQUENCES},
    {.name = "rnn, lengths", .function = f_rnn_lengths, .shapes = SEQUENCES},
    {.name = "lstm", .function = f_lstm, .shapes = SEQUENCES},
    {.name = "lstm, lengths", .function = f_lstm_lengths, .shapes = SEQUENCES},
    {.name = "gru", .function = f_gru, .shapes = SEQUENCES},
    {.name = "gru, lengths", .function = f_gru_lengths, .shapes = SEQUENCES},
};

#define IMAGES "abC abCD 1bCDE"

static const gradcheck_case image_cases[] = {
    {.name = "conv", .function = f_conv, .shapes = "aBC,eBf aBCD,eBfg,e 1BCDE,eBfgh,e"},
    {.name = "conv, options", .function = f_conv_options, .shapes = "aBC,eBf,e aBCD,eBfg,e 1BCDE,eBfgh"},
    {.name = "conv, same", .function = f_conv_same, .shapes = "aBC,eBf,e aBCD,eBfg"},
    {.name = "conv, depthwise", .function = f_conv_depthwise, .shapes = "aBC,B1f,B aBCD,B1fg"},
    {.name = "conv_transpose", .function = f_conv_transpose, .shapes = "aBC,Bef aBCD,Befg,e 1BCDE,Befgh,e"},
    {.name = "conv_transpose, options",
     .function = f_conv_transpose_options,
     .shapes = "aBC,Bef,e aBCD,Befg,e 1BCDE,Befgh"},
    {.name = "conv_transpose, depthwise", .function = f_conv_transpose_depthwise, .shapes = "aBC,B1f,B aBCD,B1fg"},
    {.name = "max_pool", .function = f_max_pool, .shapes = IMAGES},
    {.name = "max_pool, options", .function = f_max_pool_options, .shapes = IMAGES},
    {.name = "average_pool", .function = f_average_pool, .shapes = IMAGES},
    {.name = "average_pool, options", .function = f_average_pool_options, .shapes = IMAGES},
    {.name = "adaptive_average_pool", .function = f_adaptive_average_pool, .shapes = IMAGES},
    {.name = "adaptive_max_pool", .function = f_adaptive_max_pool, .shapes = IMAGES},
    {.name = "resize", .function = f_resize, .shapes = IMAGES},
    {.name = "resize, linear", .function = f_resize_linear, .shapes = IMAGES},
    {.name = "pixel_shuffle", .function = f_pixel_shuffle, .shapes = "abcd"},
};

#define LOSS_CASES(name_, shapes_, ...)                                                                                \
    {.name = #name_ " mean", .function = f_##name_##_mean, .shapes = shapes_, __VA_ARGS__},                            \
        {.name = #name_ " sum", .function = f_##name_##_sum, .shapes = shapes_, __VA_ARGS__}, {                        \
        .name = #name_ " none", .function = f_##name_##_none, .shapes = shapes_, __VA_ARGS__                           \
    }
#define PAIRS   "ij,ij .,. ijk,ijk"
#define CLASSES "iC iCk"

static const gradcheck_case loss_cases[] = {
    LOSS_CASES(mse, PAIRS, .low = -1.5, .high = 1.5),
    LOSS_CASES(l1, PAIRS, .low = -1.5, .high = 1.5),
    LOSS_CASES(huber, PAIRS, .low = -1.5, .high = 1.5),
    LOSS_CASES(bce, PAIRS, .low = 0.2, .high = 0.8),
    LOSS_CASES(bce_with_logits, PAIRS, .low = -1.5, .high = 1.5),
    LOSS_CASES(weighted_bce, PAIRS, .low = -1.5, .high = 1.5),
    LOSS_CASES(kl_div, PAIRS, .low = 0.2, .high = 1.5),
    LOSS_CASES(nll, CLASSES, .low = -1.5, .high = 1.5),
    LOSS_CASES(cross_entropy, CLASSES, .low = -1.5, .high = 1.5),
    {.name = "cross_entropy with all options", .function = f_cross_entropy_options, .shapes = CLASSES},
};

#endif
