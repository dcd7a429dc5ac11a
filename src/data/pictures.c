#include "data/pictures.h"

#include <math.h>
#include <string.h>

static size_t element_size(const ls_picture *p) {
    return ls_dtype_size(p->dtype);
}

static char *row_of(const ls_picture *p, int64_t plane, int64_t row) {
    return (char *)p->pixels + (size_t)((plane * p->height + row) * p->width) * element_size(p);
}

static inline float load(const void *data, bool bytes, int64_t i) {
    return bytes ? (float)((const uint8_t *)data)[i] : ((const float *)data)[i];
}

/* For u8, the fraction is dropped. */
static inline void store(void *data, bool bytes, int64_t i, float value) {
    if (bytes) {
        ((uint8_t *)data)[i] = (uint8_t)value;
    } else {
        ((float *)data)[i] = value;
    }
}

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

static void fill_elements(const ls_picture *p, void *row, int64_t from, int64_t to, double fill) {
    if (p->dtype == LS_U8 && to > from) {
        memset((char *)row + from, (uint8_t)fill, (size_t)(to - from));
        return;
    }
    for (int64_t i = from; i < to; i++) {
        ((float *)row)[i] = (float)fill;
    }
}

void ls_picture_crop(const ls_picture *from, int64_t top, int64_t left, double fill, const ls_picture *to) {
    const int64_t begin = ls_picture_clamp(-left, to->width), end = ls_picture_clamp(from->width - left, to->width);
    for (int64_t plane = 0; plane < to->planes; plane++) {
        for (int64_t y = 0; y < to->height; y++) {
            char *row = row_of(to, plane, y);
            if (top + y < 0 || top + y >= from->height || begin >= end) {
                fill_elements(to, row, 0, to->width, fill);
                continue;
            }
            fill_elements(to, row, 0, begin, fill);
            memcpy(row + (size_t)begin * element_size(to),
                   row_of(from, plane, top + y) + (size_t)(left + begin) * element_size(to),
                   (size_t)(end - begin) * element_size(to));
            fill_elements(to, row, end, to->width, fill);
        }
    }
}

void ls_picture_flip_sides(const ls_picture *picture) {
    const bool bytes = picture->dtype == LS_U8;
    for (int64_t row = 0; row < picture->planes * picture->height; row++) {
        char *at = row_of(picture, 0, row);
        for (int64_t left = 0, right = picture->width - 1; left < right; left++, right--) {
            const float kept = load(at, bytes, left);
            store(at, bytes, left, load(at, bytes, right));
            store(at, bytes, right, kept);
        }
    }
}

