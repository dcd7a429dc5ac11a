/* Contiguous runs of elements, with four elements of each array per thread, because 16-byte accesses use the full
 * memory bandwidth. */
#ifndef LS_TENSOR_DEVICE_CUDA_FOUR_CUH
#define LS_TENSOR_DEVICE_CUDA_FOUR_CUH

#include "tensor/device/cuda/launch.cuh"

namespace ls {

template <class T> struct alignas(16) four { T number[4]; };

/* N arrays of `count` elements each. A NULL array is read as zeros, and writes to it are dropped. */
template <class T, int N> struct arrays {
    T *of[N];
    int64_t count;

    /* Returns whether every group of four elements of each array begins at a multiple of 16 bytes. */
    bool aligned() const {
        bool all = true;
        for (int k = 0; k < N; k++) {
            all = all && (uintptr_t)of[k] % 16 == 0;
        }
        return all;
    }
};

/* Reads the four elements of an array that begin at element 4 t. `whole` means that all four exist and the array is
 * aligned. */
template <class T> LS_HOST_DEVICE void read_four(T (&to)[4], const T *from, int64_t t, int64_t count, bool whole) {
    if (whole && from != nullptr) {
        const four<T> read = reinterpret_cast<const four<T> *>(from)[t];
        for (int l = 0; l < 4; l++) {
            to[l] = read.number[l];
        }
        return;
    }
    for (int l = 0; l < 4; l++) {
        to[l] = from != nullptr && 4 * t + l < count ? from[4 * t + l] : (T)0;
    }
}

template <class T> LS_HOST_DEVICE void write_four(T *to, const T (&from)[4], int64_t t, int64_t count, bool whole) {
    if (to == nullptr) {
        return;
    }
    if (whole) {
        four<T> written;
        for (int l = 0; l < 4; l++) {
            written.number[l] = from[l];
        }
        reinterpret_cast<four<T> *>(to)[t] = written;
        return;
    }
    for (int l = 0; l < 4 && 4 * t + l < count; l++) {
        to[4 * t + l] = from[l];
    }
}

/*
 * Calls f(v) for every index; v[k] is the element of array k, or 0 if bit k of UNREAD is set. If bit k of WRITTEN is
 * set, v[k] is then written to array k.
 */
template <unsigned WRITTEN, unsigned UNREAD = 0, class T, int N, class F>
ls_status each_four(ls_stream *stream, const char *name, const arrays<T, N> a, F f) {
    const bool aligned = a.aligned();
    return each(stream, name, (a.count + 3) / 4, [=] LS_BODY(int64_t t) {
        const bool whole = aligned && 4 * t + 4 <= a.count;
        T all[N][4];
        for (int k = 0; k < N; k++) {
            if ((UNREAD >> k & 1U) == 0) {
                read_four(all[k], a.of[k], t, a.count, whole);
            }
        }
        for (int l = 0; l < 4; l++) {
            T v[N];
            for (int k = 0; k < N; k++) {
                v[k] = (UNREAD >> k & 1U) == 0 ? all[k][l] : (T)0;
            }
            f(v);
            for (int k = 0; k < N; k++) {
                all[k][l] = v[k];
            }
        }
        for (int k = 0; k < N; k++) {
            if ((WRITTEN >> k & 1U) != 0) {
                write_four(a.of[k], all[k], t, a.count, whole);
            }
        }
    });
}

/* Casts a kernel's argument to its element type. The kernel does not write through pointers to const. */
template <class T> T *numbers(const void *memory) {
    return static_cast<T *>(const_cast<void *>(memory));
}

} // namespace ls

#endif
