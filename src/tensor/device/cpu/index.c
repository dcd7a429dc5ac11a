/* Reads and additions at indexed positions. Indices are checked before anything is written. */
#include <string.h>

#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/loop.h"

/* Views a tensor as [outer, axis, inner]. */
static int64_t sizes_product(const ls_tensor *x, int from, int to) {
    int64_t product = 1;
    for (int axis = from; axis < to; axis++) {
        product *= x->size[axis];
    }
    return product;
}

/* Fails if an index is outside [0, size). The message names the first such index. */
static ls_status check_index(const char *name, const ls_tensor *index, int axis, int64_t size) {
    const int64_t *const at = index->data;
    for (int64_t i = 0; i < index->count; i++) {
        if (at[i] < 0 || at[i] >= size) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: index %lld at position %lld is out of range for axis %d of size %lld",
                           name, (long long)at[i], (long long)i, axis, (long long)size);
        }
    }
    return LS_OK;
}

ls_status ls_cpu_index_select(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    (void)stream;
    LS_TRY(check_index("index_select", index, axis, x->size[axis]));
    const int64_t *const at = index->data;
    const int64_t outer = sizes_product(x, 0, axis);
    const size_t run = (size_t)sizes_product(x, axis + 1, x->ndim) * ls_dtype_size(x->dtype);
    char *to = y->data;
    const char *from = x->data;
    for (int64_t i = 0; i < outer; i++, from += (size_t)x->size[axis] * run) {
        for (int64_t k = 0; k < index->count; k++, to += run) {
            memcpy(to, from + (size_t)at[k] * run, run);
        }
    }
    return LS_OK;
}

/*
 * For each type: to[i] += from[i], and the bodies of take_along and scatter_add, which process one element after
 * another with its index. `context` is the stride along the indexed axis.
 */
#define INDEXED(name, T, R, U)                                                                                         \
    LS_CLONES static void add_run_##name(int64_t n, void *y, const void *x) {                                          \
        R *const to = y;                                                                                               \
        const T *const from = x;                                                                                       \
        LS_INDEPENDENT                                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const U sum = (U)to[i] + (U)from[i];                                                                       \
            to[i] = (R)sum;                                                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    static void take_##name(int64_t n, void *const *at, const int64_t *step, const void *context) {                    \
        const int64_t *const index = at[0];                                                                            \
        R *const to = at[1];                                                                                           \
        const T *const from = at[2];                                                                                   \
        const int64_t along = *(const int64_t *)context;                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            to[i * step[1]] = (R)from[i * step[2] + index[i * step[0]] * along];                                       \
        }                                                                                                              \
    }                                                                                                                  \
    static void scatter_##name(int64_t n, void *const *at, const int64_t *step, const void *context) {                 \
        const int64_t *const index = at[0];                                                                            \
        R *const to = at[1];                                                                                           \
        const T *const from = at[2];                                                                                   \
        const int64_t along = *(const int64_t *)context;                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            R *const place = to + i * step[1] + index[i * step[0]] * along;                                            \
            const U sum = (U)*place + (U)from[i * step[2]];                                                            \
            *place = (R)sum;                                                                                           \
        }                                                                                                              \
    }
INDEXED(f32, float, float, float)
INDEXED(f64, double, double, double)
INDEXED(i64, int64_t, int64_t, uint64_t)
INDEXED(i32, int32_t, int32_t, uint32_t)
INDEXED(u8, uint8_t, uint8_t, uint32_t)
INDEXED(b8, uint8_t, bool, uint32_t)
#define TABLE(name)                                                                                                    \
    {                                                                                                                  \
        [LS_F32] = name##_f32, [LS_F64] = name##_f64, [LS_I64] = name##_i64, [LS_I32] = name##_i32,                    \
        [LS_U8] = name##_u8, [LS_BOOL] = name##_b8                                                                     \
    }

ls_status ls_cpu_index_add(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    static void (*const add_runs[LS_DTYPE_COUNT])(int64_t n, void *y, const void *x) = TABLE(add_run);
    (void)stream;
    if (add_runs[x->dtype] == NULL) {
        return ls_no_kernel("index_add", (ls_dtype)x->dtype);
    }
    LS_TRY(check_index("index_add", index, axis, y->size[axis]));
    const int64_t *const at = index->data;
    const int64_t outer = sizes_product(y, 0, axis);
    const int64_t run = sizes_product(y, axis + 1, y->ndim);
    const int64_t bytes = run * (int64_t)ls_dtype_size(x->dtype);
    char *to = y->data;
    const char *from = x->data;
    for (int64_t i = 0; i < outer; i++, to += y->size[axis] * bytes) {
        for (int64_t k = 0; k < index->count; k++, from += bytes) {
            add_runs[x->dtype](run, to + at[k] * bytes, from);
        }
    }
    return LS_OK;
}

/* Returns the indexed tensor as a view with the shape of the index: its stride along the axis is 0. */
static ls_tensor beside(const ls_tensor *x, int axis, const ls_tensor *index) {
    ls_tensor still = *x;
    memcpy(still.size, index->size, sizeof still.size);
    still.stride[axis] = 0;
    still.count = index->count;
    still.contiguous = false;
    return still;
}

ls_status ls_cpu_take_along(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    static const ls_loop_body bodies[LS_DTYPE_COUNT] = TABLE(take);
    (void)stream;
    if (bodies[x->dtype] == NULL) {
        return ls_no_kernel("take_along", (ls_dtype)x->dtype);
    }
    LS_TRY(check_index("take_along", index, axis, x->size[axis]));
    const ls_tensor from = beside(x, axis, index);
    ls_loop_run(3, (const ls_tensor *const[]){index, y, &from}, bodies[x->dtype], &x->stride[axis]);
    return LS_OK;
}

ls_status ls_cpu_scatter_add(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    static const ls_loop_body bodies[LS_DTYPE_COUNT] = TABLE(scatter);
    (void)stream;
    if (bodies[x->dtype] == NULL) {
        return ls_no_kernel("scatter_add", (ls_dtype)x->dtype);
    }
    LS_TRY(check_index("scatter_add", index, axis, y->size[axis]));
    const ls_tensor to = beside(y, axis, index);
    ls_loop_run(3, (const ls_tensor *const[]){index, &to, x}, bodies[x->dtype], &y->stride[axis]);
    return LS_OK;
}
