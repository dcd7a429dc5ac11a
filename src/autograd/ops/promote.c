#include "autograd/ops/promote.h"

#include "autograd/ops/ops.h"
#include "tensor/scope.h"

#define INLINE_INPUTS 4

typedef enum category { CATEGORY_BOOL, CATEGORY_INTEGER, CATEGORY_FLOATING } category;

static category category_of(ls_dtype dtype) {
    return dtype == LS_BOOL ? CATEGORY_BOOL : ls_dtype_is_floating(dtype) ? CATEGORY_FLOATING : CATEGORY_INTEGER;
}

/* Returns the rank of a dtype: the larger rank wins. bf16 and f16 share a rank, because neither can represent all
 * values of the other. */
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

ls_dtype ls_promote_integer(ls_dtype dtype) {
    return dtype == LS_BOOL ? LS_I64 : dtype;
}

/* Returns whether a double, the type of the kernels' numbers, represents the 64-bit number exactly. */
static bool is_double(int64_t number) {
    return number >= -((int64_t)1 << 53) && number <= (int64_t)1 << 53;
}

/* As in PyTorch, u8 accepts negative numbers. */
static bool holds(ls_dtype dtype, int64_t number) {
    return dtype == LS_U8    ? number >= -UINT8_MAX && number <= UINT8_MAX
           : dtype == LS_I32 ? number >= INT32_MIN && number <= INT32_MAX
                             : true;
}

/* Returns a tensor with a number that a double cannot represent, for an operation with `a`. */
static ls_tensor *exact_number(const char *call, const ls_tensor *a, int64_t number) {
    ls_tensor *exact = ls_tensor_new(call, ls_tensor_device(a), 0, NULL, LS_I64);
    if (exact != NULL && ls_device_store(ls_tensor_device(a), exact->data, &number, sizeof number) != LS_OK) {
        ls_release(exact);
        return ls_scope_failed();
    }
    return exact;
}

ls_tensor *ls_apply_integer(const ls_op *op, const ls_op *tensor_op, bool saturates, ls_tensor *a, int64_t number) {
    const ls_dtype result = ls_promote_integer(a->dtype);
    if (!holds(result, number)) {
        return ls_fail_noted(LS_ERR_ARGUMENT,
                             "%s: %lld does not fit into %s, the tensor's dtype; convert the tensor with ls_to",
                             op->name, (long long)number, ls_dtype_name(result));
    }
    if (!is_double(number)) {
        ls_tensor *exact = exact_number(op->name, a, number);
        ls_tensor *y =
            exact == NULL ? NULL : ls_apply_as(tensor_op, (ls_tensor *[]){a, exact}, 2, 2, NULL, LS_I64, result);
        ls_release(exact);
        return y;
    }
    const ls_op_parameters parameters = {.number = {(double)number}};
    const bool as_it_is = result != LS_U8 || number >= 0 || saturates;
    return ls_apply_as(op, &a, 1, 1, &parameters, as_it_is ? result : LS_I64, result);
}

ls_tensor *ls_compare_integer(const ls_op *op, const ls_op *tensor_op, ls_tensor *a, int64_t number) {
    if (ls_dtype_is_floating(a->dtype) || is_double(number)) {
        const ls_op_parameters parameters = {.number = {(double)number}};
        return ls_apply_as(op, &a, 1, 1, &parameters, ls_compute_dtype(a->dtype), LS_BOOL);
    }
    ls_tensor *exact = exact_number(op->name, a, number);
    ls_tensor *y =
        exact == NULL ? NULL : ls_apply_as(tensor_op, (ls_tensor *[]){a, exact}, 2, 2, NULL, LS_I64, LS_BOOL);
    ls_release(exact);
    return y;
}

ls_tensor *ls_number_beside(const char *call, ls_tensor *b, double number) {
    if (b != NULL && !ls_inputs_are_here(call, (ls_tensor *[]){NULL, b}, 2)) {
        return NULL;
    }
    const ls_dtype dtype = b != NULL ? ls_compute_dtype(ls_promote_real(b->dtype)) : LS_F32;
    const ls_device *device = b != NULL ? ls_tensor_device(b) : ls_device_default();
    return device != NULL ? ls_tensor_give(ls_number_owned(call, device, dtype, number)) : NULL;
}

ls_tensor *ls_integer_beside(const char *call, ls_tensor *b, int64_t number) {
    if (b == NULL || ls_tensor_is_gone(b) || ls_dtype_is_floating(b->dtype)) {
        return ls_number_beside(call, b, (double)number);
    }
    const ls_dtype result = ls_promote_integer(b->dtype);
    if (!holds(result, number)) {
        return ls_fail_noted(LS_ERR_ARGUMENT,
                             "%s: %lld does not fit into %s, the tensor's dtype; convert the tensor with ls_to", call,
                             (long long)number, ls_dtype_name(result));
    }
    ls_tensor *exact = exact_number(call, b, number);
    ls_tensor *own = exact != NULL ? ls_to(exact, result) : NULL;
    ls_release(exact);
    return own;
}

ls_tensor *ls_refuse_unsigned(const char *call, uint64_t number) {
    return ls_fail_noted(LS_ERR_ARGUMENT, "%s: %llu does not fit into i64, the widest integer dtype", call,
                         (unsigned long long)number);
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
    const size_t bytes = (size_t)input_count * sizeof(ls_tensor *);
    if (input_count > INLINE_INPUTS) {
        ready = ls_record_allocate(bytes);
        if (ready == NULL) {
            (void)ls_fail_memory(op->name, bytes);
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
        ls_record_release(ready, bytes);
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
    ls_tensor *y32 = ls_tensor_like_owned("ls_backward", y, LS_F32);
    ls_tensor *x32 = ls_tensor_like_owned("ls_backward", x, LS_F32);
    const ls_status status = y32 == NULL || x32 == NULL ? ls_error_status() : add_by_f32(y, x, y32, x32);
    ls_tensor_drop(y32);
    ls_tensor_drop(x32);
    return status;
}
