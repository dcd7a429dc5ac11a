/*
 * Manifests: human-readable JSON with one value per line. A manifest begins with the checksum of its own text, computed
 * with zeros in place of the checksum. Numbers are written so that reading them back gives the same bits. Numbers that
 * JSON cannot represent are strings: "nan", "inf", "-inf". The reader does not build a tree: it uses less than four
 * times the memory of the file.
 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/file.h"
#include "formats/json.h"
#include "train/checkpoint/checkpoint.h"

enum { FORMAT = 1, SIZE_LIMIT = 1 << 28, MOST_FILES = 1 << 16 };
#define MOST_COUNT (INT64_C(1) << 53)
#define DIGITS     (LS_CHECKSUM_TEXT - 1)
#define ZEROS      "00000000000000000000000000000000"
#define FORMAT_KEY "format"
#define SUM_KEY    "xxh3"
#define STEPS_KEY  "train_steps"
#define AXIS_KEY   "axis"

_Static_assert(sizeof ZEROS == LS_CHECKSUM_TEXT, "as many zeros as digits");

void ls_manifest_free(ls_manifest *manifest) {
    ls_history_free(&manifest->history);
    ls_free(manifest->files);
    ls_part_layout_free(&manifest->layout);
    *manifest = (ls_manifest){0};
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static ls_status fail_format(const char *path, const char *what) {
    return ls_fail(LS_ERR_FORMAT, "checkpoint: %s is damaged: %s", path, what);
}

/* The state of the reader. */
typedef struct reading {
    ls_json json;
    const char *path;
    bool sum_is_good;
    int64_t most_files, most_parts; /* capacities */
    int64_t format;
    ls_history_entry entry; /* current epoch */
    ls_manifest_file file;  /* current file */
    ls_status status;       /* status of a failure that already has a message */
} reading;

/* A member of an object: its key, its format, and its offset in the struct. */
typedef struct field {
    const char *key;
    void (*put)(ls_json_writer *json, const struct field *how, const void *from);
    bool (*read)(reading *r, const struct field *how, void *to);
    size_t offset;
    int64_t least; /* smallest count */
    size_t room;   /* capacity of a text */
    bool optional; /* older versions did not write this field */
} field;

#define COUNT_OF(fields) (sizeof(fields) / sizeof *(fields))

enum { MOST_FIELDS = 24 };

static void put_fields(ls_json_writer *json, const field *fields, size_t count, const void *from) {
    for (size_t i = 0; i < count; i++) {
        fields[i].put(json, &fields[i], (const char *)from + fields[i].offset);
    }
}

static void put_object(ls_json_writer *json, const char *key, const field *fields, size_t count, const void *from) {
    ls_json_open(json, key, '{');
    put_fields(json, fields, count, from);
    ls_json_close(json, '}');
}

/* Reads an object that contains each of these fields once; optional fields may be missing. Skips unknown fields,
 * which a newer version wrote. */
static bool read_object(reading *r, const field *fields, size_t count, void *to) {
    bool seen[MOST_FIELDS] = {false};
    const char *key;
    for (int64_t n = 0; ls_json_key(&r->json, &n, &key);) {
        size_t which = 0;
        while (which < count && strcmp(key, fields[which].key) != 0) {
            which++;
        }
        if (which < count && seen[which]) {
            return false;
        }
        if (which < count ? !fields[which].read(r, &fields[which], (char *)to + fields[which].offset)
                          : !ls_json_skip(&r->json)) {
            return false;
        }
        seen[which < count ? which : MOST_FIELDS - 1] = true;
    }
    bool whole = r->json.expected == NULL;
    for (size_t i = 0; i < count; i++) {
        whole = whole && (seen[i] || fields[i].optional);
    }
    return whole;
}

static ls_status fail_here(reading *r, const char *what) {
    return r->status != LS_OK ? r->status : fail_format(r->path, what);
}

/* Reads an array. `read` reads one item into `to`. Sets an error with `reason` if an item is invalid. */
static bool read_list(reading *r, bool (*read)(reading *r, void *to), void *to, const char *reason) {
    for (int64_t n = 0; ls_json_item(&r->json, &n);) {
        if (!read(r, to)) {
            r->status = fail_here(r, reason);
            return false;
        }
    }
    return r->json.expected == NULL;
}

