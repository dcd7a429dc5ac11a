/*
 * Plug-in cuda (lockstep-cuda.so): the GPUs of this process as devices "cuda:0", "cuda:1", ... The core opens it when a
 * program first names a GPU (tensor/device_open.c), so that other processes do not need CUDA's libraries and do not
 * spend time on loading them. This header is the whole interface between the two sides. CUDA's own headers are included
 * only in this folder.
 *
 * The plug-in exports ls_cuda_module (lockstep/sys/module.h) and uses no symbols from the core. Without a GPU or a
 * driver, the function returns a table whose device_count is 0.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_CUDA_H
#define LS_TENSOR_DEVICE_CUDA_CUDA_H

#include <lockstep/sys/module.h>

#include "base/status.h"
#include "tensor/device.h"

/* Core functions that the plug-in calls: see the declarations of the functions with prefix ls_. */
struct ls_cuda_core {
    void (*error_restore)(ls_status status, const char *message);
    ls_status (*fail_memory)(const char *call, size_t bytes);
    void (*log_write)(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);
    size_t (*dtype_size)(ls_dtype dtype);
    const char *(*dtype_name)(ls_dtype dtype);
    void (*kernels_complete)(ls_kernels *kernels);
};

/* What `lockstep doctor` reports about a GPU. */
typedef struct ls_cuda_info {
    char name[256];    /* "NVIDIA H100 80GB HBM3" */
    char bus[32];      /* address on the PCI bus, such as "0000:19:00.0" */
    size_t total;      /* bytes of the GPU's memory */
    size_t free_bytes; /* number of free bytes; 0 if unknown */
    int major, minor;  /* compute capability */
    int multiprocessors;
} ls_cuda_info;

struct ls_cuda {
    int device_count;    /* number of GPUs that this process may use; 0 does not mean that the plug-in failed */
    const char *failure; /* why there is no GPU, as the end of a sentence, such as "no driver answers"; NULL if there
                            are GPUs */

    /*
     * In the libraries' formats: 13000 for CUDA means 13.0, 130002 for cuBLAS 13.0.2, 91200 for cuDNN 9.12.0; 0 if
     * unknown. driver_version is the newest CUDA version that the driver supports.
     */
    int driver_version, runtime_version, cublas_version, cudnn_version;

    /*
     * Returns the device "cuda:INDEX", always the same object. Any thread may call this function. On failure, returns
     * NULL with the error LS_ERR_DEVICE.
     */
    const ls_device *(*device)(int index);

    /* May be slow, because it may have to start CUDA on the GPU. Returns false with the error set on failure. */
    bool (*info)(int index, ls_cuda_info *info);
};

/* ---- the core's side --------------------------------------------------------------------------------------------- */

/* Returns the opened plug-in, which is the same for the whole process, or NULL, without setting an error, if it
 * cannot be opened. */
const ls_cuda *ls_cuda_open(void);
/* Returns why the plug-in cannot be opened or has no GPU. Returns "" if it has a GPU, or before ls_cuda_open was
 * called. */
const char *ls_cuda_failure(void);

#endif
