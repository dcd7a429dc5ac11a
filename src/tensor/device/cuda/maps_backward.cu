/* Gradients of the maps. */
#include "tensor/device/cuda/map.cuh"

#include "tensor/device/maps_backward.inc"

enum { ls_parameters_of_cube_backward = 0, ls_parameters_of_power_backward = 1 };
LS_FUNCTION2(cube_backward, LS_NONE, g, a, 3 * g * a * a)
LS_FUNCTION2(power_backward, LS_TAKE(b), g, a, b == 0 ? 0 : g * b * pow(a, b - 1))

ls_status ls_cuda_pow_number_backward(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,
                                      const double *parameters) {
    const double exponent = parameters[0];
    if (exponent == 2) {
        return ls_cuda_square_backward(stream, y, operand, parameters);
    }
    return exponent == 3 ? LS_OF_FLOATS(operand[1]->dtype, cube_backward_typed, stream, y, operand, parameters)
                         : LS_OF_FLOATS(operand[1]->dtype, power_backward_typed, stream, y, operand, parameters);
}
