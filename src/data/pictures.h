/* Pictures in memory, and deterministic changes of their geometry and colors. */
#ifndef LS_DATA_PICTURES_H
#define LS_DATA_PICTURES_H

#include <lockstep/tensor.h>

/* A picture: elements [planes, height, width] of u8 or f32. */
typedef struct ls_picture {
    void *pixels; /* on the host */
    int64_t planes, height, width;
    ls_dtype dtype;
} ls_picture;

/* Rows top to bottom - 1, and columns left to right - 1. */
typedef struct ls_rectangle {
    int64_t top, left, bottom, right;
} ls_rectangle;

/* Returns the nearest position in [0, size]. */
static inline int64_t ls_picture_clamp(int64_t position, int64_t size) {
    return position < 0 ? 0 : position > size ? size : position;
}

/* Copies a part of `from` into `to`: it starts at (top, left), and has the size of `to`. Pixels outside `from`
 * become `fill`. */
void ls_picture_crop(const ls_picture *from, int64_t top, int64_t left, double fill, const ls_picture *to);
/* Mirrors the picture: the first function swaps left and right, the second swaps top and bottom. */
void ls_picture_flip_sides(const ls_picture *picture);
void ls_picture_flip_rows(const ls_picture *picture);
/* Rotates around the center, with bilinear interpolation, counterclockwise for positive angles. Pixels outside
 * `from` become `fill`. */
void ls_picture_rotate(const ls_picture *from, double degrees, double fill, const ls_picture *to);
/* Fills a rectangle inside the picture. */
void ls_picture_fill(const ls_picture *picture, ls_rectangle where, double fill);

/* Changes the colors. Values are clamped to [0, 255] (u8) or [0, 1] (f32). The picture has one plane, or red, green
 * and blue planes. */
void ls_picture_brighten(const ls_picture *picture, double factor);
void ls_picture_contrast(const ls_picture *picture, double factor);
void ls_picture_saturate(const ls_picture *picture, double factor);

#endif
