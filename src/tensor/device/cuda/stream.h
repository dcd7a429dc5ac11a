/*
 * C functions with which kernels use streams: launches, temporary memory, and checks whose failures are reported later.
 * stream.c and check.cu implement them for GPUs, tests/shadow for the host.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_STREAM_H
#define LS_TENSOR_DEVICE_CUDA_STREAM_H

#include "tensor/device.h"

#if defined(__CUDACC__) || defined(LS_WITH_CUDA)
#include <cuda_runtime_api.h>
cudaStream_t ls_cuda_stream(ls_stream *stream);
/*
 * Must be called after each launch. Fails with LS_ERR_DEVICE if the kernel could not be started. Keeps the pointer
 * `name`, a string literal, for later errors.
 */
ls_status ls_cuda_launched(ls_stream *stream, const char *name);
#endif

/*
 * State of a library for a stream (a handle, plans): a pointer that is initially NULL and belongs to the stream. When
 * the stream is freed, `end` is called with the pointer unless it is NULL. At that time, the stream's work is complete,
 * and its device still exists.
 */
typedef enum ls_cuda_slot { LS_CUDA_SLOT_GEMM, LS_CUDA_SLOT_CONV, LS_CUDA_SLOT_ATTENTION, LS_CUDA_SLOTS } ls_cuda_slot;
void **ls_cuda_stream_slot(ls_stream *stream, ls_cuda_slot which, void (*end)(void *));

/* Returns uninitialized memory, or NULL if out of memory. */
void *ls_cuda_scratch_take(ls_stream *stream, size_t bytes);
void ls_cuda_scratch_give(ls_stream *stream, void *memory, size_t bytes);

/* The condition that is checked for i64 numbers, and the message if the check fails. */
typedef enum ls_cuda_check {
    LS_CUDA_CHECK_INDEX = 1, /* "NAME: index V at position P is out of range for axis A of size L" */
    LS_CUDA_CHECK_TARGET,    /* "target[P] of the batch is V, but there are L classes" */
    LS_CUDA_CHECK_LENGTH     /* "lengths[P] is V, but x has L - 1 steps" */
} ls_cuda_check;

/* Fails with LS_ERR_ARGUMENT and the message of the check. */
ls_status ls_cuda_check_failed(ls_cuda_check check, const char *name, int64_t position, int64_t value, int64_t limit,
                               int axis);

/* The result of a check, in host memory to which the GPU writes. */
typedef struct ls_cuda_fault {
    int check; /* 0 if nothing has failed */
    int axis;
    const char *name;
    int64_t position, value, limit;
} ls_cuda_fault;

ls_cuda_fault *ls_cuda_stream_fault(ls_stream *stream);

/*
 * Checks that each of `count` numbers is in [0, limit), or equals `*but` unless `but` is NULL. The next wait for the
 * stream reports the first invalid number with LS_ERR_ARGUMENT. Later kernels still run, so they must ignore such
 * numbers.
 */
ls_status ls_cuda_check_numbers(ls_stream *stream, ls_cuda_check check, const char *name, const int64_t *numbers,
                                int64_t count, int64_t limit, int axis, const int64_t *but);

#ifndef __CUDACC__
/* A team on the host, for tests: its number of threads, the index of the caller, and a barrier. */
typedef struct ls_cuda_host_team ls_cuda_host_team;
int ls_cuda_host_members(void);
void ls_cuda_host_run(int members, void (*member)(void *argument, int lane, int size, ls_cuda_host_team *others),
                      void *argument);
void ls_cuda_host_wait(ls_cuda_host_team *team);
char (*ls_cuda_host_room(ls_cuda_host_team *team))[16]; /* for each member */
#endif

#endif
