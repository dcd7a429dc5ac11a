#include "formats/image.h"

#include <string.h>

#include "base/memory.h"
#include "formats/file.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* ---- files ------------------------------------------------------------------------------------------------------- */

enum { FILE_LIMIT = 1 << 30 };

static ls_status decode(const ls_encoded *file, ls_raster *picture) {
    if (file->size >= 8 && memcmp(file->bytes, "\x89PNG\r\n\x1a\n", 8) == 0) {
        return ls_png_decode(file, picture);
    }
    if (file->size >= 3 && memcmp(file->bytes, "\xff\xd8\xff", 3) == 0) {
        return ls_jpeg_decode(file, picture);
    }
    return ls_fail(LS_ERR_FORMAT, "%s: %s is neither a PNG nor a JPEG file", file->call, file->path);
}

static ls_status read_bytes(ls_source *source, unsigned char **bytes) {
    size_t got = 0;
    if (source->size > FILE_LIMIT) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s is %zu bytes long; images may be at most 1 GiB long", source->call,
                       source->path, source->size);
    }
    *bytes = ls_allocate(source->size);
    if (*bytes == NULL) {
        return ls_fail_memory(source->call, source->size);
    }
    LS_TRY(ls_source_read(source, *bytes, source->size, &got));
    return got == source->size ? LS_OK : ls_source_fail_short(source);
}

ls_status ls_raster_read(const char *call, const char *path, ls_raster *picture) {
    ls_source source;
    unsigned char *bytes = NULL;
    *picture = (ls_raster){.channels = 0};
    LS_TRY(ls_source_open(call, path, false, &source));
    ls_status status = read_bytes(&source, &bytes);
    if (status == LS_OK) {
        status = decode(&(ls_encoded){.call = call, .path = path, .bytes = bytes, .size = source.size}, picture);
    }
    if (status != LS_OK) {
        ls_free(picture->pixels);
        picture->pixels = NULL;
    }
    ls_free(bytes);
    ls_source_close(&source);
    return status;
}

ls_tensor *ls_image_read(const char *path, int64_t channels) {
    static const char call[] = "ls_image_read";
    ls_raster picture;
    if (channels != 0 && channels != 1 && channels != 3) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: .channels is %lld, but must be 1 or 3", call, (long long)channels);
    }
    if (ls_raster_read(call, path, &picture) != LS_OK) {
        return NULL;
    }
    const int64_t size[] = {channels != 0 ? channels : picture.channels, picture.height, picture.width};
    ls_tensor *tensor = ls_tensor_new_owned(call, &ls_cpu, 3, size, LS_U8);
    if (tensor != NULL &&
        ls_raster_put(call, &picture, (int)size[0], size[1], size[2], ls_host_data(tensor)) != LS_OK) {
        ls_tensor_drop(tensor);
        tensor = NULL;
    }
    ls_free(picture.pixels);
    return ls_tensor_give(tensor);
}

/* ---- pixels ------------------------------------------------------------------------------------------------------ */

/* Computes luma (ITU-R BT.601) in fixed point with 16 fractional bits, in place. */
static void make_gray(ls_raster *picture) {
    const unsigned char *from = picture->pixels;
    for (int64_t i = 0; i < picture->height * picture->width; i++, from += 3) {
        picture->pixels[i] = (unsigned char)((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + (1 << 15)) >> 16);
    }
    picture->channels = 1;
}

/* For each pixel of a resized line, the range of source pixels and their weights. */
typedef struct taps {
    int32_t *weights; /* `width` weights for each pixel; their sum is 1 << WEIGHT_BITS */
    int64_t *first;
    int64_t *count;
    int64_t width;
} taps;

enum { WEIGHT_BITS = 22 }; /* leaves 8 bits for the pixel, and one for the sign */

static void free_taps(taps *t) {
    ls_free(t->weights);
    ls_free(t->first);
    ls_free(t->count);
}

static double absolute(double x) {
    return x < 0 ? -x : x;
}

static int64_t clamp(double x, int64_t most) {
    return x < 0 ? 0 : x > (double)most ? most : (int64_t)x;
}

/*
 * Computes the weights of a triangle filter. It extends to the centers of the neighboring pixels, measured in pixels of
 * the shorter line. The result is bit-identical to Pillow's BILINEAR.
 */
