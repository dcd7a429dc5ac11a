/**
 * @file trace.h
 * Traces: a file that shows when each rank computed, communicated and waited. ls_trace_span (base.h) adds spans of the
 * program.
 */
#ifndef LOCKSTEP_TRACE_H
#define LOCKSTEP_TRACE_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Starts the trace of this thread. It records communication and waiting, operations and their gradients, micro-batches
 * of a pipeline, optimizer steps, batches from a loader, and the spans of ls_trace_span. A span takes about 0.1 us and
 * 80 bytes. The first million spans are kept. Fails with LS_ERR_STATE if a trace is running.
 */
LS_API ls_status ls_trace_start(void) LS_WARN_UNUSED;

/**
 * Ends the trace and writes the traces of all ranks of `comm` into one file on rank 0, in Chrome's trace event format,
 * which chrome://tracing and ui.perfetto.dev open. Each rank is a process there. The times of ranks on other machines
 * are shifted to rank 0's clock, which a barrier compares.
 *
 * All ranks call it; only rank 0's `path` is used. Fails with LS_ERR_STATE if no trace is running, and with LS_ERR_IO
 * on every rank if the file cannot be written.
 */
LS_API ls_status ls_trace_stop(ls_comm *comm, const char *path) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
