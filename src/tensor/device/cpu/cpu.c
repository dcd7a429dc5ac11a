/*
 * The CPU device. Memory comes from the cache of the calling thread. Work is finished before a call returns, so one
 * stream and one event, both empty, are enough.
 */
#include "tensor/device/cpu/cpu.h"

#include <string.h>

#include "base/memory.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/scope.h"

struct ls_stream {
    char nothing;
};

struct ls_event {
    char nothing;
};

static ls_stream the_stream;
static ls_event the_event;

static void *allocate(const ls_device *self, size_t bytes) {
    (void)self;
    return ls_record_allocate(bytes);
}

static void release(const ls_device *self, void *memory, size_t bytes) {
    (void)self;
    ls_record_release(memory, bytes);
}

static void *allocate_pinned(const ls_device *self, size_t bytes) {
    (void)self;
    return ls_record_allocate(bytes);
}

static void release_pinned(const ls_device *self, void *memory, size_t bytes) {
    (void)self;
    ls_record_release(memory, bytes);
}

static ls_stream *default_stream(const ls_device *self) {
    (void)self;
    return &the_stream;
}

static void stream_free(ls_stream *stream) {
    (void)stream;
}

static ls_status stream_wait(ls_stream *stream) {
    (void)stream;
    return LS_OK;
}

static ls_event *event_new(const ls_device *self) {
    (void)self;
    return &the_event;
}

static void event_free(ls_event *event) {
    (void)event;
}

static ls_status event_pass(ls_event *event, ls_stream *stream) {
    (void)event;
    (void)stream;
    return LS_OK;
}

static bool event_done(const ls_event *event) {
    (void)event;
    return true;
}

static ls_status copy(ls_stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return LS_OK;
}

static ls_status clear(ls_stream *stream, void *memory, size_t bytes) {
    (void)stream;
    if (bytes > 0) {
        memset(memory, 0, bytes);
    }
    return LS_OK;
}

static bool gains_by(const ls_device *self, ls_dtype rounds_to) {
    (void)self;
    return ls_rounding_pays(rounds_to);
}

ls_device ls_cpu = {
    .name = "cpu",
    .is_host = true,
    .uses_cache = true,
    .kernels = &ls_cpu_kernels,
    .gains_by = gains_by,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_pinned,
    .release_pinned = release_pinned,
    .default_stream = default_stream,
    .stream_new = default_stream,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_pass,
    .event_wait = event_pass,
    .event_done = event_done,
    .copy = copy,
    .clear = clear,
    .copy_to_host = copy,
    .copy_from_host = copy,
};
