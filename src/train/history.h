/* Results by name and epoch. */
#ifndef LS_TRAIN_HISTORY_H
#define LS_TRAIN_HISTORY_H

#include <stddef.h>

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
    int64_t train_steps; /* number of batches of its training */
    int64_t validate_steps;
} ls_history_entry;

/* The results of one epoch, with room for its own results only. Epochs with the same names share the names. */
typedef struct ls_history_epoch {
    int64_t train_steps;
    int64_t validate_steps;
    size_t names; /* offset of its first name */
    size_t first; /* index of its first value */
    int count;    /* number of names and values */
} ls_history_epoch;

/* The results of all epochs. */
typedef struct ls_history {
    ls_history_epoch *epochs;
    int64_t count;
    double *values;
    size_t value_count;
    char *names; /* names, each with a final NUL */
    size_t names_size;
    size_t epoch_room, value_room, names_room; /* allocated */
} ls_history;

/* Stores a value under its name. Replaces an older value. Fails if there are too many names. */
ls_status ls_history_put(ls_history_entry *entry, const char *name, double value);
double ls_history_get(const ls_history_entry *entry, const char *name);
/* Returns a borrowed pointer to the value. Returns NULL if the entry does not have the name. */
const double *ls_history_find(const ls_history_entry *entry, const char *name);

/*
 * ls_history_append appends an epoch with these results. ls_history_extend adds them to the last epoch, if there is
 * one. On failure, the history does not change.
 */
ls_status ls_history_append(ls_history *history, const ls_history_entry *entry);
ls_status ls_history_extend(ls_history *history, const ls_history_entry *results);
/* Reads the results of epoch `epoch`, which is less than history->count. */
void ls_history_entry_of(const ls_history *history, int64_t epoch, ls_history_entry *entry);
/*
 * Returns the value of this name in epoch `epoch`, which is less than history->count; NAN if the epoch does not have
 * it.
 */
double ls_history_value(const ls_history *history, int64_t epoch, const char *name);
/* Puts the names of all epochs into `columns`, except "epoch", with the value 0. */
ls_status ls_history_columns(const ls_history *history, ls_history_entry *columns);
/* Reserves room for a total number of epochs and values, so that appending them allocates memory for names only. */
ls_status ls_history_reserve(ls_history *history, size_t epochs, size_t values);
ls_status ls_history_copy(ls_history *to, const ls_history *from);
void ls_history_free(ls_history *history);

#endif
