/* LS_HOST_DEVICE marks a function in a header that is also compiled for the GPU when a CUDA file includes it. */
#ifndef LS_BASE_HOST_DEVICE_H
#define LS_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define LS_HOST_DEVICE __host__ __device__
#else
#define LS_HOST_DEVICE
#endif

#endif
