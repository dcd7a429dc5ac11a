/* PNG files, decoded by libpng, which is loaded on first use. */
#ifndef LS_FORMATS_PNG_H
#define LS_FORMATS_PNG_H

#include "formats/raster.h"

/* Decodes the file into `picture`. The caller frees picture->pixels, even on failure. */
ls_status ls_png_decode(const ls_encoded *file, ls_raster *picture);

/* Returns the functions of libpng in the order of png.c, or NULL with LS_ERR_UNSUPPORTED if the library is missing. */
const void *ls_libpng_open(void);

#endif
