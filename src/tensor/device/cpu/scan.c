/* Operations along one axis, for each position of the other axes: the index of the extreme, and running sums. */
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/loop.h"

/* Describes the axis, for bodies that are called for the positions of the other axes. */
typedef struct ls_axis {
    int64_t size;
    int64_t x_step;
    int64_t y_step;
    bool reverse;
} ls_axis;

/* Returns the first slice of the tensor across the axis. */
static ls_tensor slice_across(const ls_tensor *x, int axis) {
    ls_tensor slice = *x;
    slice.count = x->count / x->size[axis];
    slice.size[axis] = 1;
    slice.contiguous = false;
    return slice;
}

static ls_status run_along(const char *name, const ls_loop_body *bodies, ls_tensor *y, const ls_tensor *x, int axis,
                           bool reverse) {
    const ls_loop_body body = bodies[x->dtype];
    if (body == NULL) {
        return ls_no_kernel(name, (ls_dtype)x->dtype);
    }
    if (x->count > 0) {
        const ls_axis along = {x->size[axis], x->stride[axis], y->stride[axis], reverse};
        const ls_tensor x_slice = slice_across(x, axis);
        const ls_tensor y_slice = slice_across(y, axis);
        ls_loop_run(2, (const ls_tensor *const[]){&y_slice, &x_slice}, body, &along);
    }
    return LS_OK;
}

/*
 * Finds the first element that is not beaten by any other element; `holds` is true if a does not lose to b. A
 * comparison with NaN is false, so NaN beats every number, and the first NaN ends the search.
 */
#define FIND(name, T, holds)                                                                                           \
    static void name(int64_t n, void *const *at, const int64_t *step, const void *context) {                           \
        const ls_axis *const axis = context;                                                                           \
        int64_t *const to = at[0];                                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T *const x = (const T *)at[1] + i * step[1];                                                         \
            int64_t found = 0;                                                                                         \
            T b = x[0];                                                                                                \
            for (int64_t k = 1; k < axis->size && b == b; k++) {                                                       \
                const T a = x[k * axis->x_step];                                                                       \
                if (!(holds)) {                                                                                        \
                    b = a;                                                                                             \
                    found = k;                                                                                         \
                }                                                                                                      \
            }                                                                                                          \
            to[i * step[0]] = found;                                                                                   \
        }                                                                                                              \
    }
#define FIND_ANY(name, holds)                                                                                          \
    FIND(name##_f32, float, holds)                                                                                     \
    FIND(name##_f64, double, holds)                                                                                    \
    FIND(name##_i64, int64_t, holds)                                                                                   \
    FIND(name##_i32, int32_t, holds)                                                                                   \
    FIND(name##_u8, uint8_t, holds)                                                                                    \
    static const ls_loop_body name##_bodies[LS_DTYPE_COUNT] = {                                                        \
        [LS_F32] = name##_f32, [LS_F64] = name##_f64, [LS_I64] = name##_i64,                                           \
        [LS_I32] = name##_i32, [LS_U8] = name##_u8,   [LS_BOOL] = name##_u8};
FIND_ANY(argmax, a <= b)
FIND_ANY(argmin, a >= b)

ls_status ls_cpu_argmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    (void)stream;
    return run_along("argmax", argmax_bodies, y, x, axis, false);
}

ls_status ls_cpu_argmin(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    (void)stream;
    return run_along("argmin", argmin_bodies, y, x, axis, false);
}

/* T and R are the types that are read from and written to memory. The sum has type A. */
#define RUN_SUM(name, T, R, A)                                                                                         \
    static void name(int64_t n, void *const *at, const int64_t *step, const void *context) {                           \
        const ls_axis *const axis = context;                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            R *const y = (R *)at[0] + i * step[0];                                                                     \
            const T *const x = (const T *)at[1] + i * step[1];                                                         \
            A sum = 0;                                                                                                 \
            for (int64_t k = 0; k < axis->size; k++) {                                                                 \
                const int64_t place = axis->reverse ? axis->size - 1 - k : k;                                          \
                sum += (A)x[place * axis->x_step];                                                                     \
                y[place * axis->y_step] = (R)sum;                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
RUN_SUM(cumsum_f32, float, float, double)
RUN_SUM(cumsum_f64, double, double, double)
RUN_SUM(cumsum_i64, int64_t, int64_t, uint64_t)
RUN_SUM(cumsum_i32, int32_t, int32_t, uint64_t)
RUN_SUM(cumsum_u8, uint8_t, uint8_t, uint64_t)
RUN_SUM(cumsum_b8, uint8_t, bool, uint64_t)

ls_status ls_cpu_cumsum(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse) {
    static const ls_loop_body bodies[LS_DTYPE_COUNT] = {
        [LS_F32] = cumsum_f32, [LS_F64] = cumsum_f64, [LS_I64] = cumsum_i64,
        [LS_I32] = cumsum_i32, [LS_U8] = cumsum_u8,   [LS_BOOL] = cumsum_b8};
    (void)stream;
    return run_along("cumsum", bodies, y, x, axis, reverse);
}
