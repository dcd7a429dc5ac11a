#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/locale.h"
#include "base/text.h"

static _Thread_local int log_rank = -1;
static _Atomic int log_level = -1; /* -1 means not yet read from LOCKSTEP_LOG */
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static ls_log_sink sink;
static void *sink_user;

static const char *const level_names[] = {"debug", "info", "warning", "error", "off"};

static void write_to_stderr(ls_log_level level, int rank, const char *line, void *user) {
    (void)user;
    if (rank >= 0) {
        fprintf(stderr, "lockstep %s (rank %d): %s\n", level_names[level], rank, line);
    } else {
        fprintf(stderr, "lockstep %s: %s\n", level_names[level], line);
    }
}

/* Returns the level with this name, or -1 if there is no such level. */
static int level_of(const char *name) {
    for (int level = LS_LOG_DEBUG; level <= LS_LOG_OFF; level++) {
        if (strcasecmp(name, level_names[level]) == 0) {
            return level;
        }
    }
    return -1;
}

static void warn_of_unknown(const char *name) {
    ls_log_write(LS_LOG_WARNING, "LOCKSTEP_LOG: unknown level '%.31s'; available: %s, %s, %s, %s, %s; using %s", name,
                 level_names[0], level_names[1], level_names[2], level_names[3], level_names[4],
                 level_names[LS_LOG_WARNING]);
}

/* Returns the lowest level that is logged. The first call reads LOCKSTEP_LOG. The thread that sets the level warns
 * if LOCKSTEP_LOG is invalid. */
static int threshold(void) {
    int level = atomic_load(&log_level);
    if (level >= 0) {
        return level;
    }
    const char *name = getenv("LOCKSTEP_LOG");
    const bool given = name != NULL && name[0] != '\0';
    const int named = given ? level_of(name) : (int)LS_LOG_WARNING;
    const int chosen = named >= 0 ? named : (int)LS_LOG_WARNING;
    if (!atomic_compare_exchange_strong(&log_level, &level, chosen)) {
        return level;
    }
    if (named < 0) {
        warn_of_unknown(name);
    }
    return chosen;
}

void ls_log_set_sink(ls_log_sink replacement, void *user) {
    pthread_mutex_lock(&sink_lock);
    sink = replacement;
    sink_user = user;
    pthread_mutex_unlock(&sink_lock);
}

void ls_log_set_level(ls_log_level level) {
    atomic_store(&log_level, (int)level);
}

void ls_log_set_rank(int rank) {
    log_rank = rank;
    if (rank == 0) { /* only rank 0 warns about an invalid LOCKSTEP_LOG, even if it never logs a line */
        (void)threshold();
    }
}

bool ls_log_has_rank(void) {
    return log_rank >= 0;
}

bool ls_log_limit_pass(ls_log_limit *limit) {
    enum { LINES = 10 };
    const uint64_t now = ls_clock_ns();
    if (now >= limit->until &&
        limit->hidden == 0) { /* otherwise the caller first logs how many lines were suppressed */
        limit->until = now + (uint64_t)(LS_LOG_PERIOD * 1e9);
        limit->passed = 0;
    }
    if (limit->passed == LINES) {
        limit->hidden++;
        return false;
    }
    limit->passed++;
    return true;
}

int64_t ls_log_limit_hidden(ls_log_limit *limit) {
    const int64_t hidden = limit->hidden;
    if (hidden == 0 || ls_clock_ns() < limit->until) {
        return 0;
    }
    limit->hidden = 0;
    return hidden;
}

void ls_log_write(ls_log_level level, const char *format, ...) {
    if ((int)level < threshold() || level >= LS_LOG_OFF) {
        return;
    }
    char line[1024];
    va_list arguments;
    const locale_t before = ls_locale_enter();
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ls_locale_leave(before);
    ls_text_make_printable(line);
    pthread_mutex_lock(&sink_lock);
    (sink != NULL ? sink : write_to_stderr)(level, log_rank, line, sink_user);
    pthread_mutex_unlock(&sink_lock);
}

void ls_log_write_text(ls_log_level level, const char *text) {
    if (text != NULL) {
        ls_log_write(level, "%s", text);
    }
}
