/* Maps of two operands, or of one operand and a number. */
#include "tensor/device/cuda/map.cuh"

#include "tensor/device/maps_binary.inc"

/* Wraps around like products. For a negative exponent, truncates the fraction. */
static LS_HOST_DEVICE inline int64_t raised(int64_t base, int64_t exponent) {
    if (exponent < 0) {
        return base == 1 ? 1 : base == -1 ? (exponent % 2 != 0 ? -1 : 1) : 0;
    }
    uint64_t result = 1;
    for (uint64_t square = (uint64_t)base; exponent > 0; exponent /= 2, square *= square) {
        result *= exponent % 2 != 0 ? square : 1;
    }
    return (int64_t)result;
}
static LS_HOST_DEVICE inline float raised(float base, float exponent) {
    return powf(base, exponent);
}
static LS_HOST_DEVICE inline double raised(double base, double exponent) {
    return pow(base, exponent);
}

#define LS_OF_POWERS(dtype, function, ...)                                                                             \
    ((dtype) == LS_I64 ? function<int64_t>(__VA_ARGS__) : LS_OF_FLOATS(dtype, function, __VA_ARGS__))

LS_FUNCTION2(pow, LS_NONE, a, b, raised(a, b))

ls_status ls_cuda_pow(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand, const double *parameters) {
    return LS_OF_POWERS(operand[1]->dtype, pow_typed, stream, y, operand, parameters);
}

enum { ls_parameters_of_cube = 0, ls_parameters_of_power = 1 };
LS_FUNCTION1(cube, LS_NONE, a, ((U)a * (U)a * (U)a))
LS_FUNCTION1(power, LS_TAKE(b), a, raised(a, b))

static ls_status cube_any(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand, const double *parameters) {
    return operand[0]->dtype == LS_BOOL ? cube_typed<uint8_t, true>(stream, y, operand, parameters)
                                        : LS_OF_ANY(operand[0]->dtype, cube_typed, stream, y, operand, parameters);
}

ls_status ls_cuda_pow_number(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,
                             const double *parameters) {
    const double exponent = parameters[0];
    if (exponent == 2) {
        return ls_cuda_square(stream, y, operand, parameters);
    }
    if (exponent == 3) {
        return cube_any(stream, y, operand, parameters);
    }
    return exponent == 0.5 ? ls_cuda_sqrt(stream, y, operand, parameters)
                           : LS_OF_POWERS(operand[0]->dtype, power_typed, stream, y, operand, parameters);
}
