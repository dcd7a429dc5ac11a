/*
 * Calls whose buffers are in memory of a device, for the floors above: they ask whether the communicator takes them,
 * and else copy to memory of the host. All ranks of a call have its buffers in memory of a device, or none has.
 */
#ifndef LS_COMM_DEVICE_BUFFERS_H
#define LS_COMM_DEVICE_BUFFERS_H

#include <lockstep/comm.h>

/* Whether collectives take buffers in memory of a device: those that reduce so, or, with `reduces` false, those that
 * only move data. The same on all ranks. */
bool ls_comm_takes(const ls_comm *comm, bool reduces, ls_dtype dtype, ls_reduction reduction);

/*
 * The calls that this rank makes from here on have their buffers in memory of a device, and are made behind what its
 * `stream` was asked before; what it is asked afterwards comes behind them. NULL: in memory of the host again. A
 * collective only.
 */
void ls_comm_use_stream(ls_comm *comm, void *stream);

#endif
