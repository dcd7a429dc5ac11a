#include "autograd/ops/linear.h"

#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/samples.h"

/* The matrices of one call: z[rows, out] = x[rows, in] weight[out, in]^T. */
typedef struct affine {
    const ls_tensor *x, *weight;
    int64_t rows, in, out;
    int64_t x_leading, weight_leading;
    bool x_transposed, weight_transposed;
} affine;

/* Distinguishes the two operations: only the gradient of relu needs the output. */
static bool is_relu(const ls_op *op) {
    return op->saves_output;
}

static const ls_tensor *bias_of(const ls_op_call *call) {
    return call->input_count > 2 ? call->inputs[2] : NULL;
}

static bool matrix_of(const ls_tensor *tensor, int64_t rows, int64_t columns, int64_t *leading, bool *transposed) {
    if (tensor->contiguous) {
        *leading = columns > 0 ? columns : 1;
        *transposed = false;
        return true;
    }
    return tensor->ndim == 2 &&
           ls_matrix_layout(rows, columns, tensor->stride[0], tensor->stride[1], leading, transposed);
}

/* Copies of x and weight, rounded once for the forward and the backward pass; NULL if not rounded in advance. */
enum { SAVED_X = 1, SAVED_WEIGHT = 2 };

/*
 * Rounds a matrix that several products use. Gives ownership of the copy to *rounded, or sets it to NULL if each
 * product rounds the matrix itself.
 */
__attribute__((noinline)) static ls_status round_ahead(const char *call, const ls_tensor *x, ls_dtype rounds_to,
                                                       ls_tensor **rounded) {
    const bool is_useful = rounds_to != LS_F32 && x->dtype == LS_F32 && x->contiguous && x->count > 0 &&
                           x->size[x->ndim - 1] % 8 == 0 && ls_tensor_device(x)->takes_rounded;
    if (!is_useful) {
        return LS_OK;
    }
    *rounded = ls_tensor_like_owned(call, x, rounds_to);
    LS_TRY(ls_made(*rounded));
    return ls_kernels_of(x)->cast(ls_stream_of(x), *rounded, x);
}

/* Makes the product use the rounded copies of A and B, unless they are NULL. */
__attribute__((noinline)) static void use_rounded(ls_gemm *gemm, const ls_tensor *a, const ls_tensor *b) {
    if (a != NULL) {
        gemm->a = a->data;
        gemm->a_rounded = (ls_dtype)a->dtype;
    }
    if (b != NULL) {
        gemm->b = b->data;
        gemm->b_rounded = (ls_dtype)b->dtype;
    }
}

/* Returns false if x or weight must be copied first. */
static bool affine_of(const ls_tensor *x, const ls_tensor *weight, affine *map) {
    *map = (affine){.x = x, .weight = weight, .rows = 1, .in = weight->size[1], .out = weight->size[0]};
    for (int i = 0; i < x->ndim - 1; i++) {
        map->rows *= x->size[i];
    }
    return matrix_of(x, map->rows, map->in, &map->x_leading, &map->x_transposed) &&
           matrix_of(weight, map->out, map->in, &map->weight_leading, &map->weight_transposed);
}

static ls_status refuse(const ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const ls_tensor *weight = call->inputs[1];
    const ls_tensor *bias = bias_of(call);
    if (weight->ndim != 2) {
        return ls_fail(LS_ERR_SHAPE, "%s: weight is %s, but must be [out, in]", call->op->name, LS_SHAPE_TEXT(weight));
    }
    if (x->ndim < 1 || x->size[x->ndim - 1] != weight->size[1]) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: the last axis of x %s must have %lld elements, one for each input of weight %s",
                       call->op->name, LS_SHAPE_TEXT(x), (long long)weight->size[1], LS_SHAPE_TEXT(weight));
    }
    return ls_fail(LS_ERR_SHAPE, "%s: bias is %s, but must be [%lld] for weight %s", call->op->name,
                   LS_SHAPE_TEXT(bias), (long long)weight->size[0], LS_SHAPE_TEXT(weight));
}

static ls_status linear_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const ls_tensor *weight = call->inputs[1];
    const ls_tensor *bias = bias_of(call);
    if (weight->ndim != 2 || x->ndim < 1 || x->size[x->ndim - 1] != weight->size[1] ||
        (bias != NULL && (bias->ndim != 1 || bias->size[0] != weight->size[0]))) {
        return refuse(call);
    }
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < x->ndim - 1; i++) {
        size[i] = x->size[i];
    }
    size[x->ndim - 1] = weight->size[0];
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), x->ndim, size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