static void put_count(ls_json_writer *json, const field *how, const void *from) {
    ls_json_put_integer(json, how->key, *(const int64_t *)from);
}

static bool read_count(reading *r, const field *how, void *to) {
    int64_t *count = to;
    return ls_json_integer(&r->json, count) && *count >= how->least && *count <= MOST_COUNT;
}

static void put_int(ls_json_writer *json, const field *how, const void *from) {
    ls_json_put_integer(json, how->key, *(const int *)from);
}

static bool read_int(reading *r, const field *how, void *to) {
    int64_t count;
    if (!read_count(r, how, &count) || count > INT_MAX) {
        return false;
    }
    *(int *)to = (int)count;
    return true;
}

static void put_flag(ls_json_writer *json, const field *how, const void *from) {
    ls_json_put_flag(json, how->key, *(const bool *)from);
}

static bool read_flag(reading *r, const field *how, void *to) {
    (void)how;
    return ls_json_flag(&r->json, to);
}

static void put_word(ls_json_writer *json, const field *how, const void *from) {
    ls_json_put_text(json, how->key, from);
}

/* Reads a string of at least one character. */
static bool read_word(reading *r, const field *how, void *to) {
    const char *word;
    const size_t length = ls_json_word(&r->json, &word) ? strlen(word) : 0;
    if (length == 0 || length >= how->room) {
        return false;
    }
    memcpy(to, word, length + 1);
    return true;
}

static void put_version(ls_json_writer *json, const field *how, const void *from) {
    (void)from;
    ls_json_put_text(json, how->key, ls_version());
}

static void put_format(ls_json_writer *json, const field *how, const void *from) {
    (void)from;
    ls_json_put_integer(json, how->key, FORMAT);
}

