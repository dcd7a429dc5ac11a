/* Results by name and epoch. */
#ifndef LS_TRAIN_HISTORY_H
#define LS_TRAIN_HISTORY_H

#include <stddef.h>
#include <stdio.h>

#include "base/status.h"

#define LS_METRIC_LIMIT      32
#define LS_METRIC_NAME_LIMIT 64
#define LS_RESULT_LIMIT      (4 * LS_METRIC_LIMIT) /* training, validation and two more labels with every metric */

/* A named result. The name includes its prefix: "val_loss". */
typedef struct ls_metric_value {
    char name[LS_METRIC_NAME_LIMIT];
    double value;
} ls_metric_value;

/* The results of one epoch, with room for the largest number of results. */
typedef struct ls_history_entry {
    ls_metric_value values[LS_RESULT_LIMIT];
    int count;
    int64_t train_steps; /* number of training batches */
    int64_t validate_steps;
} ls_history_entry;

/* The results of one epoch, with room for only its own results. Epochs with the same names share them. */
typedef struct ls_history_epoch {
    int64_t train_steps;
    int64_t validate_steps;
    size_t names; /* offset of the epoch's first name */
    size_t first; /* index of the epoch's first value */
    int count;    /* number of names and values */
} ls_history_epoch;

/* The results of all epochs. */
typedef struct ls_history {
    ls_history_epoch *epochs;
    int64_t count;
    double *values;
    size_t value_count;
    char *names; /* names, each with a terminating NUL */
    size_t names_size;
    size_t epoch_room, value_room, names_room; /* allocated */
} ls_history;

/* Stores a value under its name, and replaces an older value. Fails if there are too many names. */
ls_status ls_history_put(ls_history_entry *entry, const char *name, double value);
double ls_history_get(const ls_history_entry *entry, const char *name);
/* Returns a borrowed pointer to the value, or NULL if the entry does not contain the name. */
const double *ls_history_find(const ls_history_entry *entry, const char *name);

/*
 * ls_history_append appends an epoch with these results. ls_history_extend adds the results to the last epoch, if there
 * is one. On failure, the history is unchanged.
 */
ls_status ls_history_append(ls_history *history, const ls_history_entry *entry);
ls_status ls_history_extend(ls_history *history, const ls_history_entry *results);
/* Returns whether any epoch has a result with this name. */
bool ls_history_has(const ls_history *history, const char *name);
/* Reads the results of epoch `epoch`, which is less than history->count. */
void ls_history_entry_of(const ls_history *history, int64_t epoch, ls_history_entry *entry);
/*
 * Returns the value with this name in epoch `epoch`, which is less than history->count, or NAN if there is no such
 * value.
 */
double ls_history_value(const ls_history *history, int64_t epoch, const char *name);
/* Adds the names of all epochs except "epoch" to `columns`, with value 0. */
ls_status ls_history_columns(const ls_history *history, ls_history_entry *columns);
/* Writes a name as a field of a CSV file: in quotes if it contains the separator, a quote or a line break (RFC
 * 4180). */
void ls_history_write_name(FILE *stream, const char *name, char separator);
/* Reserves room for the given total numbers of epochs and values. Appending them then allocates memory only for
 * names. */
ls_status ls_history_reserve(ls_history *history, size_t epochs, size_t values);
ls_status ls_history_copy(ls_history *to, const ls_history *from);
void ls_history_free(ls_history *history);

#endif
