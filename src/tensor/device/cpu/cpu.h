/*
 * device/cpu: tensors in main memory, and the kernels that compute with them. cpu.c implements the device (memory,
 * streams, events, copies). Each family of kernels is in its own file, and table.c lists them. The CPU has a single
 * stream, and finishes work immediately, so kernels ignore their stream.
 */
#ifndef LS_TENSOR_DEVICE_CPU_H
#define LS_TENSOR_DEVICE_CPU_H

#include "tensor/device.h"

/* The kernel table to which ls_cpu.kernels points. */
extern const ls_kernels ls_cpu_kernels;

#endif
