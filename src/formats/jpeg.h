/* JPEG files, decoded by libjpeg, which is loaded on first use. */
#ifndef LS_FORMATS_JPEG_H
#define LS_FORMATS_JPEG_H

#include "formats/raster.h"

/* Decodes the file into `picture`. The caller frees picture->pixels, even on failure. */
ls_status ls_jpeg_decode(const ls_encoded *file, ls_raster *picture);

/* Returns the functions of libjpeg in the order of jpeg.c, or NULL with LS_ERR_UNSUPPORTED if the library is missing.
 */
const void *ls_libjpeg_open(void);

#endif
