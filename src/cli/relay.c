#include "cli/relay.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"

enum { MOST_READS = 64, PROMPT_MS = 50 };

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void put_lines(ls_relay_stream *stream, const char *data, size_t size) {
    while (size > 0 && ls_lines_one_by_one(&stream->relay->lines, &stream->source)) {
        const char *end = memchr(data, '\n', size);
        const size_t line = end != NULL ? (size_t)(end - data) + 1 : size;
        ls_lines_put(&stream->relay->lines, &stream->source, data, line);
        data += line;
        size -= line;
    }
    ls_lines_put(&stream->relay->lines, &stream->source, data, size);
}

/* Forwards the held beginning of a line. */
static void pass_held(ls_relay_stream *stream) {
    ls_lines_put(&stream->relay->lines, &stream->source, stream->held, stream->held_size);
    stream->held_size = 0;
}

static void on_prompt_timeout(uv_timer_t *timer) {
    ls_relay_stream *stream = timer->data;
    pass_held(stream);
    ls_lines_flush(&stream->relay->lines);
}

/*
 * Holds the beginning of a line until its end arrives. If a line does not fit, or there is no memory for it, it is
 * forwarded in pieces.
 */
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
        pass_held(stream);
        ls_lines_put(&stream->relay->lines, &stream->source, data, size);
        return;
    }
    if (size > 0) {
        memcpy(stream->held + stream->held_size, data, size);
        stream->held_size += size;
    }
    if (stream->prompts && stream->held_size > 0) {
        uv_timer_start(&stream->prompt_timer, on_prompt_timeout, PROMPT_MS, 0);
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
    if (stream->source.error) {
        keep_tail(stream, data, size);
    }
    const char *last = memrchr(data, '\n', size);
    const size_t whole = last != NULL ? (size_t)(last - data) + 1 : 0;
    if (whole > 0) {
        size_t first = 0;
        if (stream->held_size > 0) {
            first = (size_t)((const char *)memchr(data, '\n', whole) - data) + 1;
            hold(stream, data, first);
            pass_held(stream);
        }
        put_lines(stream, data + first, whole - first);
    }
    hold(stream, data + whole, size - whole);
    ls_outlet_flush(stream->source.outlet);
}

bool ls_relay_stream_out_of_sight(const ls_relay_stream *stream) {
    enum { SCREENFUL = 1500 };
    const ls_outlet *outlet = stream->source.outlet;
    return outlet != NULL && outlet->total - stream->source.passed_on > SCREENFUL;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void shut(ls_relay_stream *stream) {
    pass_held(stream);
    if (stream->source.prefix[0] != '\0' && stream->source.outlet->unfinished == &stream->source) {
        ls_lines_put(&stream->relay->lines, &stream->source, "\n", 1);
    }
    ls_outlet_flush(stream->source.outlet);
    uv_close((uv_handle_t *)&stream->prompt_timer, NULL);
    ls_free(stream->held);
    stream->held = NULL;
    stream->held_size = stream->held_capacity = 0;
    uv_close((uv_handle_t *)&stream->poll, NULL);
    close(stream->fd);
    stream->fd = -1;
}

/* Reads once. Returns false if no bytes are available. */
static bool read_some(ls_relay_stream *stream) {
    char data[LS_RELAY_READ];
    const ssize_t size = read(stream->fd, data, sizeof data);
    if (size > 0) {
        take(stream, data, (size_t)size);
        if (stream->source.outlet->failure != 0) {
            shut(stream); /* the rank gets a broken pipe at its next write, as if it wrote directly to the output */
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

ls_status ls_relay_stream_open(ls_relay_stream *stream, ls_relay *relay, int fd) {
    int failure = uv_poll_init(relay->loop, &stream->poll, fd);
    if (failure == 0) {
        stream->fd = fd;
        stream->relay = relay;
        stream->source.outlet = stream->source.error ? &relay->error : &relay->output;
        uv_timer_init(relay->loop, &stream->prompt_timer);
        stream->prompt_timer.data = stream;
        failure = uv_poll_start(&stream->poll, UV_READABLE, on_readable);
    }
    return failure == 0 ? LS_OK
                        : ls_fail(LS_ERR_IO, "lockstep run: cannot watch a rank's output: %s", uv_strerror(failure));
}

void ls_relay_stream_drain(ls_relay_stream *stream) {
    /* The limit exceeds the capacity of any pipe, so that this loop ends even if a process never stops writing. */
    for (int i = 0; i < MOST_READS && stream->fd >= 0 && read_some(stream); i++) {
    }
}

void ls_relay_stream_close(ls_relay_stream *stream) {
    ls_relay_stream_drain(stream);
    if (stream->fd >= 0) {
        shut(stream);
    }
}

const char *ls_relay_stream_last_lines(const ls_relay_stream *stream, int lines, size_t *size) {
    size_t end = stream->tail_size;
    while (end > 0 && stream->tail[end - 1] == '\n') {
        end--;
    }
    size_t start = end;
    while (start > 0 && (stream->tail[start - 1] != '\n' || --lines > 0)) {
        start--;
    }
    if (start == 0 && stream->tail_size == sizeof stream->tail) { /* the beginning of the first line is missing */
        const char *whole = memchr(stream->tail, '\n', end);
        start = whole != NULL ? (size_t)(whole - stream->tail) + 1 : 0;
    }
    *size = end - start;
    return stream->tail + start;
}

/* ---- the relay --------------------------------------------------------------------------------------------------- */

void ls_relay_open(ls_relay *relay, uv_loop_t *loop, const ls_relay_options *options) {
    relay->loop = loop;
    relay->output = (ls_outlet){.fd = STDOUT_FILENO, .wait = options->wait, .user = options->user};
    relay->error = (ls_outlet){.fd = STDERR_FILENO, .wait = options->wait, .user = options->user};
    ls_lines_open(&relay->lines, loop, options->hold, options->is_reported, options->user);
}

void ls_relay_close(ls_relay *relay) {
    ls_lines_close(&relay->lines);
}
