/* Maps of two operands, or of one operand and a number. */
#include "tensor/device/cpu/map.h"

#include "tensor/device/maps_binary.inc"

/* Wraps around like products. For a negative exponent, truncates the fraction. */
static int64_t whole_power(int64_t base, int64_t exponent) {
    if (exponent < 0) {
        return base == 1 ? 1 : base == -1 ? (exponent % 2 != 0 ? -1 : 1) : 0;
    }
    uint64_t result = 1;
    for (uint64_t square = (uint64_t)base; exponent > 0; exponent /= 2, square *= square) {
        result *= exponent % 2 != 0 ? square : 1;
    }
    return (int64_t)result;
}

LS_BODY2_CALLS(pow_f32, float, LS_NONE, a, b, pow(a, b))
LS_BODY2_CALLS(pow_f64, double, LS_NONE, a, b, pow(a, b))
LS_BODY2_CALLS(pow_i64, int64_t, LS_NONE, a, b, whole_power(a, b))
LS_MAP_KERNEL(pow, 2, [LS_F32] = pow_f32, [LS_F64] = pow_f64, [LS_I64] = pow_i64)

static ls_map_kernel ls_cpu_cube, ls_cpu_power;
LS_MAP1_ANY(cube, LS_NONE, a, ((U)a * (U)a * (U)a))
LS_BODY1_CALLS(power_f32, float, LS_TAKE(b), a, pow(a, b))
LS_BODY1_CALLS(power_f64, double, LS_TAKE(b), a, pow(a, b))
LS_BODY1_CALLS(power_i64, int64_t, LS_TAKE(b), a, whole_power(a, b))
LS_MAP_KERNEL(power, 1, [LS_F32] = power_f32, [LS_F64] = power_f64, [LS_I64] = power_i64)

ls_status ls_cpu_pow_number(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operands,
                            const double *parameters) {
    const double exponent = parameters[0];
    ls_map_kernel *const kernel = exponent == 2     ? ls_cpu_square
                                  : exponent == 3   ? ls_cpu_cube
                                  : exponent == 0.5 ? ls_cpu_sqrt
                                                    : ls_cpu_power;
    return kernel(stream, y, operands, parameters);
}
