/* Attention: softmax(scale q k^T) v, and its gradient, by kernels that never store the matrix of all scores. */
#include "autograd/ops/attention.h"

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"
#include "autograd/samples.h"

#include <math.h>

#include "base/option.h"

enum { Q, K, V, BIAS, MASK, INPUTS };
enum { SAVED_OUTPUT, SAVED_LOG_SUM };

/* Views [length, width] or [batch, length, width] in the kernels' shape [batch, heads, length, width]. */
static ls_tensor with_four_axes(const ls_tensor *x) {
    int64_t size[4], stride[4];
    for (int i = 3, from = x->ndim - 1; i >= 0; i--) {
        const bool there = i >= 2 || (i == 0 ? x->ndim > 2 : x->ndim > 3);
        size[i] = there ? x->size[from] : 1;
        stride[i] = there ? x->stride[from--] : 0;
    }
    return ls_stack_view(x, 4, size, stride, 0);
}

/*
 * Returns a tensor of these sizes with the memory order of q. If the projection stores the heads of each position
 * together, so does the result, and merging the heads is then a view.
 */
static ls_tensor *laid_out_like(const char *call, const ls_tensor *q, const ls_tensor *x, int64_t width) {
    int64_t size[LS_MAX_DIMS] = {0};
    for (int i = 0; i < x->ndim; i++) {
        size[i] = i == x->ndim - 1 ? width : x->size[i];
    }
    if (q->ndim < 4 || q->stride[1] >= q->stride[2]) {
        return ls_tensor_new(call, ls_tensor_device(x), x->ndim, size, (ls_dtype)x->dtype);
    }
    const int64_t heads = size[1], length = size[2];
    ls_tensor *base = ls_tensor_new(call, ls_tensor_device(x), 4, (const int64_t[]){size[0], length, heads, width},
                                    (ls_dtype)x->dtype);
    ls_tensor *view =
        base == NULL
            ? NULL
            : ls_tensor_view(base, 4, size, (const int64_t[]){length * heads * width, width, heads * width, 1}, 0);
    ls_release(base);
    return view;
}

static ls_status attention_shape(ls_op_call *call) {
    const ls_tensor *q = call->inputs[Q], *v = call->inputs[V];
    call->output = laid_out_like(call->op->name, q, q, v->size[v->ndim - 1]);
    return ls_made(call->output);
}

/* The tensors and the bias, in the kernels' shape. */
typedef struct operands {
    ls_tensor q, k, v, bias;
    const ls_tensor *given_bias; /* NULL if there is no bias */
} operands;

static void open_operands(operands *o, ls_tensor *const *inputs) {
    o->q = with_four_axes(inputs[Q]);
    o->k = with_four_axes(inputs[K]);
    o->v = with_four_axes(inputs[V]);
    o->given_bias = inputs[BIAS] != NULL ? &o->bias : NULL;
    if (o->given_bias != NULL) {
        o->bias = with_four_axes(inputs[BIAS]);
    }
}

static ls_status attention_forward(ls_op_call *call) {
    const ls_op_parameters *p = call->parameters;
    operands o;
    open_operands(&o, call->inputs);
    ls_tensor y = with_four_axes(call->output);
    ls_tensor *log_sum = ls_tensor_new_owned(call->op->name, ls_tensor_device(&o.q), 3, o.q.size, (ls_dtype)o.q.dtype);
    call->saved[SAVED_LOG_SUM] = log_sum;
    LS_TRY(ls_made(log_sum));
    return ls_kernels_of(&o.q)->attention(ls_stream_of(&o.q), &y, log_sum, &o.q, &o.k, &o.v, call->inputs[MASK],
                                          o.given_bias, p->number[0], p->integer[0] != 0, call->rounds_to);
}

static ls_status run_backward(const ls_node *node, const ls_tensor *gradient, ls_tensor *const *d) {
    ls_tensor views[3];
    for (int i = Q; i <= V; i++) {
        if (d[i] != NULL) {
            views[i] = with_four_axes(d[i]);
        }
    }
    const ls_tensor g = with_four_axes(gradient), y = with_four_axes(node->saved[SAVED_OUTPUT]);
    operands o;
    open_operands(&o, node->inputs);
    return ls_kernels_of(&o.q)->attention_backward(
        ls_stream_of(&o.q), d[Q] != NULL ? &views[Q] : NULL, d[K] != NULL ? &views[K] : NULL,
        d[V] != NULL ? &views[V] : NULL, &g, &y, node->saved[SAVED_LOG_SUM], &o.q, &o.k, &o.v, node->inputs[MASK],
        o.given_bias, node->parameters.number[0], node->parameters.integer[0] != 0, node->rounds_to);
}

