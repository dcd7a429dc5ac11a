/*
 * Calls whose buffers are in memory of a device, for higher layers: they query whether the communicator accepts such
 * buffers, and otherwise copy to memory of the host. All ranks of a call have its buffers in memory of a device, or
 * none has.
 */
#ifndef LS_COMM_DEVICE_BUFFERS_H
#define LS_COMM_DEVICE_BUFFERS_H

#include <lockstep/comm.h>

/* Returns true if collectives accept buffers in memory of a device: collectives with this reduction or, with `reduces`
 * false, collectives that only move data. The same on all ranks. */
bool ls_comm_takes(const ls_comm *comm, bool reduces, ls_dtype dtype, ls_reduction reduction);

/*
 * The next calls of this rank have their buffers in memory of a device. They run after the earlier work of `stream`,
 * and before its later work. NULL: the buffers are in memory of the host again. Collectives only.
 */
void ls_comm_use_stream(ls_comm *comm, void *stream);

#endif
