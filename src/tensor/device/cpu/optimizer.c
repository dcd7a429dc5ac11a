/* Optimizer steps, each in one pass over parameters, gradients and state. */
#include "tensor/device/cpu/floating.h"

#include "tensor/device/cpu/parallel.h"

#include <math.h>
#include <stddef.h>
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
 * If a gradient becomes zero (for example, the gradient of a dead ReLU), its momentum and averages shrink by a factor
 * at each step until they are subnormal, and remain subnormal. Arithmetic on subnormals is a hundred times slower. So
 * the steps treat subnormals as zero, a change that is too small to affect a parameter.
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
    static ls_status run_##kernel(const ls_##kernel##_step *step) {                                                    \
        const unsigned before = flush_begin();                                                                         \
        const ls_status status = LS_FLOATING(step->dtype, kernel, step);                                               \
        flush_end(before);                                                                                             \
        return status;                                                                                                 \
    }

/* Advances the pointers to the arrays of a step: parameter, gradient and state. A pointer may be NULL. */
static void advance(void *arrays, int count, int64_t bytes) {
    for (int i = 0; i < count; i++) {
        char *array = NULL;
        memcpy(&array, (char *)arrays + (size_t)i * sizeof array, sizeof array);
        array = array != NULL ? array + bytes : NULL;
        memcpy((char *)arrays + (size_t)i * sizeof array, &array, sizeof array);
    }
}

/* Splits a step with independent elements into pieces, and runs them on several threads. `last` is its last array. */
#define STEP_OF_EACH(kernel, last)                                                                                     \
    STEP(kernel)                                                                                                       \
    static void run_piece_of_##kernel(int64_t begin, int64_t end, const void *context) {                               \
        const ls_##kernel##_step *step = context;                                                                      \
        if (end - begin == step->count) {                                                                              \
            (void)run_##kernel(step);                                                                                  \
            return;                                                                                                    \
        }                                                                                                              \
        ls_##kernel##_step piece = *step;                                                                              \
        const size_t arrays =                                                                                          \
            (offsetof(ls_##kernel##_step, last) - offsetof(ls_##kernel##_step, parameter)) / sizeof piece.parameter +  \
            1;                                                                                                         \
        piece.count = end - begin;                                                                                     \
        advance(&piece.parameter, (int)arrays, begin *(int64_t)ls_dtype_size(piece.dtype));                            \
        (void)run_##kernel(&piece);                                                                                    \
    }                                                                                                                  \
    ls_status ls_cpu_##kernel(ls_stream *stream, const ls_##kernel##_step *step) {                                     \
        (void)stream;                                                                                                  \
        if (step->dtype != LS_F32 && step->dtype != LS_F64) {                                                          \
            return ls_no_kernel(#kernel, step->dtype);                                                                 \
        }                                                                                                              \
        ls_parallel(step->count, 1, BLOCK, run_piece_of_##kernel, step);                                               \
        return LS_OK;                                                                                                  \
    }
#define STEP_OF_ALL(kernel)                                                                                            \
    STEP(kernel)                                                                                                       \
    ls_status ls_cpu_##kernel(ls_stream *stream, const ls_##kernel##_step *step) {                                     \
        (void)stream;                                                                                                  \
        return run_##kernel(step);                                                                                     \
    }

enum { BLOCK = 4096 };
STEP_OF_EACH(sgd, momentum_buffer)
STEP_OF_EACH(adam, largest_second_moment)
STEP_OF_EACH(rmsprop, momentum_buffer)
STEP_OF_EACH(adagrad, sum)
STEP_OF_EACH(adadelta, change_average)
STEP_OF_EACH(lion, average)
STEP_OF_ALL(lamb)
STEP_OF_ALL(muon)