static ls_status linear_forward(ls_op_call *call) {
    const ls_tensor *bias = bias_of(call);
    ls_tensor *output = call->output;
    if (output->count == 0) {
        return LS_OK;
    }
    affine map;
    (void)affine_of(call->inputs[0], call->inputs[1], &map); /* cannot fail: ls_linear_activation has made the copies */
    ls_gemm gemm = {.dtype = (ls_dtype)output->dtype,
                    .m = map.rows,
                    .n = map.out,
                    .k = map.in,
                    .a = map.x->data,
                    .lda = map.x_leading,
                    .transpose_a = map.x_transposed,
                    .b = map.weight->data,
                    .ldb = map.weight_leading,
                    .transpose_b = !map.weight_transposed,
                    .c = output->data,
                    .ldc = map.out,
                    .bias = bias != NULL ? bias->data : NULL,
                    .activation = is_relu(call->op) ? LS_ACTIVATION_RELU : LS_ACTIVATION_NONE,
                    .rounds_to = call->rounds_to};
    if (call->rounds_to != LS_F32 && call->records) {
        LS_TRY(round_ahead(call->op->name, map.x, call->rounds_to, &call->saved[SAVED_X]));
        LS_TRY(round_ahead(call->op->name, map.weight, call->rounds_to, &call->saved[SAVED_WEIGHT]));
        use_rounded(&gemm, call->saved[SAVED_X], call->saved[SAVED_WEIGHT]);
    }
    return ls_kernels_of(output)->gemm(ls_stream_of(output), &gemm);
}

static ls_status give_x(ls_node *node, const ls_tensor *dz, const ls_tensor *rounded, const affine *map) {
    bool accumulate;
    ls_tensor *dx = ls_gradient_place(node, 0, &accumulate);
    if (dx == NULL || dx->count == 0) {
        return ls_made(dx);
    }
    ls_gemm gemm = {.dtype = (ls_dtype)dz->dtype,
                    .m = map->rows,
                    .n = map->in,
                    .k = map->out,
                    .a = dz->data,
                    .lda = map->out > 0 ? map->out : 1,
                    .b = map->weight->data,
                    .ldb = map->weight_leading,
                    .transpose_b = map->weight_transposed,
                    .c = dx->data,
                    .ldc = map->in,
                    .accumulate = accumulate,
                    .rounds_to = node->rounds_to};
    if (node->rounds_to != LS_F32) {
        use_rounded(&gemm, rounded, node->saved[SAVED_WEIGHT]);
    }
    return ls_kernels_of(dz)->gemm(ls_stream_of(dz), &gemm);
}

static ls_status give_weight(ls_node *node, const ls_tensor *dz, const ls_tensor *rounded, const affine *map) {
    bool accumulate;
    ls_tensor *dw = ls_gradient_place(node, 1, &accumulate);
    if (dw == NULL || dw->count == 0) {
        return ls_made(dw);
    }
    ls_gemm gemm = {.dtype = (ls_dtype)dz->dtype,
                    .m = map->out,
                    .n = map->in,
                    .k = map->rows,
                    .a = dz->data,
                    .lda = map->out,
                    .transpose_a = true,
                    .b = map->x->data,
                    .ldb = map->x_leading,
                    .transpose_b = map->x_transposed,
                    .c = dw->data,
                    .ldc = map->in,
                    .accumulate = accumulate,
                    .rounds_to = node->rounds_to};
    if (node->rounds_to != LS_F32) {
        use_rounded(&gemm, rounded, node->saved[SAVED_X]);
    }
    return ls_kernels_of(dz)->gemm(ls_stream_of(dz), &gemm);
}

/* Computes the bias gradient: the column sums of dz, or dz itself if it has one row. */
static ls_status give_bias(ls_node *node, const ls_tensor *dz, const affine *map) {
    bool accumulate;
    ls_tensor *db = ls_gradient_place(node, 2, &accumulate);
    if (db == NULL || db->count == 0) {
        return ls_made(db);
    }
    const ls_kernels *kernels = ls_kernels_of(dz);
    ls_stream *stream = ls_stream_of(dz);
    if (map->rows == 1) {
        const ls_tensor row = ls_stack_view_dense(dz, 1, &map->out);
        return accumulate ? kernels->axpy(stream, (ls_dtype)dz->dtype, map->out, 1.0, dz->data, db->data)
                          : kernels->copy(stream, db, &row);
    }
    const ls_tensor matrix = ls_stack_view_dense(dz, 2, (const int64_t[]){map->rows, map->out});
    if (accumulate) {
        return kernels->add_sum(stream, db, &matrix);
    }
    ls_tensor sums = ls_stack_view_dense(db, 2, (const int64_t[]){1, map->out});
    return kernels->sum(stream, &sums, &matrix);
}

