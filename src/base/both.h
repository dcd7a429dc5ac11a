/* LS_BOTH before a function in a header: it is one of the host and, in files of CUDA, of the GPU too. */
#ifndef LS_BASE_BOTH_H
#define LS_BASE_BOTH_H

#ifdef __CUDACC__
#define LS_BOTH __host__ __device__
#else
#define LS_BOTH
#endif

#endif
