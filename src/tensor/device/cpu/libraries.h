/*
 * The libraries that large matrix products and convolutions go to: oneDNN, through a module (tensor/device/onednn),
 * for f32, OpenBLAS for f64, and for f32 if that module is missing. They are opened on first use and not linked:
 * linking them costs every process 2 ms at its start, the launcher too, and a build of OpenBLAS on pthreads starts
 * threads when it is loaded, after which ls_spawn could not fork. All that is known of OpenBLAS's name and version is
 * here.
 */
#ifndef LS_TENSOR_DEVICE_CPU_LIBRARIES_H
#define LS_TENSOR_DEVICE_CPU_LIBRARIES_H

#include "base/status.h"
#include "tensor/device/onednn/onednn.h"

#include <cblas.h>

/* Returns the module, the same for the whole process; NULL, with no error set, if the module is missing. */
const ls_onednn *ls_onednn_open(void);
/* The same where somebody has opened it already, else NULL. */
const ls_onednn *ls_onednn_opened(void);
/* Why it is missing. */
const char *ls_onednn_failure(void);

typedef struct ls_openblas {
    __typeof__(&cblas_dgemm) dgemm;
    __typeof__(&cblas_sgemm) sgemm;
    int (*get_num_threads)(void); /* of the process, in a build on pthreads */
    void (*set_num_threads)(int threads);
    int (*get_max_threads)(void); /* of the calling thread, in a build on OpenMP; NULL: on pthreads */
    void (*set_max_threads)(int threads);
    char *(*get_config)(void); /* returns the version and the processor whose kernels are used; NULL: unknown */
} ls_openblas;

/* Returns the opened library, the same for the whole process; NULL with LS_ERR_UNSUPPORTED if it is missing. */
const ls_openblas *ls_openblas_open(void);
/*
 * Between these calls, OpenBLAS uses at most `threads` threads: in calls of this thread in a build on OpenMP, in the
 * whole process in a build on pthreads. `begin` returns the argument of `end`, which restores the number before. If
 * module onednn is open, these calls do nothing in a build on OpenMP: .set_threads of the module sets its number, too.
 */
int ls_openblas_limit_begin(int threads);
void ls_openblas_limit_end(int before);

/*
 * Returns what the bits of results on the CPU depend on, besides the processor (base/processor.h): the versions of
 * Lockstep, oneDNN, OpenBLAS and the C library, and the instruction sets that they use. Opens oneDNN and OpenBLAS.
 * Without plug-in onednn, products depend on the number of OpenBLAS threads, so the text ends with this number at the
 * first call. The text is the same for the whole process and is never freed: "Lockstep 0.1.0 (gcc 12.2, x86-64-v3),
 * oneDNN 2.6.3 avx2, OpenBLAS 0.3.21 ... Zen MAX_THREADS=64, glibc 2.36".
 */
const char *ls_cpu_libraries_describe(void);

#endif
