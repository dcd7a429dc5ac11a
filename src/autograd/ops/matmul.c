#include <stdio.h>

#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/samples.h"

/* One of the three matrices of a product, or a batch of matrices. A vector is a matrix with one row or one column. */
typedef struct operand {
    const ls_tensor *tensor;
    int64_t rows, columns;
    int64_t row_stride, column_stride;
    int64_t
        batch_stride[LS_MAX_DIMS]; /* strides along the product's batch axes; 0 along axes where the matrix repeats */
} operand;

/* Computes c = a b for every index of the batch axes. */
typedef struct batched_product {
    int batch_ndim;
    int64_t batch[LS_MAX_DIMS];
    operand a, b, c;
    ls_dtype rounds_to; /* see ls_gemm */
} batched_product;

/* Returns the number of matrix axes of a tensor. These are its last axes; the axes before them are batch axes. */
static int matrix_axes(const ls_tensor *tensor) {
    return tensor->ndim < 2 ? tensor->ndim : 2;
}

static operand operand_of(const ls_tensor *tensor, bool has_rows, bool has_columns, int batch_ndim) {
    operand result = {.tensor = tensor, .rows = 1, .columns = 1};
    int axis = tensor->ndim;
    if (has_columns) {
        axis--;
        result.columns = tensor->size[axis];
        result.column_stride = tensor->stride[axis];
    }
    if (has_rows) {
        axis--;
        result.rows = tensor->size[axis];
        result.row_stride = tensor->stride[axis];
    }
    for (int i = batch_ndim - 1; axis > 0; i--) {
        axis--;
        result.batch_stride[i] = tensor->size[axis] == 1 ? 0 : tensor->stride[axis];
    }
    return result;
}

/* Returns whether gemm can read the matrix in place. */
static bool readable(const operand *o) {
    int64_t leading;
    bool transposed;
    return ls_matrix_layout(o->rows, o->columns, o->row_stride, o->column_stride, &leading, &transposed);
}

/*
 * Merges the last batch axis, of size `count`, into the rows of `o`. Returns false if the combined stride is not
 * uniform.
 */
static bool fold(operand *o, int axis, int64_t count) {
    const int64_t step = o->batch_stride[axis];
    if (step == 0 || (o->rows > 1 && step != o->rows * o->row_stride)) {
        return false;
    }
    o->row_stride = o->rows > 1 ? o->row_stride : step;
    o->rows *= count;
    return readable(o);
}

/*
 * If b is the same matrix along a batch axis, and the rows of a and c continue with a uniform stride along it, the axis
 * is merged into the rows: one large product instead of many.
 */
static void fold_batch_into_rows(batched_product *p) {
    for (int last = p->batch_ndim - 1; last >= 0; last--) {
        const int64_t count = p->batch[last];
        if (count != 1) {
            operand a = p->a;
            operand c = p->c;
            if (count == 0 || p->b.batch_stride[last] != 0 || !fold(&a, last, count) || !fold(&c, last, count)) {
                return;
            }
            p->a = a;
            p->c = c;
        }
        p->batch_ndim = last;
    }
}

static batched_product product_of(const ls_tensor *a, const ls_tensor *b, const ls_tensor *c, ls_dtype rounds_to) {
    const bool rows = a->ndim > 1;
    const bool columns = b->ndim > 1;
    batched_product result = {.batch_ndim = c->ndim - (rows ? 1 : 0) - (columns ? 1 : 0), .rounds_to = rounds_to};
    for (int i = 0; i < result.batch_ndim; i++) {
        result.batch[i] = c->size[i];
    }
    result.a = operand_of(a, rows, true, result.batch_ndim);
    result.b = operand_of(b, true, columns, result.batch_ndim);
    result.c = operand_of(c, rows, columns, result.batch_ndim);
    fold_batch_into_rows(&result);
    return result;
}

/* Advances to the next index of the batch. Returns false after the last index. */
static bool next_index(const batched_product *p, int64_t *index) {
    for (int i = p->batch_ndim - 1; i >= 0; i--) {
        if (++index[i] < p->batch[i]) {
            return true;
        }
        index[i] = 0;
    }
    return false;
}

static char *matrix_at(const operand *o, const batched_product *p, const int64_t *index) {
    int64_t offset = 0;
    for (int i = 0; i < p->batch_ndim; i++) {
        offset += index[i] * o->batch_stride[i];
    }
    return (char *)o->tensor->data + offset * (int64_t)ls_dtype_size((ls_dtype)o->tensor->dtype);
}

