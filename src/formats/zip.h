/*
 * ZIP archives (PKWARE's APPNOTE.TXT), as far as .npz files need them: stored or deflated members; written archives are
 * below 4 GiB. The central directory is authoritative. Overlapping members are rejected, so that the size of the file
 * bounds the total size of all members.
 */
#ifndef LS_FORMATS_ZIP_H
#define LS_FORMATS_ZIP_H

#include <zlib.h>

#include "formats/file.h"

/* The directory entry of a member. */
typedef struct ls_zip_entry {
    char *name;          /* UTF-8 */
    size_t offset, end;  /* file offset of the member's header; upper bound of the end of its bytes */
    size_t packed, size; /* bytes in the file; bytes after inflating */
    uint32_t crc;
    bool deflated;
} ls_zip_entry;

typedef struct ls_zip {
    const ls_source *source; /* borrowed */
    char *directory;         /* holds the names */
    ls_zip_entry *entries;   /* sorted by the bytes of their names */
    size_t count;
} ls_zip;

/* Reads the directory of a file that is not gzipped. Free it with ls_zip_close, even on failure. */
ls_status ls_zip_open(const ls_source *source, ls_zip *zip);
void ls_zip_close(ls_zip *zip);

/* A member that is read through `source`. At its end, the checksum is verified; a mismatch is LS_ERR_FORMAT. */
typedef struct ls_zip_member {
    ls_source source;
    char path[512]; /* of messages */
    const ls_zip *zip;
    const ls_zip_entry *entry;
    size_t at;   /* file offset of the next bytes */
    size_t left; /* compressed bytes left to read */
    size_t given;
    uint32_t crc;
    bool finished;
    z_stream inflating;
    unsigned char packed[1 << 14];
} ls_zip_member;

/* Opens a member. The struct must not be moved while it is open. Close the member even on failure. */
ls_status ls_zip_member_open(const ls_zip *zip, size_t index, ls_zip_member *member);
void ls_zip_member_close(ls_zip_member *member);

/* ---- writing: local header, bytes, ..., directory, end ----------------------------------------------------------- */

enum { LS_ZIP_NAME_LIMIT = UINT16_MAX };

/* An entry of the directory to be written. */
typedef struct ls_zip_line {
    uint32_t offset, size, crc;
} ls_zip_line;

/* Fail with LS_ERR_IO if the bytes cannot be written. The name has at most LS_ZIP_NAME_LIMIT bytes. */
ls_status ls_zip_put_local(const char *call, ls_new_file *file, const char *name, const ls_zip_line *line);
ls_status ls_zip_put_central(const char *call, ls_new_file *file, const char *name, const ls_zip_line *line);
ls_status ls_zip_put_end(const char *call, ls_new_file *file, size_t count, size_t offset, size_t size);

/* The sizes of the headers, without the name of the member. */
enum { LS_ZIP_LOCAL = 30, LS_ZIP_CENTRAL = 46, LS_ZIP_END = 22 };

#endif
