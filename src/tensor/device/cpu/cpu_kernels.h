/*
 * The CPU's kernels, one function per member of ls_kernels, grouped by the file that holds them. What each computes is
 * told in tensor/kernels.h; table.c puts them together. They run in the calling thread, at once: `stream` is ignored.
 */
#ifndef LS_TENSOR_DEVICE_CPU_CPU_KERNELS_H
#define LS_TENSOR_DEVICE_CPU_CPU_KERNELS_H

#include "tensor/device/cpu/cpu.h"

/* The types of kernels with the same arguments, for short declarations. */
typedef ls_status ls_cpu_map(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operands,
                             const double *parameters);
typedef ls_status ls_cpu_reduce(ls_stream *stream, ls_tensor *y, const ls_tensor *x);
typedef ls_status ls_cpu_along_axis(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis);
typedef ls_status ls_cpu_along_axis_backward(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y,
                                             int axis);
typedef ls_status ls_cpu_index(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index);

/* maps_unary.c */
ls_cpu_map ls_cpu_neg, ls_cpu_abs, ls_cpu_square, ls_cpu_clamp;
ls_cpu_map ls_cpu_sqrt, ls_cpu_exp, ls_cpu_log, ls_cpu_log1p, ls_cpu_sin, ls_cpu_cos, ls_cpu_tanh, ls_cpu_erf;
ls_cpu_map ls_cpu_sigmoid, ls_cpu_relu, ls_cpu_gelu, ls_cpu_silu, ls_cpu_softplus, ls_cpu_leaky_relu, ls_cpu_elu;

/* maps_backward.c */
ls_cpu_map ls_cpu_abs_backward, ls_cpu_square_backward, ls_cpu_log1p_backward, ls_cpu_sin_backward, ls_cpu_cos_backward;
ls_cpu_map ls_cpu_erf_backward, ls_cpu_gelu_backward, ls_cpu_silu_backward, ls_cpu_softplus_backward;
ls_cpu_map ls_cpu_leaky_relu_backward, ls_cpu_elu_backward, ls_cpu_clamp_backward;
ls_cpu_map ls_cpu_sqrt_backward, ls_cpu_tanh_backward, ls_cpu_sigmoid_backward, ls_cpu_relu_backward;
ls_cpu_map ls_cpu_div_backward_divisor, ls_cpu_pow_backward_base, ls_cpu_pow_backward_exponent;
ls_cpu_map ls_cpu_pow_number_backward, ls_cpu_maximum_backward, ls_cpu_minimum_backward;
ls_cpu_map ls_cpu_maximum_number_backward, ls_cpu_minimum_number_backward;

/* maps_binary.c */
ls_cpu_map ls_cpu_add, ls_cpu_sub, ls_cpu_mul, ls_cpu_div, ls_cpu_pow, ls_cpu_maximum, ls_cpu_minimum;
ls_cpu_map ls_cpu_add_number, ls_cpu_sub_number, ls_cpu_mul_number, ls_cpu_div_number, ls_cpu_pow_number;
ls_cpu_map ls_cpu_maximum_number, ls_cpu_minimum_number;

/* maps_compare.c */
ls_cpu_map ls_cpu_eq, ls_cpu_ne, ls_cpu_lt, ls_cpu_le, ls_cpu_gt, ls_cpu_ge;
ls_cpu_map ls_cpu_eq_number, ls_cpu_ne_number, ls_cpu_lt_number, ls_cpu_le_number, ls_cpu_gt_number, ls_cpu_ge_number;
ls_cpu_map ls_cpu_where;

/* maps_loss.c */
ls_cpu_map ls_cpu_mse, ls_cpu_mse_backward, ls_cpu_l1, ls_cpu_l1_backward, ls_cpu_bce, ls_cpu_bce_backward;
ls_cpu_map ls_cpu_bce_with_logits, ls_cpu_bce_with_logits_backward, ls_cpu_huber, ls_cpu_huber_backward, ls_cpu_kl_div;

/* copy.c */
ls_status ls_cpu_copy(ls_stream *stream, ls_tensor *y, const ls_tensor *x);
ls_status ls_cpu_fill(ls_stream *stream, ls_tensor *y, double value);

/* cast.c */
ls_status ls_cpu_cast(ls_stream *stream, ls_tensor *y, const ls_tensor *x);
ls_status ls_cpu_count_up(ls_stream *stream, ls_tensor *y);

