/* Ends a run at the first value that is not finite, and reports which tensor contains it. */
#include "train/callbacks/callback.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

static const char *const maker = "ls_terminate_on_nan";

/* In the order in which a step computes them. */
enum { NOTHING, IN_OUTPUT, IN_LOSS, IN_GRADIENT, PLACES };
enum { MESSAGE = 512 };

/* The first number that is not finite in a step or in a pass without training. */
typedef struct non_finite {
    int64_t batch, step;
    char tensor[MESSAGE]; /* "the loss has NaN" */
} non_finite;

typedef struct watched_layer {
    ls_module *module;
    int hooks; /* as returned by ls_module_add_hooks */
} watched_layer;

typedef struct watch {
    bool by_layer;
    bool looks; /* whether layer outputs are currently checked: from on_sample to on_forward */
    int found;
    int64_t batch, step; /* the current batch and step */
    non_finite first;
    watched_layer *layers;
    int count;
    ls_module *model;
} watch;

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* Adds the sum of 0 * x to `*sum`: 0 if all values are finite, otherwise NaN. */
static void add_zeros(ls_tensor **sum, ls_tensor *x) {
    if (x != NULL && ls_dtype_is_floating(ls_dtype_of(x)) && ls_numel(x) > 0) {
        ls_tensor *zeros = ls_to(ls_sum(ls_mul(x, 0.0)), LS_F64);
        *sum = *sum != NULL ? ls_add(*sum, zeros) : zeros;
    }
}

/*
 * Checks whether all values of a tensor and all gradients of a model are finite, with a single fetch from the device.
 * Either argument may be NULL.
 */
static ls_status are_finite(ls_tensor *x, const ls_module *model, bool *finite) {
    ls_scope *scope = ls_scope_open();
    LS_TRY(ls_made(scope));
    const bool before = ls_no_grad(true);
    ls_tensor *sum = NULL;
    add_zeros(&sum, x);
    for (int i = 0; model != NULL && i < ls_module_parameter_count(model); i++) {
        add_zeros(&sum, ls_grad(ls_module_parameter(model, i)));
    }
    *finite = sum == NULL || ls_item(sum) == 0;
    ls_no_grad(before);
    return ls_scope_end(scope);
}

/* Returns whether a tensor that is not finite contains a NaN. */
static bool has_nan(ls_tensor *x) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return true;
    }
    const bool before = ls_no_grad(true);
    const double count = ls_item(ls_sum(ls_to(ls_ne(x, x), LS_F64)));
    ls_no_grad(before);
    return ls_scope_end(scope) != LS_OK || count > 0;
}

static void note(watch *self, int place, ls_tensor *x, const char *what) {
    self->found = place;
    self->first = (non_finite){.batch = self->batch, .step = self->step};
    snprintf(self->first.tensor, sizeof self->first.tensor, "%s has %s", what,
             has_nan(x) ? "NaN" : "an infinite number");
}

static ls_status look(watch *self, int place, ls_tensor *x, const char *what) {
    bool finite = true;
    if (self->found != NOTHING) {
        return LS_OK;
    }
    LS_TRY(are_finite(x, NULL, &finite));
    if (!finite) {
        note(self, place, x, what);
    }
    return LS_OK;
}

/* Without targets, the loss is NaN, but its gradient is 0, and other ranks may have targets that count. */
static ls_status look_at_loss(watch *self, const ls_trial_state *state) {
    ls_tensor *divisor = ls_trial_loss_divisor(state->trial);
    const bool looks = self->found == NOTHING;
    LS_TRY(look(self, IN_LOSS, state->loss, "the loss"));
    if (looks && self->found != NOTHING && divisor != NULL && ls_item(divisor) == 0) {
        self->found = NOTHING;
    }
    return LS_OK;
}

static ls_status look_at_gradients(watch *self, const ls_module *model) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        char what[MESSAGE / 2];
        snprintf(what, sizeof what, "the gradient of \"%s\"", ls_module_parameter_name(model, i));
        ls_tensor *gradient = ls_grad(ls_module_parameter(model, i));
        LS_TRY(gradient != NULL ? look(self, IN_GRADIENT, gradient, what) : LS_OK);
    }
    return LS_OK;
}

