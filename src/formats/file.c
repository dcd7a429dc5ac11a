#include "formats/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/memory.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum { INFLATE_BUFFER = 1 << 18, READ_LIMIT = 1 << 30, PIECE = 1 << 18 };

/* Inflates a gzip file, which consists of one or more members. Any other file passes unchanged. */
typedef struct ls_inflater {
    z_stream stream; /* the stream's input is the unread part of the buffer */
    enum { UNREAD, UNCHANGED, IN_MEMBER, AFTER_MEMBER } state;
    unsigned char buffer[INFLATE_BUFFER];
} ls_inflater;

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode) ? "folder" : S_ISCHR(mode) || S_ISBLK(mode) ? "device" : S_ISFIFO(mode) ? "pipe" : "socket";
}

/* Rejects pipes and devices: a pipe has no size to check the contents against, and some devices never end. */
static ls_status check_kind(const ls_source *source, const struct stat *status, bool pipes) {
    return S_ISREG(status->st_mode) || (pipes && S_ISFIFO(status->st_mode))
               ? LS_OK
               : ls_fail(LS_ERR_IO, "%s: %s is a %s, not a file", source->call, source->path, kind_of(status->st_mode));
}

ls_status ls_fail_open(const char *call, const char *path) {
    const int reason = errno;
    char folder[PATH_MAX];
    return path[0] != '/' && reason == ENOENT && getcwd(folder, sizeof folder) != NULL
               ? ls_fail(LS_ERR_IO, "%s: cannot open %s: %s (the working directory is %s)", call, path,
                         strerror(reason), folder)
               : ls_fail(LS_ERR_IO, "%s: cannot open %s: %s", call, path, strerror(reason));
}

/* Checks the kind of the file before opening it too: opening a device may have side effects, and opening a pipe
 * blocks. */
static ls_status open_file(ls_source *source, bool pipes) {
    struct stat status;
    if (stat(source->path, &status) == 0) {
        LS_TRY(check_kind(source, &status, pipes));
    }
    source->fd = open(source->path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (source->fd < 0 || fstat(source->fd, &status) != 0) {
        return ls_fail_open(source->call, source->path);
    }
    source->size = S_ISREG(status.st_mode) ? (size_t)status.st_size : SIZE_MAX;
    return check_kind(source, &status, pipes);
}

/* Returns false if there is no memory. */
static bool begin_inflating(ls_source *source) {
    ls_inflater *self = ls_allocate(sizeof *self);
    if (self == NULL) {
        return false;
    }
    self->stream = (z_stream){0};
    self->state = UNREAD;
    source->inflating = self;
    return inflateInit2(&self->stream, MAX_WBITS + 16) == Z_OK;
}

ls_status ls_source_open(const char *call, const char *path, bool inflate, ls_source *source) {
    *source = (ls_source){.call = call, .path = path, .fd = -1};
    if (path == NULL || path[0] == '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path is %s", call, path == NULL ? "NULL" : "empty");
    }
    const ls_status status = open_file(source, inflate);
    if (status != LS_OK) {
        ls_source_close(source);
        return status;
    }
    if (inflate && !begin_inflating(source)) {
        ls_source_close(source);
        return ls_fail_memory(call, sizeof *source->inflating);
    }
    return LS_OK;
}

static ls_status fail_read(const ls_source *source) {
    return ls_fail(LS_ERR_IO, "%s: cannot read %s: %s", source->call, source->path, strerror(errno));
}

static ls_status read_plain(ls_source *source, void *bytes, size_t size, size_t *got) {
    ssize_t count;
    do {
        count = read(source->fd, bytes, size);
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
        return fail_read(source);
    }
    *got = (size_t)count;
    return LS_OK;
}

/* Reads the next bytes of the file into the empty buffer: at least two bytes, except at the end of the file. */
static ls_status refill(ls_source *source) {
    ls_inflater *self = source->inflating;
    size_t held = 0, part = 1;
    while (held < 2 && part > 0) {
        LS_TRY(read_plain(source, self->buffer + held, sizeof self->buffer - held, &part));
        held += part;
    }
    self->stream.next_in = self->buffer;
    self->stream.avail_in = (unsigned)held;
    return LS_OK;
}

/* Begins the file: it is gzipped if it begins with gzip's magic number. */
static ls_status begin_file(ls_source *source) {
    ls_inflater *self = source->inflating;
    LS_TRY(refill(source));
    const bool gzipped = self->stream.avail_in > 1 && self->buffer[0] == 0x1f && self->buffer[1] == 0x8b;
    self->state = gzipped ? IN_MEMBER : UNCHANGED;
    return LS_OK;
}

/* Copies the bytes of the buffer, and reads the file directly after them. */
static ls_status read_unchanged(ls_source *source, void *bytes, size_t size, size_t *got) {
    z_stream *stream = &source->inflating->stream;
    if (stream->avail_in == 0) {
        return read_plain(source, bytes, size, got);
    }
    *got = size < stream->avail_in ? size : stream->avail_in;
    memcpy(bytes, stream->next_in, *got);
    stream->next_in += *got;
    stream->avail_in -= (unsigned)*got;
    return LS_OK;
}

static ls_status fail_damaged(const ls_source *source, const char *reason) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s is a damaged gzip file: %s", source->call, source->path, reason);
}

