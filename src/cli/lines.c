#include "cli/lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"

enum { MOST_HELD = 1 << 16 };

struct ls_held_line {
    ls_held_line *next;
    ls_line_source *source;
    double time;
    const char *remark; /* NULL if there is no remark */
    size_t size;
    char data[];
};

/* ---- passing on -------------------------------------------------------------------------------------------------- */

static void pass(ls_line_source *source, const char *data, size_t size) {
    ls_outlet *outlet = source->outlet;
    ls_outlet_end_line(outlet, source);
    if (source->prefix[0] != '\0' && outlet->unfinished == NULL) {
        ls_outlet_put(outlet, source->prefix, strlen(source->prefix));
    }
    ls_outlet_put(outlet, data, size);
    source->passed_on = outlet->total;
    outlet->unfinished = data[size - 1] == '\n' ? NULL : source;
}

/* Returns whether another rank has printed the line as often as this rank, including the current line. */
static bool was_printed(const ls_lines *lines, uint64_t hash, int rank) {
    int own = 1, shown = 0;
    for (size_t i = 0; i < lines->passed_count && i < LS_LINES_REMEMBERED; i++) {
        const ls_passed_line *line = &lines->passed[i];
        if (line->hash == hash && line->time >= lines->window) {
            own += line->rank == rank;
            shown += line->shown;
        }
    }
    return shown >= own;
}

static bool is_worth_showing(const ls_lines *lines, const ls_held_line *line, uint64_t hash) {
    const int rank = line->source->rank;
    if (!lines->ending || line->remark != NULL) {
        return true;
    }
    if (rank != lines->failed && lines->is_reported(lines->user, rank, line->data)) {
        return false;
    }
    return lines->failed < 0 || !was_printed(lines, hash, rank);
}

/* Prints or drops the oldest held line. */
static void release_first(ls_lines *lines) {
    ls_held_line *line = lines->first;
    ls_line_source *source = line->source;
    lines->first = line->next;
    lines->last = lines->first != NULL ? lines->last : NULL;
    lines->size -= line->size;
    bool show = true;
    if (source->error) {
        const uint64_t hash = ls_hash(LS_HASH_START, line->data, line->size);
        show = is_worth_showing(lines, line, hash);
        lines->passed[lines->passed_count++ % LS_LINES_REMEMBERED] =
            (ls_passed_line){.hash = hash, .rank = source->rank, .shown = show, .time = line->time};
    }
    if (show && line->remark != NULL) {
        const size_t text = line->size - (line->data[line->size - 1] == '\n');
        pass(source, line->data, text);
        pass(source, line->remark, strlen(line->remark));
        pass(source, "\n", 1);
    } else if (show) {
        pass(source, line->data, line->size);
    }
    ls_free(line);
}

/* Releases the lines that arrived before `limit`. */
static void release(ls_lines *lines, double limit) {
    ls_outlet *outlet = NULL;
    while (lines->first != NULL && lines->first->time <= limit) {
        if (outlet != NULL && outlet != lines->first->source->outlet) {
            ls_outlet_flush(outlet);
        }
        outlet = lines->first->source->outlet;
        release_first(lines);
    }
    if (outlet != NULL) {
        ls_outlet_flush(outlet);
    }
}

void ls_lines_flush(ls_lines *lines) {
    release(lines, INFINITY);
}

/* ---- holding back ------------------------------------------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer) {
    ls_lines *lines = (ls_lines *)timer;
    const double limit = ls_clock_seconds() - lines->hold_seconds;
    release(lines, limit);
    if (lines->first != NULL) {
        uv_timer_start(timer, on_timer, (uint64_t)((lines->first->time - limit) * 1e3) + 1, 0);
    }
}

/* Holds back a line. Returns false if out of memory. */
static bool hold_back(ls_lines *lines, ls_line_source *source, const char *data, size_t size) {
    ls_held_line *line = ls_allocate(sizeof *line + size + 1);
    if (line == NULL) {
        return false;
    }
    *line = (ls_held_line){.source = source, .time = ls_clock_seconds(), .size = size};
    memcpy(line->data, data, size);
    line->data[size] = '\0';
    if (lines->first == NULL) {
        lines->first = line;
        uv_timer_start(&lines->timer, on_timer, (uint64_t)(lines->hold_seconds * 1e3), 0);
    } else {
        lines->last->next = line;
    }
    lines->last = line;
    lines->size += size;
    return true;
}

static bool waits(const ls_lines *lines, int rank) {
    const ls_held_line *line = lines->first;
    while (line != NULL && line->source->rank != rank) {
        line = line->next;
    }
    return line != NULL;
}

bool ls_lines_one_by_one(const ls_lines *lines, const ls_line_source *source) {
    return source->prefix[0] != '\0' || (lines->hold && source->error);
}

void ls_lines_put(ls_lines *lines, ls_line_source *source, const char *data, size_t size) {
    if (size == 0) {
        return;
    }
    const bool wanted = lines->hold && (source->error || waits(lines, source->rank));
    if (!wanted) {
        pass(source, data, size);
        return;
    }
    if (lines->size + size > MOST_HELD) { /* a rank that prints this much is not reporting a failure */
        ls_lines_flush(lines);
    }
    if (size > MOST_HELD || !hold_back(lines, source, data, size)) {
        ls_lines_flush(lines);
        pass(source, data, size);
    }
}

/* ---- the end of the job ------------------------------------------------------------------------------------------ */

void ls_lines_interrupted(ls_lines *lines) {
    lines->ending = true;
}

/*
 * Returns the line in which the rank prints `sentence`. If `sentence` is empty, returns the rank's only recent line.
 * Returns NULL if the line is no longer held.
 */
static const ls_held_line *find_reason(const ls_lines *lines, int rank, const char *sentence) {
    const ls_held_line *found = NULL;
    int count = 0;
    for (size_t i = 0; i < lines->passed_count && i < LS_LINES_REMEMBERED; i++) {
        count += lines->passed[i].rank == rank && lines->passed[i].time >= lines->window;
    }
    for (const ls_held_line *line = lines->first; line != NULL; line = line->next) {
        if (line->source->rank == rank && line->source->error && strstr(line->data, sentence) != NULL) {
            found = line;
            count++;
        }
    }
    const bool says = found != NULL && strspn(found->data, " \t\r\n") < found->size; /* ignores blank lines */
    return says && (count == 1 || sentence[0] != '\0') ? found : NULL;
}

bool ls_lines_failed(ls_lines *lines, int rank, const char *sentence, const char *remark) {
    lines->ending = true;
    lines->failed = rank;
    lines->window = ls_clock_seconds() - 2 * lines->hold_seconds;
    const ls_held_line *reason = remark != NULL ? find_reason(lines, rank, sentence) : NULL;
    if (reason == NULL) {
        return false;
    }
    ls_held_line *copy = lines->first; /* the first copy is shown */
    while (!copy->source->error || copy->size != reason->size || memcmp(copy->data, reason->data, copy->size) != 0) {
        copy = copy->next;
    }
    copy->remark = remark;
    return true;
}

void ls_lines_open(ls_lines *lines, uv_loop_t *loop, bool hold, ls_lines_filter is_reported, void *user) {
    uv_timer_init(loop, &lines->timer);
    lines->hold = hold;
    lines->hold_seconds =
        0.3; /* long enough for a rank to exit after it has printed its reason, and too short for a user to notice */
    lines->failed = -1;
    lines->is_reported = is_reported;
    lines->user = user;
}

void ls_lines_close(ls_lines *lines) {
    ls_lines_flush(lines);
    uv_close((uv_handle_t *)&lines->timer, NULL);
}
