/* Reads the record of a run. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "cli/report.h"

static const char *const call = "lockstep report";

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
        curve->x = numbers; /* one block of both arrays */
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

static void keep(ls_curve *curve, size_t *kept, size_t i) {
    curve->x[*kept] = curve->x[i];
    curve->y[(*kept)++] = curve->y[i];
}

/* Finds the first minimum and the first maximum of points `from` to `to`; numbers that are not finite do not count. */
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
    const size_t last = curve->count - 1, buckets = (most - 2) / 2;
    size_t kept = 1; /* the first point is in its place */
    for (size_t b = 0; b < buckets; b++) {
        const size_t from = 1 + b * (last - 1) / buckets, to = 1 + (b + 1) * (last - 1) / buckets;
        size_t least, largest;
        find_extremes(curve, from, to, &least, &largest);
        keep(curve, &kept, least < largest ? least : largest);
        if (least != largest) {
            keep(curve, &kept, least < largest ? largest : least);
        }
    }
    keep(curve, &kept, last);
    curve->count = kept;
}

/* Removes the points after this step, which a run that resumes computes again. */
static void cut_after(ls_curve *curve, double step) {
    while (curve->count > 0 && curve->x[curve->count - 1] > step) {
        curve->count--;
    }
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Returns a number of an object; NAN if it is null or missing. */
static double number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static ls_status take_start(ls_run_record *record, json_t *line) {
    const double epoch = number_of(line, "epoch"), step = number_of(line, "step");
    if (!(epoch >= 0) || !(step >= 0)) {
        return LS_ERR_FORMAT;
    }
    size_t count = json_array_size(record->epochs);
    while (count > 0 && !(number_of(json_array_get(record->epochs, count - 1), "epoch") < epoch)) {
        (void)json_array_remove(record->epochs, --count);
    }
    cut_after(&record->loss, step);
    cut_after(&record->rate, step);
    record->resumes += record->start != NULL;
    record->ended = false;
    json_decref(record->start);
    record->start = json_incref(line);
    return LS_OK;
}

static ls_status take_step(ls_run_record *record, const json_t *line) {
    const double step = number_of(line, "step");
    if (!(step >= 0)) {
        return LS_ERR_FORMAT;
    }
    LS_TRY(ls_curve_add(&record->loss, step, number_of(line, "loss")));
    return ls_curve_add(&record->rate, step, number_of(line, "rate"));
}

static ls_status take_epoch(ls_run_record *record, json_t *line) {
    if (!(number_of(line, "epoch") >= 0) || !json_is_object(json_object_get(line, "metrics"))) {
        return LS_ERR_FORMAT;
    }
    return json_array_append(record->epochs, line) == 0 ? LS_OK : ls_fail_memory(call, sizeof line);
}

static ls_status take_results(ls_run_record *record, const json_t *line, bool ends) {
    record->ended = record->ended || ends;
    json_t *metrics = json_object_get(line, "metrics");
    return json_is_object(metrics) && json_object_update(record->results, metrics) == 0 ? LS_OK : LS_ERR_FORMAT;
}

/* Lines of other kinds are skipped: they may come from a later version. Fails with LS_ERR_FORMAT, without a message. */
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

static ls_status read_lines(FILE *file, const char *path, ls_run_record *record) {
    char *text = NULL;
    size_t room = 0;
    ssize_t length;
    ls_status status = LS_OK;
    for (long number = 1; status == LS_OK && (length = getline(&text, &room, file)) > 0; number++) {
        if (text[length - 1] != '\n') { /* the process was killed while it wrote the line */
            record->incomplete = true;
            break;
        }
        json_error_t error;
        json_t *line = json_loadb(text, (size_t)length, 0, &error);
        status = line != NULL ? take_line(record, line) : LS_ERR_FORMAT;
        if (status == LS_ERR_FORMAT) {
            status = ls_fail(LS_ERR_FORMAT, "%s: %s: line %ld is damaged, or is not a line of ls_run_log%s%.80s", call,
                             path, number, line == NULL ? ": " : "", line == NULL ? error.text : "");
        }
        json_decref(line);
    }
    free(text);
    if (status == LS_OK && ferror(file) != 0) {
        return ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, path, strerror(errno));
    }
    if (status == LS_OK && record->start == NULL) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s is empty: has the run begun?", call, path);
    }
    return status;
}

static ls_status open_record(const char *path, char file_path[PATH_MAX], FILE **file) {
    struct stat about;
    if (stat(path, &about) != 0) {
        return ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, path, strerror(errno));
    }
    const bool folder = S_ISDIR(about.st_mode);
    if (snprintf(file_path, PATH_MAX, "%s%s", path, folder ? "/run.jsonl" : "") >= PATH_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path %.100s... is too long", call, path);
    }
    *file = fopen(file_path, "re");
    if (*file == NULL && folder && errno == ENOENT) {
        return ls_fail(
            LS_ERR_IO,
            "%s: %s is not the folder of a run: it has no run.jsonl, which ls_run_log writes (--report of the "
            "examples)",
            call, path);
    }
    return *file != NULL ? LS_OK : ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, file_path, strerror(errno));
}

ls_status ls_run_record_read(const char *path, ls_run_record *record) {
    char file_path[PATH_MAX];
    FILE *file = NULL;
    *record = (ls_run_record){.path = path};
    LS_TRY(open_record(path, file_path, &file));
    record->epochs = json_array();
    record->results = json_object();
    const ls_status status = record->epochs != NULL && record->results != NULL ? read_lines(file, file_path, record)
                                                                               : ls_fail_memory(call, sizeof *record);
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
