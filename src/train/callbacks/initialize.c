/* Initializes weights: visits the modules of a model. */
#include "train/callbacks/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/ops/weight_norm.h"
#include "base/hash.h"
#include "base/random.h"
#include "tensor/scope.h"

static const char *const maker = "ls_initialize";

enum { NAME_ROOM = 256 };

/* ---- modules ----------------------------------------------------------------------------------------------------- */

static bool is_sharded(const ls_module *module) {
    bool is = false;
    for (int i = 0; i < module->own_parameters.count && !is; i++) {
        const ls_leaf *leaf = module->own_parameters.items[i].tensor->leaf;
        is = leaf != NULL && leaf->divisions[LS_DIVIDED_TENSOR].add != NULL;
    }
    return is;
}

/* Returns whether the module is selected. A layer that is sharded over ranks is never selected, because this rank
 * has only a shard of it. */
static bool is_meant(const ls_module *module, const char *const *words) {
    static const char *const usual[] = {"Linear", "Conv", NULL};
    const char *type = ls_module_type_name(module);
    bool is = false;
    for (words = words != NULL ? words : usual; *words != NULL; words++) {
        is = is || strstr(type, *words) != NULL;
    }
    return is && !is_sharded(module);
}

static ls_status visit_below(ls_module *module, const char *name, const char *const *words, ls_module_visitor visit,
                             void *user) {
    LS_TRY(is_meant(module, words) ? visit(module, name, user) : LS_OK);
    for (int i = 0; i < ls_module_child_count(module); i++) {
        const char *own = ls_module_child_name(module, i);
        char full[NAME_ROOM];
        (void)snprintf(full, sizeof full, "%s%s%s", name, name[0] != '\0' && own[0] != '\0' ? "." : "", own);
        LS_TRY(visit_below(ls_module_child(module, i), full, words, visit, user));
    }
    return LS_OK;
}

ls_status ls_visit_modules(ls_module *model, const char *const *words, ls_module_visitor visit, void *user) {
    return visit_below(model, "", words, visit, user);
}

/* Returns the parameter with this name if it has at least two axes and one element. Otherwise returns NULL. */
static ls_tensor *matrix_of(const ls_module *module, const char *name) {
    ls_tensor *weight = ls_module_find(module, name);
    return weight != NULL && ls_ndim(weight) >= 2 && ls_numel(weight) > 0 ? weight : NULL;
}

ls_tensor *ls_weight_of(const ls_module *module) {
    return matrix_of(module, "weight");
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static ls_status draw(ls_tensor *weight, ls_weight_rule rule, double slope, double gain) {
    switch (rule) {
    case LS_KAIMING_UNIFORM:
        return ls_nn_init_kaiming_uniform(weight, slope);
    case LS_KAIMING_NORMAL:
        return ls_nn_init_kaiming_normal(weight, slope);
    case LS_XAVIER_UNIFORM:
        return ls_nn_init_xavier_uniform(weight, gain);
    case LS_XAVIER_NORMAL:
        return ls_nn_init_xavier_normal(weight, gain);
    default:
        return ls_nn_init_orthogonal(weight, gain);
    }
}

ls_status ls_draw_weight(ls_tensor *weight, const char *name, ls_weight_rule rule, double slope, double gain,
                         uint64_t seed) {
    const ls_random_state before = ls_random_get_state();
    ls_random_set_state((ls_random_state){.seed = seed, .stream = ls_hash(LS_HASH_START, name, strlen(name))});
    const ls_status status = draw(weight, rule, slope, gain);
    ls_random_set_state(before);
    return status;
}

/* Sets the lengths of a layer with weight normalization to the norms of its directions. */
static ls_status set_lengths(ls_tensor *lengths, ls_tensor *directions) {
    ls_scope *scope = ls_scope_open();
    LS_TRY(ls_made(scope));
    (void)ls_no_grad(true);
    ls_tensor *norms = ls_weight_norms(directions);
    const ls_status status = norms != NULL ? ls_copy_into(lengths, norms) : ls_error_status();
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

static ls_status set(ls_module *module, const char *name, void *user) {
    const ls_initialize_options *o = user;
    ls_tensor *weight = ls_weight_of(module), *bias = ls_module_find(module, "bias");
    ls_tensor *lengths = ls_module_find(module, "weight_g"), *directions = matrix_of(module, "weight_v");
    const bool normed = weight == NULL && lengths != NULL && directions != NULL;
    weight = normed ? directions : weight;
    LS_TRY(weight != NULL ? ls_draw_weight(weight, name, o->rule, o->slope, o->gain, o->seed) : LS_OK);
    LS_TRY(normed ? set_lengths(lengths, directions) : LS_OK);
    return o->zero_bias && bias != NULL ? ls_nn_init_constant(bias, 0) : LS_OK;
}

static ls_status on_init(ls_trial_state *state, void *user) {
    const ls_initialize_options *o = user;
    LS_TRY(ls_callback_needs_parameters(state, maker, "initialize the model before ls_data_parallel, "));
    return ls_visit_modules(state->model, o->targets, set, user);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_initialize_options, rule), LS_FIELD(ls_initialize_options, slope),
                                      LS_FIELD(ls_initialize_options, gain), LS_FIELD(ls_initialize_options, zero_bias),
                                      LS_FIELD(ls_initialize_options, seed), {.name = NULL}};
    ls_describe(text, size, maker, fields, user);
}

ls_callback *ls_initialize(const ls_initialize_options *options) {
    ls_initialize_options o = options != NULL ? *options : (ls_initialize_options){.gain = 0};
    o.gain = ls_option(o.gain, 1);
    if (o.rule < 0 || o.rule >= LS_WEIGHT_RULES || !isfinite(o.slope) || !isfinite(o.gain)) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "%s: rule %d must be one of the %d rules, and slope %g and gain %g must be finite", maker,
                            (int)o.rule, (int)LS_WEIGHT_RULES, o.slope, o.gain);
    }
    return ls_callback_of(
        maker, &o, sizeof o,
        &(ls_callback_hooks){.on_init = on_init, .name = "initialize", .describe = describe, .release = ls_free});
}
