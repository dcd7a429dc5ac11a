/*
 * ZIP archives (PKWARE's APPNOTE.TXT), as far as .npz files need them: members stored or deflated, written below 4 GiB.
 * What the central directory says counts, and members that overlap are refused, so that all of them give no more than
 * their bytes in the file can.
 */
#ifndef LS_FORMATS_ZIP_H
#define LS_FORMATS_ZIP_H

#include <zlib.h>

#include "formats/file.h"

/* What the directory says of a member. */
typedef struct ls_zip_entry {
    char *name;          /* UTF-8 */
    size_t offset, end;  /* of its header in the file; of what may be its bytes */
    size_t packed, size; /* bytes in the file, and as they were */
    uint32_t crc;
    bool deflated;
} ls_zip_entry;

typedef struct ls_zip {
    const ls_source *source; /* lent */
    char *directory;         /* holds the names */
    ls_zip_entry *entries;   /* in the order of their bytes */
    size_t count;
} ls_zip;

/* Reads the directory of a file that is not inflated as it is read. Free it with ls_zip_close, on failure too. */
ls_status ls_zip_open(const ls_source *source, ls_zip *zip);
void ls_zip_close(ls_zip *zip);

/* A member being read, through `source`. At its end the checksum is compared: LS_ERR_FORMAT. */
typedef struct ls_zip_member {
    ls_source source;
    char path[512]; /* of messages */
    const ls_zip *zip;
    const ls_zip_entry *entry;
    size_t at;   /* of the next bytes in the file */
    size_t left; /* in the file */
    size_t given;
    uint32_t crc;
    bool finished;
    z_stream inflating;
    unsigned char packed[1 << 14];
} ls_zip_member;

/* The member must stay where it is. Close it after any failure, too. */
ls_status ls_zip_member_open(const ls_zip *zip, size_t index, ls_zip_member *member);
void ls_zip_member_close(ls_zip_member *member);

/* ---- writing: local header, bytes, ..., directory, end ----------------------------------------------------------- */

enum { LS_ZIP_NAME_LIMIT = UINT16_MAX };

/* One line of the directory to be. */
typedef struct ls_zip_line {
    uint32_t offset, size, crc;
} ls_zip_line;

/* Each is LS_ERR_IO when it cannot be written. The name is of at most LS_ZIP_NAME_LIMIT bytes. */
ls_status ls_zip_put_local(const char *call, ls_new_file *file, const char *name, const ls_zip_line *line);
ls_status ls_zip_put_central(const char *call, ls_new_file *file, const char *name, const ls_zip_line *line);
ls_status ls_zip_put_end(const char *call, ls_new_file *file, size_t count, size_t offset, size_t size);

/* What the headers of a member take, without its name. */
enum { LS_ZIP_LOCAL = 30, LS_ZIP_CENTRAL = 46, LS_ZIP_END = 22 };

#endif
