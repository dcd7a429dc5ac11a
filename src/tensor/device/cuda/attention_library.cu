/*
 * Attention of 16-bit floats by cuDNN's fused kernels, which keep scores and probabilities on the chip. Operands are
 * packed as 16-bit floats, [batch, heads, length, width], and results are converted back to f32 with their own strides.
 * If cuDNN does not support a shape, attention.cu computes it. With LOCKSTEP_LOG=debug, one line per shape logs which
 * implementation is used, and why.
 */
#include "tensor/device/cuda/attention.cuh"

#ifndef __CUDACC__

ls_status ls::library_attention(ls_stream *stream, const attention_call &call) {
    (void)stream;
    (void)call;
    return LS_ERR_UNSUPPORTED;
}

ls_status ls::library_attention_backward(ls_stream *stream, const attention_call &call) {
    return library_attention(stream, call);
}

#else

#include <cfloat>
#include <cstdio>
#include <cstdlib>

#include "tensor/device/cuda/attention_graph.cuh"
#include "tensor/device/cuda/packed.cuh"
#include "tensor/device/cuda/plans.cuh"

extern "C" {
#include "tensor/device/cuda/cuda.h"
extern const ls_cuda_core *ls_cuda_host; /* module.c */
}

namespace {

using ls::attention_call;
using ls::attention_graph;
using ls::attention_shape;
using ls::packed_parts;

/* ---- 16-bit floats ----------------------------------------------------------------------------------------------- */

ls_status pack(ls_stream *stream, const attention_call &call, const packed_parts &all) {
    return call.half == LS_BF16 ? ls::pack_halves<LS_BF16>(stream, all) : ls::pack_halves<LS_F16>(stream, all);
}

ls_status unpack(ls_stream *stream, const attention_call &call, const packed_parts &all) {
    return call.half == LS_BF16 ? ls::unpack_halves<LS_BF16>(stream, all) : ls::unpack_halves<LS_F16>(stream, all);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* The library is not used for shorter sequences or wider heads. */
constexpr int64_t shortest = 64, widest = 128;
/* Limit for the gradients of scores that the backward pass stores at once, for as many heads as fit. */
constexpr int64_t most_workspace = (int64_t)512 << 20;

struct plan {
    attention_shape key;
    bool is_used, is_known; /* is_known: cuDNN has a kernel for the key */
    attention_graph graph;
    cudnnBackendDescriptor_t chosen;
    int64_t workspace;
};

constexpr int most_told = 64;

struct library {
    cudnnHandle_t handle;
    size_t version;
    int capability; /* major compute capability of the GPU */
    ls::plan_table<plan, 256> plans;
    attention_shape told[most_told]; /* shapes for which it was logged that the library is not used */
    int told_count;
};

void clear(plan *p) {
    p->graph.end();
    memset(p, 0, sizeof *p);
}

void end(void *memory) {
    library *const l = static_cast<library *>(memory);
    for (plan &p : l->plans.plan) {
        clear(&p);
    }
    if (l->handle != nullptr) {
        (void)cudnnDestroy(l->handle);
    }
    free(l);
}

/* Returns false if LOCKSTEP_CUDNN_ATTENTION is 0. */
bool is_wanted() {
    static const bool wanted = [] {
        const char *const text = getenv("LOCKSTEP_CUDNN_ATTENTION");
        return text == nullptr || strcmp(text, "0") != 0;
    }();
    return wanted;
}

/* Sets *found to a library without a handle if cuDNN is disabled or fails to initialize. */
ls_status library_of(ls_stream *stream, library **found) {
    void **const slot = ls_cuda_stream_slot(stream, LS_CUDA_SLOT_ATTENTION, end);
    *found = static_cast<library *>(*slot);
    if (*found != nullptr) {
        return LS_OK;
    }
    library *const l = static_cast<library *>(calloc(1, sizeof *l));
    if (l == nullptr) {
        return ls_fail_memory("attention", sizeof *l);
    }
    const cudaStream_t cuda = ls_cuda_stream(stream); /* also makes the stream's GPU the thread's current GPU */
    if (is_wanted() && cudnnCreate(&l->handle) != CUDNN_STATUS_SUCCESS) {
        l->handle = nullptr;
        (void)cudaGetLastError();
    }
    if (l->handle != nullptr && cudnnSetStream(l->handle, cuda) != CUDNN_STATUS_SUCCESS) {
        end(l);
        return ls_fail(LS_ERR_DEVICE, "attention: cuDNN rejected the stream");
    }
    l->version = cudnnGetVersion();
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&l->capability, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    *slot = *found = l;
    return LS_OK;
}

/* Logs a shape, such as "attention [2, 3, 128 x 128, 64] of bf16, causal". */
void tell(const attention_shape &s, ls_log_level level, const char *what) {
    ls_cuda_host->log_write(level, "attention%s [%lld, %lld, %lld x %lld, %lld] of %s%s: %s",
                            s.backward ? " backward" : "", (long long)s.batch, (long long)s.heads, (long long)s.queries,
                            (long long)s.keys, (long long)s.width, s.is_bf16 ? "bf16" : "f16",
                            s.causal ? ", causal" : "", what);
}

void tell_refusal(const plan *p, const char *at, cudnnStatus_t status) {
    char text[640], why[384] = "";
    (void)cudaGetLastError(); /* clear errors from cuDNN's attempts, which the next kernel would otherwise report */
    cudnnGetLastErrorString(why, sizeof why);
    (void)snprintf(text, sizeof text, "cuDNN has no kernel: %s: %s %s", at, cudnnGetErrorString(status), why);
    tell(p->key, LS_LOG_DEBUG, text);
}

/* Gets the number of a configuration's engine, and whether cuDNN's notes say that its bits may change from run to
 * run. */
bool engine_of(cudnnBackendDescriptor_t configuration, int64_t *number, bool *changes) {
    cudnnBackendDescriptor_t engine = nullptr;
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    *number = -1;
    *changes = false;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) {
        return false;
    }
    bool is_good = cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                            1, &count, &engine) == CUDNN_STATUS_SUCCESS;
    is_good = is_good && cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                                  number) == CUDNN_STATUS_SUCCESS;
    is_good =
        is_good && cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, note) == CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; is_good && i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
        *changes = *changes || note[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    }
    (void)cudnnBackendDestroyDescriptor(engine);
    return is_good;
}

