/* Clips gradients after the backward pass. */
#include "train/callbacks/callback.h"

#include <math.h>

typedef struct limit {
    const char *maker;
    const char *instead; /* function to call in a user step */
    ls_status (*clip)(ls_module *model, double limit);
    double limit;
} limit;

static ls_status on_init(ls_trial_state *state, void *user) {
    const limit *self = user;
    return ls_callback_needs_hooks(state, self->maker, self->instead);
}

static ls_status on_backward(ls_trial_state *state, void *user) {
    const limit *self = user;
    return ls_callback_in_replay(state) ? LS_OK : self->clip(state->model, self->limit);
}

static ls_status clip_norm(ls_module *model, double max_norm) {
    return ls_clip_grad_norm(model, max_norm, NULL);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(limit, limit), {.name = NULL}};
    ls_describe(text, size, ((const limit *)user)->maker, fields, user);
}

static ls_callback *make(limit kind, const char *name) {
    if (!(kind.limit > 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the limit %g is not positive", kind.maker, kind.limit);
    }
    return ls_callback_mark_captured(ls_callback_of(
        kind.maker, &kind, sizeof kind,
        &(ls_callback_hooks){
            .on_init = on_init, .on_backward = on_backward, .name = name, .describe = describe, .release = ls_free}));
}

ls_callback *ls_gradient_norm_clipping(double max_norm) {
    return make((limit){"ls_gradient_norm_clipping", "ls_clip_grad_norm", clip_norm, max_norm},
                "gradient_norm_clipping");
}

ls_callback *ls_gradient_value_clipping(double value) {
    return make((limit){"ls_gradient_value_clipping", "ls_clip_grad_value", ls_clip_grad_value, value},
                "gradient_value_clipping");
}
