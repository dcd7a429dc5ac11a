/*
 * Calls on buffers in device memory, for higher layers. These query whether the communicator accepts such buffers, and
 * otherwise copy them to host memory. In each call, the buffers of either all ranks or no rank are in device memory.
 */
#ifndef LS_COMM_DEVICE_BUFFERS_H
#define LS_COMM_DEVICE_BUFFERS_H

#include <lockstep/comm.h>

/* Returns true if collectives accept buffers in device memory: collectives with this reduction or, with `reduces`
 * false, collectives that only move data. The result is the same on all ranks. */
bool ls_comm_takes(const ls_comm *comm, bool reduces, ls_dtype dtype, ls_reduction reduction);

/*
 * Declares that the buffers of this rank's next calls are in device memory. The calls run after the earlier work of
 * `stream`, and before its later work. NULL means that buffers are in host memory again. For collectives only.
 */
void ls_comm_use_stream(ls_comm *comm, void *stream);

#endif
