/*
 * Products by cuBLAS, which uses column-major matrices: for cuBLAS, a row-major C is its transpose. So it computes C^T
 * = op(B)^T op(A)^T, with our B first, and the bias of a column of C is the bias of a row.
 *
 * A plan holds the descriptors of a product and the algorithm that cuBLAS's heuristic selects. Each stream keeps its
 * plans in a table, so that a training step in steady state creates no plans. The choice depends only on shapes and
 * alignments. Algorithms whose bits depend on the order in which their parts finish are excluded.
 *
 * On the host, the CPU computes the products, so that the surrounding code can be tested.
 */
#include "tensor/device/cuda/products.cuh"

#ifndef __CUDACC__

#include <vector>

extern "C" {
#include "tensor/device/cpu/cpu.h"
}

namespace {

std::vector<float> widened(const ls_gemm &gemm, const void *from, bool is_a) {
    const bool transposed = is_a ? gemm.transpose_a : gemm.transpose_b;
    const int64_t outer = is_a ? gemm.m : gemm.k, inner = is_a ? gemm.k : gemm.n;
    const int64_t rows = transposed ? inner : outer, columns = transposed ? outer : inner;
    const int64_t leading = is_a ? gemm.lda : gemm.ldb, step = is_a ? gemm.step_a : gemm.step_b;
    std::vector<float> to((size_t)((gemm.batch - 1) * step + (rows - 1) * leading + columns));
    for (size_t i = 0; i < to.size(); i++) {
        const uint16_t half = static_cast<const uint16_t *>(from)[i];
        to[i] = gemm.dtype == LS_BF16 ? ls_bf16_to_float(half) : ls_f16_to_float(half);
    }
    return to;
}

} // namespace

ls_status ls::library_gemm(ls_stream *stream, const ls_gemm &gemm, bool *has_bias) {
    (void)stream;
    ls_gemm plain = gemm;
    plain.rounds_to = LS_F32;
    plain.compute = LS_F32;
    plain.bias = nullptr;
    plain.activation = LS_ACTIVATION_NONE;
    *has_bias = false;
    if (gemm.dtype != LS_BF16 && gemm.dtype != LS_F16) {
        return ls_cpu_kernels.gemm(nullptr, &plain);
    }
    const std::vector<float> a = widened(gemm, gemm.a, true), b = widened(gemm, gemm.b, false);
    plain.dtype = LS_F32;
    plain.a = a.data();
    plain.b = b.data();
    return ls_cpu_kernels.gemm(nullptr, &plain);
}

#else

#include <cublasLt.h>

#include "tensor/device/cuda/plans.cuh"

