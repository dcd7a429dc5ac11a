/*
 * formats: file formats of other programs. It depends on communicators and tensors. This header reads and writes the
 * bytes of files.
 */
#ifndef LS_FORMATS_FILE_H
#define LS_FORMATS_FILE_H

#include <lockstep/formats.h>

#include <stdio.h>

#include "base/status.h"
#include "formats/checksum.h"

/*
 * The largest number of bytes from one deflated byte: a run of 258 takes at least two bits (zlib's technical details).
 */
enum { LS_MOST_INFLATION = 1032 };

/* A file that is read sequentially, never as a whole: readers keep only their results. */
typedef struct ls_source {
    const char *call; /* begins the messages of failures; borrowed, like `path` */
    const char *path;
    int fd;
    struct gzFile_s *inflating; /* NULL: the bytes are read unchanged */
    size_t size;                /* size of the stored file; SIZE_MAX for a pipe */
    /*
     * Reads some of the next bytes, 0 bytes at the end. Set if the source is a part of another source (formats/zip.h);
     * its size is then the total of these bytes. NULL: the bytes of the file.
     */
    ls_status (*read_part)(struct ls_source *self, void *bytes, size_t size, size_t *got);
} ls_source;

/*
 * Opens a file. `inflate`: a gzipped file is inflated while it is read; any other file is read unchanged, and may be a
 * pipe.
 */
ls_status ls_source_open(const char *call, const char *path, bool inflate, ls_source *source);

/* Reads the next `size` bytes. `*got` is less only at the end of the file. */
ls_status ls_source_read(ls_source *source, void *bytes, size_t size, size_t *got);

/*
 * Reads `size` bytes from `offset` on, independent of the position, of a file that is not inflated. Fails with
 * LS_ERR_IO if the file ends before.
 */
ls_status ls_source_read_at(const ls_source *source, size_t offset, void *bytes, size_t size);

/* Sets LS_ERR_IO: the file became shorter after it was opened. */
ls_status ls_source_fail_short(const ls_source *source);

/* Returns the largest number of bytes that can be read in all. Known only after the first read. */
size_t ls_source_most(const ls_source *source);

void ls_source_close(ls_source *source);

/* Reads the whole file, and returns its size in bytes and its checksum. */
ls_status ls_checksum_file(const char *call, const char *path, int64_t *bytes, char checksum[LS_CHECKSUM_TEXT]);

/*
 * Computes the bytes of a shape from a file, with elements of at most 8 bytes. Returns false if no tensor can have this
 * shape; for this check, a size of 0 counts as 1.
 */
bool ls_shape_bytes(ls_shape shape, size_t width, size_t *bytes);

/*
 * ls_file_create opens a new file in the same folder as `path`, under a name that cannot be predicted. ls_file_commit
 * syncs the file, renames it to `path` and syncs the folder. After any error, it removes the new file instead, and
 * `path` is unchanged. It closes the stream in both cases. A symbolic link at `path` is replaced, not followed. A
 * device, a pipe or a socket at `path` is refused.
 */
typedef struct ls_new_file {
    FILE *stream;
    const char *path; /* borrowed until the commit */
    char *temporary;
    ls_checksum *sum;     /* the checksum of the bytes from ls_file_write; borrowed; initially NULL: not wanted */
    bool in_new_folder;   /* the folder is new, and its creator syncs it after all files are written; initially false */
    unsigned char *block; /* see ls_file_pass_cache; NULL: all bytes are in the stream */
    size_t held;          /* bytes there */
} ls_new_file;

ls_status ls_file_create(const char *call, const char *path, ls_new_file *file);
ls_status ls_file_commit(const char *call, ls_new_file *file, ls_status status);

/*
 * From this call to the commit, use only ls_file_write. Its bytes go to disk past the system's page cache (O_DIRECT),
 * in large blocks. This takes less processor time for a large file that is not read soon. If the file system does not
 * support it, blocks are written in the ordinary way.
 */
ls_status ls_file_pass_cache(const char *call, ls_new_file *file);

/* Fails with LS_ERR_IO if the bytes cannot be written completely. */
ls_status ls_file_write(const char *call, ls_new_file *file, const void *bytes, size_t size);

/*
 * Syncs the folder, so that its names are on disk. Returns false, with errno set, on failure. It is not a failure if
 * the file system cannot sync folders (EINVAL, EROFS) or this process may not read the folder (EACCES).
 */
bool ls_sync_folder(const char *path);

/*
 * Makes the folder and missing parents. Syncs its parent, so that its name is on disk even if another program has just
 * made it.
 */
ls_status ls_folder_make(const char *call, const char *path);

#endif
