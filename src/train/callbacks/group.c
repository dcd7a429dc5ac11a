/* Callbacks that combine other callbacks: a group calls the hooks of its callbacks if its gate is open. */
#include "train/callbacks/callback.h"

#include <stdio.h>
#include <string.h>

/* All hooks, in the order of ls_callback_hooks. */
#define ALL_HOOKS(each)                                                                                                \
    each(on_init) each(on_start) each(on_start_epoch) each(on_start_training) each(on_sample) each(on_forward)         \
        each(on_criterion) each(on_backward) each(on_step_training) each(on_end_training) each(on_start_validation)    \
            each(on_sample_validation) each(on_forward_validation) each(on_criterion_validation)                       \
                each(on_step_validation) each(on_end_validation) each(on_end_epoch) each(on_checkpoint) each(on_end)

#define HOOK_NUMBER(hook) HOOK_##hook,
enum { ALL_HOOKS(HOOK_NUMBER) HOOKS };

typedef struct group group;

/* Returns whether to call hook number `hook` now. */
typedef bool (*gate)(group *self, const ls_trial_state *state, int hook);

struct group {
    const char *maker;
    bool as_first; /* uses the name and description of the first callback */
    ls_callback **callbacks;
    int count;
    gate gate;           /* NULL: always open */
    const char *word;    /* name of the gate's state in checkpoints; NULL if there is no state */
    int64_t seen[HOOKS]; /* the state of the gate */
    ls_callback_predicate predicate;
    void *predicate_user;
    int rank;
    ls_state_list listed;
};

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static ls_status call(void *user, ls_trial_state *state, int hook, size_t offset) {
    group *self = user;
    if (self->gate != NULL && !self->gate(self, state, hook)) {
        return LS_OK;
    }
    for (int i = 0; i < self->count; i++) {
        const ls_callback_function function = ls_callback_hook(self->callbacks[i], offset);
        LS_TRY(function != NULL ? function(state, self->callbacks[i]->user) : LS_OK);
    }
    return LS_OK;
}

#define CALL_HOOK(hook)                                                                                                \
    static ls_status call_##hook(ls_trial_state *state, void *user) {                                                  \
        return call(user, state, HOOK_##hook, offsetof(ls_callback_hooks, hook));                                      \
    }
ALL_HOOKS(CALL_HOOK)

static bool has_hook(const group *self, size_t offset) {
    bool has = false;
    for (int i = 0; i < self->count; i++) {
        has = has || ls_callback_hook(self->callbacks[i], offset) != NULL;
    }
    return has;
}

/* ---- state: "1.best" is the state "best" of callback 1 ----------------------------------------------------------- */

static ls_status list_seen(void *user, ls_state_list *list) {
    group *self = user;
    return self->word == NULL ? LS_OK
                              : ls_state_add(list, "", (ls_state_word){self->word, LS_STATE_NOT_NEGATIVE},
                                             LS_SHAPE(HOOKS), LS_I64, &ls_cpu, self->seen);
}

static ls_status list_callback(const ls_callback *callback, int number, ls_state_list *list) {
    const ls_named *tensors = NULL;
    int count = 0;
    char owner[16];
    snprintf(owner, sizeof owner, "%d", number);
    if (callback->hooks.state == NULL) {
        return LS_OK;
    }
    const uint32_t errors = ls_error_count;
    LS_TRY(ls_explain(callback->hooks.state(callback->user, &tensors, &count), errors, "state of callback", owner));
    LS_TRY(ls_state_check_given("ls_callback: state", callback, tensors, count));
    for (int i = 0; i < count; i++) {
        ls_tensor *tensor = tensors[i].tensor;
        if (!ls_is_contiguous(tensor)) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_callback: state: the tensor %s is not contiguous", tensors[i].name);
        }
        LS_TRY(ls_state_add(list, owner, (ls_state_word){tensors[i].name, LS_STATE_ANY}, ls_shape_of(tensor),
                            ls_dtype_of(tensor), ls_tensor_device(tensor), tensor->data));
    }
    return LS_OK;
}

static ls_status list_all(void *user, ls_state_list *list) {
    group *self = user;
    LS_TRY(list_seen(self, list));
    for (int i = 0; i < self->count; i++) {
        LS_TRY(list_callback(self->callbacks[i], i, list));
    }
    return LS_OK;
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    return ls_callback_state(user, list_all, &((group *)user)->listed, tensors, count);
}

