#include "autograd/ops/promote.h"

#include <math.h>

#include "base/memory.h"

#define INLINE_INPUTS 4

typedef enum category { CATEGORY_BOOL, CATEGORY_INTEGER, CATEGORY_FLOATING } category;

static category category_of(ls_dtype dtype) {
    return dtype == LS_BOOL ? CATEGORY_BOOL : ls_dtype_is_floating(dtype) ? CATEGORY_FLOATING : CATEGORY_INTEGER;
}

/* The larger place wins; bf16 and f16 share one, as neither holds the other. */
static int place_of(ls_dtype dtype) {
    static const int place[LS_DTYPE_COUNT] = {
        [LS_BOOL] = 0, [LS_U8] = 1, [LS_I32] = 2, [LS_I64] = 3, [LS_F16] = 4, [LS_BF16] = 4, [LS_F32] = 5, [LS_F64] = 6,
    };
    return place[dtype];
}

ls_dtype ls_promote(const ls_tensor *a, const ls_tensor *b) {
    const ls_dtype left = a->dtype, right = b->dtype;
    if (left == right) {
        return left;
    }
    if (category_of(left) == category_of(right) && (a->ndim == 0) != (b->ndim == 0)) {
        return a->ndim == 0 ? right : left;
    }
    const int difference = place_of(left) - place_of(right);
    return difference > 0 ? left : difference < 0 ? right : LS_F32;
}

ls_dtype ls_promote_number(const ls_tensor *a, double number) {
    const ls_dtype dtype = a->dtype;
    if (ls_dtype_is_floating(dtype)) {
        return dtype;
    }
    if (!isfinite(number) || number != trunc(number)) {
        return LS_F32;
    }
    return dtype == LS_BOOL ? LS_I64 : dtype;
}

ls_dtype ls_compute_dtype_with(ls_dtype dtype, double number) {
    const bool held = dtype == LS_U8    ? number >= 0 && number <= UINT8_MAX
                      : dtype == LS_I32 ? number >= INT32_MIN && number <= INT32_MAX
                                        : true;
    return held ? ls_compute_dtype(dtype) : LS_I64;
}

ls_dtype ls_promote_real(ls_dtype dtype) {
    return ls_dtype_is_floating(dtype) ? dtype : LS_F32;
}

static ls_tensor *apply_converted(const ls_op *op, ls_tensor **inputs, int input_count,
                                  const ls_op_parameters *parameters, ls_dtype result) {
    ls_tensor *y = ls_apply(op, inputs, input_count, parameters);
    if (y == NULL || y->dtype == result) {
        return y;
    }
    ls_tensor *back = ls_to(y, result);
    ls_release(y);
    return back;
}

ls_tensor *ls_apply_as(const ls_op *op, ls_tensor *const *inputs, int input_count, int converted,
                       const ls_op_parameters *parameters, ls_dtype compute, ls_dtype result) {
    if (!ls_inputs_are_here(op->name, inputs, input_count)) {
        return NULL;
    }
    ls_tensor *inline_inputs[INLINE_INPUTS] = {NULL};
    ls_tensor **ready = inline_inputs;
    if (input_count > INLINE_INPUTS) {
        ready = ls_allocate((size_t)input_count * sizeof(ls_tensor *));
        if (ready == NULL) {
            (void)ls_fail_memory(op->name, (size_t)input_count * sizeof(ls_tensor *));
            return ls_scope_failed();
        }
    }
    int done = 0;
    bool good = true;
    for (; done < input_count && good; done++) {
        ls_tensor *x = inputs[done];
        const bool convert = done < converted && x != NULL && x->dtype != compute;
        ready[done] = convert ? ls_tensor_take(ls_to(x, compute)) : x == NULL ? NULL : ls_tensor_hold(x);
        good = x == NULL || ready[done] != NULL;
    }
    ls_tensor *y = good ? apply_converted(op, ready, input_count, parameters, result) : NULL;
    while (done > 0) {
        ls_tensor_drop(ready[--done]);
    }
    if (ready != inline_inputs) {
        ls_free(ready);
    }
    return y;
}

static ls_status add_by_f32(ls_tensor *y, const ls_tensor *x, ls_tensor *y32, ls_tensor *x32) {
    const ls_kernels *kernels = ls_kernels_of(y);
    ls_stream *stream = ls_stream_of(y);
    LS_TRY(kernels->cast(stream, y32, y));
    LS_TRY(kernels->cast(stream, x32, x));
    LS_TRY(kernels->add(stream, y32, (const ls_tensor *[]){y32, x32}, NULL));
    return kernels->cast(stream, y, y32);
}

ls_status ls_add_into(ls_tensor *y, const ls_tensor *x) {
    if (ls_is_plain(y->dtype)) {
        return ls_kernels_of(y)->add(ls_stream_of(y), y, (const ls_tensor *[]){y, x}, NULL);
    }
    ls_tensor *y32 = ls_tensor_new_owned("ls_backward", y->ndim, y->size, LS_F32);
    ls_tensor *x32 = ls_tensor_new_owned("ls_backward", x->ndim, x->size, LS_F32);
    const ls_status status = y32 == NULL || x32 == NULL ? ls_error_status() : add_by_f32(y, x, y32, x32);
    ls_tensor_drop(y32);
    ls_tensor_drop(x32);
    return status;
}
