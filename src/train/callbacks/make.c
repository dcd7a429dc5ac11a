/* Creates and frees callbacks, and records their owners. */
#include "base/memory.h"
#include "optim/optimizer.h"
#include "tensor/scope.h"
#include "train/trial.h"

#include <string.h>

/* A copy of an array, owned by one of the callbacks in it. */
struct ls_callback_copy {
    struct ls_callback_copy *next;
    ls_callback *items[];
};

static ls_callback *make(const ls_callback_hooks *hooks, void *user, bool built_in) {
    const size_t name_size = hooks->name != NULL ? strlen(hooks->name) + 1 : 0;
    ls_callback *callback = ls_allocate_zeroed(1, sizeof *callback + name_size);
    if (callback == NULL) {
        (void)ls_fail_memory("ls_callback_new", sizeof *callback + name_size);
        if (hooks->release != NULL) {
            hooks->release(user);
        }
        return NULL;
    }
    callback->hooks = *hooks;
    callback->user = user;
    callback->built_in = built_in;
    if (hooks->name != NULL) {
        callback->hooks.name = memcpy(callback->name, hooks->name, name_size);
    }
    return callback;
}

ls_callback *ls_callback_make(const ls_callback_hooks *hooks, void *user) {
    return make(hooks, user, true);
}

/* Checks the name: in a checkpoint, the names of a callback's tensors begin with it. */
static ls_status check_hooks(const ls_callback_hooks *hooks) {
    const char *name = hooks->name != NULL ? hooks->name : "callback";
    if (name[0] == '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "ls_callback_new: the name is empty: choose another name, or NULL");
    }
    if (strlen(name) > LS_CALLBACK_NAME_LIMIT || strchr(name, '/') != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_callback_new: the name \"%.100s\" has %s: choose another name", name,
                       strchr(name, '/') != NULL ? "a slash" : "more than 80 bytes");
    }
    if ((hooks->state != NULL) != (hooks->set_state != NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_callback_new: only %s is given: give state and set_state, or neither",
                       hooks->state != NULL ? "state" : "set_state");
    }
    return LS_OK;
}

ls_callback *ls_callback_new(const ls_callback_hooks *hooks, void *user) {
    if (hooks == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_callback_new: the hooks are NULL");
    }
    if (check_hooks(hooks) != LS_OK) {
        if (hooks->release != NULL) {
            hooks->release(user);
        }
        return NULL;
    }
    return make(hooks, user, false);
}

static void destroy(ls_callback *callback) {
    if (callback->hooks.release != NULL) {
        callback->hooks.release(callback->user);
    }
    while (callback->copies != NULL) {
        struct ls_callback_copy *copy = callback->copies;
        callback->copies = copy->next;
        ls_free(copy);
    }
    *callback = (ls_callback){.freed = true};
    ls_retire(callback, LS_RETIRED_PART);
}

void ls_callback_free(ls_callback *callback) {
    if (callback != NULL && !callback->owned && !callback->freed) {
        destroy(callback);
    }
}

ls_status ls_callback_check_here(const char *call, const ls_callback *callback, int i) {
    return !callback->freed
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "%s: callback %d was freed, by ls_callback_free or with the trial or callback that owned it: "
                         "create another one",
                         call, i);
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static bool is_earlier(ls_callback *const *callbacks, int i) {
    int k = 0;
    while (k < i && callbacks[k] != callbacks[i]) {
        k++;
    }
    return k < i;
}

static ls_status check_elements(const char *call, ls_callback *const *callbacks, int count) {
    for (int i = 0; i < count; i++) {
        if (callbacks[i] == NULL) {
            return ls_fail_missing("%s: callback %d", call, i);
        }
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(ls_callback_check_here(call, callbacks[i], i));
        if (callbacks[i]->owned) {
            return ls_fail(LS_ERR_STATE,
                           "%s: callback %d already belongs to a trial or a callback: create one for each", call, i);
        }
        if (is_earlier(callbacks, i)) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: callback %d is in the list twice: create two", call, i);
        }
    }
    return LS_OK;
}

