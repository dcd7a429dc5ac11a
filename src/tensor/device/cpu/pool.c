/* Pooling: the maximum or the mean of a window in each channel. */
#include "tensor/device/cpu/floating.h"

#include <math.h>

/* An image and its outputs. Along an axis, a window covers every `step`-th position in [start, end). */
typedef struct pool {
    const ls_window *window;
    int64_t planes, size[3], plane, out[3], positions;
    bool by_rows;  /* all windows of a row have the same shape, and an offset within a row fits into 32 bits */
    bool by_pairs; /* in addition, windows are 2 by 2, do not overlap, and contain no padding */
} pool;

enum { LANES = 16, AT_ONCE = 4 * LANES /* windows of a row */ };

typedef struct pool_span {
    int64_t start, end, step;
    int64_t divisor; /* the number of positions by which an average is divided */
} pool_span;

static inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Returns the part of the image that window `o` covers along an axis. */
static inline pool_span span_of(const pool *p, int axis, int64_t o) {
    const ls_window *window = p->window;
    const int64_t size = p->size[axis];
    pool_span span = {.step = window->dilation[axis]};
    if (window->adaptive) {
        span.step = 1;
        span.start = o * size / p->out[axis];
        span.end = ((o + 1) * size + p->out[axis] - 1) / p->out[axis];
        span.divisor = span.end - span.start;
        return span;
    }
    const int64_t before = window->before[axis];
    const int64_t from = o * window->stride[axis] - before;
    const int64_t reach = from + (window->kernel[axis] - 1) * span.step + 1;
    span.start = from < 0 ? (span.step - 1 - from) / span.step * span.step + from : from;
    span.end = least(reach, size);
    /* As in PyTorch, the part of the last window beyond the padding (ceil_mode) does not count. */
    span.divisor = window->exclude_padding ? span.end - span.start : least(reach, size + before) - from;
    return span;
}

/* The operation on each window. */
typedef enum pool_work { WORK_LARGEST, WORK_MEAN, WORK_BACK } pool_work;

#define REAL     float
#define FN(name) name##_f32
#include "tensor/device/cpu/pool.inc"

#define REAL     double
#define FN(name) name##_f64
#include "tensor/device/cpu/pool.inc"

static pool pool_of(const ls_tensor *x, const ls_tensor *y, const ls_window *window) {
    pool p = {.window = window, .planes = x->size[0] * x->size[1], .plane = 1, .positions = 1};
    for (int i = 0; i < 3; i++) {
        p.size[i] = x->size[2 + i];
        p.out[i] = y->size[2 + i];
        p.plane *= p.size[i];
        p.positions *= p.out[i];
    }
    p.by_rows = !window->adaptive && p.plane + (int64_t)window->kernel[2] * window->dilation[2] <= INT32_MAX;
    p.by_pairs = p.by_rows && window->kernel[0] == 1 && p.out[2] >= 4;
    for (int i = 1; i < 3; i++) {
        p.by_pairs = p.by_pairs && window->kernel[i] == 2 && window->stride[i] == 2 && window->dilation[i] == 1 &&
                     window->before[i] == 0 && 2 * p.out[i] <= p.size[i];
    }
    return p;
}

ls_status ls_cpu_max_pool(ls_stream *stream, ls_tensor *y, ls_tensor *index, const ls_tensor *x,
                          const ls_window *window) {
    const pool p = pool_of(x, y, window);
    (void)stream;
    return LS_FLOATING(x->dtype, max_pool, &p, y->data, index->data, x->data);
}

ls_status ls_cpu_average_pool(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_window *window) {
    const pool p = pool_of(x, y, window);
    (void)stream;
    return LS_FLOATING(x->dtype, average_pool, &p, y->data, x->data);
}

ls_status ls_cpu_average_pool_backward(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_window *window) {
    const pool p = pool_of(y, x, window);
    (void)stream;
    return LS_FLOATING(x->dtype, average_pool_backward, &p, y->data, x->data);
}
