/*
 * Matrix products. Operands are rounded, and bias and activation are applied, in this file; the products are computed
 * by a library (gemm_library.cu), or in simple loops if the library does not support them.
 */
#include "tensor/device/cuda/products.cuh"

namespace {

struct alignas(16) four_numbers {
    float x[4];
};
struct alignas(8) four_halves {
    uint16_t x[4];
};

template <int HALF> LS_HOST_DEVICE uint16_t half_of(float x) {
    return HALF == LS_BF16 ? ls_bf16_from_float(x) : ls_f16_from_float(x);
}

template <int HALF>
ls_status halves_one_by_one(ls_stream *stream, const ls::matrices &m, int64_t leading, uint16_t *to) {
    const float *const from = static_cast<const float *>(m.data);
    const int64_t rows = m.rows, columns = m.columns, from_leading = m.leading, step = m.step;
    return ls::each(stream, "to_halves", m.count * rows * columns, [=] LS_BODY(int64_t i) {
        const int64_t row = ls::quotient(i, columns), column = i - row * columns;
        const int64_t matrix = ls::quotient(row, rows);
        to[row * leading + column] = half_of<HALF>(from[matrix * step + (row - matrix * rows) * from_leading + column]);
    });
}

/* Requires that all strides and sizes are multiples of four and that the addresses are aligned to four elements. */
template <int HALF> ls_status halves_by_four(ls_stream *stream, const ls::matrices &m, int64_t leading, uint16_t *to) {
    const float *const from = static_cast<const float *>(m.data);
    const int64_t rows = m.rows, groups = m.columns / 4, from_leading = m.leading, step = m.step;
    return ls::each(stream, "to_halves", m.count * rows * groups, [=] LS_BODY(int64_t i) {
        const int64_t row = ls::quotient(i, groups), column = (i - row * groups) * 4;
        const int64_t matrix = ls::quotient(row, rows);
        const four_numbers x = *reinterpret_cast<const four_numbers *>(from + matrix * step +
                                                                       (row - matrix * rows) * from_leading + column);
        four_halves y;
        for (int l = 0; l < 4; l++) {
            y.x[l] = half_of<HALF>(x.x[l]);
        }
        *reinterpret_cast<four_halves *>(to + row * leading + column) = y;
    });
}

template <int HALF> ls_status halves_of(ls_stream *stream, ls::matrices m, int64_t leading, uint16_t *to) {
    if (m.rows == 1) {
        m.leading = m.columns;
    }
    if (m.count == 1) {
        m.step = m.rows * m.leading;
    }
    /* treats all matrices as one long row */
    if (m.leading == m.columns && leading == m.columns && m.step == m.rows * m.columns) {
        m.columns *= m.rows * m.count;
        m.rows = m.count = 1;
        m.leading = leading = m.step = m.columns;
    }
    const bool by_four = (m.columns | m.leading | m.step | leading) % 4 == 0 &&
                         reinterpret_cast<uintptr_t>(m.data) % sizeof(four_numbers) == 0 &&
                         reinterpret_cast<uintptr_t>(to) % sizeof(four_halves) == 0;
    return by_four ? halves_by_four<HALF>(stream, m, leading, to) : halves_one_by_one<HALF>(stream, m, leading, to);
}

template <int HALF> ls_status rounded_to(ls_stream *stream, const float *from, int64_t count, float *to) {
    return ls::each(stream, "rounded", count, [=] LS_BODY(int64_t i) {
        const uint16_t half = half_of<HALF>(from[i]);
        to[i] = HALF == LS_BF16 ? ls_bf16_to_float(half) : ls_f16_to_float(half);
    });
}

/* ---- operands in memory ------------------------------------------------------------------------------------------ */

template <class T> struct plain {
    typedef T type;
    static LS_HOST_DEVICE double value(T x) {
        return (double)x;
    }
};
struct plain_bf16 {
    typedef uint16_t type;
    static LS_HOST_DEVICE double value(uint16_t x) {
        return (double)ls_bf16_to_float(x);
    }
};
struct plain_f16 {
    typedef uint16_t type;
    static LS_HOST_DEVICE double value(uint16_t x) {
        return (double)ls_f16_to_float(x);
    }
};

/* Uses one thread per element of C, which sums in double precision. */
template <class FROM, class T> ls_status in_loops(ls_stream *stream, const ls_gemm &gemm) {
    const ls_gemm p = gemm;
    const typename FROM::type *const all_a = static_cast<const typename FROM::type *>(p.a);
    const typename FROM::type *const all_b = static_cast<const typename FROM::type *>(p.b);
    T *const all_c = static_cast<T *>(p.c);
    return ls::each(stream, "gemm", p.batch * p.m * p.n, [=] LS_BODY(int64_t i) {
        const int64_t row = ls::quotient(i, p.n), column = i - row * p.n;
        const int64_t matrix = ls::quotient(row, p.m), line = row - matrix * p.m;
        const typename FROM::type *a = all_a + matrix * p.step_a + line * (p.transpose_a ? 1 : p.lda);
        const typename FROM::type *b = all_b + matrix * p.step_b + column * (p.transpose_b ? p.ldb : 1);
        const int64_t a_next = p.transpose_a ? p.lda : 1, b_next = p.transpose_b ? 1 : p.ldb;
        double sum = 0;
        for (int64_t k = 0; k < p.k; k++, a += a_next, b += b_next) {
            sum += FROM::value(*a) * FROM::value(*b);
        }
        T *const c = all_c + matrix * p.step_c + line * p.ldc + column;
        *c = p.accumulate ? (T)((double)*c + sum) : (T)sum;
    });
}

ls_status loops_for(ls_stream *stream, const ls_gemm &gemm) {
    switch (gemm.dtype) {
    case LS_F64:
        return in_loops<plain<double>, double>(stream, gemm);
    case LS_BF16:
        return in_loops<plain_bf16, float>(stream, gemm);
    case LS_F16:
        return in_loops<plain_f16, float>(stream, gemm);
    default:
        return in_loops<plain<float>, float>(stream, gemm);
    }
}

/* Adds the bias to a product (or to zeros if the product is empty), then applies the activation. */
template <class T> ls_status finish(ls_stream *stream, const ls_gemm &gemm, bool add_bias, bool is_empty) {
    const T *const bias = add_bias ? static_cast<const T *>(gemm.bias) : nullptr;
    const bool relu = gemm.activation == LS_ACTIVATION_RELU;
    if (gemm.accumulate || (bias == nullptr && !relu && !is_empty)) {
        return LS_OK;
    }
    T *const c = static_cast<T *>(gemm.c);
    const int64_t m = gemm.m, n = gemm.n, leading = gemm.ldc, step = gemm.step_c;
    return ls::each(stream, "gemm", gemm.batch * m * n, [=] LS_BODY(int64_t i) {
        const int64_t row = ls::quotient(i, n), column = i - row * n;
        const int64_t matrix = ls::quotient(row, m);
        T *const at = c + matrix * step + (row - matrix * m) * leading + column;
        const T sum = (is_empty ? (T)0 : *at) + (bias != nullptr ? bias[column] : (T)0);
        *at = relu && sum < 0 ? (T)0 : sum; /* keeps NaN, which the library's activation does not guarantee */
    });
}

ls_status finish_as(ls_stream *stream, const ls_gemm &gemm, ls_dtype dtype, bool add_bias, bool is_empty) {
    return dtype == LS_F32 ? finish<float>(stream, gemm, add_bias, is_empty)
                           : finish<double>(stream, gemm, add_bias, is_empty);
}

/* The maximum number of products per library call: not every kernel of the library supports larger grids. */
constexpr int64_t most_at_once = 32768;

ls_status by_library(ls_stream *stream, const ls_gemm &gemm, bool *has_bias) {
    const int64_t operand = (int64_t)ls_dtype_size(gemm.dtype), result = gemm.dtype == LS_F64 ? 8 : 4;
    for (int64_t first = 0; first < gemm.batch; first += most_at_once) {
        ls_gemm part = gemm;
        part.batch = gemm.batch - first < most_at_once ? gemm.batch - first : most_at_once;
        part.a = static_cast<const char *>(gemm.a) + first * gemm.step_a * operand;
        part.b = static_cast<const char *>(gemm.b) + first * gemm.step_b * operand;
        part.c = static_cast<char *>(gemm.c) + first * gemm.step_c * result;
        bool added = false;
        const ls_status status = ls::library_gemm(stream, part, &added);
        if (status == LS_ERR_UNSUPPORTED) {
            LS_TRY(loops_for(stream, part));
        } else {
            LS_TRY(status);
        }
        if (part.bias != nullptr && !added && gemm.batch > most_at_once) { /* `added` may differ between the parts */
            part.activation = LS_ACTIVATION_NONE;
            LS_TRY(finish_as(stream, part, gemm.dtype == LS_F64 ? LS_F64 : LS_F32, true, false));
            added = true;
        }
        *has_bias = added;
    }
    return LS_OK;
}

/* gemm.dtype is the dtype of the operands; C has `dtype`. */
ls_status multiply(ls_stream *stream, const ls_gemm &gemm, ls_dtype dtype) {
    bool has_bias = false;
    if (dtype == LS_F32 && gemm.compute == LS_F64) {
        LS_TRY(loops_for(stream, gemm));
    } else {
        LS_TRY(by_library(stream, gemm, &has_bias));
    }
    return finish_as(stream, gemm, dtype, !has_bias, false);
}

/* Returns a row length for 16-bit floats such that all rows begin at multiples of 16 bytes. */
int64_t aligned_row(int64_t columns) {
    return (columns + 7) / 8 * 8;
}

ls::matrices matrices_a(const ls_gemm &gemm) {
    const bool shared = gemm.step_a == 0;
    return {gemm.a,
            gemm.transpose_a ? gemm.k : gemm.m,
            gemm.transpose_a ? gemm.m : gemm.k,
            gemm.lda,
            shared ? 1 : gemm.batch,
            gemm.step_a};
}

ls::matrices matrices_b(const ls_gemm &gemm) {
    const bool shared = gemm.step_b == 0;
    return {gemm.b,
            gemm.transpose_b ? gemm.n : gemm.k,
            gemm.transpose_b ? gemm.k : gemm.n,
            gemm.ldb,
            shared ? 1 : gemm.batch,
            gemm.step_b};
}

/* An operand of a product, rounded to 16-bit floats: a copy, unless the operand is already rounded. */
struct rounded_operand {
    const ls::matrices from;
    const bool is_rounded;
    const int64_t leading;
    const ls::scratch copy;

