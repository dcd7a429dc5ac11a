/* NumPy's .npz format: a ZIP archive of .npy files. The name of each file is the name of its array, followed by
 * ".npy". */
#include <string.h>

#include "base/freed.h"
#include "base/memory.h"
#include "base/text.h"
#include "formats/named.h"
#include "formats/npy.h"
#include "formats/zip.h"
#include "tensor/device.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

static const char load[] = "ls_npz_load";
static const char save[] = "ls_npz_save";
static const char ending[] = ".npy";

enum { ENDING = sizeof ending - 1 };

/* ---- reading ----------------------------------------------------------------------------------------------------- */

struct ls_npz {
    bool freed;
    ls_zip zip; /* holds the names */
    ls_named_set tensors;
};

void ls_npz_free(ls_npz *file) {
    if (file == NULL || file->freed) {
        return;
    }
    ls_named_set_free(&file->tensors);
    ls_zip_close(&file->zip);
    *file = (ls_npz){.freed = true};
    ls_retire(file, LS_RETIRED_SINGLE);
}

static ls_status read_array(ls_npz *file, size_t index, ls_zip_member *member) {
    char *name = file->zip.entries[index].name;
    const size_t length = strlen(name);
    ls_tensor *tensor = NULL;
    if (length < ENDING || strcmp(name + length - ENDING, ending) != 0) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s: member %.100s is not an array: its name does not end in .npy", load,
                       file->zip.source->path, name);
    }
    ls_status status = ls_zip_member_open(&file->zip, index, member);
    if (status == LS_OK) {
        tensor = ls_npy_read_source(&member->source);
        status = tensor != NULL ? LS_OK : ls_error_status();
    }
    ls_zip_member_close(member);
    if (status == LS_OK) {
        file->tensors.items[file->tensors.count++] = (ls_named){.name = name, .tensor = tensor};
    } else if (status == LS_ERR_UNSUPPORTED) {
        status = ls_named_set_refuse(load, &file->tensors, name);
    }
    name[length - ENDING] = '\0'; /* after the checks above, whose messages contain the whole name */
    return status;
}

static ls_status read_file(const ls_source *source, ls_npz *file) {
    LS_TRY(ls_zip_open(source, &file->zip));
    const size_t count = file->zip.count;
    LS_TRY(ls_named_set_reserve(load, &file->tensors, count));
    ls_zip_member *member = ls_allocate(sizeof *member);
    ls_status status = member != NULL ? LS_OK : ls_fail_memory(load, sizeof *member);
    for (size_t i = 0; i < count && status == LS_OK; i++) {
        status = read_array(file, i, member);
    }
    ls_free(member);
    return status;
}

ls_npz *ls_npz_load(const char *path) {
    ls_source source;
    ls_saved_error before;
    ls_error_save(&before);
    if (ls_source_open(load, path, false, &source) != LS_OK) {
        return NULL;
    }
    ls_npz *file = ls_allocate_zeroed(1, sizeof *file);
    if (file == NULL) {
        (void)ls_fail_memory(load, sizeof *file);
    } else if (read_file(&source, file) == LS_OK) {
        ls_named_set_forgive(&file->tensors, &before);
    } else {
        ls_npz_free(file);
        file = NULL;
    }
    ls_source_close(&source);
    return file;
}

/* Fails with LS_ERR_STATE if the file was freed. Returns false for NULL, without an error. */
static bool is_here(const char *call, const ls_npz *file) {
    return file != NULL && (!file->freed || ls_fail_freed(call, "file", "ls_npz_free") == LS_OK);
}

int ls_npz_count(const ls_npz *file) {
    return file != NULL ? file->tensors.count : 0;
}

ls_named ls_npz_at(const ls_npz *file, int index) {
    return is_here("ls_npz_at", file) ? ls_named_set_at(&file->tensors, index) : (ls_named){0};
}

