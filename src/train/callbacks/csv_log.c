/* Writes a CSV file during a trial. */
#include "train/callbacks/callback.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/locale.h"

static const char *const maker = "ls_csv_log";

typedef struct csv_log {
    ls_csv_log_options options;
    char *path;
    FILE *file;    /* open on rank 0, from the first run on */
    bool begun;    /* the file has a header line, or does not need one */
    int64_t loads; /* ls_trial.loads when the file was opened */
    int64_t start; /* file offset of the trial's own lines */
    ls_state_list listed;
} csv_log;

static ls_status cannot(const csv_log *self, const char *what) {
    return ls_fail(LS_ERR_IO, "%s: cannot %s %s: %s", maker, what, self->path, strerror(errno));
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* The position at which a trial resumes. */
typedef struct position {
    int64_t epoch, batch;
    char separator;
    bool per_batch;
    bool header; /* the next line contains the names of the columns */
} position;

/* Returns whether a line belongs to an epoch or a batch before the position, or was not written by the trial. */
static bool is_before(void *user, const char *line) {
    position *at = user;
    if (at->header) {
        at->header = false;
        return true;
    }
    char *end = NULL;
    const long long first = strtoll(line, &end, 10);
    if (end == line || *end != at->separator) {
        return true;
    }
    const long long second = at->per_batch ? strtoll(end + 1, NULL, 10) : 0;
    return first < at->epoch || (first == at->epoch && at->per_batch && second < at->batch);
}

/*
 * Reopens the file for a trial that resumes. Removes later lines of the previous run, because the trial writes them
 * again.
 */
static ls_status open_again(csv_log *self, int64_t epoch, int64_t batch) {
    self->file = fopen(self->path, "r+e");
    if (self->file == NULL) {
        self->start = 0;
        self->begun = false;
        self->file = errno == ENOENT ? fopen(self->path, "we") : NULL;
        return self->file != NULL ? LS_OK : cannot(self, "open");
    }
    struct stat about;
    const bool known = fstat(fileno(self->file), &about) == 0;
    self->start = known && self->start <= about.st_size ? self->start : 0; /* otherwise it is a different file */
    if (!known || fseek(self->file, (long)self->start, SEEK_SET) != 0) {
        return cannot(self, "read");
    }
    position at = {epoch, batch, self->options.separator, self->options.per_batch,
                   .header = self->start == 0 && !self->options.no_header};
    LS_TRY(ls_callback_cut_lines(maker, self->path, self->file, is_before, &at));
    self->begun = ftell(self->file) > 0;
    return LS_OK;
}

static ls_status open_new(csv_log *self) {
    self->file = fopen(self->path, self->options.append ? "ae" : "we");
    if (self->file == NULL || fseek(self->file, 0, SEEK_END) != 0) {
        return cannot(self, "open");
    }
    self->start = ftell(self->file);
    self->begun = self->start > 0;
    return LS_OK;
}

static void close_file(csv_log *self) {
    if (self->file != NULL) {
        (void)fclose(self->file);
        self->file = NULL;
    }
}

static ls_status on_start(ls_trial_state *state, void *user) {
    csv_log *self = user;
    const ls_trial *trial = state->trial;
    const bool again = self->file != NULL && trial->loads != self->loads && !ls_callback_in_replay(state);
    if (!ls_callback_in_run(state) || !ls_callback_is_first_rank(state) || (self->file != NULL && !again)) {
        return LS_OK;
    }
    close_file(self);
    const int64_t batch = trial->continues ? state->batch : 0;
    const bool goes_on = again || (!ls_callback_in_replay(state) && (trial->epochs_run > 0 || batch > 0));
    const ls_status status = goes_on ? open_again(self, trial->epochs_run, batch) : open_new(self);
    if (status == LS_OK) {
        self->loads = trial->loads;
    } else {
        close_file(self); /* the next run opens it again */
    }
    return status;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static ls_status end_line(csv_log *self) {
    fputc('\n', self->file);
    return fflush(self->file) == 0 ? LS_OK : cannot(self, "write");
}

/* The first column is the epoch number, as in the metric "epoch". */
static bool is_epoch(const char *name) {
    return strcmp(name, "epoch") == 0;
}

static void write_names(csv_log *self, const ls_history_entry *entry) {
    const char separator = self->options.separator;
    fprintf(self->file, self->options.per_batch ? "epoch%cbatch%closs%clearning_rate" : "epoch", separator, separator,
            separator);
    for (int i = 0; entry != NULL && i < entry->count; i++) {
        if (!is_epoch(entry->values[i].name)) {
            fputc(separator, self->file);
            ls_history_write_name(self->file, entry->values[i].name, separator);
        }
    }
    fputc('\n', self->file);
}

static void begin(csv_log *self, const ls_history_entry *entry) {
    if (!self->begun && !self->options.no_header) {
        write_names(self, entry);
    }
    self->begun = true;
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    csv_log *self = user;
    double loss;
    if (!self->options.per_batch || ls_callback_in_replay(state)) {
        return LS_OK;
    }
    LS_TRY(ls_callback_batch_loss(state, &loss));
    if (self->file == NULL) {
        return LS_OK;
    }
    const char separator = self->options.separator;
    const double rate = state->optimizer != NULL ? ls_optimizer_learning_rate(state->optimizer, 0) : NAN;
    begin(self, NULL);
    ls_fprintf(self->file, "%lld%c%lld%c%.9g%c%.9g", (long long)state->epoch, separator, (long long)state->batch,
               separator, loss, separator, rate);
    return end_line(self);
}

static ls_status on_end_epoch(ls_trial_state *state, void *user) {
    csv_log *self = user;
    const ls_trial *trial = state->trial;
    if (self->options.per_batch || self->file == NULL || !ls_callback_in_run(state)) {
        return LS_OK;
    }
    /* All epochs of a run have the same metrics. Results of ls_trial_evaluate are added later. */
    const bool replay = ls_callback_in_replay(state);
    ls_history_entry columns;
    ls_history_entry_of(&trial->history, replay ? 0 : trial->history.count - 1, &columns);
    begin(self, &columns);
    fprintf(self->file, "%lld", (long long)state->epoch);
    for (int i = 0; i < columns.count; i++) {
        const char *name = columns.values[i].name;
        if (!is_epoch(name)) {
            const double value = replay ? ls_history_get(&trial->latest, name) : columns.values[i].value;
            ls_fprintf(self->file, "%c%.9g", self->options.separator, value);
        }
    }
    return end_line(self);
}

static ls_status list(void *user, ls_state_list *list) {
    return ls_callback_list_count(list, "start", &((csv_log *)user)->start);
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_callback_state(user, list, &((csv_log *)user)->listed, tensors, count);
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    return ls_callback_set_state(maker, user, list, tensors, count);
}

/* If the log has no lines for batches, it does not communicate. */
static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_csv_log_options, per_batch), {.name = NULL}};
    const csv_log *self = user;
    ls_describe(text, size, self->options.per_batch ? maker : "", fields, &self->options);
}

