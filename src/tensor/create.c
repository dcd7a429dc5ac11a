/* Tensors created from a shape: empty, filled, numbered in sequence, random, or over the caller's memory. */
#include <math.h>

#include "base/float_limits.h"
#include "base/random.h"
#include "tensor/capture.h"
#include "tensor/device.h"
#include "tensor/scope.h"

static void *fail_noted_memory(const char *call, size_t bytes) {
    (void)ls_fail_memory(call, bytes);
    return ls_scope_failed();
}

static ls_tensor *make(const char *call, const ls_shape *shape, ls_dtype dtype) {
    const ls_device *device = ls_device_default();
    return device != NULL ? ls_tensor_new(call, device, shape->ndim, shape->size, dtype) : NULL;
}

/* Returns the tensor if filling it succeeded; otherwise frees it. */
static ls_tensor *finish(ls_tensor *tensor, ls_status status) {
    if (status == LS_OK) {
        return tensor;
    }
    ls_release(tensor);
    return ls_scope_failed();
}

bool ls_dtype_holds(ls_dtype dtype, double value) {
    switch (dtype) {
    case LS_BOOL:
        return value == 0 || value == 1;
    case LS_U8:
        return value == trunc(value) && value >= 0 && value <= UINT8_MAX;
    case LS_I32:
        return value == trunc(value) && value >= INT32_MIN && value <= INT32_MAX;
    case LS_I64:
        /* cppcheck-suppress incorrectLogicOperator ; it misreads these constants */
        return value == trunc(value) && value >= -0x1p63 && value < 0x1p63;
    default:
        return true;
    }
}

static ls_tensor *make_full(const char *call, const ls_shape *shape, ls_dtype dtype, double value) {
    ls_tensor *tensor = make(call, shape, dtype);
    if (tensor == NULL) {
        return NULL;
    }
    if (!ls_dtype_holds(dtype, value)) {
        return finish(tensor,
                      ls_fail(LS_ERR_ARGUMENT, "%s: %g does not fit into %s; round it, or choose a different dtype",
                              call, value, ls_dtype_name(dtype)));
    }
    return finish(tensor, ls_kernels_of(tensor)->fill(ls_stream_of(tensor), tensor, value));
}

ls_tensor *ls_empty(ls_shape shape, ls_dtype dtype) {
    return make("ls_empty", &shape, dtype);
}

ls_tensor *ls_zeros(ls_shape shape, ls_dtype dtype) {
    return make_full("ls_zeros", &shape, dtype, 0);
}

ls_tensor *ls_ones(ls_shape shape, ls_dtype dtype) {
    return make_full("ls_ones", &shape, dtype, 1);
}

ls_tensor *ls_full(ls_shape shape, ls_dtype dtype, double value) {
    return make_full("ls_full", &shape, dtype, value);
}

ls_tensor *ls_scalar(double value, ls_dtype dtype) {
    return make_full("ls_scalar", &(ls_shape){0}, dtype, value);
}

/* How to fill a new tensor: one kernel and its arguments. */
typedef struct filler {
    const char *call;
    ls_status (*run)(const struct filler *how, const ls_kernels *kernels, ls_stream *stream, ls_tensor *tensor);
    ls_dtype by_way_of; /* the dtype in which bf16 and f16 are computed before conversion */
    double below;       /* if not 0, conversion to bf16 or f16 must not round up to this number */
    ls_random_state random;
    int64_t low, high;
} filler;

/* Converts numbers to bf16 or f16. Changes `wide`. */
static ls_status narrow(const filler *how, const ls_kernels *kernels, ls_stream *stream, ls_tensor *tensor,
                        ls_tensor *wide) {
    if (how->below != 0) {
        const ls_tensor *operands[] = {wide};
        const double limits[] = {-INFINITY, ls_largest_below(how->below, (ls_dtype)tensor->dtype)};
        LS_TRY(kernels->clamp(stream, wide, operands, limits));
    }
    return kernels->cast(stream, tensor, wide);
}

