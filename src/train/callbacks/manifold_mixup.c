/* Mixes the outputs of a layer with its outputs for other samples, which are appended to the model's input. */
#include "train/callbacks/samples.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "parallel/slices.h"

enum { SALT = 4 };

static const char *const maker = "ls_manifold_mixup";

typedef struct layer {
    char *name; /* NULL selects the children of the model */
    ls_module *module;
    int hooks;
} layer;

typedef struct manifold {
    ls_manifold_mixup_options options;
    ls_partners partners;
    layer *layers;
    int count;
    bool begun;              /* the layers have hooks */
    const ls_module *chosen; /* layer to mix in this batch, until it has been mixed; NULL if there is none */
    double share;
} manifold;

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static ls_status on_layer(ls_module_call *call, void *user) {
    manifold *self = user;
    if (self->chosen != call->module) {
        return LS_OK;
    }
    self->chosen = NULL;
    for (int i = 0; i < call->output_count; i++) {
        ls_tensor *both = call->outputs[i];
        const int64_t rows = ls_size(both, 0) / 2;
        LS_TRY(ls_put_tensor(&call->outputs[i],
                             ls_mix(ls_narrow(both, 0, 0, rows), ls_narrow(both, 0, rows, rows), self->share)));
    }
    return LS_OK;
}

static ls_status add_layer(manifold *self, ls_module *module, const char *name) {
    layer *layers = ls_grow(self->layers, (size_t)self->count, sizeof *layers);
    if (layers == NULL) {
        return ls_fail_memory(maker, (size_t)(self->count + 1) * sizeof *layers);
    }
    self->layers = layers;
    layers[self->count] = (layer){.module = module, .name = ls_duplicate_string(name)};
    self->count++;
    return name == NULL || layers[self->count - 1].name != NULL ? LS_OK : ls_fail_memory(maker, strlen(name) + 1);
}

/* Returns the model inside wrappers. A wrapper such as ls_data_parallel has the model as its only child, without a
 * name. */
static ls_module *unwrapped(ls_module *model) {
    const char *name = ls_module_child_name(model, 0);
    return ls_module_child_count(model) == 1 && name != NULL && name[0] == '\0' ? unwrapped(ls_module_child(model, 0))
                                                                                : model;
}

static ls_status find_layers(manifold *self, ls_module *model) {
    for (int i = 0; i < self->count; i++) {
        self->layers[i].module = ls_module_find_child(model, self->layers[i].name);
        if (self->layers[i].module == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: the model has no layer \"%s\"", maker, self->layers[i].name);
        }
    }
    for (int i = 0; self->options.layers == NULL && i < ls_module_child_count(model); i++) {
        LS_TRY(add_layer(self, ls_module_child(model, i), NULL));
    }
    return self->count > 0 ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: the model contains no layers", maker);
}

/* Adds the hooks of the layers. A condition (ls_only_if) may have skipped on_init. */
static ls_status begin(manifold *self, const ls_trial_state *state) {
    if (self->begun) {
        return LS_OK;
    }
    LS_TRY(find_layers(self, unwrapped(state->model)));
    for (int i = 0; i < self->count; i++) {
        layer *l = &self->layers[i];
        l->hooks = ls_module_add_hooks(l->module, &(ls_module_hooks){.user = self, .forward = on_layer});
        LS_TRY(l->hooks > 0 ? LS_OK : ls_error_status());
    }
    self->begun = true;
    return LS_OK;
}

