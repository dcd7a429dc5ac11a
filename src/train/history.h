/* Results by name and epoch. */
#ifndef LS_TRAIN_HISTORY_H
#define LS_TRAIN_HISTORY_H

#include <stddef.h>

#include "base/status.h"

#define LS_METRIC_LIMIT      32
#define LS_METRIC_NAME_LIMIT 64
#define LS_RESULT_LIMIT      (4 * LS_METRIC_LIMIT) /* training, validation and two more labels with every metric */

/* A named result; the name has its prefix: "val_loss". */
typedef struct ls_metric_value {
    char name[LS_METRIC_NAME_LIMIT];
    double value;
} ls_metric_value;

/* The results of one epoch, with room for all that can be measured. */
typedef struct ls_history_entry {
    ls_metric_value values[LS_RESULT_LIMIT];
    int count;
    int64_t train_steps; /* batches of its training */
    int64_t validate_steps;
} ls_history_entry;

/* The results of one epoch, with room for what was measured only. Epochs with the same names share the names. */
typedef struct ls_history_epoch {
    int64_t train_steps;
    int64_t validate_steps;
    size_t names; /* the offset of its first name */
    size_t first; /* the number of its first value */
    int count;    /* of names and values */
} ls_history_epoch;

/* The results of all epochs. */
typedef struct ls_history {
    ls_history_epoch *epochs;
    int64_t count;
    double *values;
    size_t value_count;
    char *names; /* each ends with a zero byte */
    size_t names_size;
    size_t epoch_room, value_room, names_room; /* allocated */
} ls_history;

/* Stores a value under its name, replacing an older value. Fails if there are too many names. */
ls_status ls_history_put(ls_history_entry *entry, const char *name, double value);
double ls_history_get(const ls_history_entry *entry, const char *name);
/* Returns a borrowed pointer to the value, or NULL if the entry has no value of this name. */
const double *ls_history_find(const ls_history_entry *entry, const char *name);

/* Appends an epoch with these results, or adds them to the last epoch, if there is one. On failure the history is as it
 * was. */
ls_status ls_history_append(ls_history *history, const ls_history_entry *entry);
ls_status ls_history_extend(ls_history *history, const ls_history_entry *results);
/* Reads the results of epoch `epoch` < history->count. */
void ls_history_entry_of(const ls_history *history, int64_t epoch, ls_history_entry *entry);
/* Returns the value of this name in epoch `epoch` < history->count, or NAN. */
double ls_history_value(const ls_history *history, int64_t epoch, const char *name);
/* Puts every name that some epoch has into `columns`, except "epoch", with the value 0. */
ls_status ls_history_columns(const ls_history *history, ls_history_entry *columns);
/* Reserves room for this many epochs and values in all, so that appending them allocates only names. */
ls_status ls_history_reserve(ls_history *history, size_t epochs, size_t values);
ls_status ls_history_copy(ls_history *to, const ls_history *from);
void ls_history_free(ls_history *history);

#endif