/*
 * Returns whether the memory use of a plan is acceptable. A backward plan must store at least the gradients of the
 * scores: otherwise it would add to dq in any order, which cuDNN's notes do not report.
 */
bool is_fit(const attention_shape &s, int64_t workspace) {
    const int64_t scores = s.batch * s.heads * s.queries * s.keys;
    return workspace <= 2 * most_workspace && (!s.backward || workspace >= scores * (int64_t)sizeof(uint16_t));
}

/* Tries to create the plan from a configuration. */
bool take(library *l, plan *p, cudnnBackendDescriptor_t configuration) {
    cudnnBackendDescriptor_t made = nullptr;
    int64_t bytes = 0, count = 0;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &made);
    if (status != CUDNN_STATUS_SUCCESS) {
        return false;
    }
    status = cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      &configuration);
    if (status == CUDNN_STATUS_SUCCESS) {
        status = cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &l->handle);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = cudnnBackendFinalize(made);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                          &bytes);
    }
    if (status != CUDNN_STATUS_SUCCESS || !is_fit(p->key, bytes)) {
        tell_refusal(p, status != CUDNN_STATUS_SUCCESS ? "an engine" : "an engine's workspace", status);
        (void)cudnnBackendDestroyDescriptor(made);
        return false;
    }
    p->graph.made[p->graph.made_count++] = made; /* cannot overflow: see heuristics */
    p->chosen = made;
    p->workspace = bytes;
    p->is_known = true;
    return true;
}

/* Adds the configurations of a heuristic to the graph, which takes ownership of them. */
int heuristics(attention_graph *g, cudnnBackendDescriptor_t whole, cudnnBackendHeurMode_t mode,
               cudnnBackendDescriptor_t *found, int most) {
    const char *const what = "the heuristic";
    int64_t count = 0;
    const cudnnBackendDescriptor_t heuristic = g->make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    g->set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole, what);
    g->set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
    g->finish(heuristic, what);
    for (int i = 0; i < most && g->made_count + 1 < attention_graph::MOST; i++) {
        found[i] = g->make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    }
    if (g->is_good()) {
        g->check(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, most,
                                          &count, found),
                 what);
    }
    return g->is_good() ? (int)(count < most ? count : most) : 0;
}