namespace {

constexpr size_t workspace_bytes = (size_t)32 << 20;
constexpr uint32_t highest_alignment = 16; /* required by the widest loads of a kernel */

/* All properties on which a plan depends. Has only 64-bit members, so that there is no padding. */
struct plan_key {
    int64_t dtype, m, n, k, lda, ldb, ldc, batch, step_a, step_b, step_c;
    int64_t flags; /* transposes, bias */
    int64_t align_a, align_b, align_c;
};

struct plan {
    plan_key key;
    bool is_used, is_known; /* is_known: the library has an algorithm for the key */
    bool has_bias;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, result;
    cublasLtMatmulAlgo_t algorithm;
};

struct library {
    cublasLtHandle_t handle;
    void *workspace;
    ls::plan_table<plan, 1024> plans;
};

ls_status failed(const char *what, cublasStatus_t status) {
    return ls_fail(status == CUBLAS_STATUS_ALLOC_FAILED ? LS_ERR_MEMORY : LS_ERR_DEVICE, "gemm: cuBLAS %s: %s", what,
                   cublasLtGetStatusString(status));
}

void clear(plan *p) {
    if (p->product != nullptr) {
        (void)cublasLtMatmulDescDestroy(p->product);
    }
    for (cublasLtMatrixLayout_t layout : {p->first, p->second, p->result}) {
        if (layout != nullptr) {
            (void)cublasLtMatrixLayoutDestroy(layout);
        }
    }
    memset(p, 0, sizeof *p);
}

void end(void *memory) {
    library *const l = static_cast<library *>(memory);
    for (plan &p : l->plans.plan) {
        clear(&p);
    }
    if (l->handle != nullptr) {
        (void)cublasLtDestroy(l->handle);
    }
    (void)cudaFree(l->workspace);
    free(l);
}

ls_status library_of(ls_stream *stream, library **found) {
    void **const slot = ls_cuda_stream_slot(stream, LS_CUDA_SLOT_GEMM, end);
    *found = static_cast<library *>(*slot);
    if (*found != nullptr) {
        return LS_OK;
    }
    library *const l = static_cast<library *>(calloc(1, sizeof *l));
    if (l == nullptr) {
        return ls_fail_memory("gemm", sizeof *l);
    }
    const cublasStatus_t status = cublasLtCreate(&l->handle);
    if (status != CUBLAS_STATUS_SUCCESS || cudaMalloc(&l->workspace, workspace_bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        end(l);
        return status != CUBLAS_STATUS_SUCCESS ? failed("does not start", status)
                                               : ls_fail_memory("gemm", workspace_bytes);
    }
    *slot = *found = l;
    return LS_OK;
}

int64_t alignment_of(const void *pointer, int64_t element) {
    int64_t alignment = highest_alignment;
    while (alignment > element && reinterpret_cast<uintptr_t>(pointer) % (uintptr_t)alignment != 0) {
        alignment /= 2;
    }
    return alignment;
}

/* The leading dimension of a single row may be arbitrary, but the library needs a valid value. */
int64_t leading_of(int64_t rows, int64_t columns, int64_t leading) {
    return rows <= 1 && leading < columns ? columns : leading;
}

plan_key key_of(const ls_gemm &gemm) {
    const int64_t element = (int64_t)ls_dtype_size(gemm.dtype), result = gemm.dtype == LS_F64 ? 8 : 4;
    const bool bias = gemm.bias != nullptr && !gemm.accumulate && gemm.dtype != LS_F64 &&
                      alignment_of(gemm.bias, result) == highest_alignment;
    plan_key key = {};
    key.dtype = gemm.dtype;
    key.m = gemm.m, key.n = gemm.n, key.k = gemm.k;
    key.lda = gemm.transpose_a ? leading_of(gemm.k, gemm.m, gemm.lda) : leading_of(gemm.m, gemm.k, gemm.lda);
    key.ldb = gemm.transpose_b ? leading_of(gemm.n, gemm.k, gemm.ldb) : leading_of(gemm.k, gemm.n, gemm.ldb);
    key.ldc = leading_of(gemm.m, gemm.n, gemm.ldc);
    key.batch = gemm.batch;
    key.step_a = gemm.step_a, key.step_b = gemm.step_b, key.step_c = gemm.step_c;
    key.flags = gemm.transpose_a + 2 * gemm.transpose_b + 4 * bias;
    key.align_a = alignment_of(gemm.a, element);
    key.align_b = alignment_of(gemm.b, element);
    key.align_c = alignment_of(gemm.c, result);
    return key;
}

/* ---- making plans ------------------------------------------------------------------------------------------------ */

cudaDataType_t type_of(int64_t dtype) {
    return dtype == LS_F64 ? CUDA_R_64F : dtype == LS_BF16 ? CUDA_R_16BF : dtype == LS_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Records the first failure of several calls. */
struct first_failure {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    void operator()(cublasStatus_t next) {
        status = status == CUBLAS_STATUS_SUCCESS ? next : status;
    }
};

/* Creates the layout of a row-major matrix. */
cublasStatus_t make_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type, int64_t rows, int64_t columns,
                           int64_t leading, int64_t batch, int64_t step) {
    first_failure all;
    all(cublasLtMatrixLayoutCreate(layout, type, (uint64_t)columns, (uint64_t)rows, leading));
    if (all.status == CUBLAS_STATUS_SUCCESS && batch > 1) {
        const int32_t count = (int32_t)batch;
        all(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
        all(cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step));
    }
    return all.status;
}

cublasStatus_t describe(plan *p, bool transpose_a, bool transpose_b) {
    const plan_key &key = p->key;
    const cudaDataType_t type = type_of(key.dtype), result = key.dtype == LS_F64 ? CUDA_R_64F : CUDA_R_32F;
    const cublasComputeType_t compute = key.dtype == LS_F64                        ? CUBLAS_COMPUTE_64F
                                        : key.dtype == LS_F32 && ls::allows_tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                                   : CUBLAS_COMPUTE_32F;
    const cublasOperation_t first = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    first_failure all;
    all(cublasLtMatmulDescCreate(&p->product, compute, result));
    if (all.status != CUBLAS_STATUS_SUCCESS) {
        return all.status;
    }
    all(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    all(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    all(make_layout(&p->first, type, transpose_b ? key.n : key.k, transpose_b ? key.k : key.n, key.ldb, key.batch,
                    key.step_b));
    all(make_layout(&p->second, type, transpose_a ? key.k : key.m, transpose_a ? key.m : key.k, key.lda, key.batch,
                    key.step_a));
    all(make_layout(&p->result, result, key.m, key.n, key.ldc, key.batch, key.step_c));
    return all.status;
}

cublasStatus_t set_bias(const plan *p, const void *bias) {
    return cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

cublasStatus_t set_epilogue(const plan *p, cublasLtEpilogue_t epilogue) {
    return cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
}

cublasStatus_t set_preference(cublasLtMatmulPreference_t preference, const plan_key &key) {
    const uint64_t workspace = workspace_bytes;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    const uint32_t first = (uint32_t)key.align_b, second = (uint32_t)key.align_a, result = (uint32_t)key.align_c;
    first_failure all;
    all(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof workspace));
    all(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                             sizeof reductions));
    all(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first,
                                             sizeof first));
    all(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second,
                                             sizeof second));
    all(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result,
                                             sizeof result));
    all(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result,
                                             sizeof result));
    return all.status;
}