/* Skips zeros after a member, as gzip does, and begins the next member. */
static ls_status begin_member(ls_source *source) {
    z_stream *stream = &source->inflating->stream;
    while (stream->avail_in > 0 && *stream->next_in == 0) {
        stream->next_in++;
        stream->avail_in--;
    }
    if (stream->avail_in > 0) {
        if (*stream->next_in != 0x1f) {
            return fail_damaged(source, "it ends with bytes that are not gzipped");
        }
        (void)inflateReset(stream);
        source->inflating->state = IN_MEMBER;
    }
    return LS_OK;
}

static ls_status inflate_some(ls_source *source) {
    ls_inflater *self = source->inflating;
    const int code = inflate(&self->stream, Z_NO_FLUSH);
    self->state = code == Z_STREAM_END ? AFTER_MEMBER : IN_MEMBER;
    if (code == Z_MEM_ERROR) {
        return ls_fail_memory(source->call, sizeof self->stream);
    }
    return code == Z_OK || code == Z_STREAM_END
               ? LS_OK
               : fail_damaged(source, self->stream.msg != NULL ? self->stream.msg : zError(code));
}

/* Reads some of the next bytes. Sets `*got` to 0 at the end of the file. */
static ls_status read_inflating(ls_source *source, void *bytes, size_t size, size_t *got) {
    ls_inflater *self = source->inflating;
    z_stream *stream = &self->stream;
    LS_TRY(self->state == UNREAD ? begin_file(source) : LS_OK);
    if (self->state == UNCHANGED) {
        return read_unchanged(source, bytes, size, got);
    }
    stream->next_out = bytes;
    stream->avail_out = (unsigned)size;
    for (bool ended = false; stream->avail_out == size && !ended;) {
        LS_TRY(stream->avail_in == 0 ? refill(source) : LS_OK);
        ended = stream->avail_in == 0;
        if (ended && self->state == IN_MEMBER) {
            return ls_fail(LS_ERR_FORMAT, "%s: %s is a truncated gzip file: download it again", source->call,
                           source->path);
        }
        LS_TRY(self->state == AFTER_MEMBER ? begin_member(source) : inflate_some(source));
    }
    *got = size - stream->avail_out;
    return LS_OK;
}

ls_status ls_source_read(ls_source *source, void *bytes, size_t size, size_t *got) {
    size_t part = 1;
    for (*got = 0; *got < size && part > 0; *got += part) {
        const size_t left = size - *got;
        LS_TRY((source->read_part != NULL ? source->read_part
                : source->inflating != NULL
                    ? read_inflating
                    : read_plain)(source, (char *)bytes + *got, left < READ_LIMIT ? left : READ_LIMIT, &part));
    }
    return LS_OK;
}

ls_status ls_source_read_at(const ls_source *source, size_t offset, void *bytes, size_t size) {
    for (size_t at = 0; at < size;) {
        const size_t left = size - at;
        const ssize_t got =
            pread(source->fd, (char *)bytes + at, left < READ_LIMIT ? left : READ_LIMIT, (off_t)(offset + at));
        if (got < 0 && errno != EINTR) {
            return fail_read(source);
        }
        if (got == 0) {
            return ls_source_fail_short(source);
        }
        at += got > 0 ? (size_t)got : 0;
    }
    return LS_OK;
}

ls_status ls_source_fail_short(const ls_source *source) {
    return ls_fail(LS_ERR_IO, "%s: %s was truncated while it was being read", source->call, source->path);
}

size_t ls_source_most(const ls_source *source) {
    if (source->inflating == NULL || source->inflating->state == UNCHANGED) {
        return source->size;
    }
    return source->size < SIZE_MAX / LS_MOST_INFLATION ? source->size * LS_MOST_INFLATION : SIZE_MAX;
}

void ls_source_close(ls_source *source) {
    if (source->inflating != NULL) {
        (void)inflateEnd(&source->inflating->stream);
        ls_free(source->inflating);
    }
    if (source->fd >= 0) {
        close(source->fd);
    }
    source->inflating = NULL;
    source->fd = -1;
}

