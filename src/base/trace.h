/*
 * Traces: the spans of time that a thread spent in named tasks, recorded between ls_trace_start and ls_trace_stop. A
 * task records its span as follows:
 *
 *     const uint64_t began = ls_trace_now();
 *     ...
 *     ls_trace_add(LS_TRACE_COMM, began, bytes, "send to %d", peer);
 */
#ifndef LS_BASE_TRACE_H
#define LS_BASE_TRACE_H

#include <lockstep/base.h>

#define LS_TRACE_NAME_CAPACITY 48
#define LS_TRACE_SPANS         (1 << 20) /* maximum number of spans of a thread */

/* The kind of a span: the field "cat" in the trace file. */
typedef enum ls_trace_kind {
    LS_TRACE_USER = 0,
    LS_TRACE_COMM,
    LS_TRACE_FORWARD,
    LS_TRACE_BACKWARD,
    LS_TRACE_PIPELINE,
    LS_TRACE_TRAINING,
    LS_TRACE_KINDS
} ls_trace_kind;

typedef struct ls_trace_span_record {
    uint64_t began; /* ls_clock_ns */
    uint64_t ended;
    int64_t bytes; /* number of bytes moved; negative if unknown */
    uint32_t kind;
    char name[LS_TRACE_NAME_CAPACITY];
} ls_trace_span_record;

typedef struct ls_trace {
    ls_trace_span_record *spans;
    size_t count;
    uint64_t lost; /* number of spans that did not fit */
} ls_trace;

/* This thread's trace, or NULL if no trace runs. */
extern _Thread_local ls_trace *ls_trace_present __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Returns the time if a trace runs, otherwise 0. ls_trace_add ignores spans that began at 0. */
static inline uint64_t ls_trace_now(void) {
    return __builtin_expect(ls_trace_present == NULL, 1) ? 0 : ls_clock_ns();
}

/* Use ls_trace_add. */
void ls_trace_note(ls_trace_kind kind, uint64_t began, int64_t bytes, const char *format, ...) LS_PRINTF(4, 5);

/* Adds a span that ends now. A macro, so that the arguments of the name are evaluated only while a trace runs. */
#define ls_trace_add(kind, since, ...)                                                                                 \
    do {                                                                                                               \
        if (__builtin_expect((since) != 0, 0)) {                                                                       \
            ls_trace_note(kind, since, __VA_ARGS__);                                                                   \
        }                                                                                                              \
    } while (0)

/* Starts this thread's trace. The thread must not have a trace yet. Returns false if out of memory. */
bool ls_trace_open(void);

/* Ends this thread's trace. Returns ownership to the caller (ls_trace_free), or NULL if no trace runs. */
ls_trace *ls_trace_take(void);

void ls_trace_free(ls_trace *trace);

#endif
