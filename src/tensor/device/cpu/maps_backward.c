/* Gradients of the maps: g is the gradient of the output y, x (or a and b) the operands. */
#include "tensor/device/cpu/map.h"

LS_MAP2(abs_backward, LS_NONE, g, x, (g * LS_SIGN(x)))
LS_MAP2(square_backward, LS_NONE, g, x, 2 * g * x)
LS_MAP2(log1p_backward, LS_NONE, g, x, g / (1 + x))
LS_MAP2_CALLS(sin_backward, LS_NONE, g, x, (g * cos(x)))
LS_MAP2_CALLS(cos_backward, LS_NONE, g, x, (-g * sin(x)))
LS_MAP2_F64_CALLS(erf_backward, LS_NONE, g, x, (g * (T)1.12837916709551257390 * LS_EXP(-x * x))) /* 2 / sqrt(pi) */
LS_MAP2_F64_CALLS(gelu_backward, LS_NONE, g, x, (g * (LS_NORMAL(x) + x * (T)0.39894228040143267794 * LS_BELL(x))))
LS_MAP2_F64_CALLS(silu_backward, LS_NONE, g, x, (g * LS_SIGMOID(x) * (1 + x * (1 - LS_SIGMOID(x)))))
LS_MAP2_F64_CALLS(softplus_backward, LS_NONE, g, x, (g * LS_SIGMOID(x)))
LS_MAP2(leaky_relu_backward, LS_TAKE(slope), g, x, x > 0 ? g : slope * g)
LS_MAP2_F64_CALLS(elu_backward, LS_TAKE(alpha), g, x, x > 0 ? g : g * alpha * LS_EXP(x))
LS_MAP2(clamp_backward, LS_TAKE2(low, high), g, x, ((x >= low) & (x <= high)) ? g : 0) /* NaN is not inside */

LS_MAP2(sqrt_backward, LS_NONE, g, y, g / (2 * y))
LS_MAP2(tanh_backward, LS_NONE, g, y, (g * (1 - y * y)))
LS_MAP2(sigmoid_backward, LS_NONE, g, y, (g * y * (1 - y)))
LS_MAP2(relu_backward, LS_NONE, g, y, y <= 0 ? 0 : g)

LS_MAP3(div_backward_divisor, LS_NONE, g, a, b, (-g * (a / b) / b))
LS_MAP3_CALLS(pow_backward_base, LS_NONE, g, a, b, b == 0 ? 0 : g * b * pow(a, b - 1))
LS_MAP3_CALLS(pow_backward_exponent, LS_NONE, g, a, b, a == 0 && b >= 0 ? 0 : g * pow(a, b) * log(a))
LS_MAP3(maximum_backward, LS_NONE, g, a, b, a < b ? 0 : a == b ? g / 2 : g)
LS_MAP3(minimum_backward, LS_NONE, g, a, b, a > b ? 0 : a == b ? g / 2 : g)
LS_MAP2(maximum_number_backward, LS_TAKE(b), g, a, a < b ? 0 : a == b ? g / 2 : g)
LS_MAP2(minimum_number_backward, LS_TAKE(b), g, a, a > b ? 0 : a == b ? g / 2 : g)

static ls_map_kernel ls_cpu_cube_backward, ls_cpu_power_backward;
LS_MAP2(cube_backward, LS_NONE, g, a, 3 * g * a * a)
LS_MAP2_CALLS(power_backward, LS_TAKE(b), g, a, b == 0 ? 0 : g * b * pow(a, b - 1))

ls_status ls_cpu_pow_number_backward(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operands,
                                     const double *parameters) {
    const double exponent = parameters[0];
    ls_map_kernel *const kernel = exponent == 2   ? ls_cpu_square_backward
                                  : exponent == 3 ? ls_cpu_cube_backward
                                                  : ls_cpu_power_backward;
    return kernel(stream, y, operands, parameters);
}
