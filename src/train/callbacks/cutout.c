/* Fills squares of pictures. */
#include "train/callbacks/samples.h"

#include <math.h>
#include <string.h>

#include "data/augment.h"

enum { SALT = 3 };

static const char *const maker = "ls_cutout";

/* A batch [n, planes, height, width] in host memory, and the index of this rank's first sample in the global batch. */
typedef struct pictures {
    int64_t count, planes, height, width;
    int64_t first;
} pictures;

static void mark_hole(const pictures *p, int64_t length, ls_draws *draws, bool *mask) {
    const ls_rectangle hole = ls_draw_square(draws, p->height, p->width, length);
    for (int64_t row = hole.top; row < hole.bottom; row++) {
        memset(mask + row * p->width + hole.left, true, (size_t)(hole.right - hole.left));
    }
}

/* Draws the holes, and the noise [n, planes, height, width] to fill them. */
static void draw(const ls_cutout_options *o, const ls_trial_state *state, const pictures *p, bool *mask, float *noise) {
    const int64_t pixels = p->height * p->width;
    for (int64_t i = 0; i < p->count; i++) {
        ls_draws draws = ls_draws_of(state, o->seed, SALT, p->first + i);
        for (int k = 0; k < o->holes; k++) {
            mark_hole(p, o->length, &draws, mask + i * pixels);
        }
        for (int64_t k = 0; noise != NULL && k < p->planes * pixels; k++) {
            noise[i * p->planes * pixels + k] = (float)ls_draw_uniform(&draws);
        }
    }
}

static ls_tensor *make(const pictures *p, int64_t planes, ls_dtype dtype) {
    const int64_t size[] = {p->count, planes, p->height, p->width};
    ls_tensor *tensor = ls_tensor_new(maker, &ls_cpu, 4, size, dtype);
    if (tensor != NULL) {
        memset(ls_host_data(tensor), 0, (size_t)tensor->count * ls_dtype_size(dtype));
    }
    return tensor;
}

static ls_tensor *cut(const ls_cutout_options *o, const ls_trial_state *state, const pictures *p) {
    ls_tensor *x = state->input;
    const char *device = ls_device_of(x);
    ls_tensor *mask = make(p, 1, LS_BOOL), *noise = o->noise ? make(p, p->planes, LS_F32) : NULL;
    if (mask == NULL || (o->noise && noise == NULL)) {
        return NULL;
    }
    draw(o, state, p, ls_host_data(mask), noise != NULL ? ls_host_data(noise) : NULL);
    ls_tensor *fill = noise != NULL ? ls_to(ls_tensor_to_device(noise, device), ls_dtype_of(x))
                                    : ls_tensor_to_device(ls_scalar(o->fill, ls_dtype_of(x)), device);
    ls_tensor *flat = ls_reshape(x, LS_SHAPE(p->count, p->planes, p->height, p->width));
    return ls_reshape(ls_where(ls_tensor_to_device(mask, device), fill, flat), ls_shape_of(x));
}

static ls_status on_sample(ls_trial_state *state, void *user) {
    if (ls_callback_in_replay(state)) {
        return LS_OK;
    }
    const ls_tensor *x = state->input;
    pictures p = {.count = state->count, .height = ls_size(x, -2), .width = ls_size(x, -1)};
    LS_TRY(ls_check_inputs(state, maker));
    if (ls_ndim(x) < 3 || ls_numel(x) == 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: inputs are %s, but must be [n, ..., height, width]", maker, LS_SHAPE_TEXT(x));
    }
    p.planes = ls_numel(x) / (p.count * p.height * p.width);
    LS_TRY(ls_first_place(state, maker, &p.first));
    return ls_put_tensor(&state->input, cut(user, state, &p));
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_cutout_options, length), LS_FIELD(ls_cutout_options, holes),
                                      LS_FIELD(ls_cutout_options, fill),   LS_FIELD(ls_cutout_options, noise),
                                      LS_FIELD(ls_cutout_options, seed),   {.name = NULL}};
    ls_describe(text, size, maker, fields, user);
}

ls_callback *ls_cutout(const ls_cutout_options *options) {
    ls_cutout_options o = options != NULL ? *options : (ls_cutout_options){.length = 0};
    o.holes = o.holes != 0 ? o.holes : 1;
    if (o.length < 1 || o.holes < 1 || !isfinite(o.fill)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: length %lld and %d holes must be positive, and fill %g finite", maker,
                            (long long)o.length, o.holes, o.fill);
    }
    return ls_callback_of(
        maker, &o, sizeof o,
        &(ls_callback_hooks){.on_sample = on_sample, .name = "cutout", .describe = describe, .release = ls_free});
}
