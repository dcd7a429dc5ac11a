/*
 * What kernels need of their stream, in C: launches, memory for the time of a kernel, and checks whose failure is told
 * later. stream.c and check.cu have it for GPUs, tests/shadow for the host.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_STREAM_H
#define LS_TENSOR_DEVICE_CUDA_STREAM_H

#include "tensor/device.h"

#if defined(__CUDACC__) || defined(LS_WITH_CUDA)
#include <cuda_runtime_api.h>
cudaStream_t ls_cuda_stream(ls_stream *stream);
/* After each launch: LS_ERR_DEVICE when it could not be started. Keeps the name, a literal, for errors that come later.
 */
ls_status ls_cuda_launched(ls_stream *stream, const char *name);
#endif

/*
 * What a library needs for a stream (a handle, plans): a pointer of its own that starts as NULL and stays with the
 * stream. When the stream goes, `end` is called with what it points to, unless that is NULL; the stream has come to its
 * end then, and its device is still there.
 */
typedef enum ls_cuda_slot { LS_CUDA_SLOT_GEMM, LS_CUDA_SLOT_CONV, LS_CUDA_SLOT_ATTENTION, LS_CUDA_SLOTS } ls_cuda_slot;
void **ls_cuda_stream_slot(ls_stream *stream, ls_cuda_slot which, void (*end)(void *));

/* NULL when there is none. Not cleared. */
void *ls_cuda_scratch_take(ls_stream *stream, size_t bytes);
void ls_cuda_scratch_give(ls_stream *stream, void *memory, size_t bytes);

/* What a number of i64 must be, and the sentence that says it is not. */
typedef enum ls_cuda_check {
    LS_CUDA_CHECK_INDEX = 1, /* "NAME: index V at position P is out of range for axis A of size L" */
    LS_CUDA_CHECK_TARGET,    /* "target[P] is V, but there are L classes" */
    LS_CUDA_CHECK_LENGTH     /* "lengths[P] is V, but x has L - 1 steps" */
} ls_cuda_check;

/* LS_ERR_ARGUMENT with that sentence. */
ls_status ls_cuda_check_failed(ls_cuda_check check, const char *name, int64_t position, int64_t value, int64_t limit,
                               int axis);

/* What a check found, in memory of the host that the GPU writes to. */
typedef struct ls_cuda_fault {
    int check; /* 0: nothing */
    int axis;
    const char *name;
    int64_t position, value, limit;
} ls_cuda_fault;

ls_cuda_fault *ls_cuda_stream_fault(ls_stream *stream);

/*
 * Each of `count` numbers is to be in [0, limit), or be `*but` where that is not NULL. The first that is not becomes
 * LS_ERR_ARGUMENT of the next wait for the stream. Kernels behind this still run: they must leave such numbers out.
 */
ls_status ls_cuda_check_numbers(ls_stream *stream, ls_cuda_check check, const char *name, const int64_t *numbers,
                                int64_t count, int64_t limit, int axis, const int64_t *but);

#ifndef __CUDACC__
/* On the host, for tests: how many threads a team has, which of them a call makes, and where they meet. */
typedef struct ls_cuda_host_team ls_cuda_host_team;
int ls_cuda_host_members(void);
void ls_cuda_host_run(int members, void (*member)(void *argument, int lane, int size, ls_cuda_host_team *others),
                      void *argument);
void ls_cuda_host_wait(ls_cuda_host_team *team);
char (*ls_cuda_host_room(ls_cuda_host_team *team))[16]; /* for each member */
#endif

#endif
