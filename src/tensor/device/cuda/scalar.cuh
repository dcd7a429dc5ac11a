/* Functions of one number, by its type: those of f32 are the CPU's, so that both give the same to the last bits. */
#ifndef LS_TENSOR_DEVICE_CUDA_SCALAR_CUH
#define LS_TENSOR_DEVICE_CUDA_SCALAR_CUH

#include "tensor/device/cuda/launch.cuh"

extern "C" {
#include "tensor/device/cpu/exponential.h"
}

namespace ls {

LS_BODY inline float exp_of(float x) {
    return ls_exp_f32(x);
}
LS_BODY inline double exp_of(double x) {
    return exp(x);
}
LS_BODY inline float tanh_of(float x) {
    return ls_tanh_f32(x);
}
LS_BODY inline double tanh_of(double x) {
    return tanh(x);
}
LS_BODY inline float sigmoid_of(float x) {
    return ls_sigmoid_f32(x);
}
LS_BODY inline double sigmoid_of(double x) {
    return ls_sigmoid_f64(x);
}
LS_BODY inline float sqrt_of(float x) {
    return sqrtf(x);
}
LS_BODY inline double sqrt_of(double x) {
    return sqrt(x);
}

/* a / b of numbers that are not negative: 64-bit division takes a GPU ten times as long. */
LS_BOTH inline int64_t quotient(int64_t a, int64_t b) {
    return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

LS_BOTH inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

LS_BOTH inline int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

} // namespace ls

#endif
