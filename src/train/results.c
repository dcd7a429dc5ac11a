/* The history of a trial as a file, and the number of its epochs. */
#include <stdio.h>

#include "base/locale.h"
#include "formats/file.h"
#include "train/trial.h"

int64_t ls_trial_history_count(const ls_trial *trial) {
    return trial != NULL ? trial->history.count : 0;
}

static ls_status write_history(const ls_trial *trial, FILE *stream) {
    const ls_history *history = &trial->history;
    ls_history_entry columns = {.count = 0};
    LS_TRY(ls_history_columns(history, &columns));
    fprintf(stream, "epoch");
    for (int i = 0; i < columns.count; i++) {
        fputc(',', stream);
        ls_history_write_name(stream, columns.values[i].name, ',');
    }
    fprintf(stream, "\n");
    for (int64_t epoch = 0; epoch < history->count; epoch++) {
        fprintf(stream, "%lld", (long long)epoch);
        for (int i = 0; i < columns.count; i++) {
            ls_fprintf(stream, ",%.9g", ls_history_value(history, epoch, columns.values[i].name));
        }
        fprintf(stream, "\n");
    }
    return LS_OK;
}

ls_status ls_trial_write_history(const ls_trial *trial, const char *path) {
    if (trial == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_write_history: the trial is NULL");
    }
    LS_TRY(ls_trial_check_here("ls_trial_write_history", trial));
    ls_new_file file;
    LS_TRY(ls_file_create("ls_trial_write_history", path, &file));
    ls_status status = write_history(trial, file.stream);
    if (status == LS_OK && ferror(file.stream) != 0) {
        status = ls_fail(LS_ERR_IO, "ls_trial_write_history: cannot write %s: is the disk full?", path);
    }
    return ls_file_commit("ls_trial_write_history", &file, status);
}