/* Chooses the first engine in cuDNN's list for the graph, skipping engines whose bits may change. */
void choose(library *l, plan *p, cudnnBackendDescriptor_t whole) {
    enum { MOST = 12 };
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        cudnnBackendDescriptor_t found[MOST];
        const int count = heuristics(&p->graph, whole, mode, found, MOST);
        for (int i = 0; i < count; i++) {
            int64_t number;
            bool changes;
            if (!engine_of(found[i], &number, &changes) || changes) {
                tell(p->key, LS_LOG_DEBUG, changes ? "an engine that is not deterministic" : "an unknown engine");
            } else if (take(l, p, found[i])) {
                char text[160];
                (void)snprintf(text, sizeof text, "by cuDNN %zu, engine %lld, workspace %lld bytes", l->version,
                               (long long)number, (long long)p->workspace);
                tell(p->key, LS_LOG_DEBUG, text);
                return;
            }
        }
        if (!p->graph.is_good()) {
            break;
        }
    }
    tell_refusal(p, p->graph.at != nullptr ? p->graph.at : "no engine", p->graph.status);
}

/* Logs once why the library is not used for a shape. */
void tell_once(library *l, const attention_shape &shape, const char *why_not) {
    for (int i = 0; i < l->told_count; i++) {
        if (memcmp(&l->told[i], &shape, sizeof shape) == 0) {
            return;
        }
    }
    if (l->told_count < most_told) {
        l->told[l->told_count++] = shape;
        tell(shape, LS_LOG_DEBUG, why_not);
    }
}

/* Returns the plan for a shape, or NULL if cuDNN has no plan for it. */
plan *plan_for(library *l, const attention_shape &shape) {
    bool is_new;
    plan *const p = l->plans.find(shape, clear, &is_new);
    if (!is_new) {
        return p->is_known ? p : nullptr;
    }
    p->is_used = true;
    attention_graph *const g = &p->graph;
    if (shape.backward) {
        ls::describe_backward(g, shape);
    } else {
        ls::describe_forward(g, shape);
    }
    const cudnnBackendDescriptor_t whole = g->whole(l->handle);
    if (g->is_good()) {
        choose(l, p, whole);
    } else {
        tell_refusal(p, g->at, g->status);
    }
    return p->is_known ? p : nullptr;
}

/* ---- accepted calls ---------------------------------------------------------------------------------------------- */

attention_shape shape_of(const attention_call &call, bool backward) {
    const ls_tensor *const q = call.q;
    return {backward,   call.half == LS_BF16, call.causal,     q->size[0],
            q->size[1], q->size[2],           call.k->size[2], q->size[3]};
}

/*
 * Versions 9.10.0 and 9.10.1 are known to compute wrong results. Versions up to 9.15.0 compute wrong gradients if the
 * last keys do not fill a block. On GPUs other than Hopper, the backward pass uses different kernels, which are not
 * known to be reproducible.
 */
const char *why_not(const library *l, const attention_call &call, const attention_shape &s) {
    if (!is_wanted()) {
        return "not by cuDNN: LOCKSTEP_CUDNN_ATTENTION is 0";
    }
    if (l->handle == nullptr) {
        return "not by cuDNN: it does not start";
    }
    if (call.mask != nullptr || call.bias != nullptr) {
        return "not by cuDNN: there is a mask or a bias";
    }
    if (s.width != call.v->size[3] || s.width % 8 != 0 || s.width > widest) {
        return "not by cuDNN: the width";
    }
    if (s.queries < shortest || s.keys < shortest || (s.causal && s.queries != s.keys)) {
        return "not by cuDNN: the lengths";
    }
    if (l->version < 90000 || l->version == 91000 || l->version == 91001) {
        return "not by cuDNN: its version";
    }
    if (s.backward ? l->capability != 9 : l->capability < 8) {
        return "not by cuDNN: the GPU";
    }
    if (s.backward && l->version <= 91500 && s.keys % 128 != 0) {
        return "not by cuDNN: its version, with a number of keys that is not a multiple of 128";
    }
    if (reinterpret_cast<uintptr_t>(call.log_sum->data) % 16 != 0) {
        return "not by cuDNN: where log_sum lies";
    }
    return nullptr;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The tensors of the graph and their addresses. */
struct places {
    int64_t name[16];
    void *memory[16];
    int count;

    void add(ls::attention_tensor which, const void *where) {
        name[count] = which;
        memory[count++] = const_cast<void *>(where);
    }
};

/* Returns LS_ERR_UNSUPPORTED if cuDNN fails to run the plan, and then also for later calls. */
ls_status run(ls_stream *stream, const library *l, plan *p, const places &at) {
    attention_graph g = {};
    const char *const what = "its tensors' places";
    const ls::scratch room(stream, p->workspace > 0 ? (size_t)p->workspace : 1);
    LS_TRY(room.status("attention"));
    const cudnnBackendDescriptor_t pack = g.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, what);
    g.set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &room.memory, what);
    g.set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, at.count, at.memory, what);
    g.set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, at.count, at.name, what);
    g.finish(pack, what);
    if (g.is_good()) {
        g.check(cudnnBackendExecute(l->handle, p->chosen, pack), "the kernel");
    }
    g.end();
    if (!g.is_good()) {
        char text[640], why[384] = "";
        (void)cudaGetLastError();
        cudnnGetLastErrorString(why, sizeof why);
        (void)snprintf(text, sizeof text, "cuDNN fails: %s: %s %s", g.at, cudnnGetErrorString(g.status), why);
        tell(p->key, LS_LOG_WARNING, text);
        p->is_known = false;
        return LS_ERR_UNSUPPORTED;
    }
    return ls_cuda_launched(stream, p->key.backward ? "attention_backward (cuDNN)" : "attention (cuDNN)");
}

