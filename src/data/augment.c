/* Transforms that change each picture of a batch at random. */
#include "data/augment.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/option.h"
#include "data/dataset.h"
#include "tensor/device.h"
#include "tensor/scope.h"

/* ---- all pictures of a batch ------------------------------------------------------------------------------------- */

/* Changes `picture`, a copy of `from`, in place, or computes it from `from`, which has the size before the change. */
typedef void picture_change(const ls_augmentation *own, ls_draws *draws, const ls_picture *from,
                            const ls_picture *picture);

static ls_status check_pictures(const ls_augmentation *own, const ls_tensor *x) {
    if ((x->dtype == LS_U8 || x->dtype == LS_F32) && x->ndim >= 3) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_ARGUMENT, "%s: inputs are %s of %s; they must be [n, ..., height, width] of u8 or f32",
                   own->call, LS_SHAPE_TEXT(x), ls_dtype_name((ls_dtype)x->dtype));
}

/* Returns the random numbers for the sample at a position of an epoch. */
static ls_draws draws_of(const ls_samples *samples, uint64_t salt, int64_t i) {
    return ls_draws_salted(samples->seed, salt, ((uint64_t)samples->epoch << 40) + (uint64_t)samples->places[i]);
}

/* Returns a new batch of the given height and width. */
static ls_tensor *change_pictures(const ls_tensor *x, const ls_samples *samples, const ls_augmentation *own,
                                  int64_t height, int64_t width, picture_change *change) {
    int64_t size[LS_MAX_DIMS];
    memcpy(size, x->size, sizeof size);
    size[x->ndim - 2] = height;
    size[x->ndim - 1] = width;
    ls_tensor *result = ls_tensor_new(own->call, &ls_cpu, x->ndim, size, (ls_dtype)x->dtype);
    if (result == NULL) {
        return NULL;
    }
    ls_picture from = {
        .planes = 1, .height = x->size[x->ndim - 2], .width = x->size[x->ndim - 1], .dtype = (ls_dtype)x->dtype};
    for (int i = 1; i < x->ndim - 2; i++) {
        from.planes *= x->size[i];
    }
    ls_picture to = from;
    to.height = height;
    to.width = width;
    const size_t element = ls_dtype_size(from.dtype);
    for (int64_t i = 0; i < x->size[0]; i++) {
        ls_draws draws = draws_of(samples, own->salt, i);
        from.pixels = (char *)ls_host_data(x) + (size_t)(i * from.planes * from.height * from.width) * element;
        to.pixels = (char *)ls_host_data(result) + (size_t)(i * to.planes * to.height * to.width) * element;
        change(own, &draws, &from, &to);
    }
    return result;
}

static ls_tensor *change_all(ls_tensor *batch, const ls_samples *samples, const ls_augmentation *own,
                             picture_change *change) {
    const ls_tensor *x = check_pictures(own, batch) == LS_OK ? ls_contiguous(batch) : ls_scope_failed();
    return x != NULL ? change_pictures(x, samples, own, x->size[x->ndim - 2], x->size[x->ndim - 1], change) : NULL;
}

static void copy_picture(const ls_picture *from, const ls_picture *to) {
    memcpy(to->pixels, from->pixels, (size_t)(to->planes * to->height * to->width) * ls_dtype_size(to->dtype));
}

/* The random streams differ for each kind of transform, and for each position among a data set's transforms. */
enum { CROP, FLIP, ROTATION, JITTER, ERASING, CUTOUT, KINDS };
enum { FIRST_SALT = 64 }; /* after the salts of callbacks; dataset.c's salts come after these */

static ls_dataset *add(ls_dataset *dataset, ls_transform function, int kind, ls_augmentation own) {
    const int steps = dataset != NULL ? dataset->earlier_steps + dataset->input.count : 0;
    own.salt = (uint64_t)(FIRST_SALT + kind + KINDS * steps);
    return ls_dataset_add_step(
        dataset, false, (ls_transform_step){.function = function, .built_in = true, .options.augmentation = own});
}

static ls_dataset *refuse(ls_dataset *dataset) {
    ls_dataset_consume(dataset);
    return NULL;
}

static const ls_augmentation *own_of(const void *user) {
    return &((const ls_step_options *)user)->augmentation;
}

