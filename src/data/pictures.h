/* Pictures in memory, and what can be done to one: geometry and colours, with nothing random about it. */
#ifndef LS_DATA_PICTURES_H
#define LS_DATA_PICTURES_H

#include <lockstep/tensor.h>

/* Elements [planes, height, width] of u8 or f32. */
typedef struct ls_picture {
    void *pixels; /* on the host */
    int64_t planes, height, width;
    ls_dtype dtype;
} ls_picture;

/* Rows top to below bottom, columns left to below right. */
typedef struct ls_rectangle {
    int64_t top, left, bottom, right;
} ls_rectangle;

/* The nearest position from 0 to size. */
static inline int64_t ls_picture_clamp(int64_t position, int64_t size) {
    return position < 0 ? 0 : position > size ? size : position;
}

/* `to` becomes what is at (top, left) of `from`, of its own size; outside of that is `fill`. */
void ls_picture_crop(const ls_picture *from, int64_t top, int64_t left, double fill, const ls_picture *to);
/* Exchanges left and right; top and bottom. */
void ls_picture_flip_sides(const ls_picture *picture);
void ls_picture_flip_rows(const ls_picture *picture);
/* About the middle, positive against the clock, bilinear; outside of `from` is `fill`. */
void ls_picture_rotate(const ls_picture *from, double degrees, double fill, const ls_picture *to);
/* A rectangle within the picture. */
void ls_picture_fill(const ls_picture *picture, ls_rectangle where, double fill);

/* Values are from 0 to 255 (u8) or from 0 to 1 (f32), and stay so. Of one plane, or red, green and blue. */
void ls_picture_brighten(const ls_picture *picture, double factor);
void ls_picture_contrast(const ls_picture *picture, double factor);
void ls_picture_saturate(const ls_picture *picture, double factor);

#endif
