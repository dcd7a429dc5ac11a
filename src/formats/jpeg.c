#include "formats/jpeg.h"

#ifdef LS_HAVE_JPEG

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "base/library.h"

/* The functions of libjpeg that this file uses. */
typedef struct libjpeg_functions {
    __typeof__(&jpeg_std_error) std_error;
    __typeof__(&jpeg_CreateDecompress) create;
    __typeof__(&jpeg_destroy_decompress) destroy;
    __typeof__(&jpeg_mem_src) mem_src;
    __typeof__(&jpeg_read_header) read_header;
    __typeof__(&jpeg_start_decompress) start;
    __typeof__(&jpeg_read_scanlines) read_scanlines;
    __typeof__(&jpeg_finish_decompress) finish;
} libjpeg_functions;

static ls_library library = {.use = "JPEG images",
                             .title = "libjpeg",
#if JPEG_LIB_VERSION >= 90 /* the library's file name contains its interface version */
                             .package = "libjpeg9",
                             .files = {"libjpeg.so.9"},
#elif JPEG_LIB_VERSION >= 80
                             .package = "libjpeg-turbo8",
                             .files = {"libjpeg.so.8"},
#else
                             .package = "libjpeg62-turbo",
                             .files = {"libjpeg.so.62"},
#endif
                             .functions = {"jpeg_std_error", "jpeg_CreateDecompress", "jpeg_destroy_decompress",
                                           "jpeg_mem_src", "jpeg_read_header", "jpeg_start_decompress",
                                           "jpeg_read_scanlines", "jpeg_finish_decompress"}};

_Static_assert(sizeof(libjpeg_functions) <= sizeof library.pointers, "there are as many pointers as functions");

const void *ls_libjpeg_open(void) {
    return ls_library_get(&library);
}

enum {
    MOST_SCANS = 500, /* maximum for progressive files, as libjpeg-turbo advises: each scan covers the whole picture */
    MOST_PIXELS = 1024, /* pixels per byte: a block of 64 samples takes at least one bit of the largest component, and
                           may cover twice as many pixels */
    INK = 4             /* cyan, magenta, yellow and black */
};

/* libjpeg gets a pointer to the first member. On failure, the callbacks set the status and call longjmp. */
typedef struct jpeg_reader {
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct state;
    const ls_encoded *file;
    const libjpeg_functions *jpeg;
    ls_raster *picture;
    ls_status status;
    jmp_buf out;
} jpeg_reader;

static jpeg_reader *reader_of(j_common_ptr state) {
    return (jpeg_reader *)state->err;
}

static _Noreturn void leave(jpeg_reader *r, ls_status status) {
    r->status = status;
    longjmp(r->out, 1);
}

static _Noreturn void on_error(j_common_ptr state) {
    jpeg_reader *r = reader_of(state);
    char message[JMSG_LENGTH_MAX] = "";
    r->errors.format_message(state, message);
    leave(r, ls_fail(LS_ERR_FORMAT, "%s: %s is a damaged JPEG file: %s", r->file->call, r->file->path, message));
}

/*
 * Some programs write files that violate the standard without damage to the picture. After any other warning, parts of
 * the picture are missing.
 */
static void on_message(j_common_ptr state, int level) {
    static const int harmless[] = {JWRN_ADOBE_XFORM, JWRN_EXTRANEOUS_DATA, JWRN_JFIF_MAJOR, JWRN_TOO_MUCH_DATA};
    jpeg_reader *r = reader_of(state);
    bool known = level >= 0;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        known = known || r->errors.msg_code == harmless[i];
    }
    if (r->errors.msg_code == JWRN_JPEG_EOF) {
        leave(r, ls_fail(LS_ERR_FORMAT, "%s: %s is a truncated JPEG file: download it again", r->file->call,
                         r->file->path));
    }
    if (!known) {
        on_error(state);
    }
}

static void print_nothing(j_common_ptr state) {
    (void)state;
}

static void on_progress(j_common_ptr state) {
    jpeg_reader *r = reader_of(state);
    if (r->state.input_scan_number > MOST_SCANS) {
        leave(r, ls_fail(LS_ERR_FORMAT, "%s: %s is a JPEG file with more than %d scans, which is not supported",
                         r->file->call, r->file->path, MOST_SCANS));
    }
}

static void begin(jpeg_reader *r) {
    struct jpeg_decompress_struct *state = &r->state;
    state->err = r->jpeg->std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = print_nothing;
    r->jpeg->create(state, JPEG_LIB_VERSION, sizeof *state);
    r->progress.progress_monitor = on_progress;
    state->progress = &r->progress;
    r->jpeg->mem_src(state, r->file->bytes, (unsigned long)r->file->size);
    (void)r->jpeg->read_header(state, TRUE);
    if (state->arith_code) { /* arithmetic coding has no minimum number of bits per block */
        leave(r, ls_fail(LS_ERR_FORMAT, "%s: %s is a JPEG file with arithmetic coding, which is not supported",
                         r->file->call, r->file->path));
    }
}

/* Converts CMYK to RGB. The file stores inverted ink values, as Adobe's programs do. */
static void ink_to_light(const unsigned char *ink, size_t width, unsigned char *light) {
    for (size_t i = 0; i < width; i++) {
        const unsigned char *here = ink + INK * i;
        for (size_t c = 0; c < 3; c++) {
            light[3 * i + c] = (unsigned char)((here[c] * here[3] + 127) / 255);
        }
    }
}

static void read_picture(jpeg_reader *r) {
    struct jpeg_decompress_struct *state = &r->state;
    begin(r);
    const bool ink = state->num_components == INK;
    state->out_color_space = ink ? JCS_CMYK : state->num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    r->picture->channels = state->num_components == 1 ? 1 : 3;
    const ls_status status =
        ls_raster_allocate(r->file, state->image_height, state->image_width, r->file->size * MOST_PIXELS, r->picture);
    if (status != LS_OK) {
        leave(r, status);
    }
    (void)r->jpeg->start(state);
    const size_t row = state->output_width * (size_t)r->picture->channels;
    JSAMPARRAY inks =
        state->mem->alloc_sarray((j_common_ptr)state, JPOOL_IMAGE, (JDIMENSION)(INK * state->output_width), 1);
    while (state->output_scanline < state->output_height) {
        unsigned char *to = r->picture->pixels + state->output_scanline * row;
        (void)r->jpeg->read_scanlines(state, ink ? inks : &to, 1);
        if (ink) {
            ink_to_light(inks[0], state->output_width, to);
        }
    }
    (void)r->jpeg->finish(state);
}

/* This function has no locals, because setjmp leaves changed locals indeterminate. */
static void run(jpeg_reader *r) {
    if (setjmp(r->out) == 0) {
        read_picture(r);
    }
}

ls_status ls_jpeg_decode(const ls_encoded *file, ls_raster *picture) {
    const libjpeg_functions *jpeg = ls_libjpeg_open();
    if (jpeg == NULL) {
        return ls_error_status();
    }
    jpeg_reader r = {.file = file, .jpeg = jpeg, .picture = picture};
    run(&r);
    jpeg->destroy(&r.state);
    return r.status;
}

#else

const void *ls_libjpeg_open(void) {
    return ls_fail_null(LS_ERR_UNSUPPORTED, "JPEG images cannot be read, because Lockstep was built without libjpeg: "
                                            "install libjpeg-dev and build Lockstep again");
}

ls_status ls_jpeg_decode(const ls_encoded *file, ls_raster *picture) {
    (void)file;
    (void)picture;
    (void)ls_libjpeg_open();
    return LS_ERR_UNSUPPORTED;
}

#endif
