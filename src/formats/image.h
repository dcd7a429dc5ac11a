/* Pictures in memory, and what decodes them: png.c over libpng and jpeg.c over libjpeg, which are opened when the first
 * picture comes. */
#ifndef LS_FORMATS_IMAGE_H
#define LS_FORMATS_IMAGE_H

#include <lockstep/formats.h>

#include "base/status.h"

/* Rows from above, pixels from the left, the bytes of a pixel side by side. */
typedef struct ls_raster {
    int64_t height, width;
    int64_t channels; /* 1: gray; 3: red, green, blue */
    unsigned char *pixels;
} ls_raster;

/* A file in memory, being decoded. */
typedef struct ls_encoded {
    const char *call; /* these two begin messages */
    const char *path;
    const unsigned char *bytes;
    size_t size;
} ls_encoded;

/* Reads and decodes a PNG or JPEG file. Free picture->pixels with ls_free; on failure they are NULL. */
ls_status ls_raster_read(const char *call, const char *path, ls_raster *picture);

/*
 * Writes it, which loses its colours where one channel is wanted, in `channels` planes of [height, width], resized
 * where it has another size: bilinear, each pixel the mean of those under it where it becomes smaller.
 */
ls_status ls_raster_put(const char *call, ls_raster *picture, int64_t channels, int64_t height, int64_t width,
                        unsigned char *planes);

/* The decoders. They fill in the picture, whose pixels they allocate, on failure too. */
ls_status ls_png_decode(const ls_encoded *file, ls_raster *picture);
ls_status ls_jpeg_decode(const ls_encoded *file, ls_raster *picture);

/* Allocates the pixels of a picture of picture->channels channels, when its size is a possible one. `most` is how many
 * pixels the file can give at the very most. */
ls_status ls_raster_allocate(const ls_encoded *file, size_t height, size_t width, size_t most, ls_raster *picture);

/* The libraries' functions, in the order of png.c and jpeg.c; NULL with LS_ERR_UNSUPPORTED where they are missing. */
const void *ls_libpng_open(void);
const void *ls_libjpeg_open(void);

#endif