/* random.c */
ls_status ls_cpu_random_uniform(ls_stream *stream, ls_tensor *y, ls_random_state state, double low, double high);
ls_status ls_cpu_random_normal(ls_stream *stream, ls_tensor *y, ls_random_state state, double mean, double deviation);
ls_status ls_cpu_random_integer(ls_stream *stream, ls_tensor *y, ls_random_state state, int64_t low, int64_t high);
ls_status ls_cpu_dropout(ls_stream *stream, ls_tensor *y, const ls_tensor *x, ls_random_state state, uint64_t first,
                         double p);

/* reduce.c */
ls_cpu_reduce ls_cpu_sum, ls_cpu_prod, ls_cpu_min, ls_cpu_max, ls_cpu_add_sum;

/* scan.c */
ls_cpu_along_axis ls_cpu_argmax, ls_cpu_argmin;
ls_status ls_cpu_cumsum(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse);

/* index.c */
ls_cpu_index ls_cpu_index_select, ls_cpu_index_add, ls_cpu_take_along, ls_cpu_scatter_add;

/* gemm.c */
ls_status ls_cpu_gemm(ls_stream *stream, const ls_gemm *gemm);

/* softmax.c */
ls_cpu_along_axis ls_cpu_softmax, ls_cpu_log_softmax;
ls_cpu_along_axis_backward ls_cpu_softmax_backward, ls_cpu_log_softmax_backward;

/* class_loss.c */
ls_status ls_cpu_nll(ls_stream *stream, ls_tensor *element, ls_tensor *row_weight, const ls_tensor *log_probability,
                     const ls_class_loss *loss);
ls_status ls_cpu_nll_backward(ls_stream *stream, ls_tensor *d_log_probability, const ls_tensor *g, double scale,
                              const ls_tensor *log_probability, const ls_class_loss *loss);
ls_status ls_cpu_cross_entropy_backward(ls_stream *stream, ls_tensor *d_logits, const ls_tensor *g, double scale,
                                        const ls_tensor *log_probability, const ls_class_loss *loss);

/* norm.c */
ls_status ls_cpu_layer_norm(ls_stream *stream, ls_tensor *y, ls_tensor *mean, ls_tensor *rstd, const ls_tensor *x,
                            int64_t width, const ls_tensor *weight, const ls_tensor *bias, double epsilon);
ls_status ls_cpu_layer_norm_backward(ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias,
                                     const ls_tensor *g, const ls_tensor *x, int64_t width, const ls_tensor *weight,
                                     const ls_tensor *mean, const ls_tensor *rstd);
ls_status ls_cpu_batch_norm_statistics(ls_stream *stream, ls_tensor *mean, ls_tensor *variance, const ls_tensor *x);
ls_status ls_cpu_batch_norm(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *mean,
                            const ls_tensor *rstd, const ls_tensor *weight, const ls_tensor *bias);
ls_status ls_cpu_batch_norm_backward(ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias,
                                     const ls_tensor *g, const ls_tensor *x, const ls_tensor *mean,
                                     const ls_tensor *rstd, const ls_tensor *weight, bool training);
ls_status ls_cpu_batch_norm_sums(ls_stream *stream, ls_tensor *sums, const ls_tensor *g, const ls_tensor *x,
                                 const ls_tensor *mean);
ls_status ls_cpu_batch_norm_dx(ls_stream *stream, ls_tensor *dx, const ls_tensor *g, const ls_tensor *x,
                               const ls_tensor *mean, const ls_tensor *rstd, const ls_tensor *weight,
                               const ls_tensor *of_g, const ls_tensor *of_product);

/* optimizer.c */
ls_status ls_cpu_axpy(ls_stream *stream, ls_dtype dtype, int64_t count, double a, const void *x, void *y);
ls_status ls_cpu_scale(ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y);
ls_status ls_cpu_dot(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, const void *y, double *sum);
ls_status ls_cpu_sum_of_magnitudes(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *sum);
ls_status ls_cpu_largest_magnitude(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *largest);
ls_status ls_cpu_sgd(ls_stream *stream, const ls_sgd_step *step);
ls_status ls_cpu_adam(ls_stream *stream, const ls_adam_step *step);
ls_status ls_cpu_rmsprop(ls_stream *stream, const ls_rmsprop_step *step);
ls_status ls_cpu_adagrad(ls_stream *stream, const ls_adagrad_step *step);

#endif
