/*
 * The libraries that large matrix products go to: oneDNN for f32, OpenBLAS for f64. They are opened on first use and
 * not linked: linking them costs every process 2 ms at its start, the launcher too, and a build of OpenBLAS on pthreads
 * starts threads when it is loaded, after which ls_spawn could not fork. All that is known of their names and versions
 * is here.
 */
#ifndef LS_TENSOR_DEVICE_CPU_LIBRARIES_H
#define LS_TENSOR_DEVICE_CPU_LIBRARIES_H

#include "base/status.h"

#include <cblas.h>
#include <dnnl.h>

/* What oneDNN gives: of its C interface, what versions 2 and 3 have alike. */
typedef struct ls_onednn {
    __typeof__(&dnnl_sgemm) sgemm;
} ls_onednn;

typedef struct ls_openblas {
    __typeof__(&cblas_dgemm) dgemm;
} ls_openblas;

/* The opened library, the same for the whole process; NULL with LS_ERR_UNSUPPORTED where it is missing. */
const ls_onednn *ls_onednn_open(void);
const ls_openblas *ls_openblas_open(void);

#endif