static ls_status add_source(ls_source *source, ls_checksum *sum, void *piece) {
    for (size_t got = PIECE; got == PIECE;) {
        LS_TRY(ls_source_read(source, piece, PIECE, &got));
        ls_checksum_add(sum, piece, got);
    }
    return LS_OK;
}

ls_status ls_checksum_file(const char *call, const char *path, int64_t *bytes, char checksum[LS_CHECKSUM_TEXT]) {
    ls_source source;
    LS_TRY(ls_source_open(call, path, false, &source));
    ls_checksum *sum = ls_checksum_new(call);
    void *piece = sum != NULL ? ls_allocate(PIECE) : NULL;
    const ls_status status = piece != NULL ? add_source(&source, sum, piece)
                             : sum != NULL ? ls_fail_memory(call, PIECE)
                                           : LS_ERR_MEMORY;
    if (status == LS_OK) {
        ls_checksum_get(sum, bytes, checksum);
    }
    ls_free(piece);
    ls_checksum_free(sum);
    ls_source_close(&source);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

enum { NAME_ATTEMPTS = 100 };

/* Returns whether the path is a link into /proc, such as /dev/stdout, which may lead to a regular file. */
static bool is_stream(const char *path) {
    static const char streams[] = "/proc/";
    char target[sizeof streams];
    return readlink(path, target, sizeof target) >= (ssize_t)strlen(streams) &&
           memcmp(target, streams, strlen(streams)) == 0;
}

/* Rejects targets that other programs open, such as /dev/null and /dev/stdout, because renaming would replace them. */
static ls_status check_target(const char *call, const char *path) {
    struct stat status;
    if (lstat(path, &status) != 0 || S_ISREG(status.st_mode)) {
        return LS_OK;
    }
    if (!S_ISLNK(status.st_mode)) {
        return ls_fail(LS_ERR_IO, "%s: cannot write %s: it is a %s, not a file", call, path, kind_of(status.st_mode));
    }
    const bool special = stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
    return special || is_stream(path) ? ls_fail(LS_ERR_IO, "%s: cannot write %s: it is a link to a %s, not to a file",
                                                call, path, special ? kind_of(status.st_mode) : "stream")
                                      : LS_OK;
}

/*
 * Creates a file that did not exist before, so that no user with write access to the folder can have put a link there.
 * Returns the descriptor, or -1 with errno set.
 */
static int create_temporary(const char *path, char *temporary, size_t size) {
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; fd < 0 && errno == EEXIST && i < NAME_ATTEMPTS; i++) {
        uint64_t number;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
            return -1;
        }
        snprintf(temporary, size, "%s.new-%016" PRIx64, path, number);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    return fd;
}

ls_status ls_file_create(const char *call, const char *path, ls_new_file *file) {
    *file = (ls_new_file){.path = path};
    if (path == NULL || *path == '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the path is empty", call);
    }
    LS_TRY(check_target(call, path));
    const size_t size = strlen(path) + 32;
    file->temporary = ls_allocate(size);
    if (file->temporary == NULL) {
        return ls_fail_memory(call, size);
    }
    const int fd = create_temporary(path, file->temporary, size);
    file->stream = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (file->stream == NULL) {
        const ls_status status = ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, path, strerror(errno));
        if (fd >= 0) {
            close(fd);
            (void)unlink(file->temporary);
        }
        ls_free(file->temporary);
        return status;
    }
    return LS_OK;
}

bool ls_shape_bytes(ls_shape shape, size_t width, size_t *bytes) {
    int64_t most = 8, count = 1;
    for (int i = 0; i < shape.ndim; i++) {
        if (shape.size[i] < 0 || __builtin_mul_overflow(most, shape.size[i] != 0 ? shape.size[i] : 1, &most)) {
            return false;
        }
        count *= shape.size[i];
    }
    *bytes = (size_t)count * width;
    return true;
}

bool ls_sync_folder(const char *path) {
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return errno == EACCES;
    }
    const bool synced = fsync(folder) == 0 || errno == EINVAL || errno == EROFS;
    const int reason = errno;
    close(folder);
    errno = reason;
    return synced;
}

/* Syncs the folder that contains the path. Otherwise a crash could lose a new name. */
static bool sync_parent(const char *path) {
    char copy[PATH_MAX]; /* file names cannot be longer */
    snprintf(copy, sizeof copy, "%s", path);
    return ls_sync_folder(dirname(copy));
}

/* ---- direct I/O -------------------------------------------------------------------------------------------------- */

enum { BLOCK = 1 << 19, DISK_BLOCK = 4096 }; /* half a MiB stays in a second-level cache; 4 KiB suits every disk */

