/*
 * Plug-in onednn (lockstep-onednn.so): CPU work that oneDNN computes. The core opens it at the first product or
 * convolution that is large enough to benefit, so that other processes do not spend time on loading it. This header is
 * the whole interface between the two sides. dnnl.h is included only in this folder; describe.c hides the differences
 * between versions 2 and 3 of oneDNN.
 *
 * The plug-in exports ls_onednn_module (lockstep/sys/module.h) and uses no symbols from the core. The function also
 * returns NULL if oneDNN cannot be initialized.
 */
#ifndef LS_TENSOR_DEVICE_ONEDNN_ONEDNN_H
#define LS_TENSOR_DEVICE_ONEDNN_ONEDNN_H

#include <lockstep/sys/module.h>

#include "base/status.h"
#include "tensor/kernels.h"
#include "tensor/tensor.h"

/* Core functions that the plug-in calls: the calling thread's cache of memory, ls_fail_memory and ls_threads_limit. */
struct ls_onednn_core {
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory, size_t bytes);
    ls_status (*fail_memory)(const char *call, size_t bytes);
    int (*thread_limit)(void);
};

/* Which of the three tensors of a convolution is computed from the other two. */
typedef enum ls_conv_work { LS_CONV_SMALL, LS_CONV_LARGE, LS_CONV_WEIGHT } ls_conv_work;

/*
 * Computes a part of a product on the calling thread, without bias and activation. Fails with LS_ERR_UNSUPPORTED if the
 * library does not support the product; in that case, all parts of the product fail before C is written. Fails with
 * LS_ERR_MEMORY if out of memory. Sets no message.
 */
typedef ls_status ls_product_part(const ls_gemm *part);

/*
 * If oneDNN does not support a call, every function returns LS_ERR_UNSUPPORTED, without a message and without effect;
 * the caller then uses its own code.
 */
struct ls_onednn {
    const char *version; /* "2.6.3" */
    const char *file;    /* path of oneDNN itself */
    const char *isa;     /* the instruction set that oneDNN uses, such as "avx2"; ONEDNN_MAX_CPU_ISA can lower it */

    bool has_fast_bf16; /* bf16 products are faster than f32 products on this processor */

    /* Returns the size of the team: the number of threads on which a call from this thread computes. It is the
     * smaller of the calling thread's omp_get_max_threads() and the core's limit. */
    int (*team)(void);
    /* Calls body(0, context) to body(pieces - 1, context), each on a separate thread. */
    void (*parallel)(int pieces, void (*body)(int piece, const void *context), const void *context);

    /*
     * Sets the number of threads that libraries with this plug-in's OpenMP use in calls from this thread. Returns the
     * previous number, which the caller restores after its calls.
     */
    int (*set_threads)(int threads);

    /* Computes one f32 product without bias and activation, on the calling thread, after set_threads(1). */
    ls_product_part *gemm;

    /* Computes the same product in bf16. Long sums may be divided among threads, and the bits then depend on the
     * number of threads. */
    ls_status (*gemm_bf16)(const ls_gemm *gemm);

    /*
     * Computes a convolution. `large` is the side that windows cover; `small` has one output per window. All tensors
     * have five axes, and are dense and f32. Only LS_CONV_SMALL uses the bias, which may be NULL. LS_CONV_WEIGHT adds
     * to `weight`. The bits depend on the shapes, not on the number of threads.
     */
    ls_status (*conv)(ls_conv_work work, const ls_tensor *large, const ls_tensor *small, const ls_tensor *weight,
                      const ls_tensor *bias, const ls_window *window, bool in_bf16);
};

#endif