static ls_status set_one(const ls_callback *callback, ls_optimizer *optimizer, int number, const ls_named *own,
                         int count) {
    char name[16];
    if (callback->hooks.set_state == NULL) {
        return LS_OK;
    }
    snprintf(name, sizeof name, "%d", number);
    const uint32_t errors = ls_error_count;
    return ls_explain(ls_callback_set_saved(callback, optimizer, own, count), errors, "set_state of callback", name);
}

static ls_status set_states(group *self, ls_optimizer *optimizer, const ls_named *tensors, int count, ls_named *own) {
    int taken = 0;
    for (int i = 0; i < self->count; i++) {
        const ls_callback *callback = self->callbacks[i];
        char prefix[16];
        snprintf(prefix, sizeof prefix, "%d.", i);
        const int picked = ls_state_select(tensors, count, prefix, own);
        taken += picked;
        if (picked > 0 && callback->hooks.set_state == NULL) {
            return ls_fail(LS_ERR_FORMAT,
                           "ls_callback: set_state: callback %d has no state, but the checkpoint has its state: %s", i,
                           own[0].name);
        }
        LS_TRY(set_one(callback, optimizer, i, own, picked));
    }
    int seen = 0;
    for (int i = 0; i < count && self->word != NULL; i++) {
        if (strcmp(tensors[i].name, self->word) == 0) {
            own[seen++] = tensors[i];
        }
    }
    LS_TRY(ls_callback_set_state("ls_callback: set_state", self, list_seen, own, seen));
    return taken + seen == count
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT,
                         "ls_callback: set_state: %d of %d tensors do not belong to any of the %d callbacks",
                         count - taken - seen, count, self->count);
}

static ls_status set_saved(void *user, ls_optimizer *optimizer, const ls_named *tensors, int count) {
    ls_named *own = ls_allocate_for("ls_callback: set_state", (size_t)count, sizeof *own);
    LS_TRY(ls_made(own));
    const ls_status status = set_states(user, optimizer, tensors, count, own);
    ls_free(own);
    return status;
}