static ls_status on_init(ls_trial_state *state, void *user) {
    return begin(user, state);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* If the last step failed before it reached the chosen layer, the next evaluation must not mix a batch. */
static ls_status on_start(ls_trial_state *state, void *user) {
    (void)state;
    ((manifold *)user)->chosen = NULL;
    return LS_OK;
}

static ls_status on_sample(ls_trial_state *state, void *user) {
    manifold *self = user;
    ls_tensor *input, *target;
    if (ls_callback_in_replay(state)) {
        return LS_OK;
    }
    const ls_slices *slices = ls_data_parallel_slices(state->model);
    if (slices != NULL && slices->meets) { /* the slices take turns, but the callback can mix only one at a time */
        return ls_fail(LS_ERR_UNSUPPORTED, "%s: cannot be combined with .shards if the model has batch normalization",
                       maker);
    }
    LS_TRY(begin(self, state));
    LS_TRY(ls_check_rows(state, maker));
    ls_draws draws = ls_draws_of(state, self->options.seed, SALT, LS_WHOLE_BATCH);
    self->share = self->options.lambda != 0 ? self->options.lambda : ls_draw_beta(&draws, self->options.alpha);
    const ls_module *chosen = self->layers[ls_draw_below(&draws, self->count)].module;
    LS_TRY(ls_partners_fetch(&self->partners, maker, state, draws, &input, &target));
    LS_TRY(ls_put_tensor(&state->input, ls_concat((ls_tensor *const[]){state->input, input}, 2, 0)));
    LS_TRY(ls_put_tensor(&state->target,
                         ls_mix_targets(maker, state->target, target, self->share, self->options.classes)));
    self->chosen = chosen;
    return LS_OK;
}

/* Fails if the model did not call the chosen layer. A trial with a user step calls only on_step_training. */
static ls_status check_mixed(ls_trial_state *state, void *user) {
    manifold *self = user;
    if (!ls_callback_in_replay(state) && self->chosen != NULL) {
        self->chosen = NULL;
        return ls_fail(LS_ERR_STATE, "%s: the model did not call the selected layer", maker);
    }
    return LS_OK;
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_manifold_mixup_options, alpha),
                                      LS_FIELD(ls_manifold_mixup_options, lambda),
                                      LS_FIELD(ls_manifold_mixup_options, classes),
                                      LS_FIELD(ls_manifold_mixup_options, seed),
                                      {.name = NULL}};
    const manifold *self = user;
    ls_describe(text, size, maker, fields, &self->options);
    size_t length = strlen(text);
    for (int i = 0; i < self->count && self->layers[i].name != NULL && length < size; i++) {
        length += (size_t)snprintf(text + length, size - length, "%s%s", i == 0 ? " of " : ", ", self->layers[i].name);
    }
}

static void release(void *user) {
    manifold *self = user;
    for (int i = 0; i < self->count; i++) {
        if (self->layers[i].hooks > 0) {
            (void)ls_module_remove_hooks(self->layers[i].module, self->layers[i].hooks);
        }
        ls_free(self->layers[i].name);
    }
    ls_free(self->layers);
    ls_partners_free(&self->partners);
    ls_free(self);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static ls_status check(const ls_manifold_mixup_options *o) {
    if (!(o->alpha > 0) || !isfinite(o->alpha) || o->classes < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: alpha %g must be positive, and classes %lld must not be negative", maker,
                       o->alpha, (long long)o->classes);
    }
    if (o->layers != NULL && o->layers[0] == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the list of layers is empty", maker);
    }
    return ls_option_within(maker, "lambda", o->lambda, 0, 1);
}

static ls_status copy_names(manifold *self) {
    for (int i = 0; self->options.layers != NULL && self->options.layers[i] != NULL; i++) {
        LS_TRY(add_layer(self, NULL, self->options.layers[i]));
    }
    return LS_OK;
}

ls_callback *ls_manifold_mixup(const ls_manifold_mixup_options *options) {
    ls_manifold_mixup_options o = options != NULL ? *options : (ls_manifold_mixup_options){.alpha = 0};
    o.alpha = ls_option(o.alpha, 1);
    manifold *self = check(&o) == LS_OK ? ls_allocate_for(maker, 1, sizeof *self) : NULL;
    if (self == NULL) {
        return NULL;
    }
    self->options = o;
    if (copy_names(self) != LS_OK) {
        release(self);
        return NULL;
    }
    return ls_callback_make(&(ls_callback_hooks){.on_init = on_init,
                                                 .on_start = on_start,
                                                 .on_sample = on_sample,
                                                 .on_forward = check_mixed,
                                                 .on_step_training = check_mixed,
                                                 .name = "manifold_mixup",
                                                 .describe = describe,
                                                 .release = release},
                            self);
}
