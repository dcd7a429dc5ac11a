/* Softmax and log-softmax along one axis, and their gradients. */
#include "tensor/device/cpu/exponential.h"
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/parallel.h"

#include <math.h>
#include <string.h>

/*
 * A contiguous tensor viewed along one axis: `outer` blocks of `width` rows of `inner` numbers. An empty tensor has no
 * blocks.
 */
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

/* Computes y from x, or dx from dy and y; with `logarithm`, for log-softmax. */
typedef struct softmax_call {
    axis_view view;
    void *result;
    const void *operand, *softmax; /* NULL: forwards */
    ls_dtype dtype;
    bool logarithm;
} softmax_call;

static void run_blocks(int64_t begin, int64_t end, const void *context) {
    const softmax_call *call = context;
    const int64_t at = begin * call->view.width * call->view.inner * (int64_t)ls_dtype_size(call->dtype);
    const axis_view view = {end - begin, call->view.width, call->view.inner};
    void *result = (char *)call->result + at;
    const void *operand = (const char *)call->operand + at;
    const void *softmax = call->softmax != NULL ? (const char *)call->softmax + at : NULL;
    if (softmax != NULL) {
        (void)LS_FLOATING(call->dtype, softmax_backward, view, result, operand, softmax, call->logarithm);
    } else if (call->logarithm) {
        (void)LS_FLOATING(call->dtype, log_softmax, view, result, operand);
    } else {
        (void)LS_FLOATING(call->dtype, softmax, view, result, operand);
    }
}

static ls_status run(const char *name, const softmax_call *call) {
    if (call->dtype != LS_F32 && call->dtype != LS_F64) {
        return ls_no_kernel(name, call->dtype);
    }
    ls_parallel(call->view.outer, call->view.width * call->view.inner, 1, run_blocks, call);
    return LS_OK;
}

ls_status ls_cpu_softmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    (void)stream;
    return run("softmax",
               &(softmax_call){
                   .view = view_along(x, axis), .result = y->data, .operand = x->data, .dtype = (ls_dtype)x->dtype});
}

ls_status ls_cpu_log_softmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    (void)stream;
    return run("log_softmax", &(softmax_call){.view = view_along(x, axis),
                                              .result = y->data,
                                              .operand = x->data,
                                              .dtype = (ls_dtype)x->dtype,
                                              .logarithm = true});
}

ls_status ls_cpu_softmax_backward(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y, int axis) {
    (void)stream;
    return run("softmax_backward", &(softmax_call){.view = view_along(y, axis),
                                                   .result = dx->data,
                                                   .operand = dy->data,
                                                   .softmax = y->data,
                                                   .dtype = (ls_dtype)y->dtype});
}

ls_status ls_cpu_log_softmax_backward(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y,
                                      int axis) {
    (void)stream;
    return run("softmax_backward", &(softmax_call){.view = view_along(y, axis),
                                                   .result = dx->data,
                                                   .operand = dy->data,
                                                   .softmax = y->data,
                                                   .dtype = (ls_dtype)y->dtype,
                                                   .logarithm = true});
}
