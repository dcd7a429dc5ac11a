#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static _Thread_local int log_rank = -1;
static _Atomic int log_level = -1; /* -1: not yet read from LOCKSTEP_LOG */
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

static ls_log_level level_from_environment(void) {
    const char *name = getenv("LOCKSTEP_LOG");
    for (int level = LS_LOG_DEBUG; name != NULL && level <= LS_LOG_OFF; level++) {
        if (strcasecmp(name, level_names[level]) == 0) {
            return (ls_log_level)level;
        }
    }
    return LS_LOG_WARNING;
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
}

void ls_log_write(ls_log_level level, const char *format, ...) {
    int threshold = atomic_load(&log_level);
    if (threshold < 0) {
        threshold = (int)level_from_environment();
        atomic_store(&log_level, threshold);
    }
    if ((int)level < threshold || level >= LS_LOG_OFF) {
        return;
    }
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&sink_lock);
    (sink != NULL ? sink : write_to_stderr)(level, log_rank, line, sink_user);
    pthread_mutex_unlock(&sink_lock);
}