    rounded_operand(ls_stream *stream, const ls::matrices &given, bool rounded)
        : from(given), is_rounded(rounded), leading(rounded ? given.leading : aligned_row(given.columns)),
          copy(stream, rounded ? 1 : (size_t)(given.count * given.rows * leading) * sizeof(uint16_t)) {
    }
    const void *data() const {
        return is_rounded ? from.data : copy.memory;
    }
    int64_t step() const {
        return from.step == 0 || is_rounded ? from.step : from.rows * leading;
    }
    ls_status make(ls_stream *stream, ls_dtype half) const {
        LS_TRY(copy.status("gemm"));
        return is_rounded ? LS_OK : ls::to_halves(stream, from, half, leading, copy.as<uint16_t>());
    }
};

ls_status multiply_halves(ls_stream *stream, const ls_gemm &gemm) {
    const rounded_operand a(stream, matrices_a(gemm), gemm.a_rounded != LS_F32);
    const rounded_operand b(stream, matrices_b(gemm), gemm.b_rounded != LS_F32);
    LS_TRY(a.make(stream, gemm.rounds_to));
    LS_TRY(b.make(stream, gemm.rounds_to));
    ls_gemm halves = gemm;
    halves.dtype = gemm.rounds_to;
    halves.a = a.data(), halves.lda = a.leading, halves.step_a = a.step();
    halves.b = b.data(), halves.ldb = b.leading, halves.step_b = b.step();
    return multiply(stream, halves, LS_F32);
}

} // namespace

