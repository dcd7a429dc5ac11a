/*
 * Exposes the elements of a tensor as buffers for calls on a communicator. If the communicator accepts memory of the
 * tensor's device, the buffer is on the device, and the call runs on the device's stream. Otherwise, the elements are
 * copied to host memory. All ranks of a call make the same choice if their tensors are on devices of the same kind.
 */
#ifndef LS_PARALLEL_BUFFERS_H
#define LS_PARALLEL_BUFFERS_H

#include "comm/device_buffers.h"
#include "tensor/device.h"

/* Returns the device if reductions accept elements of this dtype in device memory, or NULL if they need host memory. */
const ls_device *ls_reducing_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype,
                                    ls_reduction reduction);

/* Does the same for calls that only move elements. */
const ls_device *ls_moving_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype);

/*
 * Begins a view of the tensor's elements. `on` is the result of one of the two functions above for the tensor's device.
 * If `on` is NULL, works like ls_host_view_begin. ls_host_view_end ends the view.
 */
ls_status ls_buffer_begin(ls_host_view *view, const ls_tensor *tensor, int access, const ls_device *on);

/* Returns a dense tensor with the same elements and dtype, on the device `on`, or on the host if `on` is NULL.
 * Returns NULL with an error. */
ls_tensor *ls_buffer_dense(const char *call, const ls_tensor *tensor, const ls_device *on);

/* Returns the address of the elements of this tensor, on the host or on its device, for a communicator. */
static inline void *ls_buffer_data(const ls_tensor *dense) {
    return dense->data;
}

/*
 * Orders the next calls of the communicator after the calling thread's work on the device. NULL means that the buffers
 * of these calls are in host memory.
 */
void ls_comm_use_device(ls_comm *comm, const ls_device *on);

static inline ls_status ls_comm_after_device(ls_comm *comm, ls_status status) {
    ls_comm_use_stream(comm, NULL);
    return status;
}

/* Makes one such call, and returns its status. */
#define LS_ON_DEVICE(comm, on, call) (ls_comm_use_device(comm, on), ls_comm_after_device(comm, call))

/* Reduces the `count` elements at sources[0], sources[1] and so on. The result is bit-identical to an all-reduce. */
void ls_reduce_to(void *result, ls_dtype dtype, ls_reduction reduction, const void *const *sources, int ranks,
                  size_t count);

#endif
