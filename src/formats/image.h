/* Reads pictures from PNG and JPEG files, and resizes them. */
#ifndef LS_FORMATS_IMAGE_H
#define LS_FORMATS_IMAGE_H

#include "formats/jpeg.h"
#include "formats/png.h"

/* Reads and decodes a PNG or JPEG file. Free picture->pixels with ls_free. On failure, picture->pixels is NULL. */
ls_status ls_raster_read(const char *call, const char *path, ls_raster *picture);

/*
 * Writes the picture into `channels` planes of [height, width]. For one channel, converts colors to gray. Resizes
 * bilinearly if the size differs. When shrinking, each new pixel is a weighted mean of the pixels that it covers.
 */
ls_status ls_raster_put(const char *call, ls_raster *picture, int64_t channels, int64_t height, int64_t width,
                        unsigned char *planes);

#endif