ls_status ls::to_halves(ls_stream *stream, const matrices &from, ls_dtype half, int64_t leading, uint16_t *to) {
    return half == LS_BF16 ? halves_of<LS_BF16>(stream, from, leading, to)
                           : halves_of<LS_F16>(stream, from, leading, to);
}

ls_status ls::rounded(ls_stream *stream, const float *from, ls_dtype half, int64_t count, float *to) {
    return half == LS_BF16 ? rounded_to<LS_BF16>(stream, from, count, to) : rounded_to<LS_F16>(stream, from, count, to);
}

bool ls_cuda_gains_by(ls_dtype rounds_to) {
    return rounds_to == LS_BF16 || rounds_to == LS_F16;
}

ls_status ls_cuda_gemm(ls_stream *stream, const ls_gemm *gemm) {
    if (gemm->dtype != LS_F32 && gemm->dtype != LS_F64) {
        return ls::no_kernel("gemm", gemm->dtype);
    }
    if (gemm->m == 0 || gemm->n == 0) {
        return LS_OK;
    }
    ls_gemm whole = *gemm;
    if (whole.batch <= 1) {
        whole.batch = 1;
        whole.step_a = whole.step_b = whole.step_c = 0;
    }
    if (whole.k == 0) {
        return finish_as(stream, whole, whole.dtype, true, true);
    }
    if (whole.dtype == LS_F32 && whole.rounds_to != LS_F32) {
        return multiply_halves(stream, whole);
    }
    return multiply(stream, whole, whole.dtype);
}
