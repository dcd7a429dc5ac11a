#include "cli/relay.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"

enum { MOST_READS = 64 };

/* ---- the launcher's own outputs ------------------------------------------------------------------------------- */

static void write_out(ls_outlet *outlet, const char *data, size_t size) {
    while (size > 0 && !outlet->broken) {
        if (!outlet->wait(outlet->fd, outlet->user)) {
            return;
        }
        /* A pipe that is ready takes this many at once, so that no write blocks while a signal waits. */
        const ssize_t wrote = write(outlet->fd, data, size < PIPE_BUF ? size : PIPE_BUF);
        if (wrote < 0 && errno != EINTR && errno != EAGAIN) {
            outlet->broken = true;
        }
        data += wrote > 0 ? wrote : 0;
        size -= wrote > 0 ? (size_t)wrote : 0;
    }
}

static void flush(ls_outlet *outlet) {
    write_out(outlet, outlet->buffer, outlet->used);
    outlet->used = 0;
}

static void put(ls_outlet *outlet, const char *data, size_t size) {
    outlet->total += size;
    while (size > 0) {
        const size_t room = sizeof outlet->buffer - outlet->used;
        const size_t part = size < room ? size : room;
        memcpy(outlet->buffer + outlet->used, data, part);
        outlet->used += part;
        data += part;
        size -= part;
        if (outlet->used == sizeof outlet->buffer) {
            flush(outlet);
        }
    }
}

void ls_outlet_say(ls_outlet *outlet, const char *format, ...) {
    char line[LS_ERROR_CAPACITY + LS_RELAY_TAIL];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (outlet->unfinished != NULL) {
        put(outlet, "\n", 1);
        outlet->unfinished = NULL;
    }
    put(outlet, line, strlen(line));
    put(outlet, "\n", 1);
    flush(outlet);
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */

/* Bytes of one line, with or without its end. */
static void put_line(ls_relay_stream *stream, const char *data, size_t size) {
    ls_outlet *outlet = stream->outlet;
    if (size == 0) {
        return;
    }
    if (stream->prefix[0] != '\0') {
        if (outlet->unfinished != NULL && outlet->unfinished != stream) {
            put(outlet, "\n", 1);
            outlet->unfinished = NULL;
        }
        if (outlet->unfinished == NULL) {
            put(outlet, stream->prefix, strlen(stream->prefix));
        }
    }
    put(outlet, data, size);
    stream->passed_on = outlet->total;
    outlet->unfinished = data[size - 1] == '\n' ? NULL : stream;
}

static void put_lines(ls_relay_stream *stream, const char *data, size_t size) {
    while (size > 0 && stream->prefix[0] != '\0') {
        const char *end = memchr(data, '\n', size);
        const size_t line = end != NULL ? (size_t)(end - data) + 1 : size;
        put_line(stream, data, line);
        data += line;
        size -= line;
    }
    put_line(stream, data, size);
}

/* Keeps the beginning of a line until its end comes. What does not fit or finds no memory is passed on in pieces. */
static void hold(ls_relay_stream *stream, const char *data, size_t size) {
    if (stream->held_size + size > stream->held_capacity && stream->held_size + size <= LS_RELAY_LINE) {
        size_t capacity = stream->held_capacity > 0 ? stream->held_capacity : 256;
        while (capacity < stream->held_size + size) {
            capacity *= 2;
        }
        char *held = ls_reallocate(stream->held, stream->held_capacity, capacity);
        stream->held = held != NULL ? held : stream->held;
        stream->held_capacity = held != NULL ? capacity : stream->held_capacity;
    }
    if (stream->held_size + size > stream->held_capacity) {
        put_line(stream, stream->held, stream->held_size);
        put_line(stream, data, size);
        stream->held_size = 0;
        return;
    }
    if (size > 0) {
        memcpy(stream->held + stream->held_size, data, size);
        stream->held_size += size;
    }
}

static void keep_tail(ls_relay_stream *stream, const char *data, size_t size) {
    if (size > sizeof stream->tail) {
        data += size - sizeof stream->tail;
        size = sizeof stream->tail;
    }
    const size_t room = sizeof stream->tail - size;
    const size_t stays = stream->tail_size < room ? stream->tail_size : room;
    memmove(stream->tail, stream->tail + stream->tail_size - stays, stays);
    memcpy(stream->tail + stays, data, size);
    stream->tail_size = stays + size;
}

static void take(ls_relay_stream *stream, const char *data, size_t size) {
    if (stream->keep_tail) {
        keep_tail(stream, data, size);
    }
    const char *last = memrchr(data, '\n', size);
    const size_t whole = last != NULL ? (size_t)(last - data) + 1 : 0;
    if (whole > 0) {
        const size_t first = (size_t)((const char *)memchr(data, '\n', whole) - data) + 1;
        if (stream->held_size > 0) {
            put_line(stream, stream->held, stream->held_size);
            stream->held_size = 0;
        }
        put_line(stream, data, first);
        put_lines(stream, data + first, whole - first);
    }
    hold(stream, data + whole, size - whole);
    flush(stream->outlet);
}

bool ls_relay_out_of_sight(const ls_relay_stream *stream) {
    enum { SCREENFUL = 1500 };
    return stream->outlet != NULL && stream->outlet->total - stream->passed_on > SCREENFUL;
}

/* ---- streams -------------------------------------------------------------------------------------------------- */

static void shut(ls_relay_stream *stream) {
    if (stream->held_size > 0) {
        put_line(stream, stream->held, stream->held_size);
    }
    if (stream->prefix[0] != '\0' && stream->outlet->unfinished == stream) {
        put_line(stream, "\n", 1);
    }
    flush(stream->outlet);
    ls_free(stream->held);
    stream->held = NULL;
    stream->held_size = stream->held_capacity = 0;
    uv_close((uv_handle_t *)&stream->poll, NULL);
    close(stream->fd);
    stream->fd = -1;
}

/* Reads once; false when nothing is there now. */
static bool read_some(ls_relay_stream *stream) {
    char data[LS_RELAY_BUFFER];
    const ssize_t size = read(stream->fd, data, sizeof data);
    if (size > 0) {
        take(stream, data, (size_t)size);
        if (stream->outlet->broken) {
            shut(stream); /* the rank meets the broken pipe at its next write, as if it wrote there itself */
        }
        return stream->fd >= 0;
    }
    if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
        shut(stream);
    }
    return false;
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    (void)read_some((ls_relay_stream *)poll);
}

