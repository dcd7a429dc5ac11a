/*
 * The states of callbacks in a checkpoint. Next to the state "NAME", or "NAME#2" for the second callback with this
 * name, the tensor "/options/NAME" has the callback's kind in its first line and its description in the second. A
 * state belongs to the callback with the same kind and description, or with the same kind if only one of each is left.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "optim/optimizer.h"
#include "tensor/device.h"
#include "train/checkpoint/checkpoint.h"

enum { KIND_LIMIT = 256, DESCRIPTION_LIMIT = 512 };

static const char options_prefix[] = "/options/";

/* The owner of a state: a callback of the trial, or of the trial that wrote the checkpoint. */
typedef struct owner {
    char name[128]; /* prefix of the state's tensors */
    char kind[KIND_LIMIT];
    char description[DESCRIPTION_LIMIT];
    int match; /* index of the owner in the other list; -1 if there is none */
} owner;

/* Writes "NAME/", or "NAME#2/" for the second callback with this name. */
static void name_callback(const ls_trial *trial, int i, char name[128]) {
    char number[24], other[24];
    const char *own = ls_trial_callback_name(trial->own_callbacks[i], i, number);
    int alike = 1;
    for (int k = 0; k < i; k++) {
        alike += strcmp(ls_trial_callback_name(trial->own_callbacks[k], k, other), own) == 0;
    }
    if (alike == 1) {
        snprintf(name, 128, "%s/", own);
    } else {
        snprintf(name, 128, "%s#%d/", own, alike);
    }
}