/* Selects the best algorithm. Sets p->is_known if there is an algorithm. */
cublasStatus_t choose(const library *l, plan *p) {
    cublasLtMatmulPreference_t preference = nullptr;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    status = set_preference(preference, p->key);
    cublasLtMatmulHeuristicResult_t results[4];
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulAlgoGetHeuristic(l->handle, p->product, p->first, p->second, p->result, p->result,
                                                preference, 4, results, &found);
    }
    (void)cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found && !p->is_known; i++) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace_bytes) {
            p->algorithm = results[i].algo;
            p->is_known = true;
        }
    }
    const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
    return none ? CUBLAS_STATUS_SUCCESS : status;
}

cublasStatus_t make(const library *l, plan *p, const ls_gemm &gemm) {
    first_failure all;
    all(describe(p, gemm.transpose_a, gemm.transpose_b));
    if (all.status == CUBLAS_STATUS_SUCCESS && (p->key.flags & 4) != 0) {
        all(set_epilogue(p, CUBLASLT_EPILOGUE_BIAS));
        all(set_bias(p, gemm.bias));
        all(all.status == CUBLAS_STATUS_SUCCESS ? choose(l, p) : all.status);
        p->has_bias = p->is_known;
        if (!p->is_known && all.status == CUBLAS_STATUS_SUCCESS) {
            all(set_bias(p, nullptr));
            all(set_epilogue(p, CUBLASLT_EPILOGUE_DEFAULT));
        }
    }
    return all.status == CUBLAS_STATUS_SUCCESS && !p->is_known ? choose(l, p) : all.status;
}

/*
 * Returns the plan for a product. If it is not in the table, creates it, and replaces another plan if the table is
 * full.
 */
ls_status plan_for(library *l, const ls_gemm &gemm, plan **found) {
    bool is_new;
    plan *const place = l->plans.find(key_of(gemm), clear, &is_new);
    *found = place;
    if (!is_new) {
        return LS_OK;
    }
    const cublasStatus_t status = make(l, place, gemm);
    (void)cudaGetLastError(); /* clear errors from the library's attempts, which the next kernel would report */
    if (status != CUBLAS_STATUS_SUCCESS) {
        clear(place);
        return failed("cannot plan a product", status);
    }
    place->is_used = true;
    return LS_OK;
}

} // namespace

ls_status ls::library_gemm(ls_stream *stream, const ls_gemm &gemm, bool *has_bias) {
    library *l = nullptr;
    plan *p = nullptr;
    LS_TRY(library_of(stream, &l));
    LS_TRY(plan_for(l, gemm, &p));
    *has_bias = p->has_bias;
    if (!p->is_known) {
        return LS_ERR_UNSUPPORTED;
    }
    if (p->has_bias) {
        const cublasStatus_t status = set_bias(p, gemm.bias);
        if (status != CUBLAS_STATUS_SUCCESS) {
            return failed("does not take the bias", status);
        }
    }
    const float one = 1, beta = gemm.accumulate ? 1 : 0;
    const double one_f64 = 1, beta_f64 = gemm.accumulate ? 1 : 0;
    const bool wide = gemm.dtype == LS_F64;
    const void *const factor = wide ? (const void *)&one_f64 : &one, *const kept =
                                                                         wide ? (const void *)&beta_f64 : &beta;
    const cublasStatus_t status =
        cublasLtMatmul(l->handle, p->product, factor, gemm.b, p->first, gemm.a, p->second, kept, gemm.c, p->result,
                       gemm.c, p->result, &p->algorithm, l->workspace, workspace_bytes, ls_cuda_stream(stream));
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
        (void)cudaGetLastError();
        p->is_known = p->has_bias = *has_bias = false;
        return LS_ERR_UNSUPPORTED;
    }
    return status == CUBLAS_STATUS_SUCCESS ? ls_cuda_launched(stream, "gemm") : failed("fails", status);
}

#endif
