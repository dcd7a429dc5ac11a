/*
 * The progress line, in the layout that torchbearer users know from tqdm:
 *
 *     0/3(t):  42%|####      | 197/469 [00:01<00:02, 161.20it/s, loss=0.4521, acc=0.8412]
 *
 * On a terminal it is redrawn in place; elsewhere one line stands for each pass.
 */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "train/trial.h"

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
    snprintf(text, sizeof text, ", %s=%.4g", name, value);
    append(line, text);
}

/* Results over all ranks when `prefix` says under which names they are, else this rank's so far. */
static void append_metrics(const ls_trial *trial, char *line, const char *prefix) {
    for (int i = 0; i < trial->metric_count; i++) {
        char name[LS_METRIC_NAME_LIMIT];
        snprintf(name, sizeof name, "%s%s", prefix != NULL ? prefix : "", trial->metrics[i].name);
        const ls_metric_sum *sum = &trial->sums[i];
        if (prefix != NULL) {
            append_metric(line, name, ls_history_get(&trial->latest, name));
        } else if (sum->weight != 0) {
            append_metric(line, name, sum->sum / sum->weight);
        }
    }
}

static void format_line(const ls_trial *trial, char line[LINE_CAPACITY], const char *prefix) {
    const ls_trial_state *state = &trial->state;
    const double elapsed = (double)(ls_clock_ns() - trial->progress.began) * 1e-9;
    const double share = state->batches > 0 ? (double)state->batch / (double)state->batches : 1;
    const double rate = elapsed > 0 ? (double)(state->batch - trial->progress.first) / elapsed : 0;
    char bar[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = share * BAR_WIDTH >= i + 1 ? '#' : ' ';
    }
    bar[BAR_WIDTH] = '\0';
    char past[16];
    char left[16];
    format_time(elapsed, past);
    format_time(rate > 0 ? (double)(state->batches - state->batch) / rate : 0, left);
    if (state->batches >= 0) {
        snprintf(line, LINE_CAPACITY, "%s: %3.0f%%|%s| %lld/%lld [%s<%s, %.2fit/s", trial->progress.label, share * 100,
                 bar, (long long)state->batch, (long long)state->batches, past, left, rate);
    } else { /* nobody knows how many */
        snprintf(line, LINE_CAPACITY, "%s: %lldit [%s, %.2fit/s", trial->progress.label, (long long)state->batch, past,
                 rate);
    }
    append_metrics(trial, line, prefix);
    append(line, "]");
}

void ls_progress_begin(ls_trial *trial, const char *label) {
    ls_progress *progress = &trial->progress;
    progress->shown = !trial->options.quiet && (trial->state.comm == NULL || ls_comm_rank(trial->state.comm) == 0);
    progress->terminal = progress->shown && isatty(STDOUT_FILENO) == 1;
    progress->began = ls_clock_ns();
    progress->first = trial->state.batch;
    progress->drawn = 0;
    snprintf(progress->label, sizeof progress->label, "%s", label);
}

/* How much of a line fits a row: one that goes on in the next could not be redrawn in place. */
static int row_length(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : LINE_CAPACITY;
}

void ls_progress_step(ls_trial *trial) {
    ls_progress *progress = &trial->progress;
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
