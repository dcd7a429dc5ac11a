/* What the files of the shadow device share: device.c holds memory, streams and events, kernels.c what streams are
 * asked to compute. */
#ifndef LS_TESTS_SHADOW_SHADOW_H
#define LS_TESTS_SHADOW_SHADOW_H

#include "base/status.h"
#include "tensor/device.h"

enum { SHADOW_TENSORS = 10 }; /* the most that a kernel takes */

typedef void shadow_kernel(void);

/* Something that a stream is asked, with copies of all it needs. */
typedef struct shadow_job {
    struct shadow_job *next;
    ls_status (*run)(struct shadow_job *job);
    shadow_kernel *kernel;
    int tensors;
    bool there[SHADOW_TENSORS];
    ls_tensor tensor[SHADOW_TENSORS];
    double number[4];
    int64_t integer[4];
    ls_random_state random;
    void *to;
    const void *from;
    const void *other;
    struct ls_event *event;
    union {
        ls_gemm gemm;
        ls_class_loss loss;
        ls_window window;
        ls_cell cell;
        ls_cell_gradient cell_gradient;
        ls_sgd_step sgd;
        ls_adam_step adam;
        ls_rmsprop_step rmsprop;
        ls_adagrad_step adagrad;
        ls_adadelta_step adadelta;
        ls_lion_step lion;
        ls_lamb_step lamb;
        ls_muon_step muon;
    };
} shadow_job;

/* A job for a stream, and handing it over. */
shadow_job *shadow_begin(shadow_kernel *kernel, ls_status (*run)(shadow_job *));
ls_status shadow_push(ls_stream *stream, shadow_job *made);

/* Where the device finds what a tensor sees; ends the program for memory that is not the device's. */
void *shadow_inside(const void *memory);

_Noreturn void shadow_die(const char *why);

extern const ls_kernels shadow_kernels;

/* What streams are asked to compute on "shadow:1"; NULL where the kernels of device/cuda were not built for the host.
 */
const ls_kernels *shadow_gpu_kernels(void);

/* How often this thread has waited for a stream. */
extern _Thread_local int shadow_waits;

#endif
