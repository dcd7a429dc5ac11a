#include "autograd/ops/operand.h"

#include "autograd/ops/promote.h"

static bool must_copy(const ls_tensor *input, int i, unsigned dense) {
    return input != NULL && (dense >> i & 1U) != 0 && !input->contiguous;
}

static ls_tensor *apply_copies(const ls_op *op, ls_tensor *const *inputs, int input_count, int converted,
                               const ls_op_parameters *parameters, unsigned dense) {
    if (!ls_inputs_are_here(op->name, inputs, input_count)) {
        return NULL;
    }
    ls_tensor *ready[LS_NODE_INPUTS] = {NULL};
    ls_tensor *result = NULL;
    int made = 0;
    bool good = true;
    for (; made < input_count && good; made++) {
        const bool copy = must_copy(inputs[made], made, dense);
        ready[made] = copy ? ls_contiguous(inputs[made]) : inputs[made];
        good = !copy || ready[made] != NULL;
    }
    if (good) {
        const ls_dtype dtype = (ls_dtype)inputs[0]->dtype;
        result = ls_apply_as(op, ready, input_count, converted, parameters, ls_compute_dtype(dtype), dtype);
    }
    while (made-- > 0) {
        if (ready[made] != inputs[made]) {
            ls_release(ready[made]);
        }
    }
    return result;
}

ls_tensor *ls_apply_dense(const ls_op *op, ls_tensor *const *inputs, int input_count, int converted,
                          const ls_op_parameters *parameters, unsigned dense) {
    bool ready = ls_is_plain((ls_dtype)inputs[0]->dtype);
    for (int i = 0; i < input_count; i++) {
        ready = ready && !must_copy(inputs[i], i, dense);
    }
    return ready ? ls_apply(op, inputs, input_count, parameters)
                 : apply_copies(op, inputs, input_count, converted, parameters, dense);
}

ls_status ls_check_floating(const char *call, ls_tensor *const *inputs, int input_count) {
    const ls_dtype dtype = (ls_dtype)inputs[0]->dtype;
    if (!ls_dtype_is_floating(dtype)) {
        return ls_fail(LS_ERR_SHAPE, "%s: expected a floating-point tensor, not %s; convert it with ls_to", call,
                       ls_dtype_name(dtype));
    }
    for (int i = 1; i < input_count; i++) {
        if (inputs[i] != NULL && inputs[i]->dtype != dtype) {
            return ls_fail(LS_ERR_SHAPE, "%s: element types %s and %s differ; convert one with ls_to", call,
                           ls_dtype_name(dtype), ls_dtype_name((ls_dtype)inputs[i]->dtype));
        }
    }
    return LS_OK;
}

bool ls_matrix_layout(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int64_t *leading,
                      bool *transposed) {
    const int64_t row_length = columns > 1 ? columns : 1;
    const int64_t column_length = rows > 1 ? rows : 1;
    if ((column_stride == 1 || columns <= 1) && (rows <= 1 || row_stride >= row_length)) {
        *leading = rows <= 1 ? row_length : row_stride;
        *transposed = false;
        return true;
    }
    if ((row_stride == 1 || rows <= 1) && (columns <= 1 || column_stride >= column_length)) {
        *leading = columns <= 1 ? column_length : column_stride;
        *transposed = true;
        return true;
    }
    return false;
}
