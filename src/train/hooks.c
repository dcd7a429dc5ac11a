/* Calls to hooks. */
#include <stdio.h>
#include <string.h>

#include "comm/meter.h"
#include "comm/public_call.h"
#include "tensor/scope.h"
#include "train/trial.h"

const char *ls_trial_callback_name(const ls_callback *callback, int i, char number[24]) {
    snprintf(number, 24, "callback %d", i);
    return callback->hooks.name != NULL ? callback->hooks.name : number;
}

void ls_callback_identify(const ls_callback *callback, int i, bool all, char *text, size_t size) {
    char number[24];
    const bool named = callback->hooks.name != NULL || callback->identify == NULL;
    snprintf(text, size, "%s%s", named ? ls_trial_callback_name(callback, i, number) : "", named ? " " : "");
    char *rest = text + strlen(text);
    const size_t left = size - strlen(text);
    if (callback->identify != NULL) {
        callback->identify(callback->user, all, rest, left);
    } else if (all && callback->hooks.describe != NULL) {
        callback->hooks.describe(callback->user, rest, left);
    }
    text[size - 1] = '\0';
    if (named && rest[0] == '\0') {
        rest[-1] = '\0';
    }
}

ls_status ls_trial_fail_in(ls_trial *trial, ls_status status, bool says_why, const char *what) {
    if (!says_why) {
        return ls_fail(status, "ls_trial: %s failed with %s (status %d)", what, ls_status_name(status), (int)status);
    }
    snprintf(trial->failed_in, sizeof trial->failed_in, "%s: ", what);
    return status;
}

/* Calls a hook. A hook that has called ls_thread_end has failed. The communication of the program's hooks belongs to no
 * public function. */
static ls_status call(const ls_callback *callback, ls_callback_function function, ls_trial_state *state) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    const ls_public_call outer = ls_public_begin(callback->built_in ? ls_public_present : LS_PUBLIC_NONE);
    thread->hooks++;
    const ls_status status = ls_public_end(outer, function(state, callback->user));
    thread->hooks--;
    const bool refused = thread->end_refused;
    thread->end_refused = false;
    return status == LS_OK && refused ? LS_ERR_STATE : status;
}

ls_status ls_trial_call_hooks(ls_trial *trial, size_t hook, const char *name) {
    for (int i = 0; i < trial->options.callback_count; i++) {
        const ls_callback *callback = trial->callbacks[i];
        const ls_callback_function function = ls_callback_hook(callback, hook);
        if (function == NULL) {
            continue;
        }
        const uint32_t errors = ls_error_count;
        const uint64_t communication = ls_comm_metered.nanoseconds;
        const ls_status status = call(callback, function, &trial->state);
        trial->watch.hooks_communicate |= !callback->built_in && ls_comm_metered.nanoseconds != communication;
        if (status != LS_OK) {
            char what[LS_FAILED_IN_LIMIT - 2], number[24];
            snprintf(what, sizeof what, "the hook %s of %s", name, ls_trial_callback_name(callback, i, number));
            return ls_trial_fail_in(trial, status, ls_error_count != errors, what);
        }
    }
    return LS_OK;
}
