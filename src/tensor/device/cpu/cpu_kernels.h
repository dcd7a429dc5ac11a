/*
 * The kernels of the CPU: ls_cpu_NAME for each kernel in the list in tensor/kernels.h, which describes the kernels.
 * table.c creates the table. Kernels run in the calling thread and ignore `stream`.
 */
#ifndef LS_TENSOR_DEVICE_CPU_CPU_KERNELS_H
#define LS_TENSOR_DEVICE_CPU_CPU_KERNELS_H

#include "tensor/device/cpu/cpu.h"

#define DECLARE_MAP(name, operands, parameters) ls_map_kernel ls_cpu_##name;
#define DECLARE(name, type)                     ls_##type##_kernel ls_cpu_##name;
LS_MAPS(DECLARE_MAP)
LS_OTHER_KERNELS(DECLARE)
#undef DECLARE_MAP
#undef DECLARE

/* Fills y with `element`, which has the dtype of y. */
void ls_cpu_repeat(ls_tensor *y, const void *element);

#endif
