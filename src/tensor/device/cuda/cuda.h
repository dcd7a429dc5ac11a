/*
 * Module cuda (lockstep-cuda.so): the GPUs of this process as devices "cuda:0", "cuda:1", ... The core opens it when a
 * program first names one (tensor/device_open.c), so that other processes neither need CUDA's libraries nor pay for
 * loading them. This header is all that the two sides know of each other, and CUDA's own are included in this folder
 * only.
 *
 * The module exports ls_cuda_module (lockstep/sys/module.h) and needs no symbol of the core. Without a GPU or a driver
 * the function returns a table whose device_count is 0.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_CUDA_H
#define LS_TENSOR_DEVICE_CUDA_CUDA_H

#include <lockstep/sys/module.h>

#include "base/status.h"
#include "tensor/device.h"

/* What the core does for the module: see the declarations of the functions with ls_. */
struct ls_cuda_core {
    void (*error_restore)(ls_status status, const char *message);
    ls_status (*fail_memory)(const char *call, size_t bytes);
    void (*log_write)(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);
    size_t (*dtype_size)(ls_dtype dtype);
    const char *(*dtype_name)(ls_dtype dtype);
    void (*kernels_complete)(ls_kernels *kernels);
};

/* What `lockstep doctor` tells of a GPU. */
typedef struct ls_cuda_info {
    char name[256];    /* "NVIDIA H100 80GB HBM3" */
    char bus[32];      /* where it is on the PCI bus: "0000:19:00.0" */
    size_t total;      /* bytes of its memory, */
    size_t free_bytes; /* and how many of them nobody uses; 0 where that is not known */
    int major, minor;  /* its compute capability */
    int multiprocessors;
} ls_cuda_info;

struct ls_cuda {
    int device_count; /* GPUs that this process may use: 0 is no failure of the module */
    const char
        *failure; /* why there are none, as the end of a sentence: "no driver answers"; NULL where there are some */

    /* As their libraries write them: 13000 of CUDA is 13.0, 130002 of cuBLAS 13.0.2, 91200 of cuDNN 9.12.0; 0 where it
     * is not known. The driver's is that of the newest CUDA it can run. */
    int driver_version, runtime_version, cublas_version, cudnn_version;

    /* The device "cuda:INDEX", always the same one; any thread may ask. NULL with the error set: LS_ERR_DEVICE. */
    const ls_device *(*device)(int index);

    /* May be slow, as it may have to start CUDA on the GPU. False with the error set. */
    bool (*info)(int index, ls_cuda_info *info);
};

/* ---- the core's side ------------------------------------------------------------------------------------------- */

/* The opened module, the same for the whole process; NULL, with no error set, where there is none to open. */
const ls_cuda *ls_cuda_open(void);
/* Why that is, or why the module has no GPU; "" where it has one, and before it was asked for. */
const char *ls_cuda_failure(void);

#endif