/* Returns whether a matrix of `o` that repeats along batch axes was already visited before `index`. */
static bool visited(const operand *o, const batched_product *p, const int64_t *index) {
    for (int i = 0; i < p->batch_ndim; i++) {
        if (index[i] > 0 && o->batch_stride[i] == 0) {
            return true;
        }
    }
    return false;
}

static void set_a(ls_gemm *gemm, const operand *o, bool transpose) {
    bool transposed = false;
    (void)ls_matrix_layout(o->rows, o->columns, o->row_stride, o->column_stride, &gemm->lda, &transposed);
    gemm->transpose_a = transposed != transpose;
}

static void set_b(ls_gemm *gemm, const operand *o, bool transpose) {
    bool transposed = false;
    (void)ls_matrix_layout(o->rows, o->columns, o->row_stride, o->column_stride, &gemm->ldb, &transposed);
    gemm->transpose_b = transposed != transpose;
}

/*
 * Computes target (+)= left right for every index of the batch. Each factor may be transposed; k is the inner size. The
 * target is dense. If it repeats along batch axes, it receives the sum over them.
 */
static ls_status multiply(const batched_product *p, const operand *left, bool transpose_left, const operand *right,
                          bool transpose_right, const operand *target, bool accumulate) {
    const ls_kernels *kernels = ls_kernels_of(target->tensor);
    ls_stream *stream = ls_stream_of(target->tensor);
    int64_t batches = 1;
    for (int i = 0; i < p->batch_ndim; i++) {
        batches *= p->batch[i];
    }
    ls_gemm gemm = {.dtype = (ls_dtype)target->tensor->dtype,
                    .m = target->rows,
                    .n = target->columns,
                    .k = transpose_left ? left->rows : left->columns,
                    .rounds_to = p->rounds_to};
    if (target->tensor->count == 0) {
        return LS_OK;
    }
    if (gemm.k == 0 || batches == 0) {
        ls_tensor zeros = *target->tensor;
        return accumulate ? LS_OK : kernels->fill(stream, &zeros, 0.0);
    }
    set_a(&gemm, left, transpose_left);
    set_b(&gemm, right, transpose_right);
    gemm.ldc = target->rows > 1 ? target->row_stride : target->columns;
    /* The kernel loops over the last batch axis, unless its products are all added into one matrix. */
    batched_product outer = *p;
    const int last = p->batch_ndim - 1;
    if (last >= 0 && target->batch_stride[last] != 0) {
        outer.batch_ndim = last;
        gemm.batch = p->batch[last];
        gemm.step_a = left->batch_stride[last];
        gemm.step_b = right->batch_stride[last];
        gemm.step_c = target->batch_stride[last];
    }
    int64_t index[LS_MAX_DIMS] = {0};
    do {
        gemm.a = matrix_at(left, &outer, index);
        gemm.b = matrix_at(right, &outer, index);
        gemm.c = matrix_at(target, &outer, index);
        gemm.accumulate = accumulate || visited(target, &outer, index);
        LS_TRY(kernels->gemm(stream, &gemm));
    } while (next_index(&outer, index));
    return LS_OK;
}

static ls_status refuse(const char *why, const ls_op_call *call) {
    return ls_fail(LS_ERR_SHAPE, "%s: %s x %s: %s", call->op->name, LS_SHAPE_TEXT(call->inputs[0]),
                   LS_SHAPE_TEXT(call->inputs[1]), why);
}

/* Returns the common size of a's and b's batch axes at `from_end` (1: the last batch axis), or -1 if their sizes do
 * not match. */
static int64_t batch_size(const ls_tensor *a, const ls_tensor *b, int from_end) {
    const int a_axis = a->ndim - matrix_axes(a) - from_end;
    const int b_axis = b->ndim - matrix_axes(b) - from_end;
    const int64_t a_size = a_axis >= 0 ? a->size[a_axis] : 1;
    const int64_t b_size = b_axis >= 0 ? b->size[b_axis] : 1;
    if (a_size != b_size && a_size != 1 && b_size != 1) {
        return -1;
    }
    return a_size == 1 ? b_size : a_size;
}

static ls_status matmul_shape(ls_op_call *call) {
    const ls_tensor *a = call->inputs[0];
    const ls_tensor *b = call->inputs[1];
    if (a->ndim == 0 || b->ndim == 0) {
        return refuse("a single number has no inner size; ls_mul scales by one", call);
    }
    const int64_t a_inner = a->size[a->ndim - 1];
    const int64_t b_inner = b->size[b->ndim > 1 ? b->ndim - 2 : 0];
    if (a_inner != b_inner) {
        char why[96];
        snprintf(why, sizeof why, "inner sizes %lld and %lld differ", (long long)a_inner, (long long)b_inner);
        return refuse(why, call);
    }
    const int a_batch = a->ndim - matrix_axes(a);
    const int b_batch = b->ndim - matrix_axes(b);
    int ndim = a_batch > b_batch ? a_batch : b_batch;
    int64_t size[LS_MAX_DIMS];
    for (int i = 0; i < ndim; i++) {
        size[i] = batch_size(a, b, ndim - i);
        if (size[i] < 0) {
            return refuse("batch sizes do not broadcast", call);
        }
    }
    if (a->ndim > 1) {
        size[ndim++] = a->size[a->ndim - 2];
    }
    if (b->ndim > 1) {
        size[ndim++] = b->size[b->ndim - 1];
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(a), ndim, size, (ls_dtype)a->dtype);
    return ls_made(call->output);
}