static void describe_owner(const ls_trial *trial, int i, owner *to) {
    const ls_callback *callback = trial->own_callbacks[i];
    *to = (owner){.match = -1};
    name_callback(trial, i, to->name);
    ls_callback_identify(callback, i, false, to->kind, sizeof to->kind);
    ls_callback_identify(callback, i, true, to->description, sizeof to->description);
    ls_text_make_printable(to->kind);
    ls_text_make_printable(to->description);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static ls_status get_options(const owner *of, const char *prefix, ls_copies *copies) {
    char text[KIND_LIMIT + DESCRIPTION_LIMIT], name[256];
    snprintf(text, sizeof text, "%s\n%s", of->kind, of->description);
    snprintf(name, sizeof name, "%s%s%.*s", prefix, options_prefix, (int)strlen(of->name) - 1, of->name);
    return ls_copies_add_numbers(copies, name, LS_U8, (int64_t)strlen(text), text);
}

static ls_status get_callback(const ls_callback *callback, const owner *of, const char *prefix, ls_copies *copies) {
    const ls_named *tensors = NULL;
    int count = 0;
    char name[160];
    const uint32_t errors = ls_error_count;
    snprintf(name, sizeof name, "%s%s", prefix, of->name);
    LS_TRY(ls_explain(callback->hooks.state(callback->user, &tensors, &count), errors, "state of callback", name));
    LS_TRY(ls_copies_add(copies, name, tensors, count));
    return get_options(of, prefix, copies);
}

ls_status ls_checkpoint_get_callbacks(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    for (int i = 0; i < trial->options.callback_count; i++) {
        const ls_callback *callback = trial->own_callbacks[i];
        if (callback->hooks.state != NULL) {
            owner of;
            describe_owner(trial, i, &of);
            LS_TRY(get_callback(callback, &of, prefix, &to->own));
        }
    }
    return LS_OK;
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

/* The owners in the trial and in the checkpoint. */
typedef struct owners {
    owner *own, *saved;
    int own_count, saved_count;
} owners;

static void add_own(owners *all, const ls_trial *trial) {
    for (int i = 0; i < trial->options.callback_count; i++) {
        if (trial->own_callbacks[i]->hooks.set_state != NULL) {
            describe_owner(trial, i, &all->own[all->own_count++]);
        }
    }
}

/* Reads the two lines of an owner from a tensor. The file may be damaged. */
static ls_status read_owner(const ls_resumption *from, const ls_named *options, owner *saved) {
    char text[KIND_LIMIT + DESCRIPTION_LIMIT] = "";
    const int64_t size = ls_numel(options->tensor);
    char *end = NULL;
    if (ls_dtype_of(options->tensor) == LS_U8 && size > 0 && size < (int64_t)sizeof text) {
        memcpy(text, ls_host_data(options->tensor), (size_t)size);
        end = strchr(text, '\n');
    }
    if (end == NULL) {
        return ls_fail(LS_ERR_FORMAT,
                       "checkpoint: %s is damaged: callback/%s is not a text of two lines; use a different checkpoint",
                       from->folder, options->name);
    }
    *end = '\0';
    *saved = (owner){.match = -1};
    snprintf(saved->name, sizeof saved->name, "%s/", options->name + sizeof options_prefix - 1);
    snprintf(saved->kind, sizeof saved->kind, "%s", text);
    snprintf(saved->description, sizeof saved->description, "%s", end + 1);
    ls_text_make_printable(saved->kind);
    ls_text_make_printable(saved->description);
    return LS_OK;
}

/* Moves the descriptions of owners from the tensors to the list. Copies the other tensors, and sets their number. */
static ls_status add_saved(owners *all, const ls_resumption *from, ls_named *states, int *count) {
    *count = 0;
    for (int i = 0; i < from->count; i++) {
        if (strncmp(from->tensors[i].name, options_prefix, sizeof options_prefix - 1) == 0) {
            LS_TRY(read_owner(from, &from->tensors[i], &all->saved[all->saved_count++]));
        } else {
            states[(*count)++] = from->tensors[i];
        }
    }
    return LS_OK;
}

/* Counts the owners of a kind without a match, and finds the last one. */
static int count_left(const owner *list, int count, const char *kind, int *last) {
    int left = 0;
    for (int i = 0; i < count; i++) {
        if (list[i].match < 0 && strcmp(list[i].kind, kind) == 0) {
            *last = i;
            left++;
        }
    }
    return left;
}

/* Matches the owners with equal descriptions, in their order. */
static void match_equal(owners *all) {
    for (int i = 0; i < all->own_count; i++) {
        for (int k = 0; k < all->saved_count && all->own[i].match < 0; k++) {
            if (all->saved[k].match < 0 && strcmp(all->own[i].kind, all->saved[k].kind) == 0 &&
                strcmp(all->own[i].description, all->saved[k].description) == 0) {
                all->own[i].match = k;
                all->saved[k].match = i;
            }
        }
    }
}

/* Options may have changed. If several callbacks of the kind have changed, none gets a state. */
static void match_changed(owners *all, const ls_resumption *from) {
    for (int i = 0; i < all->own_count; i++) {
        owner *own = &all->own[i];
        int last = -1, other = -1;
        if (own->match < 0 && count_left(all->own, all->own_count, own->kind, &last) == 1 &&
            count_left(all->saved, all->saved_count, own->kind, &other) == 1) {
            own->match = other;
            all->saved[other].match = i;
            if (from->rank == 0) {
                ls_log_write(LS_LOG_WARNING,
                             "checkpoint: %s has the state of %s with other options, \"%s\"; the trial has \"%s\", and "
                             "uses the state",
                             from->folder, own->kind, all->saved[other].description, own->description);
            }
        }
    }
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* `same`: the callback has the same options as the saved callback. A schedule with different options sets the learning
 * rates. */
static ls_status set_callback(const ls_resumption *from, int i, const char *kind, bool same, const ls_named *tensors,
                              int count) {
    const ls_callback *callback = from->trial->own_callbacks[i];
    char number[24];
    if (count == 0) {
        ls_log_write(LS_LOG_WARNING, "checkpoint: %s has no state for %s; it keeps its current state", from->folder,
                     kind);
        return LS_OK;
    }
    const uint32_t errors = ls_error_count;
    const ls_status status =
        ls_callback_set_saved(callback, same ? from->trial->options.optimizer : NULL, tensors, count);
    return ls_explain(status, errors, "set_state of callback", ls_trial_callback_name(callback, i, number));
}

/* Checkpoints of older versions have no descriptions: the states are found by their names. */
static ls_status set_states(const ls_resumption *from, const owners *all, const ls_named *states, int count,
                            ls_named *found) {
    const ls_trial *trial = from->trial;
    int taken = 0;
    for (int i = 0, k = 0; i < trial->options.callback_count; i++) {
        if (trial->own_callbacks[i]->hooks.set_state != NULL) {
            const owner *own = &all->own[k++], *saved = own->match >= 0 ? &all->saved[own->match] : NULL;
            const char *name = saved != NULL ? saved->name : own->name;
            const bool same = saved != NULL && strcmp(own->description, saved->description) == 0;
            const bool has = saved != NULL || all->saved_count == 0;
            const int picked = has ? ls_state_select(states, count, name, found) : 0;
            taken += picked;
            LS_TRY(set_callback(from, i, own->kind, same, found, picked));
        }
    }
    if (taken < count) {
        ls_log_write(LS_LOG_WARNING, "checkpoint: %s has the state of callbacks that this trial does not have; ignored",
                     from->folder);
    }
    return LS_OK;
}

/* Uses `states` and `found`, each with room for all tensors. */
static ls_status set_all(const ls_resumption *from, owners *all, ls_named *states, ls_named *found) {
    int count = 0;
    LS_TRY(add_saved(all, from, states, &count));
    add_own(all, from->trial);
    match_equal(all);
    match_changed(all, from);
    return set_states(from, all, states, count, found);
}

ls_status ls_checkpoint_set_callbacks(ls_resumption *from) {
    const size_t count = (size_t)from->count + 1, callbacks = (size_t)from->trial->options.callback_count + 1;
    ls_named *states = ls_allocate_zeroed(2 * count, sizeof *states);
    owners all = {.own = ls_allocate_zeroed(callbacks, sizeof(owner)),
                  .saved = ls_allocate_zeroed(count, sizeof(owner))};
    ls_status status = LS_OK;
    if (states == NULL || all.own == NULL || all.saved == NULL) {
        status = ls_fail_memory("checkpoint", (callbacks + count) * sizeof(owner) + 2 * count * sizeof *states);
    } else {
        status = set_all(from, &all, states, states + count);
    }
    ls_free(states);
    ls_free(all.own);
    ls_free(all.saved);
    return status;
}
