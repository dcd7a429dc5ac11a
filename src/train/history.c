#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "formats/file.h"
#include "train/trial.h"

static int find_value(const ls_history_entry *entry, const char *name) {
    for (int i = 0; name != NULL && i < entry->count; i++) {
        if (strcmp(entry->values[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

ls_status ls_history_put(ls_history_entry *entry, const char *name, double value) {
    int at = find_value(entry, name);
    if (at < 0) {
        if (entry->count == LS_RESULT_LIMIT) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_trial: no room for the result \"%s\": a trial keeps %d of different names", name,
                           LS_RESULT_LIMIT);
        }
        at = entry->count++;
        snprintf(entry->values[at].name, sizeof entry->values[at].name, "%s", name);
    }
    entry->values[at].value = value;
    return LS_OK;
}

const double *ls_history_find(const ls_history_entry *entry, const char *name) {
    const int at = find_value(entry, name);
    return at >= 0 ? &entry->values[at].value : NULL;
}

double ls_history_get(const ls_history_entry *entry, const char *name) {
    const double *value = ls_history_find(entry, name);
    return value != NULL ? *value : (double)NAN;
}

ls_status ls_history_append(ls_trial *trial, const ls_history_entry *entry) {
    ls_history_entry *history = ls_grow(trial->history, (size_t)trial->history_count, sizeof *history);
    if (history == NULL) {
        return ls_fail_memory("ls_trial_run", ((size_t)trial->history_count + 1) * sizeof *history);
    }
    trial->history = history;
    trial->history[trial->history_count++] = *entry;
    return LS_OK;
}

double ls_trial_metric(const ls_trial *trial, const char *name) {
    return trial != NULL ? ls_history_get(&trial->latest, name) : NAN;
}

int64_t ls_trial_history_count(const ls_trial *trial) {
    return trial != NULL ? trial->history_count : 0;
}

double ls_trial_history(const ls_trial *trial, int64_t epoch, const char *name) {
    const bool known = trial != NULL && epoch >= 0 && epoch < trial->history_count;
    return known ? ls_history_get(&trial->history[epoch], name) : NAN;
}

/* Every name that an epoch has: each measures the same, but ls_trial_evaluate adds to the last of then. The metric
 * "epoch" measures what the first column has. */
static ls_status list_columns(const ls_trial *trial, ls_history_entry *columns) {
    for (int64_t epoch = 0; epoch < trial->history_count; epoch++) {
        for (int i = 0; i < trial->history[epoch].count; i++) {
            const char *name = trial->history[epoch].values[i].name;
            LS_TRY(strcmp(name, "epoch") != 0 ? ls_history_put(columns, name, 0) : LS_OK);
        }
    }
    return LS_OK;
}

static ls_status write_history(const ls_trial *trial, FILE *stream) {
    ls_history_entry columns = {.count = 0};
    LS_TRY(list_columns(trial, &columns));
    fprintf(stream, "epoch");
    for (int i = 0; i < columns.count; i++) {
        fprintf(stream, ",%s", columns.values[i].name);
    }
    fprintf(stream, "\n");
    for (int64_t epoch = 0; epoch < trial->history_count; epoch++) {
        fprintf(stream, "%lld", (long long)epoch);
        for (int i = 0; i < columns.count; i++) {
            fprintf(stream, ",%.9g", ls_history_get(&trial->history[epoch], columns.values[i].name));
        }
        fprintf(stream, "\n");
    }
    return LS_OK;
}

ls_status ls_trial_save_history(const ls_trial *trial, const char *path) {
    if (trial == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_save_history: the trial is NULL");
    }
    ls_new_file file;
    LS_TRY(ls_file_create("ls_trial_save_history", path, &file));
    ls_status status = write_history(trial, file.stream);
    if (status == LS_OK && ferror(file.stream) != 0) {
        status = ls_fail(LS_ERR_IO, "ls_trial_save_history: cannot write %s: is the disk full?", path);
    }
    return ls_file_commit("ls_trial_save_history", &file, status);
}