/* Checks all gradients at once, because in nearly all steps all values are finite. */
static ls_status check_gradients(watch *self, const ls_module *model) {
    bool finite = true;
    LS_TRY(are_finite(NULL, model, &finite));
    return finite ? LS_OK : look_at_gradients(self, model);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* Finds the name of `module` inside the module `in`, in the form of parameter names. Returns false if it is not
 * there. */
static bool find_name(const ls_module *in, const ls_module *module, char *name, size_t room) {
    for (int i = 0; i < ls_module_child_count(in); i++) {
        const char *own = ls_module_child_name(in, i);
        const ls_module *child = ls_module_child(in, i);
        char rest[MESSAGE / 4] = "";
        if (child == module || find_name(child, module, rest, sizeof rest)) {
            snprintf(name, room, "%s%s%s", own, own[0] != '\0' && rest[0] != '\0' ? "." : "", rest);
            return true;
        }
    }
    return false;
}

static ls_status on_layer(ls_module_call *call, void *user) {
    watch *self = user;
    for (int i = 0; self->looks && self->found == NOTHING && i < call->output_count; i++) {
        char name[MESSAGE / 4] = "", what[MESSAGE / 2];
        (void)find_name(self->model, call->module, name, sizeof name);
        snprintf(what, sizeof what, "the output of layer \"%s\" (%s)", name, ls_module_type_name(call->module));
        LS_TRY(look(self, IN_OUTPUT, call->outputs[i], what));
    }
    return LS_OK;
}

static bool is_watched(const watch *self, const ls_module *module) {
    bool is = false;
    for (int i = 0; i < self->count; i++) {
        is = is || self->layers[i].module == module;
    }
    return is;
}

static ls_status watch_layer(watch *self, ls_module *module) {
    watched_layer *layers = ls_grow(self->layers, (size_t)self->count, sizeof *layers);
    if (layers == NULL) {
        return ls_fail_memory(maker, (size_t)(self->count + 1) * sizeof *layers);
    }
    self->layers = layers;
    const int hooks = ls_module_add_hooks(module, &(ls_module_hooks){.user = self, .forward = on_layer});
    if (hooks == 0) {
        return ls_error_status();
    }
    layers[self->count++] = (watched_layer){module, hooks};
    return LS_OK;
}

/* Watches each module without children once. */
static ls_status watch_layers(watch *self, ls_module *module) {
    const int children = ls_module_child_count(module);
    for (int i = 0; i < children; i++) {
        LS_TRY(watch_layers(self, ls_module_child(module, i)));
    }
    return children > 0 || is_watched(self, module) ? LS_OK : watch_layer(self, module);
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

static void name_pass(const ls_trial_state *state, char *text, size_t size) {
    if (state->phase == LS_PHASE_EVALUATION || state->phase == LS_PHASE_PREDICTION) {
        snprintf(text, size, "ls_trial_%s", state->phase == LS_PHASE_EVALUATION ? "evaluate" : "predict");
    } else {
        snprintf(text, size, "%sepoch %lld", state->phase == LS_PHASE_VALIDATION ? "the validation of " : "",
                 (long long)state->epoch);
    }
}

/* All ranks fail with the tensor that comes first in the step, on the lowest rank whose tensor is not finite. */
static ls_status agree(watch *self, const ls_trial_state *state) {
    const int rank = ls_trial_rank(state);
    const bool alone = ls_comm_size(state->comm) <= 1;
    const size_t length = self->found != NOTHING ? sizeof self->first : 0;
    const int64_t hash = (int64_t)(ls_hash(LS_HASH_START, &self->first, length) >> 2);
    /*
     * The first non-finite tensor in the order of the enum, and the maximum and minimum over ranks of a hash of
     * `first`. If the maximum and the minimum are equal, all ranks found the same tensor.
     */
    ls_loc_i64 all[] = {{self->found != NOTHING ? PLACES - self->found : 0, rank}, {hash, rank}, {-hash, rank}};
    char where[32] = "every rank", pass[64];
    self->looks = false;
    self->found = NOTHING;
    if (!alone) {
        LS_TRY(ls_comm_allreduce(state->comm, all, all, 3, LS_I64, LS_MAXLOC, NULL));
    }
    if (all[0].value == 0) {
        return LS_OK;
    }
    if (alone || all[1].value != -all[2].value) {
        snprintf(where, sizeof where, "rank %d", (int)all[0].location);
    }
    if (!alone) {
        LS_TRY(ls_comm_broadcast(state->comm, &self->first, sizeof self->first, LS_U8, (int)all[0].location, NULL));
        self->first.tensor[sizeof self->first.tensor - 1] = '\0';
    }
    name_pass(state, pass, sizeof pass);
    return ls_fail(LS_ERR_STATE, "%s: %s on %s, in %s, batch %lld (step %lld)", maker, self->first.tensor, where, pass,
                   (long long)self->first.batch, (long long)self->first.step);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static ls_status on_init(ls_trial_state *state, void *user) {
    watch *self = user;
    self->model = state->model;
    LS_TRY(ls_callback_needs_whole(state, maker, false, "use .zero = 1, or look at the loss in a hook of your own"));
    return self->by_layer ? watch_layers(self, state->model) : LS_OK;
}

/* A failed run may have left a finding. */
static ls_status on_start(ls_trial_state *state, void *user) {
    (void)state;
    ((watch *)user)->found = NOTHING;
    return LS_OK;
}

/* `counted` is the number of steps that state->step already counts, although they have not ended. */
static void set_position(watch *self, const ls_trial_state *state, int64_t counted) {
    self->batch = state->batch;
    self->step = state->step - counted;
}

static ls_status on_sample(ls_trial_state *state, void *user) {
    watch *self = user;
    self->looks = !ls_callback_in_replay(state);
    set_position(self, state, 0);
    return LS_OK;
}

static ls_status on_forward(ls_trial_state *state, void *user) {
    watch *self = user;
    self->looks = false;
    return look(self, IN_OUTPUT, state->output, "the model's output");
}

static ls_status on_criterion(ls_trial_state *state, void *user) {
    return look_at_loss(user, state);
}

static ls_status on_backward(ls_trial_state *state, void *user) {
    watch *self = user;
    if (ls_callback_in_replay(state)) {
        return LS_OK;
    }
    /* the scaler skips steps with gradients that are not finite */
    const bool skips = state->trial->options.grad_scaler != NULL;
    set_position(self, state, 0); /* a rank without samples has not called on_sample */
    LS_TRY(self->found == NOTHING && !skips ? check_gradients(self, state->model) : LS_OK);
    return agree(self, state);
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    watch *self = user;
    if (state->trial->options.step == NULL || ls_callback_in_replay(state)) {
        return LS_OK;
    }
    set_position(self, state, 1);
    LS_TRY(look(self, IN_OUTPUT, state->output, "the model's output"));
    LS_TRY(look_at_loss(self, state));
    return agree(self, state);
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    return ls_callback_in_replay(state) ? LS_OK : agree(user, state);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(watch, by_layer), {.name = NULL}};
    ls_describe(text, size, maker, fields, user);
}

static void release(void *user) {
    watch *self = user;
    for (int i = 0; i < self->count; i++) {
        (void)ls_module_remove_hooks(self->layers[i].module, self->layers[i].hooks);
    }
    ls_free(self->layers);
    ls_free(self);
}

ls_callback *ls_terminate_on_nan(const ls_terminate_on_nan_options *options) {
    const watch self = {.by_layer = options != NULL && options->by_layer};
    return ls_callback_of(maker, &self, sizeof self,
                          &(ls_callback_hooks){.on_init = on_init,
                                               .on_start = on_start,
                                               .on_sample = on_sample,
                                               .on_forward = on_forward,
                                               .on_criterion = on_criterion,
                                               .on_backward = on_backward,
                                               .on_step_training = on_step_training,
                                               .on_sample_validation = on_sample,
                                               .on_forward_validation = on_forward,
                                               .on_criterion_validation = on_criterion,
                                               .on_end_validation = on_end_validation,
                                               .name = "terminate_on_nan",
                                               .describe = describe,
                                               .release = release});
}
