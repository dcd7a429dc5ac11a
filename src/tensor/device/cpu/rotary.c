/* Rotary positions: rotates pairs of elements in one pass. Products and sums are rounded separately. */
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/parallel.h"

/* The rows of y are dense; rows and elements of x have any strides. */
typedef struct rotation {
    ls_tensor *y;
    const ls_tensor *x;
    const void *cosine, *sine;
    int64_t positions, pairs;
    int64_t row_step, x_step; /* between rows and between elements of x */
    double sign, opposite;    /* factors of the sine: 1 and -1, or -1 and 1 for the gradient */
    double zero;              /* added to first elements: -0, which changes no number, or 0 for the gradient */
    bool halves, accumulate;
} rotation;

#define REAL     float
#define FN(name) name##_f32
#include "tensor/device/cpu/rotary.inc"

#define REAL     double
#define FN(name) name##_f64
#include "tensor/device/cpu/rotary.inc"

/* Returns the offset, in elements, of the first row of a matrix of x. */
static int64_t matrix_offset(const ls_tensor *x, int64_t matrix) {
    int64_t offset = 0;
    for (int axis = x->ndim - 3; axis >= 0; axis--) {
        offset += matrix % x->size[axis] * x->stride[axis];
        matrix /= x->size[axis];
    }
    return offset;
}

static void rotate_rows(int64_t begin, int64_t end, const void *context) {
    const rotation *r = context;
    const int64_t bytes = (int64_t)ls_dtype_size((ls_dtype)r->x->dtype);
    while (begin < end) {
        const int64_t position = begin % r->positions, left = r->positions - position;
        const int64_t rows = left < end - begin ? left : end - begin;
        const int64_t offset = matrix_offset(r->x, begin / r->positions) + position * r->row_step;
        void *y = (char *)r->y->data + begin * 2 * r->pairs * bytes;
        (void)LS_FLOATING(r->x->dtype, rotate, r, rows, position, y, (void *)((char *)r->x->data + offset * bytes));
        begin += rows;
    }
}

ls_status ls_cpu_rotary(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *cosine,
                        const ls_tensor *sine, bool halves, bool backward, bool accumulate) {
    (void)stream;
    if (x->dtype != LS_F32 && x->dtype != LS_F64) {
        return ls_no_kernel("rotary", (ls_dtype)x->dtype);
    }
    const int64_t width = x->size[x->ndim - 1];
    const rotation r = {.y = y,
                        .x = x,
                        .cosine = cosine->data,
                        .sine = sine->data,
                        .positions = x->size[x->ndim - 2],
                        .pairs = width / 2,
                        .row_step = x->stride[x->ndim - 2],
                        .x_step = x->stride[x->ndim - 1],
                        .sign = backward ? -1 : 1,
                        .opposite = backward ? 1 : -1,
                        .zero = backward ? 0.0 : -0.0,
                        .halves = halves,
                        .accumulate = accumulate};
    ls_parallel(x->count > 0 ? x->count / width : 0, width, 1, rotate_rows, &r);
    return LS_OK;
}
