/* For tests of kernels: the table of kernels under test. Its kernels run on host memory, without a stream. */
#ifndef LS_TESTS_SUPPORT_KERNELS_H
#define LS_TESTS_SUPPORT_KERNELS_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/device.h"
#include "tensor/device/cuda/cuda_kernels.h"

/* Weak, because a build without a C++ compiler does not have these kernels and does not test them. */
#pragma weak ls_cuda_kernels

/* Returns the kernels of device/cuda, compiled for the host, if LOCKSTEP_DEVICE is "shadow:1", otherwise the CPU's. */
static inline const ls_kernels *kernels(void) {
    const char *device = getenv("LOCKSTEP_DEVICE");
    return device != NULL && strcmp(device, "shadow:1") == 0 ? ls_cuda_kernels() : ls_cpu.kernels;
}

/* The offset of a kernel in the table, and the kernel at an offset, as in KERNEL_AT(map, KERNEL(exp)). */
#define KERNEL(name)            offsetof(ls_kernels, name)
#define KERNEL_AT(type, offset) (*(ls_##type##_kernel *const *)(const void *)((const char *)kernels() + (offset)))

#endif
