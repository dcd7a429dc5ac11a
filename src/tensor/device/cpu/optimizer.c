/* Optimizer steps, each in one pass over parameters, gradients and state. */
#include "tensor/device/cpu/floating.h"

#include <math.h>

#define REAL     float
#define FN(name) name##_f32
#define SQRT     sqrtf
#include "tensor/device/cpu/optimizer.inc"

#define REAL     double
#define FN(name) name##_f64
#define SQRT     sqrt
#include "tensor/device/cpu/optimizer.inc"

ls_status ls_cpu_sgd(ls_stream *stream, const ls_sgd_step *step) {
    (void)stream;
    return LS_FLOATING(step->dtype, sgd, step);
}

ls_status ls_cpu_adam(ls_stream *stream, const ls_adam_step *step) {
    (void)stream;
    return LS_FLOATING(step->dtype, adam, step);
}

ls_status ls_cpu_rmsprop(ls_stream *stream, const ls_rmsprop_step *step) {
    (void)stream;
    return LS_FLOATING(step->dtype, rmsprop, step);
}

ls_status ls_cpu_adagrad(ls_stream *stream, const ls_adagrad_step *step) {
    (void)stream;
    return LS_FLOATING(step->dtype, adagrad, step);
}
