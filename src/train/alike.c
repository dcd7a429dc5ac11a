/*
 * Compares the setups of the ranks of a trial. Each rank describes its setup as text, with one line per object, and the
 * ranks compare a hash of this text. If the hashes differ, the ranks exchange the texts and report the first line that
 * differs.
 */
#include "train/alike.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "data/loader.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/outer.h"
#include "parallel/parallel.h"
#include "parallel/pipeline.h"
#include "train/checkpoint/checkpoint.h"

enum { LINE_LIMIT = 512 };

/* The first character of a line gives its subject. */
enum { EPOCHS = 'a', TRAINING, VALIDATION, CHECKPOINTS, OUTER, OPTIMIZER, METRIC, CALLBACK, NOTHING };

static const char *const differ[] = {
    [EPOCHS - 'a'] = "the ranks' epochs in ls_trial_run differ",
    [TRAINING - 'a'] = "the ranks' loaders differ for training",
    [VALIDATION - 'a'] = "the ranks' loaders differ for validation",
    [CHECKPOINTS - 'a'] = "the ranks' .checkpoint options differ, or some ranks have none",
    [OUTER - 'a'] = "the ranks' .outer options differ, or some ranks have none",
    [OPTIMIZER - 'a'] = "the ranks' optimizers differ",
    [METRIC - 'a'] = "the ranks' metrics differ",
    [CALLBACK - 'a'] = "the ranks' callbacks differ",
    [NOTHING - 'a'] = "the ranks' setups differ",
};

typedef struct text {
    char *bytes; /* lines, with a terminating NUL */
    size_t length;
} text;

static ls_status add_line(text *own, char subject, char line[LINE_LIMIT]) {
    ls_text_make_printable(line);
    const size_t length = strlen(line) + 2;
    char *bytes = ls_allocate(own->length + length + 1);
    if (bytes == NULL) {
        return ls_fail_memory("ls_trial", own->length + length + 1);
    }
    snprintf(bytes, own->length + length + 1, "%s%c%s\n", own->bytes != NULL ? own->bytes : "", subject, line);
    ls_free(own->bytes);
    *own = (text){.bytes = bytes, .length = own->length + length};
    return LS_OK;
}

static ls_status add_loaders(const ls_trial *trial, text *own) {
    const int ranks = ls_trial_size(&trial->state);
    char line[LINE_LIMIT];
    ls_loader_describe(trial->options.train, ranks, line, sizeof line);
    LS_TRY(add_line(own, TRAINING, line));
    ls_loader_describe(trial->options.validate, ranks, line, sizeof line);
    return add_line(own, VALIDATION, line);
}

/* The stages of a pipeline may have different optimizers, and so may ranks with a user step. */
static ls_status add_optimizer(const ls_trial *trial, text *own) {
    const bool alike = trial->state.model->type != &ls_pipeline_type && !trial->watch.user_step;
    for (int g = 0; alike && g < ls_optimizer_group_count(trial->options.optimizer); g++) {
        char line[LINE_LIMIT];
        ls_optimizer_describe(trial->options.optimizer, g, line, sizeof line);
        LS_TRY(add_line(own, OPTIMIZER, line));
    }
    return LS_OK;
}

static ls_status add_metrics(const ls_trial *trial, text *own) {
    char line[LINE_LIMIT];
    for (int i = 0; ls_metrics_describe(trial, i, line, sizeof line); i++) {
        LS_TRY(add_line(own, METRIC, line));
    }
    return LS_OK;
}

static ls_status add_callbacks(const ls_trial *trial, text *own) {
    for (int i = 0; i < trial->options.callback_count; i++) {
        const ls_callback *callback = trial->own_callbacks[i];
        char line[LINE_LIMIT] = "";
        if (callback->hooks.describe != NULL) {
            callback->hooks.describe(callback->user, line, sizeof line);
            line[sizeof line - 1] = '\0';
        }
        LS_TRY(line[0] != '\0' ? add_line(own, CALLBACK, line) : LS_OK);
    }
    return LS_OK;
}

static ls_status write_all(const ls_trial *trial, text *own) {
    LS_TRY(add_loaders(trial, own));
    if (trial->checkpointer != NULL) {
        char line[LINE_LIMIT];
        ls_checkpointer_describe(trial->checkpointer, line, sizeof line);
        LS_TRY(add_line(own, CHECKPOINTS, line));
    }
    if (trial->options.outer != NULL) {
        char line[LINE_LIMIT];
        ls_outer_describe(trial->options.outer, line, sizeof line);
        LS_TRY(add_line(own, OUTER, line));
    }
    LS_TRY(add_optimizer(trial, own));
    LS_TRY(add_metrics(trial, own));
    return add_callbacks(trial, own);
}

/* ---- a difference ------------------------------------------------------------------------------------------------ */