static ls_status matmul_forward(ls_op_call *call) {
    const batched_product p = product_of(call->inputs[0], call->inputs[1], call->output, call->rounds_to);
    return multiply(&p, &p.a, false, &p.b, false, &p.c, false);
}

/* Computes da = dc b^T and db = a^T dc, directly into the memory of the gradients. */
static ls_status matmul_gradients(ls_node *node, const ls_tensor *gradient) {
    bool accumulate;
    if (ls_wants(node, 0)) {
        const ls_tensor *da = ls_gradient_place(node, 0, &accumulate);
        LS_TRY(ls_made(da));
        const batched_product p = product_of(da, node->inputs[1], gradient, node->rounds_to);
        LS_TRY(multiply(&p, &p.c, false, &p.b, true, &p.a, accumulate));
    }
    if (ls_wants(node, 1)) {
        const ls_tensor *db = ls_gradient_place(node, 1, &accumulate);
        LS_TRY(ls_made(db));
        const batched_product p = product_of(node->inputs[0], db, gradient, node->rounds_to);
        LS_TRY(multiply(&p, &p.a, true, &p.c, false, &p.b, accumulate));
    }
    return LS_OK;
}

static ls_status matmul_backward(ls_node *node, ls_tensor *gradient) {
    const operand c = operand_of(gradient, node->inputs[0]->ndim > 1, node->inputs[1]->ndim > 1, gradient->ndim);
    if (readable(&c)) {
        return matmul_gradients(node, gradient);
    }
    ls_tensor *dense = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(dense));
    const ls_status status = matmul_gradients(node, dense);
    ls_tensor_drop(dense);
    return status;
}

/*
 * Returns the axis of the product along which input i's samples lie, counted from the last axis, which is 1. Returns 0
 * if input i has no samples, and -1 if the product sums over them. A vector has no axis in the product.
 */
static int place_from_end(const ls_samples_call *call, int i) {
    const int ndim = call->inputs[i]->ndim, axis = ls_sample_axis(call, i);
    const int place = ndim - axis, inner = i == 0 || ndim == 1 ? 1 : 2, other_inner = i == 0 ? 1 : 2;
    if (axis < 0) {
        return 0;
    }
    return place == inner ? -1 : place - (call->inputs[1 - i]->ndim == 1 && place > other_inner);
}

/* If both inputs have samples, the samples must lie along the same axis of the product, which is not the inner axis. */
static ls_samples_use matmul_samples(ls_samples_call *call) {
    const int a = place_from_end(call, 0), b = place_from_end(call, 1);
    if (a < 0 || b < 0 || (a > 0 && b > 0 && a != b)) {
        return LS_SAMPLES_MIXED;
    }
    call->axis = call->output->ndim - (a > 0 ? a : b);
    return LS_SAMPLES_MOVED;
}

static const ls_op matmul_op = {.name = "ls_matmul",
                                .shape = matmul_shape,
                                .forward = matmul_forward,
                                .backward = matmul_backward,
                                .over_samples = matmul_samples,
                                .reads = {2, 1}};

const ls_op *const ls_matmul_ops[] = {&matmul_op, NULL};

ls_tensor *ls_matmul(ls_tensor *a, ls_tensor *b) {
    ls_tensor *const inputs[] = {a, b};
    if (a == NULL || b == NULL) {
        return ls_apply(&matmul_op, inputs, 2, NULL); /* reports the error */
    }
    if (ls_check_floating(matmul_op.name, inputs, 2) != LS_OK) {
        return ls_scope_failed();
    }
    const operand as_a = operand_of(a, a->ndim > 1, a->ndim > 0, LS_MAX_DIMS);
    const operand as_b = operand_of(b, b->ndim > 0, b->ndim > 1, LS_MAX_DIMS);
    const unsigned copies = (readable(&as_a) ? 0U : 1U) | (readable(&as_b) ? 0U : 2U);
    return ls_apply_dense(&matmul_op, inputs, 2, 2, NULL, copies);
}
