/* Softmax and its logarithm along one axis, and their gradients. */
#include "tensor/device/cpu/exponential.h"
#include "tensor/device/cpu/floating.h"

#include <math.h>
#include <string.h>

/* A contiguous tensor seen from one of its axes: `outer` blocks of `width` rows of `inner` numbers; no blocks where it
 * is empty. */
typedef struct axis_view {
    int64_t outer, width, inner;
} axis_view;

static axis_view view_along(const ls_tensor *tensor, int axis) {
    axis_view view = {tensor->count > 0 ? 1 : 0, tensor->ndim > 0 ? tensor->size[axis] : 1, 1};
    for (int i = 0; i < tensor->ndim; i++) {
        if (i < axis) {
            view.outer *= tensor->size[i];
        } else if (i > axis) {
            view.inner *= tensor->size[i];
        }
    }
    return view;
}

#define REAL     float
#define FN(name) name##_f32
#define EXP      ls_exp_f32
#define LOG      logf
#include "tensor/device/cpu/softmax.inc"

#define REAL     double
#define FN(name) name##_f64
#define EXP      exp
#define LOG      log
#include "tensor/device/cpu/softmax.inc"

ls_status ls_cpu_softmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    (void)stream;
    return LS_FLOATING(x->dtype, softmax, view_along(x, axis), y->data, x->data);
}

ls_status ls_cpu_log_softmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    (void)stream;
    return LS_FLOATING(x->dtype, log_softmax, view_along(x, axis), y->data, x->data);
}

ls_status ls_cpu_softmax_backward(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y, int axis) {
    (void)stream;
    return LS_FLOATING(y->dtype, softmax_backward, view_along(y, axis), dx->data, dy->data, y->data, false);
}

ls_status ls_cpu_log_softmax_backward(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y,
                                      int axis) {
    (void)stream;
    return LS_FLOATING(y->dtype, softmax_backward, view_along(y, axis), dx->data, dy->data, y->data, true);
}