/* In a newer format, the content after this field and the checksum may differ. */
static bool read_format(reading *r, const field *how, void *to) {
    (void)to;
    if (!read_count(r, how, &r->format)) {
        r->status = fail_format(r->path, "it is not a manifest of a checkpoint");
        return false;
    }
    if (r->format > FORMAT) {
        r->status = ls_fail(
            LS_ERR_UNSUPPORTED,
            "checkpoint: %s has format %lld of a newer Lockstep; this is Lockstep %s, which reads formats up to %d",
            r->path, (long long)r->format, ls_version(), FORMAT);
        return false;
    }
    if (!r->sum_is_good) {
        r->status = fail_format(r->path, "its checksum does not match its content");
    }
    return r->sum_is_good;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void put_values(ls_json_writer *json, const field *how, const void *from) {
    const ls_history_entry *entry = from;
    ls_json_open(json, how->key, '{');
    for (int i = 0; i < entry->count; i++) {
        const double value = entry->values[i].value;
        if (isfinite(value)) {
            ls_json_put_number(json, entry->values[i].name, value);
        } else {
            ls_json_put_text(json, entry->values[i].name, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        }
    }
    ls_json_close(json, '}');
}

static bool read_number(ls_json *json, double *number) {
    const char *word;
    if (!ls_json_accept(json, '"')) {
        return ls_json_number(json, number);
    }
    json->at--; /* the quotation mark is the first character of the string */
    if (!ls_json_word(json, &word)) {
        return false;
    }
    *number = strcmp(word, "inf") == 0 ? (double)INFINITY : strcmp(word, "-inf") == 0 ? -(double)INFINITY : (double)NAN;
    return strcmp(word, "nan") == 0 || !isnan(*number);
}

static bool read_values(reading *r, const field *how, void *to) {
    ls_history_entry *entry = to;
    const char *name;
    (void)how;
    for (int64_t n = 0; ls_json_key(&r->json, &n, &name);) {
        ls_metric_value *room = &entry->values[entry->count];
        const size_t length = strlen(name);
        if (entry->count == LS_RESULT_LIMIT || length == 0 || length >= sizeof room->name ||
            ls_history_find(entry, name) != NULL) {
            return false;
        }
        memcpy(room->name, name, length + 1);
        entry->count++;
        if (!read_number(&r->json, &room->value)) {
            return false;
        }
    }
    return r->json.expected == NULL;
}

static const field epoch_fields[] = {
    {STEPS_KEY, put_count, read_count, offsetof(ls_history_entry, train_steps), 0, 0, false},
    {"validate_steps", put_count, read_count, offsetof(ls_history_entry, validate_steps), 0, 0, false},
    {"values", put_values, read_values, 0, 0, 0, false},
};

static void put_history(ls_json_writer *json, const field *how, const void *from) {
    const ls_history *history = from;
    ls_json_open(json, how->key, '[');
    for (int64_t epoch = 0; epoch < history->count; epoch++) {
        ls_history_entry entry;
        ls_history_entry_of(history, epoch, &entry);
        put_object(json, NULL, epoch_fields, COUNT_OF(epoch_fields), &entry);
    }
    ls_json_close(json, ']');
}

static bool read_epoch(reading *r, void *to) {
    r->entry.count = 0;
    if (!read_object(r, epoch_fields, COUNT_OF(epoch_fields), &r->entry)) {
        return false;
    }
    r->status = ls_history_append(to, &r->entry);
    return r->status == LS_OK;
}

static bool read_history(reading *r, const field *how, void *to) {
    (void)how;
    return read_list(r, read_epoch, to, "its history has an invalid epoch");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const field file_fields[] = {
    {"name", put_word, read_word, offsetof(ls_manifest_file, name), 0, LS_FILE_NAME_LIMIT, false},
    {"bytes", put_count, read_count, offsetof(ls_manifest_file, bytes), 0, 0, false},
    {SUM_KEY, put_word, read_word, offsetof(ls_manifest_file, checksum), 0, LS_CHECKSUM_TEXT, false},
};

static void put_files(ls_json_writer *json, const field *how, const void *from) {
    const ls_manifest *manifest = from;
    ls_json_open(json, how->key, '[');
    for (int i = 0; i < manifest->file_count; i++) {
        put_object(json, NULL, file_fields, COUNT_OF(file_fields), &manifest->files[i]);
    }
    ls_json_close(json, ']');
}

/* Reads a plain file name, which must not refer to a different folder. */
static bool read_file(reading *r, void *to) {
    ls_manifest *manifest = to;
    const ls_manifest_file *file = &r->file;
    if (manifest->file_count >= r->most_files || !read_object(r, file_fields, COUNT_OF(file_fields), &r->file) ||
        strchr(file->name, '/') != NULL || file->name[0] == '.' || strlen(file->checksum) != DIGITS) {
        return false;
    }
    manifest->files[manifest->file_count++] = *file;
    return true;
}

static bool read_files(reading *r, const field *how, void *to) {
    (void)how;
    return read_list(r, read_file, to, "it lists an entry that is not a file");
}

/* ---- parts of tensors -------------------------------------------------------------------------------------------- */

static void put_name(ls_json_writer *json, const field *how, const void *from) {
    ls_json_put_text(json, how->key, *(char *const *)from);
}

static bool read_name(reading *r, const field *how, void *to) {
    char **name = to;
    const char *word;
    (void)how;
    if (!ls_json_word(&r->json, &word)) {
        return false;
    }
    *name = ls_duplicate_string(word);
    r->status = *name != NULL ? LS_OK : ls_fail_memory("checkpoint", strlen(word) + 1);
    return *name != NULL;
}

static void put_shape(ls_json_writer *json, const field *how, const void *from) {
    const ls_shape *shape = from;
    ls_json_open(json, how->key, '[');
    for (int i = 0; i < shape->ndim; i++) {
        ls_json_put_integer(json, NULL, shape->size[i]);
    }
    ls_json_close(json, ']');
}

static bool read_shape(reading *r, const field *how, void *to) {
    ls_shape *shape = to;
    (void)how;
    for (int64_t n = 0; ls_json_item(&r->json, &n);) {
        if (shape->ndim == LS_MAX_DIMS || !ls_json_size(&r->json, &shape->size[shape->ndim++])) {
            return false;
        }
    }
    return r->json.expected == NULL;
}

static const field part_fields[] = {
    {"file", put_word, read_word, offsetof(ls_part, of), 0, sizeof((ls_part *)NULL)->of, false},
    {"rank", put_int, read_int, offsetof(ls_part, rank), 0, 0, false},
    {"name", put_name, read_name, offsetof(ls_part, name), 0, 0, false},
    {"buffer", put_flag, read_flag, offsetof(ls_part, buffer), 0, 0, false},
    {"shape", put_shape, read_shape, offsetof(ls_part, shape), 0, 0, false},
    {AXIS_KEY, put_int, read_int, offsetof(ls_part, axis), -1, 0, false},
    {"first", put_count, read_count, offsetof(ls_part, first), 0, 0, false},
    {"count", put_count, read_count, offsetof(ls_part, count), 0, 0, false},
    {"hash", put_word, read_word, offsetof(ls_part, hash), 0, LS_PART_HASH, false},
};

/* Only sharded models have parts. */
static void put_parts(ls_json_writer *json, const field *how, const void *from) {
    const ls_part_layout *layout = from;
    if (layout->count == 0) {
        return;
    }
    ls_json_open(json, how->key, '[');
    for (int i = 0; i < layout->count; i++) {
        put_object(json, NULL, part_fields, COUNT_OF(part_fields), &layout->parts[i]);
    }
    ls_json_close(json, ']');
}

static bool is_part(const ls_part *part) {
    const int64_t whole = part->axis < 0 ? 1 : part->axis < part->shape.ndim ? part->shape.size[part->axis] : -1;
    return part->count <= whole && part->first <= whole - part->count;
}

static bool read_part(reading *r, void *to) {
    ls_part_layout *layout = to;
    if (layout->count >= r->most_parts) {
        return false;
    }
    ls_part *part = &layout->parts[layout->count++]; /* cleared */
    return read_object(r, part_fields, COUNT_OF(part_fields), part) && is_part(part);
}

static bool read_parts(reading *r, const field *how, void *to) {
    (void)how;
    return read_list(r, read_part, to, "it lists an invalid part of a tensor");
}

/* ---- the loader -------------------------------------------------------------------------------------------------- */

static const field loader_fields[] = {
    {"epoch", put_count, read_count, offsetof(ls_manifest, loader_epoch), -1, 0, false},
    {"batch", put_count, read_count, offsetof(ls_manifest, loader_batch), 0, 0, false},
    {"batches", put_count, read_count, offsetof(ls_manifest, loader_batches), -1, 0, false},
    {"global_batch", put_count, read_count, offsetof(ls_manifest, global_batch), 0, 0, false},
    {"samples", put_count, read_count, offsetof(ls_manifest, samples), 0, 0, true},
    {"seed", put_word, read_word, offsetof(ls_manifest, seed), 0, LS_SEED_TEXT, true},
    {"no_shuffle", put_flag, read_flag, offsetof(ls_manifest, no_shuffle), 0, 0, true},
};

static void put_loader(ls_json_writer *json, const field *how, const void *from) {
    put_object(json, how->key, loader_fields, COUNT_OF(loader_fields), from);
}

static bool read_loader(reading *r, const field *how, void *to) {
    (void)how;
    return read_object(r, loader_fields, COUNT_OF(loader_fields), to);
}

/* ---- the manifest ------------------------------------------------------------------------------------------------ */

static const field manifest_fields[] = {
    {FORMAT_KEY, put_format, read_format, 0, 1, 0, false},
    {"lockstep", put_version, read_word, offsetof(ls_manifest, version), 0, sizeof((ls_manifest *)NULL)->version,
     false},
    {"world_size", put_int, read_int, offsetof(ls_manifest, world_size), 1, 0, false},
    {"shards", put_int, read_int, offsetof(ls_manifest, shards), 0, 0, true},
    {"divided", put_flag, read_flag, offsetof(ls_manifest, divided), 0, 0, false},
    {"optimizer", put_flag, read_flag, offsetof(ls_manifest, optimizer), 0, 0, false},
    {"epochs_run", put_count, read_count, offsetof(ls_manifest, epochs_run), 0, 0, false},
    {"step", put_count, read_count, offsetof(ls_manifest, step), 0, 0, false},
    {"batch", put_count, read_count, offsetof(ls_manifest, batch), 0, 0, false},
    {"continues", put_flag, read_flag, offsetof(ls_manifest, continues), 0, 0, false},
    {"stopped", put_flag, read_flag, offsetof(ls_manifest, stopped), 0, 0, false},
    {"loader", put_loader, read_loader, 0, 0, 0, false},
    {"latest", put_values, read_values, offsetof(ls_manifest, latest), 0, 0, false},
    {"history", put_history, read_history, offsetof(ls_manifest, history), 0, 0, false},
    {"files", put_files, read_files, 0, 0, 0, false},
    {"tensors", put_parts, read_parts, offsetof(ls_manifest, layout), 0, 0, true},
};

_Static_assert(COUNT_OF(manifest_fields) < MOST_FIELDS, "room to note which were seen");

static void put_manifest(FILE *stream, const ls_manifest *manifest) {
    ls_json_writer json = {.stream = stream};
    ls_json_open(&json, NULL, '{');
    ls_json_put_text(&json, "checksum", ZEROS);
    put_fields(&json, manifest_fields, COUNT_OF(manifest_fields), manifest);
    ls_json_close(&json, '}');
    fputc('\n', stream);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* The beginning of every manifest. The checksum follows. */
static const char beginning[] = "{\n \"checksum\": \"";
enum { AT = sizeof beginning - 1 };

/* Computes the checksum of a text that starts like this. Overwrites the checksum in the text with zeros. */
static void sum_up(char *text, size_t size, char checksum[LS_CHECKSUM_TEXT]) {
    memset(text + AT, '0', DIGITS);
    ls_checksum_text(text, size, checksum);
}

static ls_status write_text(const char *text, size_t size, const char *path) {
    ls_new_file file;
    LS_TRY(ls_file_create("checkpoint", path, &file));
    file.in_new_folder = true;
    const bool written = fwrite(text, 1, size, file.stream) == size;
    return ls_file_commit("checkpoint", &file,
                          written ? LS_OK : ls_fail(LS_ERR_IO, "checkpoint: cannot write %s: is the disk full?", path));
}

ls_status ls_manifest_write(const ls_manifest *manifest, const char *folder) {
    char path[PATH_MAX], checksum[LS_CHECKSUM_TEXT];
    char *text = NULL;
    size_t size = 0;
    LS_TRY(ls_path_join(path, folder, LS_MANIFEST_NAME));
    FILE *stream = open_memstream(&text, &size);
    bool whole = stream != NULL;
    if (whole) {
        put_manifest(stream, manifest);
        whole = ferror(stream) == 0;
        whole = fclose(stream) == 0 && whole;
    }
    if (!whole) {
        free(text);
        return ls_fail_memory("checkpoint", size);
    }
    sum_up(text, size, checksum);
    memcpy(text + AT, checksum, DIGITS);
    const ls_status status = write_text(text, size, path);
    free(text);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/*
 * Counts the occurrences of a word in the text, limited to the number of its smallest possible objects that fit in the
 * text. Does not use strstr, because the sanitizer measures the whole text in each call, and the test with long texts
 * would take minutes.
 */
static size_t most_of(const char *text, size_t size, const char *word, size_t shortest) {
    const size_t length = strlen(word);
    size_t count = 0;
    for (const char *at = strchr(text, *word); at != NULL && count < size / shortest; at = strchr(at + 1, *word)) {
        count += strncmp(at, word, length) == 0;
    }
    return count;
}

/* Reserves memory for everything that the text can contain, so that no array grows later. */
static ls_status make_room(const char *text, size_t size, ls_manifest *manifest, int64_t *files, int64_t *parts) {
    const size_t epochs =
        most_of(text, size, "\"" STEPS_KEY "\"", sizeof "{'train_steps':0,'validate_steps':0,'values':{}");
    const size_t pairs = most_of(text, size, ":", sizeof "'a':1");
    const size_t sums = most_of(text, size, "\"" SUM_KEY "\"", sizeof "{'name':'a','bytes':0,'xxh3':''" + DIGITS);
    const size_t axes = most_of(text, size, "\"" AXIS_KEY "\"",
                                sizeof "{'file':'a','rank':0,'name':'','buffer':true,'shape':[],'axis':0,'first':0,"
                                       "'count':0,'hash':'a'}");
    *files = (int64_t)(sums < MOST_FILES ? sums : MOST_FILES);
    *parts = (int64_t)axes;
    LS_TRY(ls_history_reserve(&manifest->history, epochs, pairs));
    manifest->files = ls_allocate_zeroed((size_t)*files, sizeof *manifest->files);
    manifest->layout.parts = axes > 0 ? ls_allocate_zeroed(axes, sizeof *manifest->layout.parts) : NULL;
    return manifest->files != NULL && (axes == 0 || manifest->layout.parts != NULL)
               ? LS_OK
               : ls_fail_memory("checkpoint", (size_t)*files * sizeof *manifest->files + axes * sizeof(ls_part));
}

static ls_status read_whole(reading *r, size_t size, ls_manifest *manifest) {
    const bool good =
        read_object(r, manifest_fields, COUNT_OF(manifest_fields), manifest) && ls_json_end(&r->json, size);
    if (!good && r->status == LS_OK && r->json.expected != NULL) {
        return ls_fail(LS_ERR_FORMAT, "checkpoint: %s is damaged: at byte %zu must be %s", r->path,
                       ls_json_position(&r->json), r->json.expected);
    }
    if (!good) {
        return fail_here(r,
                         r->format == 0 ? "it is not a manifest of a checkpoint" : "its training position is invalid");
    }
    return manifest->file_count > 0 ? ls_part_layout_check_ranks(&manifest->layout, r->path, manifest->world_size)
                                    : fail_format(r->path, "it lists no files");
}

static bool begins_as_manifest(const char *text, size_t size) {
    return size >= AT + DIGITS && memcmp(text, beginning, AT) == 0;
}

/* Returns whether the checksum in a manifest's text is correct. */
static bool check_sum(char *text, size_t size) {
    char stored[LS_CHECKSUM_TEXT] = "", checksum[LS_CHECKSUM_TEXT];
    memcpy(stored, text + AT, DIGITS);
    sum_up(text, size, checksum);
    return strcmp(checksum, stored) == 0;
}

/* Reads the file, with room for a terminating NUL. Returns ownership of `*text` to the caller. */
static ls_status read_text(const char *path, char **text, size_t *size) {
    ls_source source;
    LS_TRY(ls_source_open("checkpoint", path, false, &source));
    *size = source.size;
    *text = source.size <= SIZE_LIMIT ? ls_allocate(source.size + 1) : NULL;
    ls_status status = *text != NULL               ? LS_OK
                       : source.size <= SIZE_LIMIT ? ls_fail_memory("checkpoint", source.size + 1)
                                                   : fail_format(path, "it is too large for a manifest");
    if (status == LS_OK) {
        status = ls_source_read(&source, *text, source.size, size);
    }
    ls_source_close(&source);
    return status;
}

static ls_status parse(char *text, size_t size, const char *path, ls_manifest *manifest) {
    if (!begins_as_manifest(text, size)) { /* not even a manifest in a newer format */
        return fail_format(path, "it is not a manifest of a checkpoint");
    }
    text[size] = '\0';
    reading r = {.path = path, .sum_is_good = check_sum(text, size), .json = ls_json_of(text)};
    LS_TRY(make_room(text, size, manifest, &r.most_files, &r.most_parts));
    return read_whole(&r, size, manifest);
}

ls_status ls_manifest_read(const char *folder, ls_manifest *manifest) {
    char path[PATH_MAX];
    char *text = NULL;
    size_t size = 0;
    *manifest = (ls_manifest){0};
    LS_TRY(ls_path_join(path, folder, LS_MANIFEST_NAME));
    if (!ls_checkpoint_is_one(folder)) {
        return ls_fail(LS_ERR_FORMAT, "checkpoint: %s is missing: %s is not a checkpoint, or was never completed", path,
                       folder);
    }
    ls_status status = read_text(path, &text, &size);
    if (status == LS_OK) {
        status = parse(text, size, path, manifest);
    }
    ls_free(text);
    if (status != LS_OK) {
        ls_manifest_free(manifest);
    }
    return status;
}
