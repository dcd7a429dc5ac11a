/* Random changes of pictures: the state of the transforms in augment.c, and functions that callbacks also use. */
#ifndef LS_DATA_AUGMENT_H
#define LS_DATA_AUGMENT_H

#include <lockstep/data.h>

#include "base/draws.h"
#include "data/pictures.h"

/* The options of one transform. */
typedef struct ls_augmentation {
    const char *call; /* the name in messages */
    uint64_t salt;    /* selects its random numbers */
    union {
        ls_random_crop_options crop;
        ls_color_jitter_options jitter;
        ls_random_erasing_options erasing;
        struct {
            double horizontal, vertical;
        } flip;
        struct {
            double degrees, fill;
        } rotation;
        struct {
            int64_t length;
            int holes;
            double fill;
        } cutout;
    };
} ls_augmentation;

/* Returns a square around a random point of the picture, clipped to the picture. */
ls_rectangle ls_draw_square(ls_draws *draws, int64_t height, int64_t width, int64_t length);

#endif
