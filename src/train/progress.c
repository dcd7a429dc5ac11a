/*
 * The progress line, in the tqdm layout that torchbearer users know:
 *
 *     0/3(t):  42%|####      | 197/469 [00:01<00:02, 161.20it/s, loss=0.4521, acc=0.8412,
 *                                                 20634 samples/s]
 *
 * On a terminal, the line is redrawn in place. Otherwise each pass prints one line.
 */
#include "train/progress.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/log.h"

enum { BAR_WIDTH = 10, DRAW_INTERVAL_NS = 100000000, LINE_CAPACITY = 512 };

static void format_time(double seconds, char text[16]) {
    const unsigned whole = seconds > 0 && seconds < 359999 ? (unsigned)seconds : 0;
    const unsigned hours = whole / 3600 % 100;
    if (hours > 0) {
        snprintf(text, 16, "%u:%02u:%02u", hours, whole / 60 % 60, whole % 60);
    } else {
        snprintf(text, 16, "%02u:%02u", whole / 60 % 60, whole % 60);
    }
}

static void append(char *line, const char *text) {
    const size_t length = strlen(line);
    snprintf(line + length, LINE_CAPACITY - length, "%s", text);
}

static void append_metric(char *line, const char *name, double value) {
    char text[96];
    ls_snprintf(text, sizeof text, ", %s=%.4g", name, value);
    append(line, text);
}

/*
 * Appends the results of all ranks whose names begin with `prefix`. If `prefix` is NULL, appends this rank's metrics so
 * far.
 */
static void append_metrics(const ls_trial *trial, char *line, const char *prefix) {
    const char *metric;
    for (int i = 0; (metric = ls_metrics_name(trial, i)) != NULL; i++) {
        char name[LS_METRIC_NAME_LIMIT];
        snprintf(name, sizeof name, "%s%s", prefix != NULL ? prefix : "", metric);
        const double value = prefix != NULL ? ls_history_get(&trial->latest, name) : ls_metrics_so_far(trial, i);
        if (prefix != NULL || !isnan(value)) {
            append_metric(line, name, value);
        }
    }
}

/* Formats `done` of `total` batches or epochs. A `total` of -1 means unknown. */
static void format_bar(const ls_progress *progress, char line[LINE_CAPACITY], int64_t done, int64_t total,
                       double elapsed) {
    const double share = total > 0 ? (double)done / (double)total : 1;
    const double rate = elapsed > 0 ? (double)(done - progress->first) / elapsed : 0;
    char bar[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = share * BAR_WIDTH >= i + 1 ? '#' : ' ';
    }
    bar[BAR_WIDTH] = '\0';
    char past[16];
    char left[16];
    format_time(elapsed, past);
    format_time(rate > 0 ? (double)(total - done) / rate : 0, left);
    if (total >= 0) {
        ls_snprintf(line, LINE_CAPACITY, "%s: %3.0f%%|%s| %lld/%lld [%s<%s, %.2fit/s", progress->label, share * 100,
                    bar, (long long)done, (long long)total, past, left, rate);
    } else {
        ls_snprintf(line, LINE_CAPACITY, "%s: %lldit [%s, %.2fit/s", progress->label, (long long)done, past, rate);
    }
}

static double elapsed_of(const ls_progress *progress) {
    return (double)(ls_clock_ns() - progress->began) * 1e-9;
}

static void format_line(const ls_trial *trial, char line[LINE_CAPACITY], const char *prefix) {
    const double elapsed = elapsed_of(&trial->progress);
    char samples[48]; /* samples of all ranks */
    format_bar(&trial->progress, line, trial->state.batch, trial->state.batches, elapsed);
    append_metrics(trial, line, prefix);
    snprintf(samples, sizeof samples, ", %.0f samples/s]", elapsed > 0 ? (double)trial->progress.samples / elapsed : 0);
    append(line, samples);
}

