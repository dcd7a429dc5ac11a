/* The part of libnccl that backend nccl uses. See double.h. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nccl.h>

#include "comm/reduce.h"
#include "tests/nccl_double/double.h"

enum { MOST_RANKS = 8, MOST_OPS = 64, LOOKS = 2, FAILING = 20 };
#define ROOM ((size_t)1 << 28) /* bytes for the data that a rank contributes in one group, in a sparse file */

typedef enum kind { BROADCAST, ALLREDUCE, REDUCE, REDUCE_SCATTER, ALLGATHER, SEND, RECV } kind;

typedef struct op {
    kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t reduces;
    int root; /* send, recv: the other */
    size_t at;
    bool begun, ended; /* send */
} op;

/* The arguments of a collective that must be the same on all ranks. */
typedef struct told {
    int kind, type, reduces, root;
    size_t count;
} told;

/* The messages from one rank to another, one at a time. */
typedef struct box {
    _Atomic unsigned long sent, taken;
    size_t bytes, at;
} box;

typedef struct shared {
    atomic_int joined;
    _Atomic unsigned long given[MOST_RANKS], done[MOST_RANKS]; /* number of the latest collective */
    told told[MOST_RANKS];
    box boxes[MOST_RANKS][MOST_RANKS];
} shared;

#define HEAD ((sizeof(shared) + 4095) / 4096 * 4096)

struct ncclComm {
    shared *meet;
    int rank, size;
    bool joined;
    int looks; /* number of polls until the call's work is on its stream */
    struct group *waiting;
    unsigned long number; /* of the latest collective */
    atomic_int jobs;      /* in streams */
    atomic_bool aborted, failed;
    bool finalized;
};

typedef struct group {
    ncclComm_t comm;
    cudaStream_t stream;
    int count;
    op ops[MOST_OPS];
} group;

static _Thread_local group collected;
static _Thread_local int depth;

static size_t width_of(ncclDataType_t type) {
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclFloat64:
        return 8;
    default:
        double_die("type %d is none that this library has", (int)type);
    }
}

static ls_dtype dtype_of(ncclDataType_t type) {
    return type == ncclFloat32    ? LS_F32
           : type == ncclFloat64  ? LS_F64
           : type == ncclFloat16  ? LS_F16
           : type == ncclBfloat16 ? LS_BF16
           : type == ncclInt64    ? LS_I64
           : type == ncclInt32    ? LS_I32
                                  : LS_U8;
}

static ls_reduction reduction_of(ncclRedOp_t operation) {
    return operation == ncclSum    ? LS_SUM
           : operation == ncclProd ? LS_PROD
           : operation == ncclMin  ? LS_MIN
           : operation == ncclMax  ? LS_MAX
                                   : LS_AVG;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : result == ncclRemoteError ? "remote error" : "an error of the double";
}

const char *ncclGetLastError(ncclComm_t comm) {
    return comm != NULL && comm->failed ? "the double was told to fail" : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    uint64_t random[2];
    const int from = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (from < 0 || read(from, random, sizeof random) != (ssize_t)sizeof random) {
        double_die("no random numbers");
    }
    close(from);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *result, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    char folder[512], path[700];
    if (size < 2 || size > MOST_RANKS || rank < 0 || rank >= size || config == NULL || config->blocking != 0 ||
        !double_setting("folder", folder, sizeof folder)) {
        double_die("joining as rank %d of %d with wrong arguments", rank, size);
    }
    snprintf(path, sizeof path, "%s/%.32s", folder, id.internal);
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const size_t bytes = HEAD + (size_t)size * ROOM;
    ncclComm_t made = calloc(1, sizeof *made);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0 || made == NULL) {
        double_die("%s cannot be made", path);
    }
    made->meet = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (made->meet == MAP_FAILED) {
        double_die("%s cannot be mapped", path);
    }
    close(file);
    made->rank = rank;
    made->size = size;
    if (atomic_fetch_add(&made->meet->joined, 1) + 1 == size) {
        unlink(path);
    }
    *result = made;
    return ncclInProgress;
}

static void run_group(void *argument);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
    comm->joined = comm->joined || atomic_load(&comm->meet->joined) == comm->size;
    if (comm->waiting != NULL && comm->looks-- == 0) {
        double_push(comm->waiting->stream, run_group, comm->waiting);
        comm->waiting = NULL;
    }
    *result = comm->failed ? ncclRemoteError : !comm->joined || comm->waiting != NULL ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (!comm->joined || comm->waiting != NULL || comm->jobs != 0 || comm->finalized) {
        double_die("ncclCommFinalize while calls are under way");
    }
    comm->finalized = true;
    return ncclInProgress;
}