ls_tensor *ls_npz_find(const ls_npz *file, const char *name) {
    return is_here("ls_npz_find", file) ? ls_named_set_find(&file->tensors, name) : NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

enum { NAME_ROOM = 1024 };

/* Writes a member's name. Returns false if the name is not UTF-8 or is too long. */
static bool member_name(const char *name, char text[NAME_ROOM]) {
    return ls_text_is_utf8(name) && snprintf(text, NAME_ROOM, "%s%s", name, ending) < NAME_ROOM;
}

/* Rejects tensors that the format cannot represent, before a file is created. */
static ls_status check(const ls_named *tensors, int count) {
    char name[NAME_ROOM], head[LS_NPY_HEAD];
    size_t whole = LS_ZIP_END;
    LS_TRY(ls_named_check(save, tensors, count));
    for (int i = 0; i < count; i++) {
        if (!member_name(tensors[i].name, name)) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: the name of tensor %d is not UTF-8, or has more than %d bytes", save,
                           i, NAME_ROOM - ENDING - 1);
        }
        const size_t size = ls_npy_head(save, tensors[i].tensor, head);
        if (size == 0) {
            return LS_ERR_ARGUMENT;
        }
        whole += LS_ZIP_LOCAL + LS_ZIP_CENTRAL + 2 * strlen(name) + size + ls_tensor_bytes(tensors[i].tensor);
    }
    return whole < UINT32_MAX && count < UINT16_MAX
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: %d tensors would make a file of %zu bytes: the file must be smaller than 4 GiB and have "
                         "fewer than 65535 tensors",
                         save, count, whole);
}

static ls_status write_elements(ls_new_file *file, const char *name, ls_zip_line *line, const char *head, size_t size,
                                const ls_host_view *view) {
    const size_t bytes = ls_tensor_bytes(view->tensor);
    line->size = (uint32_t)(size + bytes);
    line->crc = (uint32_t)crc32_z(0, (const unsigned char *)head, size);
    if (bytes > 0) { /* with a NULL buffer, crc32_z would reset the checksum */
        line->crc = (uint32_t)crc32_z(line->crc, view->memory, bytes);
    }
    LS_TRY(ls_zip_put_local(save, file, name, line));
    LS_TRY(ls_file_write(save, file, head, size));
    return ls_file_write(save, file, view->memory, bytes);
}

/* Writes the member at file offset `*at`, and adds the member's size to `*at`. */
static ls_status write_member(ls_new_file *file, const ls_named *named, ls_zip_line *line, size_t *at) {
    char name[NAME_ROOM], head[LS_NPY_HEAD];
    ls_host_view view;
    (void)member_name(named->name, name);
    line->offset = (uint32_t)*at;
    const size_t size = ls_npy_head(save, named->tensor, head);
    LS_TRY(ls_host_view_begin(&view, named->tensor, LS_HOST_READ));
    LS_TRY(ls_host_view_end(&view, write_elements(file, name, line, head, size, &view)));
    *at += LS_ZIP_LOCAL + strlen(name) + line->size;
    return LS_OK;
}

static ls_status write_all(ls_new_file *file, const ls_named *tensors, int count, ls_zip_line *lines) {
    size_t at = 0, size = 0;
    for (int i = 0; i < count; i++) {
        LS_TRY(write_member(file, &tensors[i], &lines[i], &at));
    }
    for (int i = 0; i < count; i++) {
        char name[NAME_ROOM];
        (void)member_name(tensors[i].name, name);
        LS_TRY(ls_zip_put_central(save, file, name, &lines[i]));
        size += LS_ZIP_CENTRAL + strlen(name);
    }
    return ls_zip_put_end(save, file, (size_t)count, at, size);
}

ls_status ls_npz_save(const char *path, const ls_named *tensors, int count) {
    LS_TRY(check(tensors, count));
    ls_zip_line *lines = ls_allocate_zeroed((size_t)count, sizeof *lines);
    if (lines == NULL) {
        return ls_fail_memory(save, (size_t)count * sizeof *lines);
    }
    ls_new_file file;
    ls_status status = ls_file_create(save, path, &file);
    if (status == LS_OK) {
        status = ls_file_commit(save, &file, write_all(&file, tensors, count, lines));
    }
    ls_free(lines);
    return status;
}