static ls_status find_rank(ls_comm *comm, int64_t hash, int *rank) {
    const size_t ranks = (size_t)ls_comm_size(comm);
    int64_t *hashes = ls_allocate_for("ls_trial", ranks, sizeof *hashes);
    LS_TRY(ls_made(hashes));
    const ls_status status = ls_comm_allgather(comm, &hash, hashes, 1, LS_I64, NULL);
    for (*rank = 1; *rank + 1 < (int)ranks && hashes[*rank] == hashes[0];) {
        (*rank)++;
    }
    ls_free(hashes);
    return status;
}

/* Returns a copy of the text of rank `rank`. Returns ownership to the caller. */
static ls_status fetch(ls_comm *comm, const text *own, int rank, char **copy) {
    int64_t size = (int64_t)own->length + 1;
    LS_TRY(ls_comm_broadcast(comm, &size, 1, LS_I64, rank, NULL));
    *copy = ls_allocate((size_t)size);
    if (*copy == NULL) {
        return ls_fail_memory("ls_trial", (size_t)size);
    }
    if (ls_comm_rank(comm) == rank) {
        memcpy(*copy, own->bytes, (size_t)size);
    }
    return ls_comm_broadcast(comm, *copy, (size_t)size, LS_U8, rank, NULL);
}

/* Removes the next line from the text, and returns it without the newline. Returns "" after the last line. */
static char *next_line(char **rest) {
    char *line = *rest;
    const size_t length = strcspn(line, "\n");
    *rest = line[length] != '\0' ? line + length + 1 : line + length;
    line[length] = '\0';
    return line;
}

static ls_status report_difference(char *first, char *second, int rank) {
    char *lines[2];
    do {
        lines[0] = next_line(&first);
        lines[1] = next_line(&second);
    } while (strcmp(lines[0], lines[1]) == 0 && lines[0][0] != '\0');
    const char subjects[2] = {lines[0][0] != '\0' ? lines[0][0] : (char)NOTHING,
                              lines[1][0] != '\0' ? lines[1][0] : (char)NOTHING};
    const char subject = subjects[0] < subjects[1] ? subjects[0] : subjects[1];
    return ls_fail(LS_ERR_MISMATCH,
                   "ls_trial: %s: rank 0 has %.300s, but rank %d has %.300s; all ranks must have the same",
                   differ[subject - 'a'], subjects[0] == subject ? lines[0] + 1 : "none", rank,
                   subjects[1] == subject ? lines[1] + 1 : "none");
}

static ls_status find_difference(ls_comm *comm, const text *own, int64_t hash) {
    int rank = 0;
    char *texts[2] = {NULL, NULL};
    ls_status status = find_rank(comm, hash, &rank);
    status = status == LS_OK ? fetch(comm, own, 0, &texts[0]) : status;
    status = status == LS_OK ? fetch(comm, own, rank, &texts[1]) : status;
    status = status == LS_OK ? report_difference(texts[0], texts[1], rank) : status;
    ls_free(texts[0]);
    ls_free(texts[1]);
    return status;
}

static ls_status compare(ls_comm *comm, const text *own) {
    const int64_t hash = (int64_t)(ls_hash(LS_HASH_START, own->bytes, own->length) >> 1);
    bool equal = false;
    LS_TRY(ls_ranks_have_equal(comm, hash, &equal));
    return equal ? LS_OK : find_difference(comm, own, hash);
}

static ls_status add_epochs(const ls_trial *trial, text *own) {
    char line[LINE_LIMIT];
    snprintf(line, sizeof line, "%lld (epochs that have run: %lld)", (long long)trial->state.epochs,
             (long long)trial->epochs_run);
    return add_line(own, EPOCHS, line);
}

ls_status ls_trial_check_alike(const ls_trial *trial) {
    text own = {.length = 0};
    if (ls_comm_size(trial->state.comm) <= 1) {
        return LS_OK;
    }
    ls_status status = add_epochs(trial, &own);
    status = status == LS_OK ? write_all(trial, &own) : status;
    status = status == LS_OK ? compare(trial->state.comm, &own) : status;
    ls_free(own.bytes);
    return status;
}

ls_status ls_trial_describe(const ls_trial *trial, void (*each)(const char *subject, const char *line, void *user),
                            void *user) {
    static const char *const subjects[] = {[TRAINING - 'a'] = "training",       [VALIDATION - 'a'] = "validation",
                                           [CHECKPOINTS - 'a'] = "checkpoints", [OUTER - 'a'] = "outer optimizer",
                                           [OPTIMIZER - 'a'] = "optimizer",     [METRIC - 'a'] = "metric",
                                           [CALLBACK - 'a'] = "callback"};
    text own = {.length = 0};
    const ls_status status = write_all(trial, &own);
    char *rest = own.bytes;
    while (status == LS_OK && rest != NULL && rest[0] != '\0') {
        const char *line = next_line(&rest);
        each(subjects[line[0] - 'a'], line + 1, user);
    }
    ls_free(own.bytes);
    return status;
}
