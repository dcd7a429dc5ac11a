/*
 * formats: files others read and write. It knows communicators and tensors. This header: bytes in and out of files.
 */
#ifndef LS_FORMATS_FILE_H
#define LS_FORMATS_FILE_H

#include <lockstep/formats.h>

#include <stdio.h>

#include "base/status.h"
#include "formats/checksum.h"

/* Bytes that one deflated byte can give: a run of 258 takes at least two bits (zlib's technical details). */
enum { LS_MOST_INFLATION = 1032 };

/* A file being read from its beginning to its end, never as a whole: readers hold what they make of it. */
typedef struct ls_source {
    const char *call; /* begins the message of a failure; lent, like `path` */
    const char *path;
    int fd;
    struct gzFile_s *inflating; /* NULL: bytes are taken as they are */
    size_t size;                /* of the file as it is stored; SIZE_MAX for a pipe */
    /* Gives some of the next bytes, none at the end: of a source that is a part of another (formats/zip.h), whose size
     * is what it gives in all. NULL: the bytes of the file. */
    ls_status (*read_part)(struct ls_source *self, void *bytes, size_t size, size_t *got);
} ls_source;

/* `inflate`: what is gzipped is inflated as it is read, anything else is read as it is, and it may be a pipe. */
ls_status ls_source_open(const char *call, const char *path, bool inflate, ls_source *source);

/* The next `size` bytes; `*got` is less than that only where the file ends. */
ls_status ls_source_read(ls_source *source, void *bytes, size_t size, size_t *got);

/* `size` bytes from `offset` on, of a file that is not inflated, wherever it is read. LS_ERR_IO where it ends before.
 */
ls_status ls_source_read_at(const ls_source *source, size_t offset, void *bytes, size_t size);

/* LS_ERR_IO: what the file had when it was opened is gone. */
ls_status ls_source_fail_short(const ls_source *source);

/* The most bytes that reading can give, counted from the beginning. Known once something has been read. */
size_t ls_source_most(const ls_source *source);

void ls_source_close(ls_source *source);

/* Reads the whole file, and returns its size in bytes and its checksum. */
ls_status ls_checksum_file(const char *call, const char *path, int64_t *bytes, char checksum[LS_CHECKSUM_TEXT]);

/* The bytes of a shape that a file names, of elements of `width` bytes, at most 8; false when no tensor can have it:
 * there a size of 0 counts as 1. */
bool ls_shape_bytes(ls_shape shape, size_t width, size_t *bytes);

/*
 * ls_file_create opens a new file beside `path`, of a name that nobody can foresee, and ls_file_commit
 * syncs it, renames it to `path` and syncs the folder. When anything failed since, it is removed instead and `path` is
 * as it was. Closes the stream in both cases. A symbolic link at `path` is replaced, not followed; a device, a pipe or
 * a socket there is refused.
 */
typedef struct ls_new_file {
    FILE *stream;
    const char *path; /* lent until the commit */
    char *temporary;
    ls_checksum *sum;     /* of what ls_file_write writes; lent; NULL at first: nobody asks for it */
    bool in_new_folder;   /* which who has made it syncs, when all files are there; false at first */
    unsigned char *block; /* see ls_file_pass_cache; NULL: the stream has it all */
    size_t held;          /* bytes there */
} ls_new_file;

ls_status ls_file_create(const char *call, const char *path, ls_new_file *file);
ls_status ls_file_commit(const char *call, ls_new_file *file, ls_status status);

/*
 * From here to the commit only ls_file_write is used, and what it gets goes to disk past the system's page cache
 * (O_DIRECT), a large block at a time: less of the processor's time for a large file that nobody reads soon. Where the
 * file system offers no such thing, blocks go the usual way.
 */
ls_status ls_file_pass_cache(const char *call, ls_new_file *file);

/* LS_ERR_IO where not all of it can be written. */
ls_status ls_file_write(const char *call, ls_new_file *file, const void *bytes, size_t size);

/* Syncs the folder, so that the names in it are on disk. Returns false, with errno set, on failure. File systems that
 * cannot sync folders (EINVAL, EROFS), and folders that this process may not read (EACCES), are not failures. */
bool ls_sync_folder(const char *path);

/* Makes the folder, and those it lies in, where they are missing, and syncs its parent, so that its name is on disk
 * even if another program has just made it. */
ls_status ls_folder_make(const char *call, const char *path);

#endif
