#include "comm/backend/nccl/library.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "base/memory.h"
#include "base/wait.h"
#include "comm/pieces.h"

#define POLL_NS    UINT64_C(100000)     /* interval between two polls of NCCL */
#define ABORTED_NS UINT64_C(2000000000) /* time for the stream to reach its mark after an abort */

_Static_assert(sizeof(ncclUniqueId) == LS_NCCL_ID, "an id travels as it is");

struct ls_nccl_group {
    ncclComm_t comm;
    cudaEvent_t mark;
    bool marked; /* the stream contains the mark of the latest call */
    int rank;
    int size;
    void *scratch; /* GPU memory for a copy of a send buffer that overlaps the receive buffer */
    size_t scratch_bytes;
};

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static bool cuda_did(cudaError_t error, const char *doing, char *why) {
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* clears the error, which is reported only here */
        snprintf(why, LS_LIBRARY_WHY, "CUDA: %s: %s", doing, cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

/* Returns true if NCCL has executed or started the call. Otherwise, writes the reason to `why`. */
static bool nccl_did(const ls_nccl_group *group, ncclResult_t result, const char *doing, char *why) {
    if (result == ncclSuccess || result == ncclInProgress) {
        return true;
    }
    const char *more = ncclGetLastError(group != NULL ? group->comm : NULL);
    snprintf(why, LS_LIBRARY_WHY, "NCCL: %s: %s%s%s", doing, ncclGetErrorString(result),
             more != NULL && *more != '\0' ? ": " : "", more != NULL ? more : "");
    return false;
}

/* ---- GPUs and ids ------------------------------------------------------------------------------------------------ */

bool ls_nccl_find_gpus(char why[LS_LIBRARY_WHY]) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (error == cudaSuccess && count > 0) {
        return true;
    }
    if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary) {
        snprintf(why, LS_LIBRARY_WHY, "there is no NVIDIA driver, or it is too old: backends shm and tcp need none");
    } else {
        snprintf(why, LS_LIBRARY_WHY, "this process has no GPU (%s): backends shm and tcp need none",
                 error == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(error));
    }
    return false;
}

bool ls_nccl_name_gpu(char bus[LS_NCCL_BUS], char why[LS_LIBRARY_WHY]) {
    int gpu = 0;
    return cuda_did(cudaGetDevice(&gpu), "the GPU in use", why) &&
           cuda_did(cudaDeviceGetPCIBusId(bus, LS_NCCL_BUS, gpu), "where the GPU is", why);
}

bool ls_nccl_make_id(unsigned char id[LS_NCCL_ID], char why[LS_LIBRARY_WHY]) {
    ncclUniqueId made;
    const bool did = nccl_did(NULL, ncclGetUniqueId(&made), "a unique id", why);
    if (did) {
        memcpy(id, &made, sizeof made);
    }
    return did;
}

/* ---- joining and leaving ----------------------------------------------------------------------------------------- */

ls_nccl_group *ls_nccl_join(const unsigned char id[LS_NCCL_ID], int rank, int size, char why[LS_LIBRARY_WHY]) {
    ls_nccl_group *group = ls_allocate_zeroed(1, sizeof *group);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId agreed;
    memcpy(&agreed, id, sizeof agreed);
    config.blocking = 0;
    if (group == NULL) {
        snprintf(why, LS_LIBRARY_WHY, "no memory for a communicator of NCCL");
        return NULL;
    }
    group->rank = rank;
    group->size = size;
    if (cuda_did(cudaEventCreateWithFlags(&group->mark, cudaEventDisableTiming), "an event", why)) {
        if (nccl_did(group, ncclCommInitRankConfig(&group->comm, size, agreed, rank, &config), "joining", why)) {
            return group;
        }
        (void)cudaEventDestroy(group->mark);
    }
    ls_free(group);
    return NULL;
}

/* Waits at most `most_ns` until NCCL is idle. Returns true if NCCL is idle and has not failed. */
static bool wait_for_quiet(ls_nccl_group *group, uint64_t most_ns) {
    ls_wait wait = {.limit_ns = most_ns, .longest_ns = POLL_NS};
    char why[LS_LIBRARY_WHY];
    ls_library_state state = ls_nccl_look(group, why);
    while (state == LS_LIBRARY_BUSY && ls_wait_pause(&wait)) {
        state = ls_nccl_look(group, why);
    }
    return state == LS_LIBRARY_DONE;
}

void ls_nccl_free(ls_nccl_group *group, bool abort, uint64_t linger_ns) {
    char why[LS_LIBRARY_WHY];
    ls_wait wait = {.limit_ns = ABORTED_NS, .longest_ns = POLL_NS};
    if (!abort && nccl_did(group, ncclCommFinalize(group->comm), "leaving", why) && wait_for_quiet(group, linger_ns)) {
        (void)ncclCommDestroy(group->comm);
    } else {
        (void)ncclCommAbort(group->comm);
    }
    while (group->marked && ls_nccl_ran(group, why) == LS_LIBRARY_BUSY && ls_wait_pause(&wait)) {
    }
    (void)cudaEventDestroy(group->mark);
    (void)cudaFree(group->scratch);
    (void)cudaGetLastError();
    ls_free(group);
}

