/* Optimizer steps, each in one pass over parameters, gradients and state. */
#include "tensor/device/cpu/floating.h"

#include <math.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define REAL     float
#define FN(name) name##_f32
#define SQRT     sqrtf
#include "tensor/device/cpu/optimizer.inc"

#define REAL     double
#define FN(name) name##_f64
#define SQRT     sqrt
#include "tensor/device/cpu/optimizer.inc"

/*
 * Momentum and averages of a gradient that has become zero (of a dead ReLU, say) shrink by a factor each step until
 * they are subnormal, and there they stay, at a hundred times the cost of other numbers. So the steps run with
 * subnormals taken for zero, which changes nothing that a parameter could show.
 */
#if defined(__SSE__)
#define FLUSH_SUBNORMALS 0x8040U /* the bits "flush to zero" and "denormals are zero" */

static unsigned flush_begin(void) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_SUBNORMALS);
    return before;
}

static void flush_end(unsigned before) {
    _mm_setcsr(before);
}
#else
static unsigned flush_begin(void) {
    return 0;
}

static void flush_end(unsigned before) {
    (void)before;
}
#endif

#define STEP(kernel)                                                                                                   \
    ls_status ls_cpu_##kernel(ls_stream *stream, const ls_##kernel##_step *step) {                                     \
        (void)stream;                                                                                                  \
        const unsigned before = flush_begin();                                                                         \
        const ls_status status = LS_FLOATING(step->dtype, kernel, step);                                               \
        flush_end(before);                                                                                             \
        return status;                                                                                                 \
    }
STEP(sgd)
STEP(adam)
STEP(rmsprop)
STEP(adagrad)
STEP(adadelta)
STEP(lion)
STEP(lamb)
STEP(muon)
