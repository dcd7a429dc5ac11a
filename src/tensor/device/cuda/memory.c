/*
 * Memory of a GPU. Blocks have the size classes of tensor/cache.h. Small blocks are cut from slabs, which are never
 * returned to CUDA. Large blocks are returned when CUDA is out of memory.
 */
#include <stdlib.h>

#include "tensor/device/cuda/runtime.h"

enum { SLAB = 8 << 20, SMALL = 512 << 10 };

/* Returns NULL if the bin is empty. */
static void *pop(ls_cuda_blocks *blocks, int bin) {
    ls_cuda_bin *from = &blocks->bin[bin];
    if (from->count == 0) {
        return NULL;
    }
    blocks->bytes -= ls_cache_bin_bytes(bin);
    return from->block[--from->count];
}

/* Returns false if there is no memory for the list. */
static bool push(ls_cuda_blocks *blocks, int bin, void *memory) {
    ls_cuda_bin *to = &blocks->bin[bin];
    if (to->count == to->room) {
        const size_t room = to->room > 0 ? 2 * to->room : 8;
        void **more = malloc(room * sizeof *more);
        if (more == NULL) {
            return false;
        }
        for (size_t i = 0; i < to->count; i++) {
            more[i] = to->block[i];
        }
        free(to->block);
        to->block = more;
        to->room = room;
    }
    to->block[to->count++] = memory;
    blocks->bytes += ls_cache_bin_bytes(bin);
    return true;
}

static void *fetch(ls_gpu *gpu, size_t bytes) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* otherwise the next kernel would report this error */
        return NULL;
    }
    gpu->taken += bytes;
    return memory;
}

static void *cut_from_slab(ls_gpu *gpu, size_t bytes) {
    if (gpu->slab_left < bytes) {
        char *slab = fetch(gpu, SLAB);
        if (slab == NULL) {
            return NULL;
        }
        gpu->slab = slab;
        gpu->slab_left = SLAB;
    }
    void *memory = gpu->slab;
    gpu->slab += bytes;
    gpu->slab_left -= bytes;
    return memory;
}

/* Returns large blocks to CUDA, which first waits for all work of the GPU. */
static void empty(ls_gpu *gpu, ls_cuda_blocks *blocks) {
    for (int bin = ls_cache_bin((size_t)SMALL) + 1; bin < LS_CACHE_BINS; bin++) {
        for (void *memory = NULL; (memory = pop(blocks, bin)) != NULL;) {
            gpu->taken -= ls_cache_bin_bytes(bin);
            (void)cudaFree(memory);
        }
    }
}

static void *take_locked(ls_stream *stream, int bin) {
    ls_gpu *gpu = stream->gpu;
    const size_t size = ls_cache_bin_bytes(bin);
    void *memory = pop(&gpu->pool, bin);
    if (memory == NULL) {
        memory = size <= SMALL ? cut_from_slab(gpu, size) : fetch(gpu, size);
    }
    if (memory == NULL) {
        empty(gpu, &stream->blocks);
        empty(gpu, &gpu->pool);
        memory = size <= SMALL ? cut_from_slab(gpu, size) : fetch(gpu, size);
    }
    return memory;
}

/*
 * Called without holding the lock, because the program may have installed its own log function. The unused memory of
 * other threads is unknown here.
 */
static void say_how_much(const ls_stream *stream, size_t bytes, size_t taken, size_t pool) {
    size_t left = 0, total = 0;
    (void)cudaMemGetInfo(&left, &total);
    (void)cudaGetLastError();
    ls_cuda_host->log_write(LS_LOG_WARNING,
                            "%s: %zu bytes were requested; this process holds %zu, of which this thread has %zu "
                            "unused, and threads that have ended left %zu; %zu of %zu are free",
                            stream->gpu->name, bytes, taken, stream->blocks.bytes, pool, left, total);
}

void *ls_cuda_memory_take(ls_stream *stream, size_t bytes) {
    const int bin = ls_cache_bin(bytes);
    void *memory = bin < LS_CACHE_BINS ? pop(&stream->blocks, bin) : NULL;
    if (memory != NULL || bin >= LS_CACHE_BINS) {
        return memory;
    }
    ls_cuda_use(stream->gpu);
    pthread_mutex_lock(&stream->gpu->lock);
    memory = take_locked(stream, bin);
    const size_t taken = stream->gpu->taken, pool = stream->gpu->pool.bytes;
    pthread_mutex_unlock(&stream->gpu->lock);
    if (memory == NULL) {
        say_how_much(stream, bytes, taken, pool);
    }
    return memory;
}

void ls_cuda_memory_give(ls_stream *stream, void *memory, size_t bytes) {
    const int bin = ls_cache_bin(bytes);
    if (memory != NULL && !push(&stream->blocks, bin, memory)) {
        ls_cuda_host->log_write(LS_LOG_WARNING, "%s: no memory for a list: %zu bytes are lost", stream->gpu->name,
                                bytes);
    }
}

void ls_cuda_memory_end(ls_stream *stream) {
    ls_gpu *gpu = stream->gpu;
    pthread_mutex_lock(&gpu->lock);
    for (int bin = 0; bin < LS_CACHE_BINS; bin++) {
        for (void *memory = NULL; (memory = pop(&stream->blocks, bin)) != NULL;) {
            (void)push(&gpu->pool, bin, memory);
        }
        free(stream->blocks.bin[bin].block);
    }
    pthread_mutex_unlock(&gpu->lock);
}

void *ls_cuda_pinned_take(ls_gpu *gpu, size_t bytes) {
    const int bin = ls_cache_bin(bytes);
    if (bin >= LS_CACHE_BINS) {
        return NULL;
    }
    pthread_mutex_lock(&gpu->lock);
    void *memory = pop(&gpu->pinned, bin);
    pthread_mutex_unlock(&gpu->lock);
    if (memory != NULL) {
        return memory;
    }
    ls_cuda_use(gpu);
    if (cudaHostAlloc(&memory, ls_cache_bin_bytes(bin), cudaHostAllocPortable) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return memory;
}

void ls_cuda_pinned_give(ls_gpu *gpu, void *memory, size_t bytes) {
    if (memory == NULL) {
        return;
    }
    pthread_mutex_lock(&gpu->lock);
    const bool kept = push(&gpu->pinned, ls_cache_bin(bytes), memory);
    pthread_mutex_unlock(&gpu->lock);
    if (!kept) {
        (void)cudaFreeHost(memory);
    }
}
