/* The checkpointer of a trial, created from its options. */
#include <math.h>
#include <string.h>

#include "base/describe.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/option.h"
#include "train/checkpoint/checkpoint.h"

enum { KEEP = 3 };

void ls_checkpointer_free(ls_checkpointer *self) {
    if (self != NULL) {
        ls_free((char *)self->options.folder);
        ls_free((char *)self->options.best);
        ls_free(self);
    }
}

static ls_status check(const ls_checkpoint_options *options) {
    if (options->folder == NULL || options->folder[0] == '\0') {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_trial_new: .checkpoint has no folder: set .folder of ls_checkpoint_options");
    }
    if (options->every_steps < 0 || options->every_epochs < 0 || options->keep < 0 ||
        !(options->every_seconds >= 0 && isfinite(options->every_seconds))) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "ls_trial_new: .checkpoint has a negative number: every %lld steps, %g seconds or %lld epochs, %d kept",
            (long long)options->every_steps, options->every_seconds, (long long)options->every_epochs, options->keep);
    }
    return LS_OK;
}

/* Returns a whole number above 1 that identifies the metric and the direction of the best value. */
static double find_best_kind(const ls_checkpoint_options *options) {
    const char *best = options->best != NULL ? options->best : "";
    const uint64_t hash = ls_hash(LS_HASH_START, best, strlen(best));
    return 2 + (double)(ls_hash(hash, &options->highest, sizeof options->highest) >> 12);
}

static bool complete(ls_checkpointer *self, const ls_checkpoint_options *options) {
    self->options = *options;
    self->options.folder = ls_duplicate_string(options->folder);
    self->options.best = ls_duplicate_string(options->best);
    self->best_kind = find_best_kind(options);
    self->options.keep = options->keep > 0 ? options->keep : KEEP;
    self->options.every_seconds = ls_option(options->every_seconds, 0);
    if (options->every_steps == 0 && self->options.every_seconds == 0 && options->every_epochs == 0) {
        self->options.every_epochs = 1;
    }
    self->lock = -1;
    return self->options.folder != NULL && (self->options.best != NULL) == (options->best != NULL);
}

ls_checkpointer *ls_checkpointer_new(const ls_checkpoint_options *options) {
    if (check(options) != LS_OK) {
        return NULL;
    }
    ls_checkpointer *self = ls_allocate_zeroed(1, sizeof *self);
    if (self == NULL || !complete(self, options)) {
        (void)ls_fail_memory("ls_trial_new", sizeof *self);
        ls_checkpointer_free(self);
        return NULL;
    }
    return self;
}

void ls_checkpointer_describe(const ls_checkpointer *self, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_checkpoint_options, folder),
                                      LS_FIELD(ls_checkpoint_options, every_steps),
                                      LS_FIELD(ls_checkpoint_options, every_seconds),
                                      LS_FIELD(ls_checkpoint_options, every_epochs),
                                      LS_FIELD(ls_checkpoint_options, keep),
                                      LS_FIELD(ls_checkpoint_options, best),
                                      LS_FIELD(ls_checkpoint_options, highest),
                                      LS_FIELD(ls_checkpoint_options, overwrite),
                                      {.name = NULL}};
    ls_describe(text, size, ".checkpoint", fields, &self->options);
}
