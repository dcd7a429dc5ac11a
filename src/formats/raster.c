#include "formats/raster.h"

#include "base/memory.h"

enum { PIXEL_LIMIT = 1 << 28 };

ls_status ls_raster_allocate(const ls_encoded *file, size_t height, size_t width, size_t most, ls_raster *picture) {
    const bool possible = height > 0 && width > 0 && height <= PIXEL_LIMIT / width;
    if (!possible || height * width > most) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s declares %zu rows of %zu pixels, which %s", file->call, file->path,
                       height, width, possible ? "its bytes cannot give" : "is 0, or more than 2^28");
    }
    const size_t bytes = height * width * (size_t)picture->channels;
    picture->height = (int64_t)height;
    picture->width = (int64_t)width;
    picture->pixels = ls_allocate(bytes);
    return picture->pixels != NULL ? LS_OK : ls_fail_memory(file->call, bytes);
}
