/* Small f32 products in AVX-512, where loading and storing only the first lanes of a vector costs nothing extra. */
#include "tensor/device/cpu/gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,fma")))
#define INLINE TARGET __attribute__((always_inline)) static inline

enum { LANES = 16 };
typedef __m512 vector;
typedef __mmask16 part;

INLINE part first_lanes(int64_t count) {
    return (part)(count >= LANES ? 0xffffU : (1U << count) - 1U);
}

INLINE vector zero(void) {
    return _mm512_setzero_ps();
}

INLINE vector all(float x) {
    return _mm512_set1_ps(x);
}

INLINE vector load(const float *at) {
    return _mm512_loadu_ps(at);
}

INLINE vector load_part(part lanes, const float *at) {
    return _mm512_maskz_loadu_ps(lanes, at);
}

INLINE void store_part(part lanes, float *at, vector v) {
    _mm512_mask_storeu_ps(at, lanes, v);
}

INLINE vector add(vector a, vector b) {
    return _mm512_add_ps(a, b);
}

INLINE vector multiply(vector a, vector b) {
    return _mm512_mul_ps(a, b);
}

INLINE vector multiply_add(vector a, vector b, vector c) {
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vector greater(vector a, vector b) {
    return _mm512_max_ps(a, b);
}

INLINE float sum_of(vector v) {
    return _mm512_reduce_add_ps(v);
}

INLINE vector with_lane(vector v, int lane, float x) {
    return _mm512_mask_mov_ps(v, (part)(1U << lane), _mm512_set1_ps(x));
}

/* Each step adds the halves of two vectors and merges the vectors, so sixteen sums cost little more than two. */
INLINE vector sums_of(const vector *x) {
    vector pair[8];
    for (int i = 0; i < 8; i++) {
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
    vector four[4];
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(pair[2 * i]);
        const __m512d b = _mm512_castps_pd(pair[2 * i + 1]);
        four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    vector eight[2];
    for (int i = 0; i < 2; i++) {
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xdd));
    }
    return _mm512_add_ps(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88),
                         _mm512_shuffle_f32x4(eight[0], eight[1], 0xdd));
}

#include "tensor/device/cpu/gemm_vectors.inc"

bool ls_gemm_avx512(const ls_gemm *gemm) {
    return __builtin_cpu_supports("avx512f") && product(gemm);
}

#else

bool ls_gemm_avx512(const ls_gemm *gemm) {
    (void)gemm;
    return false;
}

#endif