ls_status ls_relay_open(ls_relay_stream *stream, uv_loop_t *loop, int fd, ls_outlet *outlet) {
    int failure = uv_poll_init(loop, &stream->poll, fd);
    if (failure == 0) {
        stream->fd = fd;
        stream->outlet = outlet;
        failure = uv_poll_start(&stream->poll, UV_READABLE, on_readable);
    }
    return failure == 0 ? LS_OK
                        : ls_fail(LS_ERR_IO, "lockstep run: cannot watch a rank's output: %s", uv_strerror(failure));
}

void ls_relay_drain(ls_relay_stream *stream) {
    /* More than any pipe holds; what writes on for ever is not waited for. */
    for (int i = 0; i < MOST_READS && stream->fd >= 0 && read_some(stream); i++) {
    }
}

void ls_relay_close(ls_relay_stream *stream) {
    ls_relay_drain(stream);
    if (stream->fd >= 0) {
        shut(stream);
    }
}

const char *ls_relay_last_lines(const ls_relay_stream *stream, int lines, size_t *size) {
    size_t end = stream->tail_size;
    while (end > 0 && stream->tail[end - 1] == '\n') {
        end--;
    }
    size_t start = end;
    while (start > 0 && (stream->tail[start - 1] != '\n' || --lines > 0)) {
        start--;
    }
    if (start == 0 && stream->tail_size == sizeof stream->tail) { /* the first line has lost its beginning */
        const char *whole = memchr(stream->tail, '\n', end);
        start = whole != NULL ? (size_t)(whole - stream->tail) + 1 : 0;
    }
    *size = end - start;
    return stream->tail + start;
}
