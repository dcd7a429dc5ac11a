/*
 * Files that aim to exhaust a reader's memory: for any contents, reading takes at most twice the bytes that are both
 * promised and present, plus a constant. The test measures the maximum of allocated bytes and, without a sanitizer, the
 * growth of the process.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>

#include <malloc.h>
#include <sys/resource.h>
#include <zlib.h>

#include "formats/image.h"
#include "tensor/scope.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/processes.h"
#include "train/checkpoint/checkpoint.h"

enum { KIB = 1 << 10, MIB = 1 << 20, CONSTANT = MIB + MIB / 2 };

/* ---- measuring --------------------------------------------------------------------------------------------------- */

typedef struct counted {
    size_t live;
    size_t peak;
} counted;

static void *allocate(size_t size, size_t alignment, void *user) {
    counted *count = user;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment > sizeof(void *) ? alignment : sizeof(void *), size) != 0) {
        return NULL;
    }
    count->live += malloc_usable_size(memory);
    count->peak = count->live > count->peak ? count->live : count->peak;
    return memory;
}

static void release(void *memory, void *user) {
    counted *count = user;
    count->live -= malloc_usable_size(memory);
    free(memory);
}

typedef ls_status (*reader)(const char *path);

/* A file, its reader, and the expected result. */
typedef struct bomb {
    const char *path;
    reader read;
    size_t worth; /* bytes that are both promised and present */
    ls_status status;
    const char *part; /* of the message */
} bomb;

static size_t resident(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * KIB;
}

/* Runs in a separate process, so that its peak memory is due to this reader alone. */
static const char *read_counted(int number, const void *what) {
    (void)number;
    const bomb *given = what;
    counted count = {0};
    ls_thread_end();
    ls_set_allocator(&(ls_allocator){.allocate = allocate, .release = release, .user = &count});
    const size_t before = resident();
    const ls_status status = given->read(given->path);
    const size_t grown = resident() - before;
    ls_thread_end();
    const size_t most = 2 * given->worth + CONSTANT;
    if (status != given->status || (given->part != NULL && strstr(ls_error_message(), given->part) == NULL)) {
        fprintf(stderr, "%s: %s: %s\n", given->path, ls_status_name(status), ls_error_message());
        return "an unexpected end";
    }
    if (count.peak > most) {
        fprintf(stderr, "%s: %zu bytes, %zu are allowed\n", given->path, count.peak, most);
        return "too much memory";
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (grown > most + 2 * (size_t)MIB) { /* tolerates zlib, the C library, and pages that were shared before */
        fprintf(stderr, "%s: the process grew by %zu bytes, %zu are allowed\n", given->path, grown, most);
        return "too much memory outside of the allocator";
    }
#else
    (void)grown;
#endif
    return count.live == 0 ? NULL : "memory is left";
}

static void expect(bomb given) {
    assert_int_equal(process_wait(process_start(read_counted, 0, &given)), 0);
}

static ls_status read_idx(const char *path) {
    ls_tensor *tensor = ls_idx_read(path);
    ls_release(tensor);
    return tensor != NULL ? LS_OK : ls_error_status();
}

static ls_status read_npy(const char *path) {
    ls_tensor *tensor = ls_npy_read(path);
    ls_release(tensor);
    return tensor != NULL ? LS_OK : ls_error_status();
}

static ls_status read_npz(const char *path) {
    ls_npz *file = ls_npz_load(path);
    ls_npz_free(file);
    return file != NULL ? LS_OK : ls_error_status();
}

static ls_status read_image(const char *path) {
    ls_tensor *tensor = ls_image_read(path, 3);
    ls_release(tensor);
    return tensor != NULL ? LS_OK : ls_error_status();
}

static ls_status read_csv(const char *path) {
    ls_tensor *tensor = ls_csv_read(path, NULL);
    ls_release(tensor);
    return tensor != NULL ? LS_OK : ls_error_status();
}

static ls_status read_csv_of_one_line(const char *path) {
    ls_tensor *tensor = ls_csv_read(path, &(ls_csv_options){.no_header = true});
    ls_release(tensor);
    return tensor != NULL ? LS_OK : ls_error_status();
}

static ls_status read_safetensors(const char *path) {
    ls_safetensors *file = ls_safetensors_load(path);
    ls_safetensors_free(file);
    return file != NULL ? LS_OK : ls_error_status();
}

static ls_status pass_over(const ls_events_item *item, void *user) {
    (void)user;
    return item->tag != NULL ? LS_OK : LS_ERR_INTERNAL;
}

static ls_status read_events(const char *path) {
    return ls_events_read(path, pass_over, NULL);
}

/* ---- making files ------------------------------------------------------------------------------------------------ */

/* Writes a gzipped file: the head, then `unit` repeated until there are `size` bytes. */
static const char *gzipped(const char *name, const void *head, size_t head_size, const char *unit, size_t unit_size,
                           size_t size) {
    const char *path = test_path(name);
    static char part[MIB];
    for (size_t i = 0; i < sizeof part; i++) {
        part[i] = unit[i % unit_size];
    }
    gzFile stream = gzopen(path, "wb1e");
    assert_non_null(stream);
    assert_int_equal(gzwrite(stream, head, (unsigned)head_size), head_size);
    const size_t whole = sizeof part / unit_size * unit_size;
    for (size_t at = 0; at < size; at += whole) {
        const size_t left = size - at;
        assert_true(gzwrite(stream, part, (unsigned)(left < whole ? left : whole)) > 0);
    }
    assert_int_equal(gzclose(stream), Z_OK);
    return path;
}

/*
 * Writes a safetensors header: `open`, then `count` times `item` (may contain one %zu), separated by commas, then
 * `close`.
 */
static const char *headed(const char *name, const char *open, const char *item, size_t count, const char *close,
                          size_t data_size) {
    char *bytes = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&bytes, &size);
    fwrite("12345678", 1, 8, stream);
    fputs(open, stream);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? "," : "", stream);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        fprintf(stream, item, i, i, i + 1);