/* Returns whether kernels can read the rows in place: the last axis is dense, and rows do not overlap. */
static bool rows_are_dense(const ls_tensor *x) {
    const int last = x->ndim - 1;
    return (x->size[last] <= 1 || x->stride[last] == 1) &&
           (x->size[last - 1] <= 1 || x->stride[last - 1] >= x->size[last]);
}

static ls_status attention_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *d[3] = {NULL};
    for (int i = Q; i <= V; i++) {
        if (ls_wants(node, i)) {
            const ls_tensor *x = node->inputs[i];
            d[i] = laid_out_like(node->op->name, x, x, x->size[x->ndim - 1]);
            LS_TRY(ls_made(d[i]));
        }
    }
    ls_tensor *g = rows_are_dense(gradient) ? ls_tensor_hold(gradient) : ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status = run_backward(node, g, d);
    ls_tensor_drop(g);
    LS_TRY(status);
    for (int i = Q; i <= V; i++) {
        if (d[i] != NULL) {
            LS_TRY(ls_accumulate(node, i, d[i]));
        }
    }
    return LS_OK;
}

/* All axes before the last two are batch axes. */
static ls_samples_use attention_samples(ls_samples_call *call) {
    for (int i = Q; i <= BIAS; i++) {
        const int axis = call->inputs[i] != NULL ? ls_sample_axis(call, i) : -1;
        if (axis >= 0 && axis >= call->inputs[i]->ndim - 2) {
            return LS_SAMPLES_MIXED;
        }
    }
    return ls_sample_axis(call, Q) == call->axis ? LS_SAMPLES_KEPT : LS_SAMPLES_UNKNOWN;
}

static const ls_op attention_op = {.name = "ls_attention",
                                   .shape = attention_shape,
                                   .forward = attention_forward,
                                   .backward = attention_backward,
                                   .over_samples = attention_samples,
                                   .saves_output = true,
                                   .optional = 1U << BIAS | 1U << MASK,
                                   .reads = {[Q] = 1U << Q | 1U << K | 1U << V | 1U << BIAS | 1U << MASK,
                                             [K] = 1U << Q | 1U << K | 1U << V | 1U << BIAS | 1U << MASK,
                                             [V] = 1U << Q | 1U << K | 1U << BIAS | 1U << MASK}};

/* ---- attention of one projection --------------------------------------------------------------------------------- */

/* Views a tensor [batch, length, parts * width] as the kernels' [batch, heads, length, width / heads] of one part. */
static ls_tensor part_of(const ls_tensor *x, int part, int parts, int64_t heads) {
    const int64_t length = x->size[1], row = x->size[2], width = row / parts;
    const int64_t size[4] = {x->size[0], heads, length, width / heads};
    const int64_t stride[4] = {length * row, width / heads, row, 1};
    return ls_stack_view(x, 4, size, stride, part * width);
}

static ls_status projection_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const int64_t size[3] = {x->size[0], x->size[1], x->size[2] / 3};
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), 3, size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

static ls_status projection_forward(ls_op_call *call) {
    const ls_op_parameters *p = call->parameters;
    const ls_tensor *x = call->inputs[0];
    const int64_t heads = p->integer[1];
    const ls_tensor q = part_of(x, Q, 3, heads), k = part_of(x, K, 3, heads), v = part_of(x, V, 3, heads);
    ls_tensor y = part_of(call->output, 0, 1, heads);
    ls_tensor *log_sum = ls_tensor_new_owned(call->op->name, ls_tensor_device(x), 3, q.size, (ls_dtype)x->dtype);
    call->saved[SAVED_LOG_SUM] = log_sum;
    LS_TRY(ls_made(log_sum));
    return ls_kernels_of(x)->attention(ls_stream_of(x), &y, log_sum, &q, &k, &v, NULL, NULL, p->number[0],
                                       p->integer[0] != 0, call->rounds_to);
}

static ls_status give_projection(const ls_node *node, const ls_tensor *gradient, const ls_tensor *dx) {
    const ls_tensor *x = node->inputs[0];
    const int64_t heads = node->parameters.integer[1];
    const ls_tensor q = part_of(x, Q, 3, heads), k = part_of(x, K, 3, heads), v = part_of(x, V, 3, heads);
    ls_tensor dq = part_of(dx, Q, 3, heads), dk = part_of(dx, K, 3, heads), dv = part_of(dx, V, 3, heads);
    const ls_tensor g = part_of(gradient, 0, 1, heads), y = part_of(node->saved[SAVED_OUTPUT], 0, 1, heads);
    return ls_kernels_of(x)->attention_backward(ls_stream_of(x), &dq, &dk, &dv, &g, &y, node->saved[SAVED_LOG_SUM], &q,
                                                &k, &v, NULL, NULL, node->parameters.number[0],
                                                node->parameters.integer[0] != 0, node->rounds_to);
}

