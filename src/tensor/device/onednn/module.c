/* The module's entry point. */
#include <dlfcn.h>
#include <stdio.h>

#include <lockstep/base.h>

#include "tensor/device/onednn/plan.h"

dnnl_engine_t ls_onednn_engine;
const ls_onednn_core *ls_onednn_host;

static void run_parallel(int pieces, void (*body)(int piece, const void *context), const void *context) {
#ifdef _OPENMP
#pragma omp parallel for num_threads(pieces) schedule(static, 1)
#endif
    for (int piece = 0; piece < pieces; piece++) {
        body(piece, context);
    }
}

static ls_status multiply(const ls_gemm *part) {
    const dnnl_status_t status =
        dnnl_sgemm(part->transpose_a ? 'T' : 'N', part->transpose_b ? 'T' : 'N', part->m, part->n, part->k, 1.0F,
                   part->a, part->lda, part->b, part->ldb, part->accumulate ? 1.0F : 0.0F, part->c, part->ldc);
    return status == dnnl_success ? LS_OK : status == dnnl_out_of_memory ? LS_ERR_MEMORY : LS_ERR_UNSUPPORTED;
}

static bool has_isa(dnnl_cpu_isa_t isa) {
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

/* Intel's bf16 vector instructions are slower than its f32 instructions, AMD's are faster
 * (docs/internals/notes/matmul.md). */
static bool is_amd(void) {
#ifdef __x86_64__
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

/* Writes the name of oneDNN's instruction set, or its number if the name is unknown to this file. */
static void describe_isa(char *text, size_t capacity) {
    static const struct {
        dnnl_cpu_isa_t isa;
        const char *name;
    } names[] = {{dnnl_cpu_isa_sse41, "sse41"},
                 {dnnl_cpu_isa_avx, "avx"},
                 {dnnl_cpu_isa_avx2, "avx2"},
                 {dnnl_cpu_isa_avx2_vnni, "avx2_vnni"},
                 {dnnl_cpu_isa_avx512_core, "avx512_core"},
                 {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
                 {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
                 {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"}};
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    (void)snprintf(text, capacity, "isa %x", (unsigned)isa);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (isa == names[i].isa) {
            (void)snprintf(text, capacity, "%s", names[i].name);
        }
    }
}

LS_API ls_onednn_module_function ls_onednn_module;

const ls_onednn *ls_onednn_module(int abi_version, const ls_onednn_core *core) {
    static char version[48], isa[24];
    static ls_onednn functions = {.version = version,
                                  .file = "",
                                  .isa = isa,
                                  .team = ls_onednn_team,
                                  .parallel = run_parallel,
                                  .set_threads = ls_onednn_set_threads,
                                  .gemm = multiply,
                                  .gemm_bf16 = ls_onednn_gemm_bf16,
                                  .conv = ls_onednn_conv};
    if (abi_version != LS_ONEDNN_ABI || dnnl_engine_create(&ls_onednn_engine, dnnl_cpu, 0) != dnnl_success) {
        return NULL;
    }
    functions.has_fast_bf16 =
        has_isa(dnnl_cpu_isa_avx512_core_amx) || (is_amd() && has_isa(dnnl_cpu_isa_avx512_core_bf16));
    const dnnl_version_t *found = dnnl_version();
    (void)snprintf(version, sizeof version, "%d.%d.%d", found->major, found->minor, found->patch);
    describe_isa(isa, sizeof isa);
    Dl_info about;
    if (dladdr((const void *)found, &about) != 0 && about.dli_fname != NULL) {
        functions.file = about.dli_fname;
    }
    ls_onednn_host = core;
    return &functions;
}
