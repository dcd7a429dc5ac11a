/* Scalar functions by type. The f32 functions use the CPU's formulas, so that both agree up to rounding. */
#ifndef LS_TENSOR_DEVICE_CUDA_SCALAR_CUH
#define LS_TENSOR_DEVICE_CUDA_SCALAR_CUH

#include "tensor/device/cuda/launch.cuh"

extern "C" {
#include "tensor/device/cpu/exponential.h"
}

namespace ls {

LS_HOST_DEVICE inline float exp_of(float x) {
    return ls_exp_f32(x);
}
LS_HOST_DEVICE inline double exp_of(double x) {
    return exp(x);
}
LS_HOST_DEVICE inline float tanh_of(float x) {
    return ls_tanh_f32(x);
}
LS_HOST_DEVICE inline double tanh_of(double x) {
    return tanh(x);
}
LS_HOST_DEVICE inline float sigmoid_of(float x) {
    return ls_sigmoid_f32(x);
}
LS_HOST_DEVICE inline double sigmoid_of(double x) {
    return ls_sigmoid_f64(x);
}
LS_HOST_DEVICE inline float sqrt_of(float x) {
    return sqrtf(x);
}
LS_HOST_DEVICE inline double sqrt_of(double x) {
    return sqrt(x);
}

LS_HOST_DEVICE inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

LS_HOST_DEVICE inline int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

} // namespace ls

#endif