#pragma GCC diagnostic pop
    }
    fputs(close, stream);
    fflush(stream);
    const uint64_t length = size - 8;
    for (size_t i = 0; i < data_size; i++) {
        fputc(0, stream);
    }
    fclose(stream);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (char)(length >> (8 * i));
    }
    const char *path = test_file(name, bytes, size);
    free(bytes);
    return path;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

TEST(test_idx_promises) {
    static const unsigned char six[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3};
    static const unsigned char many[] = {0, 0, 0x0E, 2, 0, 1, 0, 0, 0, 1, 0, 0}; /* 32 GiB */
    static const unsigned char four[] = {0, 0, 0x09, 1, 0, 0x40, 0, 0}; /* one byte each in the file, i32 in memory */
    expect((bomb){gzipped("zeros.gz", six, sizeof six, "\0", 1, 24 * MIB), read_idx, 6, LS_ERR_FORMAT, "less data"});
    expect((bomb){gzipped("many.gz", many, sizeof many, "\0", 1, KIB), read_idx, 0, LS_ERR_FORMAT, "more data"});
    expect((bomb){test_file("many", many, sizeof many), read_idx, 0, LS_ERR_FORMAT, "more data"});
    expect((bomb){gzipped("four.gz", four, sizeof four, "\1", 1, 4 * MIB), read_idx, 16 * MIB, LS_OK, NULL});
}

#define NPY(descr, fortran, shape)                                                                                     \
    "\x93NUMPY\1\0\x50\0{'descr': '" descr "', 'fortran_order': " fortran ", 'shape': (" shape ",), }"

