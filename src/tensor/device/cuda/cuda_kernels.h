/*
 * The GPU's kernels: ls_cuda_NAME for each kernel in tensor/kernels.h, which describes the kernels; table.c collects
 * them. They submit work to the stream and return. The next wait for the stream reports later failures. The symbols are
 * weak: without a C++ compiler, tests are built without the kernels, and the symbols are NULL.
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

/* Returns the kernels of this folder. A missing kernel fails with an error that names it. */
const ls_kernels *ls_cuda_kernels(void);

/* Returns whether f32 products with operands rounded to this dtype are faster than other f32 products. */
bool ls_cuda_gains_by(ls_dtype rounds_to);

#endif
