/* Images as PNG (ISO/IEC 15948) without filters: the rows, compressed with zlib, in four chunks. */
#include <zlib.h>

#include "base/memory.h"
#include "formats/events.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* Summary.Image. */
enum { IMAGE_HEIGHT = 1, IMAGE_WIDTH = 2, IMAGE_COLORSPACE = 3, IMAGE_ENCODED = 4 };

/* PNG's color type by the number of channels: gray (1), RGB (3), RGB with opacity (4). */
static const int8_t color_types[5] = {-1, 0, -1, 2, 6};

/* Pixels on the host, channel by channel, as floats or bytes. */
typedef struct picture {
    size_t channels, height, width;
    const float *floats;
    const uint8_t *bytes;
} picture;

static uint8_t byte_of(float value) {
    return (uint8_t)(255 * (value > 0 ? value < 1 ? value : 1 : 0) + 0.5F); /* NaN: 0 */
}

/* Writes the filter type of a row (none), then its pixels one after another. */
static void make_row(const picture *from, size_t y, uint8_t *row) {
    *row++ = 0;
    for (size_t x = 0; x < from->width; x++) {
        for (size_t channel = 0; channel < from->channels; channel++) {
            const size_t at = (channel * from->height + y) * from->width + x;
            *row++ = from->floats != NULL ? byte_of(from->floats[at]) : from->bytes[at];
        }
    }
}

static void put_big_endian(uint8_t *bytes, size_t value) {
    for (int i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

/* Begins a chunk, and returns its offset. The caller writes the contents before it ends the chunk. */
static size_t begin_chunk(ls_proto *to, const char type[5]) {
    ls_proto_append(to, "\0\0\0", 4);
    ls_proto_append(to, type, 4);
    return to->used - 8;
}

static void end_chunk(ls_proto *to, size_t begin) {
    uint8_t check[4];
    if (to->failure == LS_PROTO_NONE) {
        const size_t size = to->used - begin - 8;
        put_big_endian(to->bytes + begin, size);
        put_big_endian(check, crc32(0, to->bytes + begin + 4, (uInt)(size + 4)));
        ls_proto_append(to, check, sizeof check);
    }
}

static void *zlib_allocate(void *user, unsigned count, unsigned size) {
    (void)user;
    return ls_allocate((size_t)count * size);
}

static void zlib_free(void *user, void *memory) {
    (void)user;
    ls_free(memory);
}

/* Compresses all rows, one after another. */
static bool deflate_rows(ls_proto *to, z_stream *stream, const picture *from, uint8_t *row, size_t row_size) {
    const size_t most = deflateBound(stream, from->height * row_size);
    if (!ls_proto_reserve(to, most)) {
        return false;
    }
    stream->next_out = to->bytes + to->used;
    stream->avail_out = (uInt)most;
    int code = Z_OK;
    for (size_t y = 0; code == Z_OK && y < from->height; y++) {
        make_row(from, y, row);
        stream->next_in = row;
        stream->avail_in = (uInt)row_size;
        code = deflate(stream, y + 1 < from->height ? Z_NO_FLUSH : Z_FINISH);
    }
    to->used += most - stream->avail_out;
    return code == Z_STREAM_END;
}

/* If out of memory, sets the error of `to`. */
static void put_rows(ls_proto *to, const picture *from) {
    const size_t row_size = 1 + from->width * from->channels;
    z_stream stream = {.zalloc = zlib_allocate, .zfree = zlib_free};
    uint8_t *row = ls_allocate(row_size);
    const bool ready = row != NULL && deflateInit(&stream, Z_DEFAULT_COMPRESSION) == Z_OK;
    if (!ready || !deflate_rows(to, &stream, from, row, row_size)) {
        ls_proto_fail(to, LS_PROTO_MEMORY, row_size);
    }
    if (ready) {
        (void)deflateEnd(&stream);
    }
    ls_free(row);
}

static void put_png(ls_proto *to, const picture *from) {
    uint8_t header[13] = {[8] = 8, [9] = (uint8_t)color_types[from->channels]}; /* 8 bits; no filter; not interlaced */
    put_big_endian(header, from->width);
    put_big_endian(header + 4, from->height);
    ls_proto_append(to, "\x89PNG\r\n\x1a\n", 8);
    size_t chunk = begin_chunk(to, "IHDR");
    ls_proto_append(to, header, sizeof header);
    end_chunk(to, chunk);
    chunk = begin_chunk(to, "IDAT");
    put_rows(to, from);
    end_chunk(to, chunk);
    chunk = begin_chunk(to, "IEND");
    end_chunk(to, chunk);
}

static ls_status check_picture(const char *call, const char *tag, const ls_tensor *tensor) {
    const ls_dtype dtype = ls_dtype_of(tensor);
    const int64_t channels = ls_ndim(tensor) == 3 ? ls_size(tensor, 0) : 1;
    const bool colors = channels < (int64_t)sizeof color_types && color_types[channels] >= 0;
    if ((ls_ndim(tensor) != 2 && ls_ndim(tensor) != 3) || !colors || ls_numel(tensor) == 0) {
        return ls_fail(LS_ERR_SHAPE,
                       "%s: '%.100s': %s is not an image; expected [height, width], or [channels, height, width] with "
                       "1, 3 or 4 channels",
                       call, tag, LS_SHAPE_TEXT(tensor));
    }
    if (dtype != LS_U8 && !ls_dtype_is_floating(dtype)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: '%.100s': pixels must be u8, or floating-point numbers from 0 to 1, not %s", call, tag,
                       ls_dtype_name(dtype));
    }
    return ls_numel(tensor) < LS_PROTO_MOST
               ? LS_OK
               : ls_fail(LS_ERR_SHAPE, "%s: '%.100s': %s is larger than a record can be (2 GiB)", call, tag,
                         LS_SHAPE_TEXT(tensor));
}

static void put_image(ls_proto *to, const picture *from) {
    ls_proto_begin(to, LS_VALUE_IMAGE);
    ls_proto_integer(to, IMAGE_HEIGHT, (int64_t)from->height);
    ls_proto_integer(to, IMAGE_WIDTH, (int64_t)from->width);
    ls_proto_integer(to, IMAGE_COLORSPACE, (int64_t)from->channels);
    ls_proto_begin(to, IMAGE_ENCODED);
    put_png(to, from);
    ls_proto_end(to);
    ls_proto_end(to);
}

ls_status ls_events_image(ls_events *events, const char *tag, int64_t step, const ls_tensor *tensor) {
    static const char call[] = "ls_events_image";
    LS_TRY(ls_events_check_tensor(call, events, tag, tensor));
    LS_TRY(check_picture(call, tag, tensor));
    const bool floating = ls_dtype_is_floating(ls_dtype_of(tensor));
    ls_tensor *here = ls_tensor_dense_on_host(call, tensor, floating ? LS_F32 : LS_U8);
    if (here == NULL) {
        return ls_error_status();
    }
    const void *pixels = ls_host_data(here);
    put_image(ls_events_begin_value(events, tag, step),
              &(picture){.channels = ls_ndim(tensor) == 3 ? (size_t)ls_size(tensor, 0) : 1,
                         .height = (size_t)ls_size(tensor, -2),
                         .width = (size_t)ls_size(tensor, -1),
                         .floats = floating ? pixels : NULL,
                         .bytes = pixels});
    ls_tensor_drop(here);
    return ls_events_end(call, events);
}
