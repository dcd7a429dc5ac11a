/*
 * Random numbers: element i is number i of the stream, identical to the CPU's (base/philox.h). A thread generates a
 * block: two numbers, or four words for dropout.
 */
#include "tensor/device/cuda/four.cuh"

extern "C" {
#include "base/float_limits.h"
#include "base/philox.h"
}

namespace {

/* Returns a + b c, rounded twice, as on the CPU. */
LS_HOST_DEVICE inline double scaled(double a, double b, double c) {
#ifdef __CUDA_ARCH__
    return __dadd_rn(a, __dmul_rn(b, c));
#else
    return a + b * c;
#endif
}

/* Writes elements 2 t and 2 t + 1 of y. */
template <class T, class V> LS_HOST_DEVICE void write_pair(T *y, int64_t count, int64_t t, const V (&pair)[2]) {
    y[2 * t] = (T)pair[0];
    if (2 * t + 1 < count) {
        y[2 * t + 1] = (T)pair[1];
    }
}

template <class T>
ls_status random_uniform(ls_stream *stream, ls_tensor *tensor, ls_random_state state, double low, double high) {
    const double range = high - low;
    const double limit = low < high ? ls_largest_below(high, (ls_dtype)tensor->dtype) : low;
    T *const y = ls::data<T>(tensor);
    const int64_t count = tensor->count;
    return ls::each(stream, "random_uniform", (count + 1) / 2, [=] LS_BODY(int64_t t) {
        uint32_t words[4];
        double pair[2];
        ls_philox(state.seed, state.stream, (uint64_t)t, words);
        for (int l = 0; l < 2; l++) {
            const double number = scaled(low, range, ls_unit_of_words(words + 2 * l));
            pair[l] = number < limit ? number : limit;
        }
        write_pair(y, count, t, pair);
    });
}

/* Box-Muller pairs. */
template <class T>
ls_status random_normal(ls_stream *stream, ls_tensor *tensor, ls_random_state state, double mean, double deviation) {
    T *const y = ls::data<T>(tensor);
    const int64_t count = tensor->count;
    return ls::each(stream, "random_normal", (count + 1) / 2, [=] LS_BODY(int64_t t) {
        const double two_pi = 6.283185307179586476925;
        uint32_t words[4];
        ls_philox(state.seed, state.stream, (uint64_t)t, words);
        const double radius = sqrt(-2.0 * log1p(-ls_unit_of_words(words)));
        const double angle = two_pi * ls_unit_of_words(words + 2);
        const double pair[2] = {scaled(mean, deviation, radius * cos(angle)),
                                scaled(mean, deviation, radius * sin(angle))};
        write_pair(y, count, t, pair);
    });
}

template <class T>
ls_status random_integer(ls_stream *stream, ls_tensor *tensor, ls_random_state state, int64_t low, uint64_t range) {
    T *const y = ls::data<T>(tensor);
    const int64_t count = tensor->count;
    return ls::each(stream, "random_integer", (count + 1) / 2, [=] LS_BODY(int64_t t) {
        uint32_t words[4];
        int64_t pair[2];
        ls_philox(state.seed, state.stream, (uint64_t)t, words);
        for (int l = 0; l < 2; l++) {
            pair[l] = (int64_t)((uint64_t)low + ls_below_of_words(words + 2 * l, range));
        }
        write_pair(y, count, t, pair);
    });
}

/* Element i is kept if word first + i of the stream is at least p * 2^32. */
template <class T>
ls_status dropout(ls_stream *stream, ls_tensor *to, const ls_tensor *from, ls_random_state state, uint64_t first,
                  double p) {
    const uint64_t threshold = (uint64_t)ceil(p * 0x1p32);
    const T scale = (T)(p < 1 ? 1 / (1 - p) : 0);
    T *const y = ls::data<T>(to);
    const T *const x = ls::data<T>(from);
    const int64_t count = to->count;
    const int64_t before = (int64_t)(first % 4); /* words of the first block that belong to previous elements */
    const bool aligned = before == 0 && (uintptr_t)y % 16 == 0 && (uintptr_t)x % 16 == 0;
    return ls::each(stream, "dropout", (before + count + 3) / 4, [=] LS_BODY(int64_t t) {
        uint32_t words[4];
        ls_philox(state.seed, state.stream, first / 4 + (uint64_t)t, words);
        if (aligned && 4 * t + 4 <= count) {
            T v[4];
            ls::read_four(v, x, t, count, true);
            for (int l = 0; l < 4; l++) {
                v[l] = words[l] >= threshold ? v[l] * scale : (T)0;
            }
            ls::write_four(y, v, t, count, true);
            return;
        }
        for (int l = 0; l < 4; l++) {
            const int64_t i = 4 * t + l - before;
            if (i >= 0 && i < count) {
                y[i] = words[l] >= threshold ? x[i] * scale : (T)0;
            }
        }
    });
}

} // namespace

ls_status ls_cuda_random_uniform(ls_stream *stream, ls_tensor *y, ls_random_state state, double low, double high) {
    return LS_OF_FLOATS(y->dtype, random_uniform, stream, y, state, low, high);
}

ls_status ls_cuda_random_normal(ls_stream *stream, ls_tensor *y, ls_random_state state, double mean, double deviation) {
    return LS_OF_FLOATS(y->dtype, random_normal, stream, y, state, mean, deviation);
}

ls_status ls_cuda_random_integer(ls_stream *stream, ls_tensor *y, ls_random_state state, int64_t low, int64_t high) {
    const uint64_t range = (uint64_t)high - (uint64_t)low;
    return LS_OF_ANY(y->dtype, random_integer, stream, y, state, low, range);
}

ls_status ls_cuda_dropout(ls_stream *stream, ls_tensor *y, const ls_tensor *x, ls_random_state state, uint64_t first,
                          double p) {
    return LS_OF_FLOATS(y->dtype, dropout, stream, y, x, state, first, p);
}