static ls_tensor *make_filled(const filler *how, const ls_shape *shape, ls_dtype dtype) {
    ls_tensor *tensor = make(how->call, shape, dtype);
    if (tensor == NULL) {
        return NULL;
    }
    const ls_kernels *kernels = ls_kernels_of(tensor);
    ls_stream *stream = ls_stream_of(tensor);
    if (dtype != LS_BF16 && dtype != LS_F16) {
        return finish(tensor, how->run(how, kernels, stream, tensor));
    }
    ls_tensor *wide = ls_tensor_like_owned(how->call, tensor, how->by_way_of);
    if (wide == NULL) {
        return finish(tensor, LS_ERR_MEMORY);
    }
    ls_status status = how->run(how, kernels, stream, wide);
    status = status == LS_OK ? narrow(how, kernels, stream, tensor, wide) : status;
    ls_tensor_drop(wide);
    return finish(tensor, status);
}

static ls_status run_count_up(const filler *how, const ls_kernels *kernels, ls_stream *stream, ls_tensor *tensor) {
    (void)how;
    return kernels->count_up(stream, tensor);
}

static ls_status run_uniform(const filler *how, const ls_kernels *kernels, ls_stream *stream, ls_tensor *tensor) {
    return kernels->random_uniform(stream, tensor, how->random, 0, 1);
}

static ls_status run_normal(const filler *how, const ls_kernels *kernels, ls_stream *stream, ls_tensor *tensor) {
    return kernels->random_normal(stream, tensor, how->random, 0, 1);
}

static ls_status run_integer(const filler *how, const ls_kernels *kernels, ls_stream *stream, ls_tensor *tensor) {
    return kernels->random_integer(stream, tensor, how->random, how->low, how->high);
}

ls_tensor *ls_arange(ls_shape shape, ls_dtype dtype) {
    if (dtype == LS_BOOL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_arange: the dtype is bool, but must be numeric");
        return ls_scope_failed();
    }
    return make_filled(&(filler){.call = "ls_arange", .run = run_count_up, .by_way_of = LS_I64}, &shape, dtype);
}

static ls_tensor *make_random(const filler *how, const ls_shape *shape, ls_dtype dtype) {
    if (!ls_dtype_is_floating(dtype)) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: the dtype must be floating-point, not %s", how->call, ls_dtype_name(dtype));
        return ls_scope_failed();
    }
    return make_filled(how, shape, dtype);
}

ls_tensor *ls_rand(ls_shape shape, ls_dtype dtype) {
    return make_random(&(filler){.call = "ls_rand", .run = run_uniform, .below = 1, .random = ls_random_next_stream()},
                       &shape, dtype);
}

ls_tensor *ls_randn(ls_shape shape, ls_dtype dtype) {
    return make_random(&(filler){.call = "ls_randn", .run = run_normal, .random = ls_random_next_stream()}, &shape,
                       dtype);
}

/* Computes the largest range of which the dtype represents every integer. Returns false if the range is all of int64_t.
 */
static bool integer_range(ls_dtype dtype, int64_t *least, int64_t *most) {
    static const int floating_bits[LS_DTYPE_COUNT] = {[LS_F32] = 24, [LS_F64] = 53, [LS_BF16] = 8, [LS_F16] = 11};
    if (dtype == LS_I64) {
        return false;
    }
    if (ls_dtype_is_floating(dtype)) {
        *most = (int64_t)1 << floating_bits[dtype];
        *least = -*most;
    } else {
        *most = dtype == LS_I32 ? INT32_MAX : dtype == LS_U8 ? UINT8_MAX : 1;
        *least = dtype == LS_I32 ? INT32_MIN : 0;
    }
    return true;
}

ls_tensor *ls_randint(ls_shape shape, ls_dtype dtype, int64_t low, int64_t high) {
    int64_t least;
    int64_t most;
    if (low >= high) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_randint: [%lld, %lld) is empty", (long long)low, (long long)high);
        return ls_scope_failed();
    }
    if (integer_range(dtype, &least, &most) && (low < least || high - 1 > most)) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_randint: [%lld, %lld) exceeds %lld to %lld, where %s has every integer",
                      (long long)low, (long long)high, (long long)least, (long long)most, ls_dtype_name(dtype));
        return ls_scope_failed();
    }
    return make_filled(&(filler){.call = "ls_randint",
                                 .run = run_integer,
                                 .by_way_of = LS_I64,
                                 .random = ls_random_next_stream(),
                                 .low = low,
                                 .high = high},
                       &shape, dtype);
}

