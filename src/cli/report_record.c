/* Reads the record of a run. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "cli/report.h"

static const char *const call = "lockstep report";

/* Maximum size of a line in bytes, including the final zero byte. */
enum { LINE_LIMIT = 16 << 20 };

/* ---- curves ------------------------------------------------------------------------------------------------------ */

ls_status ls_curve_add(ls_curve *curve, double x, double y) {
    if (curve->count == curve->room) {
        const size_t room = curve->room > 0 ? 2 * curve->room : 64;
        double *numbers = ls_allocate(2 * room * sizeof *numbers);
        if (numbers == NULL) {
            return ls_fail_memory(call, 2 * room * sizeof *numbers);
        }
        if (curve->count > 0) {
            memcpy(numbers, curve->x, curve->count * sizeof *numbers);
            memcpy(numbers + room, curve->y, curve->count * sizeof *numbers);
        }
        ls_free(curve->x);
        curve->x = numbers; /* one block contains both arrays */
        curve->y = numbers + room;
        curve->room = room;
    }
    curve->x[curve->count] = x;
    curve->y[curve->count++] = y;
    return LS_OK;
}

void ls_curve_free(ls_curve *curve) {
    ls_free(curve->x);
    *curve = (ls_curve){.count = 0};
}

/* Finds the first minimum and the first maximum of points `from` to `to`, ignoring numbers that are not finite. */
static void find_extremes(const ls_curve *curve, size_t from, size_t to, size_t *least, size_t *largest) {
    *least = *largest = from;
    for (size_t i = from + 1; i < to; i++) {
        const double y = curve->y[i];
        *least = isfinite(y) && !(curve->y[*least] <= y) ? i : *least;
        *largest = isfinite(y) && !(curve->y[*largest] >= y) ? i : *largest;
    }
}

void ls_curve_reduce(ls_curve *curve, size_t most) {
    if (curve->count <= most) {
        return;
    }
    const size_t last = curve->count - 1, buckets = (most - 2) / 3;
    size_t kept = 1; /* the first point is already in place */
    for (size_t b = 0; b < buckets; b++) {
        const size_t from = 1 + b * (last - 1) / buckets, to = 1 + (b + 1) * (last - 1) / buckets;
        size_t least, largest;
        find_extremes(curve, from, to, &least, &largest);
        bool gap = false;
        for (size_t i = from; i < to; i++) {
            const bool begins_gap = !gap && !isfinite(curve->y[i]);
            if (begins_gap || i == least || i == largest) {
                curve->x[kept] = curve->x[i];
                curve->y[kept++] = curve->y[i];
            }
            gap = gap || begins_gap;
        }
    }
    curve->x[kept] = curve->x[last];
    curve->y[kept] = curve->y[last];
    curve->count = kept + 1;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

double ls_record_number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Clears the results of earlier runs, but keeps the time of the first start. */
static ls_status take_start(ls_run_record *record, json_t *line) {
    if (!(ls_record_number(line, "epoch") >= 0) || !(ls_record_number(line, "step") >= 0)) {
        return LS_ERR_FORMAT;
    }
    (void)json_object_set(line, "time",
                          json_object_get(record->start, "time")); /* changes nothing if there is no time */
    (void)json_object_clear(record->results);
    record->resumes += json_is_true(json_object_get(line, "resumes"));
    record->ended = false;
    json_decref(record->start);
    record->start = json_incref(line);
    return LS_OK;
}

static ls_status take_step(ls_run_record *record, const json_t *line) {
    const double step = ls_record_number(line, "step");
    if (!(step >= 0)) {
        return LS_ERR_FORMAT;
    }
    LS_TRY(ls_curve_add(&record->loss, step, ls_record_number(line, "loss")));
    return ls_curve_add(&record->rate, step, ls_record_number(line, "rate"));
}

static ls_status take_epoch(ls_run_record *record, json_t *line) {
    if (!(ls_record_number(line, "epoch") >= 0) || !json_is_object(json_object_get(line, "metrics"))) {
        return LS_ERR_FORMAT;
    }
    return json_array_append(record->epochs, line) == 0 ? LS_OK : ls_fail_memory(call, sizeof line);
}

static ls_status take_results(ls_run_record *record, const json_t *line, bool ends) {
    record->ended = record->ended || ends;
    json_t *metrics = json_object_get(line, "metrics");
    return json_is_object(metrics) && json_object_update(record->results, metrics) == 0 ? LS_OK : LS_ERR_FORMAT;
}

/* Skips lines of other kinds, which may come from a later version. Fails with LS_ERR_FORMAT, without a message. */
static ls_status take_line(ls_run_record *record, json_t *line) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (kind == NULL || (record->start == NULL && strcmp(kind, "start") != 0)) {
        return LS_ERR_FORMAT;
    }
    return strcmp(kind, "start") == 0     ? take_start(record, line)
           : strcmp(kind, "step") == 0    ? take_step(record, line)
           : strcmp(kind, "epoch") == 0   ? take_epoch(record, line)
           : strcmp(kind, "results") == 0 ? take_results(record, line, false)
           : strcmp(kind, "end") == 0     ? take_results(record, line, true)
                                          : LS_OK;
}

