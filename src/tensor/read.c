/* Reading elements: one element, or all elements of two tensors for a comparison. */
#include <math.h>
#include <string.h>

#include "base/float16.h"
#include "tensor/capture.h"
#include "tensor/device.h"
#include "tensor/scope.h"

#define DEFINE_READ(name, type, expression)                                                                            \
    static double read_##name(const void *memory) {                                                                    \
        type value;                                                                                                    \
        memcpy(&value, memory, sizeof value);                                                                          \
        return (double)(expression);                                                                                   \
    }
DEFINE_READ(f32, float, value)
DEFINE_READ(f64, double, value)
DEFINE_READ(bf16, uint16_t, ls_bf16_to_float(value))
DEFINE_READ(f16, uint16_t, ls_f16_to_float(value))
DEFINE_READ(i64, int64_t, value)
DEFINE_READ(i32, int32_t, value)
DEFINE_READ(u8, uint8_t, value)
#undef DEFINE_READ

static double (*const readers[LS_DTYPE_COUNT])(const void *memory) = {
    [LS_F32] = read_f32, [LS_F64] = read_f64, [LS_BF16] = read_bf16, [LS_F16] = read_f16,
    [LS_I64] = read_i64, [LS_I32] = read_i32, [LS_U8] = read_u8,     [LS_BOOL] = read_u8,
};

static double fail_nan(void) {
    (void)ls_scope_failed_status();
    return (double)NAN;
}

double ls_element_number(ls_dtype dtype, const void *element) {
    return readers[dtype](element);
}

ls_status ls_tensor_fetch(const ls_tensor *tensor, int64_t offset, void *element) {
    const size_t width = ls_dtype_size((ls_dtype)tensor->dtype);
    const char *memory = (const char *)tensor->data + offset * (int64_t)width;
    return ls_device_fetch(ls_tensor_device(tensor), element, memory, width);
}

static double read_element(const ls_tensor *tensor, int64_t offset) {
    int64_t element;
    return ls_tensor_fetch(tensor, offset, &element) == LS_OK ? readers[tensor->dtype](&element) : fail_nan();
}

double ls_tensor_number(const ls_tensor *tensor) {
    return read_element(tensor, 0);
}

double ls_item(const ls_tensor *tensor) {
    ls_capture_refuse_here("ls_item", LS_CAPTURE_READS);
    if (tensor == NULL) {
        (void)ls_scope_fail_null("ls_item: the tensor");
        return fail_nan();
    }
    if (!ls_tensor_is_here("ls_item", tensor)) {
        return (double)NAN;
    }
    if (tensor->count != 1) {
        (void)ls_fail(LS_ERR_SHAPE, "ls_item: the tensor %s has %lld elements, not one", LS_SHAPE_TEXT(tensor),
                      (long long)tensor->count);
        return fail_nan();
    }
    return read_element(tensor, 0);
}

double ls_at(const ls_tensor *tensor, const int64_t *index) {
    ls_capture_refuse_here("ls_at", LS_CAPTURE_READS);
    if (tensor == NULL || (index == NULL && tensor->ndim > 0)) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_at: %s is NULL", tensor == NULL ? "tensor" : "index");
        return fail_nan();
    }
    if (!ls_tensor_is_here("ls_at", tensor)) {
        return (double)NAN;
    }
    int64_t offset = 0;
    for (int i = 0; i < tensor->ndim; i++) {
        const int64_t at = index[i] < 0 ? index[i] + tensor->size[i] : index[i];
        if (at < 0 || at >= tensor->size[i]) {
            (void)ls_fail(LS_ERR_ARGUMENT, "ls_at: index %lld is out of range along axis %d of %s", (long long)index[i],
                          i, LS_SHAPE_TEXT(tensor));
            return fail_nan();
        }
        offset += at * tensor->stride[i];
    }
    return read_element(tensor, offset);
}

/* Two tensors as dense host memory of the same dtype, or nothing. */
typedef struct host_pair {
    ls_tensor *a;
    ls_tensor *b;
} host_pair;

