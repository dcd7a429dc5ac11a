/* Gradients of the maps: g is the gradient of the output y, and x (or a and b) are the operands. */
#include "tensor/device/cpu/map.h"

#include "tensor/device/maps_backward.inc"

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