TEST(test_npy_promises) {
    char head[90];
    static const struct {
        const char *text;
        size_t size, worth; /* bytes of elements, and bytes that are both promised and present */
        const char *part;
    } cases[] = {
        {NPY("|u1", "False", "6"), 24 * MIB, 6, "less data"},
        {NPY("<f8", "True", "65536, 65536"), KIB, 0, "more data"},
        {NPY("<f4", "False", "4, 1048576"), 16 * MIB, 16 * MIB, NULL},
        {NPY(">f4", "True", "4, 1048576"), 16 * MIB, 16 * MIB, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(head, ' ', sizeof head);
        memcpy(head, cases[i].text, 10 + strlen(cases[i].text + 10));
        expect((bomb){gzipped("array.npy.gz", head, sizeof head, "\0", 1, cases[i].size), read_npy, cases[i].worth,
                      cases[i].part != NULL ? LS_ERR_FORMAT : LS_OK, cases[i].part});
    }
}

/* Reads 8000 empty arrays, and then an archive in which all of them refer to the first member's bytes. */
TEST(test_npz_of_many) {
    enum { MANY = 8000 };
    static ls_named tensors[MANY];
    static char names[MANY][12];
    static char bytes[8 * MIB];
    ls_tensor *empty = ls_zeros(LS_SHAPE(0), LS_U8);
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        tensors[i] = (ls_named){names[i], empty};
    }
    char path[320];
    snprintf(path, sizeof path, "%s", test_path("many.npz"));
    assert_int_equal(ls_npz_save(path, tensors, MANY), LS_OK);
    ls_release(empty);
    expect((bomb){path, read_npz, MANY * KIB / 2, LS_OK, NULL});
    FILE *file = fopen(path, "rbe");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_in_range(size, 1, sizeof bytes - 1);
    for (char *at = bytes; (at = memmem(at, size - (size_t)(at - bytes), "PK\1\2", 4)) != NULL; at += 46) {
        memset(at + 42, 0, 4);
    }
    expect((bomb){test_file("same.npz", bytes, size), read_npz, 4 * MIB, LS_ERR_FORMAT, "overlaps"});
}