static ls_status projection_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *dx = ls_tensor_like(node->op->name, node->inputs[0], (ls_dtype)gradient->dtype);
    LS_TRY(ls_made(dx));
    ls_tensor *g = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status = give_projection(node, g, dx);
    ls_tensor_drop(g);
    LS_TRY(status);
    return ls_accumulate(node, 0, dx);
}

static ls_samples_use projection_samples(ls_samples_call *call) {
    return ls_sample_axis(call, 0) == 0 ? LS_SAMPLES_KEPT : LS_SAMPLES_MIXED;
}

static const ls_op projection_op = {.name = "ls_attention",
                                    .shape = projection_shape,
                                    .forward = projection_forward,
                                    .backward = projection_backward,
                                    .over_samples = projection_samples,
                                    .saves_output = true,
                                    .reads = {1}};

const ls_op *const ls_attention_ops[] = {&attention_op, &projection_op, NULL};

ls_tensor *ls_attention_of_projection(ls_tensor *x, int64_t heads, bool causal) {
    const int64_t width = x->size[2] / 3 / heads;
    const ls_op_parameters parameters = {.number = {1 / sqrt((double)width)}, .integer = {causal, heads}};
    ls_tensor *const inputs[] = {x};
    return ls_apply_dense(&projection_op, inputs, 1, 1, &parameters, 1);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static ls_status refuse(ls_tensor *const *inputs, const char *why) {
    return ls_fail(LS_ERR_SHAPE, "ls_attention: q %s, k %s, v %s: %s", LS_SHAPE_TEXT(inputs[Q]),
                   LS_SHAPE_TEXT(inputs[K]), LS_SHAPE_TEXT(inputs[V]), why);
}

static ls_status check_shapes(ls_tensor *const *inputs) {
    const ls_tensor *q = inputs[Q], *k = inputs[K], *v = inputs[V];
    const int ndim = q->ndim;
    if (ndim < 2 || ndim > 4 || k->ndim != ndim || v->ndim != ndim) {
        return refuse(inputs, "all must be [batch, heads, length, width], [batch, length, width] or [length, width]");
    }
    for (int i = 0; i < ndim - 2; i++) {
        if (k->size[i] != q->size[i] || v->size[i] != q->size[i]) {
            return refuse(inputs, i == 0 ? "the batches differ" : "the numbers of heads differ");
        }
    }
    if (k->size[ndim - 1] != q->size[ndim - 1]) {
        return refuse(inputs, "the widths of q and k differ");
    }
    return v->size[ndim - 2] != k->size[ndim - 2] ? refuse(inputs, "the lengths of k and v differ") : LS_OK;
}

static ls_status check_key_mask(ls_tensor *const *inputs) {
    const ls_tensor *k = inputs[K], *mask = inputs[MASK];
    if (mask == NULL) {
        return LS_OK;
    }
    if (mask->dtype != LS_BOOL && mask->dtype != LS_U8) {
        return ls_fail(LS_ERR_SHAPE, "ls_attention: the key mask is a tensor of %s, but must be bool or u8",
                       ls_dtype_name((ls_dtype)mask->dtype));
    }
    if (k->ndim < 3 || mask->ndim != 2 || mask->size[0] != k->size[0] || mask->size[1] != k->size[k->ndim - 2]) {
        return ls_fail(LS_ERR_SHAPE, "ls_attention: the key mask is %s, but must be [batch, keys] for k %s",
                       LS_SHAPE_TEXT(mask), LS_SHAPE_TEXT(k));
    }
    return LS_OK;
}

/* Returns whether each axis of the mask has the size of the scores' axis, or 1. The mask may have fewer axes than q. */
static bool mask_broadcasts(ls_tensor *const *inputs, const ls_tensor *mask) {
    const ls_tensor *q = inputs[Q], *k = inputs[K];
    bool fits = mask->ndim <= q->ndim;
    for (int i = 0; fits && i < mask->ndim; i++) {
        const int axis = q->ndim - mask->ndim + i;
        const int64_t size = axis == q->ndim - 1 ? k->size[q->ndim - 2] : q->size[axis];
        fits = mask->size[i] == size || mask->size[i] == 1;
    }
    return fits;
}

static ls_status check_attn_mask(ls_tensor *const *inputs, const ls_tensor *mask) {
    const ls_tensor *q = inputs[Q], *k = inputs[K];
    if (mask == NULL) {
        return LS_OK;
    }
    if (mask->dtype != LS_BOOL && mask->dtype != q->dtype) {
        return ls_fail(LS_ERR_SHAPE,
                       "ls_attention: attn_mask is a tensor of %s, but must be bool or %s, the dtype of q",
                       ls_dtype_name((ls_dtype)mask->dtype), ls_dtype_name((ls_dtype)q->dtype));
    }
    if (!mask_broadcasts(inputs, mask)) {
        return ls_fail(
            LS_ERR_SHAPE,
            "ls_attention: attn_mask is %s, but must broadcast to [batch, heads, queries, keys] for q %s and k %s",
            LS_SHAPE_TEXT(mask), LS_SHAPE_TEXT(q), LS_SHAPE_TEXT(k));
    }
    if (mask->needs_grad && !ls_thread()->no_grad) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "ls_attention: attn_mask requires a gradient, which is not supported: pass ls_detach(attn_mask)");
    }
    return LS_OK;
}