ls_library_state ls_nccl_look(ls_nccl_group *group, char why[LS_LIBRARY_WHY]) {
    ncclResult_t result = ncclSuccess;
    if (!nccl_did(group, ncclCommGetAsyncError(group->comm, &result), "asking for errors", why) ||
        !nccl_did(group, result, "a call in progress", why)) {
        return LS_LIBRARY_FAILED;
    }
    return result == ncclInProgress ? LS_LIBRARY_BUSY : LS_LIBRARY_DONE;
}

bool ls_nccl_mark(ls_nccl_group *group, void *stream, char why[LS_LIBRARY_WHY]) {
    group->marked = cuda_did(cudaEventRecord(group->mark, stream), "an event", why);
    return group->marked;
}

ls_library_state ls_nccl_ran(const ls_nccl_group *group, char why[LS_LIBRARY_WHY]) {
    const cudaError_t error = cudaEventQuery(group->mark);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return LS_LIBRARY_BUSY;
    }
    return cuda_did(error, "a call in progress", why) ? LS_LIBRARY_DONE : LS_LIBRARY_FAILED;
}

/* ---- reductions that NCCL supports ------------------------------------------------------------------------------- */

static bool type_of(ls_dtype dtype, ncclDataType_t *type) {
    static const ncclDataType_t types[LS_DTYPE_COUNT] = {
        [LS_F32] = ncclFloat32, [LS_F64] = ncclFloat64, [LS_BF16] = ncclBfloat16, [LS_F16] = ncclFloat16,
        [LS_I64] = ncclInt64,   [LS_I32] = ncclInt32,   [LS_U8] = ncclUint8,      [LS_BOOL] = ncclUint8};
    *type = types[dtype];
    return dtype != LS_BOOL;
}

static bool is_float(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64 || dtype == LS_BF16 || dtype == LS_F16;
}

/* Finds NCCL's reduction operation. Returns false if NCCL has no operation with the same results: NCCL's minimum and
 * maximum of floats ignore NaN, but Lockstep's return NaN. */
static bool operation_of(ls_dtype dtype, ls_reduction reduction, ncclRedOp_t *operation) {
    switch (reduction) {
    case LS_SUM:
        *operation = ncclSum;
        return true;
    case LS_PROD:
        *operation = ncclProd;
        return true;
    case LS_AVG:
        *operation = ncclAvg;
        return is_float(dtype);
    case LS_MIN:
        *operation = ncclMin;
        return !is_float(dtype);
    case LS_MAX:
        *operation = ncclMax;
        return !is_float(dtype);
    default:
        return false;
    }
}

bool ls_nccl_takes(bool reduces, ls_dtype dtype, ls_reduction reduction) {
    ncclDataType_t type;
    ncclRedOp_t operation;
    return !reduces || (type_of(dtype, &type) && operation_of(dtype, reduction, &operation));
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static const unsigned char *at(const void *buffer, size_t elements, size_t width) {
    return (const unsigned char *)buffer + elements * width;
}

/* Returns the number of elements before this rank's part in the send buffer of a reduce_scatterv. */
static size_t before_own(const ls_call *call, int rank) {
    size_t elements = 0;
    for (int i = 0; i < rank; i++) {
        elements += call->send_counts[i];
    }
    return elements;
}

/* Sets `*bytes` to the number of bytes that the call must send from a copy; 0 means that no copy is necessary. NCCL
 * allows a receive buffer inside the send buffer only if it is this rank's own part, and never in an all-to-all
 * exchange. The receive buffer of an in-place call begins inside the send buffer; ls_call_check has already rejected
 * all other overlaps. */
static void find_overlap(const ls_nccl_group *group, const ls_call *call, size_t *bytes) {
    size_t elements = 0;
    const unsigned char *own = NULL;
    switch (call->operation) {
    case LS_OP_ALLTOALL:
        elements = call->count * (size_t)group->size;
        break;
    case LS_OP_REDUCE_SCATTER:
        elements = call->count * (size_t)group->size;
        own = at(call->send, call->count * (size_t)group->rank, call->width);
        break;
    case LS_OP_REDUCE_SCATTERV:
        elements = call->total;
        own = at(call->send, before_own(call, group->rank), call->width);
        break;
    default:
        break;
    }
    const uintptr_t from = (uintptr_t)call->send;
    const uintptr_t to = (uintptr_t)call->receive;
    *bytes = elements * call->width;
    if (call->receive == NULL || to == (uintptr_t)own || to < from || to >= from + *bytes) {
        *bytes = 0;
    }
}

static bool copy(const ls_call *call, void *to, const void *from, size_t bytes, char *why) {
    return bytes == 0 || to == from ||
           cuda_did(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, call->stream), "a copy", why);
}

/* Makes the call send from a copy. */
static bool separate(ls_nccl_group *group, ls_call *call, size_t bytes, char *why) {
    if (bytes > group->scratch_bytes) {
        void *made = NULL;
        if (!cuda_did(cudaMalloc(&made, bytes), "memory for a call in place", why)) {
            return false;
        }
        (void)cudaFree(group->scratch);
        group->scratch = made;
        group->scratch_bytes = bytes;
    }
    if (!copy(call, group->scratch, call->send, bytes, why)) {
        return false;
    }
    call->send = group->scratch;
    return true;
}

