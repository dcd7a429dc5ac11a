/* The callback: its options, and what it remembers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/describe.h"
#include "base/memory.h"
#include "tensor/device.h"
#include "train/callbacks/callback.h"
#include "train/checkpoint/checkpoint.h"

enum { KEEP = 3, BEST_NUMBERS = 2 };

static ls_status on_init(ls_trial_state *state, void *user) {
    if (state->trial->checkpointer != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_checkpoint_callback: a trial has one, not two");
    }
    state->trial->checkpointer = user;
    return LS_OK;
}

static ls_status get_state(void *user, const ls_named **tensors, int *count) {
    ls_checkpointer *self = user;
    *tensors = &self->lent;
    *count = 1;
    return LS_OK;
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    ls_checkpointer *self = user;
    if (count != 1 || strcmp(tensors->name, self->lent.name) != 0 || ls_dtype_of(tensors->tensor) != LS_F64 ||
        ls_numel(tensors->tensor) != BEST_NUMBERS) {
        return ls_fail(LS_ERR_FORMAT, "ls_checkpoint_callback: what the checkpoint has of it is not %s",
                       self->lent.name);
    }
    memcpy(self->best, ls_host_data(tensors->tensor), sizeof self->best);
    return LS_OK;
}

static void release(void *user) {
    ls_checkpointer *self = user;
    ls_tensor_drop(self->lent.tensor);
    ls_free((char *)self->options.folder);
    ls_free((char *)self->options.best);
    ls_free(self);
}

static ls_status check(const ls_checkpoint_options *options) {
    if (options == NULL || options->folder == NULL || options->folder[0] == '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "ls_checkpoint_callback: a folder is needed");
    }
    if (options->every_steps < 0 || options->every_epochs < 0 || options->keep < 0 ||
        !(options->every_seconds >= 0 && isfinite(options->every_seconds))) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "ls_checkpoint_callback: a negative number: every %lld steps, %g seconds or %lld epochs, %d kept",
            (long long)options->every_steps, options->every_seconds, (long long)options->every_epochs, options->keep);
    }
    return LS_OK;
}

static bool complete(ls_checkpointer *self, const ls_checkpoint_options *options) {
    static const ls_shape shape = {1, {BEST_NUMBERS}};
    self->options = *options;
    self->options.folder = ls_duplicate_string(options->folder);
    self->options.best = ls_duplicate_string(options->best);
    self->options.keep = options->keep > 0 ? options->keep : KEEP;
    if (options->every_steps == 0 && options->every_seconds == 0 && options->every_epochs == 0) {
        self->options.every_epochs = 1;
    }
    self->lock = -1;
    self->lent = (ls_named){.name = "best", .tensor = ls_tensor_over(&ls_cpu, &shape, LS_F64, self->best)};
    return self->options.folder != NULL && (self->options.best != NULL) == (options->best != NULL) &&
           self->lent.tensor != NULL;
}

ls_callback ls_checkpoint_callback(const ls_checkpoint_options *options) {
    if (check(options) != LS_OK) {
        return (ls_callback){.invalid = true};
    }
    ls_checkpointer *self = ls_allocate_zeroed(1, sizeof *self);
    if (self == NULL || !complete(self, options)) {
        (void)ls_fail_memory("ls_checkpoint_callback", sizeof *self);
        if (self != NULL) {
            release(self);
        }
        return (ls_callback){.invalid = true};
    }
    return (ls_callback){.user = self,
                         .name = "checkpoint",
                         .on_init = on_init,
                         .state = get_state,
                         .set_state = set_state,
                         .describe = ls_callback_describe_nothing, /* the trial describes its checkpointer */
                         .built_in = true,
                         .release = release};
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
    ls_describe(text, size, "ls_checkpoint_callback", fields, &self->options);
}
