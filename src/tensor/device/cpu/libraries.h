/*
 * The libraries that compute large matrix products and convolutions: oneDNN for f32, through the plug-in onednn
 * (tensor/device/onednn); OpenBLAS for f64, and for f32 if the plug-in is missing. They are opened on first use, not
 * linked. Linking would cost every process, including the launcher, 2 ms at startup, and an OpenBLAS built with
 * pthreads starts threads when it is loaded, after which ls_spawn could not fork. Only this file depends on OpenBLAS's
 * name and version.
 */
#ifndef LS_TENSOR_DEVICE_CPU_LIBRARIES_H
#define LS_TENSOR_DEVICE_CPU_LIBRARIES_H

#include "base/status.h"
#include "tensor/device/onednn/onednn.h"

#include <cblas.h>

/* Returns the plug-in, which is the same for the whole process, or NULL, without setting an error, if it is missing. */
const ls_onednn *ls_onednn_open(void);
/* Returns the plug-in if it is already open, otherwise NULL. */
const ls_onednn *ls_onednn_opened(void);
/* Why it is missing. */
const char *ls_onednn_failure(void);

typedef struct ls_openblas {
    __typeof__(&cblas_dgemm) dgemm;
    __typeof__(&cblas_sgemm) sgemm;
    int (*get_num_threads)(void); /* threads of the process, in a pthreads build */
    void (*set_num_threads)(int threads);
    int (*get_max_threads)(void); /* threads of the calling thread, in an OpenMP build; NULL in a pthreads build */
    void (*set_max_threads)(int threads);
    char *(*get_config)(void); /* returns the version, and the processor whose kernels are used; NULL if unknown */
} ls_openblas;

/* Returns the opened library, which is the same for the whole process, or NULL with LS_ERR_UNSUPPORTED if it is
 * missing. */
const ls_openblas *ls_openblas_open(void);
/*
 * Between these calls, OpenBLAS uses at most `threads` threads: in an OpenMP build, in calls from this thread; in a
 * pthreads build, in the whole process. `begin` returns the argument for `end`, which restores the previous number. If
 * plug-in onednn is open, these calls do nothing in an OpenMP build, because .set_threads of the plug-in also sets
 * OpenBLAS's number.
 */
int ls_openblas_limit_begin(int threads);
void ls_openblas_limit_end(int before);

/*
 * Describes the software on which the bits of CPU results depend, in addition to the processor (base/processor.h): the
 * versions of Lockstep, oneDNN, OpenBLAS and the C library, and the instruction sets that they use. Opens oneDNN and
 * OpenBLAS. Without plug-in onednn, products depend on the number of OpenBLAS threads, so the text ends with this
 * number at the first call. The text is the same for the whole process and is never freed: "Lockstep 0.1.0 (gcc 12.2,
 * x86-64-v3), oneDNN 2.6.3 avx2, OpenBLAS 0.3.21 ... Zen MAX_THREADS=64, glibc 2.36".
 */
const char *ls_cpu_libraries_describe(void);

#endif