ls_tensor *ls_tensor_dense_on_host(const char *call, const ls_tensor *x, ls_dtype dtype) {
    ls_capture_refuse_here(call, LS_CAPTURE_READS);
    if (!ls_tensor_is_here(call, x)) {
        return NULL;
    }
    ls_tensor *dense = ls_tensor_dense(call, x, dtype);
    ls_tensor *here = dense != NULL ? ls_tensor_on_device(call, dense, &ls_cpu) : NULL;
    ls_tensor_drop(dense);
    return here;
}

static bool make_dense_pair(const char *call, host_pair *dense, const ls_tensor *a, const ls_tensor *b,
                            ls_dtype dtype) {
    dense->a = ls_tensor_dense_on_host(call, a, dtype);
    dense->b = dense->a != NULL ? ls_tensor_dense_on_host(call, b, dtype) : NULL;
    return dense->b != NULL;
}

static void drop_pair(host_pair *dense) {
    ls_tensor_drop(dense->a);
    ls_tensor_drop(dense->b);
}

/* Returns whether both tensors exist. Notes an error if a tensor was freed. */
static bool are_here(const char *call, const ls_tensor *a, const ls_tensor *b) {
    ls_capture_refuse_here(call, LS_CAPTURE_READS);
    const ls_tensor *const both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        if (both[i] == NULL || (ls_tensor_is_gone(both[i]) && ls_tensor_refuse_gone(call, i + 1, both[i]) != LS_OK)) {
            return false;
        }
    }
    return true;
}

bool ls_equal(const ls_tensor *a, const ls_tensor *b) {
    if (!are_here("ls_equal", a, b) || a->dtype != b->dtype || !ls_tensor_same_shape(a, b)) {
        return false;
    }
    host_pair dense;
    const bool ready = make_dense_pair("ls_equal", &dense, a, b, (ls_dtype)a->dtype);
    const bool equal =
        ready && memcmp(dense.a->data, dense.b->data, (size_t)a->count * ls_dtype_size((ls_dtype)a->dtype)) == 0;
    drop_pair(&dense);
    return equal;
}

static bool is_close(double a, double b, double relative, double absolute) {
    if (isnan(a) || isnan(b)) {
        return isnan(a) && isnan(b);
    }
    if (isinf(a) || isinf(b)) {
        return a == b;
    }
    return fabs(a - b) <= absolute + relative * fabs(b);
}

static bool are_close(const double *a, const double *b, int64_t count, double relative, double absolute) {
    for (int64_t i = 0; i < count; i++) {
        if (!is_close(a[i], b[i], relative, absolute)) {
            return false;
        }
    }
    return true;
}

static bool are_integers_close(const int64_t *a, const int64_t *b, int64_t count, double relative, double absolute) {
    for (int64_t i = 0; i < count; i++) {
        const uint64_t difference = a[i] > b[i] ? (uint64_t)a[i] - (uint64_t)b[i] : (uint64_t)b[i] - (uint64_t)a[i];
        const double most = absolute + relative * fabs((double)b[i]);
        if (!(most >= 0x1p64 || (most >= 0 && difference <= (uint64_t)most))) {
            return false;
        }
    }
    return true;
}

bool ls_allclose(const ls_tensor *a, const ls_tensor *b, double relative, double absolute) {
    if (!are_here("ls_allclose", a, b) || !ls_tensor_same_shape(a, b)) {
        return false;
    }
    host_pair dense;
    const bool are_integers = !ls_dtype_is_floating((ls_dtype)a->dtype) && !ls_dtype_is_floating((ls_dtype)b->dtype);
    bool close = make_dense_pair("ls_allclose", &dense, a, b, are_integers ? LS_I64 : LS_F64);
    if (close && are_integers) {
        close = are_integers_close(dense.a->data, dense.b->data, a->count, relative, absolute);
    } else if (close) {
        close = are_close(dense.a->data, dense.b->data, a->count, relative, absolute);
    }
    drop_pair(&dense);
    return close;
}