/* Fisher-Yates shuffle, starting at the end. */
static void shuffle(int64_t *numbers, int64_t n) {
    const ls_random_state random = ls_random_next_stream();
    for (int64_t i = 0; i < n; i++) {
        numbers[i] = i;
    }
    for (int64_t i = n - 1; i > 0; i--) {
        const uint64_t other = ls_random_below(random.seed, random.stream, (uint64_t)i, (uint64_t)i + 1);
        const int64_t number = numbers[i];
        numbers[i] = numbers[other];
        numbers[other] = number;
    }
}

ls_tensor *ls_randperm(int64_t n) {
    ls_capture_refuse_here("ls_randperm", LS_CAPTURE_WRITES);
    ls_tensor *tensor = make("ls_randperm", &LS_SHAPE(n), LS_I64);
    if (tensor == NULL) {
        return NULL;
    }
    const size_t bytes = (size_t)n * sizeof(int64_t);
    int64_t *numbers = ls_record_allocate(bytes);
    if (numbers == NULL) {
        ls_release(tensor);
        return fail_noted_memory("ls_randperm", bytes);
    }
    shuffle(numbers, n);
    const ls_status status = ls_device_store(ls_tensor_device(tensor), tensor->data, numbers, bytes);
    ls_record_release(numbers, bytes);
    return finish(tensor, status);
}

ls_tensor *ls_from(ls_shape shape, ls_dtype dtype, const void *data) {
    ls_tensor *tensor = make("ls_from", &shape, dtype);
    if (tensor == NULL) {
        return NULL;
    }
    if (data == NULL && tensor->count > 0) {
        return finish(tensor, ls_fail(LS_ERR_ARGUMENT, "ls_from: data is NULL"));
    }
    if (tensor->count == 0) {
        return tensor;
    }
    return finish(tensor, ls_device_store(ls_tensor_device(tensor), tensor->data, data,
                                          (size_t)tensor->count * ls_dtype_size(dtype)));
}

/* For memory whose owner does not need a callback. */
static void release_nothing(void *data, void *user) {
    (void)data;
    (void)user;
}

ls_tensor *ls_tensor_over(const ls_device *device, const ls_shape *shape, ls_dtype dtype, void *memory) {
    size_t bytes = ls_dtype_size(dtype);
    for (int i = 0; i < shape->ndim; i++) {
        bytes *= (size_t)shape->size[i];
    }
    ls_storage *storage = ls_storage_wrap(device, memory, bytes, release_nothing, NULL);
    return storage != NULL ? ls_tensor_of_storage(storage, shape->ndim, shape->size, dtype) : NULL;
}

/* Returns whether the size in bytes of `count` elements fits into int64_t. */
static bool bytes_fit(int64_t count, ls_dtype dtype) {
    int64_t bytes;
    return !__builtin_mul_overflow(count, (int64_t)ls_dtype_size(dtype), &bytes);
}

/* Returns the number of elements, or -1 with the error set. */
static int64_t checked_count(const char *call, const ls_shape *shape, ls_dtype dtype, const void *data) {
    int64_t count = 1;
    bool good = shape->ndim >= 0 && shape->ndim <= LS_MAX_DIMS;
    for (int i = 0; good && i < shape->ndim; i++) {
        good = shape->size[i] >= 0 && !__builtin_mul_overflow(count, shape->size[i], &count);
    }
    if (!good || !bytes_fit(count, dtype)) {
        (void)ls_fail(LS_ERR_SHAPE, "%s: the shape has too many dimensions, a negative size, or more elements than fit",
                      call);
        return -1;
    }
    const size_t width = ls_dtype_size(dtype);
    if (width == 0 || (data == NULL && count > 0) || (uintptr_t)data % width != 0) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: %s", call,
                      width == 0     ? "no such dtype"
                      : data == NULL ? "data is NULL"
                                     : "data is not aligned for the dtype");
        return -1;
    }
    return count;
}