/* Sends to, and receives from, every other rank. */
static ncclResult_t exchange(const ls_nccl_group *group, const ls_call *call) {
    ncclResult_t result = ncclSuccess;
    for (int i = 1; i < group->size && (result == ncclSuccess || result == ncclInProgress); i++) {
        const int to = (group->rank + i) % group->size;
        const int from = (group->rank + group->size - i) % group->size;
        const ls_piece sent = ls_piece_sent(call, group->rank, to);
        const ls_piece received = ls_piece_received(call, group->rank, from);
        if (sent.count != 0) {
            result = ncclSend(at(call->send, sent.at, call->width), sent.count * call->width, ncclUint8, to,
                              group->comm, call->stream);
        }
        if (received.count != 0 && (result == ncclSuccess || result == ncclInProgress)) {
            result = ncclRecv((unsigned char *)call->receive + received.at * call->width, received.count * call->width,
                              ncclUint8, from, group->comm, call->stream);
        }
    }
    return result;
}

/* Executes a reduce_scatterv: reduces each rank's part to that rank. */
static ncclResult_t reduce_parts(const ls_nccl_group *group, const ls_call *call, ncclDataType_t type,
                                 ncclRedOp_t reduces) {
    ncclResult_t result = ncclSuccess;
    size_t before = 0;
    for (int root = 0; root < group->size && (result == ncclSuccess || result == ncclInProgress); root++) {
        if (call->send_counts[root] != 0) {
            result = ncclReduce(at(call->send, before, call->width), root == group->rank ? call->receive : NULL,
                                call->send_counts[root], type, reduces, root, group->comm, call->stream);
        }
        before += call->send_counts[root];
    }
    return result;
}

static ncclResult_t make(const ls_nccl_group *group, const ls_call *call) {
    ncclDataType_t type;
    ncclRedOp_t reduces = ncclSum;
    (void)type_of(call->dtype, &type);
    (void)operation_of(call->dtype, call->reduction, &reduces);
    const size_t bytes = call->count * call->width;
    const bool is_root = group->rank == call->root;
    switch (call->operation) {
    case LS_OP_BROADCAST:
        return ncclBroadcast(call->receive, call->receive, bytes, ncclUint8, call->root, group->comm, call->stream);
    case LS_OP_ALLREDUCE:
        return ncclAllReduce(call->send, call->receive, call->count, type, reduces, group->comm, call->stream);
    case LS_OP_REDUCE:
        return ncclReduce(call->send, is_root ? call->receive : NULL, call->count, type, reduces, call->root,
                          group->comm, call->stream);
    case LS_OP_REDUCE_SCATTER:
        return ncclReduceScatter(call->send, call->receive, call->count, type, reduces, group->comm, call->stream);
    case LS_OP_REDUCE_SCATTERV:
        return reduce_parts(group, call, type, reduces);
    case LS_OP_ALLGATHER:
        return ncclAllGather(call->send, call->receive, bytes, ncclUint8, group->comm, call->stream);
    default:
        return exchange(group, call);
    }
}

/* Copies the rank's own part if NCCL does not copy it. */
static bool keep_own(const ls_nccl_group *group, const ls_call *call, char *why) {
    if (!ls_flows[call->operation].moves || call->operation == LS_OP_ALLGATHER) {
        return true;
    }
    const ls_piece sent = ls_piece_sent(call, group->rank, group->rank);
    const ls_piece received = ls_piece_received(call, group->rank, group->rank);
    return received.count == 0 || copy(call, (unsigned char *)call->receive + received.at * call->width,
                                       at(call->send, sent.at, call->width), received.count * call->width, why);
}

/* Returns true if the call has no data on any rank, and this is known to all ranks. */
static bool is_empty(const ls_call *call) {
    switch (call->operation) {
    case LS_OP_GATHERV:
    case LS_OP_SCATTERV:
    case LS_OP_ALLTOALLV:
        return false;
    case LS_OP_ALLGATHERV:
    case LS_OP_REDUCE_SCATTERV:
        return call->total == 0;
    default:
        return call->count == 0;
    }
}

bool ls_nccl_give(ls_nccl_group *group, const ls_call *lent, char why[LS_LIBRARY_WHY]) {
    ls_call call = *lent;
    size_t bytes = 0;
    group->marked = false;
    if (is_empty(&call)) {
        return true;
    }
    find_overlap(group, &call, &bytes);
    if ((bytes != 0 && !separate(group, &call, bytes, why)) || !keep_own(group, &call, why) ||
        !nccl_did(group, ncclGroupStart(), "a group of calls", why)) {
        return false;
    }
    const ncclResult_t made = make(group, &call);
    const ncclResult_t ended = ncclGroupEnd();
    return nccl_did(group, made, ls_operation_name(call.operation), why) &&
           nccl_did(group, ended, ls_operation_name(call.operation), why);
}
