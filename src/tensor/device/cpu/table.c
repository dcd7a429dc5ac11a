#include "tensor/device/cpu/cpu_kernels.h"

#define ROW_OF_MAP(name, operands, parameters) .name = ls_cpu_##name,
#define ROW(name, type)                        .name = ls_cpu_##name,

const ls_kernels ls_cpu_kernels = {LS_MAPS(ROW_OF_MAP) LS_OTHER_KERNELS(ROW)};