static bool set_direct(int fd, bool direct) {
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Writes all bytes. If a direct write is rejected or ends within a disk block, continues with ordinary writes. */
static ls_status write_bytes(const char *call, const ls_new_file *file, const unsigned char *bytes, size_t size) {
    const int fd = fileno(file->stream);
    bool direct = size % DISK_BLOCK == 0 && set_direct(fd, true);
    bool good = direct || set_direct(fd, false);
    while (size > 0 && good) {
        const ssize_t written = write(fd, bytes, size);
        const size_t moved = written > 0 ? (size_t)written : 0;
        bytes += moved;
        size -= moved;
        if (direct && ((written < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) || moved % DISK_BLOCK != 0)) {
            direct = false;
            good = set_direct(fd, false);
        } else {
            good = written > 0 || (written < 0 && errno == EINTR);
        }
    }
    return good ? LS_OK : ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, file->path, strerror(errno));
}

/* Computes the checksum at this point because the bytes are still in the cache. */
static ls_status write_block(const char *call, ls_new_file *file) {
    if (file->sum != NULL) {
        ls_checksum_add(file->sum, file->block, file->held);
    }
    const size_t whole = file->held == BLOCK ? BLOCK : 0; /* a small remainder of a file is not worth a direct write */
    LS_TRY(write_bytes(call, file, file->block, whole));
    LS_TRY(write_bytes(call, file, file->block + whole, file->held - whole));
    file->held = 0;
    return LS_OK;
}

static ls_status hold(const char *call, ls_new_file *file, const unsigned char *bytes, size_t size) {
    while (size > 0) {
        const size_t room = BLOCK - file->held, part = size < room ? size : room;
        memcpy(file->block + file->held, bytes, part);
        file->held += part;
        bytes += part;
        size -= part;
        LS_TRY(file->held == BLOCK ? write_block(call, file) : LS_OK);
    }
    return LS_OK;
}

ls_status ls_file_pass_cache(const char *call, ls_new_file *file) {
    if (fflush(file->stream) != 0) {
        return ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, file->path, strerror(errno));
    }
    file->block = ls_allocate_aligned(BLOCK, DISK_BLOCK);
    return file->block != NULL ? LS_OK : ls_fail_memory(call, BLOCK);
}

/* ---- commit and folders ------------------------------------------------------------------------------------------ */

ls_status ls_file_commit(const char *call, ls_new_file *file, ls_status status) {
    if (file->block != NULL) {
        status = status == LS_OK ? write_block(call, file) : status;
        ls_free(file->block);
    }
    if (status == LS_OK && (fflush(file->stream) != 0 || fsync(fileno(file->stream)) != 0)) {
        status = ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, file->path, strerror(errno));
    }
    if (fclose(file->stream) != 0 && status == LS_OK) {
        status = ls_fail(LS_ERR_IO, "%s: cannot write %s: %s", call, file->path, strerror(errno));
    }
    if (status == LS_OK && rename(file->temporary, file->path) != 0) {
        status = ls_fail(LS_ERR_IO, "%s: cannot replace %s: %s", call, file->path, strerror(errno));
    }
    if (status != LS_OK) {
        (void)unlink(file->temporary);
    } else if (!file->in_new_folder) {
        (void)sync_parent(file->path);
    }
    ls_free(file->temporary);
    return status;
}

ls_status ls_file_write(const char *call, ls_new_file *file, const void *bytes, size_t size) {
    if (file->block != NULL) {
        return hold(call, file, bytes, size);
    }
    if (file->sum != NULL) {
        ls_checksum_add(file->sum, bytes, size);
    }
    return size == 0 || fwrite(bytes, 1, size, file->stream) == size
               ? LS_OK
               : ls_fail(LS_ERR_IO, "%s: cannot write %s: is the disk full?", call, file->path);
}

/* Returns 0 or an errno value. If `sync` is set, syncs the parent even if the folder already existed. */
static int make_one_folder(const char *path, bool sync) {
    struct stat about;
    const bool made = mkdir(path, 0777) == 0;
    const int reason = errno;
    if (!made && (stat(path, &about) != 0 || !S_ISDIR(about.st_mode))) {
        return reason;
    }
    return (made || sync) && !sync_parent(path) ? errno : 0;
}

ls_status ls_folder_make(const char *call, const char *path) {
    char part[PATH_MAX + 1] = ""; /* a truncated path is too long anyway */
    int reason = 0;
    for (const char *end = path; reason == 0 && *end != '\0';) {
        end += 1 + strcspn(end + 1, "/");
        snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
        reason = make_one_folder(part, *end == '\0');
    }
    return reason == 0 ? LS_OK
                       : ls_fail(LS_ERR_IO, "%s: cannot create the folder %.500s: %s%s", call, part, strerror(reason),
                                 reason == EEXIST ? " and is not a folder: choose another path" : "");
}