/* Returns the value of a hidden score. cuDNN before 9.10 needs a finite number. */
float hidden_score(const library *l) {
    return l->version < 91000 ? -FLT_MAX : -INFINITY;
}

/*
 * Returns how many heads the backward pass processes at once: all heads of some batches, or some heads of one batch, in
 * equal parts, such that log_sum begins at multiples of 16 bytes. Returns 0 if not even one head fits.
 */
int64_t heads_at_once(const attention_shape &s) {
    const int64_t one = (s.queries + 63) / 64 * 64 * ((s.keys + 127) / 128 * 128) * 2;
    const int64_t all = s.batch * s.heads, room = most_workspace / one, even = s.queries % 4 != 0 ? 4 : 1;
    if (all <= room) {
        return all;
    }
    const int64_t unit = room >= s.heads * even ? s.heads * even : even, fit = room / unit;
    if (fit == 0) {
        return 0;
    }
    const int64_t units = (all + unit - 1) / unit, parts = (units + fit - 1) / fit;
    return (units + parts - 1) / parts * unit;
}

/* Returns the shape of a part with `heads` heads. */
attention_shape part_of(attention_shape s, int64_t heads) {
    s.batch = heads % s.heads == 0 ? heads / s.heads : 1;
    s.heads = heads / s.batch;
    return s;
}

/* Memory for the backward pass: packed 16-bit tensors in the shape of q (q, y, g, dq) and in the shape of k (k, v,
 * dk, dv). */
struct packed {
    uint16_t *q, *y, *g, *dq, *k, *v, *dk, *dv;
    float *dot;
};

ls_status backward_part(ls_stream *stream, const library *l, const attention_call &call, plan *p, const packed &all,
                        int64_t head) {
    const attention_shape &s = p->key;
    const int64_t of_q = head * s.queries * s.width, of_k = head * s.keys * s.width;
    const float scale = (float)call.scale, hidden = hidden_score(l), one = 1;
    places at = {};
    at.add(ls::ATTENTION_Q, all.q + of_q);
    at.add(ls::ATTENTION_K, all.k + of_k);
    at.add(ls::ATTENTION_V, all.v + of_k);
    at.add(ls::ATTENTION_Y, all.y + of_q);
    at.add(ls::ATTENTION_G, all.g + of_q);
    at.add(ls::ATTENTION_DQ, all.dq + of_q);
    at.add(ls::ATTENTION_DK, all.dk + of_k);
    at.add(ls::ATTENTION_DV, all.dv + of_k);
    at.add(ls::ATTENTION_LOG_SUM, ls::data<float>(call.log_sum) + head * s.queries);
    at.add(ls::ATTENTION_DOT, all.dot);
    at.add(ls::ATTENTION_SCALE, &scale);
    at.add(ls::ATTENTION_ONE, &one);
    if (s.causal) {
        at.add(ls::ATTENTION_HIDDEN, &hidden);
    }
    return run(stream, l, p, at);
}

