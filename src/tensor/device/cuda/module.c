/* The plug-in's entry point, and the list of GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>
#include <cudnn.h>

#include "tensor/device/cuda/cuda_kernels.h"
#include "tensor/device/cuda/runtime.h"

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

static ls_kernels kernels;
static ls_gpu *gpus[LS_MOST_DEVICES];

static bool gains_by(const ls_device *self, ls_dtype rounds_to) {
    (void)self;
    return ls_cuda_gains_by(rounds_to);
}

static ls_gpu *make_gpu(int index) {
    ls_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL || pthread_mutex_init(&gpu->lock, NULL) != 0) {
        (void)ls_fail_memory("cuda", sizeof *gpu);
        free(gpu);
        return NULL;
    }
    (void)snprintf(gpu->name, sizeof gpu->name, "cuda:%d", index);
    gpu->device.name = gpu->name;
    gpu->device.index = index;
    gpu->device.kernels = &kernels;
    gpu->device.state = gpu;
    gpu->device.gains_by = gains_by;
    gpu->device.takes_rounded = true;
    ls_cuda_fill_device(&gpu->device);
    const cudaError_t error = ls_cuda_use_index(index);
    if (error != cudaSuccess || ls_cuda_own_stream(gpu) == NULL) {
        (void)(error != cudaSuccess ? ls_cuda_status(gpu, "cannot be used", error)
                                    : ls_fail(LS_ERR_DEVICE, "%s: cannot create a stream", gpu->name));
        (void)pthread_mutex_destroy(&gpu->lock);
        free(gpu);
        return NULL;
    }
    return gpu;
}

static const ls_device *device_at(int index) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    if (gpus[index] == NULL) {
        gpus[index] = make_gpu(index);
    }
    const ls_device *device = gpus[index] != NULL ? &gpus[index]->device : NULL;
    pthread_mutex_unlock(&one_at_a_time);
    return device;
}

static bool info_of(int index, ls_cuda_info *info) {
    struct cudaDeviceProp about;
    memset(info, 0, sizeof *info);
    const cudaError_t error = cudaGetDeviceProperties(&about, index);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        (void)ls_fail(LS_ERR_DEVICE, "cuda:%d: %s", index, cudaGetErrorString(error));
        return false;
    }
    (void)snprintf(info->name, sizeof info->name, "%s", about.name);
    (void)cudaDeviceGetPCIBusId(info->bus, (int)sizeof info->bus, index);
    info->total = about.totalGlobalMem;
    info->major = about.major;
    info->minor = about.minor;
    info->multiprocessors = about.multiProcessorCount;
    size_t total = 0;
    if (ls_cuda_use_index(index) != cudaSuccess || cudaMemGetInfo(&info->free_bytes, &total) != cudaSuccess) {
        info->free_bytes = 0;
        (void)cudaGetLastError();
    }
    return true;
}

LS_API ls_cuda_module_function ls_cuda_module;

const ls_cuda *ls_cuda_module(int abi_version, const ls_cuda_core *core) {
    static char failure[256];
    static ls_cuda functions = {.device = device_at, .info = info_of};
    if (abi_version != LS_CUDA_ABI) {
        return NULL;
    }
    ls_cuda_host = core;
    kernels = *ls_cuda_kernels();
    core->kernels_complete(&kernels);
    const cudaError_t error = cudaGetDeviceCount(&functions.device_count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        functions.device_count = 0;
        (void)snprintf(failure, sizeof failure, "%s", cudaGetErrorString(error));
        functions.failure = failure;
    }
    if (functions.device_count > LS_MOST_DEVICES) {
        functions.device_count = LS_MOST_DEVICES;
    }
    (void)cudaDriverGetVersion(&functions.driver_version);
    (void)cudaRuntimeGetVersion(&functions.runtime_version);
    functions.cublas_version = (int)cublasLtGetVersion();
    functions.cudnn_version = (int)cudnnGetVersion();
    return &functions;
}
