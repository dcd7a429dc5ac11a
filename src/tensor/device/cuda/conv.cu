/*
 * Convolution by cuDNN (conv_library.cu). If cuDNN does not support it (padding that differs between the two sides;
 * everything on the host), it is computed by simple gather kernels: one thread per element of the result, or one team
 * per element for gradients of the weight. Gradients of small weights are matrix products.
 */
#include "tensor/device/cuda/conv.cuh"

namespace {

using ls::conv_data;
using ls::conv_shape;
using ls::conv_work;

conv_shape shape_of(const ls_tensor *large, const ls_tensor *small, const ls_window *window) {
    conv_shape shape = {};
    shape.samples = large->size[0];
    shape.groups = window->groups;
    shape.channels = large->size[1] / window->groups;
    shape.outputs = small->size[1] / window->groups;
    for (int i = 0; i < 3; i++) {
        shape.size[i] = large->size[2 + i];
        shape.out[i] = small->size[2 + i];
        shape.kernel[i] = window->kernel[i];
        shape.stride[i] = window->stride[i];
        shape.dilation[i] = window->dilation[i];
        shape.before[i] = window->before[i];
    }
    return shape;
}

/* Splits index i of an array whose last three axes have these sizes into *at. Returns the index of the channel. */
LS_HOST_DEVICE int64_t place_of(int64_t i, const int64_t *size, int64_t *at) {
    for (int axis = 2; axis >= 0; axis--) {
        const int64_t rest = ls::quotient(i, size[axis]);
        at[axis] = i - rest * size[axis];
        i = rest;
    }
    return i;
}

/*
 * Returns the offset, in a channel of the large side, of a tap of the window at output position `at`, or -1 if the tap
 * is in the padding.
 */
LS_HOST_DEVICE int64_t seen_at(const conv_shape &s, const int64_t *at, int64_t a, int64_t b, int64_t c) {
    const int64_t z = at[0] * s.stride[0] - s.before[0] + a * s.dilation[0];
    const int64_t y = at[1] * s.stride[1] - s.before[1] + b * s.dilation[1];
    const int64_t x = at[2] * s.stride[2] - s.before[2] + c * s.dilation[2];
    const bool inside = z >= 0 && z < s.size[0] && y >= 0 && y < s.size[1] && x >= 0 && x < s.size[2];
    return inside ? (z * s.size[1] + y) * s.size[2] + x : -1;
}

/*
 * Returns the output position along an axis whose tap `tap` reads position `at` of the large side, or -1 if there is no
 * such position.
 */
LS_HOST_DEVICE int64_t seer_of(const conv_shape &s, int axis, int64_t at, int64_t tap) {
    const int64_t from = at + s.before[axis] - tap * s.dilation[axis];
    const int64_t seer = from < 0 ? -1 : ls::quotient(from, s.stride[axis]);
    return seer < s.out[axis] && seer * s.stride[axis] == from ? seer : -1;
}

LS_HOST_DEVICE int64_t product_of(const int64_t *size) {
    return size[0] * size[1] * size[2];
}

/* ---- the three kinds of work; sums are computed in double precision ---------------------------------------------- */

template <class T> LS_BODY T small_number(const conv_shape &s, int64_t i, const T *large, const T *weight) {
    int64_t at[3];
    const int64_t channel = place_of(i, s.out, at); /* index over all samples */
    const int64_t sample = ls::quotient(channel, s.groups * s.outputs),
                  output = channel - sample * s.groups * s.outputs;
    const int64_t plane = product_of(s.size), taps = product_of(s.kernel);
    const int64_t group = ls::quotient(output, s.outputs);
    const T *from = large + (sample * s.groups + group) * s.channels * plane;
    const T *factor = weight + output * s.channels * taps;
    double sum = 0;
    for (int64_t a = 0; a < s.kernel[0]; a++) {
        for (int64_t b = 0; b < s.kernel[1]; b++) {
            for (int64_t c = 0; c < s.kernel[2]; c++, factor++) {
                const int64_t seen = seen_at(s, at, a, b, c);
                for (int64_t k = 0; seen >= 0 && k < s.channels; k++) {
                    sum += (double)from[k * plane + seen] * (double)factor[k * taps];
                }
            }
        }
    }
    return (T)sum;
}

template <class T> LS_BODY T large_number(const conv_shape &s, int64_t i, const T *small, const T *weight) {
    int64_t at[3];
    const int64_t channel = place_of(i, s.size, at);
    const int64_t block = ls::quotient(channel, s.channels); /* sample and group */
    const int64_t sample = ls::quotient(block, s.groups), group = block - sample * s.groups;
    const int64_t positions = product_of(s.out), taps = product_of(s.kernel), step = s.channels * taps;
    const T *from = small + block * s.outputs * positions;
    const T *factor = weight + group * s.outputs * step + (channel - block * s.channels) * taps;
    double sum = 0;
    for (int64_t a = 0; a < s.kernel[0]; a++) {
        const int64_t z = seer_of(s, 0, at[0], a);
        for (int64_t b = 0; b < s.kernel[1]; b++) {
            const int64_t y = seer_of(s, 1, at[1], b);
            for (int64_t c = 0; c < s.kernel[2]; c++, factor++) {
                const int64_t x = seer_of(s, 2, at[2], c);
                const bool there = z >= 0 && y >= 0 && x >= 0;
                const int64_t seer = (z * s.out[1] + y) * s.out[2] + x;
                for (int64_t k = 0; there && k < s.outputs; k++) {
                    sum += (double)from[k * positions + seer] * (double)factor[k * step];
                }
            }
        }
    }
    return (T)sum;
}

/* Computes this team member's part of the gradient of weight element i. */
template <class T>
LS_BODY double weight_part(const conv_shape &s, int64_t i, const T *large, const T *small, int lane, int lanes) {
    int64_t tap[3];
    const int64_t pair = place_of(i, s.kernel, tap);
    /* index in the group */
    const int64_t output = ls::quotient(pair, s.channels), channel = pair - output * s.channels;
    const int64_t group = ls::quotient(output, s.outputs);
    const int64_t plane = product_of(s.size), positions = product_of(s.out);
    double sum = 0;
    for (int64_t k = lane; k < s.samples * positions; k += lanes) {
        int64_t at[3];
        const int64_t sample = place_of(k, s.out, at);
        const int64_t seen = seen_at(s, at, tap[0], tap[1], tap[2]);
        if (seen >= 0) {
            const T *from = large + ((sample * s.groups + group) * s.channels + channel) * plane;
            const int64_t own = (sample * s.groups * s.outputs + output) * positions + (k - sample * positions);
            sum += (double)from[seen] * (double)small[own];
        }
    }
    return sum;
}

template <class T> ls_status make(ls_stream *stream, conv_work work, const conv_shape &shape, const conv_data &data) {
    const conv_shape s = shape;
    T *const large = static_cast<T *>(data.large), *const small = static_cast<T *>(data.small);
    T *const weight = static_cast<T *>(data.weight);
    const int64_t outputs = s.groups * s.outputs;
    if (work == ls::CONV_SMALL) {
        return ls::each(stream, "conv", s.samples * outputs * product_of(s.out),
                        [=] LS_BODY(int64_t i) { small[i] = small_number<T>(s, i, large, weight); });
    }
    if (work == ls::CONV_LARGE) {
        return ls::each(stream, "conv_transpose", s.samples * s.groups * s.channels * product_of(s.size),
                        [=] LS_BODY(int64_t i) { large[i] = large_number<T>(s, i, small, weight); });
    }
    return ls::teams<128>(stream, "conv_weight", outputs * s.channels * product_of(s.kernel),
                          [=] LS_BODY(ls::team & t, int64_t i) {
                              const double sum = t.sum(weight_part<T>(s, i, large, small, t.lane, t.size));
                              if (t.lane == 0) {
                                  weight[i] = (T)((double)weight[i] + sum);
                              }
                          });
}

/* ---- the gradient of the weight as a matrix product -------------------------------------------------------------- */

constexpr int64_t most_weights = (int64_t)1 << 16, most_bytes = (int64_t)1 << 28;

/*
 * Returns whether to compute the gradient of the weight as one product over all positions of all samples. cuDNN's
 * reproducible kernels use one thread block for 32 x 32 weights, so they leave most of a GPU idle if there are few
 * weights.
 */
bool is_for_product(conv_work work, const conv_shape &s, const conv_data &data) {
    const int64_t columns = s.channels * product_of(s.kernel), positions = s.samples * product_of(s.out);
    const int64_t bytes = (columns + s.outputs) * positions * (int64_t)ls_dtype_size(data.dtype);
    return work == ls::CONV_WEIGHT && s.groups == 1 && s.outputs * columns <= most_weights && bytes <= most_bytes;
}

/* Copies the small side [samples, outputs, positions] to `to` [outputs, samples, positions]. */
template <class T> ls_status outputs_first(ls_stream *stream, const conv_shape &s, const T *small, T *to) {
    const int64_t positions = product_of(s.out), samples = s.samples, outputs = s.outputs;
    return ls::each(stream, "conv_weight", samples * outputs * positions, [=] LS_BODY(int64_t i) {
        const int64_t row = ls::quotient(i, positions), output = ls::quotient(row, samples);
        const int64_t sample = row - output * samples;
        to[i] = small[(sample * outputs + output) * positions + (i - row * positions)];
    });
}

/* Sets `to` [channels, taps, samples, positions] to the numbers that each tap of the window reads. */
template <class T> ls_status taps_first(ls_stream *stream, const conv_shape &shape, const T *large, T *to) {
    const conv_shape s = shape;
    const int64_t positions = product_of(s.out), plane = product_of(s.size);
    const int64_t count = s.channels * product_of(s.kernel) * s.samples * positions;
    return ls::each(stream, "conv_weight", count, [=] LS_BODY(int64_t i) {
        int64_t at[3], tap[3];
        const int64_t row = place_of(i, s.out, at), pair = ls::quotient(row, s.samples);
        const int64_t channel = place_of(pair, s.kernel, tap), sample = row - pair * s.samples;
        const int64_t seen = seen_at(s, at, tap[0], tap[1], tap[2]);
        to[i] = seen >= 0 ? large[(sample * s.channels + channel) * plane + seen] : (T)0;
    });
}

template <class T>
ls_status weight_by_product(ls_stream *stream, const conv_shape &s, const conv_data &data, ls_dtype rounds_to) {
    const int64_t columns = s.channels * product_of(s.kernel), positions = s.samples * product_of(s.out);
    const ls::scratch left(stream, (size_t)(s.outputs * positions) * sizeof(T));
    const ls::scratch right(stream, (size_t)(columns * positions) * sizeof(T));
    LS_TRY(left.status("conv_weight"));
    LS_TRY(right.status("conv_weight"));
    LS_TRY(outputs_first(stream, s, static_cast<const T *>(data.small), left.as<T>()));
    LS_TRY(taps_first(stream, s, static_cast<const T *>(data.large), right.as<T>()));
    ls_gemm gemm = {};
    gemm.dtype = data.dtype;
    gemm.rounds_to = rounds_to;
    gemm.m = s.outputs, gemm.n = columns, gemm.k = positions;
    gemm.a = left.memory, gemm.lda = positions;
    gemm.b = right.memory, gemm.ldb = positions, gemm.transpose_b = true;
    gemm.c = data.weight, gemm.ldc = columns;
    gemm.accumulate = true;
    return ls_cuda_gemm(stream, &gemm);
}

/* `rounds_to` is the dtype to which the operands have been rounded, or LS_F32 if they have not been rounded. */
ls_status convolve(ls_stream *stream, conv_work work, const conv_shape &shape, const conv_data &data,
                   ls_dtype rounds_to) {
    if (is_for_product(work, shape, data)) {
        return data.dtype == LS_F32 ? weight_by_product<float>(stream, shape, data, rounds_to)
                                    : weight_by_product<double>(stream, shape, data, rounds_to);
    }
    const ls_status status = ls::library_conv(stream, work, shape, data, rounds_to != LS_F32);
    if (status != LS_ERR_UNSUPPORTED) {
        return status;
    }
    return data.dtype == LS_F32 ? make<float>(stream, work, shape, data) : make<double>(stream, work, shape, data);
}

/* Uses rounded copies of the two operands. */
ls_status convolve_rounded(ls_stream *stream, conv_work work, const conv_shape &s, const conv_data &data,
                           ls_dtype half) {
    conv_data copies = data;
    void **const first = work == ls::CONV_LARGE ? &copies.small : &copies.large;
    void **const second = work == ls::CONV_WEIGHT ? &copies.small : &copies.weight;
    const int64_t large = s.samples * s.groups * s.channels * product_of(s.size);
    const int64_t small = s.samples * s.groups * s.outputs * product_of(s.out);
    const int64_t weight = s.groups * s.outputs * s.channels * product_of(s.kernel);
    const int64_t one = work == ls::CONV_LARGE ? small : large, other = work == ls::CONV_WEIGHT ? small : weight;
    const ls::scratch room_one(stream, (size_t)one * sizeof(float)), room_other(stream, (size_t)other * sizeof(float));
    LS_TRY(room_one.status("convolution"));
    LS_TRY(room_other.status("convolution"));
    LS_TRY(ls::rounded(stream, static_cast<const float *>(*first), half, one, room_one.as<float>()));
    LS_TRY(ls::rounded(stream, static_cast<const float *>(*second), half, other, room_other.as<float>()));
    *first = room_one.memory;
    *second = room_other.memory;
    return convolve(stream, work, s, copies, half);
}

ls_status run(ls_stream *stream, const char *name, conv_work work, const ls_tensor *large, const ls_tensor *small,
              const ls_tensor *weight, const ls_window *window, ls_dtype rounds_to) {
    const conv_data data = {(ls_dtype)large->dtype, large->data, small->data, weight->data};
    if (data.dtype != LS_F32 && data.dtype != LS_F64) {
        return ls::no_kernel(name, data.dtype);
    }
    const int64_t result = work == ls::CONV_SMALL   ? small->count
                           : work == ls::CONV_LARGE ? large->count
                                                    : weight->count;
    if (result == 0) {
        return LS_OK;
    }
    const conv_shape shape = shape_of(large, small, window);
    const bool rounds = rounds_to != LS_F32 && data.dtype == LS_F32;
    return rounds ? convolve_rounded(stream, work, shape, data, rounds_to)
                  : convolve(stream, work, shape, data, LS_F32);
}

template <class T> ls_status bias_to(ls_stream *stream, ls_tensor *y, const ls_tensor *bias) {
    T *const to = ls::data<T>(y);
    const T *const numbers = ls::data<T>(bias);
    const int64_t channels = y->size[1], plane = y->size[2] * y->size[3] * y->size[4];
    return ls::each(stream, "conv", y->count, [=] LS_BODY(int64_t i) {
        const int64_t channel = ls::quotient(i, plane);
        to[i] += numbers[channel - ls::quotient(channel, channels) * channels];
    });
}

ls_status add_bias(ls_stream *stream, ls_tensor *y, const ls_tensor *bias) {
    return bias != nullptr && y->count > 0 ? LS_OF_FLOATS(y->dtype, bias_to, stream, y, bias) : LS_OK;
}

} // namespace

ls_status ls_cuda_conv(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *weight,
                       const ls_tensor *bias, const ls_window *window, ls_dtype rounds_to) {
    LS_TRY(run(stream, "conv", ls::CONV_SMALL, x, y, weight, window, rounds_to));
    return add_bias(stream, y, bias);
}

ls_status ls_cuda_conv_transpose(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *weight,
                                 const ls_tensor *bias, const ls_window *window, ls_dtype rounds_to) {
    LS_TRY(run(stream, "conv_transpose", ls::CONV_LARGE, y, x, weight, window, rounds_to));
    return add_bias(stream, y, bias);
}

ls_status ls_cuda_conv_weight(ls_stream *stream, ls_tensor *d_weight, const ls_tensor *large, const ls_tensor *small,
                              const ls_window *window, ls_dtype rounds_to) {
    return run(stream, "conv_weight", ls::CONV_WEIGHT, large, small, d_weight, window, rounds_to);
}
