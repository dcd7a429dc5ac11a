/*
 * Dropout. Number i of a random stream decides whether element i of a tensor is dropped. If ranks share a batch, or the
 * last axis of a tensor, i is the element's index in the tensor that a single process would have.
 */
#include "autograd/ops/random.h"

#include "autograd/batch.h"
#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "base/random.h"
#include "tensor/capture.h"

/*
 * Indices in integer[] of the parameters: the index of the first element; the size of the last axis on this rank; its
 * size in the whole tensor; the elements per sample, 0 without a global batch.
 */
enum { FIRST, WIDTH, WHOLE, PER_SAMPLE };

static ls_status draw(ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters) {
    const ls_kernels *kernels = ls_kernels_of(x);
    const int64_t width = parameters->integer[WIDTH], whole = parameters->integer[WHOLE];
    const uint64_t first = (uint64_t)parameters->integer[FIRST];
    const double p = parameters->number[0];
    if (width == whole) {
        return kernels->dropout(ls_stream_of(x), y, x, parameters->random, first, p);
    }
    const int64_t size[] = {x->count / width, width};
    const ls_tensor from = ls_stack_view_dense(x, 2, size), to = ls_stack_view_dense(y, 2, size);
    for (int64_t i = 0; i < size[0]; i++) {
        const ls_tensor x_row = ls_stack_view_select(&from, 0, i);
        ls_tensor y_row = ls_stack_view_select(&to, 0, i);
        LS_TRY(kernels->dropout(ls_stream_of(x), &y_row, &x_row, parameters->random, first + (uint64_t)(i * whole), p));
    }
    return LS_OK;
}

static ls_status dropout(ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters) {
    ls_capture *capture = ls_thread_present->capture;
    const int count = capture != NULL ? capture->random_count : 0;
    const ls_status status = draw(y, x, parameters);
    if (capture != NULL) {
        ls_capture_set_per_sample(capture, count, parameters->integer[PER_SAMPLE]);
    }
    return status;
}

static ls_status dropout_forward(ls_op_call *call) {
    return dropout(call->output, call->inputs[0], call->parameters);
}

/* The same random numbers select the same elements again, so no mask is stored. */
static ls_status dropout_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *dense = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(dense));
    ls_tensor *dx = ls_tensor_like(node->op->name, dense, (ls_dtype)dense->dtype);
    const ls_status status = dx == NULL ? ls_error_status() : dropout(dx, dense, &node->parameters);
    ls_tensor_drop(dense);
    LS_TRY(status);
    return ls_accumulate(node, 0, dx);
}

static const ls_op dropout_op = {
    .name = "ls_dropout", .shape = ls_shape_as_input, .forward = dropout_forward, .backward = dropout_backward};

const ls_op *const ls_random_ops[] = {&dropout_op, NULL};

/* Counts the elements per sample, and the elements of the global batch before the first sample of this rank. */
static ls_status count_before(const ls_tensor *x, int64_t count, int64_t *per_sample, int64_t *before) {
    ls_batch_part *part = ls_thread()->batch;
    *per_sample = *before = 0;
    if (part == NULL) {
        return LS_OK;
    }
    LS_TRY(part->locate(part));
    if (part->samples == 0) {
        return LS_OK;
    }
    if (x->ndim == 0 || x->size[0] % part->samples != 0) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "ls_dropout: x is %s inside a data-parallel module, but its first axis must count the %lld samples",
            LS_SHAPE_TEXT(x), (long long)part->samples);
    }
    *per_sample = count / part->samples;
    *before = part->first * *per_sample;
    return LS_OK;
}

ls_tensor *ls_dropout_part(ls_tensor *x, double p, int64_t start, int64_t whole) {
    if (x == NULL) {
        return ls_apply(&dropout_op, &x, 1, NULL); /* reports the error */
    }
    if (!(p >= 0.0 && p <= 1.0)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: p is %g, but must be from 0 to 1", dropout_op.name, p);
    }
    if (ls_check_floating(dropout_op.name, &x, 1) != LS_OK) {
        return ls_scope_failed();
    }
    const int64_t width = x->ndim > 0 && x->size[x->ndim - 1] > 0 ? x->size[x->ndim - 1] : 1;
    whole = whole > 0 ? whole : width;
    ls_op_parameters parameters = {.number = {p}, .integer = {[WIDTH] = width, [WHOLE] = whole}};
    if (count_before(x, x->count / width * whole, &parameters.integer[PER_SAMPLE], &parameters.integer[FIRST]) !=
        LS_OK) {
        return ls_scope_failed();
    }
    parameters.integer[FIRST] += start;
    parameters.random = ls_random_next_stream();
    return ls_apply_dense(&dropout_op, &x, 1, 1, &parameters, 1U);
}

ls_tensor *ls_dropout(ls_tensor *x, double p) {
    return ls_dropout_part(x, p, 0, 0);
}