/* Returns whether there is a line. A process that was killed may have written only a part of the last line. */
static bool read_line(FILE *file, char *text, ls_run_record *record) {
    if (fgets(text, LINE_LIMIT, file) == NULL) {
        return false;
    }
    record->incomplete = strchr(text, '\n') == NULL && feof(file) != 0;
    return !record->incomplete;
}

static ls_status read_lines(FILE *file, const char *path, char *text, ls_run_record *record) {
    ls_status status = LS_OK;
    for (long number = 1; status == LS_OK && read_line(file, text, record); number++) {
        json_error_t error = {.text = "the line is too long, or contains a zero byte"};
        json_t *line = strchr(text, '\n') != NULL ? json_loads(text, 0, &error) : NULL;
        status = line != NULL ? take_line(record, line) : LS_ERR_FORMAT;
        if (status == LS_ERR_FORMAT) {
            status = ls_fail(LS_ERR_FORMAT, "%s: %s: line %ld is damaged, or is not a line from ls_run_log%s%.80s",
                             call, path, number, line == NULL ? ": " : "", line == NULL ? error.text : "");
        }
        json_decref(line);
    }
    if (status == LS_OK && ferror(file) != 0) {
        return ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, path, strerror(errno));
    }
    if (status == LS_OK && record->start == NULL) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s %s: has the run started?", call, path,
                       record->incomplete ? "has no complete line" : "is empty");
    }
    return status;
}

static ls_status read_file(FILE *file, const char *path, ls_run_record *record) {
    char *text = ls_allocate(LINE_LIMIT);
    record->epochs = json_array();
    record->results = json_object();
    const ls_status status = text != NULL && record->epochs != NULL && record->results != NULL
                                 ? read_lines(file, path, text, record)
                                 : ls_fail_memory(call, LINE_LIMIT);
    ls_free(text);
    return status;
}

/* Finds the record file, which must be a regular file, because a pipe or a device may have no end. */
static ls_status find_file(const char *path, char file_path[PATH_MAX]) {
    struct stat about;
    bool found = stat(path, &about) == 0;
    const bool folder = found && S_ISDIR(about.st_mode);
    if (snprintf(file_path, PATH_MAX, "%s%s", path, folder ? "/run.jsonl" : "") >= PATH_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path %.100s... is too long", call, path);
    }
    found = found && (!folder || stat(file_path, &about) == 0);
    if (!found && folder && errno == ENOENT) {
        return ls_fail(LS_ERR_IO, "%s: %s has no run.jsonl: add ls_run_log(\"%s\", NULL) to the callbacks of the trial",
                       call, path, path);
    }
    if (!found) {
        return ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, file_path, strerror(errno));
    }
    return S_ISREG(about.st_mode)
               ? LS_OK
               : ls_fail(LS_ERR_IO, "%s: %s is not a regular file: give the folder of ls_run_log", call, file_path);
}

ls_status ls_run_record_read(const char *path, ls_run_record *record) {
    char file_path[PATH_MAX];
    *record = (ls_run_record){.path = path};
    LS_TRY(find_file(path, file_path));
    FILE *file = fopen(file_path, "re");
    if (file == NULL) {
        return ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, file_path, strerror(errno));
    }
    ls_status status = fstat(fileno(file), &record->file) == 0
                           ? LS_OK
                           : ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, file_path, strerror(errno));
    status = status == LS_OK ? read_file(file, file_path, record) : status;
    fclose(file);
    if (status != LS_OK) {
        ls_run_record_free(record);
    }
    return status;
}

void ls_run_record_free(ls_run_record *record) {
    json_decref(record->start);
    json_decref(record->epochs);
    json_decref(record->results);
    ls_curve_free(&record->loss);
    ls_curve_free(&record->rate);
    *record = (ls_run_record){.path = NULL};
}