static ncclResult_t end(ncclComm_t comm) {
    while (comm->jobs != 0 && comm->waiting == NULL) {
        double_rest();
    }
    free(comm->waiting);
    munmap(comm->meet, HEAD + (size_t)comm->size * ROOM);
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm->finalized) {
        double_die("ncclCommDestroy before ncclCommFinalize");
    }
    return end(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = true;
    return end(comm);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static unsigned char *room_of(const group *g, int rank) {
    return (unsigned char *)g->comm->meet + HEAD + (size_t)rank * ROOM;
}

/* Returns the number of elements that a rank contributes to a collective. */
static size_t given_by(const group *g, const op *o) {
    return o->kind == REDUCE_SCATTER ? o->count * (size_t)g->comm->size : o->count;
}

/* Waits until all ranks have reached this number. Returns false if the communicator was aborted. */
static bool meet(const group *g, _Atomic unsigned long *numbers, unsigned long number) {
    atomic_store(&numbers[g->comm->rank], number);
    for (int rank = 0; rank < g->comm->size; rank++) {
        while (atomic_load(&numbers[rank]) < number) {
            if (g->comm->aborted) {
                return false;
            }
            double_rest();
        }
    }
    return true;
}

static void reduce(const group *g, const op *o, size_t from) {
    const void *sources[MOST_RANKS];
    for (int rank = 0; rank < g->comm->size; rank++) {
        sources[rank] = room_of(g, rank) + from * width_of(o->type);
    }
    void *result = malloc(o->count * width_of(o->type) + 1);
    if (result == NULL) {
        double_die("no memory for a reduction");
    }
    ls_reduce_buffers(&(ls_reduce_task){.dtype = dtype_of(o->type),
                                        .reduction = reduction_of(o->reduces),
                                        .ranks = g->comm->size,
                                        .sources = sources,
                                        .copies = 1,
                                        .destinations = (void *[]){result},
                                        .count = o->count});
    memcpy(o->receive, result, o->count * width_of(o->type));
    free(result);
}

static void take_result(const group *g, const op *o) {
    const size_t bytes = o->count * width_of(o->type);
    const int rank = g->comm->rank;
    switch (o->kind) {
    case BROADCAST:
        memmove(o->receive, room_of(g, o->root), bytes);
        break;
    case ALLGATHER:
        for (int from = 0; from < g->comm->size; from++) {
            memcpy((unsigned char *)o->receive + (size_t)from * bytes, room_of(g, from), bytes);
        }
        break;
    case REDUCE:
        if (rank == o->root) {
            reduce(g, o, 0);
        }
        break;
    default:
        reduce(g, o, o->kind == REDUCE_SCATTER ? (size_t)rank * o->count : 0);
    }
}

static void check_told(const group *g) {
    const told *all = g->comm->meet->told;
    for (int rank = 1; rank < g->comm->size; rank++) {
        if (memcmp(&all[rank], &all[0], sizeof *all) != 0) {
            double_die("ranks 0 and %d call different things: %d of %zu and %d of %zu", rank, all[0].kind, all[0].count,
                       all[rank].kind, all[rank].count);
        }
    }
}

static bool run_collective(const group *g, const op *o) {
    shared *with = g->comm->meet;
    const size_t bytes = given_by(g, o) * width_of(o->type);
    const unsigned long number = ++g->comm->number;
    char value[16];
    if (number == FAILING && double_setting("fail", value, sizeof value) && atoi(value) == g->comm->rank) {
        g->comm->failed = true;
        return false;
    }
    if (bytes > ROOM) {
        double_die("%zu bytes are too many", bytes);
    }
    told own;
    memset(&own, 0, sizeof own);
    own.kind = (int)o->kind;
    own.type = (int)o->type;
    own.reduces = (int)o->reduces;
    own.root = o->root;
    own.count = o->count;
    with->told[g->comm->rank] = own;
    if (o->kind != BROADCAST || o->root == g->comm->rank) {
        memcpy(room_of(g, g->comm->rank), o->send, bytes);
    }
    if (!meet(g, with->given, number)) {
        return false;
    }
    check_told(g);
    take_result(g, o);
    return meet(g, with->done, number);
}

/* Returns whether the message has ended. The sends and receives of a group progress concurrently. */
static bool move_message(const group *g, op *o) {
    const int own = g->comm->rank;
    box *b = o->kind == SEND ? &g->comm->meet->boxes[own][o->root] : &g->comm->meet->boxes[o->root][own];
    const size_t bytes = o->count * width_of(o->type);
    if (o->kind == SEND) {
        if (!o->begun && atomic_load(&b->sent) == atomic_load(&b->taken)) {
            memcpy(room_of(g, own) + o->at, o->send, bytes);
            b->bytes = bytes;
            b->at = o->at;
            atomic_fetch_add(&b->sent, 1);
            o->begun = true;
        }
        return o->begun && atomic_load(&b->sent) == atomic_load(&b->taken);
    }
    if (atomic_load(&b->sent) == atomic_load(&b->taken)) {
        return false;
    }
    if (b->bytes != bytes) {
        double_die("rank %d sends %zu bytes to rank %d, which expects %zu", o->root, b->bytes, own, bytes);
    }
    memcpy(o->receive, room_of(g, o->root) + b->at, bytes);
    atomic_fetch_add(&b->taken, 1);
    return true;
}

static bool run_messages(group *g) {
    bool all = false;
    while (!all) {
        all = true;
        for (int i = 0; i < g->count; i++) {
            op *o = &g->ops[i];
            if (o->kind >= SEND && !o->ended) {
                o->ended = move_message(g, o);
                all = all && o->ended;
            }
        }
        if (!all && g->comm->aborted) {
            return false;
        }
        if (!all) {
            double_rest();
        }
    }
    return true;
}

static void run_group(void *argument) {
    group *g = argument;
    bool goes_on = true;
    for (int i = 0; i < g->count && goes_on; i++) {
        goes_on = g->ops[i].kind >= SEND || run_collective(g, &g->ops[i]);
    }
    goes_on = goes_on && run_messages(g);
    while (!goes_on && !g->comm->aborted) { /* a kernel that hangs */
        double_rest();
    }
    atomic_fetch_sub(&g->comm->jobs, 1);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

ncclResult_t ncclGroupStart(void) {
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    size_t at = 0;
    if (depth-- != 1) {
        double_die("groups within groups");
    }
    if (collected.count == 0) {
        return ncclSuccess;
    }
    group *made = malloc(sizeof *made);
    if (made == NULL) {
        double_die("no memory for a group");
    }
    *made = collected;
    collected = (group){.comm = NULL};
    for (int i = 0; i < made->count; i++) {
        op *o = &made->ops[i];
        if (o->kind == SEND) {
            o->at = at;
            at += o->count * width_of(o->type);
        }
    }
    if (at > ROOM) {
        double_die("%zu bytes are too many", at);
    }
    atomic_fetch_add(&made->comm->jobs, 1);
    made->comm->waiting = made;
    made->comm->looks = LOOKS;
    return ncclInProgress;
}

static bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const op *o) {
    if (depth != 1 || collected.count == MOST_OPS || !comm->joined || comm->waiting != NULL || comm->finalized) {
        double_die("a call outside of a group, or while the one before is not given");
    }
    if (o->root < 0 || o->root >= comm->size || o->reduces < ncclSum || o->reduces > ncclAvg ||
        (collected.count != 0 && (collected.comm != comm || collected.stream != stream))) {
        return ncclInvalidArgument;
    }
    collected.comm = comm;
    collected.stream = stream;
    collected.ops[collected.count++] = *o;
    return ncclSuccess;
}

/* Fails if `smaller` overlaps `larger` elsewhere than at the in-place position of this rank. */
static void check_place(const char *name, const void *larger, size_t bytes, const void *smaller, size_t part,
                        int rank) {
    const void *place = (const unsigned char *)larger + (size_t)rank * part;
    if (larger == NULL || smaller == NULL ||
        (bytes != 0 && overlaps(larger, bytes, smaller, part) && smaller != place)) {
        double_die("%s: a buffer is NULL, or buffers overlap otherwise than in place", name);
    }
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    check_place("ncclBroadcast", send, count * width_of(type), receive, count * width_of(type), 0);
    return add(comm, stream,
               &(op){.kind = BROADCAST, .send = send, .receive = receive, .count = count, .type = type, .root = root});
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduces,
                           ncclComm_t comm, cudaStream_t stream) {
    check_place("ncclAllReduce", send, count * width_of(type), receive, count * width_of(type), 0);
    return add(
        comm, stream,
        &(op){.kind = ALLREDUCE, .send = send, .receive = receive, .count = count, .type = type, .reduces = reduces});
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduces,
                        int root, ncclComm_t comm, cudaStream_t stream) {
    if (comm->rank == root) {
        check_place("ncclReduce", send, count * width_of(type), receive, count * width_of(type), 0);
    }
    return add(comm, stream,
               &(op){.kind = REDUCE,
                     .send = send,
                     .receive = receive,
                     .count = count,
                     .type = type,
                     .reduces = reduces,
                     .root = root});
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduces,
                               ncclComm_t comm, cudaStream_t stream) {
    const size_t part = count * width_of(type);
    check_place("ncclReduceScatter", send, part * (size_t)comm->size, receive, part, comm->rank);
    return add(comm, stream,
               &(op){.kind = REDUCE_SCATTER,
                     .send = send,
                     .receive = receive,
                     .count = count,
                     .type = type,
                     .reduces = reduces});
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    const size_t part = count * width_of(type);
    check_place("ncclAllGather", receive, part * (size_t)comm->size, send, part, comm->rank);
    return add(comm, stream, &(op){.kind = ALLGATHER, .send = send, .receive = receive, .count = count, .type = type});
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add(comm, stream, &(op){.kind = SEND, .send = send, .count = count, .type = type, .root = peer});
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return add(comm, stream, &(op){.kind = RECV, .receive = receive, .count = count, .type = type, .root = peer});
}