/* Checks that the dtype of the inputs can represent `fill`. */
static ls_status check_fill(const ls_dataset *dataset, const char *call, double fill) {
    const bool bytes = dataset != NULL && dataset->layout.input_dtype == LS_U8;
    LS_TRY(bytes ? ls_option_within(call, "fill", fill, 0, 255)
                 : ls_option_within(call, "fill", fill, -FLT_MAX, FLT_MAX));
    return !bytes || fill == floor(fill)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: fill is %g, but must be a whole number for u8 inputs", call, fill);
}

/* ---- crops ------------------------------------------------------------------------------------------------------- */

static void crop(const ls_augmentation *own, ls_draws *draws, const ls_picture *from, const ls_picture *picture) {
    const int64_t padding = own->crop.padding;
    const int64_t top = ls_draw_below(draws, from->height + 2 * padding - picture->height + 1);
    const int64_t left = ls_draw_below(draws, from->width + 2 * padding - picture->width + 1);
    ls_picture_crop(from, top - padding, left - padding, own->crop.fill, picture);
}

static ls_tensor *crop_all(ls_tensor *batch, const ls_samples *samples, void *user) {
    const ls_augmentation *own = own_of(user);
    if (check_pictures(own, batch) != LS_OK) {
        return ls_scope_failed();
    }
    const ls_tensor *x = ls_contiguous(batch);
    if (x == NULL) {
        return NULL;
    }
    const int64_t h = x->size[x->ndim - 2], w = x->size[x->ndim - 1], padding = own->crop.padding;
    const int64_t height = own->crop.height > 0 ? own->crop.height : h;
    const int64_t width = own->crop.width > 0 ? own->crop.width : w;
    if (height > h + 2 * padding || width > w + 2 * padding) {
        (void)ls_fail(LS_ERR_SHAPE,
                      "%s: a crop of %lld x %lld pixels is larger than inputs of %lld x %lld with a padding of %lld",
                      own->call, (long long)height, (long long)width, (long long)h, (long long)w, (long long)padding);
        return ls_scope_failed();
    }
    return change_pictures(x, samples, own, height, width, crop);
}

ls_dataset *ls_dataset_random_crop(ls_dataset *dataset, const ls_random_crop_options *options) {
    static const char *const call = "ls_dataset_random_crop";
    static const int64_t most = (int64_t)1 << 31;
    const ls_random_crop_options o = options != NULL ? *options : (ls_random_crop_options){.padding = 0};
    if (o.height < 0 || o.width < 0 || o.padding < 0 || o.padding > most) {
        (void)ls_fail(LS_ERR_ARGUMENT,
                      "%s: height %lld, width %lld and padding %lld must be 0 or more, and the padding at most 2^31",
                      call, (long long)o.height, (long long)o.width, (long long)o.padding);
        return refuse(dataset);
    }
    return check_fill(dataset, call, o.fill) == LS_OK
               ? add(dataset, crop_all, CROP, (ls_augmentation){.call = call, .crop = o})
               : refuse(dataset);
}

/* ---- flips and rotations ----------------------------------------------------------------------------------------- */

static void flip(const ls_augmentation *own, ls_draws *draws, const ls_picture *from, const ls_picture *picture) {
    copy_picture(from, picture);
    if (ls_draw_uniform(draws) < own->flip.horizontal) {
        ls_picture_flip_sides(picture);
    }
    if (ls_draw_uniform(draws) < own->flip.vertical) {
        ls_picture_flip_rows(picture);
    }
}

static ls_tensor *flip_all(ls_tensor *batch, const ls_samples *samples, void *user) {
    return change_all(batch, samples, own_of(user), flip);
}

ls_dataset *ls_dataset_random_flip(ls_dataset *dataset, double horizontal, double vertical) {
    static const char *const call = "ls_dataset_random_flip";
    const ls_augmentation own = {.call = call, .flip = {horizontal, vertical}};
    return ls_option_within(call, "horizontal", horizontal, 0, 1) == LS_OK &&
                   ls_option_within(call, "vertical", vertical, 0, 1) == LS_OK
               ? add(dataset, flip_all, FLIP, own)
               : refuse(dataset);
}

static void rotate(const ls_augmentation *own, ls_draws *draws, const ls_picture *from, const ls_picture *picture) {
    ls_picture_rotate(from, own->rotation.degrees * (2 * ls_draw_uniform(draws) - 1), own->rotation.fill, picture);
}

