/*
 * The GPUs of this process and their streams, for the C files of this folder. A stream keeps the memory that was
 * released in its order. If it has no suitable block, it takes a block from the GPU's pool, which gets memory from
 * CUDA.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_RUNTIME_H
#define LS_TENSOR_DEVICE_CUDA_RUNTIME_H

#include <pthread.h>

#include <cuda_runtime_api.h>

#include "tensor/cache.h"
#include "tensor/device/cuda/cuda.h"
#include "tensor/device/cuda/stream.h"

/* Unused blocks of one size class. */
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
    pthread_mutex_t lock;  /* protects the following members */
    ls_cuda_blocks pool;   /* blocks that are no longer used by any stream */
    ls_cuda_blocks pinned; /* host memory */
    char *slab;            /* small blocks are cut from this slab */
    size_t slab_left;
    size_t taken; /* bytes allocated from CUDA */
} ls_gpu;

struct ls_stream {
    ls_gpu *gpu;
    cudaStream_t cuda;
    ls_cuda_blocks blocks; /* blocks released in stream order */
    ls_cuda_fault *fault;
    const char *last; /* name of the kernel that was started last */
    struct ls_cuda_profile *profile;
    struct {
        void *state;
        void (*end)(void *state);
    } slot[LS_CUDA_SLOTS];
};

/* memory.c. Returns NULL, without an error message, if out of memory; a log line then reports how much memory is in
 * use. */
void *ls_cuda_memory_take(ls_stream *stream, size_t bytes);
void ls_cuda_memory_give(ls_stream *stream, void *memory, size_t bytes);
/* Moves all memory of a stream to the pool. The stream's work must be complete. */
void ls_cuda_memory_end(ls_stream *stream);
void *ls_cuda_pinned_take(ls_gpu *gpu, size_t bytes);
void ls_cuda_pinned_give(ls_gpu *gpu, void *memory, size_t bytes);

/* stream.c: the device's functions for streams, events and copies. */
void ls_cuda_fill_device(ls_device *device);
/* Makes the GPU the calling thread's current GPU. Only this function calls cudaSetDevice. */
cudaError_t ls_cuda_use_index(int index);
void ls_cuda_use(const ls_gpu *gpu);
/* Returns the calling thread's default stream, or NULL, with a log line, if it cannot be created. */
ls_stream *ls_cuda_own_stream(ls_gpu *gpu);
/* Returns LS_ERR_DEVICE with a message if `error` is an error. */
ls_status ls_cuda_status(const ls_gpu *gpu, const char *doing, cudaError_t error);

/* profile.c: returns whether profiling is on, records that a kernel was started, and adds up the times of the
 * recorded events. */
bool ls_cuda_profiles(void);
void ls_cuda_profile_kernel(ls_stream *stream, const char *name);
void ls_cuda_profile_collect(ls_stream *stream);
void ls_cuda_profile_end(ls_stream *stream);

/* module.c */
extern const ls_cuda_core *ls_cuda_host;

#endif
