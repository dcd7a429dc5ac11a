/* LS_HOST_DEVICE marks a function in a header that CUDA files also compile for the GPU. */
#ifndef LS_BASE_HOST_DEVICE_H
#define LS_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define LS_HOST_DEVICE __host__ __device__
#else
#define LS_HOST_DEVICE
#endif

#endif