static void weigh(int64_t from, int64_t to, int64_t index, taps *t) {
    const double scale = (double)from / (double)to, reach = scale > 1 ? scale : 1;
    const double middle = ((double)index + 0.5) * scale;
    int32_t *weights = t->weights + index * t->width;
    const int64_t first = clamp(middle - reach + 0.5, from - 1), end = clamp(middle + reach + 0.5, from);
    double sum = 0;
    for (int64_t i = first; i < end; i++) {
        const double distance = absolute(((double)i - middle + 0.5) / reach);
        sum += distance < 1 ? 1 - distance : 0;
    }
    for (int64_t i = first; i < end; i++) {
        const double distance = absolute(((double)i - middle + 0.5) / reach);
        weights[i - first] = (int32_t)((distance < 1 ? 1 - distance : 0) / sum * (1 << WEIGHT_BITS) + 0.5);
    }
    t->first[index] = first;
    t->count[index] = end - first;
}

static ls_status make_taps(const char *call, int64_t from, int64_t to, taps *t) {
    *t = (taps){.width = 2 * (from / to + 1) + 1};
    t->weights = ls_allocate_zeroed((size_t)to * (size_t)t->width, sizeof *t->weights);
    t->first = ls_allocate_zeroed((size_t)to, sizeof *t->first);
    t->count = ls_allocate_zeroed((size_t)to, sizeof *t->count);
    if (t->weights == NULL || t->first == NULL || t->count == NULL) {
        return ls_fail_memory(call, (size_t)to * (size_t)t->width * sizeof *t->weights);
    }
    for (int64_t i = 0; i < to; i++) {
        weigh(from, to, i, t);
    }
    return LS_OK;
}

/*
 * Computes pixels `begin` to `end` - 1 of a line, `made_step` bytes apart, from a source line whose pixels are `step`
 * bytes apart.
 */
static void resize_line(const taps *t, int64_t begin, int64_t end, const unsigned char *line, int64_t step,
                        unsigned char *made, int64_t made_step) {
    for (int64_t i = begin; i < end; i++) {
        const int32_t *weights = t->weights + i * t->width;
        const unsigned char *pixel = line + t->first[i] * step;
        int32_t sum = 1 << (WEIGHT_BITS - 1);
        for (int64_t k = 0; k < t->count[i]; k++) {
            sum += weights[k] * pixel[k * step];
        }
        sum >>= WEIGHT_BITS;
        made[(i - begin) * made_step] = (unsigned char)(sum > UINT8_MAX ? UINT8_MAX : sum);
    }
}

/*
 * Resizes along the rows into `narrow`, then along the columns, in groups of at most as many columns as the picture
 * has.
 */
static void resize(const ls_raster *picture, const taps *rows, const taps *columns, int64_t height, int64_t width,
                   unsigned char *narrow, unsigned char *planes) {
    const int64_t channels = picture->channels, part = picture->width;
    for (int64_t begin = 0; begin < width; begin += part) {
        const int64_t end = begin + part < width ? begin + part : width, step = (end - begin) * channels;
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t y = 0; y < picture->height; y++) {
                resize_line(rows, begin, end, picture->pixels + y * picture->width * channels + c, channels,
                            narrow + y * step + c, channels);
            }
            for (int64_t x = begin; x < end; x++) {
                resize_line(columns, 0, height, narrow + (x - begin) * channels + c, step,
                            planes + c * height * width + x, width);
            }
        }
    }
}

static ls_status put_resized(const char *call, const ls_raster *picture, int64_t height, int64_t width,
                             unsigned char *planes) {
    taps rows = {.width = 0}, columns = {.width = 0};
    const size_t size = (size_t)picture->height * (size_t)picture->width * (size_t)picture->channels;
    unsigned char *narrow = ls_allocate(size);
    ls_status status = narrow != NULL ? make_taps(call, picture->width, width, &rows) : ls_fail_memory(call, size);
    if (status == LS_OK) {
        status = make_taps(call, picture->height, height, &columns);
    }
    if (status == LS_OK) {
        resize(picture, &rows, &columns, height, width, narrow, planes);
    }
    free_taps(&rows);
    free_taps(&columns);
    ls_free(narrow);
    return status;
}

static void put_planes(const ls_raster *picture, unsigned char *planes) {
    const int64_t pixels = picture->height * picture->width;
    for (int64_t c = 0; c < picture->channels; c++) {
        for (int64_t i = 0; i < pixels; i++) {
            planes[c * pixels + i] = picture->pixels[i * picture->channels + c];
        }
    }
}

ls_status ls_raster_put(const char *call, ls_raster *picture, int64_t channels, int64_t height, int64_t width,
                        unsigned char *planes) {
    if (channels < picture->channels) {
        make_gray(picture);
    }
    if (height == picture->height && width == picture->width) {
        put_planes(picture, planes);
    } else {
        LS_TRY(put_resized(call, picture, height, width, planes));
    }
    for (int64_t c = picture->channels; c < channels; c++) { /* copies a gray channel as often as needed */
        memcpy(planes + c * height * width, planes, (size_t)(height * width));
    }
    return LS_OK;
}
