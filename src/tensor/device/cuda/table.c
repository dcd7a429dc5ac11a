#include "tensor/device/cuda/cuda_kernels.h"

#define ROW_OF_MAP(name, operands, parameters) .name = ls_cuda_##name,
#define ROW(name, type)                        .name = ls_cuda_##name,

const ls_kernels *ls_cuda_kernels(void) {
    static const ls_kernels table = {LS_MAPS(ROW_OF_MAP) LS_OTHER_KERNELS(ROW)};
    return &table;
}