static ls_status set_state(void *user, const ls_named *tensors, int count) {
    return set_saved(user, NULL, tensors, count);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/*
 * Writes the name of the constructor, then the descriptions of the callbacks, which all have `describe`. Writes an
 * empty string if all descriptions are empty.
 */
static void describe(void *user, char *text, size_t size) {
    const group *self = user;
    if (self->as_first) {
        self->callbacks[0]->hooks.describe(self->callbacks[0]->user, text, size);
        return;
    }
    const size_t start = (size_t)snprintf(text, size, "%s of", self->maker);
    size_t length = start;
    for (int i = 0; i < self->count && length + 2 < size; i++) {
        const ls_callback *callback = self->callbacks[i];
        char *own = text + length + 1;
        own[0] = '\0';
        callback->hooks.describe(callback->user, own, size - length - 1);
        text[size - 1] = '\0';
        if (own[0] != '\0') {
            own[-1] = ' ';
            length += 1 + strlen(own);
        }
    }
    text[length > start ? length : 0] = '\0';
}

/* The state of the group consists of the states of its callbacks, in order. */
static void identify(void *user, bool all, char *text, size_t size) {
    const group *self = user;
    snprintf(text, size, "(%s of", self->maker);
    size_t length = strlen(text);
    for (int i = 0; i < self->count && length + 2 < size; i++) {
        text[length++] = ' ';
        ls_callback_identify(self->callbacks[i], i, all, text + length, size - length);
        length += strlen(text + length);
    }
    snprintf(text + length, size - length, ")");
}

static bool is_described(const group *self) {
    bool all = true;
    for (int i = 0; i < self->count; i++) {
        all = all && self->callbacks[i]->hooks.describe != NULL;
    }
    return all;
}

static void release(void *user) {
    group *self = user;
    ls_callbacks_free(self->callbacks, self->count);
    ls_state_forget(&self->listed);
    ls_free(self);
}

static group *take(const char *name, ls_callback *const *callbacks, int count) {
    ls_callback **taken = ls_callbacks_take(name, callbacks, count);
    group *self = taken != NULL ? ls_allocate_for(name, 1, sizeof *self) : NULL;
    if (self == NULL) {
        ls_callbacks_free(taken, taken != NULL ? count : 0);
        return NULL;
    }
    self->maker = name;
    self->callbacks = taken;
    self->count = count;
    return self;
}

/* Checkpoints omit groups without state. */
static bool has_state(const group *self) {
    bool does = self->word != NULL;
    for (int i = 0; i < self->count; i++) {
        does = does || self->callbacks[i]->hooks.state != NULL || self->callbacks[i]->hooks.set_state != NULL;
    }
    return does;
}

static bool is_built_in(const group *self) {
    bool all = true;
    for (int i = 0; i < self->count; i++) {
        all = all && self->callbacks[i]->built_in;
    }
    return all;
}

/* A gate decides at each step whether hooks are called, which a captured step cannot repeat. */
static bool can_be_captured(const group *self) {
    bool all = self->gate == NULL;
    for (int i = 0; i < self->count; i++) {
        all = all && ls_callback_hook_within_step(self->callbacks[i]) == NULL;
    }
    return all;
}

static ls_callback *finish(group *self) {
    if (self == NULL) {
        return NULL;
    }
    const bool built_in = is_built_in(self);
    const bool captured = can_be_captured(self);
    ls_callback_hooks hooks = {.name = self->count == 1 || self->as_first ? self->callbacks[0]->hooks.name : NULL,
                               .state = has_state(self) ? state : NULL,
                               .set_state = has_state(self) ? set_state : NULL,
                               .describe = is_described(self) ? describe : NULL,
                               .release = release};
#define GIVE_HOOK(hook) hooks.hook = has_hook(self, offsetof(ls_callback_hooks, hook)) ? call_##hook : NULL;
    ALL_HOOKS(GIVE_HOOK)
    ls_callback *made = built_in ? ls_callback_make(&hooks, self) : ls_callback_new(&hooks, self);
    ls_callback_set_identify(made, identify);
    if (made != NULL) {
        made->set_saved = set_saved;
    }
    return captured ? ls_callback_mark_captured(made) : made;
}

ls_callback *ls_callbacks_of(ls_callback *const *callbacks, int count) {
    return finish(take("ls_callbacks_of", callbacks, count));
}

ls_callback *ls_callbacks_as_first(const char *call, ls_callback *const *callbacks, int count) {
    group *self = take(call, callbacks, count);
    if (self != NULL) {
        self->as_first = true;
    }
    return finish(self);
}

static bool is_first(group *self, const ls_trial_state *now, int hook) {
    (void)now;
    return self->seen[hook]++ == 0;
}

ls_callback *ls_once(ls_callback *callback) {
    group *self = take("ls_once", &callback, 1);
    if (self != NULL) {
        self->gate = is_first;
        self->word = "calls";
    }
    return finish(self);
}

/* Stores the epoch plus 1, because 0 means that the hook has not been called. */
static bool is_first_in_epoch(group *self, const ls_trial_state *now, int hook) {
    const int64_t before = self->seen[hook];
    self->seen[hook] = now->epoch + 1;
    return self->seen[hook] != before;
}

ls_callback *ls_once_per_epoch(ls_callback *callback) {
    group *self = take("ls_once_per_epoch", &callback, 1);
    if (self != NULL) {
        self->gate = is_first_in_epoch;
        self->word = "epochs";
    }
    return finish(self);
}

static bool is_so(group *self, const ls_trial_state *now, int hook) {
    (void)hook;
    return self->predicate(now, self->predicate_user);
}

ls_callback *ls_only_if(ls_callback *callback, ls_callback_predicate predicate, void *user) {
    group *self = take("ls_only_if", &callback, 1);
    if (self != NULL && predicate == NULL) {
        release(self);
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_only_if: the predicate is NULL");
    }
    if (self != NULL) {
        self->gate = is_so;
        self->predicate = predicate;
        self->predicate_user = user;
    }
    return finish(self);
}

static bool is_on_rank(group *self, const ls_trial_state *now, int hook) {
    (void)hook;
    return ls_trial_rank(now) == self->rank;
}

ls_callback *ls_on_rank(ls_callback *callback, int rank) {
    group *self = take("ls_on_rank", &callback, 1);
    if (self != NULL && rank < 0) {
        release(self);
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_on_rank: rank %d does not exist", rank);
    }
    if (self != NULL) {
        self->gate = is_on_rank;
        self->rank = rank;
    }
    return finish(self);
}
