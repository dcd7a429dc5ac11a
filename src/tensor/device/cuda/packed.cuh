/*
 * Conversion of tensors [batch, heads, rows, width] between f32 with any strides and dense 16-bit floats. One kernel
 * converts several tensors, with eight elements of a row per thread. Widths are multiples of eight, and the stride of
 * the last axis is 1.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_PACKED_CUH
#define LS_TENSOR_DEVICE_CUDA_PACKED_CUH

#include "tensor/device/cuda/products.cuh"

namespace ls {

struct alignas(16) packed_numbers {
    float x[4];
};
struct alignas(16) packed_halves {
    uint16_t x[8];
};
struct alignas(8) half_of_packed {
    uint16_t x[4];
};

/*
 * One tensor [batch, heads, rows, 8 groups]. Item i covers the eight elements of the packed tensor that begin at
 * element 8 (i - first).
 */
struct packed_part {
    float *wide;
    packed_halves *halves;
    int64_t batch_step, head_step, row_step, heads, rows, groups;
    int64_t first, end; /* range of the tensor's items among the items of all parts */
    bool by_four;       /* f32 elements are accessed in vectors of four */

    LS_HOST_DEVICE float *place(int64_t item) const {
        const int64_t row = ls::quotient(item, groups), head = ls::quotient(row, rows);
        const int64_t sample = ls::quotient(head, heads);
        return wide + sample * batch_step + (head - sample * heads) * head_step + (row - head * rows) * row_step +
               (item - row * groups) * 8;
    }
};

struct packed_parts {
    packed_part at[5];
    int count;
    int64_t items;

    LS_HOST_DEVICE const packed_part &of(int64_t i) const {
        int p = 0;
        while (p + 1 < count && i >= at[p].end) {
            p++;
        }
        return at[p];
    }
    void add(const ls_tensor *tensor, uint16_t *halves) {
        const int64_t *const step = tensor->stride, *const size = tensor->size;
        packed_part p = {};
        p.wide = static_cast<float *>(tensor->data);
        p.halves = reinterpret_cast<packed_halves *>(halves);
        p.batch_step = step[0], p.head_step = step[1], p.row_step = step[2];
        p.heads = size[1], p.rows = size[2], p.groups = size[3] / 8;
        p.first = items;
        items += size[0] * size[1] * size[2] * p.groups;
        p.end = items;
        p.by_four = (step[0] | step[1] | step[2]) % 4 == 0 && reinterpret_cast<uintptr_t>(p.wide) % 16 == 0;
        at[count++] = p;
    }
};

template <int HALF> ls_status pack_halves(ls_stream *stream, const packed_parts &given) {
    const packed_parts all = given;
    return ls::each(stream, "attention: to halves", all.items, [=] LS_BODY(int64_t i) {
        const packed_part &p = all.of(i);
        const float *const from = p.place(i - p.first);
        packed_numbers x[2];
        if (p.by_four) {
            x[0] = reinterpret_cast<const packed_numbers *>(from)[0];
            x[1] = reinterpret_cast<const packed_numbers *>(from)[1];
        } else {
            for (int l = 0; l < 8; l++) {
                x[l / 4].x[l % 4] = from[l];
            }
        }
        packed_halves y;
        for (int l = 0; l < 8; l++) {
            const float value = x[l / 4].x[l % 4];
            y.x[l] = HALF == LS_BF16 ? ls_bf16_from_float(value) : ls_f16_from_float(value);
        }
        p.halves[i - p.first] = y;
    });
}

/* Converts four elements per thread, so that the threads of a warp write adjacent vectors. */
template <int HALF> ls_status unpack_halves(ls_stream *stream, const packed_parts &given) {
    const packed_parts all = given;
    return ls::each(stream, "attention: from halves", 2 * all.items, [=] LS_BODY(int64_t i) {
        const int64_t item = i >> 1, half = i & 1;
        const packed_part &p = all.of(item);
        const half_of_packed from = reinterpret_cast<const half_of_packed *>(p.halves + (item - p.first))[half];
        float *const to = p.place(item - p.first) + 4 * half;
        packed_numbers y;
        for (int l = 0; l < 4; l++) {
            y.x[l] = HALF == LS_BF16 ? ls_bf16_to_float(from.x[l]) : ls_f16_to_float(from.x[l]);
        }
        if (p.by_four) {
            *reinterpret_cast<packed_numbers *>(to) = y;
        } else {
            for (int l = 0; l < 4; l++) {
                to[l] = y.x[l];
            }
        }
    });
}

} // namespace ls

#endif
