/*
 * Filters lines of the ranks before they reach the launcher's outputs. Standard error is held back for 0.3 seconds. If
 * the job fails in this time:
 *   - a line that several ranks print is shown once;
 *   - a line that reports only the failure that the launcher reports is not shown;
 *   - if the failed rank printed its reason as one line, the launcher appends its remark to this line, and prints no
 *     line of its own.
 *
 * All other lines pass unchanged. The lines of each rank stay in order.
 */
#ifndef LS_CLI_LINES_H
#define LS_CLI_LINES_H

#include <lockstep/base.h>
#include <uv.h>

#include "cli/outlet.h"

/* One of the two output streams of a rank. */
typedef struct ls_line_source {
    int rank;
    bool error;      /* standard error */
    char prefix[24]; /* empty: none */
    ls_outlet *outlet;
    uint64_t passed_on; /* the outlet's total byte count after the last line of this stream */
} ls_line_source;

/* Returns whether the launcher itself reports the content of this line. */
typedef bool (*ls_lines_filter)(void *user, int rank, const char *line);

typedef struct ls_held_line ls_held_line;

enum { LS_LINES_REMEMBERED = 256 };

/* A line of standard error that was forwarded. */
typedef struct ls_passed_line {
    uint64_t hash;
    int rank;
    bool shown;
    double time;
} ls_passed_line;

typedef struct ls_lines {
    uv_timer_t timer; /* first member: libuv returns a pointer to it */
    bool hold;        /* false: lines pass immediately */
    double hold_seconds;
    ls_held_line *first, *last;
    size_t size;   /* bytes held */
    bool ending;   /* the job has failed or was interrupted */
    int failed;    /* the rank that failed, or -1 */
    double window; /* time on ls_clock_seconds: lines after it are compared with each other */
    ls_lines_filter is_reported;
    void *user;
    ls_passed_line passed[LS_LINES_REMEMBERED]; /* a ring */
    size_t passed_count;
} ls_lines;

void ls_lines_open(ls_lines *lines, uv_loop_t *loop, bool hold, ls_lines_filter is_reported, void *user);

/* Accepts the bytes of one line, with or without its newline. For standard output, accepts several lines. */
void ls_lines_put(ls_lines *lines, ls_line_source *source, const char *data, size_t size);

/* Returns whether the lines of this stream must be passed one by one. */
bool ls_lines_one_by_one(const ls_lines *lines, const ls_line_source *source);

/* Records that the job is interrupted. */
void ls_lines_interrupted(ls_lines *lines);

/*
 * Records that the job failed because of `rank`. Appends `remark`, unless NULL, to the line in which the rank printed
 * its reason: the line with `sentence`, or, if `sentence` is empty, the rank's only line. Returns whether such a line
 * exists.
 */
bool ls_lines_failed(ls_lines *lines, int rank, const char *sentence, const char *remark);

/* Prints all held lines. */
void ls_lines_flush(ls_lines *lines);

/* Prints all held lines and closes. The memory must remain valid until the next iteration of the event loop. */
void ls_lines_close(ls_lines *lines);

#endif
