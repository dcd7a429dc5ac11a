/* Sorts the elements along one axis. */
#include "tensor/device/cpu/floating.h"
#include "tensor/scope.h"

enum { FIRST_RUN = 16 }; /* initial runs of this length are sorted by insertion */

/* A contiguous tensor as `outer` blocks of `width` rows of `inner` elements. A line is a column of a block. */
typedef struct lines {
    int64_t outer, width, inner;
} lines;

#define IS_NAN(x) ((x) != (x)) /* of any type */

#define TYPE     float
#define FN(name) name##_f32
#include "tensor/device/cpu/sort.inc"

#define TYPE     double
#define FN(name) name##_f64
#include "tensor/device/cpu/sort.inc"

#define TYPE     int64_t
#define FN(name) name##_i64
#include "tensor/device/cpu/sort.inc"

#define TYPE     int32_t
#define FN(name) name##_i32
#include "tensor/device/cpu/sort.inc"

#define TYPE     uint8_t
#define FN(name) name##_u8
#include "tensor/device/cpu/sort.inc"

ls_status ls_cpu_argsort(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse) {
    static void (*const functions[LS_DTYPE_COUNT])(const lines *, int64_t *, const void *, void *, bool) = {
        [LS_F32] = argsort_f32, [LS_F64] = argsort_f64, [LS_I64] = argsort_i64,
        [LS_I32] = argsort_i32, [LS_U8] = argsort_u8,   [LS_BOOL] = argsort_u8};
    (void)stream;
    if (functions[x->dtype] == NULL) {
        return ls_no_kernel("argsort", (ls_dtype)x->dtype);
    }
    if (x->count == 0) {
        return LS_OK;
    }
    lines all = {1, x->size[axis], 1};
    for (int i = 0; i < x->ndim; i++) {
        *(i < axis ? &all.outer : &all.inner) *= i == axis ? 1 : x->size[i];
    }
    const size_t bytes = 2 * (size_t)all.width * sizeof(pair_f64); /* the largest pair type */
    void *room = ls_record_allocate(bytes);
    if (room == NULL) {
        return ls_fail_memory("argsort", bytes);
    }
    functions[x->dtype](&all, y->data, x->data, room, reverse);
    ls_record_release(room, bytes);
    return LS_OK;
}
