/*
 * Stable sort of the indices 0 to n - 1 by their keys. Short runs are sorted by counting the keys that precede each
 * index. Then four runs at a time are merged: each index finds its rank in the other three runs by bisection. So no
 * step depends on the order in which threads run.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_ORDER_CUH
#define LS_TENSOR_DEVICE_CUDA_ORDER_CUH

#include "tensor/device/cuda/launch.cuh"

namespace ls {

/* Returns how many of the sorted keys [begin, end) are below `key`, or at most `key`. */
LS_HOST_DEVICE inline int64_t keys_below(const int64_t *keys, int64_t begin, int64_t end, int64_t key, bool or_equal) {
    const int64_t from = begin;
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (keys[middle] < key || (or_equal && keys[middle] == key)) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin - from;
}

/* Sorted keys and their original indices. */
struct placed {
    int64_t *key, *place;
};

/* Sorts each run of length `length`. */
inline ls_status order_runs(ls_stream *stream, const char *name, int64_t n, int64_t length, const int64_t *keys,
                            const placed to) {
    return each(stream, name, n, [=] LS_BODY(int64_t i) {
        const int64_t key = keys[i];
        const int64_t begin = i - i % length;
        const int64_t end = begin + length < n ? begin + length : n;
        int64_t rank = begin;
        for (int64_t j = begin; j < i; j++) {
            rank += keys[j] <= key;
        }
        for (int64_t j = i + 1; j < end; j++) {
            rank += keys[j] < key;
        }
        to.key[rank] = key;
        to.place[rank] = i;
    });
}

/* Merges every four sorted runs of length `length` into one run. */
inline ls_status order_merge(ls_stream *stream, const char *name, int64_t n, int64_t length, const placed from,
                             const placed to) {
    return each(stream, name, n, [=] LS_BODY(int64_t i) {
        const int64_t key = from.key[i];
        const int64_t own = i - i % length;
        const int64_t first = i - i % (4 * length);
        int64_t rank = first + (i - own);
        for (int64_t run = first; run < first + 4 * length && run < n; run += length) {
            const int64_t end = run + length < n ? run + length : n;
            if (run != own) {
                rank += keys_below(from.key, run, end, key, run < own);
            }
        }
        to.key[rank] = key;
        to.place[rank] = from.place[i];
    });
}

/*
 * Sorts with two buffers of n keys and n indices each, and reports which buffer contains the result. `keys` may be the
 * keys of the second buffer.
 */
inline ls_status order_places(ls_stream *stream, const char *name, int64_t n, const int64_t *keys,
                              const placed (&room)[2], int *result) {
    const int64_t run = 512;
    LS_TRY(order_runs(stream, name, n, run, keys, room[0]));
    *result = 0;
    for (int64_t length = run; length < n; length *= 4) {
        LS_TRY(order_merge(stream, name, n, length, room[*result], room[1 - *result]));
        *result = 1 - *result;
    }
    return LS_OK;
}

} // namespace ls

#endif
