/*
 * Time lines: what a thread did from when to when, noted while a trace runs on it (ls_trace_start). A place that is
 * worth a span takes the time before and adds the span after:
 *
 *     const uint64_t began = ls_trace_now();
 *     ...
 *     ls_trace_add(LS_TRACE_COMM, began, bytes, "send to %d", peer);
 */
#ifndef LS_BASE_TRACE_H
#define LS_BASE_TRACE_H

#include <lockstep/base.h>

#define LS_TRACE_NAME_CAPACITY 48
#define LS_TRACE_SPANS         (1 << 20) /* at most, of a thread */

/* What kind of span: its "cat" in the file. */
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
    int64_t bytes; /* moved; negative: says nothing */
    uint32_t kind;
    char name[LS_TRACE_NAME_CAPACITY];
} ls_trace_span_record;

typedef struct ls_trace {
    ls_trace_span_record *spans;
    size_t count;
    uint64_t lost; /* spans for which there was no room */
} ls_trace;

/* This thread's trace; NULL while none runs. */
extern _Thread_local ls_trace *ls_trace_present __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* The time, if a trace runs; else 0, which ls_trace_add takes for "add nothing". */
static inline uint64_t ls_trace_now(void) {
    return __builtin_expect(ls_trace_present == NULL, 1) ? 0 : ls_clock_ns();
}

/* Use ls_trace_add. */
void ls_trace_note(ls_trace_kind kind, uint64_t began, int64_t bytes, const char *format, ...) LS_PRINTF(4, 5);

/* Adds a span that ends now. A macro, so that what makes up its name is not evaluated while no trace runs. */
#define ls_trace_add(kind, since, ...)                                                                                 \
    do {                                                                                                               \
        if (__builtin_expect((since) != 0, 0)) {                                                                       \
            ls_trace_note(kind, since, __VA_ARGS__);                                                                   \
        }                                                                                                              \
    } while (0)

/* Makes this thread's trace; there must be none. False: out of memory. */
bool ls_trace_open(void);

/* Takes this thread's trace away from it, for ls_trace_free; NULL when none runs. */
ls_trace *ls_trace_take(void);

void ls_trace_free(ls_trace *trace);

#endif