static size_t put_chunk(uint8_t *to, const char *name, const void *bytes, size_t size) {
    for (int i = 0; i < 4; i++) {
        to[i] = (uint8_t)(size >> (24 - 8 * i));
    }
    memcpy(to + 4, name, 4);
    memcpy(to + 8, bytes, size);
    const uLong crc = crc32(0, to + 4, (uInt)size + 4);
    for (int i = 0; i < 4; i++) {
        to[8 + size + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
    }
    return size + 12;
}

/* 8-bit gray, 2048 x 2048, after 400 text chunks that would inflate to 4 MiB each. */
TEST(test_pictures) {
    enum { SIDE = 2048, TEXTS = 400, ROWS = SIDE * (SIDE + 1) };
    static uint8_t file[8 * MIB], text[4 * MIB], rows[ROWS], packed[MIB];
    const uint8_t head[] = {0, 0, SIDE >> 8, 0, 0, 0, SIDE >> 8, 0, 8, 0, 0, 0, 0};
    if (ls_libpng_open() == NULL) {
        printf("SKIPPED pictures: %s\n", ls_error_message());
        skip();
    }
    memcpy(file, "\x89PNG\r\n\x1a\n", 8);
    size_t size = 8;
    size += put_chunk(file + size, "IHDR", head, sizeof head);
    uLongf length = sizeof packed - 3;
    memcpy(packed, "a\0", 3);
    memset(text, 'a', sizeof text); /* a zero byte would terminate it */
    assert_int_equal(compress(packed + 3, &length, text, sizeof text), Z_OK);
    for (int i = 0; i < TEXTS; i++) {
        size += put_chunk(file + size, "zTXt", packed, length + 3);
    }
    length = sizeof packed;
    assert_int_equal(compress(packed, &length, rows, ROWS), Z_OK);
    size += put_chunk(file + size, "IDAT", packed, length);
    size += put_chunk(file + size, "IEND", "", 0);
    assert_true(size < sizeof file);
    expect((bomb){test_file("texts.png", file, size), read_image, SIDE * SIDE * 3 + size / 2, LS_OK, NULL});
    file[16] = 64; /* promises much more than the bytes can contain */
    expect((bomb){test_file("wide.png", file, size), read_image, size / 2, LS_ERR_FORMAT, NULL});
}

TEST(test_csv_of_nothing) {
    expect((bomb){gzipped("zeros.csv.gz", "a\n", 2, "\0", 1, 24 * MIB), read_csv, 0, LS_ERR_FORMAT, "zero bytes"});
    expect((bomb){gzipped("newlines.csv.gz", "a\n1\n", 4, "\n", 1, 24 * MIB), read_csv, 4, LS_OK, NULL});
    expect((bomb){gzipped("spaces.csv.gz", "a\n1\n", 4, " ", 1, 24 * MIB), read_csv, 16 * MIB, LS_ERR_FORMAT,
                  "a line has 16 MiB or more"});
    expect((bomb){gzipped("quote.csv.gz", "a\n\"", 3, "\n", 1, 24 * MIB), read_csv, 16 * MIB, LS_ERR_FORMAT,
                  "a line has 16 MiB or more"});
}

TEST(test_csv_tables) {
    enum { ROWS = 3 * MIB / 4 };
    expect((bomb){gzipped("rows.csv.gz", "a,b\n", 4, "1,2\n", 4, 4 * (size_t)ROWS), read_csv, 2 * (size_t)ROWS * 4,
                  LS_OK, NULL});
    /* A single line: while a line is read, each number is a double. */
    expect((bomb){gzipped("columns.csv.gz", "a", 1, ",a", 2, 4 * MIB), read_csv, 4 * MIB + 2 * MIB * 8, LS_OK, NULL});
    expect((bomb){gzipped("both.csv.gz", "1", 1, ",1", 2, 4 * MIB - KIB), read_csv_of_one_line, 4 * MIB + 2 * MIB * 8,
                  LS_OK, NULL});
}

TEST(test_safetensors_are_not_inflated) {
    static const char overlapping[] = "\x80\0\0\0\0\0\0\0"
                                      "{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
                                      "\"b\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[1,10]}}";
    expect((bomb){gzipped("zeros.safetensors", overlapping, sizeof overlapping - 1, " ", 1, 24 * MIB), read_safetensors,
                  0, LS_ERR_FORMAT, "it is gzipped"});
}

/* Two thousand tensors claim the same megabyte. */
TEST(test_safetensors_overlapping) {
    const char item[] = "\"%zu\":{\"dtype\":\"U8\",\"shape\":[1048576],\"data_offsets\":[0,1048576]}";
    const char *path = headed("overlap.safetensors", "{", item, 2000, "}", MIB);
    expect((bomb){path, read_safetensors, MIB + 2000 * KIB, LS_ERR_FORMAT, "overlap"});
}

/* Headers of 3 MiB. A tensor takes less than 1 KiB in addition to its data. */
TEST(test_safetensors_headers) {
    const char entry[] = "\"%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}";
    const size_t entries = 3 * MIB / (sizeof entry + 6);
    const struct {
        const char *open, *item, *close;
        size_t count, data_size, tensors;
        const char *part; /* NULL if the file is valid */
    } cases[] = {
        {"[", "[]", "]", MIB, 0, 0, "not a JSON object"},
        {"{\"a\":[", "[]", "]}", MIB, 0, 0, "'{' was expected"},
        {"{\"a\":{\"shape\":[", "1", "]}}", 3 * MIB / 2, 0, 0, "(the shape of tensor a), the end of"},
        {"{\"__metadata__\":{", "\"%zu\":\"\"", "}}", 3 * MIB / 12, 0, 0, NULL},
        {"{\"__metadata__\":{\"a\":\"", "\\u00e9", "\"}}", 3 * MIB / 7, 0, 0, NULL},
        {"{", entry, "}", entries, entries, entries, NULL},
        {"{", entry, ",\"0\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", entries, entries, entries,
         "two tensors are named 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = headed("header.safetensors", cases[i].open, cases[i].item, cases[i].count, cases[i].close,
                                  cases[i].data_size);
        expect((bomb){path, read_safetensors, 3 * MIB + cases[i].tensors * KIB / 2,
                      cases[i].part != NULL ? LS_ERR_FORMAT : LS_OK, cases[i].part});
    }
}

/* The header may claim any length, which has no effect if the file is shorter. */
TEST(test_safetensors_lengths) {
    const unsigned char length[8] = {0, 0, 0, 5};
    expect((bomb){test_file("length.safetensors", length, sizeof length), read_safetensors, 0, LS_ERR_FORMAT,
                  "83886080 bytes and the file has 8"});
    const char tensor[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2097152],\"data_offsets\":[0,8388608]}}";
    expect((bomb){headed("good.safetensors", tensor, "", 0, "", 8 * MIB), read_safetensors, 8 * MIB, LS_OK, NULL});
}

static void put_record(FILE *stream, uint8_t *room, const void *event, size_t size) {
    const size_t whole = events_append(room, 0, event, size);
    assert_int_equal(fwrite(room, 1, whole, stream), whole);
}

/* Only the largest record takes memory, for any number of records and tags. A missing record takes none. */
TEST(test_event_files) {
    static const char scalar[] = "\x2a\x0a\x0a\x08\x0a\x01"
                                 "a\x15\0\0\x80\x3f"; /* a summary, a value, its tag, its number */
    static char text[] = "\x2a\x12\x0a\x10\x0a\x04"
                         "tags\x4a\x08\x0a\x06\x0a\x04"
                         "text"; /* a summary, a value, its tag, its metadata with the name of its plug-in */
    static uint8_t room[9 * MIB], event[8 * MIB] = "\x22\xfb\xff\xff\x03"; /* a graph that extends to the end */
    const char *path = test_path("many.events");
    FILE *stream = fopen(path, "wbe");
    for (int i = 0; i < 24 * MIB / 32; i++) {
        put_record(stream, room, scalar, sizeof scalar - 1);
    }
    assert_int_equal(fclose(stream), 0);
    expect((bomb){path, read_events, 0, LS_OK, NULL});
    path = test_path("tags.events");
    stream = fopen(path, "wbe");
    for (uint32_t i = 0; i < 24 * MIB / 32; i++) {
        for (int j = 0; j < 4; j++) {
            text[6 + j] = (char)(1 + (i >> (5 * j) & 31));
        }
        put_record(stream, room, text, sizeof text - 1);
    }
    assert_int_equal(fclose(stream), 0);
    expect((bomb){path, read_events, 0, LS_OK, NULL});
    path = test_path("large.events");
    stream = fopen(path, "wbe");
    put_record(stream, room, event, sizeof event);
    put_record(stream, room, scalar, sizeof scalar - 1);
    put_record(stream, room, event, sizeof event);
    assert_int_equal(fclose(stream), 0);
    expect((bomb){path, read_events, 4 * MIB, LS_OK, NULL}); /* twice the size, plus a constant */
    expect((bomb){test_file("cut.events", room, MIB), read_events, 0, LS_OK, NULL});
}

/* ---- manifests of checkpoints ------------------------------------------------------------------------------------ */

static ls_status read_manifest(const char *path) {
    ls_manifest manifest;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    const ls_status status = ls_manifest_read(folder, &manifest);
    ls_manifest_free(&manifest);
    return status;
}

/* A part of the manifest that is repeated up to about 2 MiB: its history, its files or another list. */
typedef struct repeated {
    const char *before;
    const char *what; /* a format string for a number */
    const char *after;
    int count;
    ls_status status;
} repeated;

#define MANIFEST_HEAD                                                                                                  \
    "{\n \"checksum\": \"00000000000000000000000000000000\",\"format\":1,\"lockstep\":\"0\",\"world_size\":1,"         \
    "\"divided\":false,\"optimizer\":false,\"epochs_run\":0,\"step\":0,\"batch\":0,\"continues\":false,"               \
    "\"stopped\":false,\"loader\":{\"epoch\":0,\"batch\":0,\"batches\":0,\"global_batch\":0},\"latest\":{}"
#define MANIFEST_FILE "{\"name\":\"a\",\"bytes\":0,\"xxh3\":\"00000000000000000000000000000000\"}"
#define MANIFEST_PART                                                                                                  \
    "{\"file\":\"a\",\"rank\":0,\"name\":\"\",\"buffer\":true,\"shape\":[],\"axis\":-1,\"first\":0,\"count\":1,"       \
    "\"hash\":\"a\"}"
#define EPOCH(values) "{\"train_steps\":0,\"validate_steps\":0,\"values\":{" values "}},"

/* Writes an epoch with the maximum number of values, with one-letter names. */
static void put_epoch_of_many(FILE *stream) {
    fprintf(stream, "{\"train_steps\":0,\"validate_steps\":0,\"values\":{");
    for (int i = 0; i < LS_RESULT_LIMIT; i++) {
        fprintf(stream, "%s\"%c%c\":1", i > 0 ? "," : "", 'a' + i / 26, 'a' + i % 26);
    }
    fprintf(stream, "}},");
}

/* Writes a manifest with its checksum. */
static const char *manifest_of(const repeated *r, size_t *size) {
    char *text = NULL, checksum[LS_CHECKSUM_TEXT];
    FILE *stream = open_memstream(&text, size);
    fputs(r->before, stream);
    for (int i = 0; i < r->count; i++) {
        if (r->what == NULL) {
            put_epoch_of_many(stream);
        } else {
            fprintf(stream, r->what, i);
        }
    }
    fputs(r->after, stream);
    assert_int_equal(fclose(stream), 0);
    ls_checksum_text(text, *size, checksum);
    memcpy(strchr(text, '0'), checksum, LS_CHECKSUM_TEXT - 1);
    const char *path = test_file("manifest.json", text, *size);
    free(text);
    return path;
}

/* Numbers take more memory than their text: up to four times the size of the file. */
TEST(test_manifests) {
    static const char epochs[] = MANIFEST_HEAD ",\"history\":[", end_epochs[] = EPOCH("\"a\":1") "{}]}";
    static const char last_epoch[] =
        "{\"train_steps\":0,\"validate_steps\":0,\"values\":{}}],\"files\":[" MANIFEST_FILE "]}";
    const repeated cases[] = {
        {epochs, EPOCH(""), last_epoch, 2 * MIB / 50, LS_OK},
        {epochs, EPOCH("\"loss\":0.5"), last_epoch, 2 * MIB / 60, LS_OK},
        {epochs, EPOCH("\"v%d\":1"), last_epoch, 2 * MIB / 60, LS_OK},
        {epochs, NULL, last_epoch, 2 * MIB / 950, LS_OK},
        {epochs, "{},", end_epochs, 2 * MIB / 3, LS_ERR_FORMAT},
        {epochs, "\"train_steps\":", end_epochs, 2 * MIB / 14, LS_ERR_FORMAT},
        {epochs, ":", end_epochs, 2 * MIB, LS_ERR_FORMAT},
        {epochs, "[", end_epochs, 2 * MIB, LS_ERR_FORMAT},
        {MANIFEST_HEAD, ",\"k%d\":[{}]", ",\"history\":[],\"files\":[" MANIFEST_FILE "]}", 2 * MIB / 15, LS_OK},
        {MANIFEST_HEAD ",\"history\":[],\"files\":[", MANIFEST_FILE ",", MANIFEST_FILE "]}", 2 * MIB / 64, LS_OK},
        {MANIFEST_HEAD ",\"history\":[],\"files\":[", "\"xxh3\":", "]}", 2 * MIB / 7, LS_ERR_FORMAT},
        {MANIFEST_HEAD ",\"history\":[],\"files\":[" MANIFEST_FILE "],\"tensors\":[", MANIFEST_PART ",",
         MANIFEST_PART "]}", 2 * MIB / 100, LS_OK},
        {MANIFEST_HEAD ",\"history\":[],\"files\":[" MANIFEST_FILE "],\"tensors\":[", "\"axis\":", "]}", 2 * MIB / 7,
         LS_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size = 0;
        const char *path = manifest_of(&cases[i], &size);
        assert_true(size > MIB);
        expect((bomb){path, read_manifest, 2 * size, cases[i].status, NULL});
    }
}

/* An epoch with one training metric and one validation metric takes little more memory than its values. */
TEST(test_history_of_many_epochs) {
    enum { EPOCHS = 50000, MOST_BYTES = 200 };
    ls_history history = {.count = 0};
    counted count = {0};
    ls_history_entry entry = {.train_steps = 10, .validate_steps = 2};
    assert_int_equal(ls_history_put(&entry, "loss", 0.5), LS_OK);
    assert_int_equal(ls_history_put(&entry, "val_loss", 0.25), LS_OK);
    ls_thread_end();
    ls_set_allocator(&(ls_allocator){.allocate = allocate, .release = release, .user = &count});
    for (int64_t i = 0; i < EPOCHS; i++) {
        entry.values[0].value = (double)i;
        assert_int_equal(ls_history_append(&history, &entry), LS_OK);
        assert_true(count.peak <= 4096 + (size_t)(i + 1) * MOST_BYTES);
    }
    ls_history_entry_of(&history, EPOCHS / 3, &entry);
    assert_true(entry.count == 2 && ls_history_get(&entry, "loss") == EPOCHS / 3 &&
                ls_history_get(&entry, "val_loss") == 0.25 && entry.train_steps == 10);
    ls_history_free(&history);
    assert_int_equal(count.live, 0);
    ls_set_allocator(NULL);
}

/* Epochs with different metric names, and results that ls_trial_evaluate adds to the last epoch. */
TEST(test_history_of_other_names) {
    ls_history history = {.count = 0}, copy;
    static const char *const names[] = {"s", "loss", "", "los", "test_loss"};
    for (int i = 0; i < 5; i++) {
        ls_history_entry entry = {.train_steps = i};
        assert_int_equal(*names[i] != '\0' ? ls_history_put(&entry, names[i], i) : LS_OK, LS_OK);
        assert_int_equal(ls_history_append(&history, &entry), LS_OK);
        ls_history_entry more = {.count = 0};
        assert_int_equal(ls_history_put(&more, "test_loss", 10 + i), LS_OK);
        assert_int_equal(ls_history_put(&more, "test_acc", 20 + i), LS_OK);
        assert_int_equal(ls_history_extend(&history, &more), LS_OK);
    }
    assert_int_equal(ls_history_copy(&copy, &history), LS_OK);
    ls_history_free(&history);
    assert_int_equal(copy.count, 5);
    for (int i = 0; i < 5; i++) {
        ls_history_entry entry;
        ls_history_entry_of(&copy, i, &entry);
        assert_int_equal(entry.count, *names[i] == '\0' || i == 4 ? 2 : 3);
        assert_int_equal(entry.train_steps, i);
        assert_true(i == 2 || i == 4 || ls_history_get(&entry, names[i]) == i);
        assert_true(ls_history_get(&entry, "test_loss") == 10 + i && ls_history_get(&entry, "test_acc") == 20 + i);
    }
    ls_history_free(&copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idx_promises),
        cmocka_unit_test(test_npy_promises),
        cmocka_unit_test(test_npz_of_many),
        cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_csv_of_nothing),
        cmocka_unit_test(test_csv_tables),
        cmocka_unit_test(test_safetensors_are_not_inflated),
        cmocka_unit_test(test_safetensors_overlapping),
        cmocka_unit_test(test_safetensors_headers),
        cmocka_unit_test(test_safetensors_lengths),
        cmocka_unit_test(test_event_files),
        cmocka_unit_test(test_manifests),
        cmocka_unit_test(test_history_of_many_epochs),
        cmocka_unit_test(test_history_of_other_names),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
