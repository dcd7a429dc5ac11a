#include "train/history.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

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
                           "ls_trial: no room for the result \"%s\": a trial keeps at most %d different names", name,
                           LS_RESULT_LIMIT);
        }
        at = entry->count++;
        snprintf(entry->values[at].name, sizeof entry->values[at].name, "%s", name);
    }
    entry->values[at].value = isnan(value) ? (double)NAN : value; /* printf writes a negative NaN as "-nan" */
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

/* ---- all epochs -------------------------------------------------------------------------------------------------- */

/* Grows an array with `used` items to at least `wanted` items, and at least doubles its capacity. Returns the array,
 * or NULL if out of memory or if `wanted` is 0. */
static void *make_room(void *items, size_t *room, size_t used, size_t wanted, size_t width) {
    if (wanted <= *room) {
        return items;
    }
    const size_t larger = wanted > 2 * *room ? wanted : 2 * *room;
    void *moved = larger <= SIZE_MAX / width ? ls_reallocate(items, used * width, larger * width) : NULL;
    *room = moved != NULL ? larger : *room;
    return moved;
}

static ls_status fail_memory(size_t count, size_t width) {
    return ls_fail_memory("ls_trial_run", count * width);
}

static ls_status reserve_names(ls_history *history, size_t bytes) {
    char *names = make_room(history->names, &history->names_room, history->names_size, bytes, 1);
    history->names = names != NULL ? names : history->names;
    return names != NULL || bytes == 0 ? LS_OK : fail_memory(bytes, 1);
}

void ls_history_write_name(FILE *stream, const char *name, char separator) {
    const char special[] = {'"', '\n', '\r', separator, '\0'};
    const bool quoted = strpbrk(name, special) != NULL;
    fputs(quoted ? "\"" : "", stream);
    for (const char *at = name; *at != '\0'; at++) {
        fputs(*at == '"' ? "\"" : "", stream);
        fputc(*at, stream);
    }
    fputs(quoted ? "\"" : "", stream);
}

ls_status ls_history_reserve(ls_history *history, size_t epochs, size_t values) {
    ls_history_epoch *more =
        make_room(history->epochs, &history->epoch_room, (size_t)history->count, epochs, sizeof *more);
    history->epochs = more != NULL ? more : history->epochs;
    if (more == NULL && epochs > 0) {
        return fail_memory(epochs, sizeof *more);
    }
    double *numbers = make_room(history->values, &history->value_room, history->value_count, values, sizeof *numbers);
    history->values = numbers != NULL ? numbers : history->values;
    return numbers != NULL || values == 0 ? LS_OK : fail_memory(values, sizeof *numbers);
}

static const char *names_of(const ls_history *history, const ls_history_epoch *epoch) {
    return epoch->count > 0 ? history->names + epoch->names : "";
}

/* Finds existing copies of these names among the latest names, which are usually the same. */
static bool find_names(const ls_history *history, const char *names, size_t size, size_t *offset) {
    enum { LATEST = 2 * LS_RESULT_LIMIT * LS_METRIC_NAME_LIMIT };
    size_t at = history->names_size > LATEST ? history->names_size - LATEST : 0;
    while (size > 0 && history->names_size - at >= size) {
        const char *found = memmem(history->names + at, history->names_size - at, names, size);
        if (found == NULL) {
            return false;
        }
        *offset = (size_t)(found - history->names);
        if (*offset == 0 || found[-1] == '\0') { /* not part of a longer name */
            return true;
        }
        at = *offset + 1;
    }
    *offset = 0;
    return size == 0;
}

static ls_status place_names(ls_history *history, const ls_history_entry *entry, size_t *offset) {
    char names[LS_RESULT_LIMIT * LS_METRIC_NAME_LIMIT];
    size_t size = 0;
    for (int i = 0; i < entry->count; i++) {
        const size_t length = strlen(entry->values[i].name) + 1;
        memcpy(names + size, entry->values[i].name, length);
        size += length;
    }
    if (find_names(history, names, size, offset)) {
        return LS_OK;
    }
    LS_TRY(reserve_names(history, history->names_size + size));
    *offset = history->names_size;
    memcpy(history->names + *offset, names, size);
    history->names_size += size;
    return LS_OK;
}

