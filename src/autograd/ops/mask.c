/* Selection of elements by mask or by position, composed of comparisons and ls_where. */
#include "autograd/ops/ops.h"

/* Returns the value as a tensor without dimensions, with x's dtype and device. */
static ls_tensor *number_beside(const char *call, const ls_tensor *x, double value) {
    return ls_tensor_give(ls_number_owned(call, ls_tensor_device(x), (ls_dtype)x->dtype, value));
}

/* Returns x where `mask` is true, else zero. Consumes the mask. */
static ls_tensor *kept(const char *call, ls_tensor *x, ls_tensor *mask) {
    ls_tensor *zero = mask == NULL ? NULL : number_beside(call, x, 0);
    ls_tensor *y = zero == NULL ? NULL : ls_where(mask, x, zero);
    ls_release(zero);
    ls_release(mask);
    return y;
}

ls_tensor *ls_masked_fill(ls_tensor *x, ls_tensor *mask, double value) {
    static const char call[] = "ls_masked_fill";
    if (!ls_inputs_are_given(call, (ls_tensor *[]){x, mask}, 2)) {
        return NULL;
    }
    int ndim = 0;
    int64_t size[LS_MAX_DIMS];
    if (ls_broadcast_shapes(call, x, mask, &ndim, size) != LS_OK) {
        return ls_scope_failed();
    }
    const ls_tensor together = ls_stack_view_dense(x, ndim, size);
    if (!ls_tensor_same_shape(&together, x)) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: a mask of %s does not broadcast to x of %s", call, LS_SHAPE_TEXT(mask),
                             LS_SHAPE_TEXT(x));
    }
    if (ls_check_value(call, x, value) != LS_OK) {
        return ls_scope_failed();
    }
    ls_tensor *number = number_beside(call, x, value);
    ls_tensor *y = number == NULL ? NULL : ls_where(mask, number, x);
    ls_release(number);
    return y;
}

/* Returns a [rows, columns] tensor that counts 0, 1, ... along one axis, on x's device. */
static ls_tensor *counted(const char *call, const ls_tensor *x, int64_t rows, int64_t columns) {
    ls_tensor *y = ls_tensor_new(call, ls_tensor_device(x), 2, (const int64_t[]){rows, columns}, LS_I64);
    if (y != NULL && ls_kernels_of(y)->count_up(ls_stream_of(y), y) != LS_OK) {
        ls_release(y);
        return ls_scope_failed();
    }
    return y;
}

/* Returns a triangle of each matrix of x: columns up to, or from, row + `diagonal`. */
static ls_tensor *triangle(const char *call, ls_tensor *x, int64_t diagonal, bool upper) {
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    if (x->ndim < 2) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: %s contains no matrices: it must have at least two dimensions", call,
                             LS_SHAPE_TEXT(x));
    }
    const int64_t rows = x->size[x->ndim - 2], columns = x->size[x->ndim - 1];
    /* a larger distance has the same result */
    diagonal = diagonal < -rows ? -rows : diagonal > columns ? columns : diagonal;
    ls_tensor *row = counted(call, x, rows, 1);
    ls_tensor *column = row == NULL ? NULL : counted(call, x, 1, columns);
    ls_tensor *end = column == NULL ? NULL : ls_add_integer(row, diagonal);
    ls_tensor *mask = end == NULL ? NULL : upper ? ls_ge_tensor(column, end) : ls_le_tensor(column, end);
    ls_release(row);
    ls_release(column);
    ls_release(end);
    return kept(call, x, mask);
}

ls_tensor *ls_tril(ls_tensor *x, int64_t diagonal) {
    return triangle("ls_tril", x, diagonal, false);
}

ls_tensor *ls_triu(ls_tensor *x, int64_t diagonal) {
    return triangle("ls_triu", x, diagonal, true);
}
