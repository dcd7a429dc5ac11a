#include "parallel/fingerprint.h"

#include <math.h>

#include "base/hash.h"
#include "tensor/device.h"

enum { ELEMENTS = 1024, BITS_OF_HASH = (1 << 24) - 1 /* an f32 represents these bits exactly */ };

/* The weights differ, so that the sum depends on the order of the samples. All weights are from 1 to 2. */
static double weight_of(int64_t i) {
    return 1 + (double)((uint32_t)i * 2654435761U) * 0x1p-32;
}

/* Returns some elements as f64, dense and on the host. Returns NULL on failure. */
static ls_tensor *choose(const char *call, const ls_tensor *dense) {
    const int64_t stride = (dense->count + ELEMENTS - 1) / ELEMENTS;
    const int64_t count = stride > 0 ? (dense->count + stride - 1) / stride : 0;
    ls_tensor *chosen = ls_tensor_view_owned(dense, 1, &count, &(int64_t){stride > 0 ? stride : 1}, 0);
    ls_tensor *result = chosen != NULL ? ls_tensor_dense_on_host(call, chosen, LS_F64) : NULL;
    ls_tensor_drop(chosen);
    return result;
}

ls_status ls_fingerprint_of(const char *call, const ls_tensor *dense, ls_fingerprint *fingerprint) {
    ls_tensor *chosen = choose(call, dense);
    LS_TRY(ls_made(chosen));
    const double *elements = ls_host_data(chosen);
    if (!ls_dtype_is_floating((ls_dtype)dense->dtype)) {
        const uint64_t hash = ls_hash_long(LS_HASH_START, elements, (size_t)chosen->count * sizeof *elements);
        *fingerprint = (ls_fingerprint){.sum = (float)(hash & BITS_OF_HASH)};
        ls_tensor_drop(chosen);
        return LS_OK;
    }
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < chosen->count; i++) {
        const double term = elements[i] * weight_of(i);
        sum += term;
        magnitude += fabs(term);
    }
    ls_tensor_drop(chosen);
    *fingerprint = (ls_fingerprint){(float)sum, (float)magnitude};
    return LS_OK;
}

/* Fingerprints with infinity or NaN, as after a training run diverges, count as equal to all fingerprints. */
bool ls_fingerprints_differ(ls_fingerprint a, ls_fingerprint b, ls_dtype dtype) {
    const double tolerance = dtype == LS_BF16 || dtype == LS_F16 ? 5e-3 : 1e-4;
    const double most = tolerance * fmax(a.magnitude, b.magnitude);
    return fabs((double)a.sum - b.sum) > most || fabs((double)a.magnitude - b.magnitude) > most;
}
