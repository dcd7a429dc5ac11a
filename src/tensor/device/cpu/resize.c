/* Resizes one axis: selects the nearest position, or averages two neighbors weighted by distance. */
#include "tensor/device/cpu/floating.h"

/* The axis, the sizes outside and inside of it, and the mapping from outputs to inputs. */
typedef struct stretch {
    int64_t outer, in, out, inner;
    bool linear;
    double scale, shift; /* linear: output o corresponds to input position o * scale + shift, but at least 0 */
} stretch;

/* Returns the index of the input below output o. Sets *part to the weight of the next input. */
static inline int64_t below(const stretch *s, int64_t o, double *part) {
    if (!s->linear) {
        *part = 0;
        return o * s->in / s->out;
    }
    const double at = (double)o * s->scale + s->shift, place = at > 0 ? at : 0;
    const int64_t position = (int64_t)place;
    const bool inside = position < s->in - 1;
    *part = inside ? place - (double)position : 0;
    return inside ? position : s->in - 1;
}

#define REAL     float
#define FN(name) name##_f32
#include "tensor/device/cpu/resize.inc"

#define REAL     double
#define FN(name) name##_f64
#include "tensor/device/cpu/resize.inc"

/* Describes the resizing of an axis from size `in` to size `out`, in tensors that otherwise have the shape of
 * `like`. */
static stretch stretch_of(const ls_tensor *like, int64_t in, int64_t out, int axis, bool linear, bool align_corners) {
    stretch s = {.outer = 1, .in = in, .out = out, .inner = 1, .linear = linear};
    for (int i = 0; i < like->ndim; i++) {
        s.outer *= i < axis ? like->size[i] : 1;
        s.inner *= i > axis ? like->size[i] : 1;
    }
    if (align_corners) {
        s.scale = out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
    } else {
        s.scale = (double)in / (double)out;
        s.shift = 0.5 * s.scale - 0.5;
    }
    return s;
}

ls_status ls_cpu_resize(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool linear,
                        bool align_corners) {
    (void)stream;
    const stretch s = stretch_of(x, x->size[axis], y->size[axis], axis, linear, align_corners);
    return LS_FLOATING(x->dtype, resize, &s, y->data, x->data);
}

ls_status ls_cpu_resize_backward(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool linear,
                                 bool align_corners) {
    (void)stream;
    const stretch s = stretch_of(x, y->size[axis], x->size[axis], axis, linear, align_corners);
    return LS_FLOATING(x->dtype, resize_backward, &s, y->data, x->data);
}