/* Returns the gradient before the activation, as a dense tensor. Returns ownership of the reference to the caller. */
static ls_tensor *before_activation(const ls_node *node, ls_tensor *gradient) {
    if (!is_relu(node->op)) {
        return ls_dense(node->op->name, gradient);
    }
    ls_tensor *dz = ls_tensor_like_owned(node->op->name, gradient, (ls_dtype)gradient->dtype);
    if (dz != NULL) {
        const ls_tensor *operands[] = {gradient, node->saved[0]};
        if (ls_kernels_of(dz)->relu_backward(ls_stream_of(dz), dz, operands, NULL) != LS_OK) {
            ls_tensor_drop(dz);
            return NULL;
        }
    }
    return dz;
}

/* Computes the gradients of x and weight from dz, and from its rounded copy if that is not NULL. */
static ls_status give_products(ls_node *node, const ls_tensor *dz, const ls_tensor *rounded, const affine *map) {
    if (ls_wants(node, 0)) {
        LS_TRY(give_x(node, dz, rounded, map));
    }
    return ls_wants(node, 1) ? give_weight(node, dz, rounded, map) : LS_OK;
}

/* Same as give_products, but rounds dz once for both gradients. */
__attribute__((noinline)) static ls_status give_rounded(ls_node *node, const ls_tensor *dz, const affine *map) {
    ls_tensor *rounded = NULL;
    ls_status status = LS_OK;
    if (ls_wants(node, 0) && ls_wants(node, 1)) {
        status = round_ahead(node->op->name, dz, (ls_dtype)node->rounds_to, &rounded);
    }
    status = status == LS_OK ? give_products(node, dz, rounded, map) : status;
    ls_tensor_drop(rounded);
    return status;
}

static ls_status give_all(ls_node *node, const ls_tensor *dz) {
    affine map;
    (void)affine_of(node->inputs[0], node->inputs[1], &map);
    LS_TRY(node->rounds_to != LS_F32 ? give_rounded(node, dz, &map) : give_products(node, dz, NULL, &map));
    return node->input_count > 2 && ls_wants(node, 2) ? give_bias(node, dz, &map) : LS_OK;
}

static ls_status linear_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *dz = before_activation(node, gradient);
    LS_TRY(ls_made(dz));
    const ls_status status = give_all(node, dz);
    ls_tensor_drop(dz);
    return status;
}

static ls_samples_use linear_samples(ls_samples_call *call) {
    const int axis = ls_sample_axis(call, 0);
    const bool kept = axis >= 0 && axis < call->inputs[0]->ndim - 1 && ls_sample_axis(call, 1) < 0;
    return kept ? LS_SAMPLES_KEPT : LS_SAMPLES_MIXED;
}

static const ls_op linear_op = {.name = "ls_linear",
                                .shape = linear_shape,
                                .forward = linear_forward,
                                .backward = linear_backward,
                                .over_samples = linear_samples,
                                .reads = {2, 1}};

static const ls_op linear_relu_op = {.name = "ls_linear",
                                     .shape = linear_shape,
                                     .forward = linear_forward,
                                     .backward = linear_backward,
                                     .over_samples = linear_samples,
                                     .reads = {2, 1},
                                     .saves_output = true};

const ls_op *const ls_linear_ops[] = {&linear_op, &linear_relu_op, NULL};

/* Returns the inputs that gemm cannot read in place, as bits. The shape rule rejects inputs that are not matrices. */
static unsigned must_copy(const ls_tensor *x, const ls_tensor *weight) {
    enum { X = 1, WEIGHT = 2, BIAS = 4 };
    affine map;
    if ((x->contiguous && weight->contiguous) || weight->ndim != 2 || x->ndim < 1 || affine_of(x, weight, &map)) {
        return BIAS;
    }
    return X | WEIGHT | BIAS;
}

ls_tensor *ls_linear_activation(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, ls_activation activation) {
    const ls_op *op = activation == LS_ACTIVATION_RELU ? &linear_relu_op : &linear_op;
    ls_tensor *const inputs[] = {x, weight, bias};
    if (x == NULL || weight == NULL) {
        return ls_apply(op, inputs, 2, NULL); /* reports the error */
    }
    const int count = bias != NULL ? 3 : 2;
    if (ls_check_floating(op->name, inputs, count) != LS_OK) {
        return ls_scope_failed();
    }
    return ls_apply_dense(op, inputs, count, count, NULL, must_copy(x, weight));
}

ls_tensor *ls_linear(ls_tensor *x, ls_tensor *weight, ls_tensor *bias) {
    return ls_linear_activation(x, weight, bias, LS_ACTIVATION_NONE);
}
