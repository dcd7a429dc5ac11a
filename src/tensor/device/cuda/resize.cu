/* Resizing one axis: the nearest position, or linear interpolation between two positions. */
#include "tensor/device/cuda/scalar.cuh"

namespace {

/* `out` outputs from `in` inputs of an axis, in blocks of `inner` elements. */
struct stretch {
    int64_t outer, in, out, inner;
    bool linear;
    double scale, shift; /* linear: output o corresponds to input position o * scale + shift, but at least 0 */

    stretch(const ls_tensor *like, int64_t in, int64_t out, int axis, bool linear, bool align_corners)
        : outer(1), in(in), out(out), inner(1), linear(linear), shift(0) {
        for (int i = 0; i < like->ndim; i++) {
            outer *= i < axis ? like->size[i] : 1;
            inner *= i > axis ? like->size[i] : 1;
        }
        if (align_corners) {
            scale = out > 1 ? (double)(in - 1) / (double)(out - 1) : 0;
        } else {
            scale = (double)in / (double)out;
            shift = 0.5 * scale - 0.5;
        }
    }

    /* Returns the index of the input below output o. Sets *part to the weight of the next input. */
    LS_BODY int64_t below(int64_t o, double *part) const {
        if (!linear) {
            *part = 0;
            return ls::quotient(o * in, out);
        }
#ifdef __CUDA_ARCH__
        const double at = __dadd_rn(__dmul_rn((double)o, scale), shift); /* rounded twice, as on the CPU */
#else
        const double at = (double)o * scale + shift;
#endif
        const double place = at > 0 ? at : 0;
        const int64_t position = (int64_t)place;
        const bool inside = position < in - 1;
        *part = inside ? place - (double)position : 0;
        return inside ? position : in - 1;
    }

    /* Returns the first output whose lower input is at least p: estimates it, and corrects the estimate in a few
     * steps. */
    LS_BODY int64_t first_at(int64_t p) const {
        double part;
        double guess = linear ? ((double)p - shift) / scale : (double)p * (double)out / (double)in;
        guess = p > 0 && guess > 0 ? guess : 0; /* NaN, too */
        int64_t o = guess < (double)out ? (int64_t)guess : out;
        while (o > 0 && below(o - 1, &part) >= p) {
            o--;
        }
        while (o < out && below(o, &part) < p) {
            o++;
        }
        return o;
    }
};

template <class T> ls_status resize_to(ls_stream *stream, const stretch &axis, T *y, const T *x) {
    const stretch s = axis;
    return ls::each(stream, "resize", s.outer * s.out * s.inner, [=] LS_BODY(int64_t at) {
        const int64_t row = ls::quotient(at, s.inner), outer = ls::quotient(row, s.out);
        double part;
        const int64_t first = s.below(row - outer * s.out, &part);
        const T *const from = x + (outer * s.in + first) * s.inner + (at - row * s.inner);
        const T above = (T)part, rest = 1 - above;
        y[at] = part > 0 ? rest * from[0] + above * from[s.inner] : from[0]; /* avoids infinity times 0 */
    });
}

/* Each input sums over the outputs for which it is the lower or upper input. */
template <class T> ls_status resize_from(ls_stream *stream, const stretch &axis, T *dx, const T *g) {
    const stretch s = axis;
    return ls::each(stream, "resize_backward", s.outer * s.in * s.inner, [=] LS_BODY(int64_t at) {
        const int64_t row = ls::quotient(at, s.inner), outer = ls::quotient(row, s.in);
        const int64_t p = row - outer * s.in;
        const T *const from = g + outer * s.out * s.inner + (at - row * s.inner);
        double sum = 0;
        for (int64_t o = s.first_at(s.linear ? p - 1 : p); o < s.out; o++) {
            double part;
            const int64_t position = s.below(o, &part);
            if (position > p) {
                break;
            }
            const T above = (T)part;
            if (position == p) {
                sum += (double)((1 - above) * from[o * s.inner]);
            } else if (part > 0) {
                sum += (double)(above * from[o * s.inner]);
            }
        }
        dx[at] += (T)sum;
    });
}

} // namespace

ls_status ls_cuda_resize(LS_PARAMETERS_resize) {
    const stretch s(x, x->size[axis], y->size[axis], axis, linear, align_corners);
    return x->dtype == LS_F32   ? resize_to(stream, s, ls::data<float>(y), ls::data<float>(x))
           : x->dtype == LS_F64 ? resize_to(stream, s, ls::data<double>(y), ls::data<double>(x))
                                : ls::no_kernel("resize", x->dtype);
}

ls_status ls_cuda_resize_backward(LS_PARAMETERS_resize) {
    const stretch s(x, y->size[axis], x->size[axis], axis, linear, align_corners);
    return x->dtype == LS_F32   ? resize_from(stream, s, ls::data<float>(y), ls::data<float>(x))
           : x->dtype == LS_F64 ? resize_from(stream, s, ls::data<double>(y), ls::data<double>(x))
                                : ls::no_kernel("resize_backward", x->dtype);
}
