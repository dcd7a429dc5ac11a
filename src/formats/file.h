/*
 * formats: file formats of other programs. Depends on communicators and tensors. This header declares functions that
 * read and write the bytes of files.
 */
#ifndef LS_FORMATS_FILE_H
#define LS_FORMATS_FILE_H

#include <lockstep/formats.h>

#include <stdio.h>

#include "base/status.h"
#include "formats/checksum.h"

/*
 * The largest number of bytes that one deflated byte can yield: a run of 258 bytes takes at least two bits (zlib's
 * technical details).
 */
enum { LS_MOST_INFLATION = 1032 };

/* A file that is read sequentially. No reader needs the whole file in memory. */
typedef struct ls_source {
    const char *call; /* first words of error messages; borrowed, like `path` */
    const char *path;
    int fd;
    struct ls_inflater *inflating; /* NULL if the bytes are read unchanged */
    size_t size;                   /* size of the stored file; SIZE_MAX for a pipe */
    /*
     * Reads some of the next bytes; returns 0 bytes at the end. Set if the source is part of another source
     * (formats/zip.h); `size` is then the number of bytes in the part. NULL reads the bytes of the file.
     */
    ls_status (*read_part)(struct ls_source *self, void *bytes, size_t size, size_t *got);
} ls_source;

/*
 * Opens a file. If `inflate` is set, a gzipped file is inflated while it is read; any other file is read unchanged, and
 * may be a pipe.
 */
ls_status ls_source_open(const char *call, const char *path, bool inflate, ls_source *source);

/* Sets LS_ERR_IO with the reason in errno: a file or folder could not be opened. */
ls_status ls_fail_open(const char *call, const char *path);

/* Reads the next `size` bytes. `*got` is less than `size` only at the end of the file. */
ls_status ls_source_read(ls_source *source, void *bytes, size_t size, size_t *got);

/*
 * Reads `size` bytes at `offset`, independent of the current position, from a file that is not inflated. Fails with
 * LS_ERR_IO if the file ends earlier.
 */
ls_status ls_source_read_at(const ls_source *source, size_t offset, void *bytes, size_t size);

/* Sets LS_ERR_IO: the file became shorter after it was opened. */
ls_status ls_source_fail_short(const ls_source *source);

/* Returns an upper bound on the total number of bytes that can be read. Known only after the first read. */
size_t ls_source_most(const ls_source *source);

void ls_source_close(ls_source *source);

/* Reads the whole file. Returns its size in bytes and its checksum. */
ls_status ls_checksum_file(const char *call, const char *path, int64_t *bytes, char checksum[LS_CHECKSUM_TEXT]);

/*
 * Computes the number of bytes for a shape read from a file, with elements of at most 8 bytes. Returns false if no
 * tensor can have this shape. For this check, a size of 0 counts as 1.
 */
bool ls_shape_bytes(ls_shape shape, size_t width, size_t *bytes);

/*
 * A file that is being created. ls_file_create opens a new file in the same folder as `path`, under an unpredictable
 * name. ls_file_commit syncs the file, renames it to `path` and syncs the folder. After an error, it removes the new
 * file instead, and leaves `path` unchanged. It closes the stream in both cases. A symbolic link at `path` is replaced,
 * not followed. A device, a pipe or a socket at `path` is rejected.
 */
typedef struct ls_new_file {
    FILE *stream;
    const char *path; /* borrowed until the commit */
    char *temporary;
    ls_checksum *sum;     /* the checksum of the bytes from ls_file_write; borrowed; initially NULL, for no checksum */
    bool in_new_folder;   /* the folder is new, and its creator syncs it after writing all files; initially false */
    unsigned char *block; /* see ls_file_pass_cache; NULL if all bytes are written to the stream */
    size_t held;          /* bytes there */
} ls_new_file;

ls_status ls_file_create(const char *call, const char *path, ls_new_file *file);
ls_status ls_file_commit(const char *call, ls_new_file *file, ls_status status);

/*
 * After this call, use only ls_file_write until the commit. Writes large blocks directly to disk, bypassing the
 * system's page cache (O_DIRECT). This saves CPU time for a large file that is not read soon. If the file system does
 * not support direct writes, blocks are written in the usual way.
 */
ls_status ls_file_pass_cache(const char *call, ls_new_file *file);

/* Fails with LS_ERR_IO if the bytes cannot be written completely. */
ls_status ls_file_write(const char *call, ls_new_file *file, const void *bytes, size_t size);

/*
 * Syncs the folder, so that its names are on disk. Returns false with errno set on failure. Returns true if the file
 * system cannot sync folders (EINVAL, EROFS), or if this process may not read the folder (EACCES).
 */
bool ls_sync_folder(const char *path);

/*
 * Makes the folder and missing parents. Syncs the folder's parent, so that the name is on disk even if a different
 * program has just made the folder.
 */
ls_status ls_folder_make(const char *call, const char *path);

#endif
