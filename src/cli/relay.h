/*
 * What ranks print, passed on in whole lines. A stream is one rank's output or error pipe; it empties into one of the
 * launcher's own two. Bytes pass unchanged unless lines are prefixed. A line that is longer than LS_RELAY_LINE comes in
 * pieces.
 */
#ifndef LS_CLI_RELAY_H
#define LS_CLI_RELAY_H

#include <lockstep/base.h>
#include <uv.h>

enum { LS_RELAY_LINE = 1 << 20, LS_RELAY_BUFFER = 1 << 16, LS_RELAY_TAIL = 2048 };

typedef struct ls_relay_stream ls_relay_stream;

/*
 * Called before each write; returns true when `fd` takes bytes and false when they are to be dropped (the job is over
 * and nobody has read for too long).
 */
typedef bool (*ls_outlet_wait)(int fd, void *user);

/* One of the launcher's own outputs. */
typedef struct ls_outlet {
    int fd;
    bool broken;                       /* its reader has gone */
    const ls_relay_stream *unfinished; /* whose line has no end yet; NULL: the next byte starts a line */
    ls_outlet_wait wait;
    void *user;
    uint64_t total; /* bytes that went through it */
    size_t used;
    char buffer[LS_RELAY_BUFFER];
} ls_outlet;

struct ls_relay_stream {
    uv_poll_t poll; /* first: libuv gives it back to us */
    int fd;         /* -1: not open */
    ls_outlet *outlet;
    char prefix[24]; /* empty: none */
    char *held;      /* the beginning of a line whose end has not come */
    size_t held_size;
    size_t held_capacity;
    bool keep_tail; /* whether `tail` is kept */
    size_t tail_size;
    char tail[LS_RELAY_TAIL]; /* the last bytes that came */
    uint64_t passed_on;       /* the outlet's total after this stream's last bytes */
};

/* Takes over `fd` (non-blocking, its own file description) and passes on what comes until its end. */
ls_status ls_relay_open(ls_relay_stream *stream, uv_loop_t *loop, int fd, ls_outlet *outlet);

/* Passes on what is there now, without waiting for more. */
void ls_relay_drain(ls_relay_stream *stream);

/* Passes on what is there, an unfinished line too, and closes. The stream's memory must outlive the loop's next turn.
 */
void ls_relay_close(ls_relay_stream *stream);

/* Whether so much came from others after this stream's last lines that a person would have to look for them. */
bool ls_relay_out_of_sight(const ls_relay_stream *stream);

/* The last whole lines of the stream, at most `lines`, within `tail`; their size becomes *size. */
const char *ls_relay_last_lines(const ls_relay_stream *stream, int lines, size_t *size);

/* A line of the launcher's own, in printf's format, without its newline. */
void ls_outlet_say(ls_outlet *outlet, const char *format, ...) LS_PRINTF(2, 3);

#endif
