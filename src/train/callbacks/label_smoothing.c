/* Smooths targets. */
#include "train/callbacks/samples.h"

static const char *const maker = "ls_label_smoothing";

typedef struct smoothing {
    double epsilon;
    int64_t classes;
} smoothing;

static ls_status on_sample(ls_trial_state *state, void *user) {
    const smoothing *self = user;
    if (ls_callback_in_replay(state)) {
        return LS_OK;
    }
    ls_tensor *rows = ls_target_rows(maker, state->target, self->classes);
    if (rows == NULL || ls_ndim(rows) < 2) {
        return rows == NULL
                   ? ls_error_status()
                   : ls_fail(LS_ERR_SHAPE, "%s: targets are %s, but must be [n, classes]", maker, LS_SHAPE_TEXT(rows));
    }
    return ls_put_tensor(&state->target,
                         ls_add(ls_mul(rows, 1 - self->epsilon), self->epsilon / (double)ls_size(rows, 1)));
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(smoothing, epsilon), LS_FIELD(smoothing, classes), {.name = NULL}};
    ls_describe(text, size, maker, fields, user);
}

ls_callback *ls_label_smoothing(double epsilon, int64_t classes) {
    if (!(epsilon >= 0 && epsilon <= 1) || classes < 0) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "%s: epsilon %g must be from 0 to 1, and classes %lld must not be negative", maker, epsilon,
                            (long long)classes);
    }
    const smoothing self = {.epsilon = epsilon, .classes = classes};
    return ls_callback_of(
        maker, &self, sizeof self,
        &(ls_callback_hooks){
            .on_sample = on_sample, .name = "label_smoothing", .describe = describe, .release = ls_free});
}
