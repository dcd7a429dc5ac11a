/*
 * Small f32 products in AVX-512. A masked vector does any width in one step, so a layer of ten outputs costs one
 * instruction a row and no loop over what is left; a sample at a time through a small network is mostly such tails.
 */
#include "tensor/device/cpu/gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,fma")))
#define INLINE AVX512 __attribute__((always_inline)) static inline

enum { LANES = 16, TALL = 4, WIDE = 8 };

/* The first `count` of 16 lanes. */
INLINE __mmask16 first_lanes(int64_t count) {
    return (__mmask16)(count >= LANES ? 0xffffU : (1U << count) - 1U);
}

/* What a vector of results starts from. */
INLINE __m512 start(const ls_gemm *gemm, const float *c, int64_t j, __mmask16 mask) {
    if (gemm->accumulate) {
        return _mm512_maskz_loadu_ps(mask, c + j);
    }
    return gemm->bias != NULL ? _mm512_maskz_loadu_ps(mask, (const float *)gemm->bias + j) : _mm512_setzero_ps();
}

/* Stores one, through the activation. The maximum gives its second operand where one is NaN, so a NaN stays. */
INLINE void finish(const ls_gemm *gemm, float *c, int64_t j, __mmask16 mask, __m512 sum) {
    if (gemm->activation == LS_ACTIVATION_RELU && !gemm->accumulate) {
        sum = _mm512_max_ps(_mm512_setzero_ps(), sum);
    }
    _mm512_mask_storeu_ps(c + j, mask, sum);
}

/* Where the elements of op(A) lie. */
typedef struct steps {
    ptrdiff_t row, inner;
} steps;

INLINE steps steps_of_a(const ls_gemm *gemm) {
    return gemm->transpose_a ? (steps){1, gemm->lda} : (steps){gemm->lda, 1};
}

/*
 * `rows` rows by `vectors` vectors of C, from row i and column j on, B as it is: every element of A times a piece of a
 * row of B. Both counts are constants where this is called, so the sums are registers.
 */
INLINE void tile(const ls_gemm *gemm, int64_t i, int64_t j, int rows, int vectors, __mmask16 last) {
    const steps step = steps_of_a(gemm);
    const float *a = (const float *)gemm->a + i * step.row;
    const float *b = (const float *)gemm->b + j;
    float *c = (float *)gemm->c + i * gemm->ldc;
    __m512 sum[TALL][WIDE];
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = start(gemm, c + r * gemm->ldc, j + v * LANES, v == vectors - 1 ? last : 0xffff);
        }
    }
    for (int64_t p = 0; p < gemm->k; p++, a += step.inner, b += gemm->ldb) {
        __m512 row[WIDE];
        for (int v = 0; v < vectors; v++) {
            row[v] = v == vectors - 1 ? _mm512_maskz_loadu_ps(last, b + v * LANES) : _mm512_loadu_ps(b + v * LANES);
        }
        for (int r = 0; r < rows; r++) {
            const __m512 factor = _mm512_set1_ps(a[r * step.row]);
            for (int v = 0; v < vectors; v++) {
                sum[r][v] = _mm512_fmadd_ps(factor, row[v], sum[r][v]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++) {
            finish(gemm, c + r * gemm->ldc, j + v * LANES, v == vectors - 1 ? last : 0xffff, sum[r][v]);
        }
    }
}

/* `vectors` vectors of columns from column j on, for rows from `begin` to before `end`, `rows` at a time. */
typedef void strip_function(const ls_gemm *gemm, int64_t begin, int64_t end, int64_t j);

/* The description is copied, because the compiler takes a store of a vector for one that may change it. */
#define STRIP(rows, vectors)                                                                                           \
    AVX512 static void strip_##rows##x##vectors(const ls_gemm *gemm, int64_t begin, int64_t end, int64_t j) {          \
        const ls_gemm copy = *gemm;                                                                                    \
        const __mmask16 last = first_lanes(copy.n - j - (vectors - 1) * LANES);                                        \
        for (int64_t i = begin; i < end; i += rows) {                                                                  \
            tile(&copy, i, j, rows, vectors, last);                                                                    \
        }                                                                                                              \
    }
STRIP(1, 1)
STRIP(1, 2)
STRIP(1, 3)
STRIP(1, 4)
STRIP(1, 5)
STRIP(1, 6)
STRIP(1, 7)
STRIP(1, 8)
STRIP(4, 1)
STRIP(4, 2)
STRIP(4, 3)
STRIP(4, 4)

/* One row of C takes eight vectors at a time, four rows take four: so many sums fit the registers, and enough of them
 * are under way to hide how long one addition takes. */
static strip_function *const one_row[] = {strip_1x1, strip_1x2, strip_1x3, strip_1x4,
                                          strip_1x5, strip_1x6, strip_1x7, strip_1x8};
static strip_function *const four_rows[] = {strip_4x1, strip_4x2, strip_4x3, strip_4x4};