static ls_tensor *rotate_all(ls_tensor *batch, const ls_samples *samples, void *user) {
    return change_all(batch, samples, own_of(user), rotate);
}

ls_dataset *ls_dataset_random_rotation(ls_dataset *dataset, double degrees, double fill) {
    static const char *const call = "ls_dataset_random_rotation";
    const ls_augmentation own = {.call = call, .rotation = {degrees, fill}};
    return ls_option_within(call, "degrees", degrees, 0, 360) == LS_OK && check_fill(dataset, call, fill) == LS_OK
               ? add(dataset, rotate_all, ROTATION, own)
               : refuse(dataset);
}

/* ---- colours ----------------------------------------------------------------------------------------------------- */

static double draw_factor(ls_draws *draws, double most) {
    const double least = most < 1 ? 1 - most : 0;
    return least + ls_draw_uniform(draws) * (1 + most - least);
}

static void jitter(const ls_augmentation *own, ls_draws *draws, const ls_picture *from, const ls_picture *picture) {
    static void (*const changes[])(const ls_picture *, double) = {ls_picture_brighten, ls_picture_contrast,
                                                                  ls_picture_saturate};
    const double most[] = {own->jitter.brightness, own->jitter.contrast, own->jitter.saturation};
    int order[] = {0, 1, 2};
    copy_picture(from, picture);
    for (int i = 2; i > 0; i--) {
        const int j = (int)ls_draw_below(draws, i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (int i = 0; i < 3; i++) {
        const double factor = draw_factor(draws, most[order[i]]);
        if (most[order[i]] > 0) {
            changes[order[i]](picture, factor);
        }
    }
}

static ls_tensor *jitter_all(ls_tensor *batch, const ls_samples *samples, void *user) {
    const ls_augmentation *own = own_of(user);
    const int64_t channels = batch->ndim == 4 ? batch->size[1] : batch->ndim == 3 ? 1 : 0;
    if (channels != 1 && channels != 3) {
        (void)ls_fail(LS_ERR_SHAPE,
                      "%s: inputs are %s; they must be [n, 3, height, width], [n, 1, height, width] or [n, height, "
                      "width]",
                      own->call, LS_SHAPE_TEXT(batch));
        return ls_scope_failed();
    }
    return change_all(batch, samples, own, jitter);
}

ls_dataset *ls_dataset_color_jitter(ls_dataset *dataset, const ls_color_jitter_options *options) {
    static const char *const call = "ls_dataset_color_jitter";
    const ls_color_jitter_options o = options != NULL ? *options : (ls_color_jitter_options){.brightness = 0};
    const bool good = ls_option_within(call, "brightness", o.brightness, 0, 1e6) == LS_OK &&
                      ls_option_within(call, "contrast", o.contrast, 0, 1e6) == LS_OK &&
                      ls_option_within(call, "saturation", o.saturation, 0, 1e6) == LS_OK;
    return good ? add(dataset, jitter_all, JITTER, (ls_augmentation){.call = call, .jitter = o}) : refuse(dataset);
}

/* ---- holes ------------------------------------------------------------------------------------------------------- */

static void fill_with_noise(const ls_picture *p, ls_rectangle hole, ls_draws *draws) {
    for (int64_t row = 0; row < p->planes * p->height; row++) {
        const bool in_hole = row % p->height >= hole.top && row % p->height < hole.bottom;
        for (int64_t column = hole.left; in_hole && column < hole.right; column++) {
            if (p->dtype == LS_U8) {
                ((uint8_t *)p->pixels)[row * p->width + column] = (uint8_t)ls_draw_below(draws, 256);
            } else {
                ((float *)p->pixels)[row * p->width + column] = (float)ls_draw_normal(draws);
            }
        }
    }
}

static double between(ls_draws *draws, double least, double most) {
    return least + ls_draw_uniform(draws) * (most - least);
}

/*
 * Draws the area and the aspect ratio (uniform in its logarithm) until the rectangle is smaller than the picture, at
 * most ten times.
 */
static bool draw_rectangle(const ls_random_erasing_options *o, ls_draws *draws, const ls_picture *p,
                           ls_rectangle *hole) {
    for (int tries = 0; tries < 10; tries++) {
        const double area = (double)(p->height * p->width) * between(draws, o->least_area, o->most_area);
        const double ratio = exp(between(draws, log(o->least_ratio), log(o->most_ratio)));
        const double height = rint(sqrt(area * ratio)), width = rint(sqrt(area / ratio));
        if (height < (double)p->height && width < (double)p->width) {
            hole->top = ls_draw_below(draws, p->height - (int64_t)height + 1);
            hole->left = ls_draw_below(draws, p->width - (int64_t)width + 1);
            hole->bottom = hole->top + (int64_t)height;
            hole->right = hole->left + (int64_t)width;
            return true;
        }
    }
    return false;
}

static void erase(const ls_augmentation *own, ls_draws *draws, const ls_picture *from, const ls_picture *picture) {
    const ls_random_erasing_options *o = &own->erasing;
    ls_rectangle hole;
    copy_picture(from, picture);
    if (ls_draw_uniform(draws) >= o->probability || !draw_rectangle(o, draws, picture, &hole)) {
        return;
    }
    if (o->noise) {
        fill_with_noise(picture, hole, draws);
    } else {
        ls_picture_fill(picture, hole, o->fill);
    }
}

static ls_tensor *erase_all(ls_tensor *batch, const ls_samples *samples, void *user) {
    return change_all(batch, samples, own_of(user), erase);
}

static ls_status check_erasing(const ls_dataset *dataset, const char *call, const ls_random_erasing_options *o) {
    LS_TRY(ls_option_within(call, "probability", o->probability, 0, 1));
    LS_TRY(ls_option_within(call, "most_area", o->most_area, 0, 1));
    LS_TRY(ls_option_within(call, "least_area", o->least_area, 0, o->most_area));
    LS_TRY(ls_option_within(call, "most_ratio", o->most_ratio, 1e-6, 1e6));
    LS_TRY(ls_option_within(call, "least_ratio", o->least_ratio, 1e-6, o->most_ratio));
    return check_fill(dataset, call, o->fill);
}

ls_dataset *ls_dataset_random_erasing(ls_dataset *dataset, const ls_random_erasing_options *options) {
    static const char *const call = "ls_dataset_random_erasing";
    ls_random_erasing_options o = options != NULL ? *options : (ls_random_erasing_options){.fill = 0};
    o.probability = ls_option(o.probability, 0.5);
    o.least_area = ls_option(o.least_area, 0.02);
    o.most_area = ls_option(o.most_area, 0.33);
    o.least_ratio = ls_option(o.least_ratio, 0.3);
    o.most_ratio = ls_option(o.most_ratio, 3.3);
    return check_erasing(dataset, call, &o) == LS_OK
               ? add(dataset, erase_all, ERASING, (ls_augmentation){.call = call, .erasing = o})
               : refuse(dataset);
}

ls_rectangle ls_draw_square(ls_draws *draws, int64_t height, int64_t width, int64_t length) {
    const int64_t top = ls_draw_below(draws, height) - length / 2;
    const int64_t left = ls_draw_below(draws, width) - length / 2;
    return (ls_rectangle){.top = ls_picture_clamp(top, height),
                          .left = ls_picture_clamp(left, width),
                          .bottom = ls_picture_clamp(top + length, height),
                          .right = ls_picture_clamp(left + length, width)};
}

static void cut_out(const ls_augmentation *own, ls_draws *draws, const ls_picture *from, const ls_picture *picture) {
    copy_picture(from, picture);
    for (int i = 0; i < own->cutout.holes; i++) {
        ls_picture_fill(picture, ls_draw_square(draws, picture->height, picture->width, own->cutout.length),
                        own->cutout.fill);
    }
}

static ls_tensor *cut_out_all(ls_tensor *batch, const ls_samples *samples, void *user) {
    return change_all(batch, samples, own_of(user), cut_out);
}

ls_dataset *ls_dataset_cutout(ls_dataset *dataset, int64_t length, int holes, double fill) {
    static const char *const call = "ls_dataset_cutout";
    const ls_augmentation own = {.call = call, .cutout = {length, holes, fill}};
    if (length < 1 || holes < 1) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: length %lld and %d holes must be positive", call, (long long)length, holes);
        return refuse(dataset);
    }
    return check_fill(dataset, call, fill) == LS_OK ? add(dataset, cut_out_all, CUTOUT, own) : refuse(dataset);
}
