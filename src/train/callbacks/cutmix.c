/* Replaces rectangles of pictures with rectangles from other samples. */
#include "train/callbacks/samples.h"

#include <math.h>

enum { SALT = 2 };

static const char *const maker = "ls_cutmix";

typedef struct cutmix {
    ls_cutmix_options options;
    ls_partners partners;
} cutmix;

/* Positions from `start` to `end` - 1 along an axis. */
typedef struct box_side {
    int64_t start, end;
} box_side;

static box_side draw_side(ls_draws *draws, int64_t size, double length) {
    const int64_t wide = (int64_t)((double)size * length), centre = ls_draw_below(draws, size);
    const int64_t start = centre - wide / 2, end = centre - wide / 2 + wide;
    return (box_side){start > 0 ? start : 0, end < size ? end : size};
}

/* Returns a mask in host memory: 1 inside the rectangle. */
static ls_tensor *make_mask(int64_t height, int64_t width, box_side rows, box_side columns) {
    ls_tensor *mask = ls_tensor_new(maker, &ls_cpu, 2, (int64_t[]){height, width}, LS_BOOL);
    bool *inside = mask != NULL ? ls_host_data(mask) : NULL;
    for (int64_t i = 0; mask != NULL && i < height * width; i++) {
        const int64_t row = i / width, column = i % width;
        inside[i] = row >= rows.start && row < rows.end && column >= columns.start && column < columns.end;
    }
    return mask;
}

static ls_status on_sample(ls_trial_state *state, void *user) {
    cutmix *self = user;
    ls_tensor *input, *target;
    if (ls_callback_in_replay(state)) {
        return LS_OK;
    }
    const int64_t height = ls_size(state->input, -2), width = ls_size(state->input, -1);
    LS_TRY(ls_check_inputs(state, maker));
    if (ls_ndim(state->input) < 3 || height < 1 || width < 1) {
        return ls_fail(LS_ERR_SHAPE, "%s: inputs are %s, but must be [n, ..., height, width]", maker,
                       LS_SHAPE_TEXT(state->input));
    }
    ls_draws draws = ls_draws_of(state, self->options.seed, SALT, LS_WHOLE_BATCH);
    const double length = sqrt(1 - ls_draw_beta(&draws, self->options.alpha));
    const box_side rows = draw_side(&draws, height, length), columns = draw_side(&draws, width, length);
    const double area = (double)((rows.end - rows.start) * (columns.end - columns.start));
    const double share = 1 - area / (double)(height * width);
    LS_TRY(ls_partners_fetch(&self->partners, maker, state, draws, &input, &target));
    ls_tensor *mask = ls_tensor_to_device(make_mask(height, width, rows, columns), ls_device_of(state->input));
    LS_TRY(ls_put_tensor(&state->input, ls_where(mask, input, state->input)));
    return ls_put_tensor(&state->target, ls_mix_targets(maker, state->target, target, share, self->options.classes));
}

static void release(void *user) {
    cutmix *self = user;
    ls_partners_free(&self->partners);
    ls_free(self);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_cutmix_options, alpha),
                                      LS_FIELD(ls_cutmix_options, classes),
                                      LS_FIELD(ls_cutmix_options, seed),
                                      {.name = NULL}};
    ls_describe(text, size, maker, fields, &((const cutmix *)user)->options);
}

ls_callback *ls_cutmix(const ls_cutmix_options *options) {
    ls_cutmix_options o = options != NULL ? *options : (ls_cutmix_options){.alpha = 0};
    o.alpha = ls_option(o.alpha, 1);
    if (!(o.alpha > 0) || !isfinite(o.alpha) || o.classes < 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: alpha %g must be positive, and classes %lld must not be negative",
                            maker, o.alpha, (long long)o.classes);
    }
    const cutmix self = {.options = o};
    return ls_callback_of(
        maker, &self, sizeof self,
        &(ls_callback_hooks){.on_sample = on_sample, .name = "cutmix", .describe = describe, .release = release});
}
