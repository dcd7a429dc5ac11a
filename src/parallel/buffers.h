/*
 * The elements of a tensor as buffers for calls on a communicator. If the communicator accepts memory of the tensor's
 * device, the buffer is there, and the call runs on the device's stream. Otherwise the buffer is host memory, and the
 * elements are copied. All ranks of a call decide alike if their tensors are on devices of one kind.
 */
#ifndef LS_PARALLEL_BUFFERS_H
#define LS_PARALLEL_BUFFERS_H

#include "comm/device_buffers.h"
#include "tensor/device.h"

/* Returns the device if reducing calls accept elements of the dtype there; NULL if they need host memory. */
const ls_device *ls_reducing_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype,
                                    ls_reduction reduction);

/* The same for calls that only move elements. */
const ls_device *ls_moving_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype);

/*
 * `on` is the result of one of these two functions, for the tensor's device. If it is NULL, acts like
 * ls_host_view_begin. ls_host_view_end ends the view.
 */
ls_status ls_buffer_begin(ls_host_view *view, const ls_tensor *tensor, int access, const ls_device *on);

/* Returns the elements of a tensor, dense, in its own dtype, on `on` or on the host; NULL with an error. */
ls_tensor *ls_buffer_dense(const char *call, const ls_tensor *tensor, const ls_device *on);

/* Returns the address of these elements. */
static inline void *ls_buffer_data(const ls_tensor *dense) {
    return dense->data;
}

/*
 * Orders the next calls of the communicator after the calling thread's work on the device. NULL: their buffers are in
 * host memory.
 */
void ls_comm_use_device(ls_comm *comm, const ls_device *on);

static inline ls_status ls_comm_after_device(ls_comm *comm, ls_status status) {
    ls_comm_use_stream(comm, NULL);
    return status;
}

/* Makes one such call, and returns its status. */
#define LS_ON_DEVICE(comm, on, call) (ls_comm_use_device(comm, on), ls_comm_after_device(comm, call))

#endif
