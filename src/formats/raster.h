/* Pictures in memory, as the decoders in png.c and jpeg.c produce them. */
#ifndef LS_FORMATS_RASTER_H
#define LS_FORMATS_RASTER_H

#include <lockstep/formats.h>

#include "base/status.h"

/* Rows from top to bottom, pixels from left to right; the bytes of a pixel are adjacent. */
typedef struct ls_raster {
    int64_t height, width;
    int64_t channels; /* 1 for gray, 3 for red, green and blue */
    unsigned char *pixels;
} ls_raster;

/* An encoded file in memory. */
typedef struct ls_encoded {
    const char *call; /* call and path begin messages */
    const char *path;
    const unsigned char *bytes;
    size_t size;
} ls_encoded;

/*
 * Allocates the pixels of a picture with picture->channels channels if its size is plausible. `most` is the maximum
 * number of pixels that the file can contain.
 */
ls_status ls_raster_allocate(const ls_encoded *file, size_t height, size_t width, size_t most, ls_raster *picture);

#endif