/* Orders the axes that have more than one position by their strides, the smallest first. Returns the number of these
 * axes. */
static int order_axes(const ls_shape *shape, const int64_t *stride, int order[LS_MAX_DIMS]) {
    int count = 0;
    for (int axis = 0; axis < shape->ndim; axis++) {
        if (shape->size[axis] > 1) {
            int at = count++;
            for (; at > 0 && stride[order[at - 1]] > stride[axis]; at--) {
                order[at] = order[at - 1];
            }
            order[at] = axis;
        }
    }
    return count;
}

/* Returns the number of elements from the first to the last in memory, or -1 with the error set if elements could
 * overlap. */
static int64_t strided_span(const char *call, const ls_shape *shape, const int64_t *stride, ls_dtype dtype) {
    int order[LS_MAX_DIMS];
    const int axes = order_axes(shape, stride, order);
    int64_t span = 1;
    for (int i = 0; i < axes; i++) {
        const int axis = order[i];
        int64_t length;
        if (stride[axis] < span) {
            (void)ls_fail(LS_ERR_ARGUMENT,
                          "%s: the stride of axis %d is %lld, but must be at least %lld, the number of elements that "
                          "the axes with smaller strides span",
                          call, axis, (long long)stride[axis], (long long)span);
            return -1;
        }
        if (__builtin_mul_overflow(shape->size[axis] - 1, stride[axis], &length) ||
            __builtin_add_overflow(span, length, &span) || !bytes_fit(span, dtype)) {
            (void)ls_fail(LS_ERR_SHAPE, "%s: the stride of axis %d, %lld, is too large", call, axis,
                          (long long)stride[axis]);
            return -1;
        }
    }
    return span;
}

/* Returns a tensor of `shape` and `stride` over the storage. Consumes the storage, even on failure. */
static ls_tensor *view_of_storage(ls_storage *storage, const ls_shape *shape, const int64_t *stride, int64_t span,
                                  ls_dtype dtype) {
    ls_tensor *all = ls_tensor_of_storage(storage, 1, &span, dtype);
    ls_tensor *view = all != NULL ? ls_tensor_view_owned(all, shape->ndim, shape->size, stride, 0) : NULL;
    ls_tensor_drop(all);
    return view;
}

/* Returns a tensor over the program's memory. If `stride` is missing, or there are no elements, the memory is dense. */
static ls_tensor *from_memory(const char *call, const ls_shape *shape, const int64_t *stride, ls_dtype dtype,
                              void *data, void (*release)(void *data, void *user), void *user) {
    ls_capture_refuse_here(call, LS_CAPTURE_WRITES);
    void (*const releases)(void *, void *) = release != NULL ? release : release_nothing;
    const int64_t count = checked_count(call, shape, dtype, data);
    const bool is_dense = stride == NULL || count <= 0;
    const int64_t span = is_dense ? count : strided_span(call, shape, stride, dtype);
    if (span < 0) {
        releases(data, user);
        return ls_scope_failed();
    }
    ls_storage *storage = ls_storage_wrap(&ls_cpu, data, (size_t)span * ls_dtype_size(dtype), releases, user);
    if (storage == NULL) {
        releases(data, user);
        return fail_noted_memory(call, sizeof *storage);
    }
    ls_tensor *tensor = is_dense ? ls_tensor_of_storage(storage, shape->ndim, shape->size, dtype)
                                 : view_of_storage(storage, shape, stride, span, dtype);
    return tensor != NULL ? ls_tensor_give(tensor) : fail_noted_memory(call, sizeof *tensor);
}

ls_tensor *ls_from_memory(ls_shape shape, ls_dtype dtype, void *data, void (*release)(void *data, void *user),
                          void *user) {
    return from_memory("ls_from_memory", &shape, NULL, dtype, data, release, user);
}

ls_tensor *ls_from_strided(ls_shape shape, const int64_t *stride, ls_dtype dtype, void *data,
                           void (*release)(void *data, void *user), void *user) {
    return from_memory("ls_from_strided", &shape, stride, dtype, data, release, user);
}
