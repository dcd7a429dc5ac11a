#include "base/trace.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/memory.h"

_Thread_local ls_trace *ls_trace_present;

bool ls_trace_open(void) {
    ls_trace_present = ls_allocate_zeroed(1, sizeof *ls_trace_present);
    return ls_trace_present != NULL;
}

ls_trace *ls_trace_take(void) {
    ls_trace *trace = ls_trace_present;
    ls_trace_present = NULL;
    return trace;
}

void ls_trace_free(ls_trace *trace) {
    if (trace != NULL) {
        ls_free(trace->spans);
        ls_free(trace);
    }
}

/* Makes room for one more span. Returns NULL if the trace is full or if out of memory. */
static ls_trace_span_record *make_room(ls_trace *trace) {
    ls_trace_span_record *spans =
        trace->count < LS_TRACE_SPANS ? ls_grow(trace->spans, trace->count, sizeof *spans) : NULL;
    if (spans == NULL) {
        return NULL;
    }
    trace->spans = spans;
    return &spans[trace->count++];
}

void ls_trace_note(ls_trace_kind kind, uint64_t began, int64_t bytes, const char *format, ...) {
    ls_trace *trace = ls_trace_present;
    if (trace == NULL) { /* the trace ended during the span */
        return;
    }
    const uint64_t ended = ls_clock_ns();
    ls_trace_span_record *span = make_room(trace);
    if (span == NULL) {
        trace->lost++;
        return;
    }
    *span = (ls_trace_span_record){.began = began, .ended = ended, .bytes = bytes, .kind = (uint32_t)kind};
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(span->name, sizeof span->name, format, arguments);
    va_end(arguments);
}

void ls_trace_span(const char *name, uint64_t began) {
    ls_trace_add(LS_TRACE_USER, began, -1, "%s", name != NULL ? name : "");
}
