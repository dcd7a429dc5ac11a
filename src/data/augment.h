/* Random changes of pictures: what the transforms of augment.c keep, and what they share with callbacks. */
#ifndef LS_DATA_AUGMENT_H
#define LS_DATA_AUGMENT_H

#include <lockstep/data.h>

#include "base/draws.h"
#include "data/pictures.h"

/* Options of one of them. */
typedef struct ls_augmentation {
    const char *call; /* as messages name it */
    uint64_t salt;    /* of its random numbers */
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

/* The part within a picture of a square around a random point of it. */
ls_rectangle ls_draw_square(ls_draws *draws, int64_t height, int64_t width, int64_t length);

#endif
