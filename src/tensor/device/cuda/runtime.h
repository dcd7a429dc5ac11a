/*
 * The GPUs of this process and the streams on them, for the C files of this folder. A stream has the memory that was
 * released in its order; what it cannot give comes from the GPU's pool, and that from CUDA.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_RUNTIME_H
#define LS_TENSOR_DEVICE_CUDA_RUNTIME_H

#include <pthread.h>

#include <cuda_runtime_api.h>

#include "tensor/cache.h"
#include "tensor/device/cuda/cuda.h"
#include "tensor/device/cuda/stream.h"

/* Blocks of one size class that nobody uses. */
typedef struct ls_cuda_bin {
    void **block;
    size_t count, room;
} ls_cuda_bin;

typedef struct ls_cuda_blocks {
    ls_cuda_bin bin[LS_CACHE_BINS];
    size_t bytes;
} ls_cuda_blocks;

typedef struct ls_gpu {
    ls_device device;
    char name[16];
    pthread_mutex_t lock;  /* of what follows */
    ls_cuda_blocks pool;   /* that no stream uses any more */
    ls_cuda_blocks pinned; /* of the host */
    char *slab;            /* small blocks are cut from it */
    size_t slab_left;
    size_t taken; /* bytes that CUDA gave */
} ls_gpu;

struct ls_stream {
    ls_gpu *gpu;
    cudaStream_t cuda;
    ls_cuda_blocks blocks; /* released in the stream's order */
    ls_cuda_fault *fault;
    const char *last; /* the kernel that was started last */
    struct ls_cuda_profile *profile;
    struct {
        void *state;
        void (*end)(void *state);
    } slot[LS_CUDA_SLOTS];
};

/* memory.c. NULL, with no message, when there is none: a log line then says what is held. */
void *ls_cuda_memory_take(ls_stream *stream, size_t bytes);
void ls_cuda_memory_give(ls_stream *stream, void *memory, size_t bytes);
/* All that a stream holds goes to the pool: its work is done. */
void ls_cuda_memory_end(ls_stream *stream);
void *ls_cuda_pinned_take(ls_gpu *gpu, size_t bytes);
void ls_cuda_pinned_give(ls_gpu *gpu, void *memory, size_t bytes);

/* stream.c: the device's functions for streams, events and copies. */
void ls_cuda_fill_device(ls_device *device);
/* Makes the GPU the calling thread's; cudaSetDevice is called nowhere else. */
cudaError_t ls_cuda_use_index(int index);
void ls_cuda_use(const ls_gpu *gpu);
/* The calling thread's default stream; NULL, with a log line, where it cannot be made. */
ls_stream *ls_cuda_own_stream(ls_gpu *gpu);
/* LS_ERR_DEVICE, in words, where `error` is one. */
ls_status ls_cuda_status(const ls_gpu *gpu, const char *doing, cudaError_t error);

/* profile.c: whether the program wants to know, a kernel that was started, and what waits to be added up. */
bool ls_cuda_profiles(void);
void ls_cuda_profile_kernel(ls_stream *stream, const char *name);
void ls_cuda_profile_collect(ls_stream *stream);
void ls_cuda_profile_end(ls_stream *stream);

/* module.c */
extern const ls_cuda_core *ls_cuda_host;

#endif
