/*
 * Manifests: JSON with one line a value, for people too. It begins with the checksum of its text, in which that is
 * zeros. Numbers are written so that they are read back as the same bits; those that JSON has not are text: "nan",
 * "inf", "-inf".
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "formats/file.h"
#include "train/checkpoint/checkpoint.h"

enum { SIZE_LIMIT = 1 << 28, MOST_FILES = 1 << 16 };
#define MOST_COUNT  (INT64_C(1) << 53)
#define DIGITS      (LS_CHECKSUM_TEXT - 1)
#define ZEROS       "0000000000000000000000000000000000000000000000000000000000000000"
#define FORMAT_KEY  "format"
#define FAIL_MEMORY ls_fail_memory("checkpoint", sizeof(json_t))

void ls_manifest_free(ls_manifest *manifest) {
    ls_free(manifest->history);
    ls_free(manifest->files);
    *manifest = (ls_manifest){0};
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static json_t *number_of(double value) {
    return isfinite(value) ? json_real(value) : json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

static json_t *values_of(const ls_history_entry *entry) {
    json_t *values = json_object();
    for (int i = 0; i < entry->count; i++) {
        if (json_object_set_new(values, entry->values[i].name, number_of(entry->values[i].value)) != 0) {
            json_decref(values);
            return NULL;
        }
    }
    return values;
}

static json_t *entry_of(const ls_history_entry *entry) {
    return json_pack("{s:I, s:I, s:o}", "train_steps", (json_int_t)entry->train_steps, "validate_steps",
                     (json_int_t)entry->validate_steps, "values", values_of(entry));
}

static json_t *history_of(const ls_manifest *manifest) {
    json_t *history = json_array();
    for (int64_t i = 0; i < manifest->history_count; i++) {
        if (json_array_append_new(history, entry_of(&manifest->history[i])) != 0) {
            json_decref(history);
            return NULL;
        }
    }
    return history;
}

static json_t *files_of(const ls_manifest *manifest) {
    json_t *files = json_array();
    for (int i = 0; i < manifest->file_count; i++) {
        const ls_manifest_file *file = &manifest->files[i];
        if (json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", file->name, "bytes",
                                                   (json_int_t)file->bytes, "xxh3", file->checksum)) != 0) {
            json_decref(files);
            return NULL;
        }
    }
    return files;
}

static json_t *loader_of(const ls_manifest *manifest) {
    return json_pack("{s:I, s:I, s:I, s:I}", "epoch", (json_int_t)manifest->loader_epoch, "batch",
                     (json_int_t)manifest->loader_batch, "batches", (json_int_t)manifest->loader_batches,
                     "global_batch", (json_int_t)manifest->global_batch);
}

/* NULL without memory. */
static json_t *content_of(const ls_manifest *manifest) {
    return json_pack("{s:s, s:i, s:s, s:i, s:b, s:b, s:I, s:I, s:I, s:b, s:b, s:o, s:o, s:o, s:o}", "checksum", ZEROS,
                     FORMAT_KEY, LS_CHECKPOINT_FORMAT, "lockstep", ls_version(), "world_size", manifest->world_size,
                     "divided", manifest->divided, "optimizer", manifest->optimizer, "epochs_run",
                     (json_int_t)manifest->epochs_run, "step", (json_int_t)manifest->step, "batch",
                     (json_int_t)manifest->batch, "continues", manifest->continues, "stopped", manifest->stopped,
                     "loader", loader_of(manifest), "latest", values_of(&manifest->latest), "history",
                     history_of(manifest), "files", files_of(manifest));
}

/* What every manifest begins with, and then the checksum. */
static const char beginning[] = "{\n \"checksum\": \"";
enum { AT = sizeof beginning - 1 };

/* The checksum of a text that begins so; the text's own becomes zeros. */
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

static ls_status write_content(const json_t *content, const char *path) {
    const size_t size = json_dumpb(content, NULL, 0, JSON_INDENT(1));
    char checksum[LS_CHECKSUM_TEXT];
    char *text = ls_allocate(size + 1);
    if (size == 0 || text == NULL) {
        ls_free(text);
        return FAIL_MEMORY;
    }
    (void)json_dumpb(content, text, size, JSON_INDENT(1));
    text[size] = '\n';
    sum_up(text, size + 1, checksum);
    memcpy(text + AT, checksum, DIGITS);
    const ls_status status = write_text(text, size + 1, path);
    ls_free(text);
    return status;
}

