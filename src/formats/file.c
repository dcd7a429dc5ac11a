#include "formats/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/memory.h"

enum { FIRST_CAPACITY = 1 << 16, READ_LIMIT = 1 << 30 };

static ls_status grow(const char *call, ls_bytes *bytes, size_t *capacity) {
    if (bytes->size < *capacity) {
        return LS_OK;
    }
    const size_t larger = *capacity == 0 ? FIRST_CAPACITY : 2 * *capacity;
    unsigned char *data = ls_reallocate(bytes->data, bytes->size, larger);
    if (data == NULL) {
        return ls_fail_memory(call, larger);
    }
    bytes->data = data;
    *capacity = larger;
    return LS_OK;
}

static ls_status read_stream(const char *call, const char *path, gzFile stream, ls_bytes *bytes) {
    size_t capacity = 0;
    for (;;) {
        LS_TRY(grow(call, bytes, &capacity));
        const size_t room = capacity - bytes->size;
        const int got = gzread(stream, bytes->data + bytes->size, room < READ_LIMIT ? (unsigned)room : READ_LIMIT);
        int code = Z_OK;
        const char *reason = gzerror(stream, &code);
        if (got < 0 || code == Z_BUF_ERROR) {
            return code == Z_ERRNO ? ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", call, path, strerror(errno))
                   : code == Z_BUF_ERROR
                       ? ls_fail(LS_ERR_FORMAT, "%s: %s is a gzip file that ends too early: fetch it again", call, path)
                       : ls_fail(LS_ERR_FORMAT, "%s: %s is a damaged gzip file: %s", call, path, reason);
        }
        if (got == 0) {
            return LS_OK;
        }
        bytes->size += (size_t)got;
    }
}

ls_status ls_file_read(const char *call, const char *path, ls_bytes *bytes) {
    *bytes = (ls_bytes){0};
    if (path == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path is NULL", call);
    }
    struct stat information;
    const bool known = stat(path, &information) == 0;
    if (known && (S_ISDIR(information.st_mode) || S_ISCHR(information.st_mode))) { /* some devices never end */
        return ls_fail(LS_ERR_IO, "%s: %s is a %s, not a file", call, path,
                       S_ISDIR(information.st_mode) ? "folder" : "device");
    }
    gzFile stream = gzopen(path, "rb");
    if (stream == NULL) {
        return ls_fail(LS_ERR_IO, "%s: cannot open %s: %s", call, path, errno != 0 ? strerror(errno) : "out of memory");
    }
    (void)gzbuffer(stream, 1 << 18);
    const ls_status status = read_stream(call, path, stream, bytes);
    gzclose_r(stream);
    if (status != LS_OK) {
        ls_free(bytes->data);
        *bytes = (ls_bytes){0};
    }
    return status;
}

ls_status ls_file_create(const char *call, const char *path, ls_new_file *file) {
    *file = (ls_new_file){.path = path};
    if (path == NULL || *path == '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path is empty", call);
    }
    const size_t size = strlen(path) + 32;
    file->aside = ls_allocate(size);
    if (file->aside == NULL) {
        return ls_fail_memory(call, size);
    }
    snprintf(file->aside, size, "%s.new-%ld", path, (long)getpid());
    file->stream = fopen(file->aside, "wb");
    if (file->stream == NULL) {
        const ls_status status = ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, path, strerror(errno));
        ls_free(file->aside);
        return status;
    }
    return LS_OK;
}

/* The rename is on disk only when its folder is. */
static void sync_folder(const char *path) {
    char copy[PATH_MAX]; /* no file has a longer name */
    snprintf(copy, sizeof copy, "%s", path);
    const int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        (void)fsync(folder);
        close(folder);
    }
}

ls_status ls_file_commit(const char *call, ls_new_file *file, ls_status status) {
    if (status == LS_OK && (fflush(file->stream) != 0 || fsync(fileno(file->stream)) != 0)) {
        status = ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, file->path, strerror(errno));
    }
    if (fclose(file->stream) != 0 && status == LS_OK) {
        status = ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, file->path, strerror(errno));
    }
    if (status == LS_OK && rename(file->aside, file->path) != 0) {
        status = ls_fail(LS_ERR_IO, "%s: cannot replace %s: %s", call, file->path, strerror(errno));
    }
    if (status == LS_OK) {
        sync_folder(file->path);
    } else {
        (void)unlink(file->aside);
    }
    ls_free(file->aside);
    return status;
}
