/* The GPU of the calling thread. */
#include "tensor/device/cuda/runtime.h"

cudaError_t ls_cuda_use_index(int index) {
    static _Thread_local int present = -1; /* only this file changes the current device */
    if (present == index) {
        return cudaSuccess;
    }
    const cudaError_t error = cudaSetDevice(index);
    present = error == cudaSuccess ? index : -1;
    return error;
}

void ls_cuda_use(const ls_gpu *gpu) {
    (void)ls_cuda_use_index(gpu->device.index); /* if this fails, later work for the other GPU also fails */
}