ls_status ls_manifest_write(const ls_manifest *manifest, const char *folder) {
    char path[PATH_MAX];
    LS_TRY(ls_path_join(path, folder, LS_MANIFEST_NAME));
    json_t *content = content_of(manifest);
    const ls_status status = content != NULL ? write_content(content, path) : FAIL_MEMORY;
    json_decref(content);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static ls_status fail_format(const char *path, const char *what) {
    return ls_fail(LS_ERR_FORMAT, "checkpoint: %s is damaged: %s", path, what);
}

/* A count of the object; false where it is none. */
static bool get_count(const json_t *object, const char *key, int64_t least, int64_t *count) {
    const json_t *value = json_object_get(object, key);
    *count = json_is_integer(value) ? json_integer_value(value) : least - 1;
    return *count >= least && *count <= MOST_COUNT;
}

static bool get_flag(const json_t *object, const char *key, bool *flag) {
    const json_t *value = json_object_get(object, key);
    *flag = json_is_true(value);
    return json_is_boolean(value);
}

/* Text of at least one character, in room of `size` bytes. */
static bool get_text(const json_t *object, const char *key, char *text, size_t size) {
    const json_t *value = json_object_get(object, key);
    const size_t length = json_string_length(value);
    if (!json_is_string(value) || length == 0 || length >= size || strlen(json_string_value(value)) != length) {
        return false;
    }
    memcpy(text, json_string_value(value), length + 1);
    return true;
}

static bool get_number(const json_t *value, double *number) {
    if (json_is_number(value)) {
        *number = json_number_value(value);
        return true;
    }
    const char *text = json_string_value(value);
    *number = text != NULL && strcmp(text, "inf") == 0    ? (double)INFINITY
              : text != NULL && strcmp(text, "-inf") == 0 ? -(double)INFINITY
                                                          : (double)NAN;
    return text != NULL && (strcmp(text, "nan") == 0 || !isnan(*number));
}

static bool get_values(json_t *values, ls_history_entry *entry) {
    const char *name;
    json_t *value;
    if (!json_is_object(values) || json_object_size(values) > LS_RESULT_LIMIT) {
        return false;
    }
    json_object_foreach(values, name, value) {
        ls_metric_value *room = &entry->values[entry->count];
        const size_t length = strlen(name);
        if (length == 0 || length >= sizeof room->name || !get_number(value, &room->value)) {
            return false;
        }
        memcpy(room->name, name, length + 1);
        entry->count++;
    }
    return true;
}

static bool get_entry(const json_t *object, ls_history_entry *entry) {
    *entry = (ls_history_entry){.count = 0};
    return get_count(object, "train_steps", 0, &entry->train_steps) &&
           get_count(object, "validate_steps", 0, &entry->validate_steps) &&
           get_values(json_object_get(object, "values"), entry);
}

static ls_status read_history(const json_t *content, const char *path, ls_manifest *manifest) {
    const json_t *history = json_object_get(content, "history");
    const size_t count = json_array_size(history);
    if (!json_is_array(history)) {
        return fail_format(path, "its history is no list");
    }
    manifest->history = ls_allocate_zeroed(count, sizeof *manifest->history);
    if (manifest->history == NULL) {
        return ls_fail_memory("checkpoint", count * sizeof *manifest->history);
    }
    for (size_t i = 0; i < count; i++) {
        if (!get_entry(json_array_get(history, i), &manifest->history[manifest->history_count++])) {
            return fail_format(path, "its history holds something else than epochs");
        }
    }
    return LS_OK;
}

/* A plain name: it must lead nowhere else. */
static bool get_file(const json_t *object, ls_manifest_file *file) {
    return get_text(object, "name", file->name, sizeof file->name) && strchr(file->name, '/') == NULL &&
           file->name[0] != '.' && get_count(object, "bytes", 0, &file->bytes) &&
           get_text(object, "xxh3", file->checksum, sizeof file->checksum);
}

static ls_status read_files(const json_t *content, const char *path, ls_manifest *manifest) {
    const json_t *files = json_object_get(content, "files");
    const size_t count = json_array_size(files);
    if (count == 0 || count > MOST_FILES) {
        return fail_format(path, "it lists no files");
    }
    manifest->files = ls_allocate_zeroed(count, sizeof *manifest->files);
    if (manifest->files == NULL) {
        return ls_fail_memory("checkpoint", count * sizeof *manifest->files);
    }
    for (size_t i = 0; i < count; i++) {
        if (!get_file(json_array_get(files, i), &manifest->files[manifest->file_count++])) {
            return fail_format(path, "it lists something else than files");
        }
    }
    return LS_OK;
}

static bool read_place(const json_t *content, ls_manifest *manifest) {
    int64_t ranks = 0;
    const json_t *loader = json_object_get(content, "loader");
    const bool read =
        get_text(content, "lockstep", manifest->version, sizeof manifest->version) &&
        get_count(content, "world_size", 1, &ranks) && ranks <= INT_MAX &&
        get_flag(content, "divided", &manifest->divided) && get_flag(content, "optimizer", &manifest->optimizer) &&
        get_count(content, "epochs_run", 0, &manifest->epochs_run) && get_count(content, "step", 0, &manifest->step) &&
        get_count(content, "batch", 0, &manifest->batch) && get_flag(content, "continues", &manifest->continues) &&
        get_flag(content, "stopped", &manifest->stopped) && get_count(loader, "epoch", -1, &manifest->loader_epoch) &&
        get_count(loader, "batch", 0, &manifest->loader_batch) &&
        get_count(loader, "batches", -1, &manifest->loader_batches) &&
        get_count(loader, "global_batch", 0, &manifest->global_batch) &&
        get_values(json_object_get(content, "latest"), &manifest->latest);
    manifest->world_size = (int)ranks;
    return read;
}

/* Whether the text is as it was written. */
static ls_status check_sum(char *text, size_t size, const char *path) {
    char stored[LS_CHECKSUM_TEXT] = "", checksum[LS_CHECKSUM_TEXT];
    if (size < AT + DIGITS || memcmp(text, beginning, AT) != 0) {
        return fail_format(path, "it does not begin with its checksum");
    }
    memcpy(stored, text + AT, DIGITS);
    sum_up(text, size, checksum);
    return strcmp(checksum, stored) == 0 ? LS_OK : fail_format(path, "its checksum is not that of what it says");
}

static ls_status read_content(const json_t *content, char *text, size_t size, const char *path, ls_manifest *manifest) {
    int64_t format;
    if (!get_count(content, FORMAT_KEY, 1, &format)) {
        return fail_format(path, "it is no manifest of a checkpoint");
    }
    if (format > LS_CHECKPOINT_FORMAT) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "checkpoint: %s is of format %lld, written by a newer Lockstep; this is %s, which reads formats "
                       "up to %d",
                       path, (long long)format, ls_version(), LS_CHECKPOINT_FORMAT);
    }
    LS_TRY(check_sum(text, size, path));
    if (!read_place(content, manifest)) {
        return fail_format(path, "what it says of where training stands is not what can be");
    }
    LS_TRY(read_history(content, path, manifest));
    return read_files(content, path, manifest);
}

/* The file's bytes, with a zero byte behind them; the caller's. */
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

ls_status ls_manifest_read(const char *folder, ls_manifest *manifest) {
    char path[PATH_MAX];
    char *text = NULL;
    size_t size = 0;
    *manifest = (ls_manifest){0};
    LS_TRY(ls_path_join(path, folder, LS_MANIFEST_NAME));
    if (!ls_checkpoint_is_one(folder)) {
        return ls_fail(LS_ERR_FORMAT, "checkpoint: %s is not there: %s is no checkpoint, or one that was never whole",
                       path, folder);
    }
    ls_status status = read_text(path, &text, &size);
    if (status == LS_OK) {
        json_error_t error;
        json_t *whole = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
        status = whole != NULL ? read_content(whole, text, size, path, manifest) : fail_format(path, error.text);
        json_decref(whole);
    }
    ls_free(text);
    if (status != LS_OK) {
        ls_manifest_free(manifest);
    }
    return status;
}
