/* Small f32 products in AVX2, for processors without AVX-512. */
#include "tensor/device/cpu/gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET __attribute__((always_inline)) static inline

enum { LANES = 8 };
typedef __m256 vector;
typedef struct part {
    __m256i mask;
    int64_t count;
} part;

INLINE part first_lanes(int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int whole = count < LANES ? (int)count : LANES;
    return (part){_mm256_cmpgt_epi32(_mm256_set1_epi32(whole), lane), whole};
}

INLINE vector zero(void) {
    return _mm256_setzero_ps();
}

INLINE vector all(float x) {
    return _mm256_set1_ps(x);
}

INLINE vector load(const float *at) {
    return _mm256_loadu_ps(at);
}

INLINE vector load_part(part lanes, const float *at) {
    return _mm256_maskload_ps(at, lanes.mask);
}

/*
 * Stores 4, 2 and 1 numbers, because on processors without AVX-512 a masked store takes as long as twelve normal
 * stores.
 */
INLINE void store_part(part lanes, float *at, vector v) {
    if (lanes.count == LANES) {
        _mm256_storeu_ps(at, v);
        return;
    }
    __m128 rest = _mm256_castps256_ps128(v);
    if (lanes.count & 4) {
        _mm_storeu_ps(at, rest);
        rest = _mm256_extractf128_ps(v, 1);
        at += 4;
    }
    if (lanes.count & 2) {
        _mm_storel_pi((__m64 *)at, rest);
        rest = _mm_movehl_ps(rest, rest);
        at += 2;
    }
    if (lanes.count & 1) {
        _mm_store_ss(at, rest);
    }
}

INLINE vector add(vector a, vector b) {
    return _mm256_add_ps(a, b);
}

INLINE vector multiply(vector a, vector b) {
    return _mm256_mul_ps(a, b);
}

INLINE vector multiply_add(vector a, vector b, vector c) {
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vector greater(vector a, vector b) {
    return _mm256_max_ps(a, b);
}

INLINE float sum_of(vector v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE vector with_lane(vector v, int lane, float x) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i here = _mm256_cmpeq_epi32(lanes, _mm256_set1_epi32(lane));
    return _mm256_blendv_ps(v, _mm256_set1_ps(x), _mm256_castsi256_ps(here));
}

/* Each step adds neighboring numbers of two vectors and merges the vectors. The last step adds the halves. */
INLINE vector sums_of(const vector *x) {
    const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

#include "tensor/device/cpu/gemm_vectors.inc"

bool ls_gemm_avx2(const ls_gemm *gemm) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && product(gemm);
}

#else

bool ls_gemm_avx2(const ls_gemm *gemm) {
    (void)gemm;
    return false;
}

#endif
