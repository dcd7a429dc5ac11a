#include "tensor/device/cpu/map.h"

#include "tensor/device/cpu/floating.h"

ls_status ls_map_run(const char *name, const ls_loop_body *bodies, int operands, ls_tensor *y,
                     const ls_tensor *const *operand, const double *parameters) {
    const ls_dtype dtype = operand[operands - 1]->dtype;
    const ls_loop_body body = bodies[dtype];
    if (body == NULL) {
        return ls_no_kernel(name, dtype);
    }
    const ls_tensor *tensor[LS_LOOP_TENSORS] = {y};
    for (int i = 0; i < operands; i++) {
        tensor[i + 1] = operand[i];
    }
    ls_loop_spread(operands + 1, tensor, body, parameters);
    return LS_OK;
}
