/*
 * Lines of ranks on their way to the launcher's outputs. What ranks say on standard error is held back for a moment.
 * When the job fails in that moment, what several ranks say alike is shown once, what only tells of the end that the
 * launcher tells of itself is not shown, and where the failed rank said in one line why it fails, that line takes in
 * what the launcher would have said about it. Everything else passes unchanged, and what one rank says stays in order.
 */
#ifndef LS_CLI_LINES_H
#define LS_CLI_LINES_H

#include <lockstep/base.h>
#include <uv.h>

#include "cli/outlet.h"

/* One of a rank's two streams. */
typedef struct ls_speaker {
    int rank;
    bool error;      /* standard error */
    char prefix[24]; /* empty: none */
    ls_outlet *outlet;
    uint64_t passed_on; /* the outlet's total after what it said last */
} ls_speaker;

/* Whether the launcher itself tells what this line of the rank does. */
typedef bool (*ls_lines_told)(void *user, int rank, const char *line);

typedef struct ls_held_line ls_held_line;

enum { LS_LINES_REMEMBERED = 256 };

/* A line of standard error that went by. */
typedef struct ls_passed_line {
    uint64_t hash;
    int rank;
    bool shown;
    double time;
} ls_passed_line;

typedef struct ls_lines {
    uv_timer_t timer; /* first: libuv gives it back */
    bool hold;        /* false: everything passes at once */
    double hold_seconds;
    ls_held_line *first, *last;
    size_t size;   /* bytes held */
    bool ending;   /* the job fails or was interrupted */
    int failed;    /* the rank that failed; -1: none */
    double window; /* lines since then are compared: of ls_clock_seconds */
    ls_lines_told told;
    void *user;
    ls_passed_line passed[LS_LINES_REMEMBERED]; /* a ring */
    size_t passed_count;
} ls_lines;

void ls_lines_open(ls_lines *lines, uv_loop_t *loop, bool hold, ls_lines_told told, void *user);

/* Takes the bytes of one line, with or without its end; of standard output also of several. */
void ls_lines_say(ls_lines *lines, ls_speaker *speaker, const char *data, size_t size);

/* Whether the speaker's lines must come one by one. */
bool ls_lines_one_by_one(const ls_lines *lines, const ls_speaker *speaker);

/* The job is being interrupted. */
void ls_lines_interrupted(ls_lines *lines);

/*
 * The job fails because of `rank`. `remark`, unless NULL, is added to the line in which the rank said why: the one that
 * holds `sentence`, or, where that is empty, its only line. Returns whether there is one.
 */
bool ls_lines_failed(ls_lines *lines, int rank, const char *sentence, const char *remark);

/* Writes out all that is held. */
void ls_lines_flush(ls_lines *lines);

/* The same, and closes. The memory must outlive the loop's next turn. */
void ls_lines_close(ls_lines *lines);

#endif