/* Returns the mask with dense rows of one number per key. Its other axes may still have size 1, so the copy is small.
 */
static ls_tensor *dense_rows(ls_tensor *mask, int64_t keys) {
    ls_shape shape = {.ndim = mask->ndim > 0 ? mask->ndim : 1};
    for (int i = 0; i < shape.ndim - 1; i++) {
        shape.size[i] = mask->size[i];
    }
    shape.size[shape.ndim - 1] = keys;
    ls_tensor *rows = ls_expand(mask, shape);
    return rows == NULL || keys <= 1 || rows->stride[shape.ndim - 1] == 1
               ? rows
               : ls_replaced(ls_contiguous(rows), rows, mask);
}

/*
 * Returns the bias that is added to the scores, of shape [..., queries, keys], in the kernels' dtype and with dense
 * rows. The expansion to all scores is a view.
 */
static ls_tensor *bias_of(ls_tensor *const *inputs, ls_tensor *mask) {
    const ls_tensor *q = inputs[Q], *k = inputs[K];
    ls_shape scores = {.ndim = q->ndim};
    for (int i = 0; i < q->ndim; i++) {
        scores.size[i] = i == q->ndim - 1 ? k->size[i - 1] : q->size[i];
    }
    ls_tensor *bias = ls_to(mask, ls_compute_dtype((ls_dtype)q->dtype));
    if (bias != NULL && mask->dtype == LS_BOOL) { /* log(1) = 0, log(0) = -infinity */
        bias = ls_replaced(ls_log(bias), bias, mask);
    }
    bias = bias != NULL ? ls_replaced(dense_rows(bias, scores.size[scores.ndim - 1]), bias, mask) : NULL;
    return bias != NULL ? ls_replaced(ls_expand(bias, scores), bias, mask) : NULL;
}

/* Applies the operation; first copies inputs whose rows are not dense. */
static ls_tensor *attend(ls_tensor *const *given, const ls_op_parameters *parameters) {
    ls_tensor *inputs[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        ls_tensor *x = given[i];
        const bool dense = x == NULL || (i == MASK ? x->contiguous : i == BIAS || rows_are_dense(x));
        inputs[i] = dense ? x : ls_contiguous(x);
        if (!dense && inputs[i] == NULL) {
            return NULL;
        }
    }
    const ls_dtype dtype = (ls_dtype)given[Q]->dtype;
    ls_tensor *y = ls_apply_as(&attention_op, inputs, INPUTS, 4, parameters, ls_compute_dtype(dtype), dtype);
    for (int i = 0; i < INPUTS; i++) {
        (void)ls_replaced(NULL, inputs[i], given[i]);
    }
    return y;
}

ls_tensor *ls_attention(ls_tensor *q, ls_tensor *k, ls_tensor *v, const ls_attention_options *options) {
    static const ls_attention_options defaults;
    options = options != NULL ? options : &defaults;
    ls_tensor *inputs[INPUTS] = {[Q] = q, [K] = k, [V] = v, [BIAS] = options->attn_mask, [MASK] = options->key_mask};
    if (!ls_inputs_are_given(attention_op.name, inputs, 3) || !ls_inputs_are_here(attention_op.name, inputs, INPUTS)) {
        return NULL;
    }
    if (ls_check_floating(attention_op.name, inputs, 3) != LS_OK || check_shapes(inputs) != LS_OK ||
        check_key_mask(inputs) != LS_OK || check_attn_mask(inputs, options->attn_mask) != LS_OK) {
        return ls_scope_failed();
    }
    const int64_t width = q->size[q->ndim - 1];
    const double usual = width > 0 ? 1 / sqrt((double)width) : 1;
    const ls_op_parameters parameters = {.number = {ls_option(options->scale, usual)}, .integer = {options->causal}};
    if (options->attn_mask != NULL) {
        inputs[BIAS] = bias_of(inputs, options->attn_mask);
        if (inputs[BIAS] == NULL) {
            return NULL;
        }
    }
    return ls_replaced(attend(inputs, &parameters), inputs[BIAS], options->attn_mask);
}
