/* Mixes inputs and targets with inputs and targets of other samples. */
#include "train/callbacks/samples.h"

#include <math.h>

enum { SALT = 1 };

static const char *const maker = "ls_mixup";

typedef struct mixup {
    ls_mixup_options options;
    ls_partners partners;
} mixup;

static double draw_share(const mixup *self, ls_draws *draws) {
    return self->options.lambda != 0 ? self->options.lambda : ls_draw_beta(draws, self->options.alpha);
}

static ls_status on_sample(ls_trial_state *state, void *user) {
    mixup *self = user;
    ls_tensor *input, *target;
    if (ls_callback_in_replay(state)) {
        return LS_OK;
    }
    LS_TRY(ls_check_inputs(state, maker));
    ls_draws draws = ls_draws_of(state, self->options.seed, SALT, LS_WHOLE_BATCH);
    const double share = draw_share(self, &draws);
    LS_TRY(ls_partners_fetch(&self->partners, maker, state, draws, &input, &target));
    LS_TRY(ls_put_tensor(&state->input, ls_mix(state->input, input, share)));
    return self->options.keep_targets ? LS_OK
                                      : ls_put_tensor(&state->target, ls_mix_targets(maker, state->target, target,
                                                                                     share, self->options.classes));
}

static void release(void *user) {
    mixup *self = user;
    ls_partners_free(&self->partners);
    ls_free(self);
}

static ls_status check(const ls_mixup_options *o) {
    if (!(o->alpha > 0) || !isfinite(o->alpha)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: alpha %g must be positive", maker, o->alpha);
    }
    return o->classes >= 0 ? ls_option_within(maker, "lambda", o->lambda, 0, 1)
                           : ls_fail(LS_ERR_ARGUMENT, "%s: %lld classes", maker, (long long)o->classes);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_mixup_options, alpha),   LS_FIELD(ls_mixup_options, lambda),
                                      LS_FIELD(ls_mixup_options, classes), LS_FIELD(ls_mixup_options, keep_targets),
                                      LS_FIELD(ls_mixup_options, seed),    {.name = NULL}};
    ls_describe(text, size, maker, fields, &((const mixup *)user)->options);
}

ls_callback *ls_mixup(const ls_mixup_options *options) {
    ls_mixup_options o = options != NULL ? *options : (ls_mixup_options){.alpha = 0};
    o.alpha = ls_option(o.alpha, 1);
    if (check(&o) != LS_OK) {
        return NULL;
    }
    const mixup self = {.options = o};
    return ls_callback_of(
        maker, &self, sizeof self,
        &(ls_callback_hooks){.on_sample = on_sample, .name = "mixup", .describe = describe, .release = release});
}
