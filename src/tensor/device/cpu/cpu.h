/*
 * device/cpu: tensors in main memory and the kernels that compute on them. cpu.c is the row of the device (memory,
 * streams, events, copies); kernels_*.c hold the kernels, one file per family, and the table that names them all. The
 * CPU has one stream, which does everything at once, so kernels need not look at theirs.
 */
#ifndef LS_TENSOR_DEVICE_CPU_H
#define LS_TENSOR_DEVICE_CPU_H

#include "tensor/device.h"

/* The table that ls_cpu.kernels points to. */
extern const ls_kernels ls_cpu_kernels;

#endif