static bool is_shown(const ls_trial *trial) {
    return !trial->options.quiet && ls_trial_rank(&trial->state) == 0;
}

void ls_progress_resumed(const ls_trial *trial, const char *path) {
    char line[PATH_MAX + 128];
    if (path[0] != '\0') {
        snprintf(line, sizeof line, "resumed from %s: step %lld, epoch %lld, batch %lld", path,
                 (long long)trial->state.step, (long long)trial->state.epoch, (long long)trial->state.batch);
    } else {
        snprintf(line, sizeof line, "no checkpoint in %s yet: training starts from the beginning",
                 trial->options.resume);
    }
    if (is_shown(trial)) {
        printf("%s\n", line);
        fflush(stdout);
    } else if (ls_trial_rank(&trial->state) == 0) {
        ls_log_write(LS_LOG_INFO, "%s", line);
    }
}

static void begin_bar(const ls_trial *trial, ls_progress *progress, const char *label, int64_t first) {
    progress->shown = is_shown(trial);
    progress->terminal = progress->shown && isatty(STDOUT_FILENO) == 1;
    progress->began = ls_clock_ns();
    progress->first = first;
    progress->samples = 0;
    progress->drawn = 0;
    snprintf(progress->label, sizeof progress->label, "%s", label);
}

void ls_progress_begin(ls_trial *trial, const char *label) {
    begin_bar(trial, &trial->progress, label, trial->state.batch);
    if (trial->options.bar_per_run && trial->running) {
        trial->progress.shown = trial->progress.terminal = false; /* the run's bar occupies the line */
    }
}

/* Returns the width of the terminal. A line that wraps could not be redrawn in place. */
static int row_length(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : LINE_CAPACITY;
}

void ls_progress_step(ls_trial *trial) {
    ls_progress *progress = &trial->progress;
    progress->samples += trial->state.global_count;
    if (!progress->terminal) {
        return;
    }
    const uint64_t now = ls_clock_ns();
    if (now - progress->drawn < DRAW_INTERVAL_NS) {
        return;
    }
    progress->drawn = now;
    char line[LINE_CAPACITY];
    format_line(trial, line, NULL);
    printf("\r%.*s\033[K", row_length(), line);
    fflush(stdout);
}

void ls_progress_end(ls_trial *trial, const char *prefix) {
    if (!trial->progress.shown) {
        return;
    }
    char line[LINE_CAPACITY];
    format_line(trial, line, prefix);
    printf(trial->progress.terminal ? "\r%s\033[K\n" : "%s\n", line);
    fflush(stdout);
}

/* ---- the line of a run ------------------------------------------------------------------------------------------- */

static void draw_run(const ls_trial *trial, const char *end) {
    char line[LINE_CAPACITY];
    format_bar(&trial->run_progress, line, trial->epochs_run, trial->state.epochs, elapsed_of(&trial->run_progress));
    ls_history_entry last = {.count = 0};
    if (trial->history.count > 0) {
        ls_history_entry_of(&trial->history, trial->history.count - 1, &last);
    }
    for (int i = 0; i < last.count; i++) {
        append_metric(line, last.values[i].name, last.values[i].value);
    }
    append(line, "]");
    if (trial->run_progress.terminal) {
        printf("\r%.*s\033[K%s", row_length(), line, end);
    } else {
        printf("%s\n", line);
    }
    fflush(stdout);
}

void ls_progress_begin_run(ls_trial *trial) {
    begin_bar(trial, &trial->run_progress, "epochs", trial->epochs_run);
    trial->run_progress.shown = trial->run_progress.shown && trial->options.bar_per_run;
}

void ls_progress_epoch(ls_trial *trial) {
    if (trial->run_progress.shown && trial->run_progress.terminal) {
        draw_run(trial, "");
    }
}

void ls_progress_end_run(ls_trial *trial) {
    if (trial->run_progress.shown) {
        draw_run(trial, "\n");
    }
}
