/*
 * formats: files others read and write. It knows communicators and tensors. This header: whole files in and out.
 */
#ifndef LS_FORMATS_FILE_H
#define LS_FORMATS_FILE_H

#include <lockstep/formats.h>

#include <stdio.h>

#include "base/status.h"

/* A file's bytes, from ls_allocate. */
typedef struct ls_bytes {
    unsigned char *data;
    size_t size;
} ls_bytes;

/* Reads the whole file, inflating it when it is gzipped. `call` begins the message of a failure. */
ls_status ls_file_read(const char *call, const char *path, ls_bytes *bytes);

/*
 * Writing aside: ls_file_create opens a new file beside `path`, and ls_file_commit syncs it and renames it to `path`.
 * When anything failed since, it is removed instead and `path` is as it was. Closes the stream in both cases.
 */
typedef struct ls_new_file {
    FILE *stream;
    const char *path; /* lent until the commit */
    char *aside;
} ls_new_file;

ls_status ls_file_create(const char *call, const char *path, ls_new_file *file);
ls_status ls_file_commit(const char *call, ls_new_file *file, ls_status status);

#endif
