#include "tensor/device/cpu/cpu_kernels.h"

const ls_kernels ls_cpu_kernels = {
    /* The lines of a file's kernels come with that file. */
    .neg = NULL,

    .gemm = ls_cpu_gemm,
    .softmax = ls_cpu_softmax,
    .softmax_backward = ls_cpu_softmax_backward,
    .log_softmax = ls_cpu_log_softmax,
    .log_softmax_backward = ls_cpu_log_softmax_backward,
    .nll = ls_cpu_nll,
    .nll_backward = ls_cpu_nll_backward,
    .cross_entropy_backward = ls_cpu_cross_entropy_backward,
    .layer_norm = ls_cpu_layer_norm,
    .layer_norm_backward = ls_cpu_layer_norm_backward,
    .batch_norm_statistics = ls_cpu_batch_norm_statistics,
    .batch_norm = ls_cpu_batch_norm,
    .batch_norm_backward = ls_cpu_batch_norm_backward,
    .axpy = ls_cpu_axpy,
    .scale = ls_cpu_scale,
    .sum_of_squares = ls_cpu_sum_of_squares,
    .sgd = ls_cpu_sgd,
    .adam = ls_cpu_adam,
    .rmsprop = ls_cpu_rmsprop,
    .adagrad = ls_cpu_adagrad,
};