static void rows_by_strips(const ls_gemm *gemm, int64_t begin, int64_t end, strip_function *const *strips,
                           int64_t widest) {
    for (int64_t j = 0; begin < end && j < gemm->n; j += widest * LANES) {
        const int64_t vectors = (gemm->n - j + LANES - 1) / LANES;
        strips[(vectors < widest ? vectors : widest) - 1](gemm, begin, end, j);
    }
}

static void product_by_strips(const ls_gemm *gemm) {
    const int64_t whole = gemm->m - gemm->m % TALL;
    rows_by_strips(gemm, 0, whole, four_rows, sizeof four_rows / sizeof four_rows[0]);
    rows_by_strips(gemm, whole, gemm->m, one_row, WIDE);
}

/*
 * Sixteen vectors to one that holds their sums: each step adds halves of two vectors while it puts them together, so
 * sixteen sums cost little more than two.
 */
INLINE __m512 sums_of_sixteen(const __m512 *x) {
    __m512 pair[8];
    for (int i = 0; i < 8; i++) {
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
    __m512 four[4];
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(pair[2 * i]);
        const __m512d b = _mm512_castps_pd(pair[2 * i + 1]);
        four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    __m512 eight[2];
    for (int i = 0; i < 2; i++) {
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xdd));
    }
    return _mm512_add_ps(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88),
                         _mm512_shuffle_f32x4(eight[0], eight[1], 0xdd));
}

/*
 * Sixteen products of the vector a with rows of B `step` apart, which is B transposed seen from one row of C. What is
 * more than whole vectors comes first, so that the sums start from it and not from zeros.
 */
INLINE __m512 sixteen_dots(const float *a, const float *b, ptrdiff_t step, int64_t k) {
    __m512 sum[LANES];
    const __mmask16 rest = first_lanes(k % LANES);
    const __m512 factor = _mm512_maskz_loadu_ps(rest, a);
    for (int l = 0; l < LANES; l++) {
        sum[l] = _mm512_mul_ps(factor, _mm512_maskz_loadu_ps(rest, b + l * step));
    }
    for (int64_t p = k % LANES; p < k; p += LANES) {
        const __m512 next = _mm512_loadu_ps(a + p);
        for (int l = 0; l < LANES; l++) {
            sum[l] = _mm512_fmadd_ps(next, _mm512_loadu_ps(b + p + l * step), sum[l]);
        }
    }
    return sums_of_sixteen(sum);
}

INLINE float one_dot(const float *a, const float *b, int64_t k) {
    const __mmask16 rest = first_lanes(k % LANES);
    __m512 even = _mm512_mul_ps(_mm512_maskz_loadu_ps(rest, a), _mm512_maskz_loadu_ps(rest, b));
    __m512 odd = _mm512_setzero_ps();
    int64_t p = k % LANES;
    for (; p + 2 * LANES <= k; p += 2 * LANES) {
        even = _mm512_fmadd_ps(_mm512_loadu_ps(a + p), _mm512_loadu_ps(b + p), even);
        odd = _mm512_fmadd_ps(_mm512_loadu_ps(a + p + LANES), _mm512_loadu_ps(b + p + LANES), odd);
    }
    if (p < k) {
        odd = _mm512_fmadd_ps(_mm512_loadu_ps(a + p), _mm512_loadu_ps(b + p), odd);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
}

/* Columns that are no sixteen any more, one by one into a vector. */
INLINE __m512 last_dots(const float *a, const float *b, ptrdiff_t step, int64_t k, int64_t count) {
    __m512 dots = _mm512_setzero_ps();
    for (int64_t l = 0; l < count; l++) {
        dots = _mm512_mask_mov_ps(dots, (__mmask16)(1U << l), _mm512_set1_ps(one_dot(a, b + l * step, k)));
    }
    return dots;
}

AVX512 static void product_by_dots(const ls_gemm *gemm) {
    const ls_gemm copy = *gemm;
    for (int64_t i = 0; i < copy.m; i++) {
        const float *a = (const float *)copy.a + i * copy.lda;
        float *c = (float *)copy.c + i * copy.ldc;
        for (int64_t j = 0; j < copy.n; j += LANES) {
            const float *b = (const float *)copy.b + j * copy.ldb;
            const __mmask16 mask = first_lanes(copy.n - j);
            const __m512 dots = copy.n - j >= LANES ? sixteen_dots(a, b, copy.ldb, copy.k)
                                                    : last_dots(a, b, copy.ldb, copy.k, copy.n - j);
            finish(&copy, c, j, mask, _mm512_add_ps(start(&copy, c, j, mask), dots));
        }
    }
}

bool ls_gemm_avx512(const ls_gemm *gemm) {
    /* A column of A that is a number, or a row, lies the same way transposed or not. */
    const bool rows_of_a = !gemm->transpose_a || (gemm->m == 1 && gemm->lda == 1);
    if (!__builtin_cpu_supports("avx512f") || (gemm->transpose_b && !rows_of_a)) {
        return false;
    }
    if (gemm->transpose_b) {
        product_by_dots(gemm);
    } else {
        product_by_strips(gemm);
    }
    return true;
}

#else

bool ls_gemm_avx512(const ls_gemm *gemm) {
    (void)gemm;
    return false;
}

#endif
