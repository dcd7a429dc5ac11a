/*
 * Passes on the output of ranks in whole lines. A stream is the standard output or standard error pipe of one rank; its
 * lines go through lines.h. The bytes are unchanged unless lines get a prefix. A line longer than LS_RELAY_LINE is
 * passed on in pieces.
 */
#ifndef LS_CLI_RELAY_H
#define LS_CLI_RELAY_H

#include <lockstep/base.h>
#include <uv.h>

#include "cli/lines.h"

enum { LS_RELAY_LINE = 1 << 20, LS_RELAY_READ = 1 << 16, LS_RELAY_TAIL = 2048 };

typedef struct ls_relay_stream {
    uv_poll_t poll; /* first member: libuv returns a pointer to it */
    int fd;         /* -1: not open */
    ls_line_source source;
    ls_lines *lines;
    bool prompts; /* the output is a terminal: the beginning of a line is passed on soon */
    uv_timer_t prompt_timer;
    char *held; /* the beginning of an unfinished line */
    size_t held_size;
    size_t held_capacity;
    size_t tail_size;
    char tail[LS_RELAY_TAIL]; /* the last bytes of standard error */
} ls_relay_stream;

/*
 * Takes ownership of `fd` (non-blocking, with its own file description) and passes on its bytes until the end.
 * Initializes the stream's source.
 */
ls_status ls_relay_open(ls_relay_stream *stream, uv_loop_t *loop, int fd, ls_lines *lines);

/* Passes on the available bytes without waiting. */
void ls_relay_drain(ls_relay_stream *stream);

/*
 * Passes on the available bytes, with an unfinished line, and closes. The stream's memory must stay valid until the
 * next iteration of the event loop.
 */
void ls_relay_close(ls_relay_stream *stream);

/* Returns whether other streams printed more than a screenful after this stream's last lines. */
bool ls_relay_out_of_sight(const ls_relay_stream *stream);

/* Returns the last whole lines of the stream, at most `lines`, within `tail`. Stores their size in *size. */
const char *ls_relay_last_lines(const ls_relay_stream *stream, int lines, size_t *size);

#endif