ls_status backward_of(ls_stream *stream, const library *l, const attention_call &call, plan *most, plan *last) {
    const int64_t count_q = call.q->count, count_k = call.k->count;
    const int64_t heads = call.q->size[0] * call.q->size[1], step = most->key.batch * most->key.heads;
    const ls::scratch room(stream, (size_t)(count_q + count_k) * 4 * sizeof(uint16_t));
    const ls::scratch dot(stream, (size_t)(step * most->key.queries) * sizeof(float));
    LS_TRY(room.status("attention_backward"));
    LS_TRY(dot.status("attention_backward"));
    uint16_t *const q = room.as<uint16_t>(), *const k = q + 4 * count_q;
    const packed all = {q,           q + count_q,     q + 2 * count_q, q + 3 * count_q, k,
                        k + count_k, k + 2 * count_k, k + 3 * count_k, dot.as<float>()};
    packed_parts operands = {}, results = {};
    operands.add(call.q, all.q);
    operands.add(call.y, all.y);
    operands.add(call.g, all.g);
    operands.add(call.k, all.k);
    operands.add(call.v, all.v);
    LS_TRY(pack(stream, call, operands));
    for (int64_t head = 0; head < heads; head += step) {
        LS_TRY(backward_part(stream, l, call, head + step <= heads ? most : last, all, head));
    }
    uint16_t *const halves[3] = {all.dq, all.dk, all.dv};
    const ls_tensor *const wanted[3] = {call.dq, call.dk, call.dv};
    for (int i = 0; i < 3; i++) {
        if (wanted[i] != nullptr) {
            results.add(wanted[i], halves[i]);
        }
    }
    return unpack(stream, call, results);
}

} // namespace

ls_status ls::library_attention(ls_stream *stream, const attention_call &call) {
    library *l = nullptr;
    LS_TRY(library_of(stream, &l));
    const attention_shape shape = shape_of(call, false);
    const char *const reason = why_not(l, call, shape);
    if (reason != nullptr) {
        tell_once(l, shape, reason);
        return LS_ERR_UNSUPPORTED;
    }
    plan *const p = plan_for(l, shape);
    if (p == nullptr) {
        return LS_ERR_UNSUPPORTED;
    }
    const int64_t count_q = call.q->count, count_k = call.k->count;
    const scratch room(stream, (size_t)(count_q + count_k) * 2 * sizeof(uint16_t));
    LS_TRY(room.status("attention"));
    uint16_t *const q = room.as<uint16_t>(), *const y = q + count_q, *const k = y + count_q, *const v = k + count_k;
    packed_parts operands = {}, result = {};
    operands.add(call.q, q);
    operands.add(call.k, k);
    operands.add(call.v, v);
    LS_TRY(pack(stream, call, operands));
    const float scale = (float)call.scale, hidden = hidden_score(l);
    places at = {};
    at.add(ATTENTION_Q, q);
    at.add(ATTENTION_K, k);
    at.add(ATTENTION_V, v);
    at.add(ATTENTION_Y, y);
    at.add(ATTENTION_LOG_SUM, call.log_sum->data);
    at.add(ATTENTION_SCALE, &scale);
    if (shape.causal) {
        at.add(ATTENTION_HIDDEN, &hidden);
    }
    LS_TRY(run(stream, l, p, at));
    result.add(call.y, y);
    return unpack(stream, call, result);
}

ls_status ls::library_attention_backward(ls_stream *stream, const attention_call &call) {
    library *l = nullptr;
    LS_TRY(library_of(stream, &l));
    const attention_shape shape = shape_of(call, true);
    const int64_t heads = shape.batch * shape.heads, step = heads_at_once(shape);
    const char *const reason = why_not(l, call, shape);
    if (reason != nullptr || step == 0) {
        tell_once(l, shape, reason != nullptr ? reason : "not by cuDNN: the gradients of a head's scores are too many");
        return LS_ERR_UNSUPPORTED;
    }
    const int64_t left = heads % step != 0 ? heads % step : step;
    const attention_shape first = part_of(shape, step);
    plan *const most = plan_for(l, first), *const last = plan_for(l, part_of(shape, left));
    if (most == nullptr || last == nullptr || memcmp(&most->key, &first, sizeof first) != 0) {
        return LS_ERR_UNSUPPORTED; /* creating the plan for the last part has replaced the other plan */
    }
    return backward_of(stream, l, call, most, last);
}

#endif