/* Returns the index of the first callback that is not NULL, or `count`. This callback may own the array. */
static int find_first(ls_callback *const *callbacks, int count) {
    int first = 0;
    while (first < count && callbacks[first] == NULL) {
        first++;
    }
    return first;
}

/* Frees each callback without an owner once, and the owner of the array last. */
static void drop(ls_callback *const *callbacks, int count) {
    const int first = find_first(callbacks, count);
    for (int i = count - 1; i >= first; i--) {
        if (!is_earlier(callbacks, i)) {
            ls_callback_free(callbacks[i]);
        }
    }
}

ls_status ls_callbacks_check_list(const char *call, ls_callback *const *callbacks, int count) {
    if (count < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the number of callbacks is %d, but must not be negative", call, count);
    }
    return callbacks != NULL || count == 0 ? LS_OK : ls_fail_missing("%s: the array of %d callbacks", call, count);
}

ls_callback **ls_callbacks_take(const char *call, ls_callback *const *callbacks, int count) {
    if (ls_callbacks_check_list(call, callbacks, count) != LS_OK) {
        return NULL;
    }
    const size_t size = (size_t)count * sizeof *callbacks;
    ls_callback **taken = NULL;
    if (check_elements(call, callbacks, count) == LS_OK) {
        taken = ls_allocate(size);
        (void)(taken != NULL ? LS_OK : ls_fail_memory(call, size));
    }
    if (taken == NULL) {
        drop(callbacks, count);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        taken[i] = callbacks[i];
        taken[i]->owned = true;
    }
    return taken;
}

void ls_callbacks_free(ls_callback **callbacks, int count) {
    for (int i = 0; i < count; i++) {
        destroy(callbacks[i]);
    }
    ls_free(callbacks);
}

ls_callback *const *ls_callback_array(ls_callback *const *callbacks, int count) {
    if (ls_callbacks_check_list("ls_callback_array", callbacks, count) != LS_OK) {
        return NULL;
    }
    const int first = find_first(callbacks, count);
    if (first == count) {
        return NULL;
    }
    const size_t size = sizeof(struct ls_callback_copy) + (size_t)count * sizeof *callbacks;
    const bool here = ls_callback_check_here("ls_callback_array", callbacks[first], first) == LS_OK;
    struct ls_callback_copy *copy = here ? ls_allocate_for("ls_callback_array", 1, size) : NULL;
    if (copy == NULL) {
        drop(callbacks, count);
        return NULL;
    }
    copy->next = callbacks[first]->copies;
    callbacks[first]->copies = copy;
    return memcpy(copy->items, callbacks, (size_t)count * sizeof *callbacks);
}

/* Sets the state of a callback, but keeps the optimizer's learning rates, which the checkpoint has set. */
static ls_status set_without_rates(const ls_callback *callback, ls_optimizer *optimizer, const ls_named *tensors,
                                   int count) {
    const size_t groups = (size_t)optimizer->group_count;
    double *rates = ls_allocate_for("checkpoint", groups + 1, sizeof *rates);
    LS_TRY(ls_made(rates));
    for (size_t g = 0; g < groups; g++) {
        rates[g] = optimizer->groups[g].learning_rate;
    }
    const ls_status status = callback->hooks.set_state(callback->user, tensors, count);
    for (size_t g = 0; g < groups; g++) {
        optimizer->groups[g].learning_rate = rates[g];
    }
    ls_free(rates);
    return status;
}

ls_status ls_callback_set_saved(const ls_callback *callback, ls_optimizer *optimizer, const ls_named *tensors,
                                int count) {
    if (optimizer != NULL && callback->set_saved != NULL) {
        return callback->set_saved(callback->user, optimizer, tensors, count);
    }
    return optimizer != NULL && callback->built_in ? set_without_rates(callback, optimizer, tensors, count)
                                                   : callback->hooks.set_state(callback->user, tensors, count);
}
