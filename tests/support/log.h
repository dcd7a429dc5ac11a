/* For tests of the log: counts the lines of the process, and keeps the last line. */
#ifndef LS_TESTS_SUPPORT_LOG_H
#define LS_TESTS_SUPPORT_LOG_H

#include <stdio.h>

#include <lockstep/base.h>

static int log_lines_noted;
static char log_line_noted[4096];

static inline void log_note(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    (void)user;
    log_lines_noted++;
    snprintf(log_line_noted, sizeof log_line_noted, "%s", line);
}

/* Notes the lines from here on. Forgets earlier lines. */
static inline void log_begin(void) {
    log_lines_noted = 0;
    log_line_noted[0] = '\0';
    ls_log_set_sink(log_note, NULL);
}

/* Lines are written to stderr again. The noted lines remain readable. */
static inline void log_end(void) {
    ls_log_set_sink(NULL, NULL);
}

/* Returns the number of lines since log_begin. */
static inline int log_lines(void) {
    return log_lines_noted;
}

/* Returns the last line since log_begin; "" if there is none. The pointer is borrowed. */
static inline const char *log_last(void) {
    return log_line_noted;
}

#endif