static void release(void *user) {
    csv_log *self = user;
    close_file(self);
    ls_state_forget(&self->listed);
    ls_free(self->path);
    ls_free(self);
}

static ls_status check(const char *path, char separator) {
    if (path == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path is NULL", maker);
    }
    return separator == 0 || strchr("\n\r\".-+0123456789einfa", separator) == NULL /* as in 1e-3, -inf and nan */
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the separator '%c' can occur in a field", maker, separator);
}

ls_callback *ls_csv_log(const char *path, const ls_csv_log_options *options) {
    static const ls_csv_log_options defaults;
    options = options != NULL ? options : &defaults;
    if (check(path, options->separator) != LS_OK) {
        return NULL;
    }
    csv_log *self = ls_allocate_for(maker, 1, sizeof *self);
    char *copy = self != NULL ? ls_duplicate_string(path) : NULL;
    if (copy == NULL) {
        (void)ls_fail_memory(maker, strlen(path) + 1);
        ls_free(self);
        return NULL;
    }
    *self = (csv_log){.options = *options, .path = copy};
    self->options.separator = options->separator != 0 ? options->separator : ',';
    return ls_callback_make(&(ls_callback_hooks){.on_start = on_start,
                                                 .on_step_training = on_step_training,
                                                 .on_end_epoch = on_end_epoch,
                                                 .name = "csv_log",
                                                 .describe = describe,
                                                 .state = state,
                                                 .set_state = set_state,
                                                 .release = release},
                            self);
}
