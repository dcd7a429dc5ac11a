/*
 * Shared declarations of the shadow device. device.c contains memory, streams and events; kernels.c contains the
 * computations on streams.
 */
#ifndef LS_TESTS_SHADOW_SHADOW_H
#define LS_TESTS_SHADOW_SHADOW_H

#include "base/status.h"
#include "tensor/device.h"

enum { SHADOW_TENSORS = 11 }; /* the maximum number of tensors of a kernel */

typedef void shadow_kernel(void);

/* A request to a stream. It owns copies of all its arguments. */
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

/* The parameters of each kernel in kernels.h, as an argument list. */
#define NAMES_pair                  y, x
#define NAMES_fill                  y, value
#define NAMES_count_up              y
#define NAMES_random                y, state, a, b
#define NAMES_random_integer        y, state, low, high
#define NAMES_dropout               y, x, state, first, p
#define NAMES_along                 y, x, axis
#define NAMES_along_backward        dx, dy, y, axis
#define NAMES_directed              y, x, axis, reverse
#define NAMES_index                 y, x, axis, index
#define NAMES_gemm                  gemm
#define NAMES_nll                   element, row_weight, log_probability, loss
#define NAMES_class_loss_backward   d, g, scale, log_probability, loss
#define NAMES_layer_norm            y, mean, rstd, x, width, weight, bias, epsilon
#define NAMES_layer_norm_backward   dx, d_weight, d_bias, g, x, width, weight, mean, rstd
#define NAMES_batch_norm_statistics mean, variance, x
#define NAMES_batch_norm            y, x, mean, rstd, weight, bias
#define NAMES_batch_norm_backward   dx, d_weight, d_bias, g, x, mean, rstd, weight, training
#define NAMES_batch_norm_sums       sums, g, x, mean
#define NAMES_batch_norm_dx         dx, g, x, mean, rstd, weight, of_g, of_product
#define NAMES_conv                  y, x, weight, bias, window, rounds_to
#define NAMES_conv_weight           d_weight, large, small, window, rounds_to
#define NAMES_max_pool              y, index, x, window
#define NAMES_pool                  y, x, window
#define NAMES_resize                y, x, axis, linear, align_corners
#define NAMES_rotary                y, x, cosine, sine, halves, backward, accumulate
#define NAMES_attention             y, log_sum, q, k, v, mask, bias, scale, causal, rounds_to
#define NAMES_attention_backward    dq, dk, dv, g, y, log_sum, q, k, v, mask, bias, scale, causal, rounds_to
#define NAMES_cell                  cell
#define NAMES_cell_backward         cell
#define NAMES_axpy                  dtype, count, a, x, y
#define NAMES_scale                 dtype, count, a, y
#define NAMES_unscale               dtype, count, a, y, found
#define NAMES_dot                   dtype, count, x, y, sum
#define NAMES_measure               dtype, count, x, result
#define NAMES_sgd                   step
#define NAMES_adam                  step
#define NAMES_rmsprop               step
#define NAMES_adagrad               step
#define NAMES_adadelta              step
#define NAMES_lion                  step
#define NAMES_lamb                  step
#define NAMES_muon                  step

/* Create a job, and submit it to a stream. */
shadow_job *shadow_begin(shadow_kernel *kernel, ls_status (*run)(shadow_job *));
ls_status shadow_push(ls_stream *stream, shadow_job *made);

/* Returns the accessible address of a tensor's memory. Ends the program if the memory does not belong to the device. */
void *shadow_inside(const void *memory);

_Noreturn void shadow_die(const char *why);

extern const ls_kernels shadow_kernels;

/* Returns the kernels of "shadow:1", or NULL if the kernels of device/cuda were not built for the host. */
const ls_kernels *shadow_gpu_kernels(void);

/* Before any other request, stores the changes that tests have made through elements(). */
void shadow_store_edits(ls_stream *stream);

/* The same on a real GPU (gpu.c). */
void shadow_store_on_gpu(ls_stream *stream, void *place, const void *copied, size_t bytes);

/* Number of this thread's waits for streams. */
extern _Thread_local int shadow_waits;

#endif
