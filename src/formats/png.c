#include "formats/png.h"

#ifdef LS_HAVE_PNG

#include <png.h>
#include <setjmp.h>
#include <string.h>

#include "base/library.h"
#include "formats/file.h"

/* The functions of libpng that this file uses. */
typedef struct libpng_functions {
    __typeof__(&png_create_read_struct) create_read_struct;
    __typeof__(&png_create_info_struct) create_info_struct;
    __typeof__(&png_destroy_read_struct) destroy_read_struct;
    __typeof__(&png_get_error_ptr) get_error_ptr;
    __typeof__(&png_get_io_ptr) get_io_ptr;
    __typeof__(&png_error) error;
    __typeof__(&png_set_read_fn) set_read_fn;
    __typeof__(&png_set_keep_unknown_chunks) set_keep_unknown_chunks;
    __typeof__(&png_read_info) read_info;
    __typeof__(&png_get_IHDR) get_IHDR;
    __typeof__(&png_set_expand) set_expand;
    __typeof__(&png_set_strip_16) set_strip_16;
    __typeof__(&png_set_strip_alpha) set_strip_alpha;
    __typeof__(&png_set_interlace_handling) set_interlace_handling;
    __typeof__(&png_read_update_info) read_update_info;
    __typeof__(&png_get_rowbytes) get_rowbytes;
    __typeof__(&png_read_row) read_row;
    __typeof__(&png_read_end) read_end;
} libpng_functions;

static ls_library library = {.use = "PNG images",
                             .title = "libpng",
                             .package = "libpng16-16",
                             .files = {"libpng16.so.16"},
                             .functions = {"png_create_read_struct", "png_create_info_struct",
                                           "png_destroy_read_struct", "png_get_error_ptr", "png_get_io_ptr",
                                           "png_error", "png_set_read_fn", "png_set_keep_unknown_chunks",
                                           "png_read_info", "png_get_IHDR", "png_set_expand", "png_set_strip_16",
                                           "png_set_strip_alpha", "png_set_interlace_handling", "png_read_update_info",
                                           "png_get_rowbytes", "png_read_row", "png_read_end"}};

_Static_assert(sizeof(libpng_functions) <= sizeof library.pointers, "there are as many pointers as functions");

const void *ls_libpng_open(void) {
    return ls_library_get(&library);
}

/* The state of libpng's callbacks. On failure, they set the status and call longjmp. */
typedef struct png_reader {
    const ls_encoded *file;
    const libpng_functions *png;
    png_structp state;
    png_infop info;
    size_t at;
    ls_raster *picture;
    ls_status status;
    jmp_buf out;
} png_reader;

static _Noreturn void leave(png_reader *r, ls_status status) {
    r->status = status;
    longjmp(r->out, 1);
}

/* Returns the functions for callbacks, which receive only libpng's object. */
static const libpng_functions *opened(void) {
    return (const libpng_functions *)library.pointers;
}

static _Noreturn void on_error(png_structp state, png_const_charp message) {
    png_reader *r = opened()->get_error_ptr(state);
    leave(r, ls_fail(LS_ERR_FORMAT, "%s: %s is a damaged PNG file: %.200s", r->file->call, r->file->path, message));
}

static void on_warning(png_structp state, png_const_charp message) {
    (void)state;
    (void)message;
}

static void give_bytes(png_structp state, png_bytep bytes, size_t size) {
    png_reader *r = opened()->get_io_ptr(state);
    if (size > r->file->size - r->at) {
        leave(r, ls_fail(LS_ERR_FORMAT, "%s: %s is a truncated PNG file: download it again", r->file->call,
                         r->file->path));
    }
    memcpy(bytes, r->file->bytes + r->at, size);
    r->at += size;
}

/* Reads only the chunks that form the picture, because text and profile chunks may inflate to any size. */
static void begin(png_reader *r) {
    const libpng_functions *png = r->png;
    r->state = png->create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
    r->info = r->state != NULL ? png->create_info_struct(r->state) : NULL;
    if (r->info == NULL) {
        leave(r, ls_fail(LS_ERR_UNSUPPORTED,
                         "%s: libpng has a different version than " PNG_LIBPNG_VER_STRING ", or is out of memory",
                         r->file->call));
    }
    png->set_read_fn(r->state, r, give_bytes);
    png->set_keep_unknown_chunks(r->state, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png->read_info(r->state, r->info);
}

/* Converts any kind of picture to 8-bit gray or RGB, without opacity. */
static void read_picture(png_reader *r) {
    const libpng_functions *png = r->png;
    png_uint_32 width, height;
    int depth, kind;
    begin(r);
    (void)png->get_IHDR(r->state, r->info, &width, &height, &depth, &kind, NULL, NULL, NULL);
    r->picture->channels = (kind & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1;
    const size_t most = r->file->size * LS_MOST_INFLATION * 8 / (size_t)depth;
    const ls_status status = ls_raster_allocate(r->file, height, width, most, r->picture);
    if (status != LS_OK) {
        leave(r, status);
    }
    png->set_expand(r->state);
    png->set_strip_16(r->state);
    png->set_strip_alpha(r->state);
    const int passes = png->set_interlace_handling(r->state);
    png->read_update_info(r->state, r->info);
    const size_t row = (size_t)width * (size_t)r->picture->channels;
    if (png->get_rowbytes(r->state, r->info) != row) {
        png->error(r->state, "its rows do not have the expected size");
    }
    for (int pass = 0; pass < passes; pass++) {
        for (size_t i = 0; i < height; i++) {
            png->read_row(r->state, r->picture->pixels + i * row, NULL);
        }
    }
    png->read_end(r->state, NULL);
}

/* This function has no locals, because setjmp leaves changed locals indeterminate. */
static void run(png_reader *r) {
    if (setjmp(r->out) == 0) {
        read_picture(r);
    }
}

ls_status ls_png_decode(const ls_encoded *file, ls_raster *picture) {
    const libpng_functions *png = ls_libpng_open();
    if (png == NULL) {
        return ls_error_status();
    }
    png_reader r = {.file = file, .png = png, .picture = picture};
    run(&r);
    png->destroy_read_struct(&r.state, &r.info, NULL);
    return r.status;
}

#else

const void *ls_libpng_open(void) {
    return ls_fail_null(LS_ERR_UNSUPPORTED, "PNG images cannot be read, because Lockstep was built without libpng: "
                                            "install libpng-dev and build Lockstep again");
}

ls_status ls_png_decode(const ls_encoded *file, ls_raster *picture) {
    (void)file;
    (void)picture;
    (void)ls_libpng_open();
    return LS_ERR_UNSUPPORTED;
}

#endif
