/*
 * The GPU's kernels: ls_cuda_NAME for each of the list in tensor/kernels.h, which says what it computes; table.c puts
 * them together. They ask the stream and return; what fails later is told by the next wait for the stream. Weak: tests
 * are built without them where there is no C++ compiler, and see NULL.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_CUDA_KERNELS_H
#define LS_TENSOR_DEVICE_CUDA_CUDA_KERNELS_H

#include "tensor/device.h"

#define DECLARE_MAP(name, operands, parameters) ls_map_kernel ls_cuda_##name __attribute__((weak));
#define DECLARE(name, type)                     ls_##type##_kernel ls_cuda_##name __attribute__((weak));
LS_MAPS(DECLARE_MAP)
LS_OTHER_KERNELS(DECLARE)
#undef DECLARE_MAP
#undef DECLARE

/* Those of this folder; what is missing fails with its name. */
const ls_kernels *ls_cuda_kernels(void);

/* Whether products of f32 whose operands count as rounded to it are faster than others. */
bool ls_cuda_gains_by(ls_dtype rounds_to);

#endif
