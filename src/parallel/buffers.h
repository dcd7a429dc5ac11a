/*
 * The elements of a tensor as a call on a communicator takes them: where the communicator takes memory of the tensor's
 * device, there, and the call is made on the device's stream; else in memory of the host, to and from which they are
 * copied. All ranks of a call come to the same, where their tensors are on devices of one kind.
 */
#ifndef LS_PARALLEL_BUFFERS_H
#define LS_PARALLEL_BUFFERS_H

#include "comm/device_buffers.h"
#include "tensor/device.h"

/* The device itself where calls that reduce elements of the dtype take them there; NULL: the host is to have them. */
const ls_device *ls_reducing_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype,
                                    ls_reduction reduction);

/* The same for calls that only move them. */
const ls_device *ls_moving_device(const ls_comm *comm, const ls_device *device, ls_dtype dtype);

/* `on` is one of these two, of the tensor's device. As ls_host_view_begin where it is NULL; ls_host_view_end ends it.
 */
ls_status ls_buffer_begin(ls_host_view *view, const ls_tensor *tensor, int access, const ls_device *on);

/* Elements of a tensor, dense, of its own dtype, there or on the host; NULL with an error. */
ls_tensor *ls_buffer_dense(const char *call, const ls_tensor *tensor, const ls_device *on);

/* Where these are. */
static inline void *ls_buffer_data(const ls_tensor *dense) {
    return dense->data;
}

/* Has the next calls of the communicator come behind what the calling thread has asked of the device; NULL: they have
 * their buffers in memory of the host. */
void ls_comm_use_device(ls_comm *comm, const ls_device *on);

static inline ls_status ls_comm_after_device(ls_comm *comm, ls_status status) {
    ls_comm_use_stream(comm, NULL);
    return status;
}

/* One such call: gives its status. */
#define LS_ON_DEVICE(comm, on, call) (ls_comm_use_device(comm, on), ls_comm_after_device(comm, call))

#endif