static void exchange_rows(char *a, char *b, size_t size) {
    for (size_t i = 0; i < size; i++) {
        const char kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

void ls_picture_flip_rows(const ls_picture *picture) {
    const size_t size = (size_t)picture->width * element_size(picture);
    for (int64_t plane = 0; plane < picture->planes; plane++) {
        for (int64_t top = 0, bottom = picture->height - 1; top < bottom; top++, bottom--) {
            exchange_rows(row_of(picture, plane, top), row_of(picture, plane, bottom), size);
        }
    }
}

static float pixel(const ls_picture *p, int64_t plane, int64_t y, int64_t x, float fill) {
    const bool inside = y >= 0 && y < p->height && x >= 0 && x < p->width;
    return inside ? load(row_of(p, plane, y), p->dtype == LS_U8, x) : fill;
}

static float between_pixels(const ls_picture *p, int64_t plane, double y, double x, float fill) {
    const int64_t top = (int64_t)floor(y), left = (int64_t)floor(x);
    if (top < -1 || left < -1 || top >= p->height || left >= p->width) {
        return fill; /* interpolation could change its last bits */
    }
    const float down = (float)(y - (double)top), right = (float)(x - (double)left);
    const float above = pixel(p, plane, top, left, fill) * (1 - right) + pixel(p, plane, top, left + 1, fill) * right;
    const float below =
        pixel(p, plane, top + 1, left, fill) * (1 - right) + pixel(p, plane, top + 1, left + 1, fill) * right;
    return above * (1 - down) + below * down;
}

void ls_picture_rotate(const ls_picture *from, double degrees, double fill, const ls_picture *to) {
    const double pi = 3.14159265358979323846;
    const double cosine = cos(degrees * pi / 180), sine = sin(degrees * pi / 180);
    const double middle_y = (double)(from->height - 1) / 2, middle_x = (double)(from->width - 1) / 2;
    const bool bytes = to->dtype == LS_U8;
    for (int64_t row = 0; row < to->planes * to->height; row++) {
        const double y = (double)(row % to->height) - middle_y;
        for (int64_t column = 0; column < to->width; column++) {
            const double x = (double)column - middle_x;
            const float value = between_pixels(from, row / to->height, middle_y + sine * x + cosine * y,
                                               middle_x + cosine * x - sine * y, (float)fill);
            store(row_of(to, 0, row), bytes, column, bytes ? rintf(value) : value);
        }
    }
}

void ls_picture_fill(const ls_picture *picture, ls_rectangle where, double fill) {
    for (int64_t plane = 0; plane < picture->planes; plane++) {
        for (int64_t y = where.top; y < where.bottom; y++) {
            fill_elements(picture, row_of(picture, plane, y), where.left, where.right, fill);
        }
    }
}

/* ---- colours ----------------------------------------------------------------------------------------------------- */

static inline float blend(float x, float other, float ratio, float rest, float bound) {
    const float value = ratio * x + rest * other;
    return value < 0 ? 0 : value > bound ? bound : value;
}

/* Computes factor * x + (1 - factor) * other for all elements. */
static inline void blend_all(const ls_picture *p, bool bytes, double factor, float other) {
    const int64_t count = p->planes * p->height * p->width;
    const float ratio = (float)factor, rest = (float)(1 - factor), bound = bytes ? 255 : 1;
    for (int64_t i = 0; i < count; i++) {
        store(p->pixels, bytes, i, blend(load(p->pixels, bytes, i), other, ratio, rest, bound));
    }
}

/* Separate loops for each dtype. */
static void blend_with(const ls_picture *p, double factor, float other) {
    if (p->dtype == LS_U8) {
        blend_all(p, true, factor, other);
    } else {
        blend_all(p, false, factor, other);
    }
}

static inline float grey_at(const ls_picture *p, bool bytes, int64_t i) {
    const int64_t pixels = p->height * p->width;
    if (p->planes == 1) {
        return load(p->pixels, bytes, i);
    }
    const float grey = 0.2989F * load(p->pixels, bytes, i) + 0.587F * load(p->pixels, bytes, pixels + i) +
                       0.114F * load(p->pixels, bytes, 2 * pixels + i);
    return bytes ? truncf(grey) : grey;
}

static float mean_grey(const ls_picture *p) {
    const int64_t pixels = p->height * p->width;
    const bool bytes = p->dtype == LS_U8;
    double sum = 0;
    for (int64_t i = 0; i < pixels; i++) {
        sum += (double)grey_at(p, bytes, i);
    }
    return pixels > 0 ? (float)(sum / (double)pixels) : 0;
}

void ls_picture_brighten(const ls_picture *picture, double factor) {
    blend_with(picture, factor, 0);
}

void ls_picture_contrast(const ls_picture *picture, double factor) {
    blend_with(picture, factor, mean_grey(picture));
}

static inline void saturate(const ls_picture *p, bool bytes, double factor) {
    const int64_t pixels = p->height * p->width;
    const float ratio = (float)factor, rest = (float)(1 - factor), bound = bytes ? 255 : 1;
    for (int64_t i = 0; i < pixels; i++) {
        const float grey = grey_at(p, bytes, i);
        for (int64_t plane = 0; plane < 3; plane++) {
            const int64_t at = plane * pixels + i;
            store(p->pixels, bytes, at, blend(load(p->pixels, bytes, at), grey, ratio, rest, bound));
        }
    }
}

void ls_picture_saturate(const ls_picture *picture, double factor) {
    if (picture->planes == 3 && picture->dtype == LS_U8) {
        saturate(picture, true, factor);
    } else if (picture->planes == 3) {
        saturate(picture, false, factor);
    }
}
