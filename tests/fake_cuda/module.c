/*
 * A module cuda for tests on machines without a GPU, built as a separate lockstep-cuda.so. FAKE_CUDA sets the number of
 * GPUs, at most two; "none" simulates a missing driver, "older" a module of a different version. Its devices allocate
 * and copy memory, but lack every kernel. The second GPU cannot be used.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/device/cuda/cuda.h"

struct ls_stream {
    const ls_device *device;
};

enum { MOST = 2 };

static const ls_cuda_core *core;
static ls_kernels kernels;
static ls_device devices[MOST];
static ls_stream streams[MOST];

static void *allocate(const ls_device *self, size_t bytes) {
    (void)self;
    return malloc(bytes > 0 ? bytes : 1);
}

static void release(const ls_device *self, void *memory, size_t bytes) {
    (void)self;
    (void)bytes;
    free(memory);
}

static ls_stream *default_stream(const ls_device *self) {
    return &streams[self->index];
}

static ls_status stream_wait(ls_stream *stream) {
    (void)stream;
    return LS_OK;
}

static ls_status copy(ls_stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return LS_OK;
}

static ls_status clear(ls_stream *stream, void *memory, size_t bytes) {
    (void)stream;
    if (bytes > 0) {
        memset(memory, 0, bytes);
    }
    return LS_OK;
}

static const ls_device *device_at(int index) {
    static const char *const names[MOST] = {"cuda:0", "cuda:1"};
    if (index > 0) {
        core->error_restore(LS_ERR_DEVICE, "the GPU has fallen off the bus");
        return NULL;
    }
    core->kernels_complete(&kernels);
    ls_device *device = &devices[index];
    if (device->name == NULL) {
        *device = (ls_device){.name = names[index],
                              .index = index,
                              .kernels = &kernels,
                              .allocate = allocate,
                              .release = release,
                              .allocate_pinned = allocate,
                              .release_pinned = release,
                              .default_stream = default_stream,
                              .stream_wait = stream_wait,
                              .copy = copy,
                              .clear = clear,
                              .copy_to_host = copy,
                              .copy_from_host = copy};
    }
    return device;
}

static bool info(int index, ls_cuda_info *info) {
    if (getenv("FAKE_CUDA_HANGS") != NULL) {
        for (;;) {
        }
    }
    if (getenv("FAKE_CUDA_DIES") != NULL) {
        abort();
    }
    if (index > 0) {
        core->error_restore(LS_ERR_DEVICE, "the GPU has fallen off the bus");
        return false;
    }
    *info = (ls_cuda_info){
        .name = "Imagined GPU", .bus = "0000:19:00.0", .total = (size_t)80 << 30, .major = 9, .multiprocessors = 132};
    return true;
}

LS_API ls_cuda_module_function ls_cuda_module;

const ls_cuda *ls_cuda_module(int abi_version, const ls_cuda_core *given) {
    static ls_cuda module = {.driver_version = 13000,
                             .runtime_version = 13000,
                             .cublas_version = 130002,
                             .cudnn_version = 91200,
                             .device = device_at,
                             .info = info};
    const char *wanted = getenv("FAKE_CUDA");
    if (abi_version != LS_CUDA_ABI || (wanted != NULL && strcmp(wanted, "older") == 0)) {
        return NULL;
    }
    core = given;
    if (wanted != NULL && strcmp(wanted, "none") == 0) {
        module.driver_version = 0;
    }
    module.device_count = wanted != NULL ? atoi(wanted) : 0;
    module.failure = module.device_count == 0 ? "no driver answers" : NULL;
    return &module;
}
