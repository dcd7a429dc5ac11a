/*
 * The path that the output of a job takes. A stream reads the standard output or standard error pipe of one rank and
 * splits its bytes into lines. lines.h holds lines back, and drops duplicates. outlet.h writes them, and the lines of
 * the launcher itself. The bytes are unchanged unless lines get a prefix. A line longer than LS_RELAY_LINE is forwarded
 * in pieces.
 */
#ifndef LS_CLI_RELAY_H
#define LS_CLI_RELAY_H

#include <lockstep/base.h>
#include <uv.h>

#include "cli/lines.h"

enum { LS_RELAY_LINE = 1 << 20, LS_RELAY_READ = 1 << 16, LS_RELAY_TAIL = 2048 };

typedef struct ls_relay {
    uv_loop_t *loop;
    ls_outlet output, error;
    ls_lines lines;
} ls_relay;

typedef struct ls_relay_options {
    bool hold;           /* hold back lines of standard error */
    ls_outlet_wait wait; /* waits for the readers of both outlets */
    ls_lines_filter is_reported;
    void *user; /* of both functions */
} ls_relay_options;

typedef struct ls_relay_stream {
    uv_poll_t poll; /* first member: libuv returns a pointer to it */
    int fd;         /* -1 if not open */
    ls_line_source source;
    ls_relay *relay;
    bool prompts; /* the output is a terminal, so incomplete lines are forwarded promptly */
    uv_timer_t prompt_timer;
    char *held; /* the beginning of an unfinished line */
    size_t held_size;
    size_t held_capacity;
    size_t tail_size;
    char tail[LS_RELAY_TAIL]; /* the last bytes of standard error */
} ls_relay_stream;

void ls_relay_open(ls_relay *relay, uv_loop_t *loop, const ls_relay_options *options);

/* Prints all held lines and closes. Call it after all streams are closed. The memory must remain valid until the
   next iteration of the loop. */
void ls_relay_close(ls_relay *relay);

/*
 * Takes ownership of `fd` (non-blocking, with its own file description) and forwards its bytes until the end. The
 * caller must have set `prompts` and the source, except for its outlet.
 */
ls_status ls_relay_stream_open(ls_relay_stream *stream, ls_relay *relay, int fd);

/* Forwards the available bytes without waiting. */
void ls_relay_stream_drain(ls_relay_stream *stream);

/*
 * Forwards the available bytes, including an unfinished line, and closes. The stream's memory must remain valid until
 * the next iteration of the event loop.
 */
void ls_relay_stream_close(ls_relay_stream *stream);

/* Returns whether other streams have printed more than a screenful since this stream's last lines. */
bool ls_relay_stream_out_of_sight(const ls_relay_stream *stream);

/* Returns the last complete lines of the stream, at most `lines`, within `tail`. Stores their size in *size. */
const char *ls_relay_stream_last_lines(const ls_relay_stream *stream, int lines, size_t *size);

#endif
