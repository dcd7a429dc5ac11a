/**
 * @file trace.h
 * Traces: files that show when each rank computes, communicates and waits.
 *
 * ```c
 * if (ls_trace_start() == LS_OK) {
 *     const uint64_t began = ls_clock_ns();
 *     ls_release(ls_forward(model, x));
 *     ls_trace_span("forward", began);
 *     if (ls_trace_stop(world, "trace.json") != LS_OK) {
 *         printf("%s\n", ls_error_message());
 *     }
 * }
 * ```
 */
#ifndef LOCKSTEP_TRACE_H
#define LOCKSTEP_TRACE_H

#include <lockstep/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Starts the trace of this thread. It records collective calls, messages and waits for them, operations and their
 * gradients, micro-batches of pipelines, optimizer steps, batches of loaders, and spans of ls_trace_span (base.h). An
 * asynchronous message has a span only while a call waits for it. A replay of a captured step is one span instead of
 * its operations and gradients; its optimizer steps and communication have their own spans. The first 2^20 spans are
 * kept, with 80 to 160 bytes for each. Fails with LS_ERR_STATE if a trace is running.
 */
LS_API ls_status ls_trace_start(void) LS_WARN_UNUSED;

/**
 * Stops the trace, and writes the traces of all ranks of `comm` into one file on rank 0. All ranks must call it; only
 * rank 0's `path` is used. Fails with LS_ERR_IO on every rank if the file cannot be written. Fails with LS_ERR_STATE on
 * a rank without a trace, after the spans of the other ranks have been written. If no rank has a trace, writes nothing.
 *
 * The file contains only the spans of this trace. It replaces a file at `path`, as PyTorch's export_chrome_trace does:
 * use a different path for each trace that you want to keep.
 *
 * The file has Chrome's trace event format, which chrome://tracing and ui.perfetto.dev open. Each rank is a process in
 * it. The times of ranks on other machines are shifted to rank 0's clock; the offsets are measured with a barrier.
 */
LS_API ls_status ls_trace_stop(ls_comm *comm, const char *path) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
