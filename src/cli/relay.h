/*
 * What ranks print, passed on in whole lines. A stream is one rank's output or error pipe; its lines go
 * the way of lines.h. Bytes pass unchanged unless lines are prefixed. A line that is longer than LS_RELAY_LINE comes in
 * pieces.
 */
#ifndef LS_CLI_RELAY_H
#define LS_CLI_RELAY_H

#include <lockstep/base.h>
#include <uv.h>

#include "cli/lines.h"

enum { LS_RELAY_LINE = 1 << 20, LS_RELAY_READ = 1 << 16, LS_RELAY_TAIL = 2048 };

typedef struct ls_relay_stream {
    uv_poll_t poll; /* first: libuv gives it back to us */
    int fd;         /* -1: not open */
    ls_speaker speaker;
    ls_lines *lines;
    bool prompts; /* a terminal is at the other end: the beginning of a line is not kept for long */
    uv_timer_t prompt_timer;
    char *held; /* the beginning of a line whose end has not come */
    size_t held_size;
    size_t held_capacity;
    size_t tail_size;
    char tail[LS_RELAY_TAIL]; /* the last bytes that came on standard error */
} ls_relay_stream;

/*
 * Takes over `fd` (non-blocking, its own file description) and passes on what comes until its end. The stream's speaker
 * is filled in.
 */
ls_status ls_relay_open(ls_relay_stream *stream, uv_loop_t *loop, int fd, ls_lines *lines);

/* Passes on what is there now, without waiting for more. */
void ls_relay_drain(ls_relay_stream *stream);

/* Passes on what is there, an unfinished line too, and closes. The stream's memory must outlive the loop's next turn.
 */
void ls_relay_close(ls_relay_stream *stream);

/* Whether so much came from others after this stream's last lines that a person would have to look for them. */
bool ls_relay_out_of_sight(const ls_relay_stream *stream);

/* The last whole lines of the stream, at most `lines`, within `tail`; their size becomes *size. */
const char *ls_relay_last_lines(const ls_relay_stream *stream, int lines, size_t *size);

#endif
