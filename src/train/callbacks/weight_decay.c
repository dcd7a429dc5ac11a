/* Adds norms of the parameters to the loss. */
#include "train/callbacks/callback.h"

#include <math.h>

#include "parallel/pipeline.h"

static const char *const maker = "ls_weight_decay";

typedef struct weight_decay {
    double rate;
    double p;
} weight_decay;

static ls_status on_init(ls_trial_state *state, void *user) {
    (void)user;
    LS_TRY(ls_callback_needs_hooks(state, maker, "ls_norm_axes of the parameters"));
    LS_TRY(!ls_module_has_pipeline(state->model)
               ? LS_OK
               : ls_fail(LS_ERR_UNSUPPORTED,
                         "%s: the model is a pipeline, whose ranks have different layers: use .weight_decay of the "
                         "optimizer, for example of ls_adamw",
                         maker));
    return ls_callback_needs_whole(state, maker, true, "use .weight_decay of the optimizer, for example of ls_adamw");
}

static ls_status on_criterion(ls_trial_state *state, void *user) {
    const weight_decay *self = user;
    for (int i = 0; !ls_callback_in_replay(state) && i < ls_module_parameter_count(state->model); i++) {
        ls_tensor *norm = ls_norm_axes(ls_module_parameter(state->model, i), self->p, LS_ALL_AXES, false);
        ls_tensor *sum = ls_add(state->loss, ls_mul(norm, self->rate));
        LS_TRY(ls_made(sum));
        state->loss = sum;
    }
    return LS_OK;
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(weight_decay, rate), LS_FIELD(weight_decay, p), {.name = NULL}};
    ls_describe(text, size, maker, fields, user);
}

ls_callback *ls_weight_decay(double rate, double p) {
    if (!(rate >= 0) || !isfinite(rate) || !(p > 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: rate %g must not be negative, and p %g must be positive", maker, rate,
                            p);
    }
    const weight_decay self = {.rate = rate, .p = p};
    return ls_callback_mark_captured(ls_callback_of(maker, &self, sizeof self,
                                                    &(ls_callback_hooks){.on_init = on_init,
                                                                         .on_criterion = on_criterion,
                                                                         .name = "weight_decay",
                                                                         .describe = describe,
                                                                         .release = ls_free}));
}