ls_status ls_history_append(ls_history *history, const ls_history_entry *entry) {
    ls_history_epoch epoch = {.train_steps = entry->train_steps,
                              .validate_steps = entry->validate_steps,
                              .first = history->value_count,
                              .count = entry->count};
    LS_TRY(ls_history_reserve(history, (size_t)history->count + 1, history->value_count + (size_t)entry->count));
    LS_TRY(place_names(history, entry, &epoch.names));
    for (int i = 0; i < entry->count; i++) {
        history->values[history->value_count++] = entry->values[i].value;
    }
    history->epochs[history->count++] = epoch;
    return LS_OK;
}

void ls_history_entry_of(const ls_history *history, int64_t epoch, ls_history_entry *entry) {
    const ls_history_epoch *from = &history->epochs[epoch];
    const char *name = names_of(history, from);
    entry->train_steps = from->train_steps;
    entry->validate_steps = from->validate_steps;
    entry->count = from->count;
    for (int i = 0; i < from->count; i++, name += strlen(name) + 1) {
        snprintf(entry->values[i].name, sizeof entry->values[i].name, "%s", name);
        entry->values[i].value = history->values[from->first + (size_t)i];
    }
}

ls_status ls_history_extend(ls_history *history, const ls_history_entry *results) {
    if (history->count == 0) {
        return LS_OK;
    }
    ls_history_entry last;
    ls_history_entry_of(history, history->count - 1, &last);
    for (int i = 0; i < results->count; i++) {
        LS_TRY(ls_history_put(&last, results->values[i].name, results->values[i].value));
    }
    LS_TRY(ls_history_reserve(history, 0, history->value_count + (size_t)results->count));
    LS_TRY(reserve_names(history, history->names_size + sizeof last.values));
    history->value_count = history->epochs[--history->count].first;
    return ls_history_append(history, &last); /* ls_history_reserve has already made room for it */
}

ls_status ls_history_copy(ls_history *to, const ls_history *from) {
    *to = (ls_history){.count = 0};
    LS_TRY(ls_history_reserve(to, (size_t)from->count, from->value_count));
    LS_TRY(reserve_names(to, from->names_size));
    to->count = from->count;
    to->value_count = from->value_count;
    to->names_size = from->names_size;
    if (from->count > 0) {
        memcpy(to->epochs, from->epochs, (size_t)from->count * sizeof *to->epochs);
    }
    if (from->value_count > 0) {
        memcpy(to->values, from->values, from->value_count * sizeof *to->values);
        memcpy(to->names, from->names, from->names_size);
    }
    return LS_OK;
}

void ls_history_free(ls_history *history) {
    ls_free(history->epochs);
    ls_free(history->values);
    ls_free(history->names);
    *history = (ls_history){.count = 0};
}

bool ls_history_has(const ls_history *history, const char *name) {
    bool has = false;
    for (size_t at = 0; at < history->names_size && !has; at += strlen(history->names + at) + 1) {
        has = strcmp(history->names + at, name) == 0;
    }
    return has;
}

double ls_history_value(const ls_history *history, int64_t epoch, const char *wanted) {
    const ls_history_epoch *in = &history->epochs[epoch];
    const char *name = names_of(history, in);
    for (int i = 0; wanted != NULL && i < in->count; i++, name += strlen(name) + 1) {
        if (strcmp(name, wanted) == 0) {
            return history->values[in->first + (size_t)i];
        }
    }
    return NAN;
}

/* All epochs contain the same names, except that ls_trial_evaluate adds names to the epoch that is last when it is
 * called. The metric "epoch" is the first column of the file. */
ls_status ls_history_columns(const ls_history *history, ls_history_entry *columns) {
    for (int64_t epoch = 0; epoch < history->count; epoch++) {
        const ls_history_epoch *of = &history->epochs[epoch];
        const char *name = names_of(history, of);
        const bool same = epoch > 0 && of->names == of[-1].names && of->count == of[-1].count;
        for (int i = 0; !same && i < of->count; i++, name += strlen(name) + 1) {
            LS_TRY(strcmp(name, "epoch") != 0 ? ls_history_put(columns, name, 0) : LS_OK);
        }
    }
    return LS_OK;
}
